//! Packs codes of fewer than 8 bits: element `i` is at bit `i · width`, low bits first. Two `f4E2M1FN` codes are a byte,
//! and the low nibble is the even index. Four FP6 codes are three bytes, as in CUTLASS (`cutlass/subbyte_reference.h`)
//! and in TMA's packed 16U6 format.

use thiserror::Error;

/// A packed buffer has the wrong size for its number of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{count} FP4 codes are packed in {expected} bytes, found {found}")]
pub struct PackError {
    /// Number of codes requested.
    pub count: usize,
    /// Bytes of that many codes: half the count, rounded up.
    pub expected: usize,
    /// Bytes in the buffer.
    pub found: usize,
}

/// Packs codes in order, element `i` into byte `i / 2`. Ignores the high four bits of each code. With an odd number
/// of codes, the last high nibble is zero.
pub fn pack_e2m1(codes: &[u8]) -> Vec<u8> {
    codes
        .chunks(2)
        .map(|pair| {
            let high = pair.get(1).map_or(0, |code| code << 4);
            (pair[0] & 0xF) | high
        })
        .collect()
}

/// Unpacks `count` codes, each in `0x0..=0xF`. With an odd count, ignores the last high nibble.
///
/// # Errors
///
/// [`PackError`] unless `bytes` has exactly `count / 2` bytes, rounded up.
pub fn unpack_e2m1(bytes: &[u8], count: usize) -> Result<Vec<u8>, PackError> {
    let expected = count.div_ceil(2);
    if bytes.len() != expected {
        return Err(PackError { count, expected, found: bytes.len() });
    }
    let mut codes: Vec<u8> = bytes.iter().flat_map(|byte| [byte & 0xF, byte >> 4]).collect();
    codes.truncate(count);
    Ok(codes)
}

/// The code of element `index` of a packed buffer.
///
/// # Panics
///
/// If `index` is not below `2 * bytes.len()`, as indexing a slice does.
#[inline]
pub fn e2m1_at(bytes: &[u8], index: usize) -> u8 {
    (bytes[index / 2] >> nibble_shift(index)) & 0xF
}

/// Overwrites element `index` of a packed buffer with the low four bits of `code`. The other element of the byte is
/// unchanged.
///
/// # Panics
///
/// If `index` is not below `2 * bytes.len()`, as indexing a slice does.
#[inline]
pub fn set_e2m1(bytes: &mut [u8], index: usize, code: u8) {
    let shift = nibble_shift(index);
    let byte = &mut bytes[index / 2];
    *byte = (*byte & !(0xF << shift)) | ((code & 0xF) << shift);
}

/// Packs codes of `bits` bits, 4 or 6. Ignores higher bits of a code. Bits after the last code are zero.
pub fn pack_codes(codes: &[u8], bits: usize) -> Vec<u8> {
    if bits == 4 {
        return pack_e2m1(codes);
    }
    let mask = (1 << bits) - 1;
    let pack = |four: &[u8]| {
        let word = four.iter().rev().fold(0u32, |word, code| word << bits | u32::from(*code) & mask);
        word.to_le_bytes().into_iter().take((four.len() * bits).div_ceil(8))
    };
    codes.chunks(4).flat_map(pack).collect()
}

/// The code of element `index` of a buffer of packed codes of `bits` bits.
///
/// # Panics
///
/// If the element is beyond the buffer, as indexing a slice does.
#[inline]
pub fn code_at(bytes: &[u8], index: usize, bits: usize) -> u8 {
    let bit = index * bits;
    let low = u16::from(bytes[bit / 8]);
    // The last code of a buffer ends with it.
    let high = if bit % 8 + bits > 8 { u16::from(bytes[bit / 8 + 1]) } else { 0 };
    ((high << 8 | low) >> (bit % 8)) as u8 & ((1 << bits) - 1) as u8
}

fn nibble_shift(index: usize) -> usize {
    4 * (index % 2)
}

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_low_nibble_holds_the_even_element() {
        assert_eq!(pack_e2m1(&[0x1, 0x2, 0x3, 0xF]), [0x21, 0xF3]);
        assert_eq!(unpack_e2m1(&[0x21, 0xF3], 4), Ok(vec![0x1, 0x2, 0x3, 0xF]));
        assert_eq!([0, 1, 2, 3].map(|index| e2m1_at(&[0x21, 0xF3], index)), [0x1, 0x2, 0x3, 0xF]);
    }

    #[test]
    fn four_codes_of_six_bits_are_three_bytes_with_low_bits_first() {
        // 0b000001, 0b000010, 0b000011, 0b111111: bits 0 to 5, 6 to 11, 12 to 17 and 18 to 23.
        let bytes = [0b1000_0001, 0b0011_0000, 0b1111_1100];
        assert_eq!(pack_codes(&[0x01, 0x02, 0x03, 0x3F], 6), bytes);
        assert_eq!([0, 1, 2, 3].map(|index| code_at(&bytes, index, 6)), [0x01, 0x02, 0x03, 0x3F]);
        assert_eq!(pack_codes(&[0xC1, 0x42, 0x83, 0xFF], 6), bytes, "high bits do not reach a neighbour");
        assert_eq!(pack_codes(&[], 6), []);
    }

    #[test]
    fn an_odd_count_leaves_the_last_high_nibble_zero_and_unread() {
        assert_eq!(pack_e2m1(&[0x1, 0x2, 0x3]), [0x21, 0x03]);
        assert_eq!(unpack_e2m1(&[0x21, 0xA3], 3), Ok(vec![0x1, 0x2, 0x3]));
        assert_eq!(pack_e2m1(&[]), []);
        assert_eq!(unpack_e2m1(&[], 0), Ok(vec![]));
    }

    #[test]
    fn high_bits_of_a_code_do_not_reach_its_neighbour() {
        assert_eq!(pack_e2m1(&[0xF1, 0xF2]), [0x21]);
        let mut bytes = [0x00];
        set_e2m1(&mut bytes, 0, 0xF5);
        assert_eq!(bytes, [0x05]);
    }

    #[test]
    fn a_buffer_of_the_wrong_size_is_refused_with_both_sizes() {
        let error = unpack_e2m1(&[0; 3], 8).unwrap_err();
        assert_eq!(error, PackError { count: 8, expected: 4, found: 3 });
        assert_eq!(error.to_string(), "8 FP4 codes are packed in 4 bytes, found 3");
        assert!(unpack_e2m1(&[0; 5], 8).is_err());
        assert!(unpack_e2m1(&[0; 5], usize::MAX).is_err());
    }

    #[test]
    fn setting_one_element_leaves_the_others() {
        for index in 0..6 {
            for code in 0..16 {
                let mut bytes = [0xA5, 0x3C, 0x96];
                let mut expected = unpack_e2m1(&bytes, 6).unwrap();
                expected[index] = code;
                set_e2m1(&mut bytes, index, code);
                assert_eq!(unpack_e2m1(&bytes, 6).unwrap(), expected);
            }
        }
    }

    proptest! {
        #![proptest_config(oracle::cases(256))]
        #[test]
        fn packed_codes_of_any_width_come_back(codes in prop::collection::vec(0u8..64, 0..67), wide in any::<bool>()) {
            let bits = if wide { 6 } else { 4 };
            let codes: Vec<u8> = codes.into_iter().map(|code| code & ((1 << bits) - 1)).collect();
            let bytes = pack_codes(&codes, bits);
            prop_assert_eq!(bytes.len(), (codes.len() * bits).div_ceil(8));
            for (index, &code) in codes.iter().enumerate() {
                prop_assert_eq!(code_at(&bytes, index, bits), code);
            }
        }

        #[test]
        fn packed_codes_come_back_one_by_one_and_together(codes in prop::collection::vec(0u8..16, 0..67)) {
            let bytes = pack_e2m1(&codes);
            prop_assert_eq!(bytes.len(), codes.len().div_ceil(2));
            for (index, &code) in codes.iter().enumerate() {
                prop_assert_eq!(e2m1_at(&bytes, index), code);
            }
            prop_assert_eq!(unpack_e2m1(&bytes, codes.len()).unwrap(), codes);
        }
    }
}
