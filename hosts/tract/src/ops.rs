//! The ops that a model holds for block-scaled FP4: [`ScaledMm`], [`BlockQuantize`] and [`BlockDequantize`].
//!
//! Every runtime of tract can run them: outside Fourfold's segments they run on Fourfold's CPU fallback.

use fourfold::ir::{
    Builder, Dim, ElementType, OpKind, ScaleLayout, ScaleRounding, ScaledMmaOptions, TensorType, Value,
};
use fourfold::{Backend, DeviceChoice, Options};
use tract_core::internal::*;

use crate::error::Error;
use crate::format::{Form, Format, number_element};

/// The product alpha · (A·sfa)(B·sfb)ᵀ of block-scaled FP4 matrices.
///
/// | input | type | shape |
/// |---|---|---|
/// | a | `U8` codes | `[.., M, K/2]` |
/// | sfa | `U8` scales | `[.., M, K/block]` |
/// | b | `U8` codes | `[N, K/2]` |
/// | sfb | `U8` scales | `[N, K/block]` |
/// | alpha, optional | `F32` | one element |
///
/// The result is `[.., M, N]` of type `output`. M and leading extents may be symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledMm {
    /// The format of both matrices.
    pub format: Format,
    /// `F32` or `F16`. The sum is rounded to it once.
    pub output: DatumType,
}

/// Quantizes to block-scaled FP4 along the last axis: `block_quantize` of Fourfold's language.
///
/// Inputs: x, `F32` or `F16`, `[.., M, K]`; for NVFP4 also the per-tensor scale g, `F32`, one element. Results: codes
/// `[.., M, K/2]` and scales `[.., M, K/block]`, both `U8`. K is a fixed multiple of the block. MXFP4 scales are
/// rounded down to a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockQuantize {
    /// The format of the result.
    pub format: Format,
}

/// Computes code · scale. Inputs: codes `[.., M, K/2]` and scales `[.., M, K/block]`, both `U8`. Result: `F32`
/// `[.., M, K]`.
///
/// A matrix product of two dequantized matrices becomes a [`ScaledMm`] inside a segment. tract folds constants only
/// when it generates code, after Fourfold has seen the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDequantize {
    /// The format of the operands.
    pub format: Format,
}

impl ScaledMm {
    const NAME: &'static str = "ScaledMm";

    /// Adds the product to a program. The scales are blocked.
    pub(crate) fn emit(
        &self,
        builder: &mut Builder,
        [a, sfa, b, sfb]: [Value; 4],
        alpha: Option<Value>,
    ) -> Value {
        let element = number_element(self.output).unwrap_or(ElementType::F32);
        let options = ScaledMmaOptions { alpha, ..ScaledMmaOptions::default() };
        builder.scaled_mma("", a, sfa, b, sfb, self.format.block() as u32, element, options)
    }
}

impl BlockQuantize {
    const NAME: &'static str = "BlockQuantize";

    /// Adds the quantization to a program: codes, and scales with this layout.
    pub(crate) fn emit(&self, builder: &mut Builder, operands: &[Value], layout: ScaleLayout) -> [Value; 2] {
        let block = self.format.block() as u64;
        let shape = operands.first().map(|x| builder.ty(*x).shape.clone()).unwrap_or_default();
        let mut blocks = shape.clone();
        if let Some(last) = blocks.last_mut() {
            *last = last.divided_by(block).unwrap_or_else(|| Dim::fixed(0));
        }
        let rounding = (self.format == Format::Mxfp4).then_some(ScaleRounding::Floor);
        let scales = TensorType::scales(blocks, self.format.scale_element(), layout);
        let results = [("", TensorType::new(shape, ElementType::F4E2M1FN)), ("", scales)];
        let values = builder.op(OpKind::block_quantize(block as u32, rounding), operands, &results);
        [values[0], values[1]]
    }
}

/// Checks codes and their scales, and returns their shape in elements.
fn check_codes(
    op: &'static str,
    name: &str,
    format: Format,
    codes: &TypedFact,
    scales: &TypedFact,
) -> Result<TVec<TDim>, Error> {
    for (what, fact) in [("codes", codes), ("scales", scales)] {
        if fact.datum_type != DatumType::U8 {
            return Err(Error::op(op, format!("the {what} of {name} are {:?}, not U8", fact.datum_type)));
        }
    }
    let (rows, scale_rows) = (&codes.shape, &scales.shape);
    if rows.rank() < 2 || rows.rank() != scale_rows.rank() {
        let (found, other) = (rows.rank(), scale_rows.rank());
        let message =
            format!("{name} has codes of rank {found} and scales of rank {other}: both are 2 or more");
        return Err(Error::op(op, message));
    }
    let last = rows.rank() - 1;
    let k = rows[last].clone() * 2;
    let fits = k == scale_rows[last].clone() * format.block() as i64;
    if !fits || rows.iter().zip(scale_rows.iter()).take(last).any(|(left, right)| left != right) {
        let message = format!(
            "{name} has codes {rows:?} and scales {scale_rows:?}: there is one scale for {} elements, thus {} codes",
            format.block(),
            format.block() / 2
        );
        return Err(Error::op(op, message));
    }
    Ok(rows.iter().take(last).cloned().chain([k]).collect())
}

fn check_scalar(op: &'static str, name: &str, fact: &TypedFact) -> Result<(), Error> {
    if fact.datum_type == DatumType::F32 && fact.shape.volume() == 1.to_dim() {
        return Ok(());
    }
    Err(Error::op(op, format!("{name} is {fact:?}, not one F32")))
}

fn check_count(op: &'static str, found: usize, wanted: std::ops::RangeInclusive<usize>) -> Result<(), Error> {
    if wanted.contains(&found) {
        return Ok(());
    }
    Err(Error::op(op, format!("it has {found} inputs, not {} to {}", wanted.start(), wanted.end())))
}

/// Runs a program of one op on the fallback.
fn evaluate(
    op: &'static str,
    inputs: &[(Form, &Tensor)],
    outputs: &[Form],
    emit: impl FnOnce(&mut Builder, &[Value]) -> Vec<Value>,
) -> TractResult<TVec<TValue>> {
    let mut builder = Builder::new(op);
    let (mut values, mut tensors) = (Vec::new(), HashMap::new());
    for (index, (form, tensor)) in inputs.iter().enumerate() {
        let tensor = form.import(tensor)?;
        let shape = tensor.dims().iter().map(|extent| Dim::fixed(*extent as u64)).collect();
        let name = format!("in{index}");
        let ty = TensorType { shape, element: tensor.element(), layout: tensor.layout() };
        values.push(builder.input(&name, ty));
        tensors.insert(name, tensor);
    }
    let results = emit(&mut builder, &values);
    let run = || {
        let backend = Backend::new(&Options::default().target("cpu").device(DeviceChoice::None))?;
        backend.plan_module(builder.finish(&results))?.run(&tensors, &Default::default())
    };
    let run = run().map_err(Error::from)?;
    let export = |(value, form): (&Value, &Form)| {
        let tensor = run.value(*value).ok_or_else(|| Error::op(op, "its result was not computed"))?;
        Ok(form.export(tensor, &form.shape(tensor))?.into_tvalue())
    };
    results.iter().zip(outputs).map(export).collect()
}

impl Op for ScaledMm {
    fn name(&self) -> StaticName {
        Self::NAME.into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("{} > {:?}", self.format.name(), self.output)])
    }

    fn validation(&self) -> Validation {
        Validation::Rounding
    }

    op_as_typed_op!();
}

impl EvalOp for ScaledMm {
    op_out_of_plan!();

    fn eval(&self, _context: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        check_count(Self::NAME, inputs.len(), 4..=5)?;
        let forms = [Form::Codes, Form::Scales(self.format), Form::Codes, Form::Scales(self.format)];
        let forms = forms.into_iter().chain([Form::Number]);
        let given: Vec<(Form, &Tensor)> = forms.zip(inputs.iter().map(|input| &**input)).collect();
        evaluate(Self::NAME, &given, &[Form::Number], |builder, values| {
            let sfa = builder.swizzle_scales("", values[1], ScaleLayout::Blocked);
            let sfb = builder.swizzle_scales("", values[3], ScaleLayout::Blocked);
            vec![self.emit(builder, [values[0], sfa, values[2], sfb], values.get(4).copied())]
        })
    }
}

impl TypedOp for ScaledMm {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        check_count(Self::NAME, inputs.len(), 4..=5)?;
        if number_element(self.output).is_none() {
            let message = format!("the result type {:?} is not F32 or F16", self.output);
            return Err(Error::op(Self::NAME, message).into());
        }
        let mut a = check_codes(Self::NAME, "A", self.format, inputs[0], inputs[1])?;
        let b = check_codes(Self::NAME, "B", self.format, inputs[2], inputs[3])?;
        if b.len() != 2 || a.last() != b.last() {
            let message = format!("A is {a:?} and B is {b:?} in elements; B is [N, K] with the K of A");
            return Err(Error::op(Self::NAME, message).into());
        }
        if let Some(alpha) = inputs.get(4) {
            check_scalar(Self::NAME, "alpha", alpha)?;
        }
        if let Some(last) = a.last_mut() {
            *last = b[0].clone();
        }
        Ok(tvec!(self.output.fact(a)))
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        let products = inputs[0].shape.volume() * 2 * &inputs[2].shape[0];
        Ok(tvec!((Cost::FMA(self.output), products)))
    }

    as_op!();
}

impl Op for BlockQuantize {
    fn name(&self) -> StaticName {
        Self::NAME.into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![self.format.name().to_owned()])
    }

    op_as_typed_op!();
}

impl BlockQuantize {
    fn input_count(&self) -> usize {
        1 + usize::from(self.format == Format::Nvfp4)
    }
}

impl EvalOp for BlockQuantize {
    op_out_of_plan!();

    fn eval(&self, _context: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        check_count(Self::NAME, inputs.len(), self.input_count()..=self.input_count())?;
        let given: Vec<(Form, &Tensor)> = inputs.iter().map(|input| (Form::Number, &**input)).collect();
        evaluate(Self::NAME, &given, &[Form::Codes, Form::Scales(self.format)], |builder, values| {
            self.emit(builder, values, ScaleLayout::Linear).to_vec()
        })
    }
}

impl TypedOp for BlockQuantize {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        check_count(Self::NAME, inputs.len(), self.input_count()..=self.input_count())?;
        let (x, block) = (inputs[0], self.format.block() as i64);
        let k = x.shape.last().and_then(|last| last.to_i64().ok());
        let k = k.filter(|k| x.rank() >= 2 && number_element(x.datum_type).is_some() && k % block == 0);
        let Some(k) = k else {
            let message = format!("x is {x:?}; it is F32 or F16, [.., M, K], K a fixed multiple of {block}");
            return Err(Error::op(Self::NAME, message).into());
        };
        if let Some(g) = inputs.get(1) {
            check_scalar(Self::NAME, "g", g)?;
        }
        let with_last = |last: i64| {
            let mut shape = x.shape.to_tvec();
            shape.pop();
            shape.push(last.to_dim());
            DatumType::U8.fact(shape)
        };
        Ok(tvec!(with_last(k / 2), with_last(k / block)))
    }

    as_op!();
}

impl BlockDequantize {
    const NAME: &'static str = "BlockDequantize";
}

impl Op for BlockDequantize {
    fn name(&self) -> StaticName {
        Self::NAME.into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![self.format.name().to_owned()])
    }

    op_as_typed_op!();
}

impl EvalOp for BlockDequantize {
    // Folding would hide the codes from Fourfold.
    not_out_of_plan!();

    fn eval(&self, _context: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        check_count(Self::NAME, inputs.len(), 2..=2)?;
        let given = [(Form::Codes, &*inputs[0]), (Form::Scales(self.format), &*inputs[1])];
        let kind = OpKind::BlockDequantize { block: self.format.block() as u32 };
        evaluate(Self::NAME, &given, &[Form::Number], |builder, values| {
            let ty = TensorType::new(builder.ty(values[0]).shape.clone(), ElementType::F32);
            builder.op(kind, values, &[("", ty)])
        })
    }
}

impl TypedOp for BlockDequantize {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        check_count(Self::NAME, inputs.len(), 2..=2)?;
        let shape = check_codes(Self::NAME, "the matrix", self.format, inputs[0], inputs[1])?;
        Ok(tvec!(DatumType::F32.fact(shape)))
    }

    fn codegen(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let facts = model.node_input_facts(node.id)?;
        let constants: Option<TVec<TValue>> =
            facts.iter().map(|fact| fact.konst.clone().map(IntoTValue::into_tvalue)).collect();
        rule_if_some!(constants = constants);
        let value = self.eval(&EvalContext::out_of_plan(), constants)?.remove(0);
        let mut patch = TypedModelPatch::default();
        let constant = patch.add_const(format!("{}.folded", node.name), value.into_arc_tensor())?;
        patch.shunt_outside(model, node.id.into(), constant)?;
        Ok(Some(patch))
    }

    as_op!();
}
