//! Rows of tensors along a symbol: tiled to large inputs, and gathered from large outputs.

use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::{Dim, Module, OpKind, ScaleLayout, Symbol, SymbolValues, Tensor, TensorError, Value, bind};

/// The rows that are drawn; larger inputs repeat them.
const DRAWN: u64 = 64;

/// The most elements of a value among the rows that are compared, and the most products of its ops.
const MOST_ELEMENTS: f64 = (1 << 21) as f64;
const MOST_PRODUCTS: f64 = 2e9;

/// The most rows that are compared at either end.
const MOST_ROWS: usize = 32;

/// Returns the axes of a value whose extent is exactly the symbol; `None` if another extent depends on it.
pub(super) fn axes(module: &Module, value: Value, symbol: Symbol) -> Option<Vec<usize>> {
    let exact = Dim::symbol(symbol);
    let mut axes = Vec::new();
    for (axis, dim) in module.ty(value).shape.iter().enumerate() {
        if *dim == exact {
            axes.push(axis);
        } else if dim.symbols().contains(&symbol) {
            return None;
        }
    }
    Some(axes)
}

/// Returns the number of rows to draw, of `extent` rows.
pub(super) fn drawn(extent: u64) -> u64 {
    extent.min(DRAWN)
}

/// Returns the drawn row at each of `extent` rows.
pub(super) fn repeated(extent: u64) -> Result<Vec<usize>, NoMemory> {
    let rows = drawn(extent) as usize;
    let extent = usize::try_from(extent).unwrap_or(usize::MAX);
    check_memory(extent.saturating_mul(size_of::<usize>()))?;
    Ok((0..extent).map(|row| row % rows).collect())
}

/// Returns the rows that are compared: at most 32 from either end, and fewer where a row has many elements or takes
/// many products. `None` if that is all of them.
pub(super) fn compared(
    module: &Module,
    symbols: &SymbolValues,
    symbol: Symbol,
    extent: u64,
) -> Option<Vec<usize>> {
    let mut one = symbols.clone();
    one.set(symbol, 1);
    let count = |value: Value| -> f64 {
        let dims = bind::concrete_dims(module.ty(value), &one);
        dims.map_or(1.0, |dims| dims.iter().map(|extent| *extent as f64).product())
    };
    let mut elements = 1f64;
    let mut products = 1f64;
    for op in module.ops.keys() {
        let operation = &module.ops[op];
        let results = operation.results.iter().map(|value| count(*value)).fold(0.0, f64::max);
        elements = elements.max(results);
        if matches!(operation.kind, OpKind::Mma | OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_)) {
            let depth = module.ty(operation.operands[0]).shape.last().and_then(|dim| dim.evaluate(&one));
            products += results * depth.unwrap_or(1) as f64;
        }
    }
    let fit = (MOST_ELEMENTS / elements).min(MOST_PRODUCTS / products) / 2.0;
    let each = (fit as usize).clamp(1, MOST_ROWS);
    let extent = usize::try_from(extent).unwrap_or(usize::MAX);
    (extent > 2 * each).then(|| (0..each).chain(extent - each..extent).collect())
}

/// Returns the slices of a tensor at some positions of an axis, in this order.
pub(super) fn gather(tensor: &Tensor, axis: usize, positions: &[usize]) -> Result<Tensor, TensorError> {
    let mut dims = tensor.dims().to_vec();
    let extent = std::mem::replace(&mut dims[axis], positions.len());
    let outer: usize = dims[..axis].iter().product();
    let inner: usize = dims[axis + 1..].iter().product();
    let bits = inner * tensor.element().storage_bits();
    let is_plain = tensor.layout() != Some(ScaleLayout::Blocked) && bits.is_multiple_of(8);
    let (codes, width);
    let (bytes, chunk): (&[u8], usize) = match is_plain {
        true => (tensor.bytes(), bits / 8),
        false => {
            width = tensor.element().storage_bits().div_ceil(8);
            codes = tensor.to_codes();
            (&codes, inner * width)
        }
    };
    let bytes_gathered = outer.saturating_mul(positions.len()).saturating_mul(chunk);
    check_memory(bytes_gathered).map_err(|NoMemory { bytes }| {
        let (element, dims) = (tensor.element(), dims.clone());
        TensorError::Memory { element, dims, bytes }
    })?;
    let mut gathered = Vec::with_capacity(bytes_gathered);
    for block in 0..outer {
        for position in positions {
            let start = (block * extent + position) * chunk;
            gathered.extend_from_slice(&bytes[start..start + chunk]);
        }
    }
    match is_plain {
        true => Tensor::new(tensor.element(), dims, tensor.layout(), gathered),
        false => Tensor::from_codes(tensor.element(), dims, tensor.layout(), gathered),
    }
}

/// Gathers along several axes, one after another.
pub(super) fn gather_all(
    tensor: &Tensor,
    axes: &[usize],
    positions: &[usize],
) -> Result<Tensor, TensorError> {
    let Some((first, rest)) = axes.split_first() else { return tensor.try_clone() };
    let mut gathered = gather(tensor, *first, positions)?;
    for axis in rest {
        gathered = gather(&gathered, *axis, positions)?;
    }
    Ok(gathered)
}

/// Returns true if the padding of blocked scales is zero, and for every other tensor.
pub(super) fn has_zero_padding(tensor: &Tensor) -> Result<bool, TensorError> {
    if tensor.layout() != Some(ScaleLayout::Blocked) {
        return Ok(true);
    }
    let (element, dims) = (tensor.element(), tensor.dims().to_vec());
    let padded = Tensor::from_codes(element, dims, tensor.layout(), tensor.to_codes())?;
    Ok(padded.bytes() == tensor.bytes())
}

#[cfg(test)]
mod tests {
    use fourfold_ir::ElementType;

    use super::*;

    fn numbered(element: ElementType, dims: &[usize], layout: Option<ScaleLayout>) -> Tensor {
        let count: usize = dims.iter().product();
        let width = element.storage_bits().div_ceil(8);
        let codes = (0..count * width).map(|code| (code % 7) as u8).collect();
        Tensor::from_codes(element, dims.to_vec(), layout, codes).expect("a tensor")
    }

    #[test]
    fn rows_are_gathered_in_every_layout_and_along_every_axis() {
        let blocked = Some(ScaleLayout::Blocked);
        for (element, layout) in [
            (ElementType::BF16, None),
            (ElementType::F4E2M1FN, None),
            (ElementType::F8E4M3FN, blocked),
            (ElementType::F8E4M3FN, Some(ScaleLayout::Linear)),
        ] {
            let tensor = numbered(element, &[3, 130, 6], layout);
            let width = element.storage_bits().div_ceil(8);
            let codes = tensor.to_codes();
            for (axis, positions) in [(0, vec![2]), (1, vec![0, 1, 128, 129]), (2, vec![1, 5])] {
                let gathered = gather(&tensor, axis, &positions).expect("a tensor");
                let mut dims = vec![3, 130, 6];
                dims[axis] = positions.len();
                assert_eq!(gathered.dims(), dims);
                let found = gathered.to_codes();
                for at in 0..found.len() / width {
                    let mut index = [at / (dims[1] * dims[2]), at / dims[2] % dims[1], at % dims[2]];
                    index[axis] = positions[index[axis]];
                    let from = (index[0] * 130 + index[1]) * 6 + index[2];
                    assert_eq!(found[at * width..][..width], codes[from * width..][..width], "{element}");
                }
            }
        }
    }

    #[test]
    fn rows_repeat_to_a_larger_tensor() {
        let tensor = numbered(ElementType::F16, &[2, 3], None);
        let tiled = gather(&tensor, 0, &[0, 1, 0, 1, 0]).expect("a tensor");
        assert_eq!((tiled.dims(), &tiled.bytes()[24..30]), (&[5, 3][..], &tensor.bytes()[..6]));
        assert_eq!(repeated(130).expect("memory")[62..67], [62, 63, 0, 1, 2]);
        assert!(repeated(u64::MAX).is_err(), "more than the address space");
        let square = gather_all(&numbered(ElementType::F32, &[4, 4], None), &[0, 1], &[3, 0]);
        assert_eq!(square.expect("a tensor").dims(), [2, 2]);
    }

    #[test]
    fn padding_other_than_zero_is_found() {
        let mut scales = numbered(ElementType::F8E4M3FN, &[130, 6], Some(ScaleLayout::Blocked));
        assert_eq!(has_zero_padding(&scales), Ok(true));
        *scales.bytes_mut().last_mut().expect("a byte") = 1;
        assert_eq!(has_zero_padding(&scales), Ok(false));
    }

    #[test]
    fn fewer_rows_are_compared_where_a_row_is_long() {
        let rows = |dims: &str| {
            let text = format!(
                "fir 1\nfunc @f(%x: tensor<[M, {dims}], f32>) {{\n  \
                 %y = relu %x : tensor<[M, {dims}], f32>\n  return %y\n}}\n"
            );
            let (program, _) = fourfold_ir::load(&text).expect("a program");
            let module = program.module();
            let (symbol, _) = module.symbols.iter().next().expect("a symbol");
            [1, 64, 65, 4096].map(|extent| {
                compared(module, &SymbolValues::default(), symbol, extent).map(|rows| (rows.len(), rows[0]))
            })
        };
        assert_eq!(rows("64"), [None, None, Some((64, 0)), Some((64, 0))]);
        assert_eq!(rows("131072"), [None, Some((16, 0)), Some((16, 0)), Some((16, 0))]);
        assert_eq!(rows("100000000"), [None, Some((2, 0)), Some((2, 0)), Some((2, 0))]);
    }
}
