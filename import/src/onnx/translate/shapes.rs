//! Ops that move elements, and shapes.

use std::rc::Rc;

use fourfold_ir::{Dim, ElementType, OpKind, Shape, TensorType, broadcast_shape, dim_product};

use super::super::integers::{self, Integers, MAX_COUNT, Number, divide, of_shape};
use super::super::model::{Attribute, Node};
use super::super::problem::Problem;
use super::state::{Dequantized, Item, Translator};

impl Translator<'_> {
    /// A list of numbers, which is an attribute in old opsets and an input in new ones. `None` if it is omitted.
    pub(super) fn numbers(
        &mut self,
        node: &Node,
        attribute: &str,
        position: usize,
    ) -> Result<Option<Vec<i64>>, Problem> {
        if let Some(numbers) = node.ints(attribute) {
            return Ok(Some(numbers.to_vec()));
        }
        if node.input(position).is_none() {
            return Ok(None);
        }
        match self.integers(node, position)?.and_then(|integers| integers.known()) {
            Some(numbers) => Ok(Some(numbers)),
            None => self.refuse(node, format!("its {attribute} are computed when the graph runs")),
        }
    }

    pub(super) fn axes(&self, node: &Node, axes: &[i64], rank: usize) -> Result<Vec<usize>, Problem> {
        let mut found = Vec::new();
        for axis in axes {
            found.push(self.axis(node, *axis, rank)?);
        }
        found.sort_unstable();
        match found.windows(2).any(|pair| pair[0] == pair[1]) {
            true => self.refuse(node, format!("its axes {axes:?} repeat one")),
            false => Ok(found),
        }
    }

    /// Gives an input another shape. Integers that are known stay known.
    fn reshape_to(&mut self, node: &Node, shape: Shape) -> Result<(), Problem> {
        if let Some(integers) = self.integers(node, 0)? {
            let dims: Option<Vec<u64>> = shape.iter().map(Dim::as_fixed).collect();
            if let Some(shaped) = dims.and_then(|dims| integers.shaped(dims)) {
                self.set(node, 0, Item::Integers(Rc::new(shaped)));
                return Ok(());
            }
        }
        let x = self.value(node, 0)?;
        if dim_product(&self.shape(x)) != dim_product(&shape) {
            return self
                .refuse(node, "its result has another number of elements, or one that depends on symbols");
        }
        let hint = Translator::hint(node);
        let value = self.reshaped(&hint, x, shape);
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    pub(super) fn reshape(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        let from = self.shape_of(&item);
        let wanted = match node.ints("shape") {
            Some(numbers) => numbers.iter().map(|number| Number::Known(*number)).collect(),
            None => match self.integers(node, 1)? {
                Some(integers) => integers.values.clone(),
                None => return self.refuse(node, "its shape is computed when the graph runs"),
            },
        };
        let keeps_zero = node.int("allowzero").unwrap_or(0) != 0;
        let mut shape: Vec<Option<Dim>> = Vec::new();
        for (axis, number) in wanted.iter().enumerate() {
            shape.push(match number {
                Number::Known(-1) => None,
                Number::Known(0) if !keeps_zero => match from.get(axis) {
                    Some(dim) => Some(dim.clone()),
                    None => {
                        return self
                            .refuse(node, format!("its shape copies axis {axis}, which its input lacks"));
                    }
                },
                number => match number.extent() {
                    Some(dim) => Some(dim),
                    None => return self.refuse(node, "its shape has a negative extent"),
                },
            });
        }
        let inferred = shape.iter().filter(|dim| dim.is_none()).count();
        let known = dim_product(shape.iter().flatten());
        let rest = match (dim_product(&from), known) {
            (Some(all), Some(known)) if inferred == 1 => divide(&all, &known),
            (Some(_), Some(_)) if inferred == 0 => Some(Dim::fixed(1)),
            _ => None,
        };
        let Some(rest) = rest else {
            return self
                .refuse(node, "its shape does not follow from its input for every value of the symbols");
        };
        let shape = shape.into_iter().map(|dim| dim.unwrap_or_else(|| rest.clone())).collect();
        self.reshape_to(node, shape)
    }

    pub(super) fn squeeze(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        let shape = self.shape_of(&item);
        let is_one = |dim: &Dim| dim.as_fixed() == Some(1);
        let dropped = match self.numbers(node, "axes", 1)? {
            Some(axes) => self.axes(node, &axes, shape.len())?,
            None => (0..shape.len()).filter(|axis| is_one(&shape[*axis])).collect(),
        };
        if !dropped.iter().all(|axis| is_one(&shape[*axis])) {
            return self.refuse(node, "it drops an extent that is not 1");
        }
        let kept = shape.into_iter().enumerate().filter(|(axis, _)| !dropped.contains(axis));
        let kept = kept.map(|(_, dim)| dim).collect();
        self.reshape_to(node, kept)
    }

    pub(super) fn unsqueeze(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        let shape = self.shape_of(&item);
        let Some(axes) = self.numbers(node, "axes", 1)? else { return self.refuse(node, "it has no axes") };
        let rank = shape.len() + axes.len();
        let added = self.axes(node, &axes, rank)?;
        let mut dims = shape.into_iter();
        let mut next = |axis: usize| if added.contains(&axis) { Some(Dim::fixed(1)) } else { dims.next() };
        let shape = (0..rank).filter_map(&mut next).collect();
        self.reshape_to(node, shape)
    }

    pub(super) fn flatten(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        let shape = self.shape_of(&item);
        let axis = node.int("axis").unwrap_or(1);
        let from_start = if axis < 0 { axis + shape.len() as i64 } else { axis };
        let Some(axis) = usize::try_from(from_start).ok().filter(|axis| *axis <= shape.len()) else {
            return self.refuse(node, format!("its input has no axis {axis}"));
        };
        let (outer, inner) = shape.split_at(axis);
        match (dim_product(outer), dim_product(inner)) {
            (Some(outer), Some(inner)) => self.reshape_to(node, vec![outer, inner]),
            _ => self.refuse(node, "its result is too large"),
        }
    }

    pub(super) fn transpose(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        let shape = self.shape_of(&item);
        let rank = shape.len();
        let permutation: Vec<u32> = match node.ints("perm") {
            Some(axes) => {
                let ordered = self.axes(node, axes, rank)?;
                if ordered.len() != rank {
                    return self.refuse(node, format!("perm is {axes:?} for an input of rank {rank}"));
                }
                let mut permutation = Vec::new();
                for axis in axes {
                    permutation.push(self.axis(node, *axis, rank)? as u32);
                }
                permutation
            }
            None => (0..rank as u32).rev().collect(),
        };
        let mut exchange: Vec<u32> = (0..rank as u32).collect();
        if rank >= 2 {
            exchange.swap(rank - 1, rank - 2);
        }
        if permutation.iter().enumerate().all(|(at, axis)| at == *axis as usize) {
            self.set(node, 0, item);
            return Ok(());
        }
        if let Item::Dequantized(matrix) = item
            && permutation == exchange
        {
            let transposed = !matrix.transposed;
            self.set(node, 0, Item::Dequantized(Dequantized { transposed, ..matrix }));
            return Ok(());
        }
        let x = self.value(node, 0)?;
        let shape = permutation.iter().map(|axis| shape[*axis as usize].clone()).collect();
        let ty = TensorType::new(shape, self.ty(x).element);
        let hint = Translator::hint(node);
        let value = self.step(&hint, OpKind::Transpose { permutation: permutation.clone() }, &[x], ty);
        self.transposes.insert(value, (permutation, x));
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    pub(super) fn expand(&mut self, node: &Node) -> Result<(), Problem> {
        let Some(wanted) = self.integers(node, 1)? else {
            return self.refuse(node, "its shape is computed when the graph runs");
        };
        let extents: Option<Shape> = wanted.values.iter().map(Number::extent).collect();
        let item = self.item(node, 0)?;
        let shape = extents.and_then(|extents| broadcast_shape(&self.shape_of(&item), &extents));
        let Some(shape) = shape else {
            return self
                .refuse(node, "its input does not broadcast to its shape for every value of the symbols");
        };
        let x = self.value(node, 0)?;
        let hint = Translator::hint(node);
        let value = self.broadcast(&hint, x, shape);
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    pub(super) fn shape_op(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        let shape = self.shape_of(&item);
        let rank = shape.len() as i64;
        let bound = |value: i64| (if value < 0 { value + rank } else { value }).clamp(0, rank) as usize;
        let start = bound(node.int("start").unwrap_or(0));
        let end = bound(node.int("end").unwrap_or(rank)).max(start);
        self.set(node, 0, Item::Integers(Rc::new(of_shape(&shape[start..end].to_vec()))));
        Ok(())
    }

    pub(super) fn size(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        match dim_product(&self.shape_of(&item)) {
            Some(count) => self.set(node, 0, Item::Integers(Rc::new(Integers::scalar(Number::of(&count))))),
            None => return self.refuse(node, "its input is too large"),
        }
        Ok(())
    }

    /// A tensor of one repeated value: integers that are known, or a constant.
    pub(super) fn constant_of_shape(&mut self, node: &Node) -> Result<(), Problem> {
        let Some(wanted) = self.integers(node, 0)? else {
            return self.refuse(node, "its shape is computed when the graph runs");
        };
        let extents: Option<Shape> = wanted.values.iter().map(Number::extent).collect();
        let Some(shape) = extents else { return self.refuse(node, "its shape has a negative extent") };
        let stored = match node.attributes.get("value") {
            Some(Attribute::Tensor(at)) => Some(*at),
            _ => None,
        };
        let integer = match stored {
            Some(at) => {
                let model = self.model;
                let values = model.stored[at].integers(&model.files).map_err(|reason| self.failed(reason))?;
                values.and_then(|values| values.first().copied())
            }
            None => None,
        };
        let dims: Option<Vec<u64>> = shape.iter().map(Dim::as_fixed).collect();
        let count =
            dims.as_ref().and_then(|dims| dims.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim)));
        if let (Some(value), Some(dims), Some(count)) =
            (integer, dims, count.filter(|count| *count <= MAX_COUNT))
        {
            self.charge(node, count)?;
            let is_boolean =
                stored.is_some_and(|at| self.model.stored[at].ty == rten_onnx::onnx::DataType::BOOL);
            let element = if is_boolean { ElementType::I1 } else { ElementType::I32 };
            let values = vec![Number::Known(value); count as usize];
            self.set(node, 0, Item::Integers(Rc::new(Integers { dims, values, element })));
            return Ok(());
        }
        // The value is an f32 zero by default.
        let (number, element) = match stored {
            Some(at) => {
                let item = Item::Stored(at);
                (self.known_number(&item)?.unwrap_or(0.0), self.element_of_item(node, &item)?)
            }
            None => (0.0, ElementType::F32),
        };
        let hint = Translator::hint(node);
        // A constant has a fixed shape, so symbols need a broadcast.
        let one = self.filled(&hint, number, TensorType::new(Vec::new(), element));
        let value = self.broadcast(&hint, one, shape);
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    pub(super) fn range(&mut self, node: &Node) -> Result<(), Problem> {
        let mut bounds = Vec::new();
        for position in 0..3 {
            let integers = self.integers(node, position)?;
            match integers.as_ref().and_then(|integers| integers.known()).as_deref() {
                Some([value]) => bounds.push(*value),
                _ => return self.refuse(node, "its bounds are not integers that are known"),
            }
        }
        let (start, limit, delta) = (i128::from(bounds[0]), i128::from(bounds[1]), i128::from(bounds[2]));
        if delta == 0 {
            return self.refuse(node, "its step is 0");
        }
        let distance = if delta > 0 { limit - start } else { start - limit };
        let count = (distance.max(0) + delta.abs() - 1) / delta.abs();
        if count > i128::from(MAX_COUNT) {
            return self.refuse(node, format!("it has {count} elements, more than {MAX_COUNT}"));
        }
        self.charge(node, count as u64)?;
        let values = (0..count).map(|at| Number::Known((start + at * delta) as i64)).collect();
        self.set(node, 0, Item::Integers(Rc::new(Integers::list(values))));
        Ok(())
    }

    /// Joins integers that are known. Returns false for other tensors.
    pub(super) fn fold_concat(&mut self, node: &Node) -> Result<bool, Problem> {
        let mut parts = Vec::new();
        for position in 0..node.inputs.len() {
            match self.integers(node, position)? {
                Some(integers) => parts.push(integers),
                None => return Ok(false),
            }
        }
        let Some(first) = parts.first() else { return Ok(false) };
        let axis = self.concat_axis(node, first.dims.len())?;
        match integers::concat(&parts, axis) {
            Some(joined) => {
                self.charge(node, joined.values.len() as u64)?;
                self.set(node, 0, Item::Integers(Rc::new(joined)));
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Takes elements of integers that are known. Returns false for other tensors.
    pub(super) fn fold_gather(&mut self, node: &Node) -> Result<bool, Problem> {
        let (Some(data), Some(indices)) = (self.integers(node, 0)?, self.integers(node, 1)?) else {
            return Ok(false);
        };
        let axis = self.axis(node, node.int("axis").unwrap_or(0), data.dims.len())?;
        match integers::gather(&data, &indices, axis) {
            Some(taken) => {
                self.charge(node, taken.values.len() as u64)?;
                self.set(node, 0, Item::Integers(Rc::new(taken)));
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Takes a range of a list of integers that are known. Returns false for other tensors.
    pub(super) fn fold_slice(&mut self, node: &Node) -> Result<bool, Problem> {
        let Some(data) = self.integers(node, 0)? else { return Ok(false) };
        let (Some(starts), Some(ends)) = (self.numbers(node, "starts", 1)?, self.numbers(node, "ends", 2)?)
        else {
            return Ok(false);
        };
        let steps = self.numbers(node, "steps", 4)?.unwrap_or_else(|| vec![1]);
        let ([start], [end], [step], [count]) = (&starts[..], &ends[..], &steps[..], &data.dims[..]) else {
            return Ok(false);
        };
        if *step < 1 {
            return Ok(false);
        }
        let count = *count as i64;
        let bound = |value: i64| {
            (if value < 0 { value.saturating_add(count) } else { value }).clamp(0, count) as usize
        };
        let (start, end) = (bound(*start), bound(*end));
        let values: Vec<Number> = match data.values.get(start..end) {
            Some(values) => {
                values.iter().step_by(usize::try_from(*step).unwrap_or(usize::MAX)).cloned().collect()
            }
            None => Vec::new(),
        };
        self.charge(node, values.len() as u64)?;
        let element = data.element;
        let taken = Integers { element, ..Integers::list(values) };
        self.set(node, 0, Item::Integers(Rc::new(taken)));
        Ok(true)
    }

    /// Passes its input on, as dropout does unless it trains.
    pub(super) fn dropout(&mut self, node: &Node) -> Result<(), Problem> {
        if node.input(2).is_some() {
            let trains = self.integers(node, 2)?.and_then(|trains| trains.known());
            if trains.as_deref() != Some(&[0]) {
                return self.refuse(node, "it may be in training mode");
            }
        }
        self.same(node)
    }

    /// Gives a tensor another name.
    pub(super) fn same(&mut self, node: &Node) -> Result<(), Problem> {
        let item = self.item(node, 0)?;
        self.set(node, 0, item);
        Ok(())
    }
}
