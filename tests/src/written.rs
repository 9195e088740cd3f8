//! Programs that write NVFP4 quantization out op by op, in every form that equals a `block_quantize`, and near misses.

use std::fmt::Write;

use crate::random::Random;

/// A change that makes a program differ from every `block_quantize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Miss {
    Divisor,
    DivisorNext,
    SixthNext,
    SixthNarrow,
    MultipliedBySix,
    OtherAxis,
    TwoAxes,
    BlockOf8,
    BlockOf32,
    NoAbs,
    NegInsteadOfAbs,
    ReluInsteadOfAbs,
    Min,
    Sum,
    Mean,
    ScaleAbove,
    ScaleJustAbove,
    BoundBeforeGlobal,
    CodesWithin4,
    CodesWithout6,
    CodesPositive,
    ScaleInE5m2,
    ScaleRoundedTwice,
    ScaleNotRounded,
    EpsilonInScale,
    EpsilonInStep,
    GlobalInScaleOnly,
    GlobalInCodesOnly,
    GlobalTwice,
    OtherGlobal,
    GlobalPerRow,
    GlobalFirst,
    DivisorsMultiplied,
    StepReversed,
    TwoQuotients,
    TwoReciprocals,
    ProductInsteadOfQuotient,
    QuotientReversed,
    OtherValues,
    ValuesDoubled,
    CodesThroughFp8,
    CodesNegated,
}

impl Miss {
    /// Every kind.
    pub const ALL: [Miss; 42] = [
        Miss::Divisor,
        Miss::DivisorNext,
        Miss::SixthNext,
        Miss::SixthNarrow,
        Miss::MultipliedBySix,
        Miss::OtherAxis,
        Miss::TwoAxes,
        Miss::BlockOf8,
        Miss::BlockOf32,
        Miss::NoAbs,
        Miss::NegInsteadOfAbs,
        Miss::ReluInsteadOfAbs,
        Miss::Min,
        Miss::Sum,
        Miss::Mean,
        Miss::ScaleAbove,
        Miss::ScaleJustAbove,
        Miss::BoundBeforeGlobal,
        Miss::CodesWithin4,
        Miss::CodesWithout6,
        Miss::CodesPositive,
        Miss::ScaleInE5m2,
        Miss::ScaleRoundedTwice,
        Miss::ScaleNotRounded,
        Miss::EpsilonInScale,
        Miss::EpsilonInStep,
        Miss::GlobalInScaleOnly,
        Miss::GlobalInCodesOnly,
        Miss::GlobalTwice,
        Miss::OtherGlobal,
        Miss::GlobalPerRow,
        Miss::GlobalFirst,
        Miss::DivisorsMultiplied,
        Miss::StepReversed,
        Miss::TwoQuotients,
        Miss::TwoReciprocals,
        Miss::ProductInsteadOfQuotient,
        Miss::QuotientReversed,
        Miss::OtherValues,
        Miss::ValuesDoubled,
        Miss::CodesThroughFp8,
        Miss::CodesNegated,
    ];
}

/// The free choices of a program. All of them keep it equal to a `block_quantize`.
#[derive(Clone, Debug)]
pub struct Form {
    element: &'static str,
    /// The leading extents.
    rows: &'static [&'static str],
    /// Blocks per row.
    blocks: u64,
    /// Blocks are `[rows * blocks, 16]` instead of `[rows, blocks, 16]`.
    flat_blocks: bool,
    widens: usize,
    amax: usize,
    abs_first: bool,
    keep_dims: bool,
    six: usize,
    global: usize,
    global_type: usize,
    lower: Option<&'static str>,
    upper: Option<&'static str>,
    bounds: usize,
    through_bf16: bool,
    codes: usize,
    swapped: bool,
    spread: usize,
    code_bounds: usize,
    convert_last: bool,
    scale_use: usize,
    escapes: [bool; 3],
}

impl Form {
    /// Draws a form.
    pub fn new(random: &mut Random) -> Form {
        const ROWS: [&[&str]; 4] = [&["M"], &["2", "M"], &["5"], &["M"]];
        Form {
            element: random.pick(&["f32", "f32", "bf16", "f16"]),
            rows: random.pick(&ROWS),
            blocks: random.pick(&[1, 2, 3, 6]),
            flat_blocks: random.percent(30),
            widens: random.below(3),
            amax: random.below(3),
            abs_first: random.percent(30),
            keep_dims: random.percent(50),
            six: random.below(5),
            global: random.below(3),
            global_type: random.below(5),
            lower: random.pick(&[None, Some("0"), Some("0.015625"), Some("0.5"), Some("0.015625")]),
            upper: random.pick(&[None, Some("448"), Some("inf"), Some("1000"), Some("448")]),
            bounds: random.below(4),
            through_bf16: random.percent(20),
            codes: random.below(4),
            swapped: random.percent(50),
            spread: random.below(3),
            code_bounds: random.below(4),
            convert_last: random.percent(50),
            scale_use: random.below(4),
            escapes: [random.percent(15), random.percent(15), random.percent(15)],
        }
    }

    /// Changes choices for which a near miss would have no effect.
    #[must_use]
    pub fn with_effect(self, miss: Miss) -> Form {
        let mut form = self;
        match miss {
            Miss::SixthNext | Miss::SixthNarrow => form.six = 1,
            Miss::Divisor | Miss::DivisorNext | Miss::MultipliedBySix => form.six = 0,
            Miss::OtherAxis | Miss::TwoAxes | Miss::BlockOf8 | Miss::BlockOf32 => {
                (form.rows, form.blocks, form.flat_blocks) = (&["5"], 2, false);
            }
            Miss::NoAbs | Miss::NegInsteadOfAbs | Miss::ReluInsteadOfAbs | Miss::Min => form.amax = 0,
            Miss::Sum | Miss::Mean => form.amax = 2,
            Miss::ScaleAbove | Miss::ScaleJustAbove => (form.upper, form.bounds) = (Some("448"), 0),
            Miss::BoundBeforeGlobal => {
                (form.global, form.lower, form.upper) = (1 + form.global % 2, Some("0.015625"), None);
            }
            Miss::CodesWithin4 | Miss::CodesWithout6 | Miss::CodesPositive => form.code_bounds = 1,
            Miss::EpsilonInScale => form.lower = Some("0"),
            Miss::EpsilonInStep => (form.lower, form.codes) = (Some("0.015625"), form.codes % 3),
            Miss::GlobalInScaleOnly | Miss::GlobalInCodesOnly | Miss::GlobalTwice | Miss::OtherGlobal => {
                form.global = 1 + form.global % 2;
                (form.codes, form.global_type) = (form.codes % 3, form.global_type % 3);
            }
            Miss::GlobalPerRow => {
                (form.global, form.codes) = (1, form.codes % 3);
                (form.flat_blocks, form.keep_dims) = (false, false);
            }
            Miss::GlobalFirst | Miss::DivisorsMultiplied => {
                (form.global, form.six, form.global_type) = (1, 0, form.global_type % 3);
            }
            Miss::StepReversed => (form.global, form.codes) = (2, form.codes % 3),
            Miss::TwoQuotients | Miss::TwoReciprocals => (form.global, form.codes) = (1, 0),
            Miss::ProductInsteadOfQuotient | Miss::QuotientReversed => form.codes = 0,
            Miss::ScaleRoundedTwice
            | Miss::ScaleNotRounded
            | Miss::ScaleInE5m2
            | Miss::OtherValues
            | Miss::ValuesDoubled
            | Miss::CodesThroughFp8
            | Miss::CodesNegated => {}
        }
        if form.global == 0 && form.codes == 3 {
            form.codes = 2;
        }
        form
    }

    /// The program, with one near miss or none. The inputs are `x`, `g` and `other`.
    pub fn text(&self, miss: Option<Miss>) -> String {
        Writer { form: self, miss, lines: String::new(), count: 0, outputs: Vec::new() }.program()
    }
}

/// The shape to which two shapes broadcast.
fn joined(left: &[String], right: &[String]) -> Vec<String> {
    let rank = left.len().max(right.len());
    let extent = |shape: &[String], axis: usize| match (axis + shape.len()).checked_sub(rank) {
        Some(axis) => shape[axis].clone(),
        None => "1".to_owned(),
    };
    let join = |axis| match extent(left, axis) {
        one if one == "1" => extent(right, axis),
        other => other,
    };
    (0..rank).map(join).collect()
}

struct Writer<'a> {
    form: &'a Form,
    miss: Option<Miss>,
    lines: String,
    count: usize,
    outputs: Vec<String>,
}

/// A tensor's name, shape and element type.
#[derive(Clone)]
struct Tensor {
    name: String,
    shape: Vec<String>,
    element: &'static str,
}

impl Writer<'_> {
    fn is(&self, miss: Miss) -> bool {
        self.miss == Some(miss)
    }

    fn op(
        &mut self,
        text: &str,
        operands: &[&Tensor],
        attributes: &str,
        shape: &[String],
        element: &'static str,
    ) -> Tensor {
        self.count += 1;
        let name = format!("t{}", self.count);
        let operands: Vec<String> = operands.iter().map(|operand| format!(" %{}", operand.name)).collect();
        let attributes = if attributes.is_empty() { String::new() } else { format!(" {{{attributes}}}") };
        let _ = writeln!(
            self.lines,
            "  %{name} = {text}{}{attributes} : tensor<[{}], {element}>",
            operands.join(","),
            shape.join(", ")
        );
        Tensor { name, shape: shape.to_vec(), element }
    }

    fn unary(&mut self, op: &str, x: &Tensor) -> Tensor {
        self.op(op, &[x], "", &x.shape.clone(), x.element)
    }

    fn reshape(&mut self, x: &Tensor, shape: &[String]) -> Tensor {
        if x.shape == shape { x.clone() } else { self.op("reshape", &[x], "", shape, x.element) }
    }

    fn convert(&mut self, x: &Tensor, element: &'static str) -> Tensor {
        if x.element == element { x.clone() } else { self.op("convert", &[x], "", &x.shape.clone(), element) }
    }

    /// A constant in f32, of this shape.
    fn constant(&mut self, value: &str, shape: &[&str]) -> Tensor {
        let shape: Vec<String> = shape.iter().map(|extent| (*extent).to_owned()).collect();
        self.op("constant", &[], &format!("value = {value}"), &shape, "f32")
    }

    /// A binary op with a scalar or a per-block tensor, whose result has the shape of `x`.
    fn binary(&mut self, op: &str, x: &Tensor, y: &Tensor) -> Tensor {
        let element = if x.element == y.element { x.element } else { "f32" };
        let shape = joined(&x.shape, &y.shape);
        self.op(op, &[x, y], "", &shape, element)
    }

    /// A product, whose operands may be swapped.
    fn product(&mut self, x: &Tensor, y: &Tensor) -> Tensor {
        let element = if x.element == y.element { x.element } else { "f32" };
        let (left, right) = if self.form.swapped { (y, x) } else { (x, y) };
        let shape = joined(&x.shape, &y.shape);
        self.op("mul", &[left, right], "", &shape, element)
    }

    fn bounded(&mut self, x: &Tensor, lower: Option<&str>, upper: Option<&str>, style: usize) -> Tensor {
        let (low, high) = (lower.unwrap_or("-inf"), upper.unwrap_or("inf"));
        match style {
            _ if lower.is_none() && upper.is_none() => x.clone(),
            0 => self.op("clamp", &[x], &format!("max = {high}, min = {low}"), &x.shape.clone(), x.element),
            1 | 2 => {
                let mut result = x.clone();
                for of_lower in [style == 1, style != 1] {
                    let Some(bound) = (if of_lower { lower } else { upper }) else { continue };
                    let bound = self.constant(bound, &[]);
                    result = self.op(
                        if of_lower { "max" } else { "min" },
                        &[&result, &bound],
                        "",
                        &x.shape.clone(),
                        x.element,
                    );
                }
                result
            }
            _ if lower == Some("0") => {
                let least = self.unary("relu", x);
                self.bounded(&least, None, upper, 0)
            }
            _ => {
                let outer = self.bounded(x, lower, None, 0);
                self.bounded(&outer, None, upper, 1)
            }
        }
    }

    fn shape(&self, last: &[String]) -> Vec<String> {
        self.form.rows.iter().map(|extent| (*extent).to_owned()).chain(last.iter().cloned()).collect()
    }

    /// The shape of blocks.
    fn full(&self) -> Vec<String> {
        let blocks = self.form.blocks;
        let [blocks, block] = match self.miss {
            Some(Miss::BlockOf8) => [2 * blocks, 8],
            Some(Miss::BlockOf32) => [blocks / 2, 32],
            Some(Miss::OtherAxis) => [16, blocks],
            _ => [blocks, 16],
        };
        if !self.form.flat_blocks {
            return self.shape(&[blocks.to_string(), block.to_string()]);
        }
        let factor = |extent: &&str| extent.parse::<u64>().ok();
        let fixed: u64 = self.form.rows.iter().filter_map(factor).product::<u64>() * blocks;
        let has_m = self.form.rows.contains(&"M");
        vec![if has_m { format!("{fixed}*M") } else { fixed.to_string() }, block.to_string()]
    }

    fn program(mut self) -> String {
        let k = (self.form.blocks * 16).to_string();
        let of_x = self.shape(&[k]);
        let element = self.form.element;
        let x = Tensor { name: "x".to_owned(), shape: of_x.clone(), element };
        let other = Tensor { name: "other".to_owned(), ..x.clone() };
        let (global, global_text) = self.global();
        let full = self.full();

        let x = if self.form.widens == 0 { self.convert(&x, "f32") } else { x };
        let values = self.reshape(&x, &full);
        let values = if self.form.widens == 1 { self.convert(&values, "f32") } else { values };
        let amax = self.amax(&x, &values);
        self.escape(0, &amax);
        let t = self.scale(&amax, global.as_ref());
        let scales = self.convert(&t, if self.is(Miss::ScaleInE5m2) { "f8E5M2" } else { "f8E4M3FN" });
        let read = if self.form.through_bf16 { self.convert(&scales, "bf16") } else { scales.clone() };
        let read = self.convert(&read, "f32");
        self.escape(1, &read);
        let read = if self.is(Miss::ScaleNotRounded) { t } else { read };
        let source = match self.miss {
            Some(Miss::OtherValues) => {
                let other = self.reshape(&other, &full);
                self.convert(&other, values.element)
            }
            Some(Miss::ValuesDoubled) => self.binary("add", &values, &values),
            _ => values,
        };
        let quotients = self.quotients(&source, &read, global.as_ref(), &of_x);
        self.escape(2, &quotients);
        let codes = self.codes(&quotients, &of_x);
        self.outputs.push(codes.name.clone());
        self.scales(&scales);
        let inputs = [
            format!("%x: tensor<[{}], {element}>", of_x.join(", ")),
            format!("%g: {global_text}"),
            format!("%other: tensor<[{}], {element}>", of_x.join(", ")),
        ];
        let outputs: Vec<String> = self.outputs.iter().map(|name| format!("%{name}")).collect();
        format!(
            "fir 1\nfunc @written({}) {{\n{}  return {}\n}}\n",
            inputs.join(", "),
            self.lines,
            outputs.join(", ")
        )
    }

    fn escape(&mut self, index: usize, tensor: &Tensor) {
        if self.form.escapes[index] && !self.outputs.contains(&tensor.name) {
            self.outputs.push(tensor.name.clone());
        }
    }

    /// The per-tensor scale and its type.
    fn global(&mut self) -> (Option<Tensor>, String) {
        let (shape, element): (&[&str], _) = match self.form.global_type {
            1 => (&["1"], "f32"),
            2 => (&["1", "1"], "f32"),
            3 => (&[], "bf16"),
            _ => (&[], "f32"),
        };
        let per_row = self.shape(&["1".to_owned()]);
        let per_row = per_row.iter().map(String::as_str).collect::<Vec<_>>();
        let shape = if self.is(Miss::GlobalPerRow) { &per_row } else { shape };
        let text = format!("tensor<[{}], {element}>", shape.join(", "));
        let shape: Vec<String> = shape.iter().map(|extent| (*extent).to_owned()).collect();
        let input = Tensor { name: "g".to_owned(), shape, element };
        let global = match self.form.global {
            0 => None,
            _ if self.form.global_type == 4 && !self.is(Miss::GlobalPerRow) => {
                Some(self.constant("0.375", &[]))
            }
            _ => Some(input),
        };
        (global, text)
    }

    /// The largest magnitude of each block.
    fn amax(&mut self, x: &Tensor, values: &Tensor) -> Tensor {
        let has_abs = self.form.amax != 1;
        let abs = match self.miss {
            Some(Miss::NegInsteadOfAbs) => Some("neg"),
            Some(Miss::ReluInsteadOfAbs) => Some("relu"),
            Some(Miss::NoAbs) => None,
            _ => has_abs.then_some("abs"),
        };
        let magnitudes = match abs {
            Some(abs) if self.form.abs_first => {
                let magnitudes = self.unary(abs, x);
                let magnitudes = self.reshape(&magnitudes, &values.shape.clone());
                self.convert(&magnitudes, values.element)
            }
            Some(abs) => self.unary(abs, values),
            None => values.clone(),
        };
        let kind = match self.miss {
            Some(Miss::Min) => "min",
            Some(Miss::Sum) => "sum",
            Some(Miss::Mean) => "mean",
            _ if self.form.amax == 0 => "max",
            _ => "amax",
        };
        let last = magnitudes.shape.len() - 1;
        let axes = match self.miss {
            Some(Miss::OtherAxis) => vec![last - 1],
            Some(Miss::TwoAxes) => vec![last - 1, last],
            _ => vec![last],
        };
        let mut shape = magnitudes.shape.clone();
        axes.iter().for_each(|axis| shape[*axis] = "1".to_owned());
        let list: Vec<String> = axes.iter().map(ToString::to_string).collect();
        let keeps = self.form.keep_dims || axes != [last];
        let mut attributes = format!("axes = [{}], kind = {kind}", list.join(", "));
        if keeps {
            attributes += ", keep_dims = true";
        } else {
            shape.pop();
        }
        let amax = self.op("reduce", &[&magnitudes], &attributes, &shape, magnitudes.element);
        self.convert(&amax, "f32")
    }

    /// The scale of each block before it is rounded.
    fn scale(&mut self, amax: &Tensor, global: Option<&Tensor>) -> Tensor {
        let global_op = if self.form.global == 1 { "div" } else { "mul" };
        let enters = global.filter(|_| !self.is(Miss::GlobalInCodesOnly));
        let mut t = amax.clone();
        if let Some(global) = enters.filter(|_| self.is(Miss::GlobalFirst)) {
            t = self.binary(global_op, &t, global);
        }
        let six: &[&str] = if self.form.six == 4 { &["1"] } else { &[] };
        t = match self.miss {
            Some(Miss::Divisor) => {
                let seven = self.constant("7", six);
                self.binary("div", &t, &seven)
            }
            Some(Miss::DivisorNext) => {
                let next = self.constant("6.0000005", six);
                self.binary("div", &t, &next)
            }
            Some(Miss::MultipliedBySix) => {
                let six = self.constant("6", six);
                self.binary("mul", &t, &six)
            }
            Some(Miss::SixthNext) => {
                let sixth = self.constant("0.16666668", six);
                self.product(&t, &sixth)
            }
            Some(Miss::SixthNarrow) => {
                let sixth = self.constant("0.16666667", six);
                let sixth = self.convert(&sixth, "bf16");
                self.product(&t, &sixth)
            }
            Some(Miss::DivisorsMultiplied) => {
                let six = self.constant("6", six);
                let both = self.binary("mul", global.unwrap_or(&six), &six);
                self.binary("div", &t, &both)
            }
            _ => match self.form.six {
                1 | 2 => {
                    let sixth = self.constant("0.16666667", six);
                    self.product(&t, &sixth)
                }
                3 => {
                    let six = self.constant("6", six);
                    let sixth = self.unary("reciprocal", &six);
                    self.product(&t, &sixth)
                }
                _ => {
                    let six = self.constant("6", six);
                    self.binary("div", &t, &six)
                }
            },
        };
        let (lower, upper) = match self.miss {
            Some(Miss::ScaleAbove) => (self.form.lower, Some("240")),
            Some(Miss::ScaleJustAbove) => (self.form.lower, Some("431")),
            _ => (self.form.lower, self.form.upper),
        };
        if self.is(Miss::BoundBeforeGlobal) {
            t = self.bounded(&t, lower, upper, self.form.bounds);
        }
        let entered = self.is(Miss::GlobalFirst) || self.is(Miss::DivisorsMultiplied);
        if let Some(global) = enters.filter(|_| !entered) {
            t = if global_op == "div" { self.binary("div", &t, global) } else { self.product(&t, global) };
        }
        if self.is(Miss::EpsilonInScale) {
            let epsilon = self.constant("0.001", &[]);
            t = self.binary("add", &t, &epsilon);
        }
        if !self.is(Miss::BoundBeforeGlobal) {
            t = self.bounded(&t, lower, upper, self.form.bounds);
        }
        if self.is(Miss::ScaleRoundedTwice) {
            t = self.convert(&t, "bf16");
        }
        t
    }

    /// The values scaled to codes, not rounded.
    fn quotients(
        &mut self,
        values: &Tensor,
        scales: &Tensor,
        global: Option<&Tensor>,
        flat: &[String],
    ) -> Tensor {
        let full = values.shape.clone();
        let other = match (self.miss, global) {
            (Some(Miss::OtherGlobal), Some(_)) => Some(self.constant("0.3", &[])),
            (Some(Miss::GlobalInCodesOnly), _) => {
                Some(global.cloned().unwrap_or_else(|| self.constant("3", &[])))
            }
            (Some(Miss::GlobalInScaleOnly), _) => None,
            _ => global.cloned(),
        };
        let divides = self.form.global == 1;
        let one = self.constant("1", &[]);
        let (number, is_factor) = if let (3, Some(global)) = (self.form.codes, &other) {
            let numerator = if divides { self.binary("div", &one, global) } else { global.clone() };
            (self.op("div", &[&numerator, scales], "", &scales.shape.clone(), "f32"), true)
        } else {
            let separate = self.is(Miss::TwoQuotients) || self.is(Miss::TwoReciprocals);
            let mut step = match &other {
                Some(global) if !separate => match (divides, self.miss) {
                    (true, _) => self.product(scales, global),
                    (false, Some(Miss::StepReversed)) => {
                        self.op("div", &[global, scales], "", &scales.shape.clone(), "f32")
                    }
                    (false, _) => self.binary("div", scales, global),
                },
                _ => scales.clone(),
            };
            if let (true, Some(global)) = (self.is(Miss::GlobalTwice), &other) {
                step = self.binary(if divides { "mul" } else { "div" }, &step, global);
            }
            if self.is(Miss::EpsilonInStep) {
                let epsilon = self.constant("0.001", &[]);
                step = self.binary("add", &step, &epsilon);
            }
            match self.form.codes {
                0 => (step, false),
                1 => (self.unary("reciprocal", &step), true),
                _ => (self.op("div", &[&one, &step], "", &step.shape.clone(), "f32"), true),
            }
        };
        let (values, number) = self.spread(values, &number, &full, flat);
        let operands: [&Tensor; 2] =
            if self.is(Miss::QuotientReversed) { [&number, &values] } else { [&values, &number] };
        let shape = values.shape.clone();
        if is_factor {
            return self.product(&values, &number);
        }
        if self.is(Miss::ProductInsteadOfQuotient) {
            return self.op("mul", &operands, "", &shape, "f32");
        }
        if let (true, Some(global)) = (self.is(Miss::TwoReciprocals), &other) {
            let [a, b] = [global, &number].map(|x| self.unary("reciprocal", x));
            let factor = self.binary("mul", &b, &a);
            return self.op("mul", &[&values, &factor], "", &shape, "f32");
        }
        let quotients = self.op("div", &operands, "", &shape, "f32");
        match &other {
            Some(global) if self.is(Miss::TwoQuotients) => self.binary("div", &quotients, global),
            _ => quotients,
        }
    }

    /// The values and a number per block, in shapes that broadcast.
    fn spread(
        &mut self,
        values: &Tensor,
        number: &Tensor,
        full: &[String],
        flat: &[String],
    ) -> (Tensor, Tensor) {
        let mut shape = full.to_vec();
        let reduced = shape.len() - if self.is(Miss::OtherAxis) { 2 } else { 1 };
        shape[reduced] = "1".to_owned();
        let number = if self.is(Miss::TwoAxes) { number.clone() } else { self.reshape(number, &shape) };
        match self.form.spread {
            0 => (values.clone(), number),
            spread => {
                let number = self.op("broadcast", &[&number], "", full, "f32");
                if spread == 1 {
                    return (values.clone(), number);
                }
                let (values, number) = (self.reshape(values, flat), self.reshape(&number, flat));
                (values, number)
            }
        }
    }

    fn codes(&mut self, quotients: &Tensor, flat: &[String]) -> Tensor {
        let (lower, upper) = match self.miss {
            Some(Miss::CodesWithin4) => ("-4", "4"),
            Some(Miss::CodesWithout6) => ("-6", "4.5"),
            Some(Miss::CodesPositive) => ("0", "6"),
            _ if self.form.code_bounds == 3 => ("-8", "7"),
            _ => ("-6", "6"),
        };
        let mut x = quotients.clone();
        if self.form.code_bounds != 0 {
            x = self.bounded(&x, Some(lower), Some(upper), self.form.code_bounds % 3);
        }
        if self.is(Miss::CodesNegated) {
            x = self.unary("neg", &x);
        }
        if self.is(Miss::CodesThroughFp8) {
            x = self.convert(&x, "f8E4M3FN");
        }
        if self.form.convert_last {
            let x = self.reshape(&x, flat);
            return self.convert(&x, "f4E2M1FN");
        }
        let codes = self.convert(&x, "f4E2M1FN");
        self.reshape(&codes, flat)
    }

    /// Returns the scales: as numbers, blocked, linear, or as numbers and blocked.
    fn scales(&mut self, scales: &Tensor) {
        let choice =
            if scales.element == "f8E4M3FN" && self.miss.is_none() { self.form.scale_use } else { 0 };
        if matches!(choice, 0 | 3) {
            self.outputs.push(scales.name.clone());
        }
        if choice > 0 {
            let shape = self.shape(&[self.form.blocks.to_string()]);
            let numbers = self.reshape(scales, &shape);
            let layout = if choice == 2 { "f8E4M3FN, linear" } else { "f8E4M3FN, blocked" };
            let swizzled = self.op("swizzle_scales", &[&numbers], "", &shape, layout);
            self.outputs.push(swizzled.name);
        }
    }
}
