//! Mixtures of experts of ONNX Runtime: `QMoE` with weights in MXFP4 (`fp4`) or NVFP4 (`nvfp4`).

use fourfold_ir::{
    BinaryKind, Dim, ElementType, GroupedScaledMma, OpKind, ReduceKind, ScaleLayout, Shape, SliceRange,
    TensorType, UnaryKind, Value, dim_product,
};

use rten_onnx::onnx::DataType;

use super::super::model::{Attribute, Node};
use super::super::problem::{Problem, refused, shown};
use super::super::stored::element_of;
use super::state::{Item, Translator};
use crate::fields::{FACTOR, is_factor};
use crate::imported::LeftOutCode;

/// The positions of inputs that say more than the weights, the router and the biases.
const OTHERS: [(usize, &str); 11] = [
    (8, "fc3_experts_weights"),
    (9, "fc3_scales"),
    (10, "fc3_experts_bias"),
    (11, "fc1_zero_points"),
    (12, "fc2_zero_points"),
    (13, "fc3_zero_points"),
    (14, "router_weights"),
    (17, "fc1_act_scale"),
    (18, "fc2_act_scale"),
    (19, "fc1_act_block_scale"),
    (20, "fc2_act_block_scale"),
];

/// The attributes, and the type of their values.
const ATTRIBUTES: [(&str, Kind); 16] = [
    ("activation_alpha", Kind::Float),
    ("activation_beta", Kind::Float),
    ("activation_type", Kind::Text),
    ("block_size", Kind::Int),
    ("expert_weight_bits", Kind::Int),
    ("fc1_expert_weight_bits", Kind::Int),
    ("fc2_expert_weight_bits", Kind::Int),
    ("k", Kind::Int),
    ("normalize_routing_weights", Kind::Int),
    ("num_shared_experts", Kind::Int),
    ("quant_type", Kind::Text),
    ("swiglu_fusion", Kind::Int),
    ("swiglu_limit", Kind::Float),
    ("swiglu_limit_after_activation", Kind::Int),
    ("use_sparse_mixer", Kind::Int),
    ("weights_prepacked", Kind::Int),
];

/// The type of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Int,
    Float,
    Text,
}

/// The meaning of the attributes.
struct Form {
    /// Elements for each scale, and the type of scales.
    block: u32,
    scale: ElementType,
    /// Two codes of a byte follow each other along K, not along N.
    is_k_packed: bool,
    /// The number of experts of each row.
    top: u64,
    /// The weights of a row are divided by their sum.
    is_normalized: bool,
    function: Function,
}

/// The function between the products.
#[derive(Clone, Copy)]
enum Function {
    /// The function of each column.
    Plain(Option<UnaryKind>),
    /// g · sigmoid(alpha · g) · (u + beta), where g is gate up to the limit, and u is up within it.
    Gated { is_interleaved: bool, alpha: f32, beta: f32, limit: f32 },
}

/// The weights of all experts: codes `[E, N, K]`, blocked scales, a factor of each expert, and a bias `[E, N]`.
struct Stack {
    codes: Value,
    scales: Value,
    factors: Value,
    bias: Option<Value>,
    count: u64,
    n: u64,
    k: u64,
}

/// Rows in the order of their experts.
struct Sorted {
    positions: Value,
    tokens: Value,
    ends: Value,
    /// The expert of each row.
    experts: Value,
    /// The number of rows.
    extent: Dim,
}

impl Translator<'_> {
    /// A mixture of experts, whose weights are softmax over all scores, then the greatest.
    pub(super) fn qmoe(&mut self, node: &Node) -> Result<(), Problem> {
        let form = self.form(node)?;
        let (first, second) =
            (self.stack(node, &form, [2, 3, 4, 15])?, self.stack(node, &form, [5, 6, 7, 16])?);
        let x = self.float(node, 0)?;
        let (shape, element) = (self.shape(x), self.ty(x).element);
        if !matches!(element, ElementType::F16 | ElementType::BF16) {
            return self.refuse(
                node,
                format!(
                    "its input is {element}; import f16 or bf16 (`--input-type bf16`), without f32 results"
                ),
            );
        }
        let wide = match form.function {
            Function::Plain(_) => second.k,
            Function::Gated { .. } => second.k.saturating_mul(2),
        };
        let fits = (first.n, first.k, first.count) == (wide, second.n, second.count)
            && matches!(shape.len(), 2 | 3)
            && shape.last().and_then(Dim::as_fixed) == Some(first.k);
        if !fits {
            let message = format!(
                "the first weights are [{}, {}, {}] and the second [{}, {}, {}] (experts, N, K); expected an input of [.., {}], \
                 and first weights of [{}, {wide}, {}]",
                first.count,
                first.n,
                first.k,
                second.count,
                second.n,
                second.k,
                first.k,
                second.count,
                second.n
            );
            return self.refuse(node, message);
        }
        let rows = dim_product(&shape[..shape.len() - 1]);
        let Some((rows, extent)) = rows.and_then(|m| Some((m.clone(), m.times(&Dim::fixed(form.top))?)))
        else {
            return self.refuse(node, "the number of its rows times k cannot be stated as an extent");
        };
        let hint = Translator::hint(node);
        let x = self.reshaped(&format!("{hint}.x"), x, vec![rows.clone(), Dim::fixed(first.k)]);
        let (weights, ids) = self.routed(node, &form, &rows, first.count)?;
        let sorted = self.sorted(&hint, ids, extent, first.count);
        let of_rows = vec![sorted.extent.clone(), Dim::fixed(first.k)];
        let of_rows = TensorType::new(of_rows, element);
        let gather = OpKind::Gather { axis: 0 };
        let of_rows = self.step(&format!("{hint}.rows"), gather, &[x, sorted.tokens], of_rows);
        let product = self.expert_product(&format!("{hint}.fc1"), of_rows, &first, &sorted, form.block);
        let hidden = self.function(&hint, form.function, product, second.k);
        let hidden = self.converted(&format!("{hint}.hidden"), hidden, element);
        let out = self.expert_product(&format!("{hint}.fc2"), hidden, &second, &sorted, form.block);
        let column = vec![sorted.extent.clone(), Dim::fixed(1)];
        let column = self.in_order(&format!("{hint}.weights"), weights, &sorted, column);
        let ty = self.ty(out).clone();
        let kind = OpKind::Binary(BinaryKind::Mul);
        let weighted = self.step(&format!("{hint}.weighted"), kind, &[out, column], ty);
        let ty = TensorType::new(vec![rows, Dim::fixed(second.n)], element);
        let y = self.step(&hint, OpKind::ScatterAdd, &[weighted, sorted.tokens], ty);
        let y = self.reshaped(&hint, y, shape);
        self.set(node, 0, Item::Value(y));
        Ok(())
    }

    fn form(&self, node: &Node) -> Result<Form, Problem> {
        let (block, scale) = match node.text("quant_type").unwrap_or("int") {
            "fp4" => (32, ElementType::F8E8M0FNU),
            "nvfp4" => (16, ElementType::F8E4M3FN),
            other => {
                return self.refuse(
                    node,
                    format!(
                        "its quant_type is `{other}`; only weights in `fp4` and `nvfp4` have an equivalent"
                    ),
                );
            }
        };
        if let Some((_, name)) = OTHERS.iter().find(|(position, _)| node.input(*position).is_some()) {
            return self.refuse(node, format!("its input {name} has no equivalent"));
        }
        self.check_attributes(node)?;
        let only = [
            ("expert_weight_bits", 4),
            ("fc1_expert_weight_bits", 4),
            ("fc2_expert_weight_bits", 4),
            ("use_sparse_mixer", 0),
            ("num_shared_experts", 0),
            ("swiglu_limit_after_activation", 0),
        ];
        if let Some((name, only)) =
            only.iter().find(|(name, only)| node.int(name).is_some_and(|it| it != *only))
        {
            return self.refuse(node, format!("its attribute {name} is not {only}"));
        }
        if let Some(size) = node.int("block_size").filter(|size| *size > 0 && *size != i64::from(block)) {
            return self
                .refuse(node, format!("its block_size is {size}; expected {block} for its quant_type"));
        }
        let number = |name: &str, default: f32| node.float(name).unwrap_or(default);
        let function = match (node.text("activation_type").unwrap_or("relu"), node.int("swiglu_fusion")) {
            ("swiglu", Some(fusion @ (1 | 2))) => Function::Gated {
                is_interleaved: fusion == 1,
                alpha: number("activation_alpha", 1.0),
                beta: number("activation_beta", 0.0),
                limit: number("swiglu_limit", f32::INFINITY),
            },
            ("swiglu", _) => {
                return self
                    .refuse(node, "its swiglu_fusion is neither 1 nor 2, so gate and up are not known");
            }
            ("relu", _) => Function::Plain(Some(UnaryKind::Relu)),
            ("silu", _) => Function::Plain(Some(UnaryKind::Silu)),
            ("identity", _) => Function::Plain(None),
            (other, _) => {
                return self.refuse(node, format!("its activation_type `{other}` has no equivalent"));
            }
        };
        if matches!(function, Function::Gated { alpha, beta, limit, .. }
            if !alpha.is_finite() || !beta.is_finite() || limit.is_nan() || limit <= 0.0)
        {
            let message =
                "its activation_alpha or activation_beta is not finite, or its swiglu_limit is not above 0";
            return self.refuse(node, message);
        }
        let top = u64::try_from(node.int("k").unwrap_or(1)).unwrap_or(0);
        Ok(Form {
            block,
            scale,
            is_k_packed: block == 16 && node.int("weights_prepacked") == Some(1),
            top,
            is_normalized: node.int("normalize_routing_weights").unwrap_or(0) != 0,
            function,
        })
    }

    /// Refuses attributes that are not known, or whose value has another type: a default in their place would change results.
    fn check_attributes(&self, node: &Node) -> Result<(), Problem> {
        for (name, value) in &node.attributes {
            let Some((_, kind)) = ATTRIBUTES.iter().find(|(known, _)| known == name) else {
                return self.refuse(node, format!("its attribute {} has no equivalent", shown(name)));
            };
            let (has_kind, expected) = match kind {
                Kind::Int => (matches!(value, Attribute::Int(_)), "an integer"),
                Kind::Float => (matches!(value, Attribute::Float(_)), "a float"),
                Kind::Text => (matches!(value, Attribute::Text(_)), "a text"),
            };
            if !has_kind {
                return self.refuse(node, format!("its attribute {name} is not {expected}"));
            }
        }
        match node.int("weights_prepacked") {
            None | Some(-1..=1) => Ok(()),
            Some(other) => {
                self.refuse(node, format!("its attribute weights_prepacked is {other}; expected -1, 0 or 1"))
            }
        }
    }

    /// Reads weights. `inputs` are the positions of codes, scales, biases and factors.
    fn stack(&mut self, node: &Node, form: &Form, inputs: [usize; 4]) -> Result<Stack, Problem> {
        let [codes, scales, bias, factors] = inputs;
        let (Item::Stored(at), Item::Stored(of_blocks)) = (self.item(node, codes)?, self.item(node, scales)?)
        else {
            return self.refuse(node, "its weights are not constant");
        };
        let bytes = DataType::UINT8;
        for (position, at, element) in [(codes, at, None), (scales, of_blocks, Some(form.scale))] {
            let ty = self.model.stored[at].ty;
            if ty != bytes && (element.is_none() || element_of(ty) != element) {
                let or = element.map_or(String::new(), |element| format!(" or {element}"));
                let name = node.input(position).map_or("", |name| name);
                let message = format!("its input `{}` has the type {ty}; expected uint8{or}", shown(name));
                return self.refuse(node, message);
            }
        }
        let [count, n, blocks] = self.model.stored[of_blocks].dims[..] else {
            return self.refuse(
                node,
                format!("its input {scales} does not have the shape [E, N, K/{}]", form.block),
            );
        };
        let k = blocks.saturating_mul(u64::from(form.block));
        if form.top == 0 || form.top > count {
            let message = format!("its k is {}; expected 1 to {count}, the number of experts", form.top);
            return self.refuse(node, message);
        }
        if n % 2 != 0 {
            return self.refuse(node, format!("its weights have {n} rows; expected an even number"));
        }
        // The bytes are [E, N, K/2] in one of the packings, which states the shape of the other.
        if self.model.stored[at].dims != [count, k, n / 2] {
            return self.refuse(
                node,
                format!("its input {codes} does not have the packed shape [{count}, {k}, {}]", n / 2),
            );
        }
        let packed = if form.is_k_packed { vec![count, n, k] } else { vec![count, k, n] };
        let mut codes = self.param(at, Some((ElementType::F4E2M1FN, None, packed)))?;
        let hint = node.input(inputs[0]).unwrap_or("weights").to_owned();
        if !form.is_k_packed {
            codes = self.transposed_codes(&hint, codes);
        }
        let linear = Some(ScaleLayout::Linear);
        let scales = self.param(of_blocks, Some((form.scale, linear, vec![count, n, blocks])))?;
        let ty = TensorType { layout: Some(ScaleLayout::Blocked), ..self.ty(scales).clone() };
        let scales = self.step(&format!("{hint}.blocked"), OpKind::SwizzleScales, &[scales], ty);
        let of_experts = self.item(node, factors)?;
        let factors = self.float(node, factors)?;
        let bias = node.input(bias).is_some().then(|| self.float(node, bias)).transpose()?;
        let has = |value: Value, dims: &[u64]| {
            self.shape(value) == dims.iter().map(|dim| Dim::fixed(*dim)).collect::<Shape>()
        };
        if !has(factors, &[count])
            || self.ty(factors).element != ElementType::F32
            || bias.is_some_and(|bias| !has(bias, &[count, n]))
        {
            let message = format!("its factors are not f32 of [{count}], or its bias is not [{count}, {n}]");
            return self.refuse(node, message);
        }
        if let Item::Stored(at) = of_experts {
            self.check_factors(node, at)?;
        }
        Ok(Stack { codes, scales, factors, bias, count, n, k })
    }

    /// Refuses factors of experts that no quantization gives.
    fn check_factors(&self, node: &Node, at: usize) -> Result<(), Problem> {
        let stored = &self.model.stored[at];
        let factors = stored.tensor(&self.model.files).map_err(|reason| self.failed(reason))?.to_f64();
        match factors.iter().enumerate().find(|(_, factor)| !is_factor(**factor)) {
            None => Ok(()),
            Some((expert, factor)) => {
                let label = node.label();
                let name = shown(&stored.name);
                let message = format!(
                    "{label}: the factor of expert {expert} in `{name}` is {factor}; expected {FACTOR}"
                );
                refused(label, LeftOutCode::InvalidScale, message)
            }
        }
    }

    /// Exchanges the last two axes of FP4 codes. E4M3 has their numbers, -0 included, one to a byte.
    fn transposed_codes(&mut self, hint: &str, codes: Value) -> Value {
        let bytes = self.converted(&format!("{hint}.bytes"), codes, ElementType::F8E4M3FN);
        let rows = self.exchanged(&format!("{hint}.rows"), bytes, false);
        self.converted(&format!("{hint}.codes"), rows, ElementType::F4E2M1FN)
    }

    /// The weights and the experts of each row.
    fn routed(
        &mut self,
        node: &Node,
        form: &Form,
        rows: &Dim,
        count: u64,
    ) -> Result<(Value, Value), Problem> {
        let hint = Translator::hint(node);
        let scores = self.float(node, 1)?;
        let all = TensorType::new(vec![rows.clone(), Dim::fixed(count)], ElementType::F32);
        if self.shape(scores) != all.shape {
            return self.refuse(
                node,
                format!("its router_probs do not have {count} columns and the rows of its input, or depend on symbols that may differ"),
            );
        }
        let scores = self.converted(&format!("{hint}.scores"), scores, ElementType::F32);
        let softmax = OpKind::Softmax { axis: 1 };
        let all = self.step(&format!("{hint}.probabilities"), softmax, &[scores], all);
        let chosen = vec![rows.clone(), Dim::fixed(form.top)];
        let names = ["best", "experts"].map(|part| self.names.like(&format!("{hint}.{part}")));
        let types =
            [ElementType::F32, ElementType::I32].map(|element| TensorType::new(chosen.clone(), element));
        let [values, ids] = types;
        let kind = OpKind::TopK { k: u32::try_from(form.top).unwrap_or(u32::MAX) };
        let best = self.out.op(kind, &[all], &[(&names[0], values.clone()), (&names[1], ids)]);
        if !form.is_normalized {
            return Ok((best[0], best[1]));
        }
        let kind = OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![1], keep_dims: true };
        let sum = TensorType::new(vec![rows.clone(), Dim::fixed(1)], ElementType::F32);
        let sum = self.step(&format!("{hint}.sum"), kind, &[best[0]], sum);
        let kind = OpKind::Binary(BinaryKind::Div);
        Ok((self.step(&format!("{hint}.normalized"), kind, &[best[0], sum], values), best[1]))
    }

    fn sorted(&mut self, hint: &str, ids: Value, extent: Dim, count: u64) -> Sorted {
        let indices = TensorType::new(vec![extent.clone()], ElementType::I32);
        let ends = TensorType::new(vec![Dim::fixed(count)], ElementType::I32);
        let names = ["positions", "tokens", "ends"].map(|part| self.names.like(&format!("{hint}.{part}")));
        let kind = OpKind::GroupRows { groups: u32::try_from(count).unwrap_or(u32::MAX) };
        let results = [(&*names[0], indices.clone()), (&*names[1], indices), (&*names[2], ends)];
        let groups = self.out.op(kind, &[ids], &results);
        let (positions, tokens, ends) = (groups[0], groups[1], groups[2]);
        let mut sorted = Sorted { positions, tokens, ends, experts: ids, extent: extent.clone() };
        sorted.experts = self.in_order(&format!("{hint}.expert"), ids, &sorted, vec![extent]);
        sorted
    }

    /// One number of each choice, in the order of the experts, with this shape.
    fn in_order(&mut self, hint: &str, value: Value, sorted: &Sorted, shape: Shape) -> Value {
        let flat = self.reshaped(hint, value, vec![sorted.extent.clone()]);
        let ty = self.ty(flat).clone();
        let value = self.step(hint, OpKind::Gather { axis: 0 }, &[flat, sorted.positions], ty);
        self.reshaped(hint, value, shape)
    }

    /// The product of rows with the matrices of their experts, and the bias, in f32.
    fn expert_product(
        &mut self,
        hint: &str,
        rows: Value,
        stack: &Stack,
        sorted: &Sorted,
        block: u32,
    ) -> Value {
        let kind = GroupedScaledMma { block, weight_only: true, alpha: true, masked: false, sfa_ends: false };
        let ty = TensorType::new(vec![sorted.extent.clone(), Dim::fixed(stack.n)], ElementType::F32);
        let operands = [rows, stack.codes, stack.scales, sorted.ends, stack.factors];
        let product = self.step(hint, OpKind::GroupedScaledMma(kind), &operands, ty.clone());
        let Some(bias) = stack.bias else { return product };
        let of_rows = TensorType { element: self.ty(bias).element, ..ty.clone() };
        let gather = OpKind::Gather { axis: 0 };
        let bias = self.step(&format!("{hint}.bias"), gather, &[bias, sorted.experts], of_rows);
        self.step(&format!("{hint}.biased"), OpKind::Binary(BinaryKind::Add), &[product, bias], ty)
    }

    /// The function of the first product, with `columns` columns.
    fn function(&mut self, hint: &str, function: Function, product: Value, columns: u64) -> Value {
        let rows = self.shape(product)[0].clone();
        let ty = TensorType::new(vec![rows, Dim::fixed(columns)], ElementType::F32);
        let (is_interleaved, alpha, beta, limit) = match function {
            Function::Plain(None) => return product,
            Function::Plain(Some(kind)) => {
                return self.step(&format!("{hint}.active"), OpKind::Unary(kind), &[product], ty);
            }
            Function::Gated { is_interleaved, alpha, beta, limit } => (is_interleaved, alpha, beta, limit),
        };
        let [mut gate, mut up] = [("gate", 0), ("up", 1)].map(|(part, half)| {
            let (start, end, step) = match is_interleaved {
                true => (half, columns * 2, 2),
                false => (half * columns, (half + 1) * columns, 1),
            };
            let ranges = vec![SliceRange { axis: 1, start, end, step }];
            self.step(&format!("{hint}.{part}"), OpKind::Slice { ranges }, &[product], ty.clone())
        });
        if limit.is_finite() {
            let clamp = |min| OpKind::Clamp { min, max: f64::from(limit) };
            let low = clamp(f64::NEG_INFINITY);
            gate = self.step(&format!("{hint}.gate.low"), low, &[gate], ty.clone());
            up = self.step(&format!("{hint}.up.bounded"), clamp(-f64::from(limit)), &[up], ty.clone());
        }
        let [multiply, add] = [BinaryKind::Mul, BinaryKind::Add].map(OpKind::Binary);
        let active = if alpha == 1.0 {
            self.step(&format!("{hint}.active"), OpKind::Unary(UnaryKind::Silu), &[gate], ty.clone())
        } else {
            let alpha = self.constant(&format!("{hint}.alpha"), f64::from(alpha), ElementType::F32);
            let steep = self.step(&format!("{hint}.steep"), multiply.clone(), &[gate, alpha], ty.clone());
            let sigmoid = OpKind::Unary(UnaryKind::Sigmoid);
            let open = self.step(&format!("{hint}.open"), sigmoid, &[steep], ty.clone());
            self.step(&format!("{hint}.active"), multiply.clone(), &[gate, open], ty.clone())
        };
        if beta != 0.0 {
            let beta = self.constant(&format!("{hint}.beta"), f64::from(beta), ElementType::F32);
            up = self.step(&format!("{hint}.up.shifted"), add, &[up, beta], ty.clone());
        }
        self.step(&format!("{hint}.gated"), multiply, &[active, up], ty)
    }
}
