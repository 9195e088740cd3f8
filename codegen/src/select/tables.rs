//! The default tables.

use std::sync::LazyLock;

use crate::dispatch::{Table, Tables};

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

/// The table of grouped products on sm_90a. Its bounds on M are for the mean rows of a group.
pub(super) fn groups_table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        let mut parsed = Tables::parse(include_str!("groups.toml")).expect("our own table is well-formed");
        parsed.tables.remove(0)
    });
    &TABLE
}
