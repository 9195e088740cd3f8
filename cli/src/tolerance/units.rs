//! The units of operands: powers of two of which all elements of a row are multiples.

use fourfold_ir::{ElementType, Tensor, numeric};

/// The least elements for which a thread is worth its start.
const LEAST_OF_THREAD: usize = 1 << 16;

/// Returns the largest power of two of which every element of a row is a multiple, for each row; `None` if an element
/// is not finite. A row of zeros has the unit infinity.
pub(super) fn row_units(data: &Tensor, scales: Option<&Tensor>, block: usize) -> Option<Vec<f64>> {
    let [rows @ .., k] = data.dims() else { return None };
    let scales = scales.map(|scales| (scales.to_codes(), scales.element()));
    let scale = |index: usize| match &scales {
        None => 1.0,
        Some((codes, ElementType::F8E4M3FN)) => numeric::ue4m3_to_f32(codes[index / block]),
        Some((codes, _)) => numeric::e8m0_to_f32(codes[index / block]),
    };
    let unit_of = |row: usize| -> Option<f64> {
        let mut unit = f64::INFINITY;
        for index in row * k..(row + 1) * k {
            let value = f64::from(element(data, index)?) * f64::from(scale(index));
            if !value.is_finite() {
                return None;
            }
            if value != 0.0 {
                unit = unit.min(lowest_bit(value));
            }
        }
        Some(unit)
    };
    // Weights of many experts have billions of elements.
    let mut units = vec![Some(f64::INFINITY); rows.iter().product()];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let of_thread = units.len().div_ceil(threads).max(LEAST_OF_THREAD.div_ceil((*k).max(1)));
    std::thread::scope(|scope| {
        for (part, units) in units.chunks_mut(of_thread).enumerate() {
            let unit_of = &unit_of;
            scope.spawn(move || {
                for (row, unit) in units.iter_mut().enumerate() {
                    *unit = unit_of(part * of_thread + row);
                }
            });
        }
    });
    units.into_iter().collect()
}

/// Returns one element of an operand; `None` for an element type that no operand has.
fn element(data: &Tensor, index: usize) -> Option<f32> {
    let bytes = data.bytes();
    let pair = || u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
    Some(match data.element() {
        ElementType::F4E2M1FN => numeric::e2m1_to_f32(numeric::e2m1_at(bytes, index)),
        ElementType::F6E2M3FN => numeric::e2m3_to_f32(numeric::code_at(bytes, index, 6)),
        ElementType::F6E3M2FN => numeric::e3m2_to_f32(numeric::code_at(bytes, index, 6)),
        ElementType::F8E4M3FN => numeric::e4m3_to_f32(bytes[index]),
        ElementType::F8E5M2 => numeric::e5m2_to_f32(bytes[index]),
        ElementType::F16 => numeric::f16_bits_to_f32(pair()),
        ElementType::BF16 => numeric::bf16_bits_to_f32(pair()),
        _ => return None,
    })
}

/// Returns the power of two of the lowest bit that is set in the significand of a normal number.
fn lowest_bit(value: f64) -> f64 {
    let bits = value.to_bits();
    let significand = (bits & ((1 << 52) - 1)) | 1 << 52;
    let exponent = (bits >> 52 & 0x7FF) as i32 - 1075;
    2f64.powi(exponent + significand.trailing_zeros() as i32)
}

#[cfg(test)]
mod tests {
    use fourfold_ir::{ElementType, ScaleLayout, Tensor};

    use super::{LEAST_OF_THREAD, lowest_bit, row_units};

    #[test]
    fn the_lowest_bit_of_a_number_is_its_unit() {
        for (value, unit) in [(1.0, 1.0), (-6.0, 2.0), (0.75, 0.25), (2f64.powi(-260), 2f64.powi(-260))] {
            assert_eq!(lowest_bit(value), unit, "{value}");
        }
    }

    #[test]
    fn rows_of_several_threads_keep_their_order() {
        let (rows, k) = (37, LEAST_OF_THREAD / 8);
        let unit = |row: usize| 2f64.powi(row as i32 % 9 - 4);
        let values: Vec<f64> =
            (0..rows * k).map(|index| if index % k == 5 { unit(index / k) } else { 16.0 }).collect();
        let a = Tensor::from_f64(ElementType::BF16, vec![rows, k], None, &values).expect("bf16");
        assert_eq!(row_units(&a, None, 16), Some((0..rows).map(unit).collect()));
    }

    #[test]
    fn a_row_has_the_unit_of_its_finest_element_and_none_with_an_infinity() {
        let a = |values: &[f64]| Tensor::from_f64(ElementType::BF16, vec![2, 2], None, values).expect("bf16");
        assert_eq!(row_units(&a(&[4.0, 0.5, 0.0, 0.0]), None, 16), Some(vec![0.5, f64::INFINITY]));
        assert_eq!(row_units(&a(&[4.0, f64::INFINITY, 0.0, 0.0]), None, 16), None);
        let empty = Tensor::from_f64(ElementType::BF16, vec![2, 0], None, &[]).expect("no elements");
        assert_eq!(row_units(&empty, None, 16), Some(vec![f64::INFINITY; 2]), "K = 0");
        let mut codes = vec![1.5; 16];
        codes.extend(vec![2.0; 16]);
        let codes = Tensor::from_f64(ElementType::F4E2M1FN, vec![1, 32], None, &codes).expect("codes");
        let scales =
            Tensor::from_f64(ElementType::F8E4M3FN, vec![1, 2], Some(ScaleLayout::Linear), &[8.0, 0.25]);
        assert_eq!(row_units(&codes, Some(&scales.expect("scales")), 16), Some(vec![0.5]));
    }
}
