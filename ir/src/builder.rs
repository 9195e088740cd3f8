//! Builds a module op by op, naming results and working out the types that follow from the operands.

use crate::entities::Value;
use crate::module::Module;
use crate::ops::{BinaryKind, OpKind, ScaledMma, UnaryKind};
use crate::types::{Dim, ElementType, ScaleLayout, TensorType};

/// Builds a [`Module`]. Nothing is checked here: [`crate::verify`] reports whatever is wrong with the result.
#[derive(Debug)]
pub struct Builder {
    module: Module,
}

/// The optional operands of a `scaled_mma`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScaledMmaOptions {
    /// f32 scalar that multiplies the product.
    pub alpha: Option<Value>,
    /// `[.., M, N]`, added.
    pub c: Option<Value>,
    /// f32 scalar that multiplies c.
    pub beta: Option<Value>,
}

impl Builder {
    /// A builder of the program `@name`.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder { module: Module::new(name) }
    }

    /// An extent known at run time; the same name is the same extent.
    pub fn symbol(&mut self, name: &str) -> Dim {
        Dim::symbol(self.module.intern_symbol(name))
    }

    /// An input that may differ from call to call.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Value {
        self.module.push_input(name, ty, false)
    }

    /// An input that never changes: a weight.
    pub fn param(&mut self, name: &str, ty: TensorType) -> Value {
        self.module.push_input(name, ty, true)
    }

    /// The type of a value built so far.
    pub fn ty(&self, value: Value) -> &TensorType {
        self.module.ty(value)
    }

    /// Any op, with the name and type of each result. An empty name becomes the value's number.
    pub fn op(&mut self, kind: OpKind, operands: &[Value], results: &[(&str, TensorType)]) -> Vec<Value> {
        let first = self.module.values.len();
        let results = results
            .iter()
            .enumerate()
            .map(|(index, (name, ty))| {
                let name = if name.is_empty() { (first + index).to_string() } else { (*name).to_owned() };
                (name, ty.clone())
            })
            .collect();
        let op = self.module.push_op(kind, operands.to_vec(), results);
        self.module.ops[op].results.clone()
    }

    fn single(&mut self, kind: OpKind, operands: &[Value], name: &str, ty: TensorType) -> Value {
        self.op(kind, operands, &[(name, ty)])[0]
    }

    /// A block-scaled multiplication with the result element type `element`; `block` elements share a scale.
    #[expect(clippy::too_many_arguments, reason = "the four operands are the op")]
    pub fn scaled_mma(
        &mut self,
        name: &str,
        a: Value,
        sfa: Value,
        b: Value,
        sfb: Value,
        block: u32,
        element: ElementType,
        options: ScaledMmaOptions,
    ) -> Value {
        let ty = self.matmul_type(a, b, element);
        let mut operands = vec![a, sfa, b, sfb];
        operands.extend([options.alpha, options.c, options.beta].into_iter().flatten());
        let attributes = ScaledMma {
            block,
            alpha: options.alpha.is_some(),
            c: options.c.is_some(),
            beta: options.beta.is_some(),
        };
        self.single(OpKind::ScaledMma(attributes), &operands, name, ty)
    }

    /// A plain multiplication of K-major operands with the result element type `element`.
    pub fn mma(&mut self, name: &str, a: Value, b: Value, element: ElementType) -> Value {
        let ty = self.matmul_type(a, b, element);
        self.single(OpKind::Mma, &[a, b], name, ty)
    }

    fn matmul_type(&self, a: Value, b: Value, element: ElementType) -> TensorType {
        let mut shape = self.ty(a).shape.clone();
        let b_shape = &self.ty(b).shape;
        if let (Some(last), Some(n)) = (shape.last_mut(), b_shape.len().checked_sub(2)) {
            last.clone_from(&b_shape[n]);
        }
        TensorType::new(shape, element)
    }

    /// Scales in another layout.
    pub fn swizzle_scales(&mut self, name: &str, scales: Value, layout: ScaleLayout) -> Value {
        let ty = TensorType { layout: Some(layout), ..self.ty(scales).clone() };
        self.single(OpKind::SwizzleScales, &[scales], name, ty)
    }

    /// Another element type.
    pub fn convert(&mut self, name: &str, value: Value, element: ElementType) -> Value {
        let ty = TensorType::new(self.ty(value).shape.clone(), element);
        self.single(OpKind::Convert, &[value], name, ty)
    }

    /// An elementwise function.
    pub fn unary(&mut self, name: &str, kind: UnaryKind, value: Value) -> Value {
        let ty = self.ty(value).clone();
        self.single(OpKind::Unary(kind), &[value], name, ty)
    }

    /// An elementwise function of two operands that broadcast as in NumPy; the result has the join of the
    /// element types.
    pub fn binary(&mut self, name: &str, kind: BinaryKind, left: Value, right: Value) -> Value {
        let (left_ty, right_ty) = (self.ty(left), self.ty(right));
        let shape = crate::typing::broadcast_shape(&left_ty.shape, &right_ty.shape)
            .unwrap_or_else(|| left_ty.shape.clone());
        let element = left_ty.element.join(right_ty.element).unwrap_or(left_ty.element);
        self.single(OpKind::Binary(kind), &[left, right], name, TensorType::new(shape, element))
    }

    /// Ends the program with its outputs.
    pub fn finish(mut self, outputs: &[Value]) -> Module {
        self.module.outputs = outputs.to_vec();
        self.module
    }
}
