//! Integer tensors whose values are known when a model is imported: shapes, axes and indices.

use std::rc::Rc;

use fourfold_ir::{Dim, ElementType, Shape, Symbol};

/// The maximum number of elements of one tensor.
pub(super) const MAX_COUNT: u64 = 1 << 16;
/// The maximum number of symbols of an extent, as in the verifier.
const MAX_SYMBOLS: usize = 32;

/// An integer tensor whose values are known, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Integers {
    pub(super) dims: Vec<u64>,
    pub(super) values: Vec<Number>,
    /// `i32`, or `i1` for booleans.
    pub(super) element: ElementType,
}

/// A known number, or an extent with symbols.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Number {
    Known(i64),
    Extent(Dim),
}

impl Number {
    /// The number of an extent.
    pub(super) fn of(dim: &Dim) -> Number {
        match dim.as_fixed().and_then(|extent| i64::try_from(extent).ok()) {
            Some(extent) => Number::Known(extent),
            None => Number::Extent(dim.clone()),
        }
    }

    pub(super) fn known(&self) -> Option<i64> {
        match self {
            Number::Known(value) => Some(*value),
            Number::Extent(_) => None,
        }
    }

    /// The number as an extent; `None` if it is negative.
    pub(super) fn extent(&self) -> Option<Dim> {
        match self {
            Number::Known(value) => u64::try_from(*value).ok().map(Dim::fixed),
            Number::Extent(dim) => Some(dim.clone()),
        }
    }
}

impl Integers {
    /// A list of numbers.
    pub(super) fn list(values: Vec<Number>) -> Integers {
        Integers { dims: vec![values.len() as u64], values, element: ElementType::I32 }
    }

    /// One number, of rank 0.
    pub(super) fn scalar(value: Number) -> Integers {
        Integers { dims: Vec::new(), values: vec![value], element: ElementType::I32 }
    }

    /// Every value if all are known.
    pub(super) fn known(&self) -> Option<Vec<i64>> {
        self.values.iter().map(Number::known).collect()
    }

    /// The values, in another shape of as many elements.
    pub(super) fn shaped(&self, dims: Vec<u64>) -> Option<Integers> {
        let count = dims.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim))?;
        (count == self.values.len() as u64).then(|| Integers { dims, ..self.clone() })
    }
}

/// An elementwise function of two numbers.
pub(super) type Function = fn(&Number, &Number) -> Option<Number>;

/// The function of an operator; `None` if it is not of two numbers.
pub(super) fn function(op: &str) -> Option<Function> {
    Some(match op {
        "Add" => |left, right| sum(left, right, i64::checked_add),
        "Sub" => |left, right| match (left, right) {
            (Number::Extent(left), Number::Extent(right)) if left == right => Some(Number::Known(0)),
            _ => sum(left, right, i64::checked_sub),
        },
        "Mul" => product,
        "Div" => quotient,
        "Max" => |left, right| known(left, right, |left, right| Some(left.max(right))),
        "Min" => |left, right| known(left, right, |left, right| Some(left.min(right))),
        "Mod" => |left, right| known(left, right, floor_remainder),
        "Equal" => equal,
        "Less" => |left, right| known(left, right, |left, right| Some(i64::from(left < right))),
        "LessOrEqual" => |left, right| known(left, right, |left, right| Some(i64::from(left <= right))),
        "Greater" => |left, right| known(left, right, |left, right| Some(i64::from(left > right))),
        "GreaterOrEqual" => |left, right| known(left, right, |left, right| Some(i64::from(left >= right))),
        "And" => |left, right| known(left, right, |left, right| Some(left & right)),
        "Or" => |left, right| known(left, right, |left, right| Some(left | right)),
        _ => return None,
    })
}

/// The remainder of a division that rounds toward zero, which has the sign of the dividend.
pub(super) fn remainder(left: &Number, right: &Number) -> Option<Number> {
    known(left, right, i64::checked_rem)
}

/// The remainder of a division that rounds down, which has the sign of the divisor.
fn floor_remainder(left: i64, right: i64) -> Option<i64> {
    let remainder = left.checked_rem(right)?;
    let differs = remainder != 0 && (remainder < 0) != (right < 0);
    Some(if differs { remainder + right } else { remainder })
}

fn known(left: &Number, right: &Number, function: fn(i64, i64) -> Option<i64>) -> Option<Number> {
    function(left.known()?, right.known()?).map(Number::Known)
}

/// A sum of extents is known only if one of them is zero.
fn sum(left: &Number, right: &Number, function: fn(i64, i64) -> Option<i64>) -> Option<Number> {
    match (left, right) {
        (Number::Extent(_), Number::Known(0)) => Some(left.clone()),
        (Number::Known(0), Number::Extent(_)) if function(0, 1) == Some(1) => Some(right.clone()),
        _ => known(left, right, function),
    }
}

fn product(left: &Number, right: &Number) -> Option<Number> {
    match (left, right) {
        (Number::Known(left), Number::Known(right)) => left.checked_mul(*right).map(Number::Known),
        _ => {
            let extent = left.extent()?.times(&right.extent()?)?;
            (extent.symbols().len() <= MAX_SYMBOLS).then(|| Number::of(&extent))
        }
    }
}

fn quotient(left: &Number, right: &Number) -> Option<Number> {
    match (left, right) {
        (Number::Known(left), Number::Known(right)) => left.checked_div(*right).map(Number::Known),
        _ => divide(&left.extent()?, &right.extent()?).map(|extent| Number::of(&extent)),
    }
}

fn equal(left: &Number, right: &Number) -> Option<Number> {
    match (left, right) {
        (Number::Known(left), Number::Known(right)) => Some(Number::Known(i64::from(left == right))),
        // An extent is not negative.
        (Number::Extent(_), Number::Known(value)) | (Number::Known(value), Number::Extent(_)) => {
            (*value < 0).then_some(Number::Known(0))
        }
        (Number::Extent(left), Number::Extent(right)) => (left == right).then_some(Number::Known(1)),
    }
}

/// The quotient of two extents; `None` unless it is an extent for every value of the symbols.
pub(super) fn divide(dividend: &Dim, divisor: &Dim) -> Option<Dim> {
    let mut symbols: Vec<Symbol> = dividend.symbols().to_vec();
    for symbol in divisor.symbols() {
        let at = symbols.iter().position(|found| found == symbol)?;
        symbols.remove(at);
    }
    let whole = divisor.constant() != 0 && dividend.constant().is_multiple_of(divisor.constant());
    whole.then(|| Dim::product(dividend.constant() / divisor.constant(), symbols))
}

/// Applies a function to two tensors, which broadcast.
pub(super) fn combine(
    function: Function,
    left: &Integers,
    right: &Integers,
    element: ElementType,
) -> Option<Integers> {
    let dims = broadcast(&left.dims, &right.dims)?;
    let mut values = Vec::new();
    for index in indices(&dims)? {
        values.push(function(at(left, &index), at(right, &index))?);
    }
    Some(Integers { dims, values, element })
}

/// Takes `then` where the condition holds, and `otherwise` elsewhere.
pub(super) fn select(condition: &Integers, then: &Integers, otherwise: &Integers) -> Option<Integers> {
    let dims = broadcast(&broadcast(&condition.dims, &then.dims)?, &otherwise.dims)?;
    let mut values = Vec::new();
    for index in indices(&dims)? {
        let chosen = if at(condition, &index).known()? != 0 { then } else { otherwise };
        values.push(at(chosen, &index).clone());
    }
    Some(Integers { dims, values, element: then.element })
}

fn broadcast(left: &[u64], right: &[u64]) -> Option<Vec<u64>> {
    let rank = left.len().max(right.len());
    let extent =
        |dims: &[u64], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |axis| dims[axis]);
    (0..rank)
        .map(|axis| match (extent(left, axis), extent(right, axis)) {
            (left, right) if left == right => Some(left),
            (1, other) | (other, 1) => Some(other),
            _ => None,
        })
        .collect()
}

/// Every index of a shape, in order; `None` if there are too many.
fn indices(dims: &[u64]) -> Option<Vec<Vec<u64>>> {
    let count = dims.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim))?;
    if count > MAX_COUNT {
        return None;
    }
    let mut all = Vec::with_capacity(count as usize);
    for mut flat in 0..count {
        let mut index = vec![0; dims.len()];
        for (axis, dim) in dims.iter().enumerate().rev() {
            index[axis] = flat % dim;
            flat /= dim;
        }
        all.push(index);
    }
    Some(all)
}

/// The element of a tensor that broadcasts to the shape of the index.
fn at<'a>(tensor: &'a Integers, index: &[u64]) -> &'a Number {
    let skipped = index.len() - tensor.dims.len();
    let mut flat = 0;
    for (dim, index) in tensor.dims.iter().zip(&index[skipped..]) {
        flat = flat * dim + if *dim == 1 { 0 } else { *index };
    }
    &tensor.values[flat as usize]
}

/// Joins tensors along an axis.
pub(super) fn concat(tensors: &[Rc<Integers>], axis: usize) -> Option<Integers> {
    let first = tensors.first()?;
    let mut dims = first.dims.clone();
    let joined = dims.get_mut(axis)?;
    *joined = 0;
    for tensor in tensors {
        let fits = tensor.dims.len() == first.dims.len()
            && tensor
                .dims
                .iter()
                .zip(&first.dims)
                .enumerate()
                .all(|(at, (left, right))| at == axis || left == right);
        if !fits {
            return None;
        }
        *joined = joined.checked_add(tensor.dims[axis])?;
    }
    let outer: u64 = first.dims[..axis].iter().product();
    let count: u64 = tensors.iter().map(|tensor| tensor.values.len() as u64).sum();
    if count > MAX_COUNT {
        return None;
    }
    let mut values = Vec::new();
    for row in 0..outer as usize {
        for tensor in tensors {
            let length = tensor.values.len() / outer as usize;
            values.extend_from_slice(&tensor.values[row * length..(row + 1) * length]);
        }
    }
    Some(Integers { dims, values, element: first.element })
}

/// Takes slices along an axis. The axes of the indices replace it.
pub(super) fn gather(tensor: &Integers, indices: &Integers, axis: usize) -> Option<Integers> {
    let extent = *tensor.dims.get(axis)?;
    let inner: usize = tensor.dims[axis + 1..].iter().product::<u64>() as usize;
    let outer: usize = tensor.dims[..axis].iter().product::<u64>() as usize;
    let picked = indices.known()?;
    if (outer as u64).checked_mul(inner as u64)?.checked_mul(picked.len() as u64)? > MAX_COUNT {
        return None;
    }
    let mut values = Vec::new();
    for row in 0..outer {
        for index in &picked {
            let index = if *index < 0 { index.checked_add_unsigned(extent)? } else { *index };
            let index = u64::try_from(index).ok().filter(|index| *index < extent)? as usize;
            let start = (row * extent as usize + index) * inner;
            values.extend_from_slice(&tensor.values[start..start + inner]);
        }
    }
    let dims = [&tensor.dims[..axis], &indices.dims[..], &tensor.dims[axis + 1..]].concat();
    Some(Integers { dims, values, element: tensor.element })
}

/// The numbers of a shape.
pub(super) fn of_shape(shape: &Shape) -> Integers {
    Integers::list(shape.iter().map(Number::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(values: &[i64]) -> Integers {
        Integers::list(values.iter().map(|value| Number::Known(*value)).collect())
    }

    fn symbol() -> Dim {
        let mut builder = fourfold_ir::Builder::new("f");
        builder.symbol("M")
    }

    #[test]
    fn shape_arithmetic_keeps_symbols() {
        let m = Number::Extent(symbol());
        let four = Number::Known(4);
        let apply = |op: &str, left: &Number, right: &Number| function(op).unwrap()(left, right);
        let product = apply("Mul", &m, &four).unwrap();
        assert_eq!(apply("Div", &product, &four), Some(m.clone()));
        assert_eq!(apply("Div", &product, &m), Some(four.clone()));
        assert_eq!(apply("Div", &m, &four), None);
        assert_eq!(apply("Add", &m, &four), None);
        assert_eq!(apply("Add", &m, &Number::Known(0)), Some(m.clone()));
        assert_eq!(apply("Sub", &Number::Known(0), &m), None);
        assert_eq!(apply("Sub", &m, &m), Some(Number::Known(0)));
        assert_eq!(apply("Equal", &m, &Number::Known(-1)), Some(Number::Known(0)));
        assert_eq!(apply("Equal", &m, &four), None);
        assert_eq!(apply("Add", &Number::Known(i64::MAX), &Number::Known(1)), None);
    }

    #[test]
    fn integer_tensors_broadcast_join_and_gather() {
        let add = function("Add").unwrap();
        let column = list(&[10, 20]).shaped(vec![2, 1]).unwrap();
        let sum = combine(add, &column, &list(&[1, 2, 3]), ElementType::I32).unwrap();
        assert_eq!((sum.dims.clone(), sum.known().unwrap()), (vec![2, 3], vec![11, 12, 13, 21, 22, 23]));
        assert!(combine(add, &list(&[1, 2]), &list(&[1, 2, 3]), ElementType::I32).is_none());
        let joined = concat(&[Rc::new(sum.clone()), Rc::new(column)], 1).unwrap();
        assert_eq!(joined.known().unwrap(), [11, 12, 13, 10, 21, 22, 23, 20]);
        let picked = gather(&sum, &list(&[-1, 0]), 1).unwrap();
        assert_eq!((picked.dims.clone(), picked.known().unwrap()), (vec![2, 2], vec![13, 11, 23, 21]));
        assert!(gather(&sum, &list(&[3]), 1).is_none());
        let chosen = select(&list(&[1, 0]), &list(&[5, 6]), &list(&[7, 8])).unwrap();
        assert_eq!(chosen.known().unwrap(), [5, 8]);
    }
}
