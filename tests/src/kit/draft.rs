//! A program in the making: its text and its values.

use std::fmt::{self, Write};

use crate::random::Random;

/// An extent: a number, or a multiple of the symbol M.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Fixed(u64),
    Rows(u64),
}

pub(super) use Extent::{Fixed, Rows};

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fixed(extent) => write!(f, "{extent}"),
            Rows(1) => f.write_str("M"),
            Rows(factor) => write!(f, "{factor}*M"),
        }
    }
}

impl Extent {
    pub(super) fn fixed(self) -> Option<u64> {
        match self {
            Fixed(extent) => Some(extent),
            Rows(_) => None,
        }
    }

    /// The sum, if it is an extent.
    pub(super) fn plus(self, other: Extent) -> Option<Extent> {
        match (self, other) {
            (Fixed(a), Fixed(b)) => Some(Fixed(a + b)),
            (Rows(a), Rows(b)) => Some(Rows(a + b)),
            _ => None,
        }
    }

    /// The largest extent, for the size of a value.
    pub(super) fn most(self) -> u64 {
        match self {
            Fixed(extent) => extent,
            Rows(factor) => factor * 130,
        }
    }
}

/// The part that made a value. It decides which parts may read the value without another kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Input,
    Param,
    Row,
    Move,
    View,
    Mma,
    ScaledMma,
    /// No row part and no product may read the value, even after moves. Normalization would turn a product of
    /// dequantized values into a `scaled_mma`, and a session computes what depends on params only on the CPU.
    Apart,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) struct Val {
    pub(super) name: String,
    pub(super) dims: Vec<Extent>,
    pub(super) element: &'static str,
    /// The layout of scales.
    pub(super) layout: Option<&'static str>,
    pub(super) origin: Origin,
    /// True if a row part reads it.
    pub(super) in_row: bool,
    /// True if any part reads it.
    pub(super) used: bool,
    /// True if it is transposed. Normalization removes two transpositions, and their operand may end a kernel.
    pub(super) transposed: bool,
}

impl Val {
    pub(super) fn ty(&self) -> String {
        ty(&self.dims, self.element, self.layout)
    }

    pub(super) fn last(&self) -> Extent {
        self.dims.last().copied().unwrap_or(Fixed(1))
    }

    pub(super) fn elements(&self) -> u64 {
        self.dims.iter().map(|extent| extent.most()).product()
    }

    /// True for results of moves, products and inputs, which a row kernel does not absorb.
    pub(super) fn ends_a_kernel(&self) -> bool {
        matches!(self.origin, Origin::Input | Origin::Move | Origin::Mma)
    }
}

pub(super) fn ty(dims: &[Extent], element: &str, layout: Option<&str>) -> String {
    let dims: Vec<String> = dims.iter().map(Extent::to_string).collect();
    let layout = layout.map_or(String::new(), |layout| format!(", {layout}"));
    format!("tensor<[{}], {element}{layout}>", dims.join(", "))
}

/// A program in the making.
pub(super) struct Draft {
    pub(super) random: Random,
    inputs: Vec<String>,
    uses_rows: bool,
    body: String,
    names: usize,
    pub(super) values: Vec<Val>,
}

impl Draft {
    pub(super) fn new(random: Random) -> Draft {
        Draft {
            random,
            inputs: Vec::new(),
            uses_rows: false,
            body: String::new(),
            names: 0,
            values: Vec::new(),
        }
    }

    fn name(&mut self, letter: char) -> String {
        self.names += 1;
        format!("{letter}{}", self.names)
    }

    /// Adds an input that no other part reads.
    pub(super) fn input(&mut self, dims: &[Extent], element: &'static str) -> Val {
        self.entry(dims, element, None, Origin::Input)
    }

    /// Adds a param, whose extents are fixed.
    pub(super) fn param(&mut self, dims: &[Extent], element: &'static str) -> Val {
        self.entry(dims, element, None, Origin::Param)
    }

    /// Adds scales.
    pub(super) fn scales(
        &mut self,
        dims: &[Extent],
        element: &'static str,
        layout: &'static str,
        origin: Origin,
    ) -> Val {
        self.entry(dims, element, Some(layout), origin)
    }

    fn entry(
        &mut self,
        dims: &[Extent],
        element: &'static str,
        layout: Option<&'static str>,
        origin: Origin,
    ) -> Val {
        let (keyword, letter) = if origin == Origin::Param { ("param ", 'p') } else { ("", 'x') };
        let name = self.name(letter);
        self.uses_rows |= dims.iter().any(|extent| extent.fixed().is_none());
        self.inputs.push(format!("    {keyword}%{name}: {}", ty(dims, element, layout)));
        Val {
            name,
            dims: dims.to_vec(),
            element,
            layout,
            origin,
            in_row: false,
            used: true,
            transposed: false,
        }
    }

    /// Writes an op inside a part and returns the name of its result.
    pub(super) fn step(&mut self, op: &str, dims: &[Extent], element: &str) -> String {
        let name = self.name('t');
        let _ = writeln!(self.body, "  %{name} = {op} : {}", ty(dims, element, None));
        name
    }

    /// Writes an op, the last of a part, and keeps its result.
    pub(super) fn result(&mut self, op: &str, dims: &[Extent], element: &'static str, origin: Origin) -> Val {
        self.result_with(op, dims, element, None, origin)
    }

    /// As [`Draft::result`], with the layout of scales.
    pub(super) fn result_with(
        &mut self,
        op: &str,
        dims: &[Extent],
        element: &'static str,
        layout: Option<&'static str>,
        origin: Origin,
    ) -> Val {
        let name = self.name('v');
        let _ = writeln!(self.body, "  %{name} = {op} : {}", ty(dims, element, layout));
        let transposed = op.starts_with("transpose");
        let dims = dims.to_vec();
        let value = Val { name, dims, element, layout, origin, in_row: false, used: false, transposed };
        self.values.push(value.clone());
        value
    }

    /// Writes an op with codes and scales, and keeps both.
    pub(super) fn quantized(&mut self, op: &str, codes: Val, scales: Val) -> [Val; 2] {
        let pair = [codes, scales].map(|value| Val { name: self.name('q'), used: false, ..value });
        let [codes, scales] = &pair;
        let (to, types) =
            (format!("%{}, %{}", codes.name, scales.name), [codes.ty(), scales.ty()].join(", "));
        let _ = writeln!(self.body, "  {to} = {op} : {types}");
        self.values.extend(pair.clone());
        pair
    }

    /// Marks a value as read, by a row part or by another.
    pub(super) fn read(&mut self, name: &str, by_row: bool) {
        if let Some(value) = self.values.iter_mut().find(|value| value.name == name) {
            value.used = true;
            value.in_row |= by_row;
        }
    }

    /// Picks a value that fits, if there is one.
    pub(super) fn find(&mut self, fits: impl Fn(&Val) -> bool) -> Option<Val> {
        let found: Vec<usize> = (0..self.values.len()).filter(|index| fits(&self.values[*index])).collect();
        (!found.is_empty()).then(|| self.values[self.random.pick(&found)].clone())
    }

    /// Returns the text of the function, and whether its inputs have the symbol M.
    pub(super) fn finish(mut self) -> (String, bool) {
        let mut outputs = Vec::new();
        for index in 0..self.values.len() {
            if !self.values[index].used || self.random.percent(8) {
                outputs.push(format!("%{}", self.values[index].name));
            }
        }
        let Draft { inputs, uses_rows, body, .. } = self;
        let inputs = inputs.join(",\n");
        (format!("func @kit(\n{inputs}\n) {{\n{body}  return {}\n}}\n", outputs.join(", ")), uses_rows)
    }
}
