//! The program under construction, and the meaning of each tensor of the graph in it.

use std::collections::HashMap;
use std::rc::Rc;

use fourfold_ir::{Builder, Dim, ElementType, OpKind, ScaleLayout, Shape, Tensor, TensorType, Value};

use super::super::integers::{Integers, MAX_COUNT, Number};
use super::super::model::{Extent, Input, Model, Node};
use super::super::names::{Names, word};
use super::super::problem::{Problem, refused, shown};
use super::super::stored::element_of;
use crate::imported::LeftOutCode;
use crate::origins::Origins;

/// The maximum number of symbols of a program.
const MAX_SYMBOLS: usize = 256;
/// The maximum number of elements in all folded tensors together.
const MAX_FOLDED: u64 = 1 << 22;

/// The meaning of a tensor of the graph.
#[derive(Clone, Debug)]
pub(in super::super) enum Item {
    /// A value of the program.
    Value(Value),
    /// Integers that are known when the model is imported.
    Integers(Rc<Integers>),
    /// A stored tensor that the program does not read yet.
    Stored(usize),
    /// Codes times one factor, as DequantizeLinear writes the scales of NVFP4.
    Scaled { codes: Box<Item>, factor: Box<Item> },
    /// A block-scaled matrix.
    Dequantized(Dequantized),
}

/// A block-scaled matrix whose product or values are not written yet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Dequantized {
    pub(super) codes: Value,
    /// Linear scales.
    pub(super) scales: Value,
    /// The per-tensor scale, f32.
    pub(super) global: Option<Value>,
    pub(super) block: u32,
    /// The type that the graph dequantizes to.
    pub(super) element: ElementType,
    /// True if the graph's tensor has the last two axes of the codes exchanged.
    pub(super) transposed: bool,
}

/// A stored tensor as an input of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reading {
    pub(super) stored: usize,
    pub(super) element: ElementType,
    pub(super) layout: Option<ScaleLayout>,
    pub(super) shape: Vec<u64>,
}

/// The source of a `param`.
#[derive(Clone, Debug)]
pub(in super::super) enum Source {
    /// The position of a stored tensor, whose bytes are read in place.
    Stored(usize),
    /// Values that no file holds in the form of the program.
    Values(Tensor),
}

/// A program under construction.
pub(in super::super) struct Translator<'m> {
    pub(super) model: &'m Model,
    pub(super) out: Builder,
    pub(super) items: HashMap<String, Item>,
    pub(super) names: Names,
    /// The inputs that are not `param`.
    pub(super) inputs: Vec<Value>,
    pub(super) written: HashMap<String, Value>,
    pub(super) readings: HashMap<Reading, Value>,
    /// The permutation and operand of each transposition.
    pub(super) transposes: HashMap<Value, (Vec<u32>, Value)>,
    /// The codes and scales of each value that is quantized with a known scale, by the bits of the scale.
    pub(super) quantized: HashMap<(Value, u64), [Value; 2]>,
    /// The blocked form of linear scales.
    pub(super) blocked: HashMap<Value, Value>,
    pub(in super::super) params: Vec<(Value, Source)>,
    pub(in super::super) notes: Vec<String>,
    /// The nodes of the ops.
    pub(super) origins: Origins,
    symbols: HashMap<String, Dim>,
    folded: u64,
    /// True if results stay f32 where the graph narrows them.
    pub(super) wide: bool,
}

impl<'m> Translator<'m> {
    pub(in super::super) fn new(model: &'m Model, name: &str, wide: bool) -> Translator<'m> {
        Translator {
            model,
            out: Builder::new(word(name)),
            items: HashMap::new(),
            names: Names::default(),
            inputs: Vec::new(),
            written: HashMap::new(),
            readings: HashMap::new(),
            transposes: HashMap::new(),
            blocked: HashMap::new(),
            quantized: HashMap::new(),
            params: Vec::new(),
            notes: Vec::new(),
            origins: Origins::default(),
            symbols: HashMap::new(),
            folded: 0,
            wide,
        }
    }

    pub(in super::super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) && self.notes.len() < 64 {
            self.notes.push(note);
        }
    }

    /// The extent with this name.
    pub(in super::super) fn symbol(&mut self, name: &str) -> Result<Dim, Problem> {
        let name = word(name);
        if let Some(dim) = self.symbols.get(&name) {
            return Ok(dim.clone());
        }
        if self.symbols.len() >= MAX_SYMBOLS {
            let message = format!("its inputs have more than {MAX_SYMBOLS} symbolic extents");
            return refused("the graph", LeftOutCode::UnsupportedFormat, message);
        }
        let dim = self.out.symbol(&name);
        self.symbols.insert(name, dim.clone());
        Ok(dim)
    }

    /// Adds an input of the graph. Floats have the `given` type if there is one.
    pub(in super::super) fn input(
        &mut self,
        input: &Input,
        given: Option<ElementType>,
    ) -> Result<(), Problem> {
        let name = shown(&input.name);
        let layout = is_block_scale(self.model, &input.name).then_some(ScaleLayout::Linear);
        let known =
            element_of(input.ty).filter(|element| *element != ElementType::F8E8M0FNU || layout.is_some());
        let Some(element) = known else {
            let message = format!("the input `{name}` has the type {}, which has no equivalent", input.ty);
            return refused(name, LeftOutCode::UnsupportedFormat, message);
        };
        if element == ElementType::I32 && input.ty != rten_onnx::onnx::DataType::INT32 {
            self.note(format!("The input `{name}` has 64-bit integers; the program takes i32."));
        }
        let Some(extents) = &input.shape else {
            let message = format!("the model states no shape for the input `{name}`");
            return refused(name, LeftOutCode::UnsupportedFormat, message);
        };
        let mut shape = Vec::new();
        for (axis, extent) in extents.iter().enumerate() {
            shape.push(match extent {
                Extent::Fixed(extent) => Dim::fixed(*extent),
                Extent::Named(name) => self.symbol(name)?,
                Extent::Unknown => self.symbol(&format!("{}.{axis}", input.name))?,
            });
        }
        let element = given.filter(|_| element.is_arithmetic()).unwrap_or(element);
        let called = self.names.like(&input.name);
        let value = self.out.input(&called, TensorType { shape, element, layout });
        self.enter(&input.name, value);
        Ok(())
    }

    /// Adds the input `%x` of a linear.
    pub(in super::super) fn x(&mut self, tensor: &str, ty: TensorType) {
        self.names.reserve("x");
        let value = self.out.input("x", ty);
        self.enter(tensor, value);
    }

    fn enter(&mut self, tensor: &str, value: Value) {
        self.inputs.push(value);
        let is_narrow = self.wide && self.ty(value).element.is_arithmetic();
        let value = if is_narrow { self.converted(tensor, value, ElementType::F32) } else { value };
        self.items.insert(tensor.to_owned(), Item::Value(value));
    }

    /// The element type of a tensor that is a value of the program.
    pub(in super::super) fn element_named(&self, name: &str) -> Option<ElementType> {
        match self.items.get(name)? {
            Item::Value(value) => Some(self.ty(*value).element),
            Item::Dequantized(matrix) => Some(matrix.element),
            _ => None,
        }
    }

    pub(super) fn ty(&self, value: Value) -> &TensorType {
        self.out.ty(value)
    }

    pub(super) fn shape(&self, value: Value) -> Shape {
        self.ty(value).shape.clone()
    }

    /// The meaning of an input of a node.
    pub(super) fn item(&self, node: &Node, position: usize) -> Result<Item, Problem> {
        match node.input(position) {
            Some(name) => self.item_named(name),
            None => refused(
                node.label(),
                LeftOutCode::UnsupportedOperator,
                format!("{} has no input {position}", node.label()),
            ),
        }
    }

    pub(super) fn item_named(&self, name: &str) -> Result<Item, Problem> {
        if let Some(item) = self.items.get(name) {
            return Ok(item.clone());
        }
        match self.model.stored_by_name.get(name) {
            Some(at) => Ok(Item::Stored(*at)),
            None => refused(
                shown(name),
                LeftOutCode::UnsupportedOperator,
                format!("`{}` is a result that has no equivalent", shown(name)),
            ),
        }
    }

    /// Records the meaning of a result of a node.
    pub(super) fn set(&mut self, node: &Node, position: usize, item: Item) {
        if let Some(name) = node.outputs.get(position).filter(|name| !name.is_empty()) {
            self.items.insert(name.clone(), item);
        }
    }

    /// Writes an op with an intermediate result. `hint` is the name of a tensor that it helps to compute.
    pub(super) fn step(&mut self, hint: &str, kind: OpKind, operands: &[Value], ty: TensorType) -> Value {
        let name = self.names.like(hint);
        self.out.op(kind, operands, &[(&name, ty)])[0]
    }

    /// A value in another element type; itself if it has that type.
    pub(super) fn converted(&mut self, hint: &str, value: Value, element: ElementType) -> Value {
        let ty = self.ty(value);
        if ty.element == element && ty.layout.is_none() {
            return value;
        }
        let ty = TensorType::new(ty.shape.clone(), element);
        self.step(hint, OpKind::Convert, &[value], ty)
    }

    /// Counts the elements of folded tensors.
    pub(super) fn charge(&mut self, node: &Node, count: u64) -> Result<(), Problem> {
        self.folded = self.folded.saturating_add(count);
        match self.folded <= MAX_FOLDED {
            true => Ok(()),
            false => refused(
                node.label(),
                LeftOutCode::UnsupportedFormat,
                format!(
                    "{}: the constant shapes of the graph have more than {MAX_FOLDED} elements",
                    node.label()
                ),
            ),
        }
    }

    /// An input of a node as known integers; `None` for other tensors.
    pub(super) fn integers(&mut self, node: &Node, position: usize) -> Result<Option<Rc<Integers>>, Problem> {
        let Some(name) = node.input(position) else { return Ok(None) };
        match self.item_named(name)? {
            Item::Integers(integers) => Ok(Some(integers)),
            Item::Stored(at) => {
                let model = self.model;
                let stored = &model.stored[at];
                if stored.count() > MAX_COUNT {
                    return Ok(None);
                }
                let Some(values) = stored.integers(&model.files).map_err(|reason| self.failed(reason))?
                else {
                    return Ok(None);
                };
                self.charge(node, values.len() as u64)?;
                let is_boolean = stored.ty == rten_onnx::onnx::DataType::BOOL;
                let integers = Rc::new(Integers {
                    dims: stored.dims.clone(),
                    values: values.into_iter().map(Number::Known).collect(),
                    element: if is_boolean { ElementType::I1 } else { ElementType::I32 },
                });
                self.items.insert(name.to_owned(), Item::Integers(integers.clone()));
                Ok(Some(integers))
            }
            _ => Ok(None),
        }
    }

    /// A malformed file.
    pub(super) fn failed(&self, reason: String) -> Problem {
        Problem::Failed(crate::error::ImportError::Malformed { path: self.model.path(), reason })
    }
}

/// Returns true for 8-bit floats that are scales of blocks only, so that they have the layout of scales.
fn is_block_scale(model: &Model, name: &str) -> bool {
    let is_8_bit = |input: &Input| {
        let element = element_of(input.ty);
        input.name == name && matches!(element, Some(ElementType::F8E4M3FN | ElementType::F8E8M0FNU))
    };
    let is_output = |name: &str| model.outputs.iter().any(|output| output.name == name);
    let readers = |name: &str| {
        let reads = |node: &&Node| node.inputs.iter().any(|input| input == name);
        model.nodes.iter().filter(reads).collect::<Vec<&Node>>()
    };
    let scales = |node: &&Node, name: &str| {
        node.is("", "DequantizeLinear")
            && matches!(node.int("block_size"), Some(16 | 32))
            && node.input(1) == Some(name)
            && node.input(0) != Some(name)
    };
    // NVFP4 has another scale above the scales of blocks, by which they are dequantized first.
    let is_scale = |node: &&Node| {
        scales(node, name)
            || match (node.is("", "DequantizeLinear"), node.input(0), node.outputs.first()) {
                (true, Some(input), Some(output)) if input == name && node.input(1) != Some(name) => {
                    let users = readers(output);
                    let is_one = |factor: &str| model.stored(factor).is_some_and(|it| it.count() == 1);
                    node.int("block_size").unwrap_or(0) == 0
                        && node.input(1).is_some_and(is_one)
                        && !is_output(output)
                        && !users.is_empty()
                        && users.iter().all(|user| scales(user, output))
                }
                _ => false,
            }
    };
    let all = readers(name);
    model.inputs.iter().any(is_8_bit) && !is_output(name) && !all.is_empty() && all.iter().all(is_scale)
}
