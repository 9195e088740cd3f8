//! Builds the program of a mixture of experts.

use fourfold_ir::ElementType::{F4E2M1FN, F8E4M3FN, F8E8M0FNU, F32, I32};
use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, GroupedScaledMma, OpKind, Predicate, ReduceKind,
    ScaleLayout, SliceRange, TensorType, UnaryKind, Value,
};

use super::stack::Stack;
use super::{Experts, Gating, Inner, Router, Routing, STEEPNESS};
use crate::error::ImportError;
use crate::imported::{ImportedProgram, ProgramKind};
use crate::linear::{Activation, Scales};
use crate::options::ImportOptions;
use crate::program::{Activations, Draft, nvfp4};

/// Builds the program of a mixture of experts: `%x` `[M, H]` in, `%y` `[M, H]` out.
///
/// # Errors
/// When the program is not valid: a bug.
pub(crate) fn program(
    experts: &Experts<'_>,
    types: Activations,
    options: &ImportOptions,
) -> Result<ImportedProgram, ImportError> {
    let mut draft = Draft::new(&experts.name, types);
    let m = draft.builder.symbol(&options.m);
    let hidden = Dim::fixed(experts.hidden());
    let x = draft.builder.input("x", TensorType::new(vec![m.clone(), hidden.clone()], types.input));
    // M times the experts of each row: a symbol times a constant fits an extent.
    let rows = m.times(&Dim::fixed(experts.top)).unwrap_or_else(|| m.clone());
    let mut body =
        Body { draft, experts, input: types.input, m, rows, quantized: Vec::new(), alphas: Vec::new() };
    let (weights, ids) = body.routed(x);
    let sorted = body.sorted(x, ids);
    let gated = body.gated(&sorted);
    let out = body.product("down", gated, &experts.down, &sorted);
    let flat = body.op("weights.flat", OpKind::Reshape, &[weights], vec![body.rows.clone()], F32);
    let weights = vec![body.rows.clone()];
    let weights =
        body.op("weights.sorted", OpKind::Gather { axis: 0 }, &[flat, sorted.positions], weights, F32);
    let column = vec![body.rows.clone(), Dim::fixed(1)];
    let column = body.op("weights.column", OpKind::Reshape, &[weights], column, F32);
    let weighted = body.binary("weighted", BinaryKind::Mul, out, column);
    let y = vec![body.m.clone(), hidden];
    let y = body.op("y", OpKind::ScatterAdd, &[weighted, sorted.tokens], y, types.output);
    body.draft
        .note(&["Scores of experts are f32. If a model rounds them, another expert may win a close choice."
            .to_owned()]);
    body.draft.finish(&experts.name, ProgramKind::Moe, &[y])
}

/// The rows in the order of their experts.
struct Sorted {
    /// The rows of x.
    rows: Value,
    /// The place of each row in the list of all choices.
    positions: Value,
    /// The row of x that each row is.
    tokens: Value,
    /// The end of each expert's rows.
    ends: Value,
    /// The expert of each row.
    experts: Value,
}

/// Quantized rows: codes, scales, and the factor of each expert.
type Quantized = (Value, Option<Value>, Option<Value>);

/// A program in the making.
struct Body<'a, 'b> {
    draft: Draft,
    experts: &'a Experts<'b>,
    /// The type of x.
    input: ElementType,
    m: Dim,
    /// The number of choices: M times the experts of each row.
    rows: Dim,
    /// The values that were quantized for a projection, which others may share.
    quantized: Vec<(Value, &'a Stack<'b>, Quantized)>,
    /// The alphas of projections, each with the factor of x.
    alphas: Vec<(Option<Value>, &'a Stack<'b>, Option<Value>)>,
}

impl<'a, 'b> Body<'a, 'b> {
    fn op(
        &mut self,
        name: &str,
        kind: OpKind,
        operands: &[Value],
        shape: Vec<Dim>,
        element: ElementType,
    ) -> Value {
        self.draft.builder.op(kind, operands, &[(name, TensorType::new(shape, element))])[0]
    }

    fn binary(&mut self, name: &str, kind: BinaryKind, left: Value, right: Value) -> Value {
        self.draft.builder.binary(name, kind, left, right)
    }

    fn constant(&mut self, name: &str, value: f64) -> Value {
        self.op(name, OpKind::Constant(ConstantValue::Splat(value)), &[], Vec::new(), F32)
    }

    fn shape(&self, value: Value) -> Vec<Dim> {
        self.draft.builder.ty(value).shape.clone()
    }

    /// The weights and the experts of each row.
    fn routed(&mut self, x: Value) -> (Value, Value) {
        let scores = self.scores(x);
        let all = vec![self.m.clone(), Dim::fixed(self.experts.count)];
        let chosen = vec![self.m.clone(), Dim::fixed(self.experts.top)];
        let top = OpKind::TopK { k: self.experts.top as u32 };
        let types = |best: &'static str| {
            let [values, ids] = [F32, I32].map(|element| TensorType::new(chosen.clone(), element));
            [(best, values), ("experts", ids)]
        };
        match self.experts.routing {
            Routing::Chosen => {
                let best = self.draft.builder.op(top, &[scores], &types("best"));
                let weights = self.op("weights", OpKind::Softmax { axis: 1 }, &[best[0]], chosen, F32);
                (weights, best[1])
            }
            Routing::Softmax { is_normalized } => {
                let all = self.op("probabilities", OpKind::Softmax { axis: 1 }, &[scores], all, F32);
                let best = self.draft.builder.op(top, &[all], &types("best"));
                if !is_normalized {
                    return (best[0], best[1]);
                }
                let kind = OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![1], keep_dims: true };
                let sum = self.op("sum", kind, &[best[0]], vec![self.m.clone(), Dim::fixed(1)], F32);
                (self.binary("weights", BinaryKind::Div, best[0], sum), best[1])
            }
        }
    }

    /// The scores of all experts for each row.
    fn scores(&mut self, x: Value) -> Value {
        let (weight, bias) = match &self.experts.router {
            Router::Quantized(linear) => return self.draft.linear(linear, x, "router.", F32, "scores"),
            Router::Plain { weight, bias } => (weight, bias),
        };
        let mut weight = self.draft.stored("router", weight);
        let mut x = x;
        if self.draft.builder.ty(weight).element != self.input {
            weight = self.draft.converted("router.f32", weight, F32);
            x = self.draft.converted("x.f32", x, F32);
        }
        let name = if bias.is_some() { "logits" } else { "scores" };
        let logits = self.draft.builder.mma(name, x, weight, F32);
        let Some(bias) = bias else { return logits };
        let bias = self.draft.stored("router.bias", bias);
        self.binary("scores", BinaryKind::Add, logits, bias)
    }

    /// The rows of x in the order of their experts.
    fn sorted(&mut self, x: Value, ids: Value) -> Sorted {
        let indices = TensorType::new(vec![self.rows.clone()], I32);
        let ends = TensorType::new(vec![Dim::fixed(self.experts.count)], I32);
        let names = [("positions", indices.clone()), ("tokens", indices), ("ends", ends)];
        let kind = OpKind::GroupRows { groups: self.experts.count as u32 };
        let groups = self.draft.builder.op(kind, &[ids], &names);
        let (positions, tokens, ends) = (groups[0], groups[1], groups[2]);
        let all = vec![self.rows.clone()];
        let flat = self.op("experts.flat", OpKind::Reshape, &[ids], all.clone(), I32);
        let experts = self.op("experts.sorted", OpKind::Gather { axis: 0 }, &[flat, positions], all, I32);
        let shape = vec![self.rows.clone(), Dim::fixed(self.experts.hidden())];
        let rows = self.op("rows", OpKind::Gather { axis: 0 }, &[x, tokens], shape, self.input);
        Sorted { rows, positions, tokens, ends, experts }
    }

    /// The function of gate and up.
    fn gated(&mut self, sorted: &Sorted) -> Value {
        let experts = self.experts;
        let [gate, up] = match &experts.inner {
            Inner::Separate { gate, up } => [("gate", gate), ("up", up)]
                .map(|(name, stack)| self.product(name, sorted.rows, stack, sorted)),
            Inner::Interleaved(both) => {
                let n = both.first().n;
                let both = self.product("gate_up", sorted.rows, both, sorted);
                [("gate", 0), ("up", 1)].map(|(name, start)| {
                    let ranges = vec![SliceRange { axis: 1, start, end: n, step: 2 }];
                    let shape = vec![self.rows.clone(), Dim::fixed(n / 2)];
                    self.op(name, OpKind::Slice { ranges }, &[both], shape, F32)
                })
            }
        };
        match experts.gating {
            Gating::Product(function) => {
                let active = self.draft.builder.unary("active", function, gate);
                self.binary("hidden", BinaryKind::Mul, active, up)
            }
            Gating::Clamped { limit } => {
                let shape = self.shape(gate);
                let clamp = |min| OpKind::Clamp { min, max: limit };
                let low = self.op("gate.low", clamp(f64::NEG_INFINITY), &[gate], shape.clone(), F32);
                let bounded = self.op("up.bounded", clamp(-limit), &[up], shape, F32);
                let steepness = self.constant("steepness", STEEPNESS);
                let steep = self.binary("gate.steep", BinaryKind::Mul, low, steepness);
                let open = self.draft.builder.unary("gate.open", UnaryKind::Sigmoid, steep);
                let active = self.binary("active", BinaryKind::Mul, low, open);
                let one = self.constant("one", 1.0);
                let shifted = self.binary("up.shifted", BinaryKind::Add, bounded, one);
                self.binary("hidden", BinaryKind::Mul, active, shifted)
            }
        }
    }

    /// The product of rows with the matrices of their experts, and the bias.
    fn product(&mut self, name: &str, rows: Value, stack: &'a Stack<'b>, sorted: &Sorted) -> Value {
        let first = stack.first();
        self.draft.note(&first.notes);
        let (a, a_scales, a_factor) = self.shared(name, rows, stack, sorted);
        let Scales::Block { element, block, layout, .. } = first.weight.scales else {
            // `Stack::new` refuses others.
            return rows;
        };
        let count = Dim::fixed(self.experts.count);
        let matrix = |columns: u64| vec![count.clone(), Dim::fixed(first.n), Dim::fixed(columns)];
        let codes = stack.experts().iter().map(|expert| &expert.weight.codes);
        let ty = TensorType::new(matrix(first.k), first.weight.element);
        let w = self.draft.stacked(&format!("{name}.w"), ty, codes);
        let scales = stack.experts().iter().filter_map(|expert| match &expert.weight.scales {
            Scales::Block { reference, .. } => Some(reference),
            Scales::Tensor(_) => None,
        });
        let ty = TensorType::scales(matrix(first.k / u64::from(block)), element, layout);
        let mut w_scales = self.draft.stacked(&format!("{name}.w.scale"), ty, scales);
        if layout == ScaleLayout::Linear {
            let blocked = format!("{name}.w.blocked");
            w_scales = self.draft.builder.swizzle_scales(&blocked, w_scales, ScaleLayout::Blocked);
        }
        let alpha = self.alpha(name, a_factor, stack);
        let kind = GroupedScaledMma {
            block,
            weight_only: a_scales.is_none(),
            alpha: alpha.is_some(),
            masked: false,
            sfa_ends: false,
        };
        let operands: Vec<Value> =
            std::iter::once(a).chain(a_scales).chain([w, w_scales, sorted.ends]).chain(alpha).collect();
        let shape = vec![self.rows.clone(), Dim::fixed(first.n)];
        let product = format!("{name}.product");
        let product = self.op(&product, OpKind::GroupedScaledMma(kind), &operands, shape.clone(), F32);
        let Some(bias) = &first.bias else { return product };
        let biases = stack.experts().iter().filter_map(|expert| Some(&expert.bias.as_ref()?.reference));
        let ty = TensorType::new(vec![count, Dim::fixed(first.n)], bias.element);
        let biases = self.draft.stacked(&format!("{name}.bias"), ty, biases);
        let gather = OpKind::Gather { axis: 0 };
        let rows =
            self.op(&format!("{name}.bias.rows"), gather, &[biases, sorted.experts], shape, bias.element);
        self.binary(&format!("{name}.biased"), BinaryKind::Add, product, rows)
    }

    /// The factor of the products of each expert. Projections with the same factors share the value: gate and up then
    /// become one product.
    fn alpha(&mut self, name: &str, of_x: Option<Value>, stack: &'a Stack<'b>) -> Option<Value> {
        let is_same = |(factor, other, _): &&(Option<Value>, &Stack<'_>, Option<Value>)| {
            *factor == of_x && stack.has_weight_scales_of(other)
        };
        if let Some((.., alpha)) = self.alphas.iter().find(is_same) {
            return *alpha;
        }
        let of_weights = self.draft.scalars(&format!("{name}.w.global"), &stack.weight_scales());
        let alpha = match (of_x, of_weights) {
            (Some(left), Some(right)) => {
                Some(self.binary(&format!("{name}.alpha"), BinaryKind::Mul, left, right))
            }
            (one, other) => one.or(other),
        };
        self.alphas.push((of_x, stack, alpha));
        alpha
    }

    /// Quantizes rows, unless another projection has quantized them in the same way.
    fn shared(&mut self, name: &str, rows: Value, stack: &'a Stack<'b>, sorted: &Sorted) -> Quantized {
        let is_same = |(value, other, _): &&(Value, &Stack<'_>, Quantized)| {
            *value == rows && stack.has_activations_of(other)
        };
        if let Some((.., quantized)) = self.quantized.iter().find(is_same) {
            return *quantized;
        }
        let quantized = self.quantized(name, rows, stack, sorted);
        self.quantized.push((rows, stack, quantized));
        quantized
    }

    fn quantized(&mut self, name: &str, rows: Value, stack: &Stack<'_>, sorted: &Sorted) -> Quantized {
        let named = |part: &str| format!("{name}.x.{part}");
        let (kind, element, global) = match &stack.first().activation {
            Activation::Nvfp4(_, formula) => {
                let global = self.draft.scalars(&named("global"), &stack.activation_scales());
                if let Some(globals) = global.filter(|_| !stack.shares_activation()) {
                    let (codes, scales) = self.quantized_by_expert(&named, rows, globals, sorted);
                    return (codes, Some(scales), Some(globals));
                }
                (nvfp4(*formula), F4E2M1FN, global)
            }
            Activation::Mx(element, rounding) => {
                (OpKind::block_quantize(32, Some(*rounding)), *element, None)
            }
            // `Stack::new` refuses the others.
            _ => return (self.draft.converted(&named("values"), rows, self.input), None, None),
        };
        let (block, scale) = if global.is_some() { (16, F8E4M3FN) } else { (32, F8E8M0FNU) };
        let (shape, blocks) = self.blocks(rows, block);
        let results = [
            (&*named("codes"), TensorType::new(shape, element)),
            (&*named("scale"), TensorType::scales(blocks, scale, ScaleLayout::Linear)),
        ];
        let operands: Vec<Value> = std::iter::once(rows).chain(global).collect();
        let results = self.draft.builder.op(kind, &operands, &results);
        (results[0], Some(results[1]), global)
    }

    /// The shape of rows, and that of their blocks.
    fn blocks(&self, rows: Value, block: u64) -> (Vec<Dim>, Vec<Dim>) {
        let shape = self.shape(rows);
        let mut blocks = shape.clone();
        if let Some(last) = blocks.last_mut() {
            // A K that is no multiple of the block is refused before.
            *last = last.divided_by(block).unwrap_or_else(|| last.clone());
        }
        (shape, blocks)
    }

    /// Quantizes rows to NVFP4, each with the global scale of its expert: the formula of `block_quantize`, op by op,
    /// since that op has one global scale.
    fn quantized_by_expert(
        &mut self,
        named: &dyn Fn(&str) -> String,
        rows: Value,
        globals: Value,
        sorted: &Sorted,
    ) -> (Value, Value) {
        let (shape, blocks) = self.blocks(rows, 16);
        let parts = [blocks.clone(), vec![Dim::fixed(16)]].concat();
        let one_each = [blocks.clone(), vec![Dim::fixed(1)]].concat();
        let column = vec![self.rows.clone(), Dim::fixed(1)];
        let gather = OpKind::Gather { axis: 0 };
        let of_rows = vec![self.rows.clone()];
        let of_rows = self.op(&named("global.rows"), gather, &[globals, sorted.experts], of_rows, F32);
        let global = self.op(&named("global.column"), OpKind::Reshape, &[of_rows], column, F32);
        let values = self.draft.converted(&named("f32"), rows, F32);
        let values = self.op(&named("parts"), OpKind::Reshape, &[values], parts.clone(), F32);
        let amax = OpKind::Reduce { kind: ReduceKind::Amax, axes: vec![2], keep_dims: false };
        let amax = self.op(&named("amax"), amax, &[values], blocks.clone(), F32);
        let largest = self.constant(&named("largest"), 6.0);
        let scale = self.binary(&named("scale.plain"), BinaryKind::Div, amax, largest);
        let scale = self.binary(&named("scale.divided"), BinaryKind::Div, scale, global);
        let scale = self.draft.builder.convert(&named("scale.codes"), scale, F8E4M3FN);
        let number = self.draft.builder.convert(&named("scale.f32"), scale, F32);
        let step = self.binary(&named("step"), BinaryKind::Mul, number, global);
        let step = self.op(&named("step.column"), OpKind::Reshape, &[step], one_each.clone(), F32);
        let quotient = self.binary(&named("quotient"), BinaryKind::Div, values, step);
        let zero = self.constant(&named("zero"), 0.0);
        let is_zero = OpKind::Compare(Predicate::Eq);
        let is_zero = self.op(&named("is_zero"), is_zero, &[step, zero], one_each, ElementType::I1);
        let guarded = self.op(&named("guarded"), OpKind::Select, &[is_zero, zero, quotient], parts, F32);
        let guarded = self.op(&named("guarded.rows"), OpKind::Reshape, &[guarded], shape, F32);
        let codes = self.draft.builder.convert(&named("codes"), guarded, F4E2M1FN);
        (codes, self.draft.builder.swizzle_scales(&named("scale"), scale, ScaleLayout::Linear))
    }
}
