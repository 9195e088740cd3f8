//! Reads the header of a PTX text: `.version`, `.target`, `.address_size`.

use std::ops::Range;

use super::error::{RewriteError, RewriteProblem};
use super::statement::{Module, StatementKind};

/// The bits of an address.
const ADDRESS_BITS: &str = "64";

/// The words after the architecture that do not change the meaning of a text.
const OPTIONS: [&str; 3] = ["debug", "texmode_unified", "texmode_independent"];

/// The header of a PTX text.
pub(super) struct Header<'a> {
    pub version: &'a str,
    /// The architecture, such as `sm_100a`.
    pub target: &'a str,
    /// The bytes of the header's statements.
    pub range: Range<usize>,
    /// The number of the header's statements.
    pub statements: usize,
}

/// Reads the header, which begins the text.
///
/// # Errors
/// Returns a missing or different statement, or an unknown option of the target.
pub(super) fn header<'a>(module: &Module<'a>) -> Result<Header<'a>, RewriteError> {
    let [first, second, third, ..] = module.statements.as_slice() else {
        return Err(module.error_at_end(RewriteProblem::Header));
    };
    let StatementKind::Version(version) = first.kind else {
        return Err(module.error(first, RewriteProblem::Header));
    };
    let StatementKind::Target(target) = second.kind else {
        return Err(module.error(second, RewriteProblem::Header));
    };
    if third.kind != StatementKind::AddressSize(ADDRESS_BITS) {
        return Err(module.error(third, RewriteProblem::Header));
    }
    let options = second.tokens.iter().skip(2).filter(|token| !token.is(","));
    if let Some(option) = options.clone().find(|token| !OPTIONS.contains(&token.text)) {
        return Err(module.error(second, RewriteProblem::Target(option.text.to_owned())));
    }
    Ok(Header { version, target, range: first.range().start..third.range().end, statements: 3 })
}
