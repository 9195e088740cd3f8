//! Writes tensors of the graph as values of the program.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, ScaleLayout, Shape, Tensor, TensorType, Value,
};

use super::super::integers::{Integers, Number};
use super::super::model::Node;
use super::super::problem::{Problem, refused, shown};
use super::super::stored::{Stored, element_of};
use super::state::{Dequantized, Item, Reading, Source, Translator};
use crate::imported::LeftOutCode;

impl Translator<'_> {
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

    /// The name of the first result of a node, for names of intermediate results.
    pub(super) fn hint(node: &Node) -> String {
        node.outputs.first().cloned().unwrap_or_default()
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

    /// A constant of one number.
    pub(super) fn constant(&mut self, hint: &str, number: f64, element: ElementType) -> Value {
        let kind = OpKind::Constant(ConstantValue::Splat(number));
        self.step(hint, kind, &[], TensorType::new(Vec::new(), element))
    }
}
