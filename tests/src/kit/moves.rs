//! Parts that move elements.

use super::draft::{Draft, Extent, Fixed, Origin, Rows, Val};
use super::rows::{COLUMNS, FIXED_ROWS};

/// The largest number of elements that a part may produce.
const MOST_ELEMENTS: u64 = 1 << 16;

/// The types of inputs of moves.
const ELEMENTS: [&str; 7] = ["f32", "bf16", "f16", "i32", "i1", "f8E4M3FN", "f4E2M1FN"];

impl Draft {
    /// A move of an earlier result or of an input.
    pub(super) fn move_part(&mut self) {
        if self.random.percent(20) {
            return if self.random.percent(40) { self.group_scales() } else { self.swizzle() };
        }
        if self.random.percent(10) {
            let dims = [&FIXED_ROWS[..], &COLUMNS[..]].map(|extents| Fixed(self.random.pick(extents)));
            let param = Val { origin: Origin::Apart, ..self.param(&dims, "f32") };
            self.link(&param);
            return;
        }
        let earlier = self.find(|value| value.layout != Some("blocked"));
        let value = match earlier.filter(|_| self.random.percent(70)) {
            Some(value) => self.perhaps_viewed(value),
            None => {
                let element = self.random.pick(&ELEMENTS);
                let dims = self.extents(&[2, 8, 16, 34, 64, 90], false);
                self.input(&dims, element)
            }
        };
        self.link(&value);
    }

    /// Moves a value, so that a row part may read the result. `None` if no move takes it.
    pub(super) fn link(&mut self, value: &Val) -> Option<Val> {
        let first = self.random.below(7);
        let moved = (0..7).find_map(|turn| match (first + turn) % 7 {
            0 => self.transpose(value),
            1 => self.slice(value),
            2 => self.concat(value),
            3 => self.gather(value),
            4 => self.pad(value),
            5 => self.choose(value),
            _ => self.broadcast(value),
        })?;
        Some(moved)
    }

    fn moved(&mut self, op: &str, value: &Val, dims: &[Extent]) -> Val {
        self.read(&value.name, false);
        // A value that no other part may read stays so.
        let origin = if value.origin == Origin::Apart { Origin::Apart } else { Origin::Move };
        self.result_with(op, dims, value.element, value.layout, origin)
    }

    fn transpose(&mut self, value: &Val) -> Option<Val> {
        let is_turned = value.transposed || value.layout.is_some();
        if value.element == "f4E2M1FN" || value.dims.len() < 2 || is_turned {
            return None;
        }
        let mut order: Vec<usize> = (0..value.dims.len()).collect();
        let (one, other) = (self.random.below(order.len()), self.random.below(order.len() - 1));
        order.swap(one, (one + 1 + other) % value.dims.len());
        let dims: Vec<Extent> = order.iter().map(|axis| value.dims[*axis]).collect();
        Some(self.moved(&format!("transpose %{} {{permutation = {order:?}}}", value.name), value, &dims))
    }

    fn slice(&mut self, value: &Val) -> Option<Val> {
        let axes = (0..value.dims.len()).filter(|axis| value.dims[*axis].fixed().is_some_and(|it| it >= 8));
        let axes: Vec<usize> = axes.collect();
        if axes.is_empty() {
            return None;
        }
        let axis = self.random.pick(&axes);
        let extent = value.dims[axis].fixed()?;
        let is_packed = value.element == "f4E2M1FN";
        let start = 2 * self.random.below(extent as usize / 4) as u64 + u64::from(!is_packed);
        let (end, step) = match self.random.below(3) {
            0 if !is_packed => (extent, 2),
            1 => (extent, 1),
            _ => (extent - 2, 1),
        };
        // FP4 is moved in whole bytes.
        let end = if is_packed { start + (end - start) / 2 * 2 } else { end };
        let mut dims = value.dims.clone();
        dims[axis] = Fixed((end - start).div_ceil(step));
        let steps = if step == 1 { String::new() } else { format!(", steps = [{step}]") };
        let op =
            format!("slice %{} {{axes = [{axis}], ends = [{end}], starts = [{start}]{steps}}}", value.name);
        Some(self.moved(&op, value, &dims))
    }

    fn concat(&mut self, value: &Val) -> Option<Val> {
        if value.elements() > MOST_ELEMENTS || value.dims.is_empty() {
            return None;
        }
        let axis = self.random.below(value.dims.len());
        let mut names = vec![format!("%{}", value.name)];
        let mut sum = value.dims[axis];
        for _ in 0..=self.random.below(2) {
            let mut dims = value.dims.clone();
            if dims[axis].fixed().is_some() {
                dims[axis] = Fixed(self.random.pick(&[2, 4, 10]));
            }
            sum = sum.plus(dims[axis])?;
            let other = match value.layout {
                Some(layout) => self.scales(&dims, value.element, layout, Origin::Input),
                None => self.input(&dims, value.element),
            };
            names.push(format!("%{}", other.name));
        }
        let turns = self.random.below(names.len());
        names.rotate_left(turns);
        let mut dims = value.dims.clone();
        dims[axis] = sum;
        Some(self.moved(&format!("concat {} {{axis = {axis}}}", names.join(", ")), value, &dims))
    }

    /// Chooses between a value, another or an input, and perhaps the value again.
    fn choose(&mut self, value: &Val) -> Option<Val> {
        if value.layout.is_some() || value.dims.is_empty() || value.transposed {
            return None;
        }
        let same = |other: &Val| {
            other.dims == value.dims && (other.element, other.layout) == (value.element, value.layout)
        };
        let other = match self.find(|other| same(other) && other.name != value.name) {
            Some(other) => other,
            None => self.input(&value.dims, value.element),
        };
        self.read(&other.name, false);
        let mut names = vec![format!("%{}", value.name), format!("%{}", other.name)];
        if self.random.percent(30) {
            names.push(names[0].clone());
        }
        let turns = self.random.below(names.len());
        names.rotate_left(turns);
        let axis = self.random.below(value.dims.len());
        let end = self.random.pick(&[0u64, 1, 3, 7, 16, 40, 64]);
        let ends: Vec<u64> = (0..names.len() as u64 - 1).map(|more| end + more * 20).collect();
        let op = format!("choose {} {{axis = {axis}, ends = {ends:?}}}", names.join(", "));
        Some(self.moved(&op, value, &value.dims))
    }

    fn gather(&mut self, value: &Val) -> Option<Val> {
        let is_packed = value.element == "f4E2M1FN";
        let last = value.dims.len().checked_sub(1)?;
        let fits = |axis: &usize| {
            value.dims[*axis].fixed().is_some_and(|extent| extent >= 8) && !(is_packed && *axis == last)
        };
        let axes: Vec<usize> = (0..=last).filter(fits).collect();
        if axes.is_empty() {
            return None;
        }
        let axis = self.random.pick(&axes);
        let count = self.random.pick(&[2, 5, 9, 32]);
        let indices = self.indices(count);
        self.read(&indices.name, false);
        let mut dims = value.dims.clone();
        dims[axis] = Fixed(count);
        let op = format!("gather %{}, %{} {{axis = {axis}}}", value.name, indices.name);
        Some(self.moved(&op, value, &dims))
    }

    /// Pads f32 only, which is one kernel.
    fn pad(&mut self, value: &Val) -> Option<Val> {
        if value.element != "f32" || value.elements() > MOST_ELEMENTS {
            return None;
        }
        let fixed = (0..value.dims.len()).filter(|axis| value.dims[*axis].fixed().is_some());
        let axes: Vec<usize> = fixed.collect();
        if axes.is_empty() {
            return None;
        }
        let axis = self.random.pick(&axes);
        let (low, high) = (self.random.below(3), 1 + self.random.below(4));
        let mut dims = value.dims.clone();
        dims[axis] = Fixed(value.dims[axis].fixed()? + (low + high) as u64);
        let number = self.random.pick(&["0", "-0", "1.1", "-inf"]);
        let op = format!(
            "pad %{} {{axes = [{axis}], high = [{high}], low = [{low}], value = {number}}}",
            value.name
        );
        Some(self.moved(&op, value, &dims))
    }

    /// Repeats a moved value or a product along a new axis. A row kernel would absorb the broadcast of its own result.
    fn broadcast(&mut self, value: &Val) -> Option<Val> {
        let can = value.ends_a_kernel() && !value.in_row && value.layout.is_none();
        if !can || value.element == "f4E2M1FN" || value.dims.len() > 2 || value.elements() > MOST_ELEMENTS / 4
        {
            return None;
        }
        let dims = [&[Fixed(3)], &value.dims[..]].concat();
        self.read(&value.name, false);
        let op = format!("broadcast %{}", value.name);
        Some(self.result(&op, &dims, value.element, Origin::View))
    }

    /// Converts the layout of scales.
    fn swizzle(&mut self) {
        // Normalization quantizes to blocked scales at once, by another kernel, if linear ones are converted.
        let fits = |value: &Val| value.layout == Some("blocked") || value.origin == Origin::Move;
        let scales = match self.find(|value| value.layout.is_some() && fits(value)) {
            Some(value) => value,
            None => {
                let columns = Fixed(self.random.pick(&[1, 3, 4, 6, 9]));
                let layout = self.random.pick(&["linear", "blocked"]);
                self.scales(&[Rows(1), columns], "f8E4M3FN", layout, Origin::Input)
            }
        };
        self.read(&scales.name, false);
        let layout = if scales.layout == Some("linear") { "blocked" } else { "linear" };
        let op = format!("swizzle_scales %{}", scales.name);
        self.result_with(&op, &scales.dims, scales.element, Some(layout), Origin::Move);
    }

    /// Lays out linear scales with whole tiles for each group of rows.
    fn group_scales(&mut self) {
        let fits = |value: &Val| value.layout == Some("linear") && value.dims.len() == 2;
        let scales = match self.find(|value| fits(value) && value.origin == Origin::Move) {
            Some(value) => value,
            None => {
                let columns = Fixed(self.random.pick(&[1, 3, 4, 6, 9]));
                let element = self.random.pick(&["f8E4M3FN", "f8E8M0FNU"]);
                self.scales(&[Rows(1), columns], element, "linear", Origin::Input)
            }
        };
        let groups = self.random.pick(&[1u64, 5, 33]);
        let ends = self.input(&[Fixed(groups)], "i32");
        let op = format!("padded_ends %{} {{multiple = 128}}", ends.name);
        let padded = self.step(&op, &ends.dims, "i32");
        self.read(&scales.name, false);
        let op = format!("group_scales %{}, %{}, %{padded}", scales.name, ends.name);
        let rows = Fixed((scales.dims[0].most() / 128 + groups) * 128);
        self.result_with(&op, &[rows, scales.dims[1]], scales.element, Some("blocked"), Origin::Move);
    }

    /// Views an earlier result or an input.
    pub(super) fn view_part(&mut self) {
        let value = match self.find(|value| can_be_viewed(value) && value.dims.len() > 1) {
            Some(value) => value,
            None => {
                let dims = self.extents(&[2, 8, 34], false);
                self.input(&dims, "f32")
            }
        };
        self.view(&value);
    }

    /// Sometimes views a value before a move or a product reads it.
    pub(super) fn perhaps_viewed(&mut self, value: Val) -> Val {
        match can_be_viewed(&value) && self.random.percent(40) {
            true => self.view(&value),
            false => value,
        }
    }

    /// Joins the first two axes, or adds one.
    fn view(&mut self, value: &Val) -> Val {
        let dims = match value.dims[..] {
            [Fixed(a), Fixed(b), ref rest @ ..] if !rest.is_empty() => [&[Fixed(a * b)], rest].concat(),
            [Rows(a), Fixed(b), ref rest @ ..] | [Fixed(b), Rows(a), ref rest @ ..] if !rest.is_empty() => {
                [&[Rows(a * b)], rest].concat()
            }
            _ => [&[Fixed(1)], &value.dims[..]].concat(),
        };
        self.read(&value.name, false);
        self.result(&format!("reshape %{}", value.name), &dims, value.element, Origin::View)
    }
}

/// True for moved values, products and inputs. A row kernel would absorb a view of its own result.
fn can_be_viewed(value: &Val) -> bool {
    value.ends_a_kernel() && value.layout.is_none() && !value.in_row && value.dims.len() < 4
}
