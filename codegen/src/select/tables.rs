//! The default tables.

use std::sync::LazyLock;

use crate::dispatch::Tables;

/// The default tables, for targets without tuned ones: one for every target with kernels and each of its
/// formats.
pub fn default_tables() -> &'static Tables {
    static TABLES: LazyLock<Tables> = LazyLock::new(|| {
        let texts = [include_str!("sm100.toml"), include_str!("sm120.toml"), include_str!("sm90.toml")];
        let parsed = texts.map(|text| Tables::parse(text).expect("our own tables are well-formed"));
        Tables { tables: parsed.into_iter().flat_map(|tables| tables.tables).collect() }
    });
    &TABLES
}

/// The tables of grouped products on sm_90a. Their bounds on M are for the mean rows of a group.
pub(super) fn groups_tables() -> &'static Tables {
    static TABLES: LazyLock<Tables> =
        LazyLock::new(|| Tables::parse(include_str!("groups.toml")).expect("our own tables are well-formed"));
    &TABLES
}
