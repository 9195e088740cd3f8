//! Ops that compute element by element.

use std::rc::Rc;

use fourfold_ir::{
    BinaryKind, Dim, ElementType, OpKind, Predicate, Shape, TensorType, UnaryKind, Value, broadcast_shape,
};

use super::super::integers::{self, Integers, Number};
use super::super::model::Node;
use super::super::problem::{Problem, refused};
use super::state::{Item, Translator};
use crate::imported::LeftOutCode;

/// The first opset in which binary operators align the last axes of their operands.
const ALIGNED_FROM_THE_END: i64 = 7;

/// The function of an operator with one operand.
pub(super) fn unary_of(op: &str) -> Option<UnaryKind> {
    Some(match op {
        "Neg" => UnaryKind::Neg,
        "Abs" => UnaryKind::Abs,
        "Exp" => UnaryKind::Exp,
        "Sqrt" => UnaryKind::Sqrt,
        "Reciprocal" => UnaryKind::Reciprocal,
        "Tanh" => UnaryKind::Tanh,
        "Erf" => UnaryKind::Erf,
        "Sigmoid" => UnaryKind::Sigmoid,
        "Relu" => UnaryKind::Relu,
        "Log" => UnaryKind::Log,
        "Sin" => UnaryKind::Sin,
        "Cos" => UnaryKind::Cos,
        "Floor" => UnaryKind::Floor,
        "Ceil" => UnaryKind::Ceil,
        "Round" => UnaryKind::Round,
        _ => return None,
    })
}

/// The function of an operator with two operands, or with any number of them.
pub(super) fn binary_of(op: &str) -> Option<BinaryKind> {
    Some(match op {
        "Add" | "Sum" => BinaryKind::Add,
        "Sub" => BinaryKind::Sub,
        "Mul" => BinaryKind::Mul,
        "Div" => BinaryKind::Div,
        "Max" => BinaryKind::Max,
        "Min" => BinaryKind::Min,
        _ => return None,
    })
}

/// The predicate of a comparison.
pub(super) fn predicate_of(op: &str) -> Option<Predicate> {
    Some(match op {
        "Equal" => Predicate::Eq,
        "Less" => Predicate::Lt,
        "LessOrEqual" => Predicate::Le,
        "Greater" => Predicate::Gt,
        "GreaterOrEqual" => Predicate::Ge,
        _ => return None,
    })
}

impl Translator<'_> {
    /// Refuses a node.
    pub(super) fn refuse<T>(&self, node: &Node, reason: impl std::fmt::Display) -> Result<T, Problem> {
        let label = node.label();
        refused(label.clone(), LeftOutCode::UnsupportedOperator, format!("{label}: {reason}"))
    }

    /// An input of a node as a value of type f16, bf16 or f32.
    pub(super) fn float(&mut self, node: &Node, position: usize) -> Result<Value, Problem> {
        let value = self.value(node, position)?;
        let element = self.ty(value).element;
        match element.is_arithmetic() && self.ty(value).layout.is_none() {
            true => Ok(value),
            false => {
                self.refuse(node, format!("input {position} has the type {element}, not f32, bf16 or f16"))
            }
        }
    }

    pub(super) fn unary(&mut self, node: &Node, kind: UnaryKind) -> Result<(), Problem> {
        let x = self.float(node, 0)?;
        let ty = self.ty(x).clone();
        self.define(node, 0, OpKind::Unary(kind), &[x], ty);
        Ok(())
    }

    /// The element type of two operands. Notes types that the graph mixes.
    pub(super) fn join(&mut self, node: &Node, left: Value, right: Value) -> Result<ElementType, Problem> {
        let (left, right) = (self.ty(left).element, self.ty(right).element);
        if left == ElementType::I32 && right == ElementType::I32 {
            return Ok(left);
        }
        let Some(element) = left.join(right) else {
            return self.refuse(node, format!("it combines {left} and {right}"));
        };
        if left != right && !self.wide {
            self.note(format!(
                "Repaired: {} combines {left} and {right}; the result is {element}.",
                node.label()
            ));
        }
        Ok(element)
    }

    fn broadcast_type(
        &self,
        node: &Node,
        operands: &[Value],
        element: ElementType,
    ) -> Result<TensorType, Problem> {
        let mut shape = Vec::new();
        for operand in operands {
            match broadcast_shape(&shape, &self.ty(*operand).shape) {
                Some(joined) => shape = joined,
                None => {
                    return self.refuse(
                        node,
                        "the shapes of its inputs do not broadcast, or depend on symbols that may differ",
                    );
                }
            }
        }
        Ok(TensorType::new(shape, element))
    }

    /// Writes a function of two values.
    pub(super) fn pair(
        &mut self,
        node: &Node,
        hint: &str,
        kind: BinaryKind,
        left: Value,
        right: Value,
    ) -> Result<Value, Problem> {
        let element = self.join(node, left, right)?;
        if element == ElementType::I32 && matches!(kind, BinaryKind::Div | BinaryKind::Pow) {
            return self.refuse(node, "its operands are integers; only floats have an equivalent");
        }
        let ty = self.broadcast_type(node, &[left, right], element)?;
        Ok(self.step(hint, OpKind::Binary(kind), &[left, right], ty))
    }

    /// Aligns the second operand as the attribute `axis` of old opsets demands: its first axis is that axis of the first
    /// operand. Returns the node with the aligned operand; `None` if the operand keeps its shape.
    pub(super) fn with_aligned_operand(&mut self, node: &Node) -> Result<Option<Node>, Problem> {
        let is_old = self.model.opset("").is_some_and(|opset| opset < ALIGNED_FROM_THE_END);
        let (Some(axis), Some(1), [_, second]) = (node.int("axis"), node.int("broadcast"), &node.inputs[..])
        else {
            return Ok(None);
        };
        if !is_old {
            return Ok(None);
        }
        let (left, right) = (self.item(node, 0)?, self.item(node, 1)?);
        let (rank, shape) = (self.shape_of(&left).len(), self.shape_of(&right));
        // A number fits everywhere.
        if shape.iter().all(|dim| dim.as_fixed() == Some(1)) && shape.len() <= rank {
            return Ok(None);
        }
        let axis = self.axis(node, axis, rank)?;
        let Some(behind) = rank.checked_sub(axis + shape.len()) else {
            return self
                .refuse(node, format!("its second input has more axes than the first has from {axis} on"));
        };
        let shape: Shape = shape.into_iter().chain((0..behind).map(|_| Dim::fixed(1))).collect();
        // No tensor of the file has a name with a zero byte and this node's label.
        let name = format!("{second}\0{}", node.label());
        let fixed: Option<Vec<u64>> = shape.iter().map(Dim::as_fixed).collect();
        let shaped = match (self.integers(node, 1)?, fixed) {
            (Some(integers), Some(dims)) => integers.shaped(dims),
            _ => None,
        };
        let item = match shaped {
            Some(integers) => Item::Integers(Rc::new(integers)),
            None => {
                let value = self.value(node, 1)?;
                Item::Value(self.reshaped(second, value, shape))
            }
        };
        self.items.insert(name.clone(), item);
        let mut aligned = node.clone();
        aligned.inputs[1] = name;
        Ok(Some(aligned))
    }

    pub(super) fn binary(&mut self, node: &Node, kind: BinaryKind) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let mut value = self.value(node, 0)?;
        for position in 1..node.inputs.len() {
            let right = self.value(node, position)?;
            value = self.pair(node, &hint, kind, value, right)?;
        }
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    pub(super) fn compare(&mut self, node: &Node, predicate: Predicate) -> Result<(), Problem> {
        let (left, right) = (self.value(node, 0)?, self.value(node, 1)?);
        self.join(node, left, right)?;
        let ty = self.broadcast_type(node, &[left, right], ElementType::I1)?;
        self.define(node, 0, OpKind::Compare(predicate), &[left, right], ty);
        Ok(())
    }

    pub(super) fn choose(&mut self, node: &Node) -> Result<(), Problem> {
        let [condition, then, otherwise] = [0, 1, 2].map(|position| self.value(node, position));
        let (condition, then, otherwise) = (condition?, then?, otherwise?);
        let element = self.join(node, then, otherwise)?;
        let ty = self.broadcast_type(node, &[condition, then, otherwise], element)?;
        if self.ty(condition).element != ElementType::I1 {
            return self.refuse(node, "its condition is not boolean");
        }
        self.define(node, 0, OpKind::Select, &[condition, then, otherwise], ty);
        Ok(())
    }

    pub(super) fn gelu(&mut self, node: &Node) -> Result<(), Problem> {
        match node.text("approximate").unwrap_or("none") {
            "none" => self.unary(node, UnaryKind::Gelu),
            "tanh" => self.unary(node, UnaryKind::GeluTanh),
            other => self.refuse(node, format!("the approximation `{other}` is unknown")),
        }
    }

    pub(super) fn swish(&mut self, node: &Node) -> Result<(), Problem> {
        match node.float("alpha").unwrap_or(1.0) {
            1.0 => self.unary(node, UnaryKind::Silu),
            alpha => self.refuse(node, format!("alpha is {alpha}; only 1 has an equivalent")),
        }
    }

    /// Limits a value to bounds, which are attributes before opset 11 and inputs since.
    pub(super) fn clip(&mut self, node: &Node) -> Result<(), Problem> {
        let mut value = self.float(node, 0)?;
        let hint = Translator::hint(node);
        let mut bounds = [f64::NEG_INFINITY, f64::INFINITY];
        for (at, name, kind) in [(0, "min", BinaryKind::Max), (1, "max", BinaryKind::Min)] {
            if let Some(bound) = node.float(name) {
                bounds[at] = f64::from(bound);
            } else if node.input(at + 1).is_some() {
                let item = self.item(node, at + 1)?;
                match self.known_number(&item)? {
                    Some(bound) => bounds[at] = bound,
                    None => {
                        let bound = self.float(node, at + 1)?;
                        value = self.pair(node, &hint, kind, value, bound)?;
                    }
                }
            }
        }
        let [min, max] = bounds;
        if min.is_nan() || max.is_nan() || min > max {
            return self.refuse(node, format!("its bounds are {min} and {max}"));
        }
        let ty = self.ty(value).clone();
        self.define(node, 0, OpKind::Clamp { min, max }, &[value], ty);
        Ok(())
    }

    /// Computes a power. A square is a product, which is rounded alike. A cube is two products, as ONNX Runtime computes
    /// it: kernels multiply, but have no power.
    pub(super) fn power(&mut self, node: &Node) -> Result<(), Problem> {
        let exponent = self.item(node, 1)?;
        let mut x = self.float(node, 0)?;
        let known = self.known_number(&exponent)?;
        if known.is_some() {
            // An exponent of one element may have more axes than x, and so has the result.
            let added = self.shape_of(&exponent).len().saturating_sub(self.ty(x).rank());
            let shape = (0..added).map(|_| Dim::fixed(1)).chain(self.shape(x)).collect();
            x = self.reshaped(&Translator::hint(node), x, shape);
        }
        let ty = self.ty(x).clone();
        match known {
            Some(2.0) => self.define(node, 0, OpKind::Binary(BinaryKind::Mul), &[x, x], ty),
            Some(3.0) => {
                let hint = Translator::hint(node);
                let square = self.step(&hint, OpKind::Binary(BinaryKind::Mul), &[x, x], ty.clone());
                self.define(node, 0, OpKind::Binary(BinaryKind::Mul), &[square, x], ty);
            }
            Some(0.5) => self.define(node, 0, OpKind::Unary(UnaryKind::Sqrt), &[x], ty),
            Some(-1.0) => self.define(node, 0, OpKind::Unary(UnaryKind::Reciprocal), &[x], ty),
            Some(1.0) => self.set(node, 0, Item::Value(x)),
            _ => {
                let exponent = self.float(node, 1)?;
                let hint = Translator::hint(node);
                let value = self.pair(node, &hint, BinaryKind::Pow, x, exponent)?;
                self.set(node, 0, Item::Value(value));
            }
        }
        Ok(())
    }

    /// Computes with integers that are known. Returns false if they are not.
    pub(super) fn fold_elementwise(&mut self, node: &Node) -> Result<bool, Problem> {
        let mut operands = Vec::new();
        for position in 0..node.inputs.len() {
            match self.integers(node, position)? {
                Some(integers) => operands.push(integers),
                None => return Ok(false),
            }
        }
        let is_comparison = predicate_of(&node.op).is_some() || matches!(node.op.as_str(), "And" | "Or");
        let folded = match (node.op.as_str(), &operands[..]) {
            ("Where", [condition, then, otherwise]) => integers::select(condition, then, otherwise),
            ("Not", [x]) => {
                let values = x
                    .known()
                    .map(|values| values.into_iter().map(|value| Number::Known(1 - value)).collect());
                values.map(|values| Integers { values, ..(**x).clone() })
            }
            ("Neg" | "Abs", [x]) => {
                let one =
                    |value: i64| if node.op == "Neg" { value.checked_neg() } else { value.checked_abs() };
                let values = x.known().and_then(|values| {
                    values
                        .into_iter()
                        .map(|value| one(value).map(Number::Known))
                        .collect::<Option<Vec<Number>>>()
                });
                values.map(|values| Integers { values, ..(**x).clone() })
            }
            ("Mod", [left, right]) if node.int("fmod").unwrap_or(0) != 0 => {
                integers::combine(integers::remainder, left, right, left.element)
            }
            (op, [left, right]) => match integers::function(op) {
                Some(function) => {
                    let element = if is_comparison { ElementType::I1 } else { left.element };
                    integers::combine(function, left, right, element)
                }
                None => return Ok(false),
            },
            _ => return Ok(false),
        };
        let Some(folded) = folded else {
            // Numbers without symbols may still be computed by the program.
            let all_known = operands.iter().all(|operand| operand.known().is_some());
            return match all_known {
                true => Ok(false),
                false => {
                    self.refuse(node, "shapes are computed from symbolic extents other than by products")
                }
            };
        };
        self.charge(node, folded.values.len() as u64)?;
        self.set(node, 0, Item::Integers(Rc::new(folded)));
        Ok(true)
    }
}
