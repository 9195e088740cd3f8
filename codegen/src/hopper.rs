//! The kernels of sm_90a: which tiles a source holds, and which of them a call gets.
//!
//! A tile is some rows of A by 256 rows of B, or by 128 where those of A are few. One library holds several tiles and
//! takes one for each call, from the extents: [`CHOICES`] is written into the source as it stands here, and read there.

use std::fmt;

use fourfold_ir::BlockFormat;

use crate::defaults::Extents;

/// The target that these kernels are of.
pub const TARGET: &str = "sm_90a";

/// Rows of A at most of a tile that a kernel for few of them computes, warp by warp. Larger tiles are of warpgroups.
pub const FEW_TOKENS: u32 = 16;

/// Rows of B in a tile with so many rows of A.
pub const fn tile_n(tokens: u32) -> u32 {
    if tokens <= FEW_TOKENS { 128 } else { 256 }
}

/// What is taken of K at a time.
pub const TILE_K: u32 = 128;

/// What a tile may have in rows of A, all that the kernel's text has.
pub const TOKENS: [u32; 4] = [8, 16, 64, 128];

/// A bound that every extent meets.
pub const ANY: u32 = i32::MAX as u32;

/// Which tile a problem gets that exceeds none of these extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Rows of A at most.
    pub max_m: u32,
    /// Rows of B at most.
    pub max_n: u32,
    /// K at most.
    pub max_k: u32,
    /// Rows of A in a tile.
    pub tokens: u32,
    /// Blocks that share a tile, each with a part of K: 1, 2, 4 or 8, of which a call gets no more than its tile has use
    /// for. With 0 as many as the device has room for, and as leave each two steps along K.
    pub cluster: u32,
}

const fn up_to(max_m: u32, tokens: u32) -> Choice {
    Choice { max_m, max_n: ANY, max_k: ANY, tokens, cluster: 0 }
}

/// The first line that a problem meets is its choice; the last is met by all.
///
/// None of these lines was measured: they follow from the heights of tiles alone.
pub const CHOICES: &[Choice] = &[up_to(8, 8), up_to(16, 16), up_to(64, 64), up_to(ANY, 128)];

/// What a kernel of sm_90a is built from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// What A and B are.
    pub format: BlockFormat,
    /// Rows of A in a tile, of each tile that the source holds: some of [`TOKENS`], the smallest first.
    pub variants: Vec<u32>,
}

impl Configuration {
    /// A readable name: `sm90_x8_16_64_128`.
    pub fn name(&self) -> String {
        let variants: Vec<String> = self.variants.iter().map(u32::to_string).collect();
        format!("sm90_x{}", variants.join("_"))
    }

    /// The largest tile: M, N and K.
    pub fn tile(&self) -> [u32; 3] {
        let tokens = self.variants.last().copied().unwrap_or_default();
        [tokens, tile_n(tokens), TILE_K]
    }

    /// Rows of A at most that a call may have; `None` where there is no bound. A kernel for few has all of them in a tile.
    pub fn most_rows(&self) -> Option<u32> {
        self.variants.last().copied().filter(|tokens| *tokens <= FEW_TOKENS)
    }

    /// The matrix instruction of the largest tile: that of warpgroups, or of warps where all tiles are for few rows.
    pub fn opcode(&self) -> &'static str {
        if self.most_rows().is_some() { "HMMA.16816" } else { "HGMMA" }
    }

    /// The lines of the table whose tiles the source holds.
    pub fn choices(&self) -> impl Iterator<Item = &'static Choice> + '_ {
        CHOICES.iter().filter(|choice| self.variants.contains(&choice.tokens))
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.format, self.name())
    }
}

/// The formats that the kernel decodes.
pub fn takes(format: BlockFormat) -> bool {
    [BlockFormat::NVFP4, BlockFormat::MXFP4].contains(&format)
}

/// What a kernel for a problem is built from, and in one sentence why: with every tile that a call can get, of which
/// the extents are known that are fixed. `None` for a format that has no kernels.
pub fn choose(format: BlockFormat, problem: Extents) -> Option<(Configuration, String)> {
    if !takes(format) {
        return None;
    }
    let extents =
        |choice: &Choice| [(problem.m, choice.max_m), (problem.n, choice.max_n), (problem.k, choice.max_k)];
    let within = |extent: u64, most: u32| extent <= u64::from(most) || most == ANY;
    let mut variants = Vec::new();
    for choice in CHOICES {
        let mut extents = extents(choice).into_iter();
        if extents.clone().any(|(extent, most)| extent.is_some_and(|extent| !within(extent, most))) {
            continue;
        }
        variants.push(choice.tokens);
        if extents.all(|(extent, most)| extent.map_or(most == ANY, |extent| within(extent, most))) {
            break;
        }
    }
    variants.sort_unstable();
    variants.dedup();
    let why = match (problem.m, &variants[..]) {
        (Some(m), [tokens]) => format!("M = {m} gets tiles of {tokens} rows of A"),
        (Some(m), _) => format!("M = {m}, and which tile it gets is known with N and K"),
        (None, _) => "M is unknown, so each call gets one of several tiles".to_owned(),
    };
    Some((Configuration { format, variants }, why))
}

#[cfg(test)]
mod tests {
    use fourfold_ir::ElementType;

    use super::*;

    const UNKNOWN: Extents = Extents { m: None, n: None, k: None };

    #[test]
    fn the_table_is_met_by_every_problem_and_names_tiles_and_clusters_that_exist() {
        let last = CHOICES.last().expect("a line");
        assert_eq!((last.max_m, last.max_n, last.max_k), (ANY, ANY, ANY));
        for choice in CHOICES {
            assert!(TOKENS.contains(&choice.tokens), "{choice:?}");
            assert!([0, 1, 2, 4, 8].contains(&choice.cluster), "{choice:?}");
            assert!(choice.max_m <= ANY && choice.max_n <= ANY && choice.max_k <= ANY, "{choice:?}");
        }
    }

    #[test]
    fn a_source_holds_the_tiles_that_a_call_can_get() {
        for format in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
            let (all, why) = choose(format, UNKNOWN).expect("a format of the target");
            let mut tokens: Vec<u32> = CHOICES.iter().map(|choice| choice.tokens).collect();
            tokens.sort_unstable();
            tokens.dedup();
            assert_eq!((all.format, &all.variants), (format, &tokens));
            assert!(all.name().starts_with("sm90_x") && !why.is_empty());
            assert_eq!(all.choices().count(), CHOICES.len());
            // Whatever the table says, a call is served by what its own extents, or fewer of them, have built.
            for m in [0, 1, 8, 9, 16, 17, 64, 65, 128, 4096, u64::from(ANY), u64::MAX] {
                let met = CHOICES.iter().find(|choice| m <= u64::from(choice.max_m) || choice.max_m == ANY);
                let (fixed, _) = choose(format, Extents { m: Some(m), ..UNKNOWN }).expect("a format");
                assert!(fixed.variants.contains(&met.expect("a line").tokens), "{m}: {fixed}");
                assert!(fixed.variants.iter().all(|tokens| all.variants.contains(tokens)), "{m}: {fixed}");
                let (known, why) =
                    choose(format, Extents { m: Some(m), n: Some(4096), k: Some(4096) }).expect("a format");
                assert_eq!(known.variants.len(), 1, "{m}: {known}");
                assert!(!why.is_empty() && !why.ends_with('.'), "{why}");
            }
        }
        let mxfp8 = BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 };
        assert_eq!(choose(mxfp8, UNKNOWN), None);
    }
}
