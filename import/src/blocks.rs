//! Whole blocks of known architectures: BERT-like encoders, Llama, Mistral, Qwen2 and Qwen3.
//!
//! A block takes `%x` `[M, H]`, the M positions of one sequence, and `%mask` `[M, M]`, which is added to the scores of
//! attention. All but BERT-like encoders also take `%cos` and `%sin` `[M, D]`, the rotary embedding of each position.
//! Between the quantizations, everything is f32.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, ReduceKind, SliceRange, TensorType, UnaryKind, Value,
};

use crate::error::ImportError;
use crate::imported::{ImportedProgram, ProgramKind};
use crate::linear::{Linear, Stored};
use crate::options::ImportOptions;
use crate::program::{Activations, Draft};

const F32: ElementType = ElementType::F32;

/// A block of a known architecture.
pub(crate) struct Block<'a> {
    /// The path of the layer.
    pub(crate) name: String,
    /// q, k, v and the output of attention.
    pub(crate) attention: [&'a Linear; 4],
    pub(crate) heads: u64,
    /// The heads of k and v, which divide those of q.
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) gate: Option<&'a Linear>,
    pub(crate) up: &'a Linear,
    pub(crate) down: &'a Linear,
    pub(crate) function: UnaryKind,
    pub(crate) eps: f64,
    pub(crate) norms: Norms,
    /// The paths of the norms.
    pub(crate) norm_modules: Vec<String>,
    /// True if the model quantizes the key-value cache, which the program does not have.
    pub(crate) quantizes_cache: bool,
}

/// The norms of a block.
pub(crate) enum Norms {
    /// Layer norms, weight and bias, after attention and after the feed-forward block.
    After([[Stored; 2]; 2]),
    /// Root-mean-square norms before attention and before the feed-forward block; those of q and k per head.
    Before { norms: [Stored; 2], heads: Option<[Stored; 2]> },
}

impl<'a> Block<'a> {
    /// The linears: q, k, v, o, then those of the feed-forward block.
    pub(crate) fn linears(&self) -> Vec<&'a Linear> {
        self.attention.into_iter().chain(self.gate).chain([self.up, self.down]).collect()
    }

    /// Returns true if the extents of the linears agree with the configuration.
    pub(crate) fn fits(&self, hidden: u64) -> bool {
        let [q, k, v, o] = self.attention;
        let is_sized = |linear: &Linear, heads: u64| heads.checked_mul(self.head_dim) == Some(linear.n);
        let is_rotated = matches!(self.norms, Norms::Before { .. });
        [q, k, v, self.up].iter().all(|linear| linear.k == hidden)
            && is_sized(q, self.heads)
            && is_sized(k, self.kv_heads)
            && is_sized(v, self.kv_heads)
            && self.heads.is_multiple_of(self.kv_heads)
            && (!is_rotated || self.head_dim.is_multiple_of(2))
            && (o.k, o.n) == (q.n, hidden)
            && self.gate.is_none_or(|gate| (gate.n, gate.k) == (self.up.n, hidden))
            && (self.down.k, self.down.n) == (self.up.n, hidden)
    }
}

/// Builds the program of a block.
///
/// # Errors
/// When the program is not valid.
pub(crate) fn program(
    block: &Block<'_>,
    types: Activations,
    options: &ImportOptions,
) -> Result<ImportedProgram, ImportError> {
    let mut draft = Draft::new(&block.name, types);
    let m = draft.builder.symbol(&options.m);
    let hidden = block.attention[0].k;
    let ty = TensorType::new(vec![m.clone(), Dim::fixed(hidden)], types.input);
    let x = draft.builder.input("x", ty);
    let mask = draft.builder.input("mask", TensorType::new(vec![m.clone(), m.clone()], F32));
    let x = draft.converted("x.f32", x, F32);
    let mut body = Body { draft, block, m, mask };
    let y = match &block.norms {
        Norms::After([first, second]) => {
            let attended = body.attention(x, None, None);
            let residual = body.binary("attention.residual", BinaryKind::Add, attended, x);
            let x = body.layer_norm("attention.normed", residual, first);
            let fed = body.feed_forward(x);
            let residual = body.binary("mlp.residual", BinaryKind::Add, fed, x);
            body.layer_norm("mlp.normed", residual, second)
        }
        Norms::Before { norms: [first, second], heads } => {
            let rotary = ["cos", "sin"].map(|name| {
                let shape = vec![body.m.clone(), Dim::fixed(block.head_dim)];
                body.draft.builder.input(name, TensorType::new(shape, F32))
            });
            let normed = body.rms_norm("attention.normed", x, first);
            let attended = body.attention(normed, heads.as_ref(), Some(rotary));
            let x = body.binary("attention.residual", BinaryKind::Add, x, attended);
            let normed = body.rms_norm("mlp.normed", x, second);
            let fed = body.feed_forward(normed);
            body.binary("mlp.residual", BinaryKind::Add, x, fed)
        }
    };
    let mut draft = body.draft;
    // A convert to f32 names the result, too.
    let y = draft.builder.convert("y", y, types.output);
    draft.note(&["%mask is added to the scores of attention: 0 to attend, -inf not to.".to_owned()]);
    if block.quantizes_cache {
        draft.note(&["The model quantizes its key-value cache; this program does not.".to_owned()]);
    }
    draft.finish(&block.name, ProgramKind::Block, &[y])
}

/// The program of a block in the making.
struct Body<'a, 'b> {
    draft: Draft,
    block: &'a Block<'b>,
    m: Dim,
    mask: Value,
}

impl Body<'_, '_> {
    fn op(&mut self, name: &str, kind: OpKind, operands: &[Value], shape: Vec<Dim>) -> Value {
        self.draft.builder.op(kind, operands, &[(name, TensorType::new(shape, F32))])[0]
    }

    fn binary(&mut self, name: &str, kind: BinaryKind, left: Value, right: Value) -> Value {
        self.draft.builder.binary(name, kind, left, right)
    }

    fn shape(&self, value: Value) -> Vec<Dim> {
        self.draft.builder.ty(value).shape.clone()
    }

    fn scalar(&mut self, name: &str, value: f64) -> Value {
        self.op(name, OpKind::Constant(ConstantValue::Splat(value)), &[], Vec::new())
    }

    fn stored(&mut self, name: &str, stored: &Stored) -> Value {
        let value = self.draft.stored(name, stored);
        self.draft.converted(&format!("{name}.f32"), value, F32)
    }

    fn layer_norm(&mut self, name: &str, x: Value, [weight, bias]: &[Stored; 2]) -> Value {
        let weight = self.stored(&format!("{name}.weight"), weight);
        let bias = self.stored(&format!("{name}.bias"), bias);
        let (kind, shape) = (OpKind::LayerNorm { eps: self.block.eps }, self.shape(x));
        self.op(name, kind, &[x, weight, bias], shape)
    }

    /// x / sqrt(mean(x²) + eps) · weight over the last axis.
    fn rms_norm(&mut self, name: &str, x: Value, weight: &Stored) -> Value {
        let weight = self.stored(&format!("{name}.weight"), weight);
        let square = self.binary(&format!("{name}.square"), BinaryKind::Mul, x, x);
        let mut shape = self.shape(x);
        let axis = shape.len() - 1;
        shape[axis] = Dim::fixed(1);
        let kind = OpKind::Reduce { kind: ReduceKind::Mean, axes: vec![axis as u32], keep_dims: true };
        let mean = self.op(&format!("{name}.mean"), kind, &[square], shape);
        let eps = self.scalar(&format!("{name}.eps"), self.block.eps);
        let shifted = self.binary(&format!("{name}.shifted"), BinaryKind::Add, mean, eps);
        let factor = self.draft.builder.unary(&format!("{name}.factor"), UnaryKind::Rsqrt, shifted);
        let scaled = self.binary(&format!("{name}.scaled"), BinaryKind::Mul, x, factor);
        self.binary(name, BinaryKind::Mul, scaled, weight)
    }

    /// `[M, heads · D]` to `[heads, M, D]`, or `[heads, D, M]` for the transposed v.
    fn by_head(&mut self, name: &str, x: Value, heads: u64, permutation: [u32; 3]) -> Value {
        let shape = [self.m.clone(), Dim::fixed(heads), Dim::fixed(self.block.head_dim)];
        let split = self.op(&format!("{name}.split"), OpKind::Reshape, &[x], shape.to_vec());
        let permuted = permutation.iter().map(|axis| shape[*axis as usize].clone()).collect();
        let kind = OpKind::Transpose { permutation: permutation.to_vec() };
        self.op(&format!("{name}.heads"), kind, &[split], permuted)
    }

    /// Repeats each head of k or v for the heads of q that share it.
    fn repeated(&mut self, name: &str, x: Value) -> Value {
        let (kv_heads, heads) = (self.block.kv_heads, self.block.heads);
        if kv_heads == heads {
            return x;
        }
        let [_, rest @ ..] = &self.shape(x)[..] else { return x };
        let shape = |first: &[u64]| -> Vec<Dim> {
            first.iter().map(|extent| Dim::fixed(*extent)).chain(rest.iter().cloned()).collect()
        };
        let (apart, wide, joined) =
            (shape(&[kv_heads, 1]), shape(&[kv_heads, heads / kv_heads]), shape(&[heads]));
        let apart = self.op(&format!("{name}.apart"), OpKind::Reshape, &[x], apart);
        let wide = self.op(&format!("{name}.wide"), OpKind::Broadcast, &[apart], wide);
        self.op(&format!("{name}.repeated"), OpKind::Reshape, &[wide], joined)
    }

    /// x · cos + rotate(x) · sin, where rotate exchanges the halves of a head and negates the first.
    fn rotated(&mut self, name: &str, x: Value, [cos, sin]: [Value; 2]) -> Value {
        let (shape, d) = (self.shape(x), self.block.head_dim);
        let mut half = shape.clone();
        half[2] = Dim::fixed(d / 2);
        let part = |start: u64| OpKind::Slice {
            ranges: vec![SliceRange { axis: 2, start, end: start + d / 2, step: 1 }],
        };
        let first = self.op(&format!("{name}.first"), part(0), &[x], half.clone());
        let second = self.op(&format!("{name}.second"), part(d / 2), &[x], half);
        let negated = self.draft.builder.unary(&format!("{name}.negated"), UnaryKind::Neg, second);
        let concat = OpKind::Concat { axis: 2 };
        let turned = self.op(&format!("{name}.turned"), concat, &[negated, first], shape);
        let along = self.binary(&format!("{name}.along"), BinaryKind::Mul, x, cos);
        let across = self.binary(&format!("{name}.across"), BinaryKind::Mul, turned, sin);
        self.binary(&format!("{name}.rotated"), BinaryKind::Add, along, across)
    }

    /// Attention with its output linear.
    fn attention(&mut self, x: Value, norms: Option<&[Stored; 2]>, rotary: Option<[Value; 2]>) -> Value {
        let block = self.block;
        let [q, k, v, o] = block.attention;
        let [mut q, mut k, v] = [("q", q), ("k", k), ("v", v)]
            .map(|(name, linear)| self.draft.linear(linear, x, &format!("{name}."), F32, name));
        q = self.by_head("q", q, block.heads, [1, 0, 2]);
        k = self.by_head("k", k, block.kv_heads, [1, 0, 2]);
        let v = self.by_head("v", v, block.kv_heads, [1, 2, 0]);
        if let Some([of_q, of_k]) = norms {
            q = self.rms_norm("q.normed", q, of_q);
            k = self.rms_norm("k.normed", k, of_k);
        }
        if let Some(rotary) = rotary {
            q = self.rotated("q", q, rotary);
            k = self.rotated("k", k, rotary);
        }
        let (k, v) = (self.repeated("k", k), self.repeated("v", v));
        let scores = self.draft.builder.mma("scores", q, k, F32);
        let factor = self.scalar("scores.factor", 1.0 / (block.head_dim as f64).sqrt());
        let scaled = self.binary("scores.scaled", BinaryKind::Mul, scores, factor);
        let masked = self.binary("scores.masked", BinaryKind::Add, scaled, self.mask);
        let shape = self.shape(masked);
        let weights = self.op("attention.weights", OpKind::Softmax { axis: 2 }, &[masked], shape);
        let context = self.draft.builder.mma("context", weights, v, F32);
        let [heads, m, d] = &self.shape(context)[..] else { return context };
        let by_row = vec![m.clone(), heads.clone(), d.clone()];
        let joined = vec![m.clone(), Dim::fixed(block.heads * block.head_dim)];
        let kind = OpKind::Transpose { permutation: vec![1, 0, 2] };
        let context = self.op("context.rows", kind, &[context], by_row);
        let context = self.op("context.joined", OpKind::Reshape, &[context], joined);
        self.draft.linear(o, context, "o.", F32, "attention")
    }

    fn feed_forward(&mut self, x: Value) -> Value {
        let Block { gate, up, down, function, .. } = *self.block;
        self.draft.feed_forward(x, gate, up, function, down, F32, "mlp")
    }
}
