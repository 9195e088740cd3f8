//! The program under construction, and the meaning of each tensor of the graph in it.

use std::collections::HashMap;
use std::rc::Rc;

use fourfold_ir::{
    BinaryKind, Builder, ConstantValue, Dim, ElementType, OpKind, ScaleLayout, Shape, Tensor, TensorType,
    Value,
};

use super::super::integers::{Integers, MAX_COUNT, Number};
use super::super::model::{Extent, Input, Model, Node};
use super::super::names::{Names, word};
use super::super::problem::{Problem, refused, shown};
use super::super::stored::{Stored, element_of};
use crate::imported::LeftOutCode;

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
struct Reading {
    stored: usize,
    element: ElementType,
    layout: Option<ScaleLayout>,
    shape: Vec<u64>,
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
    written: HashMap<String, Value>,
    readings: HashMap<Reading, Value>,
    /// The permutation and operand of each transposition.
    pub(super) transposes: HashMap<Value, (Vec<u32>, Value)>,
    /// The codes and scales of each value that is quantized with a known scale, by the bits of the scale.
    pub(super) quantized: HashMap<(Value, u64), [Value; 2]>,
    /// The blocked form of linear scales.
    pub(super) blocked: HashMap<Value, Value>,
    pub(in super::super) params: Vec<(Value, Source)>,
    pub(in super::super) notes: Vec<String>,
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
        let Some(element) = element_of(input.ty).filter(|element| *element != ElementType::F8E8M0FNU) else {
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
        let value = self.out.input(&called, TensorType::new(shape, element));
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

    /// An input of a node as a value of the program.
    pub(super) fn value(&mut self, node: &Node, position: usize) -> Result<Value, Problem> {
        let item = self.item(node, position)?;
        let name = node.input(position).unwrap_or("v").to_owned();
        self.value_of(&name, &item)
    }

    /// A tensor as a value of the program.
    pub(super) fn value_of(&mut self, name: &str, item: &Item) -> Result<Value, Problem> {
        if let Item::Value(value) = item {
            return Ok(*value);
        }
        if let Some(value) = self.written.get(name) {
            return Ok(*value);
        }
        let value = match item {
            Item::Value(value) => *value,
            Item::Integers(integers) => self.write_integers(name, integers)?,
            Item::Stored(at) => self.write_stored(*at)?,
            Item::Scaled { codes, factor } => self.write_scaled(name, codes, factor)?,
            Item::Dequantized(matrix) => {
                let called = self.names.like(name);
                self.write_dequantized(&called, *matrix, matrix.element, true)
            }
        };
        self.written.insert(name.to_owned(), value);
        Ok(value)
    }

    /// Records the meaning of a result of a node.
    pub(super) fn set(&mut self, node: &Node, position: usize, item: Item) {
        if let Some(name) = node.outputs.get(position).filter(|name| !name.is_empty()) {
            self.items.insert(name.clone(), item);
        }
    }

    /// Writes an op that computes a result of a node.
    pub(super) fn define(
        &mut self,
        node: &Node,
        position: usize,
        kind: OpKind,
        operands: &[Value],
        ty: TensorType,
    ) {
        let name = match node.outputs.get(position) {
            Some(output) => self.names.like(output),
            None => self.names.like("v"),
        };
        let value = self.out.op(kind, operands, &[(&name, ty)])[0];
        self.set(node, position, Item::Value(value));
    }

    /// Writes an op with an intermediate result. `hint` is the name of a tensor that it helps to compute.
    pub(super) fn step(&mut self, hint: &str, kind: OpKind, operands: &[Value], ty: TensorType) -> Value {
        let name = self.names.like(hint);
        self.out.op(kind, operands, &[(&name, ty)])[0]
    }

    /// The name of the first result of a node, for names of intermediate results.
    pub(super) fn hint(node: &Node) -> String {
        node.outputs.first().cloned().unwrap_or_default()
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

    fn write_integers(&mut self, name: &str, integers: &Integers) -> Result<Value, Problem> {
        let known: Option<Vec<f64>> = integers.known().and_then(|values| {
            values.into_iter().map(|value| i32::try_from(value).ok().map(f64::from)).collect()
        });
        let Some(values) = known else {
            return refused(
                shown(name),
                LeftOutCode::UnsupportedOperator,
                format!(
                    "`{}` holds symbolic extents or numbers beyond i32, which a program cannot compute",
                    shown(name)
                ),
            );
        };
        let shape = integers.dims.iter().map(|dim| Dim::fixed(*dim)).collect();
        let value = match &values[..] {
            [value] => ConstantValue::Splat(*value),
            _ => ConstantValue::Dense(values),
        };
        Ok(self.step(name, OpKind::Constant(value), &[], TensorType::new(shape, integers.element)))
    }

    /// Writes a stored tensor: one number as a constant, others as a `param`.
    fn write_stored(&mut self, at: usize) -> Result<Value, Problem> {
        let model = self.model;
        let stored = &model.stored[at];
        let is_float = element_of(stored.ty).is_some_and(ElementType::is_arithmetic);
        if stored.count() != 1 || !is_float {
            return self.param(at, None);
        }
        let number = self.number_of(stored)?;
        let element = element_of(stored.ty).unwrap_or(ElementType::F32);
        let shape = stored.dims.iter().map(|dim| Dim::fixed(*dim)).collect();
        let kind = OpKind::Constant(ConstantValue::Splat(number));
        Ok(self.step(&stored.name, kind, &[], TensorType::new(shape, element)))
    }

    fn number_of(&self, stored: &Stored) -> Result<f64, Problem> {
        let tensor = stored.tensor(&self.model.files).map_err(|reason| self.failed(reason))?;
        Ok(tensor.to_f64().first().copied().unwrap_or(0.0))
    }

    /// The only element of a tensor that is known when the model is imported; `None` for others.
    pub(super) fn known_number(&self, item: &Item) -> Result<Option<f64>, Problem> {
        match item {
            Item::Stored(at) if self.model.stored[*at].count() == 1 => {
                self.number_of(&self.model.stored[*at]).map(Some)
            }
            Item::Integers(integers) => match &integers.values[..] {
                [Number::Known(value)] => Ok(Some(*value as f64)),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// A stored tensor as a `param`, whose bytes have this reading instead of the stored one.
    pub(super) fn param(
        &mut self,
        at: usize,
        reading: Option<(ElementType, Option<ScaleLayout>, Vec<u64>)>,
    ) -> Result<Value, Problem> {
        let model = self.model;
        let stored = &model.stored[at];
        let is_given = reading.is_some();
        let (element, layout, shape) = match reading {
            Some(reading) => reading,
            None => match element_of(stored.ty).filter(|element| *element != ElementType::F8E8M0FNU) {
                Some(element) => (element, None, stored.dims.clone()),
                None if stored.ty == rten_onnx::onnx::DataType::DOUBLE => {
                    self.note(format!("`{}` has 64-bit floats; the program takes f32.", shown(&stored.name)));
                    (ElementType::F32, None, stored.dims.clone())
                }
                None => {
                    let message = format!(
                        "`{}` has the type {}, which has no equivalent",
                        shown(&stored.name),
                        stored.ty
                    );
                    return refused(shown(&stored.name), LeftOutCode::UnsupportedFormat, message);
                }
            },
        };
        let reading = Reading { stored: at, element, layout, shape };
        if let Some(value) = self.readings.get(&reading) {
            return Ok(*value);
        }
        let has_width = is_given || element_of(stored.ty) == Some(element);
        let is_same = has_width && stored.ty != rten_onnx::onnx::DataType::INT64;
        let source = match stored.in_place() {
            Some(_) if is_same => Source::Stored(at),
            _ if is_given => {
                let bytes = stored.read(&model.files).map_err(|reason| self.failed(reason))?;
                let dims = reading.shape.iter().map(|dim| *dim as usize).collect();
                let tensor = Tensor::new(element, dims, layout, bytes);
                Source::Values(tensor.map_err(|error| self.failed(error.to_string()))?)
            }
            _ => Source::Values(stored.tensor(&model.files).map_err(|reason| self.failed(reason))?),
        };
        let shape = reading.shape.iter().map(|dim| Dim::fixed(*dim)).collect();
        let name = self.names.like(&stored.name);
        let value = self.out.param(&name, TensorType { shape, element, layout });
        self.params.push((value, source));
        self.readings.insert(reading, value);
        Ok(value)
    }

    fn write_scaled(&mut self, name: &str, codes: &Item, factor: &Item) -> Result<Value, Problem> {
        let codes = match codes {
            Item::Stored(at) => self.param(*at, None)?,
            other => self.value_of(&format!("{name}.codes"), other)?,
        };
        let factor = self.value_of(&format!("{name}.factor"), factor)?;
        let shape = self.shape(codes);
        let element = self.ty(factor).element;
        let codes = self.step(name, OpKind::Convert, &[codes], TensorType::new(shape.clone(), element));
        let factor = self.reshaped(name, factor, Vec::new());
        let called = self.names.like(name);
        let kind = OpKind::Binary(BinaryKind::Mul);
        Ok(self.out.op(kind, &[codes, factor], &[(&called, TensorType::new(shape, element))])[0])
    }

    /// Writes the values of a block-scaled matrix, in the orientation of the graph.
    pub(super) fn write_dequantized(
        &mut self,
        name: &str,
        matrix: Dequantized,
        element: ElementType,
        scaled: bool,
    ) -> Value {
        let element = if self.wide { ElementType::F32 } else { element };
        let mut operands = vec![matrix.codes, matrix.scales];
        operands.extend(matrix.global.filter(|_| scaled));
        let shape = self.shape(matrix.codes);
        let kind = OpKind::BlockDequantize { block: matrix.block };
        if !matrix.transposed {
            return self.out.op(kind, &operands, &[(name, TensorType::new(shape, element))])[0];
        }
        let rows = self.step(name, kind, &operands, TensorType::new(shape, element));
        self.exchanged(name, rows, true)
    }

    /// Exchanges the last two axes. `exact` demands this name.
    pub(super) fn exchanged(&mut self, name: &str, value: Value, exact: bool) -> Value {
        let TensorType { mut shape, element, .. } = self.ty(value).clone();
        let rank = shape.len();
        shape.swap(rank - 1, rank - 2);
        let mut permutation: Vec<u32> = (0..rank as u32).collect();
        permutation.swap(rank - 1, rank - 2);
        let kind = OpKind::Transpose { permutation };
        let ty = TensorType::new(shape, element);
        match exact {
            true => self.out.op(kind, &[value], &[(name, ty)])[0],
            false => self.step(name, kind, &[value], ty),
        }
    }

    /// A value in another shape; itself if it has that shape.
    pub(super) fn reshaped(&mut self, hint: &str, value: Value, shape: Shape) -> Value {
        let ty = self.ty(value);
        if ty.shape == shape {
            return value;
        }
        let ty = TensorType { shape, ..ty.clone() };
        self.step(hint, OpKind::Reshape, &[value], ty)
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

    /// A constant of one number.
    pub(super) fn constant(&mut self, hint: &str, number: f64, element: ElementType) -> Value {
        let kind = OpKind::Constant(ConstantValue::Splat(number));
        self.step(hint, kind, &[], TensorType::new(Vec::new(), element))
    }
}
