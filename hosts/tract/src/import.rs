//! Translates a model of tract into one program. Nodes without a counterpart become inputs of it.

use std::collections::BTreeMap;

use fourfold::ir::{
    BinaryKind, Builder, ConstantValue, Dim, Module, Op as FourfoldOp, OpKind, ScaleLayout,
    Tensor as FourfoldTensor, TensorType, UnaryKind, Value,
};
use tract_core::internal::*;
use tract_core::ops::binary::TypedBinOp;
use tract_core::ops::cast::Cast;
use tract_core::ops::einsum::EinSum;
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::konst::Const;
use tract_core::ops::nn::GeluApproximate;
use tract_core::ops::source::TypedSource;

use crate::format::{Form, Format};
use crate::ops::{BlockDequantize, BlockQuantize, ScaledMm};
use crate::report::{Reason, reason};

/// The program of a model, and its relation to the model.
pub(crate) struct Imported {
    pub(crate) module: Module,
    /// The outlet that holds each value. Absent for constants, and for blocked scales of inputs.
    pub(crate) outlets: HashMap<Value, (OutletId, Form)>,
    /// The tensors of params.
    pub(crate) params: HashMap<Value, FourfoldTensor>,
    /// The node that each op stands for. Constants and changes of scale layout stand for none.
    pub(crate) nodes: BTreeMap<FourfoldOp, usize>,
    /// The extents of tract behind the program's symbols.
    pub(crate) symbols: Vec<(String, TDim)>,
    /// The reasons of nodes that were not translated.
    pub(crate) kept: BTreeMap<usize, Reason>,
}

/// Returns true for nodes that compute nothing.
pub(crate) fn is_leaf(node: &TypedNode) -> bool {
    node.op_is::<TypedSource>() || node.op_is::<Const>()
}

/// Translates every node except those in `refused`.
pub(crate) fn import(model: &TypedModel, refused: &BTreeMap<usize, Reason>) -> TractResult<Imported> {
    let mut importer = Importer {
        model,
        builder: Builder::new("model"),
        values: HashMap::new(),
        blocked: HashMap::new(),
        constants: HashMap::new(),
        imported: Imported {
            module: Module::new("model"),
            outlets: HashMap::new(),
            params: HashMap::new(),
            nodes: BTreeMap::new(),
            symbols: Vec::new(),
            kept: refused.clone(),
        },
    };
    for id in model.eval_order()? {
        let node = model.node(id);
        if is_leaf(node) || refused.contains_key(&id) {
            continue;
        }
        if let Err(reason) = importer.node(node) {
            importer.imported.kept.insert(id, reason);
        }
    }
    let outputs = importer.outputs();
    let Importer { builder, mut imported, .. } = importer;
    imported.module = builder.finish(&outputs);
    Ok(imported)
}

struct Importer<'m> {
    model: &'m TypedModel,
    builder: Builder,
    values: HashMap<(OutletId, Form), Value>,
    /// Blocked scales, by linear ones.
    blocked: HashMap<Value, Value>,
    /// Constants of one element, by outlet.
    constants: HashMap<OutletId, Value>,
    imported: Imported,
}

impl Importer<'_> {
    fn node(&mut self, node: &TypedNode) -> Result<(), Reason> {
        if let Some(op) = node.op_as::<ScaledMm>() {
            self.scaled_mm(node, op)
        } else if let Some(op) = node.op_as::<BlockQuantize>() {
            self.block_quantize(node, op)
        } else if node.op_is::<BlockDequantize>() {
            Err(Reason::new(reason::DEQUANTIZED, "not every reader is a product of two dequantized matrices"))
        } else if let Some(op) = node.op_as::<EinSum>() {
            self.product(node, op)
        } else if let Some(op) = node.op_as::<TypedBinOp>() {
            self.binary(node, op)
        } else if let Some(op) = node.op_as::<ElementWiseOp>() {
            self.unary(node, op)
        } else if node.op_is::<Cast>() {
            self.same_operand(node, OpKind::Convert)
        } else {
            Err(unsupported(node))
        }
    }

    fn scaled_mm(&mut self, node: &TypedNode, op: &ScaledMm) -> Result<(), Reason> {
        let [a, sfa, b, sfb, alpha @ ..] = &*node.inputs else { return Err(unsupported(node)) };
        let operands = self.operands(op.format, [*a, *sfa], [*b, *sfb])?;
        let alpha = alpha.first().map(|alpha| self.value(*alpha, Form::Number)).transpose()?;
        let value = op.emit(&mut self.builder, operands, alpha);
        self.define(node, &[(value, Form::Number)]);
        Ok(())
    }

    /// The codes and blocked scales of A and B.
    fn operands(&mut self, format: Format, a: [OutletId; 2], b: [OutletId; 2]) -> Result<[Value; 4], Reason> {
        let mut values = Vec::with_capacity(4);
        for [codes, scales] in [a, b] {
            values.push(self.value(codes, Form::Codes)?);
            let scales = self.value(scales, Form::Scales(format))?;
            let blocked = match self.builder.ty(scales).layout {
                Some(ScaleLayout::Blocked) => scales,
                _ => *self
                    .blocked
                    .entry(scales)
                    .or_insert_with(|| self.builder.swizzle_scales("", scales, ScaleLayout::Blocked)),
            };
            values.push(blocked);
        }
        Ok([values[0], values[1], values[2], values[3]])
    }

    fn block_quantize(&mut self, node: &TypedNode, op: &BlockQuantize) -> Result<(), Reason> {
        let operands = node.inputs.iter().map(|input| self.value(*input, Form::Number));
        let operands = operands.collect::<Result<Vec<Value>, Reason>>()?;
        let [codes, scales] = op.emit(&mut self.builder, &operands, ScaleLayout::Blocked);
        self.define(node, &[(codes, Form::Codes), (scales, Form::Scales(op.format))]);
        Ok(())
    }

    /// A product of two dequantized matrices. Every code times its scale is exact in f32, so the product equals a
    /// `scaled_mma`.
    fn product(&mut self, node: &TypedNode, op: &EinSum) -> Result<(), Reason> {
        let plain = |why: &str| Err(Reason::new(reason::PLAIN_PRODUCT, why));
        let dequantized = |outlet: OutletId| {
            let producer = self.model.node(outlet.node);
            let op = producer.op_as::<BlockDequantize>()?;
            Some((op.format, <[OutletId; 2]>::try_from(&*producer.inputs).ok()?))
        };
        let &[left, right] = &*node.inputs else { return plain("it has not two operands") };
        let (Some((format, a)), Some((other, b))) = (dequantized(left), dequantized(right)) else {
            return plain("its operands are not both block-scaled");
        };
        if format != other || op.operating_dt != DatumType::F32 || op.q_params.is_some() {
            return plain("its operands have two formats, or its result is not F32");
        }
        let (inputs, outputs) = op.axes.to_strs();
        let ([a_axes, b_axes], [d_axes]) = (&*inputs, &*outputs) else {
            return plain("its axes do not fit it");
        };
        let [a_axes, b_axes, d_axes] = [a_axes, b_axes, d_axes].map(|axes| axes.as_bytes());
        let (Some((k, rows)), &[n, b_k]) = (a_axes.split_last(), b_axes) else {
            return plain("B is not a matrix [N, K]");
        };
        if b_k != *k || d_axes.contains(k) || d_axes.split_last() != Some((&n, rows)) {
            return plain("it is not [.., M, K] times [N, K]");
        }
        let operands = self.operands(format, a, b)?;
        let scaled = ScaledMm { format, output: DatumType::F32 };
        let value = scaled.emit(&mut self.builder, operands, None);
        self.define(node, &[(value, Form::Number)]);
        Ok(())
    }

    fn binary(&mut self, node: &TypedNode, op: &TypedBinOp) -> Result<(), Reason> {
        let kind = match op.0.name() {
            "Add" => BinaryKind::Add,
            "Sub" => BinaryKind::Sub,
            "Mul" => BinaryKind::Mul,
            "Div" => BinaryKind::Div,
            "Max" => BinaryKind::Max,
            "Min" => BinaryKind::Min,
            _ => return Err(unsupported(node)),
        };
        let &[left, right] = &*node.inputs else { return Err(unsupported(node)) };
        let ty = self.result_type(node)?;
        let (left, right) = (self.operand(node, left)?, self.operand(node, right)?);
        self.emit(node, OpKind::Binary(kind), &[left, right], ty);
        Ok(())
    }

    fn unary(&mut self, node: &TypedNode, op: &ElementWiseOp) -> Result<(), Reason> {
        let tanh = op.0.downcast_ref::<GeluApproximate>().is_some_and(|gelu| !gelu.fast_impl);
        let kind = match op.0.name().as_str() {
            "Neg" => UnaryKind::Neg,
            "Abs" => UnaryKind::Abs,
            "Exp" => UnaryKind::Exp,
            "Sqrt" => UnaryKind::Sqrt,
            "Rsqrt" => UnaryKind::Rsqrt,
            "Recip" => UnaryKind::Reciprocal,
            "Tanh" => UnaryKind::Tanh,
            "Erf" => UnaryKind::Erf,
            "Sigmoid" => UnaryKind::Sigmoid,
            "Silu" => UnaryKind::Silu,
            "GeluExact" => UnaryKind::Gelu,
            "GeluApproximate" if tanh => UnaryKind::GeluTanh,
            "Square" => {
                let (x, ty) = (self.operand(node, input(node)?)?, self.result_type(node)?);
                self.emit(node, OpKind::Binary(BinaryKind::Mul), &[x, x], ty);
                return Ok(());
            }
            _ => return Err(unsupported(node)),
        };
        self.same_operand(node, OpKind::Unary(kind))
    }

    /// An op of one number tensor, whose result type is the node's.
    fn same_operand(&mut self, node: &TypedNode, kind: OpKind) -> Result<(), Reason> {
        let ty = self.result_type(node)?;
        let operand = self.value(input(node)?, Form::Number)?;
        self.emit(node, kind, &[operand], ty);
        Ok(())
    }

    fn emit(&mut self, node: &TypedNode, kind: OpKind, operands: &[Value], ty: TensorType) {
        let value = self.builder.op(kind, operands, &[("", ty)])[0];
        self.define(node, &[(value, Form::Number)]);
    }

    /// States that the last op computes the node, with these values at its outlets.
    fn define(&mut self, node: &TypedNode, results: &[(Value, Form)]) {
        use fourfold::ir::Entity;
        self.imported.nodes.insert(FourfoldOp::from_index(self.builder.op_count() - 1), node.id);
        for (slot, (value, form)) in results.iter().enumerate() {
            let outlet = OutletId::new(node.id, slot);
            self.values.insert((outlet, *form), *value);
            self.imported.outlets.insert(*value, (outlet, *form));
        }
    }

    fn fact(&self, outlet: OutletId) -> Result<&TypedFact, Reason> {
        let missing = |error: TractError| Reason::new(reason::INVALID, format!("{error:#}"));
        self.model.outlet_fact(outlet).map_err(missing)
    }

    fn result_type(&mut self, node: &TypedNode) -> Result<TensorType, Reason> {
        self.ty(node.id.into(), Form::Number)
    }

    /// The type of an outlet. Leading extents are one: kernels need a matrix, and the bytes are the same.
    fn ty(&mut self, outlet: OutletId, form: Form) -> Result<TensorType, Reason> {
        let fact = self.fact(outlet)?.clone();
        let datum = fact.datum_type;
        let element = form.element(datum).filter(|_| fact.is_plain()).ok_or_else(|| {
            Reason::new(reason::UNSUPPORTED_TYPE, format!("a {datum:?} tensor has no counterpart here"))
        })?;
        let mut shape: Vec<Dim> = Vec::with_capacity(2);
        for (axis, extent) in fact.shape.iter().enumerate() {
            let last = axis + 1 == fact.rank();
            let factor = if last && form == Form::Codes { 2 } else { 1 };
            let dim = self.dim(extent).and_then(|dim| dim.times(&Dim::fixed(factor)));
            let rows = if last || shape.is_empty() { None } else { shape.pop() };
            let dim = match rows {
                Some(rows) => dim.and_then(|dim| rows.times(&dim)),
                None => dim,
            };
            shape.push(dim.ok_or_else(|| {
                Reason::new(reason::UNSUPPORTED_SHAPE, format!("the extent {extent} has no counterpart"))
            })?);
        }
        Ok(TensorType { shape, element, layout: form.layout() })
    }

    /// The extent in the program. An extent that is no product becomes a symbol of its own.
    fn dim(&mut self, extent: &TDim) -> Option<Dim> {
        match extent {
            TDim::Val(value) => u64::try_from(*value).ok().map(Dim::fixed),
            TDim::MulInt(factor, rest) => self.dim(rest)?.times(&Dim::fixed(u64::try_from(*factor).ok()?)),
            TDim::Mul(factors) => {
                factors.iter().try_fold(Dim::fixed(1), |product, factor| product.times(&self.dim(factor)?))
            }
            _ => {
                let symbols = &mut self.imported.symbols;
                let known = symbols.iter().position(|(_, known)| known == extent);
                let index = known.unwrap_or_else(|| {
                    symbols.push((format!("d{}", symbols.len()), extent.clone()));
                    symbols.len() - 1
                });
                Some(self.builder.symbol(&symbols[index].0))
            }
        }
    }

    /// The operand of an elementwise op. One constant number is part of the program.
    fn operand(&mut self, node: &TypedNode, outlet: OutletId) -> Result<Value, Reason> {
        if let Some(value) = self.constants.get(&outlet) {
            return Ok(*value);
        }
        let (fact, result) = (self.fact(outlet)?, self.fact(node.id.into())?);
        let leading = |fact: &TypedFact| fact.shape.iter().rev().skip(1).cloned().collect::<Vec<TDim>>();
        let rows = leading(fact);
        if rows != leading(result) && rows.iter().any(|extent| *extent != 1.to_dim()) {
            let message = format!("{:?} is repeated along a part of the leading extents", fact.shape);
            return Err(Reason::new(reason::UNSUPPORTED_SHAPE, message));
        }
        let Some(number) = fact.konst.clone().filter(|konst| konst.len() == 1) else {
            return self.value(outlet, Form::Number);
        };
        let element = self.ty(outlet, Form::Number)?.element;
        let unreadable = |error: TractError| Reason::new(reason::UNSUPPORTED_TYPE, format!("{error:#}"));
        let number = number.cast_to_scalar::<f64>().map_err(unreadable)?;
        let ty = TensorType::new(Vec::new(), element);
        let constant = OpKind::Constant(ConstantValue::Splat(number));
        let value = self.builder.op(constant, &[], &[("", ty)])[0];
        self.constants.insert(outlet, value);
        Ok(value)
    }

    /// The value of an outlet: the result of a translated node, a param, or an input.
    fn value(&mut self, outlet: OutletId, form: Form) -> Result<Value, Reason> {
        if let Some(value) = self.values.get(&(outlet, form)) {
            return Ok(*value);
        }
        let mut ty = self.ty(outlet, form)?;
        let name = format!("in{}", self.values.len());
        let value = match self.fact(outlet)?.konst.clone() {
            Some(constant) => {
                let tensor = form.import_rows(&constant);
                let mut tensor =
                    tensor.map_err(|error| Reason::new(reason::UNSUPPORTED_TYPE, error.to_string()))?;
                if form == Form::Number {
                    // tract pads ranks with extents of 1; kernels read a bias as [N].
                    while ty.shape.len() > 1 && ty.shape[0].as_fixed() == Some(1) {
                        ty.shape.remove(0);
                    }
                    let dims = tensor.dims()[tensor.dims().len() - ty.shape.len()..].to_vec();
                    let squeezed = FourfoldTensor::new(ty.element, dims, None, tensor.bytes().to_vec());
                    tensor = squeezed
                        .map_err(|error| Reason::new(reason::UNSUPPORTED_SHAPE, error.to_string()))?;
                }
                let value = self.builder.param(&name, ty);
                self.imported.params.insert(value, tensor);
                value
            }
            None => self.builder.input(&name, ty),
        };
        self.values.insert((outlet, form), value);
        self.imported.outlets.insert(value, (outlet, form));
        Ok(value)
    }

    /// The values that nodes of tract or the model's outputs read.
    fn outputs(&self) -> Vec<Value> {
        let translated: std::collections::HashSet<usize> = self.imported.nodes.values().copied().collect();
        let is_read = |outlet: OutletId| {
            self.model.outputs.contains(&outlet)
                || self.model.outlet_successors(outlet).iter().any(|reader| {
                    let node = self.model.node(reader.node);
                    // A dequantization that translated products alone read is not run.
                    let readers = node.outputs.first().map_or(&[][..], |output| &output.successors);
                    let is_folded = node.op_is::<BlockDequantize>()
                        && !self.model.outputs.contains(&node.id.into())
                        && readers.iter().all(|reader| translated.contains(&reader.node));
                    !is_folded && !translated.contains(&node.id)
                })
        };
        let mut outputs: Vec<Value> = self
            .imported
            .outlets
            .iter()
            .filter_map(|(value, (outlet, _))| {
                (translated.contains(&outlet.node) && is_read(*outlet)).then_some(*value)
            })
            .collect();
        outputs.sort_unstable();
        outputs
    }
}

fn input(node: &TypedNode) -> Result<OutletId, Reason> {
    node.inputs.first().copied().ok_or_else(|| unsupported(node))
}

fn unsupported(node: &TypedNode) -> Reason {
    Reason::new(reason::UNSUPPORTED_OP, format!("`{}` has no counterpart", node.op.name()))
}
