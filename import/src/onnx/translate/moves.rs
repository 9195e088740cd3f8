//! Ops that select and join elements.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, PadAmount, Predicate, SliceRange, TensorType, Value,
};

use super::super::model::Node;
use super::super::problem::Problem;
use super::state::{Item, Translator};

/// The largest number that stands for the end of an axis.
const OPEN_END: i64 = i32::MAX as i64;

/// The first opset in which Concat must state its axis, which was 1 by default.
const CONCAT_STATES_AXIS: i64 = 4;

impl Translator<'_> {
    /// The axis of a Concat, which the first opsets may omit.
    pub(super) fn concat_axis(&self, node: &Node, rank: usize) -> Result<usize, Problem> {
        let is_old = self.model.opset("").is_some_and(|opset| opset < CONCAT_STATES_AXIS);
        match node.int("axis").or(is_old.then_some(1)) {
            Some(axis) => self.axis(node, axis, rank),
            None => self.refuse(node, "it states no axis"),
        }
    }

    pub(super) fn concat(&mut self, node: &Node) -> Result<(), Problem> {
        let mut parts = Vec::new();
        for position in 0..node.inputs.len() {
            parts.push(self.value(node, position)?);
        }
        let Some(first) = parts.first() else { return self.refuse(node, "it has no inputs") };
        let ty = self.ty(*first).clone();
        let axis = self.concat_axis(node, ty.rank())?;
        let mut element = ty.element;
        let mut extent = Some(Dim::fixed(0));
        for part in &parts {
            let found = self.ty(*part);
            let fits = found.rank() == ty.rank()
                && (0..ty.rank()).all(|at| at == axis || found.shape[at] == ty.shape[at]);
            if !fits {
                return self
                    .refuse(node, "the shapes of its inputs differ in another axis, or depend on symbols");
            }
            extent = extent.and_then(|extent| extent.plus(&found.shape[axis]));
            element = match element == found.element {
                true => element,
                false => self.join(node, *first, *part)?,
            };
        }
        let Some(extent) = extent else {
            return self.refuse(node, "the sum of its extents is no multiple of one product of symbols");
        };
        let hint = Translator::hint(node);
        let parts: Vec<Value> = parts.into_iter().map(|part| self.converted(&hint, part, element)).collect();
        let mut shape = ty.shape;
        shape[axis] = extent;
        self.define(node, 0, OpKind::Concat { axis: axis as u32 }, &parts, TensorType::new(shape, element));
        Ok(())
    }

    pub(super) fn gather(&mut self, node: &Node) -> Result<(), Problem> {
        let known = self.integers(node, 1)?;
        let x = self.value(node, 0)?;
        let ty = self.ty(x).clone();
        let axis = self.axis(node, node.int("axis").unwrap_or(0), ty.rank())?;
        let indices = match known.as_ref().and_then(|known| known.known()) {
            // Programs count from the front only.
            Some(mut indices) => {
                for index in &mut indices {
                    match ty.shape[axis].as_fixed().and_then(|extent| i64::try_from(extent).ok()) {
                        Some(extent) if *index >= extent || index.saturating_add(extent) < 0 => {
                            return self.refuse(node, format!("it takes index {index} of {extent}"));
                        }
                        Some(extent) if *index < 0 => *index += extent,
                        None if *index < 0 => {
                            return self.refuse(node, "an index counts from a symbolic end");
                        }
                        _ => {}
                    }
                }
                let dims = known.map_or_else(Vec::new, |known| known.dims.clone());
                let shape = dims.into_iter().map(Dim::fixed).collect();
                let values: Vec<f64> = indices.into_iter().map(|index| index as f64).collect();
                let value = match &values[..] {
                    [value] => ConstantValue::Splat(*value),
                    _ => ConstantValue::Dense(values),
                };
                let hint = format!("{}.indices", Translator::hint(node));
                self.step(&hint, OpKind::Constant(value), &[], TensorType::new(shape, ElementType::I32))
            }
            None => {
                let indices = self.value(node, 1)?;
                self.counted_from_front(node, indices, &ty.shape[axis])?
            }
        };
        if self.ty(indices).element != ElementType::I32 {
            return self.refuse(node, "its indices are no integers");
        }
        let shape = [&ty.shape[..axis], &self.shape(indices), &ty.shape[axis + 1..]].concat();
        let result = TensorType::new(shape, ty.element);
        self.define(node, 0, OpKind::Gather { axis: axis as u32 }, &[x, indices], result);
        Ok(())
    }

    /// Indices that count from the front, where negative ones count from the end of an axis.
    fn counted_from_front(&mut self, node: &Node, indices: Value, extent: &Dim) -> Result<Value, Problem> {
        let ty = self.ty(indices).clone();
        let extent = extent.as_fixed().filter(|extent| *extent <= OPEN_END as u64);
        let (Some(extent), ElementType::I32) = (extent, ty.element) else {
            self.note(format!("{} takes no negative indices.", node.label()));
            return Ok(indices);
        };
        let hint = format!("{}.indices", Translator::hint(node));
        let zero = self.constant(&hint, 0.0, ElementType::I32);
        let extent = self.constant(&hint, extent as f64, ElementType::I32);
        let is_negative = TensorType::new(ty.shape.clone(), ElementType::I1);
        let is_negative = self.step(&hint, OpKind::Compare(Predicate::Lt), &[indices, zero], is_negative);
        let shifted = self.step(&hint, OpKind::Binary(BinaryKind::Add), &[indices, extent], ty.clone());
        Ok(self.step(&hint, OpKind::Select, &[is_negative, shifted, indices], ty))
    }

    pub(super) fn slice(&mut self, node: &Node) -> Result<(), Problem> {
        let (starts, ends) = (self.numbers(node, "starts", 1)?, self.numbers(node, "ends", 2)?);
        let (Some(starts), Some(ends)) = (starts, ends) else { return self.refuse(node, "it has no bounds") };
        let x = self.value(node, 0)?;
        let ty = self.ty(x).clone();
        let axes = self.numbers(node, "axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = self.numbers(node, "steps", 4)?.unwrap_or_else(|| vec![1; axes.len()]);
        if [starts.len(), ends.len(), steps.len()] != [axes.len(); 3] {
            return self.refuse(node, "it does not have one bound and one step per axis");
        }
        let mut ranges = Vec::new();
        for (at, axis) in axes.iter().enumerate() {
            let axis = self.axis(node, *axis, ty.rank())?;
            // A whole axis may be symbolic.
            if starts[at] == 0 && ends[at] >= OPEN_END && steps[at] == 1 {
                continue;
            }
            let extent = ty.shape[axis].as_fixed().and_then(|extent| i64::try_from(extent).ok());
            let Some(extent) = extent else { return self.refuse(node, format!("axis {axis} is symbolic")) };
            let Some(step) = u64::try_from(steps[at]).ok().filter(|step| *step > 0) else {
                return self.refuse(node, "it takes elements backwards");
            };
            let bound = |value: i64| {
                (if value < 0 { value.saturating_add(extent) } else { value }).clamp(0, extent) as u64
            };
            let start = bound(starts[at]);
            ranges.push(SliceRange { axis: axis as u32, start, end: bound(ends[at]).max(start), step });
        }
        self.take(node, 0, x, ranges)
    }

    /// Takes ranges of a value as a result of a node.
    fn take(
        &mut self,
        node: &Node,
        result: usize,
        x: Value,
        mut ranges: Vec<SliceRange>,
    ) -> Result<(), Problem> {
        ranges.sort_unstable_by_key(|range| range.axis);
        if ranges.windows(2).any(|pair| pair[0].axis == pair[1].axis) {
            return self.refuse(node, "its axes repeat one");
        }
        if ranges.is_empty() {
            self.set(node, result, Item::Value(x));
            return Ok(());
        }
        let mut ty = self.ty(x).clone();
        for range in &ranges {
            ty.shape[range.axis as usize] = Dim::fixed(range.extent());
        }
        self.define(node, result, OpKind::Slice { ranges }, &[x], ty);
        Ok(())
    }

    pub(super) fn split(&mut self, node: &Node) -> Result<(), Problem> {
        let x = self.value(node, 0)?;
        let ty = self.ty(x).clone();
        let axis = self.axis(node, node.int("axis").unwrap_or(0), ty.rank())?;
        let Some(extent) = ty.shape[axis].as_fixed() else {
            return self.refuse(node, format!("axis {axis} is symbolic"));
        };
        let count = node.outputs.len() as u64;
        let sizes: Vec<u64> = match self.numbers(node, "split", 1)? {
            Some(sizes) => sizes.into_iter().map(|size| u64::try_from(size).unwrap_or(u64::MAX)).collect(),
            None => {
                // The last part is smaller if the extent is no multiple.
                let size = extent.div_ceil(count.max(1));
                (0..count).map(|at| extent.saturating_sub(at * size).min(size)).collect()
            }
        };
        let total = sizes.iter().try_fold(0u64, |total, size| total.checked_add(*size));
        if sizes.len() as u64 != count || total != Some(extent) {
            return self.refuse(node, format!("its parts do not add up to the extent {extent}"));
        }
        let mut start = 0;
        for (result, size) in sizes.into_iter().enumerate() {
            let range = SliceRange { axis: axis as u32, start, end: start + size, step: 1 };
            self.take(node, result, x, vec![range])?;
            start += size;
        }
        Ok(())
    }

    pub(super) fn pad(&mut self, node: &Node) -> Result<(), Problem> {
        let mode = node.text("mode").unwrap_or("constant");
        if mode != "constant" {
            return self.refuse(node, format!("the mode `{mode}` has no equivalent"));
        }
        let Some(pads) = self.numbers(node, "pads", 1)? else { return self.refuse(node, "it has no pads") };
        let value = match node.float("value") {
            Some(value) => f64::from(value),
            None if node.input(2).is_some() => {
                let item = self.item(node, 2)?;
                match self.known_number(&item)? {
                    Some(value) => value,
                    None => return self.refuse(node, "its value is computed when the graph runs"),
                }
            }
            None => 0.0,
        };
        let x = self.value(node, 0)?;
        let mut ty = self.ty(x).clone();
        let axes = match self.numbers(node, "axes", 3)? {
            Some(axes) => axes,
            None => (0..ty.rank() as i64).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return self.refuse(node, "it does not have two pads per axis");
        }
        let mut amounts = Vec::new();
        for (at, axis) in axes.iter().enumerate() {
            let axis = self.axis(node, *axis, ty.rank())?;
            let (low, high) = (u64::try_from(pads[at]), u64::try_from(pads[at + axes.len()]));
            let (Ok(low), Ok(high)) = (low, high) else { return self.refuse(node, "a pad is negative") };
            if low == 0 && high == 0 {
                continue;
            }
            let sum = ty.shape[axis].plus(&Dim::fixed(low)).and_then(|sum| sum.plus(&Dim::fixed(high)));
            let Some(sum) = sum else { return self.refuse(node, format!("axis {axis} is symbolic")) };
            ty.shape[axis] = sum;
            amounts.push(PadAmount { axis: axis as u32, low, high });
        }
        amounts.sort_unstable_by_key(|amount| amount.axis);
        if amounts.windows(2).any(|pair| pair[0].axis == pair[1].axis) {
            return self.refuse(node, "its axes repeat one");
        }
        match amounts.is_empty() {
            true => self.set(node, 0, Item::Value(x)),
            false => self.define(node, 0, OpKind::Pad { amounts, value }, &[x], ty),
        }
        Ok(())
    }

    /// Adds zeros at the end of an axis of fixed extent, or removes what is beyond an extent.
    pub(super) fn resized(&mut self, hint: &str, x: Value, axis: usize, extent: u64) -> Value {
        let mut ty = self.ty(x).clone();
        let given = ty.shape[axis].as_fixed().unwrap_or(extent);
        ty.shape[axis] = Dim::fixed(extent);
        let kind = match extent.checked_sub(given) {
            Some(high) => {
                OpKind::Pad { amounts: vec![PadAmount { axis: axis as u32, low: 0, high }], value: 0.0 }
            }
            None => OpKind::Slice {
                ranges: vec![SliceRange { axis: axis as u32, start: 0, end: extent, step: 1 }],
            },
        };
        self.step(hint, kind, &[x], ty)
    }

    /// Keeps the elements on one side of a diagonal, and clears the others.
    pub(super) fn triangle(&mut self, node: &Node) -> Result<(), Problem> {
        let diagonal = match self.integers(node, 1)?.map(|diagonal| diagonal.known()) {
            Some(Some(diagonal)) if diagonal.len() == 1 => diagonal[0],
            None if node.input(1).is_none() => 0,
            _ => return self.refuse(node, "its diagonal is computed when the graph runs"),
        };
        let is_upper = node.int("upper").unwrap_or(1) != 0;
        let x = self.value(node, 0)?;
        let ty = self.ty(x).clone();
        let [.., rows, columns] = &ty.shape[..] else { return self.refuse(node, "its input is no matrix") };
        let (Some(row_count), Some(column_count)) = (rows.as_fixed(), columns.as_fixed()) else {
            return self.refuse(node, "its matrix has a symbolic extent");
        };
        self.charge(node, row_count.saturating_add(column_count))?;
        let hint = format!("{}.mask", Translator::hint(node));
        let mut numbers = |count: u64, first: i64, shape: Vec<Dim>| {
            let values = (0..count).map(|at| at as f64 + first as f64).collect();
            let kind = OpKind::Constant(ConstantValue::Dense(values));
            self.step(&hint, kind, &[], TensorType::new(shape, ElementType::I32))
        };
        let across = numbers(column_count, 0, vec![columns.clone()]);
        let down = numbers(row_count, diagonal, vec![rows.clone(), Dim::fixed(1)]);
        let keeps = OpKind::Compare(if is_upper { Predicate::Ge } else { Predicate::Le });
        let mask = TensorType::new(vec![rows.clone(), columns.clone()], ElementType::I1);
        let mask = self.step(&hint, keeps, &[across, down], mask);
        if ty.element != ElementType::I1 {
            let zero = self.constant(&hint, 0.0, ty.element);
            self.define(node, 0, OpKind::Select, &[mask, x, zero], ty);
            return Ok(());
        }
        // A choice takes numbers, so truth values become 0 and 1.
        let [one, zero] = [1.0, 0.0].map(|number| self.constant(&hint, number, ElementType::I32));
        let whole = TensorType::new(ty.shape.clone(), ElementType::I32);
        let x = self.step(&hint, OpKind::Select, &[x, one, zero], whole.clone());
        let kept = self.step(&hint, OpKind::Select, &[mask, x, zero], whole);
        self.define(node, 0, OpKind::Compare(Predicate::Ne), &[kept, zero], ty);
        Ok(())
    }
}
