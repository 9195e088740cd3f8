//! The TOML text of tables.

use std::fmt::{self, Write as _};

use fourfold_ir::BlockFormat;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table as Object, Value};

use super::{
    Collectives, Condition, Flaw, Kernel, Kind, Otherwise, Rule, SCHEMA, Shared, Table, Tables, Tiles,
};
use crate::extents::Extents;
use crate::targets;

/// The reason why a text is not a valid set of tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The text is not TOML.
    #[error("the table is not TOML: {0}")]
    Syntax(String),
    /// The schema version is not supported.
    #[error(
        "the table has schema {found}, but this version reads schema {SCHEMA}: write `schema = {SCHEMA}` at \
         its top, or generate it again"
    )]
    Schema {
        /// The version in the text, or `none`.
        found: String,
    },
    /// A field is missing, unknown or malformed.
    #[error("{path}: {message}")]
    Invalid {
        /// The place: `table 1, rule 3`.
        path: String,
        /// The error, and the correction.
        message: String,
    },
    /// A well-formed table has a flaw.
    #[error("table {table}: {flaw}")]
    Flawed {
        /// The table's number, from 1.
        table: usize,
        /// The flaw.
        flaw: Flaw,
    },
}

/// The placeholders in a reason.
const PLACEHOLDERS: [&str; 4] = ["m", "n", "k", "tiles"];

impl Tables {
    /// Parses tables, and reports every flaw that is independent of the CUTLASS version. [`Table::check`]
    /// finds the rest.
    ///
    /// # Errors
    /// The first error, with its place.
    pub fn parse(text: &str) -> Result<Tables, TableError> {
        let mut file: Object =
            text.parse().map_err(|error: toml::de::Error| TableError::Syntax(error.to_string()))?;
        match file.remove("schema") {
            Some(Value::Integer(schema)) if schema == i64::from(SCHEMA) => {}
            Some(found) => return Err(TableError::Schema { found: found.to_string() }),
            None => return Err(TableError::Schema { found: "none".to_owned() }),
        }
        let top = At("the file".to_owned());
        let list: Vec<Object> = top.take(&mut file, "table")?;
        top.nothing_else(&file, "`schema` and `table`")?;
        let mut tables: Vec<Table> = Vec::new();
        for (position, object) in list.into_iter().enumerate() {
            let at = At(format!("table {}", position + 1));
            let table = read_table(object, &at)?;
            if let Some(flaw) = table.rule_flaws().into_iter().next() {
                return Err(TableError::Flawed { table: position + 1, flaw });
            }
            let pairs =
                table.targets.iter().flat_map(|target| table.formats.iter().map(move |it| (target, *it)));
            for (target, format) in pairs {
                let earlier = Tables { tables: tables.clone() };
                if earlier.find(target, format).is_some() {
                    return Err(at.wrong(format!(
                        "an earlier table also covers {target} and {format}: keep one of them"
                    )));
                }
            }
            tables.push(table);
        }
        Ok(Tables { tables })
    }

    /// Formats the tables so that [`Tables::parse`] reads them.
    ///
    /// # Errors
    /// A bound exceeds `i64::MAX`, TOML's largest integer.
    pub fn to_text(&self) -> Result<String, TableError> {
        let mut text = format!("schema = {SCHEMA}\n");
        for (position, table) in self.tables.iter().enumerate() {
            let at = At(format!("table {}", position + 1));
            let formats: Vec<String> = table.formats.iter().map(ToString::to_string).collect();
            let mut line = |name: &str, value: String| _ = writeln!(text, "{name} = {value}");
            line("\n[[table]]\ntargets", at.value(&table.targets)?);
            line("formats", at.value(&formats)?);
            if !table.note.is_empty() {
                line("note", at.value(&table.note)?);
            }
            for (position, Rule { when, kernel, why }) in table.rules.iter().enumerate() {
                let at = at.then(format!("rule {}", position + 1));
                line("\n[[table.rule]]\nwhen", at.value(when)?);
                line("kernel", at.value(kernel)?);
                line("why", at.value(why)?);
            }
            line("\n[table.default]\nkernel", at.value(table.default.kernel)?);
            line("why", at.value(&table.default.why)?);
        }
        Ok(text)
    }
}

/// A place in the text.
struct At(String);

impl At {
    fn then(&self, what: String) -> At {
        At(format!("{}, {what}", self.0))
    }

    fn wrong(&self, message: impl fmt::Display) -> TableError {
        TableError::Invalid { path: self.0.clone(), message: message.to_string() }
    }

    fn read<T: DeserializeOwned>(&self, name: &str, value: Value) -> Result<T, TableError> {
        // `message` omits the TOML error's location, which is meaningless here.
        value
            .try_into()
            .map_err(|error: toml::de::Error| self.wrong(format_args!("`{name}`: {}", error.message())))
    }

    fn take<T: DeserializeOwned>(&self, object: &mut Object, name: &str) -> Result<T, TableError> {
        let value = object.remove(name).ok_or_else(|| self.wrong(format_args!("`{name}` is missing")))?;
        self.read(name, value)
    }

    fn nothing_else(&self, object: &Object, known: &str) -> Result<(), TableError> {
        match object.keys().next() {
            Some(name) => Err(self.wrong(format_args!("`{name}` is unknown; the fields here are {known}"))),
            None => Ok(()),
        }
    }

    fn value(&self, value: impl Serialize) -> Result<String, TableError> {
        Value::try_from(value).map(|value| value.to_string()).map_err(|error| self.wrong(error))
    }
}

fn read_table(mut object: Object, at: &At) -> Result<Table, TableError> {
    let targets: Vec<String> = at.take(&mut object, "targets")?;
    let kind = kind(&targets, at)?;
    let formats: Vec<String> = at.take(&mut object, "formats")?;
    let formats = formats.iter().map(|name| format(name, at)).collect::<Result<Vec<_>, _>>()?;
    if formats.is_empty() {
        return Err(at.wrong("`formats` is empty: name at least one format, such as nvfp4"));
    }
    let note = match object.remove("note") {
        Some(note) => at.read("note", note)?,
        None => String::new(),
    };
    let mut rules = Vec::new();
    if object.contains_key("rule") {
        let list: Vec<Object> = at.take(&mut object, "rule")?;
        for (position, mut object) in list.into_iter().enumerate() {
            let at = at.then(format!("rule {}", position + 1));
            let when: Condition = at.take(&mut object, "when")?;
            check_numbers(&when, &at)?;
            let kernel = read_kernel(&mut object, kind, &at)?;
            let why: String = at.take(&mut object, "why")?;
            check_why(&why, when.tiles.is_some(), &at)?;
            at.nothing_else(&object, "`when`, `kernel` and `why`")?;
            rules.push(Rule { when, kernel, why });
        }
    }
    let mut otherwise: Object = at.take(&mut object, "default")?;
    at.nothing_else(&object, "`targets`, `formats`, `note`, `rule` and `default`")?;
    let at = at.then("the default".to_owned());
    let default =
        Otherwise { kernel: read_kernel(&mut otherwise, kind, &at)?, why: at.take(&mut otherwise, "why")? };
    check_why(&default.why, false, &at)?;
    at.nothing_else(&otherwise, "`kernel` and `why`")?;
    Ok(Table { targets, formats, note, rules, default })
}

/// The kind of kernel that all targets share.
fn kind(targets: &[String], at: &At) -> Result<Kind, TableError> {
    let mut kinds = Vec::new();
    for name in targets {
        let kind = Kind::of(name).ok_or_else(|| {
            let known =
                targets::TARGETS.iter().map(|target| target.name).filter(|name| Kind::of(name).is_some());
            let known: Vec<&str> = known.collect();
            at.wrong(format_args!("`{name}` is not a target with kernels; those are {}", known.join(", ")))
        })?;
        kinds.push(kind);
    }
    match kinds.first() {
        Some(first) if kinds.iter().all(|kind| kind == first) => Ok(*first),
        Some(_) => Err(at.wrong("`targets` belong to different families: write one table per family")),
        None => Err(at.wrong("`targets` is empty: name at least one target, such as sm_100a")),
    }
}

fn format(name: &str, at: &At) -> Result<BlockFormat, TableError> {
    targets::format(name).ok_or_else(|| {
        let known: Vec<String> = targets::formats().iter().map(ToString::to_string).collect();
        at.wrong(format_args!("`{name}` is not a format with kernels; those are {}", known.join(", ")))
    })
}

fn read_kernel(object: &mut Object, kind: Kind, at: &At) -> Result<Kernel, TableError> {
    Ok(match kind {
        Kind::Cutlass(_) => Kernel::Cutlass(at.take::<Collectives>(object, "kernel")?),
        Kind::Hopper => Kernel::Hopper(at.take::<Shared>(object, "kernel")?),
    })
}

fn check_numbers(when: &Condition, at: &At) -> Result<(), TableError> {
    let bounds = [("m", when.m), ("n", when.n), ("k", when.k)];
    if let Some((name, _)) = bounds.iter().find(|(_, it)| it.is_some_and(|it| it.multiple_of == Some(0))) {
        return Err(at.wrong(format_args!("`when.{name}.multiple_of` is 0: it must be positive")));
    }
    if when.tiles.is_some_and(|tiles| tiles.of.contains(&0)) {
        return Err(at.wrong("`when.tiles.of` has an extent of 0: both extents must be positive"));
    }
    Ok(())
}

fn check_why(why: &str, counts_tiles: bool, at: &At) -> Result<(), TableError> {
    for part in why.split('{').skip(1) {
        let name = part.split_once('}').map(|(name, _)| name);
        if !name.is_some_and(|name| PLACEHOLDERS.contains(&name) && (name != "tiles" || counts_tiles)) {
            let tiles = if counts_tiles { " and {tiles}" } else { "" };
            return Err(at.wrong(format_args!(
                "`why` has an unknown placeholder at `{{{part}`; known are {{m}}, {{n}}, {{k}}{tiles}"
            )));
        }
    }
    Ok(())
}

/// Fills the placeholders of a reason with a problem's numbers.
pub(super) fn fill(why: &str, problem: Extents, tiles: Option<Tiles>) -> String {
    let number = |number: Option<u64>| number.map_or("unknown".to_owned(), |number| number.to_string());
    let tiles = tiles.and_then(|tiles| tiles.count(problem));
    let values = [problem.m, problem.n, problem.k, tiles];
    PLACEHOLDERS
        .iter()
        .zip(values)
        .fold(why.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), &number(value)))
}
