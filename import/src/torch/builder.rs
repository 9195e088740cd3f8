//! The program in the making: its builder, the values of nodes, and the types of a graph.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use fourfold_executor::TensorReference;
use fourfold_ir::{
    Builder, ConstantValue, Dim, ElementType, OpKind, Predicate, ScaleLayout, Shape, TensorType, UnaryKind,
    Value,
};
use serde_json::Value as Json;

use super::arguments::{Reason, node_name, number};
use super::graph::{Extent, Node, Nvfp4, Parameter, TensorMeta};
use crate::origins::Origins;

/// The meaning of a node's name.
#[derive(Clone)]
pub(super) enum Entry {
    Tensor(Value),
    Nvfp4(Nvfp4Weight),
    /// The results of an op with several; unused ones are absent.
    Many(Vec<Option<Value>>),
    /// An extent, or nothing. Types state all extents, so that its value is not needed.
    Extent,
}

/// An NVFP4 weight `[N, K]` of torchao.
#[derive(Clone)]
pub(super) struct Nvfp4Weight {
    /// f4E2M1FN `[N, K]`.
    pub codes: Value,
    /// f8E4M3FN `[N, K/16]`, linear or blocked.
    pub scales: Value,
    pub per_tensor_scale: Option<Value>,
    pub scheme: Scheme,
    /// The type of dequantized values.
    pub element: ElementType,
}

/// The largest magnitude that rounds to 448, the largest value of f8E4M3FN.
const E4M3_ROUNDS_DOWN: f64 = 464.0;

/// Elements per scale.
pub(super) const BLOCK: u32 = 16;

/// The quantization of the activation of a linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scheme {
    /// None: the weight is dequantized.
    WeightOnly,
    /// Block scales alone.
    Blocks,
    /// A per-tensor scale from the largest magnitude of each call.
    Dynamic,
    /// A known per-tensor scale.
    Static(Value),
}

/// A quantized activation, with two axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuantizedActivation {
    pub codes: Value,
    /// In blocked layout.
    pub scales: Value,
    pub per_tensor_scale: Option<Value>,
}

/// The type of block scales.
pub(super) fn scales_type(shape: Shape, blocked: bool) -> TensorType {
    let layout = if blocked { ScaleLayout::Blocked } else { ScaleLayout::Linear };
    TensorType::scales(shape, ElementType::F8E4M3FN, layout)
}

/// The program that is built, and the values of the nodes so far.
pub(super) struct Translator<'a> {
    pub builder: Builder,
    entries: HashMap<&'a str, Entry>,
    pub tensors: Vec<TensorReference>,
    file: &'a Path,
    /// Each quantized activation with its scheme, so that linears that share an input share its quantization.
    pub quantized: HashMap<(Value, Scheme), QuantizedActivation>,
    /// Values whose magnitude is at most that of f8E4M3FN.
    pub bounded: HashSet<Value>,
    /// Facts that the program does not state.
    pub notes: Vec<String>,
    /// The nodes of the ops.
    pub origins: Origins,
    /// The number of elements that constants list so far.
    listed: u64,
}

/// The maximum number of elements that all constants of a program list.
const MOST_LISTED: u64 = 1 << 22;

impl<'a> Translator<'a> {
    /// Starts a program whose tensors lie in `file`.
    pub fn new(name: &str, file: &'a Path) -> Translator<'a> {
        let builder = Builder::new(crate::write::word(name));
        let (entries, quantized) = (HashMap::new(), HashMap::new());
        let (tensors, notes, bounded, origins) = (Vec::new(), Vec::new(), HashSet::new(), Origins::default());
        Translator { builder, entries, tensors, file, quantized, bounded, notes, origins, listed: 0 }
    }

    /// Counts elements that a constant will list, so that a small file makes no large program.
    pub fn list(&mut self, count: u64) -> Result<(), Reason> {
        self.listed = self.listed.saturating_add(count);
        match self.listed <= MOST_LISTED {
            true => Ok(()),
            false => Err(format!("makes the constants of the program list more than {MOST_LISTED} elements")),
        }
    }

    pub fn define(&mut self, name: &'a str, entry: Entry) -> Result<(), Reason> {
        match self.entries.insert(name, entry) {
            Some(_) => Err("has a name that is used twice".to_owned()),
            None => Ok(()),
        }
    }

    pub fn parameter(&mut self, parameter: &'a Parameter) -> Result<(), Reason> {
        let name = &parameter.name;
        let entry = match parameter {
            Parameter { tensor: Some(tensor), ty: Some(ty), nvfp4: None, .. } => {
                let ty = self.ty(ty)?;
                Entry::Tensor(self.stored(name.clone(), tensor, ty))
            }
            Parameter { tensor: None, ty: None, nvfp4: Some(nvfp4), .. } => {
                Entry::Nvfp4(self.nvfp4(name, nvfp4)?)
            }
            _ => return Err("has neither a tensor and its type nor an NVFP4 tensor".to_owned()),
        };
        self.define(name, entry)
    }

    /// Adds a `param` input that reads a tensor of the file.
    fn stored(&mut self, input: String, tensor: &str, ty: TensorType) -> Value {
        let value = self.builder.param(&input, ty);
        let file = self.file.to_string_lossy();
        self.tensors.push(TensorReference::tensor(input, tensor).in_file(file));
        value
    }

    fn nvfp4(&mut self, name: &str, stored: &Nvfp4) -> Result<Nvfp4Weight, Reason> {
        let ty = self.ty(&stored.ty)?;
        let [n, k] = &ty.shape[..] else { return Err("is an NVFP4 tensor that is no matrix".to_owned()) };
        let Some(blocks) = k.divided_by(BLOCK.into()) else {
            return Err(format!("has K = {:?}, not a multiple of {}", stored.ty.shape, BLOCK));
        };
        let scales = scales_type([n.clone(), blocks].into(), stored.swizzled);
        let codes = TensorType::new(ty.shape.clone(), ElementType::F4E2M1FN);
        let scalar = || TensorType::new(Shape::new(), ElementType::F32);
        let codes = self.stored(format!("{name}.codes"), &stored.codes, codes);
        let scales = self.stored(format!("{name}.scales"), &stored.scales, scales);
        let per_tensor_scale = stored
            .per_tensor_scale
            .as_ref()
            .map(|tensor| self.stored(format!("{name}.per_tensor_scale"), tensor, scalar()));
        let scheme = match &stored.activation {
            None => Scheme::WeightOnly,
            Some(activation) if activation.dynamic => Scheme::Dynamic,
            Some(activation) => match &activation.per_tensor_scale {
                None => Scheme::Blocks,
                Some(tensor) => {
                    Scheme::Static(self.stored(format!("{name}.activation_scale"), tensor, scalar()))
                }
            },
        };
        Ok(Nvfp4Weight { codes, scales, per_tensor_scale, scheme, element: ty.element })
    }

    /// The entry that an argument refers to.
    pub fn entry(&self, argument: &Json) -> Result<&Entry, Reason> {
        let name = node_name(argument).ok_or_else(|| format!("is {argument}, not a node"))?;
        self.entries.get(name).ok_or_else(|| format!("uses `{name}`, which no earlier node defines"))
    }

    /// The tensor that an argument refers to.
    pub fn tensor(&self, argument: &Json) -> Result<Value, Reason> {
        match self.entry(argument)? {
            Entry::Tensor(value) => Ok(*value),
            Entry::Nvfp4(_) => Err("uses an NVFP4 tensor in an op that is no linear".to_owned()),
            Entry::Many(_) | Entry::Extent => Err("uses a value that is no tensor".to_owned()),
        }
    }

    /// The tensor or number that an argument gives, as f32.
    pub fn number_or_tensor(&mut self, argument: &Json) -> Result<Value, Reason> {
        match number(argument) {
            Some(number) => Ok(self.constant(number)),
            None => {
                let value = self.tensor(argument)?;
                self.widened(value)
            }
        }
    }

    /// Returns whether arguments are integers: tensors of i32 and whole numbers.
    pub fn are_integers(&self, arguments: &[&Json]) -> Result<bool, Reason> {
        for argument in arguments {
            let is_integer = match number(argument) {
                Some(_) => argument.as_i64().is_some(),
                None => self.builder.ty(self.tensor(argument)?).element == ElementType::I32,
            };
            if !is_integer {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The tensor or number that an argument gives, as i32.
    pub fn integer_or_tensor(&mut self, argument: &Json) -> Result<Value, Reason> {
        match number(argument) {
            Some(number) => {
                let ty = TensorType::new(Shape::new(), ElementType::I32);
                let kind = OpKind::Constant(ConstantValue::Splat(number));
                Ok(self.builder.op(kind, &[], &[("", ty)])[0])
            }
            None => {
                let value = self.tensor(argument)?;
                self.converted("", value, ElementType::I32)
            }
        }
    }

    /// A scalar constant of type f32.
    pub fn constant(&mut self, number: f64) -> Value {
        self.filled(Shape::new(), number)
    }

    /// A constant of type f32 with the same number everywhere.
    pub fn filled(&mut self, shape: Shape, number: f64) -> Value {
        let ty = TensorType::new(shape, ElementType::F32);
        self.builder.op(OpKind::Constant(ConstantValue::Splat(number)), &[], &[("", ty)])[0]
    }

    /// The value as f32, in which torch computes.
    pub fn widened(&mut self, value: Value) -> Result<Value, Reason> {
        match self.builder.ty(value).element {
            element if element.is_arithmetic() || matches!(element, ElementType::I32 | ElementType::I1) => {
                self.converted("", value, ElementType::F32)
            }
            element => Err(format!("computes with a tensor of type {element}")),
        }
    }

    /// The value in another element type. Fractions are cut off, as torch does; truth values are 0 and 1.
    pub fn converted(&mut self, name: &str, value: Value, element: ElementType) -> Result<Value, Reason> {
        let mut value = value;
        let mut ty = self.builder.ty(value).clone();
        if ty.element == element {
            return Ok(value);
        }
        // Fractions and zeros of 8-bit and 4-bit floats are those of f32.
        let is_small = ty.element.is_block_data() && ty.layout.is_none();
        if is_small && matches!(element, ElementType::I32 | ElementType::I1) {
            value = self.builder.convert("", value, ElementType::F32);
            ty = self.builder.ty(value).clone();
        }
        if element == ElementType::I32 && ty.element.is_arithmetic() {
            self.note("Conversions to integers limit values to the range of i32; NaN becomes 0.");
        }
        let constant = |t: &mut Self, number: f64, element: ElementType| {
            let kind = OpKind::Constant(ConstantValue::Splat(number));
            t.builder.op(kind, &[], &[("", TensorType::new(Shape::new(), element))])[0]
        };
        let result = TensorType::new(ty.shape.clone(), element);
        let is_number = |element: ElementType| element.is_arithmetic() || element == ElementType::I32;
        match (ty.element, element) {
            (ElementType::I1, to) if is_number(to) => {
                let [one, zero] = [1.0, 0.0].map(|number| constant(self, number, to));
                Ok(self.builder.op(OpKind::Select, &[value, one, zero], &[(name, result)])[0])
            }
            (from, ElementType::I1) if is_number(from) => {
                let zero = constant(self, 0.0, from);
                Ok(self.builder.op(OpKind::Compare(Predicate::Ne), &[value, zero], &[(name, result)])[0])
            }
            (from, ElementType::I32) if from.is_arithmetic() => {
                let zero = constant(self, 0.0, from);
                let is_negative = TensorType::new(ty.shape.clone(), ElementType::I1);
                let is_negative =
                    self.builder.op(OpKind::Compare(Predicate::Lt), &[value, zero], &[("", is_negative)])[0];
                let [up, down] =
                    [UnaryKind::Ceil, UnaryKind::Floor].map(|kind| self.builder.unary("", kind, value));
                let whole = self.builder.op(OpKind::Select, &[is_negative, up, down], &[("", ty)])[0];
                Ok(self.builder.convert(name, whole, element))
            }
            (from, ElementType::F8E4M3FN) if from.is_arithmetic() && !self.bounded.contains(&value) => {
                let value = self.without_overflow(value)?;
                Ok(self.builder.convert(name, value, element))
            }
            (from, ElementType::F8E5M2) if from.is_arithmetic() => {
                self.note("Conversions to f8E5M2 saturate; those of torch overflow to infinity.");
                Ok(self.builder.convert(name, value, element))
            }
            (ElementType::I1, _) | (_, ElementType::I1) => {
                Err(format!("converts {} to {element}, which has no equivalent", ty.element))
            }
            _ => Ok(self.builder.convert(name, value, element)),
        }
    }

    pub fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }

    /// The value, with NaN instead of what f8E4M3FN cannot hold, as torch converts. A program's conversion saturates.
    fn without_overflow(&mut self, value: Value) -> Result<Value, Reason> {
        let value = self.widened(value)?;
        let shape = self.builder.ty(value).shape.clone();
        let magnitude = self.builder.unary("", UnaryKind::Abs, value);
        let [most, nan] = [E4M3_ROUNDS_DOWN, f64::NAN].map(|number| self.constant(number));
        let exceeds = TensorType::new(shape.clone(), ElementType::I1);
        let exceeds =
            self.builder.op(OpKind::Compare(Predicate::Gt), &[magnitude, most], &[("", exceeds)])[0];
        let ty = TensorType::new(shape, ElementType::F32);
        Ok(self.builder.op(OpKind::Select, &[exceeds, nan, value], &[("", ty)])[0])
    }

    /// Rounds a value to the element type of a node's result, and names it as the node. `make` makes the value; its
    /// argument is the name.
    pub fn rounded(
        &mut self,
        name: &str,
        element: ElementType,
        make: impl FnOnce(&mut Builder, &str) -> Value,
    ) -> Value {
        if element == ElementType::F32 {
            return make(&mut self.builder, name);
        }
        let value = make(&mut self.builder, "");
        if self.builder.ty(value).element == element {
            return value;
        }
        self.builder.convert(name, value, element)
    }

    /// The type of a node's only result.
    pub fn result(&mut self, node: &Node) -> Result<TensorType, Reason> {
        let meta: TensorMeta = serde_json::from_value(node.ty.clone())
            .map_err(|error| format!("has no tensor type: {error}"))?;
        self.ty(&meta)
    }

    pub fn ty(&mut self, meta: &TensorMeta) -> Result<TensorType, Reason> {
        let shape = meta.shape.iter().map(|extent| self.extent(extent)).collect::<Result<Shape, Reason>>()?;
        Ok(TensorType::new(shape, element(&meta.dtype)?))
    }

    /// An extent: a number, or a product of numbers and symbols.
    fn extent(&mut self, extent: &Extent) -> Result<Dim, Reason> {
        let text = match extent {
            Extent::Number(number) => return Ok(Dim::fixed(*number)),
            Extent::Text(text) => text,
        };
        let mut dim = Dim::fixed(1);
        for factor in text.split('*') {
            let factor = factor.trim();
            let is_word = factor.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && factor.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let factor = match factor.parse() {
                Ok(number) => Dim::fixed(number),
                Err(_) if is_word => self.builder.symbol(factor),
                Err(_) => return Err(format!("has the extent `{text}`, which is no product of symbols")),
            };
            dim = dim.times(&factor).ok_or_else(|| format!("has the extent `{text}`, which is too large"))?;
        }
        Ok(dim)
    }
}

/// The element type with this name in torch. Indices of 64 bits become i32.
pub(super) fn element(dtype: &str) -> Result<ElementType, Reason> {
    Ok(match dtype {
        "float32" => ElementType::F32,
        "bfloat16" => ElementType::BF16,
        "float16" => ElementType::F16,
        "float8_e4m3fn" => ElementType::F8E4M3FN,
        "float8_e5m2" => ElementType::F8E5M2,
        "int32" | "int64" => ElementType::I32,
        "bool" => ElementType::I1,
        _ => return Err(format!("has the element type {dtype}, which has no equivalent")),
    })
}

/// Counts an axis from the front, as torch allows negative ones.
pub(super) fn axis(axis: i64, rank: usize) -> Result<u32, Reason> {
    let from_front = if axis < 0 { axis + rank as i64 } else { axis };
    match u32::try_from(from_front) {
        Ok(found) if (found as usize) < rank => Ok(found),
        _ => Err(format!("has the axis {axis} of a tensor of rank {rank}")),
    }
}
