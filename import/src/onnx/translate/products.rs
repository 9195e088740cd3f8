//! Matrix multiplications.

use fourfold_ir::{
    BinaryKind, BlockFormat, Dim, ElementType, OpKind, ScaleLayout, ScaledMma, Shape, TensorType, Value,
    broadcast_shape,
};

use super::super::model::Node;
use super::super::problem::Problem;
use super::state::{Dequantized, Item, Translator};

/// The right operand of a product.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Right {
    /// `[.., K, N]`, as MatMul takes it.
    RowMajor,
    /// `[.., N, K]`, as programs take it.
    KMajor,
}

impl Translator<'_> {
    pub(super) fn matmul(&mut self, node: &Node) -> Result<(), Problem> {
        let (a, b) = (self.item(node, 0)?, self.item(node, 1)?);
        let product = self.product(node, a, b, Right::RowMajor, &Translator::hint(node))?;
        self.set(node, 0, Item::Value(product));
        Ok(())
    }

    pub(super) fn gemm(&mut self, node: &Node) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let mut a = self.item(node, 0)?;
        let b = self.item(node, 1)?;
        if node.int("transA").unwrap_or(0) != 0 {
            let value = self.value(node, 0)?;
            if self.ty(value).rank() != 2 {
                return self.refuse(node, "A is not a matrix");
            }
            a = Item::Value(self.exchanged(&hint, value, false));
        }
        let right = if node.int("transB").unwrap_or(0) != 0 { Right::KMajor } else { Right::RowMajor };
        let has_c = node.input(2).is_some();
        let part = if has_c { format!("{hint}.product") } else { hint.clone() };
        let mut value = self.product(node, a, b, right, &part)?;
        let element = self.ty(value).element;
        if let Some(alpha) = node.float("alpha").filter(|alpha| *alpha != 1.0) {
            let alpha = self.constant(&format!("{hint}.alpha"), f64::from(alpha), element);
            value = self.pair(node, &part, BinaryKind::Mul, value, alpha)?;
        }
        if has_c {
            let mut c = self.float(node, 2)?;
            if let Some(beta) = node.float("beta").filter(|beta| *beta != 1.0) {
                let element = self.ty(c).element;
                let beta = self.constant(&format!("{hint}.beta"), f64::from(beta), element);
                c = self.pair(node, &format!("{hint}.c"), BinaryKind::Mul, c, beta)?;
            }
            value = self.pair(node, &hint, BinaryKind::Add, value, c)?;
        }
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    /// ONNX Runtime's product with an NVFP4 weight `[N, K/2]`. Its input_scale has no effect.
    pub(super) fn matmul_fp4_weight(&mut self, node: &Node) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let block = node.int("block_size").unwrap_or(16);
        let (Item::Stored(codes), Item::Stored(scales)) = (self.item(node, 1)?, self.item(node, 2)?) else {
            return self.refuse(node, "its weight is not constant");
        };
        let [n, packed] = self.model.stored[codes].dims[..] else {
            return self.refuse(node, "its weight is not a matrix");
        };
        let k = packed.saturating_mul(2);
        let blocks =
            u64::try_from(block).ok().filter(|block| matches!(block, 16 | 32) && k.is_multiple_of(*block));
        let Some(blocks) = blocks.map(|block| k / block) else {
            return self
                .refuse(node, format!("the block size {block} does not divide K = {k}, or is not 16 or 32"));
        };
        for (name, extent) in [("N", n), ("K", k)] {
            if node.int(name).is_some_and(|stated| stated != 0 && u64::try_from(stated) != Ok(extent)) {
                return self
                    .refuse(node, format!("its attribute {name} differs from the shape of the weight"));
            }
        }
        if self.model.stored[scales].dims != [n, blocks] {
            return self.refuse(node, format!("its weight_scale does not have the shape [{n}, {blocks}]"));
        }
        let codes = self.param(codes, Some((ElementType::F4E2M1FN, None, vec![n, k])))?;
        let linear = Some(ScaleLayout::Linear);
        let scales = self.param(scales, Some((ElementType::F8E4M3FN, linear, vec![n, blocks])))?;
        let factor = self.item(node, 3)?;
        let global = self.factor(node, 3, &factor)?;
        let a = self.item(node, 0)?;
        let element = self.element_of_item(node, &a)?;
        let weight = Dequantized {
            codes,
            scales,
            global: Some(global),
            block: block as u32,
            element,
            transposed: false,
        };
        let has_bias = node.input(5).is_some();
        let part = if has_bias { format!("{hint}.product") } else { hint.clone() };
        let mut value = self.product(node, a, Item::Dequantized(weight), Right::KMajor, &part)?;
        if has_bias {
            let bias = self.float(node, 5)?;
            value = self.pair(node, &hint, BinaryKind::Add, value, bias)?;
        }
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    /// Writes a · bᵀ of K-major operands, in the type that the graph's product has.
    pub(super) fn product(
        &mut self,
        node: &Node,
        a: Item,
        b: Item,
        right: Right,
        hint: &str,
    ) -> Result<Value, Problem> {
        let (a_element, b_element) = (self.element_of_item(node, &a)?, self.element_of_item(node, &b)?);
        let Some(element) = a_element.join(b_element) else {
            return self.refuse(node, format!("it multiplies {a_element} and {b_element}"));
        };
        if a_element != b_element && !self.wide {
            let label = node.label();
            self.note(format!(
                "Repaired: {label} multiplies {a_element} and {b_element}; the result is {element}."
            ));
        }
        let element = if self.wide { ElementType::F32 } else { element };
        if let (Item::Dequantized(a), Item::Dequantized(b)) = (&a, &b)
            && self.is_scaled(a, b, right)
        {
            let (codes, scales, global) = (a.codes, Some(a.scales), a.global);
            return self.scaled_product(node, (codes, scales, global), *b, element, hint);
        }
        if let (Item::Value(a), Item::Dequantized(b)) = (&a, &b)
            && self.is_weight_only(*a, b, right, element)
        {
            return self.scaled_product(node, (*a, None, None), *b, element, hint);
        }
        // A weight keeps its per-tensor scale until after the product, where it costs one multiplication each.
        let (b, is_k_major, global) = match b {
            Item::Dequantized(matrix) if matrix.transposed == (right == Right::RowMajor) => {
                let global = matrix.global;
                let matrix = Dequantized { transposed: false, ..matrix };
                let name = self.names.like(&format!("{hint}.weight"));
                (self.write_dequantized(&name, matrix, element, false), true, global)
            }
            other => {
                let name = node.input(1).unwrap_or("b").to_owned();
                (self.value_of(&name, &other)?, right == Right::KMajor, None)
            }
        };
        let name = node.input(0).unwrap_or("a").to_owned();
        let a = self.value_of(&name, &a)?;
        self.plain_product(node, a, b, is_k_major, global, element, hint)
    }

    #[expect(clippy::too_many_arguments, reason = "the operands and their orientation are the op")]
    fn plain_product(
        &mut self,
        node: &Node,
        a: Value,
        b: Value,
        is_k_major: bool,
        global: Option<Value>,
        element: ElementType,
        hint: &str,
    ) -> Result<Value, Problem> {
        let mut operand = element;
        for value in [a, b] {
            let ty = self.ty(value);
            if !ty.element.is_arithmetic() || ty.layout.is_some() {
                return self.refuse(node, format!("an operand has the type {}", ty.element));
            }
            operand = operand.join(ty.element).unwrap_or(operand);
        }
        let (a, b) = (self.converted(hint, a, operand), self.converted(hint, b, operand));
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        if a_shape.is_empty() || b_shape.is_empty() {
            return self.refuse(node, "an operand is a scalar");
        }
        // Vectors are matrices of one row or column.
        let one = Dim::fixed(1);
        let a = match &a_shape[..] {
            [k] => self.reshaped(hint, a, vec![one.clone(), k.clone()]),
            _ => a,
        };
        let b = match &b_shape[..] {
            [k] => self.reshaped(hint, b, vec![one, k.clone()]),
            _ if is_k_major => b,
            _ => self.k_major(hint, b),
        };
        let (a, b) = self.aligned(node, a, b, hint)?;
        let (mut shape, b_ty) = (self.shape(a), self.shape(b));
        let rank = shape.len();
        if shape[rank - 1] != b_ty[b_ty.len() - 1] {
            return self.refuse(
                node,
                "the extents of its operands along K differ, or depend on symbols that may differ",
            );
        }
        shape[rank - 1] = b_ty[b_ty.len() - 2].clone();
        let mut result = shape.clone();
        if b_shape.len() == 1 {
            result.pop();
        }
        if a_shape.len() == 1 {
            result.remove(result.len() - if b_shape.len() == 1 { 1 } else { 2 });
        }
        let narrows = global.is_some() && element != ElementType::F32;
        let kind = if global.is_some() { ElementType::F32 } else { element };
        let is_last = global.is_none() && result == shape;
        let name = if is_last { hint.to_owned() } else { format!("{hint}.mma") };
        let mut value = self.step(&name, OpKind::Mma, &[a, b], TensorType::new(shape.clone(), kind));
        if let Some(global) = global {
            let global = self.reshaped(hint, global, Vec::new());
            let name = if narrows || result != shape { format!("{hint}.scaled") } else { hint.to_owned() };
            let ty = TensorType::new(shape, kind);
            value = self.step(&name, OpKind::Binary(BinaryKind::Mul), &[value, global], ty);
            value = self.converted(hint, value, element);
        }
        Ok(self.reshaped(hint, value, result))
    }

    /// Exchanges the last two axes. Two exchanges cancel.
    fn k_major(&mut self, hint: &str, value: Value) -> Value {
        let rank = self.ty(value).rank();
        let mut exchange: Vec<u32> = (0..rank as u32).collect();
        exchange.swap(rank - 1, rank - 2);
        match self.transposes.get(&value) {
            Some((permutation, original)) if *permutation == exchange => *original,
            _ => self.exchanged(&format!("{hint}.b"), value, false),
        }
    }

    /// Gives both operands the same batch, or leaves b without one.
    fn aligned(&mut self, node: &Node, a: Value, b: Value, hint: &str) -> Result<(Value, Value), Problem> {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        let (a_batch, a_matrix) = a_shape.split_at(a_shape.len() - 2);
        let (b_batch, b_matrix) = b_shape.split_at(b_shape.len() - 2);
        if b_batch.is_empty() || a_batch == b_batch {
            return Ok((a, b));
        }
        let Some(batch) = broadcast_shape(a_batch, b_batch) else {
            return self.refuse(
                node,
                "the batches of its operands do not broadcast, or depend on symbols that may differ",
            );
        };
        let a = self.broadcast(hint, a, [&batch, a_matrix].concat());
        Ok((a, self.broadcast(hint, b, [&batch, b_matrix].concat())))
    }

    /// Repeats a value to a shape; itself if it has that shape.
    pub(super) fn broadcast(&mut self, hint: &str, value: Value, shape: Shape) -> Value {
        let ty = self.ty(value);
        if ty.shape == shape {
            return value;
        }
        let ty = TensorType { shape, ..ty.clone() };
        self.step(hint, OpKind::Broadcast, &[value], ty)
    }

    /// Returns true if two block-scaled matrices have one format, and K along their last axes.
    fn is_scaled(&self, a: &Dequantized, b: &Dequantized, right: Right) -> bool {
        let format = BlockFormat {
            a: self.ty(a.codes).element,
            b: self.ty(b.codes).element,
            scale: self.ty(a.scales).element,
            block: a.block,
        };
        a.block == b.block
            && format.scale == self.ty(b.scales).element
            && format.is_standard()
            && !a.transposed
            && b.transposed == (right == Right::RowMajor)
            && self.fit(a.codes, b.codes)
    }

    /// Returns true if a value of 16 bits, in which the graph multiplies, and a block-scaled matrix are the operands of
    /// a weight-only product.
    fn is_weight_only(&self, a: Value, b: &Dequantized, right: Right, element: ElementType) -> bool {
        let of_b = |value: Value| self.ty(value).element;
        let format = BlockFormat { a: element, b: of_b(b.codes), scale: of_b(b.scales), block: b.block };
        format.is_weight_only()
            && format.is_standard()
            && self.ty(a).element == element
            && b.transposed == (right == Right::RowMajor)
            && self.fit(a, b.codes)
    }

    /// Returns true if K-major matrices have one K, and b has the batch of a or none.
    fn fit(&self, a: Value, b: Value) -> bool {
        let (a_shape, b_shape) = (&self.ty(a).shape, &self.ty(b).shape);
        let batch = |shape: &Shape| shape[..shape.len().saturating_sub(2)].to_vec();
        a_shape.len() >= 2
            && a_shape.last() == b_shape.last()
            && (b_shape.len() == 2 || batch(a_shape) == batch(b_shape))
    }

    /// Writes the product of a, with its scales and factor if it has them, and a block-scaled matrix.
    fn scaled_product(
        &mut self,
        node: &Node,
        (a, a_scales, a_global): (Value, Option<Value>, Option<Value>),
        b: Dequantized,
        element: ElementType,
        hint: &str,
    ) -> Result<Value, Problem> {
        let alpha = match (a_global, b.global) {
            (Some(left), Some(right)) => {
                Some(self.pair(node, &format!("{hint}.alpha"), BinaryKind::Mul, left, right)?)
            }
            (one, other) => one.or(other),
        };
        let mut operands = Vec::new();
        for (name, matrix, scales) in [("a", a, a_scales), ("b", b.codes, Some(b.scales))] {
            operands.push(matrix);
            let Some(scales) = scales else { continue };
            operands.push(match self.blocked.get(&scales) {
                Some(blocked) => *blocked,
                None => {
                    let ty = TensorType { layout: Some(ScaleLayout::Blocked), ..self.ty(scales).clone() };
                    let name = format!("{hint}.{name}.blocked");
                    let blocked = self.step(&name, OpKind::SwizzleScales, &[scales], ty);
                    self.blocked.insert(scales, blocked);
                    blocked
                }
            });
        }
        operands.extend(alpha);
        let mut shape = self.shape(a);
        let b_shape = self.shape(b.codes);
        if let (Some(last), [.., n, _]) = (shape.last_mut(), &b_shape[..]) {
            last.clone_from(n);
        }
        let kind = OpKind::ScaledMma(ScaledMma {
            block: b.block,
            weight_only: a_scales.is_none(),
            alpha: alpha.is_some(),
            c: false,
            beta: false,
        });
        let name = if element == ElementType::F32 { hint.to_owned() } else { format!("{hint}.product") };
        let value = self.step(&name, kind, &operands, TensorType::new(shape, ElementType::F32));
        Ok(self.converted(hint, value, element))
    }
}
