//! A map of defined names, and the search for the name nearest to an unknown one.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A map from names in the text.
pub(super) type NameMap<'s, T> = HashMap<&'s str, T, NameHash>;

/// Hashes names by folded multiplication, in a few nanoseconds each. The random seed prevents texts crafted to make
/// names collide. Maps are never iterated, so the seed affects nothing else.
#[derive(Clone)]
pub(super) struct NameHash {
    seed: u64,
}

impl Default for NameHash {
    fn default() -> NameHash {
        NameHash { seed: RandomState::new().build_hasher().finish() }
    }
}

impl BuildHasher for NameHash {
    type Hasher = NameHasher;
    fn build_hasher(&self) -> NameHasher {
        NameHasher { state: self.seed, seed: self.seed }
    }
}

pub(super) struct NameHasher {
    state: u64,
    seed: u64,
}

impl NameHasher {
    fn mix(&mut self, word: u64) {
        // The first 64 fractional bits of pi, made odd. Xor with the seed keeps the factor unpredictable.
        const FACTOR: u64 = 0x243f_6a88_85a3_08d3;
        let product = u128::from(self.state ^ word) * u128::from(FACTOR ^ self.seed.rotate_left(32) | 1);
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(bytes.len() as u64);
    }

    // `str` writes a terminator to tell ("a", "b") from ("ab", ""). A key here is one string.
    fn write_u8(&mut self, _end: u8) {}

    fn finish(&self) -> u64 {
        self.state
    }
}

/// The candidate with the smallest edit distance to `word`, the first of several. `None` if the distance exceeds 3 or
/// a third of the letters. A candidate that differs only in letter case always matches.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer names are not compared, because the time grows with the square of the length.
    const MAX_LEN: usize = 128;
    if word.len() > MAX_LEN {
        return None;
    }
    let mut best = None;
    let mut limit = (word.len() / 3).min(3);
    for candidate in candidates.filter(|candidate| candidate.len() <= MAX_LEN) {
        if candidate.eq_ignore_ascii_case(word) {
            return Some(candidate);
        }
        if limit > 0
            && let Some(distance) = edit_distance(word.as_bytes(), candidate.as_bytes(), limit)
        {
            best = Some(candidate);
            limit = distance - 1;
        }
    }
    best
}

/// The Levenshtein distance, if it is at most `limit`.
fn edit_distance(left: &[u8], right: &[u8], limit: usize) -> Option<usize> {
    if left.len().abs_diff(right.len()) > limit {
        return None;
    }
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, a) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
        if row.iter().all(|distance| *distance > limit) {
            return None;
        }
    }
    row.last().copied().filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_within_a_third_of_the_letters() {
        let known = ["relu", "gelu", "silu", "gelu_tanh", "block_quantize"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("rellu"), Some("relu"));
        assert_eq!(near("GELU"), Some("gelu"));
        assert_eq!(near("blok_quantise"), Some("block_quantize"));
        assert_eq!(near("gemm"), None);
        assert_eq!(nearest("x", ["y"].into_iter()), None);
        assert_eq!(nearest("x", ["X"].into_iter()), Some("X"));
    }

    #[test]
    fn an_exact_distance_is_found_below_the_limit_only() {
        assert_eq!(edit_distance(b"return", b"retrun", 2), Some(2));
        assert_eq!(edit_distance(b"return", b"retrun", 1), None);
        assert_eq!(edit_distance(b"", b"ab", 2), Some(2));
    }
}
