//! A parser for ncu's page `raw` in CSV: one column per metric, the units in the second row, then one row per kernel.
//!
//! ncu scales the unit of each column (`Mbyte`, `us`), so a cell is meaningless without its unit. Numbers have
//! thousands separators (`180,160`).

use std::collections::HashMap;
use std::sync::Arc;

use super::csv;
use super::metrics::Unit;

/// A row: the measurements of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct RawKernel {
    /// The kernel's name, in the form chosen by `--print-kernel-base`.
    pub name: String,
    columns: Arc<HashMap<String, Column>>,
    cells: Vec<String>,
}

#[derive(Debug, PartialEq)]
struct Column {
    position: usize,
    unit: String,
}

/// An error from parsing a raw page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The header row is missing.
    #[error("there is no header row, which begins with \"ID\" and contains \"Kernel Name\"")]
    NoHeader,
    /// The text ends within a quoted field.
    #[error("the text ends within a quoted field")]
    Unfinished,
    /// The row after the header is not the row of units.
    #[error("the row after the header is not the row of units")]
    NoUnits,
    /// A row has too few or too many fields.
    #[error("row {row} has {found} fields, but there are {expected} columns")]
    Fields {
        /// The row; the header is row 1.
        row: usize,
        /// Fields of the row.
        found: usize,
        /// Columns of the header.
        expected: usize,
    },
}

/// Parses a page. Ignores text before the header, and the profiler's own lines (`==PROF== …`) after it.
///
/// # Errors
/// If the header or the units are missing, or a row is malformed.
pub fn parse(text: &str) -> Result<Vec<RawKernel>, RawError> {
    let begins = |line: &str| ["\"ID\",", "ID,"].iter().any(|begin| line.starts_with(begin));
    let mut start = 0;
    let begin = text.split_inclusive('\n').find_map(|line| {
        let at = start;
        start += line.len();
        begins(line).then_some(at)
    });
    let records = csv::records(&text[begin.ok_or(RawError::NoHeader)?..]).ok_or(RawError::Unfinished)?;
    let own_line = |record: &Vec<String>| record[0].starts_with("==");
    let mut rows = records.into_iter().filter(|record| !own_line(record)).enumerate();
    let (_, header) = rows.next().ok_or(RawError::NoHeader)?;
    let expected = header.len();
    let mut rows = rows.map(|(row, fields)| match fields.len() {
        found if found == expected => Ok(fields),
        found => Err(RawError::Fields { row: row + 1, found, expected }),
    });
    // The row of units has an empty ID.
    let units = rows.next().ok_or(RawError::NoUnits)??;
    if !units[0].is_empty() {
        return Err(RawError::NoUnits);
    }
    let mut columns = HashMap::new();
    for (position, (name, unit)) in header.into_iter().zip(units).enumerate() {
        columns.entry(name).or_insert(Column { position, unit });
    }
    let name = columns.get("Kernel Name").ok_or(RawError::NoHeader)?.position;
    let columns = Arc::new(columns);
    rows.map(|cells| {
        let cells = cells?;
        Ok(RawKernel { name: cells[name].clone(), columns: Arc::clone(&columns), cells })
    })
    .collect()
}

impl RawKernel {
    /// The value of a metric, converted to this unit.
    ///
    /// # Errors
    /// The reason why it is missing, as text.
    pub fn value(&self, metric: &str, unit: Unit) -> Result<f64, String> {
        let column = self.columns.get(metric).ok_or("ncu's report has no such column")?;
        let factor = unit
            .factor(&column.unit)
            .ok_or_else(|| format!("its unit, `{}`, is not supported", column.unit))?;
        let cell = self.cells[column.position].trim();
        let number: Option<f64> = cell.replace(',', "").parse().ok();
        // Some releases print NaN for unreadable counters.
        match number.filter(|number| number.is_finite()) {
            Some(number) => Ok(number * factor),
            None => Err(format!("ncu printed `{cell}`")),
        }
    }
}
