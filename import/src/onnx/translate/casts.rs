//! Conversions of element types.

use std::rc::Rc;

use fourfold_ir::{ConstantValue, Dim, ElementType, OpKind, Predicate, TensorType, UnaryKind, Value};
use rten_onnx::onnx::DataType;

use super::super::integers::{Integers, Number};
use super::super::model::Node;
use super::super::problem::Problem;
use super::super::stored::element_of;
use super::state::{Dequantized, Item, Translator};

impl Translator<'_> {
    /// Changes the element type.
    pub(super) fn cast(&mut self, node: &Node, to: DataType) -> Result<(), Problem> {
        if let Some(integers) = self.integers(node, 0)? {
            return self.cast_integers(node, &integers, to);
        }
        let Some(element) = element_of(to).filter(|element| *element != ElementType::F8E8M0FNU) else {
            return self.refuse(node, format!("the type {to} has no equivalent"));
        };
        if node.int("saturate") == Some(0) && !element.is_arithmetic() {
            return self.refuse(node, "saturate is 0, but conversions saturate");
        }
        // A narrowed matrix stays one, because its product is exact before the per-tensor scales apply.
        if let Item::Dequantized(matrix) = self.item(node, 0)?
            && element.is_arithmetic()
        {
            self.set(node, 0, Item::Dequantized(Dequantized { element, ..matrix }));
            return Ok(());
        }
        let mut x = self.value(node, 0)?;
        // Fractions and zeros of 8-bit and 4-bit floats are those of f32.
        if self.ty(x).element.is_block_data() && matches!(element, ElementType::I32 | ElementType::I1) {
            x = self.converted(&Translator::hint(node), x, ElementType::F32);
        }
        let ty = self.ty(x).clone();
        let both_arithmetic = ty.element.is_arithmetic() && element.is_arithmetic();
        if ty.element == element || (both_arithmetic && self.wide) {
            self.set(node, 0, Item::Value(x));
            return Ok(());
        }
        let result = TensorType::new(ty.shape.clone(), element);
        let hint = Translator::hint(node);
        match (ty.element, element) {
            (ElementType::I1, _) if element.is_arithmetic() || element == ElementType::I32 => {
                let [one, zero] = [1.0, 0.0].map(|number| self.constant(&hint, number, element));
                self.define(node, 0, OpKind::Select, &[x, one, zero], result);
            }
            (from, ElementType::I1) if from.is_arithmetic() || from == ElementType::I32 => {
                let zero = self.constant(&hint, 0.0, from);
                self.define(node, 0, OpKind::Compare(Predicate::Ne), &[x, zero], result);
            }
            (from, ElementType::I32) if from.is_arithmetic() => {
                let whole = self.truncated(&hint, x);
                self.define(node, 0, OpKind::Convert, &[whole], result);
            }
            (ElementType::I1, _) | (_, ElementType::I1) => {
                return self.refuse(
                    node,
                    format!("a conversion from {} to {element} has no equivalent", ty.element),
                );
            }
            _ => self.define(node, 0, OpKind::Convert, &[x], result),
        }
        Ok(())
    }

    /// Cuts off the fraction, as casts to integers do.
    fn truncated(&mut self, hint: &str, x: Value) -> Value {
        let ty = self.ty(x).clone();
        let zero = self.constant(&format!("{hint}.zero"), 0.0, ty.element);
        let mut step = |kind, operands: &[Value], element| {
            self.step(&format!("{hint}.whole"), kind, operands, TensorType::new(ty.shape.clone(), element))
        };
        let negative = step(OpKind::Compare(Predicate::Lt), &[x, zero], ElementType::I1);
        let ceil = step(OpKind::Unary(UnaryKind::Ceil), &[x], ty.element);
        let floor = step(OpKind::Unary(UnaryKind::Floor), &[x], ty.element);
        step(OpKind::Select, &[negative, ceil, floor], ty.element)
    }

    fn cast_integers(&mut self, node: &Node, integers: &Rc<Integers>, to: DataType) -> Result<(), Problem> {
        self.charge(node, integers.values.len() as u64)?;
        match to {
            DataType::INT32 | DataType::INT64 => {
                let cast = Integers { element: ElementType::I32, ..(**integers).clone() };
                self.set(node, 0, Item::Integers(Rc::new(cast)));
            }
            DataType::BOOL => {
                let Some(values) = integers.known() else {
                    return self.refuse(node, "a symbolic extent has no boolean value");
                };
                let values = values.into_iter().map(|value| Number::Known(i64::from(value != 0))).collect();
                let cast = Integers { dims: integers.dims.clone(), values, element: ElementType::I1 };
                self.set(node, 0, Item::Integers(Rc::new(cast)));
            }
            to => {
                let element = element_of(to).filter(|element| element.is_arithmetic());
                let (Some(element), Some(values)) = (element, integers.known()) else {
                    return self.refuse(node, format!("symbolic extents have no equivalent of type {to}"));
                };
                let values: Vec<f64> = values.into_iter().map(|value| value as f64).collect();
                let shape = integers.dims.iter().map(|dim| Dim::fixed(*dim)).collect();
                let value = match &values[..] {
                    [value] => ConstantValue::Splat(*value),
                    _ => ConstantValue::Dense(values),
                };
                self.define(node, 0, OpKind::Constant(value), &[], TensorType::new(shape, element));
            }
        }
        Ok(())
    }
}
