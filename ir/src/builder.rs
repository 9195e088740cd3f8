//! Builds a module op by op, and infers result types from the operands.

use crate::entities::Value;
use crate::module::Module;
use crate::ops::{BinaryKind, OpKind, ScaledMma, UnaryKind};
use crate::types::{Dim, ElementType, ScaleLayout, TensorType};

/// Builds a [`Module`]. Checks nothing: [`crate::verify`] checks the finished module.
#[derive(Debug)]
pub struct Builder {
    module: Module,
}

/// The optional operands of a `scaled_mma`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScaledMmaOptions {
    /// The factor of the product: an f32 scalar.
    pub alpha: Option<Value>,
    /// The addend, `[.., M, N]`.
    pub c: Option<Value>,
    /// The factor of c: an f32 scalar.
    pub beta: Option<Value>,
}

impl Builder {
    /// Starts a program named `@name`.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder { module: Module::new(name) }
    }

    /// An extent known at run time. Calls with the same name return the same extent.
    pub fn symbol(&mut self, name: &str) -> Dim {
        Dim::symbol(self.module.intern_symbol(name))
    }

    /// Adds an input that may differ from call to call.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Value {
        self.module.push_input(name, ty, false)
    }

    /// Adds an immutable input, such as a weight.
    pub fn param(&mut self, name: &str, ty: TensorType) -> Value {
        self.module.push_input(name, ty, true)
    }

    /// The type of a value of this builder.
    pub fn ty(&self, value: Value) -> &TensorType {
        self.module.ty(value)
    }

    /// The number of ops so far.
    pub fn op_count(&self) -> usize {
        self.module.ops.len()
    }

    /// Adds any op, given the name and type of each result. An empty name is replaced by the value's number.
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

    /// Adds a block-scaled multiplication of K-major operands: `a` `[.., M, K]`, `b` `[.., N, K]`, result
    /// `[.., M, N]` of type `element`. `block` elements along K share a scale. A 16-bit `a` has no `sfa`.
    #[expect(clippy::too_many_arguments, reason = "the four operands are the op")]
    pub fn scaled_mma(
        &mut self,
        name: &str,
        a: Value,
        sfa: impl Into<Option<Value>>,
        b: Value,
        sfb: Value,
        block: u32,
        element: ElementType,
        options: ScaledMmaOptions,
    ) -> Value {
        let ty = self.matmul_type(a, b, element);
        let sfa = sfa.into();
        let mut operands = vec![a];
        operands.extend(sfa);
        operands.extend([b, sfb]);
        operands.extend([options.alpha, options.c, options.beta].into_iter().flatten());
        let attributes = ScaledMma {
            block,
            weight_only: sfa.is_none(),
            alpha: options.alpha.is_some(),
            c: options.c.is_some(),
            beta: options.beta.is_some(),
        };
        self.single(OpKind::ScaledMma(attributes), &operands, name, ty)
    }

    /// Adds a plain multiplication of K-major operands, with a result of type `element`.
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

    /// Adds a change of scale layout.
    pub fn swizzle_scales(&mut self, name: &str, scales: Value, layout: ScaleLayout) -> Value {
        let ty = TensorType { layout: Some(layout), ..self.ty(scales).clone() };
        self.single(OpKind::SwizzleScales, &[scales], name, ty)
    }

    /// Adds a conversion to the type `element`.
    pub fn convert(&mut self, name: &str, value: Value, element: ElementType) -> Value {
        let ty = TensorType::new(self.ty(value).shape.clone(), element);
        self.single(OpKind::Convert, &[value], name, ty)
    }

    /// Adds an elementwise function of one operand.
    pub fn unary(&mut self, name: &str, kind: UnaryKind, value: Value) -> Value {
        let ty = self.ty(value).clone();
        self.single(OpKind::Unary(kind), &[value], name, ty)
    }

    /// Adds an elementwise function of two operands, which broadcast as in NumPy. The result's element type is the
    /// join of the operands' ([`ElementType::join`]).
    pub fn binary(&mut self, name: &str, kind: BinaryKind, left: Value, right: Value) -> Value {
        let (left_ty, right_ty) = (self.ty(left), self.ty(right));
        let shape = crate::typing::broadcast_shape(&left_ty.shape, &right_ty.shape)
            .unwrap_or_else(|| left_ty.shape.clone());
        let element = left_ty.element.join(right_ty.element).unwrap_or(left_ty.element);
        self.single(OpKind::Binary(kind), &[left, right], name, TensorType::new(shape, element))
    }

    /// Returns the module, with these outputs.
    pub fn finish(mut self, outputs: &[Value]) -> Module {
        self.module.outputs = outputs.to_vec();
        self.module
    }
}
