//! Builds the program of a linear.

use fourfold_executor::{AxisSlice, TensorReference};
use fourfold_ir::ElementType::{BF16, F4E2M1FN, F8E4M3FN, F8E8M0FNU, F16, F32, I32};
use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{
    BinaryKind, BlockFormat, Builder, ConstantValue, Dim, ElementType, Module, OpKind, ReduceKind,
    ScaleLayout, ScaledMmaOptions, TensorType, UnaryKind, Value, verify,
};

use crate::error::ImportError;
use crate::imported::{ImportedProgram, ProgramKind};
use crate::linear::{Activation, Convention, Linear, Scalar, Scales, Stored};
use crate::options::ImportOptions;
use crate::write::word;

/// The largest NVFP4 magnitude with the global scale 1: 6 · 448.
const NVFP4_RANGE: f64 = 2688.0;

/// The types of x and y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activations {
    pub(crate) input: ElementType,
    pub(crate) output: ElementType,
}

/// Builds the program of a linear: `%x` `[M, K]` in, `%y` `[M, N]` out.
///
/// # Errors
/// When the program is not valid: a bug.
pub(crate) fn linear(
    linear: &Linear,
    types: Activations,
    options: &ImportOptions,
) -> Result<ImportedProgram, ImportError> {
    let mut draft = Draft::new(&linear.name, types);
    let m = draft.builder.symbol(&options.m);
    let x = draft.builder.input("x", TensorType::new(vec![m, Dim::fixed(linear.k)], types.input));
    let y = draft.linear(linear, x, "", types.output, "y");
    draft.finish(&linear.name, ProgramKind::Linear, &[y])
}

/// A program in the making, with the tensors of its params.
pub(crate) struct Draft {
    pub(crate) builder: Builder,
    /// The type of x. If it has 16 bits, the inputs of weight-only linears are rounded to it, as the model does.
    input: ElementType,
    tensors: Vec<TensorReference>,
    notes: Vec<String>,
    /// The operands that values were quantized to, which several linears may share.
    quantized: Vec<(Value, Activation, Operand, Option<Value>)>,
    /// The values rounded to the type of x, which several linears may share.
    rounded: Vec<(Value, Value)>,
}

/// A quantized or plain operand of a multiplication.
#[derive(Clone, Copy)]
enum Operand {
    /// Codes and their blocked scales.
    Scaled(Value, Value),
    /// Values of an arithmetic type.
    Plain(Value),
}

impl Draft {
    pub(crate) fn new(name: &str, types: Activations) -> Draft {
        Draft {
            builder: Builder::new(word(name)),
            input: types.input,
            tensors: Vec::new(),
            notes: Vec::new(),
            quantized: Vec::new(),
            rounded: Vec::new(),
        }
    }

    /// Verifies the module.
    pub(crate) fn finish(
        self,
        name: &str,
        kind: ProgramKind,
        outputs: &[Value],
    ) -> Result<ImportedProgram, ImportError> {
        let module: Module = self.builder.finish(outputs);
        // The verifier takes the module and returns it.
        let program = verify(module).map_err(|invalid| {
            let reason = invalid.errors.first().map_or_else(String::new, |error| error.kind.to_string());
            ImportError::InvalidProgram { name: name.to_owned(), reason }
        })?;
        let module = program.module().clone();
        Ok(ImportedProgram {
            name: name.to_owned(),
            kind,
            module,
            tensors: self.tensors,
            data: Vec::new(),
            notes: self.notes,
        })
    }

    /// Adds notes, each once.
    pub(crate) fn note(&mut self, notes: &[String]) {
        let new: Vec<String> = notes.iter().filter(|note| !self.notes.contains(note)).cloned().collect();
        self.notes.extend(new);
    }

    /// Adds the ops of a linear. `prefix` precedes the names of its values; the result is named `result`.
    pub(crate) fn linear(
        &mut self,
        linear: &Linear,
        x: Value,
        prefix: &str,
        output: ElementType,
        result: &str,
    ) -> Value {
        let named = |name: &str| format!("{prefix}{name}");
        self.note(&linear.notes);
        let x = match &linear.input_factor {
            None => x,
            Some(factor) => {
                let factor = self.stored(&named("x.factor"), factor);
                let (x, factor) =
                    (self.as_f32(&named("x.f32"), x), self.as_f32(&named("x.factor.f32"), factor));
                self.builder.binary(&named("x.scaled"), BinaryKind::Mul, x, factor)
            }
        };
        let (a, a_factor) = self.shared_activation(linear, x, &named);
        let (b, b_factor, block) = self.weight(linear, &a, &named);
        let alpha = match (a_factor, b_factor) {
            (Some(left), Some(right)) => {
                Some(self.builder.binary(&named("alpha"), BinaryKind::Mul, left, right))
            }
            (one, other) => one.or(other),
        };
        let bias = linear.bias.as_ref().map(|bias| self.stored(&named("bias"), bias));
        // The last op gives the result its name.
        let converts = output != F32;
        let name_of = |is_last: bool, name: &str| if is_last { result.to_owned() } else { named(name) };
        let is_last = bias.is_none() && !converts;
        let mut last = match (a, b) {
            (a, Operand::Scaled(w, w_scales)) => {
                let options = ScaledMmaOptions { alpha, ..ScaledMmaOptions::default() };
                let (a, a_scales) = match a {
                    Operand::Scaled(codes, scales) => (codes, Some(scales)),
                    Operand::Plain(values) => (values, None),
                };
                let name = name_of(is_last, "product");
                self.builder.scaled_mma(&name, a, a_scales, w, w_scales, block, F32, options)
            }
            (Operand::Plain(a) | Operand::Scaled(a, _), Operand::Plain(b)) => {
                let product = self.builder.mma(&name_of(is_last && alpha.is_none(), "product"), a, b, F32);
                alpha.map_or(product, |alpha| {
                    self.builder.binary(&name_of(is_last, "scaled"), BinaryKind::Mul, product, alpha)
                })
            }
        };
        if let Some(bias) = bias {
            last = self.builder.binary(&name_of(!converts, "biased"), BinaryKind::Add, last, bias);
        }
        if converts { self.builder.convert(result, last, output) } else { last }
    }

    /// Adds the ops of down(f(gate(x)) · up(x)), or of down(f(up(x))) without a gate.
    #[expect(clippy::too_many_arguments, reason = "the three linears and the function are the block")]
    pub(crate) fn feed_forward(
        &mut self,
        x: Value,
        gate: Option<&Linear>,
        up: &Linear,
        function: UnaryKind,
        down: &Linear,
        output: ElementType,
        result: &str,
    ) -> Value {
        let gate = gate.map(|gate| self.linear(gate, x, "gate.", F32, "gate"));
        let up = self.linear(up, x, "up.", F32, "up");
        let hidden = match gate {
            None => self.builder.unary("hidden", function, up),
            Some(gate) => {
                let gated = self.builder.unary("gated", function, gate);
                self.builder.binary("hidden", BinaryKind::Mul, gated, up)
            }
        };
        self.linear(down, hidden, "down.", output, result)
    }

    /// Quantizes x, unless another linear has quantized it in the same way.
    fn shared_activation(
        &mut self,
        linear: &Linear,
        x: Value,
        named: &dyn Fn(&str) -> String,
    ) -> (Operand, Option<Value>) {
        let is_plain = matches!(linear.activation, Activation::Plain);
        let known = self.quantized.iter().find(|(value, activation, ..)| {
            !is_plain && *value == x && activation.equals(&linear.activation)
        });
        if let Some((_, _, operand, factor)) = known {
            return (*operand, *factor);
        }
        let (operand, factor) = self.activation(linear, x, named);
        self.quantized.push((x, linear.activation.clone(), operand, factor));
        (operand, factor)
    }

    /// Adds the ops that quantize x. Returns the operand, and its factor of alpha.
    fn activation(
        &mut self,
        linear: &Linear,
        x: Value,
        named: &dyn Fn(&str) -> String,
    ) -> (Operand, Option<Value>) {
        match &linear.activation {
            Activation::Plain => {
                if weight_only(self.input, linear).is_some() {
                    return (Operand::Plain(self.rounded(&named("x.values"), x)), None);
                }
                let element = self.builder.ty(x).element;
                let element = if holds(element, linear) { element } else { F32 };
                (Operand::Plain(self.converted(&named("x.values"), x, element)), None)
            }
            Activation::Nvfp4(global, formula) => {
                let global = self.scalar(&named("x.global"), global);
                (self.quantized(x, F4E2M1FN, nvfp4(*formula), Some(global), named), Some(global))
            }
            Activation::Nvfp4OfCall(formula) => {
                let x = self.as_f32(&named("x.f32"), x);
                let kind = OpKind::Reduce { kind: ReduceKind::Amax, axes: vec![0, 1], keep_dims: false };
                let scalar = TensorType::new(Vec::new(), F32);
                let amax = self.builder.op(kind, &[x], &[(&named("x.amax"), scalar.clone())])[0];
                let range = OpKind::Constant(ConstantValue::Splat(NVFP4_RANGE));
                let range = self.builder.op(range, &[], &[(&named("x.range"), scalar)])[0];
                let global = self.builder.binary(&named("x.global"), BinaryKind::Div, amax, range);
                (self.quantized(x, F4E2M1FN, nvfp4(*formula), Some(global), named), Some(global))
            }
            Activation::Mx(element, rounding) => {
                (self.quantized(x, *element, OpKind::block_quantize(32, Some(*rounding)), None, named), None)
            }
            Activation::Fp8(scale) => {
                let scale = self.scalar(&named("x.global"), scale);
                let x = self.as_f32(&named("x.f32"), x);
                let scaled = self.builder.binary(&named("x.divided"), BinaryKind::Div, x, scale);
                let codes = self.builder.convert(&named("x.codes"), scaled, F8E4M3FN);
                (Operand::Plain(self.builder.convert(&named("x.values"), codes, BF16)), Some(scale))
            }
        }
    }

    /// x in the type of the model's activations.
    fn rounded(&mut self, name: &str, x: Value) -> Value {
        if let Some((_, rounded)) = self.rounded.iter().find(|(value, _)| *value == x) {
            return *rounded;
        }
        let rounded = self.converted(name, x, self.input);
        self.rounded.push((x, rounded));
        rounded
    }

    /// Adds a block quantization and the swizzle of its scales.
    fn quantized(
        &mut self,
        x: Value,
        element: ElementType,
        kind: OpKind,
        global: Option<Value>,
        named: &dyn Fn(&str) -> String,
    ) -> Operand {
        let (block, scale) = if global.is_some() { (16, F8E4M3FN) } else { (32, F8E8M0FNU) };
        let shape = self.builder.ty(x).shape.clone();
        let mut blocks = shape.clone();
        if let Some(last) = blocks.last_mut() {
            // A K that is no multiple of the block is refused before.
            *last = last.divided_by(block).unwrap_or_else(|| last.clone());
        }
        let operands: Vec<Value> = std::iter::once(x).chain(global).collect();
        let results = self.builder.op(
            kind,
            &operands,
            &[
                (&named("x.codes"), TensorType::new(shape, element)),
                (&named("x.scale"), TensorType::scales(blocks, scale, ScaleLayout::Linear)),
            ],
        );
        let blocked = self.builder.swizzle_scales(&named("x.blocked"), results[1], ScaleLayout::Blocked);
        Operand::Scaled(results[0], blocked)
    }

    /// Adds the weight in the form that the activation needs. Returns the operand, its factor of alpha, and the elements
    /// per scale.
    fn weight(
        &mut self,
        linear: &Linear,
        a: &Operand,
        named: &dyn Fn(&str) -> String,
    ) -> (Operand, Option<Value>, u32) {
        let weight = &linear.weight;
        let shape = vec![Dim::fixed(linear.n), Dim::fixed(linear.k)];
        let codes = self.param(&named("w"), TensorType::new(shape.clone(), weight.element), &weight.codes);
        let (scales, block, layout, global) = match &weight.scales {
            Scales::Tensor(scale) => {
                let element = self.element_of(a);
                let values = self.converted(&named("w.values"), codes, element);
                return (Operand::Plain(values), Some(self.scalar(&named("w.global"), scale)), 0);
            }
            Scales::Block { reference, element, block, layout, global } => {
                let blocks = vec![shape[0].clone(), Dim::fixed(linear.k / u64::from(*block))];
                let ty = TensorType::scales(blocks, *element, *layout);
                (self.param(&named("w.scale"), ty, reference), *block, *layout, global)
            }
        };
        let global = global.as_ref().map(|global| self.scalar(&named("w.global"), global));
        let as_it_is = match a {
            Operand::Scaled(..) => Some(block),
            Operand::Plain(a) => weight_only(self.builder.ty(*a).element, linear),
        };
        if let Some(wanted) = as_it_is {
            let scales = if wanted == block {
                scales
            } else {
                self.repeated(scales, block / wanted, &named("w.scales"))
            };
            let blocked = match layout {
                ScaleLayout::Blocked => scales,
                ScaleLayout::Linear => {
                    self.builder.swizzle_scales(&named("w.blocked"), scales, ScaleLayout::Blocked)
                }
            };
            return (Operand::Scaled(codes, blocked), global, wanted);
        }
        // The products of codes and scales are exact in this type; the global scale is a factor of the result.
        let ty = TensorType::new(shape, self.element_of(a));
        let kind = OpKind::BlockDequantize { block };
        let values = self.builder.op(kind, &[codes, scales], &[(&named("w.values"), ty)])[0];
        (Operand::Plain(values), global, block)
    }

    /// Repeats each scale of a row, so that fewer elements share one.
    fn repeated(&mut self, scales: Value, times: u32, name: &str) -> Value {
        let ty = self.builder.ty(scales).clone();
        let (Some(last), axis) = (ty.shape.last().and_then(Dim::as_fixed), ty.rank() as u32 - 1) else {
            return scales;
        };
        let count = last * u64::from(times);
        let positions = (0..count).map(|at| (at / u64::from(times)) as f64).collect();
        let indices = TensorType::new(vec![Dim::fixed(count)], I32);
        let kind = OpKind::Constant(ConstantValue::Dense(positions));
        let indices = self.builder.op(kind, &[], &[(&format!("{name}.indices"), indices)])[0];
        let mut shape = ty.shape.clone();
        shape[axis as usize] = Dim::fixed(count);
        let ty = TensorType { shape, ..ty };
        self.builder.op(OpKind::Gather { axis }, &[scales, indices], &[(name, ty)])[0]
    }

    fn element_of(&self, operand: &Operand) -> ElementType {
        match operand {
            Operand::Plain(value) | Operand::Scaled(value, _) => self.builder.ty(*value).element,
        }
    }

    fn param(&mut self, name: &str, ty: TensorType, reference: &TensorReference) -> Value {
        self.tensors.push(TensorReference { input: name.to_owned(), ..reference.clone() });
        self.builder.param(name, ty)
    }

    pub(crate) fn stored(&mut self, name: &str, stored: &Stored) -> Value {
        let shape = stored.shape.iter().map(|extent| Dim::fixed(*extent)).collect();
        self.param(name, TensorType::new(shape, stored.element), &stored.reference)
    }

    /// A param whose indices along the first axis are tensors of their own. Slices that are all of one stored tensor are
    /// read as one.
    pub(crate) fn stacked<'a>(
        &mut self,
        name: &str,
        ty: TensorType,
        references: impl Iterator<Item = &'a TensorReference> + Clone,
    ) -> Value {
        let whole = references.clone().next().map(|first| first.clone().sliced(Vec::new()));
        let is_index = |(index, reference): (usize, &TensorReference)| {
            let slice = vec![AxisSlice::Index(index as u64)];
            whole.as_ref().is_some_and(|whole| whole.clone().sliced(slice) == *reference)
        };
        match &whole {
            Some(whole) if references.clone().enumerate().all(is_index) => self.param(name, ty, whole),
            _ => {
                for (index, reference) in references.enumerate() {
                    let reference = TensorReference { input: name.to_owned(), ..reference.clone() };
                    self.tensors.push(reference.as_part(index as u64));
                }
                self.builder.param(name, ty)
            }
        }
    }

    /// Stored scales as f32 factors: one of rank 0 or 1 if all are equal. `None` without scales.
    pub(crate) fn scalars(&mut self, name: &str, scalars: &[&Scalar]) -> Option<Value> {
        let (first, others) = scalars.split_first()?;
        if others.iter().all(|other| first.equals(other)) {
            return Some(self.scalar(name, first));
        }
        let references = scalars.iter().map(|scalar| &scalar.stored.reference);
        let ty = TensorType::new(vec![Dim::fixed(scalars.len() as u64)], first.stored.element);
        let is_factor = first.convention == Convention::Multiply && first.stored.element == F32;
        let stored = if is_factor { name.to_owned() } else { format!("{name}.stored") };
        let stored = self.stacked(&stored, ty, references);
        let numbers = self.as_f32(&format!("{name}.f32"), stored);
        Some(match first.convention {
            Convention::Multiply => numbers,
            Convention::Divide => self.builder.unary(name, UnaryKind::Reciprocal, numbers),
        })
    }

    /// A stored scale as an f32 factor.
    fn scalar(&mut self, name: &str, scalar: &Scalar) -> Value {
        match scalar.convention {
            Convention::Multiply if scalar.stored.element == F32 => self.stored(name, &scalar.stored),
            Convention::Multiply => {
                let stored = self.stored(&format!("{name}.stored"), &scalar.stored);
                self.builder.convert(name, stored, F32)
            }
            Convention::Divide => {
                let stored = self.stored(&format!("{name}.divisor"), &scalar.stored);
                let divisor = self.as_f32(&format!("{name}.divisor.f32"), stored);
                self.builder.unary(name, UnaryKind::Reciprocal, divisor)
            }
        }
    }

    fn as_f32(&mut self, name: &str, value: Value) -> Value {
        self.converted(name, value, F32)
    }

    pub(crate) fn converted(&mut self, name: &str, value: Value, element: ElementType) -> Value {
        if self.builder.ty(value).element == element {
            return value;
        }
        self.builder.convert(name, value, element)
    }
}

/// The quantization to NVFP4 by a formula.
pub(crate) fn nvfp4(formula: Nvfp4Formula) -> OpKind {
    OpKind::BlockQuantize { block: 16, scale_rounding: None, formula }
}

/// The elements per scale of the weight as B of a weight-only product with this type of A; `None` if there is none. FP4
/// with an e4m3 scale per 32 elements is NVFP4 with every scale twice.
fn weight_only(a: ElementType, linear: &Linear) -> Option<u32> {
    let Scales::Block { element: scale, block, layout, .. } = linear.weight.scales else { return None };
    let format = |block| BlockFormat { a, b: linear.weight.element, scale, block };
    let is_standard = |block: u32| a.is_half() && format(block).is_standard();
    if is_standard(block) {
        return Some(block);
    }
    (layout == ScaleLayout::Linear && block == 32 && is_standard(16)).then_some(16)
}

/// Returns true if an activation type represents every product of a code and its scale.
fn holds(element: ElementType, linear: &Linear) -> bool {
    let scale = match &linear.weight.scales {
        Scales::Block { element, .. } => Some(*element),
        Scales::Tensor(_) => None,
    };
    match (element, scale) {
        (F32, _) => true,
        // E2M1 times E4M3 has 6 significant bits between 2^-10 and 2688.
        (BF16 | F16, Some(F8E4M3FN) | None) => true,
        // Multiples of 2^-128 below bf16's overflow, which is that of f32.
        (BF16, Some(F8E8M0FNU)) => linear.weight.element == F4E2M1FN,
        _ => false,
    }
}
