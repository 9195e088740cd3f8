//! Properties of the rewriter on random texts.

use super::{EXCERPTS, LIBRARY, rewrite};
use crate::emulation::ptx::token::tokenize;

/// Fragments that begin, end or resemble tokens.
const FRAGMENTS: [&str; 28] = [
    "add.f32",
    "%r1",
    "[",
    "]",
    "{",
    "}",
    ";",
    ",",
    "::",
    ":",
    "@",
    "!",
    "/*",
    "*/",
    "//",
    "\n",
    " ",
    "\"",
    "\\",
    ".reg",
    ".entry",
    "(",
    ")",
    "tcgen05.mma.cta_group::1",
    "é",
    "0f3F800000",
    "shared::",
    "|",
];

/// A linear congruential generator: the high bits of each state.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }

    fn text(&mut self, fragments: usize) -> String {
        (0..fragments).map(|_| FRAGMENTS[self.below(FRAGMENTS.len())]).collect()
    }
}

fn check_tokens(text: &str) {
    let tokens = tokenize(text);
    let mut end = 0;
    for token in &tokens {
        assert_eq!(token.offset, end, "{text}");
        assert!(!token.text.is_empty(), "{text}");
        end = token.end();
    }
    let joined: String = tokens.iter().map(|token| token.text).collect();
    assert_eq!(joined, text);
}

#[test]
fn tokens_joined_are_the_text() {
    check_tokens("");
    check_tokens(EXCERPTS);
    check_tokens(LIBRARY);
    let mut random = Random(1);
    for _ in 0..2000 {
        let length = random.below(24);
        check_tokens(&random.text(length));
    }
}

#[test]
fn cut_off_and_changed_kernels_are_refused_or_rewritten() {
    let mut random = Random(2);
    let tokens = tokenize(EXCERPTS);
    for (index, token) in tokens.iter().enumerate() {
        // Both results are right; a panic is not.
        let _ = rewrite(&EXCERPTS[..token.offset], LIBRARY);
        let changed =
            format!("{}{}{}", &EXCERPTS[..token.offset], random.text(index % 3), &EXCERPTS[token.end()..]);
        let _ = rewrite(&changed, LIBRARY);
    }
    for token in tokenize(LIBRARY) {
        let changed = format!("{}{}{}", &LIBRARY[..token.offset], random.text(1), &LIBRARY[token.end()..]);
        let _ = rewrite(EXCERPTS, &changed);
    }
}

#[test]
fn rewritten_kernels_have_no_instruction_that_sm_90a_lacks() {
    // A rewritten text is a library for its own target, but for its entry.
    let once = rewrite(EXCERPTS, LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    let functions = once.replace(".weak .entry kernel", ".func kernel");
    let functions = functions.replace(".maxntid 256\n.minnctapersm 1\n", "");
    if let Err(error) = rewrite(EXCERPTS, &functions) {
        panic!("{error}");
    }
}
