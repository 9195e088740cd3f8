//! Reductions and normalizations.

use fourfold_ir::{
    BinaryKind, Dim, ElementType, OpKind, Predicate, ReduceKind, Shape, TensorType, UnaryKind, Value,
    dim_product,
};

use super::super::model::Node;
use super::super::problem::Problem;
use super::state::{Item, Translator};

/// The first opset in which softmax normalizes one axis.
const SOFTMAX_OF_ONE_AXIS: i64 = 13;

/// The function of the elements that are reduced.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Before {
    Same,
    Magnitude,
    Square,
}

impl Translator<'_> {
    /// Reduces an input, with a function before and one after the reduction.
    pub(super) fn reduce(
        &mut self,
        node: &Node,
        before: Before,
        kind: ReduceKind,
        after: Option<UnaryKind>,
    ) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let mut value = self.float(node, 0)?;
        let rank = self.ty(value).rank();
        let axes = self.reduced_axes(node, rank)?;
        let ty = self.ty(value).clone();
        value = match before {
            Before::Same => value,
            Before::Magnitude => self.step(&hint, OpKind::Unary(UnaryKind::Abs), &[value], ty),
            Before::Square => self.step(&hint, OpKind::Binary(BinaryKind::Mul), &[value, value], ty),
        };
        let keep_dims = node.int("keepdims").unwrap_or(1) != 0;
        // Without axes, the functions of the elements still apply.
        if !axes.is_empty() {
            value = self.reduced(&hint, value, kind, &axes, keep_dims);
        }
        if let Some(kind) = after {
            let ty = self.ty(value).clone();
            value = self.step(&hint, OpKind::Unary(kind), &[value], ty);
        }
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    /// The axes of a reduction; none if the graph asks for none.
    fn reduced_axes(&mut self, node: &Node, rank: usize) -> Result<Vec<usize>, Problem> {
        match self.numbers(node, "axes", 1)? {
            Some(axes) if !axes.is_empty() => self.axes(node, &axes, rank),
            _ if node.int("noop_with_empty_axes").unwrap_or(0) != 0 => Ok(Vec::new()),
            _ => Ok((0..rank).collect()),
        }
    }

    /// log(sum(exp(x))) as max + log(sum(exp(x - max))), which does not overflow. An infinite maximum counts as 0.
    pub(super) fn reduce_log_sum_exp(&mut self, node: &Node) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let x = self.float(node, 0)?;
        let ty = self.ty(x).clone();
        let axes = self.reduced_axes(node, ty.rank())?;
        if axes.is_empty() {
            self.set(node, 0, Item::Value(x));
            return Ok(());
        }
        let max = self.reduced(&format!("{hint}.max"), x, ReduceKind::Max, &axes, true);
        let max_ty = self.ty(max).clone();
        let magnitude = self.step(&hint, OpKind::Unary(UnaryKind::Abs), &[max], max_ty.clone());
        let infinity = self.constant(&hint, f64::INFINITY, ty.element);
        let zero = self.constant(&hint, 0.0, ty.element);
        let is_infinite = TensorType::new(max_ty.shape.clone(), ElementType::I1);
        let kind = OpKind::Compare(Predicate::Eq);
        let is_infinite = self.step(&hint, kind, &[magnitude, infinity], is_infinite);
        let max = self.step(&hint, OpKind::Select, &[is_infinite, zero, max], max_ty);
        let shifted = self.pair(node, &format!("{hint}.shifted"), BinaryKind::Sub, x, max)?;
        let exp = self.step(&format!("{hint}.exp"), OpKind::Unary(UnaryKind::Exp), &[shifted], ty);
        let sum = self.reduced(&format!("{hint}.sum"), exp, ReduceKind::Sum, &axes, true);
        let sum_ty = self.ty(sum).clone();
        let log = self.step(&format!("{hint}.log"), OpKind::Unary(UnaryKind::Log), &[sum], sum_ty);
        let mut value = self.pair(node, &hint, BinaryKind::Add, log, max)?;
        if node.int("keepdims").unwrap_or(1) == 0 {
            let shape = self.shape(value).into_iter().enumerate();
            let kept = shape.filter(|(axis, _)| !axes.contains(axis)).map(|(_, dim)| dim).collect();
            value = self.reshaped(&hint, value, kept);
        }
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    fn reduced(
        &mut self,
        hint: &str,
        value: Value,
        kind: ReduceKind,
        axes: &[usize],
        keep_dims: bool,
    ) -> Value {
        let ty = self.ty(value).clone();
        let mut shape: Shape = Vec::new();
        for (axis, dim) in ty.shape.into_iter().enumerate() {
            match axes.contains(&axis) {
                true if keep_dims => shape.push(Dim::fixed(1)),
                true => {}
                false => shape.push(dim),
            }
        }
        let axes = axes.iter().map(|axis| *axis as u32).collect();
        self.step(
            hint,
            OpKind::Reduce { kind, axes, keep_dims },
            &[value],
            TensorType::new(shape, ty.element),
        )
    }

    pub(super) fn softmax(&mut self, node: &Node, is_log: bool) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let x = self.float(node, 0)?;
        let ty = self.ty(x).clone();
        let is_old = self.model.opset("").is_some_and(|opset| opset < SOFTMAX_OF_ONE_AXIS);
        let default = if is_old { 1 } else { -1 };
        let axis = self.axis(node, node.int("axis").unwrap_or(default), ty.rank())?;
        let mut value = x;
        // Old opsets normalize the axis and all behind it together.
        let mut along = axis;
        if is_old && axis + 1 < ty.rank() {
            let (Some(outer), Some(inner)) = (dim_product(&ty.shape[..axis]), dim_product(&ty.shape[axis..]))
            else {
                return self.refuse(node, "its input is too large");
            };
            value = self.reshaped(&hint, x, vec![outer, inner]);
            along = 1;
        }
        let flat = self.ty(value).clone();
        value = match is_log {
            true => self.log_softmax(node, value, along)?,
            false => self.step(&hint, OpKind::Softmax { axis: along as u32 }, &[value], flat),
        };
        value = self.reshaped(&hint, value, ty.shape.clone());
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    /// x - max - log(sum(exp(x - max))), which does not underflow as the logarithm of a softmax does.
    fn log_softmax(&mut self, node: &Node, x: Value, axis: usize) -> Result<Value, Problem> {
        let hint = Translator::hint(node);
        let max = self.reduced(&format!("{hint}.max"), x, ReduceKind::Max, &[axis], true);
        let shifted = self.pair(node, &format!("{hint}.shifted"), BinaryKind::Sub, x, max)?;
        let ty = self.ty(shifted).clone();
        let exp = self.step(&format!("{hint}.exp"), OpKind::Unary(UnaryKind::Exp), &[shifted], ty);
        let sum = self.reduced(&format!("{hint}.sum"), exp, ReduceKind::Sum, &[axis], true);
        let ty = self.ty(sum).clone();
        let log = self.step(&format!("{hint}.log"), OpKind::Unary(UnaryKind::Log), &[sum], ty);
        self.pair(node, &hint, BinaryKind::Sub, shifted, log)
    }

    pub(super) fn layer_norm(&mut self, node: &Node) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let (x, weight) = (self.float(node, 0)?, self.float(node, 1)?);
        let ty = self.ty(x).clone();
        let axis = self.axis(node, node.int("axis").unwrap_or(-1), ty.rank())?;
        let channels = &ty.shape[axis..];
        let Some(count) = dim_product(channels) else { return self.refuse(node, "its input is too large") };
        let flat = [&ty.shape[..axis], std::slice::from_ref(&count)].concat();
        let (x, weight) =
            (self.reshaped(&hint, x, flat.clone()), self.fitted(node, &hint, weight, channels, &count)?);
        let bias = match node.input(2) {
            Some(_) => {
                let bias = self.float(node, 2)?;
                self.fitted(node, &hint, bias, channels, &count)?
            }
            None => {
                let zero = self.constant(&format!("{hint}.zero"), 0.0, self.ty(weight).element);
                self.broadcast(&format!("{hint}.zeros"), zero, vec![count])
            }
        };
        let joined = self.ty(x).element.join(self.ty(weight).element);
        let Some(element) = joined.and_then(|element| element.join(self.ty(bias).element)) else {
            return self.refuse(node, "the types of its inputs do not fit");
        };
        let eps = f64::from(node.float("epsilon").unwrap_or(1e-5));
        let kind = OpKind::LayerNorm { eps };
        let value = self.step(&hint, kind, &[x, weight, bias], TensorType::new(flat, element));
        let value = self.reshaped(&hint, value, ty.shape);
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    /// A weight of a normalization as a list of its channels. It may have more or fewer leading extents of 1.
    fn fitted(
        &mut self,
        node: &Node,
        hint: &str,
        weight: Value,
        channels: &[Dim],
        count: &Dim,
    ) -> Result<Value, Problem> {
        let is_one = |dim: &&Dim| dim.as_fixed() == Some(1);
        let shape = self.shape(weight);
        match shape.iter().skip_while(is_one).eq(channels.iter().skip_while(is_one)) {
            true => Ok(self.reshaped(hint, weight, vec![count.clone()])),
            false => self.refuse(node, "a weight does not have one element per channel"),
        }
    }

    /// x / sqrt(mean(x²) + epsilon) · weight, with f32 intermediates.
    pub(super) fn rms_norm(&mut self, node: &Node) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let (x, weight) = (self.float(node, 0)?, self.float(node, 1)?);
        let element = self.ty(x).element;
        let rank = self.ty(x).rank();
        let axis = self.axis(node, node.int("axis").unwrap_or(-1), rank)?;
        let axes: Vec<usize> = (axis..rank).collect();
        let wide = self.converted(&format!("{hint}.f32"), x, ElementType::F32);
        let square = self.pair(node, &format!("{hint}.square"), BinaryKind::Mul, wide, wide)?;
        let mean = self.reduced(&format!("{hint}.mean"), square, ReduceKind::Mean, &axes, true);
        let epsilon = f64::from(node.float("epsilon").unwrap_or(1e-5));
        let epsilon = self.constant(&format!("{hint}.epsilon"), epsilon, ElementType::F32);
        let sum = self.pair(node, &format!("{hint}.sum"), BinaryKind::Add, mean, epsilon)?;
        let ty = self.ty(sum).clone();
        let scale = self.step(&format!("{hint}.rsqrt"), OpKind::Unary(UnaryKind::Rsqrt), &[sum], ty);
        let normed = self.pair(node, &format!("{hint}.normed"), BinaryKind::Mul, wide, scale)?;
        let narrowed = if self.wide { ElementType::F32 } else { element };
        let normed = self.converted(&format!("{hint}.narrowed"), normed, narrowed);
        let value = self.pair(node, &hint, BinaryKind::Mul, normed, weight)?;
        self.set(node, 0, Item::Value(value));
        Ok(())
    }
}
