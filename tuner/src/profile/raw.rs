//! The page `raw` of ncu as CSV: a column for each metric, the units in the second row, then a row for each kernel.
//!
//! The units are those of the column and are scaled as the profiler pleases (`Mbyte`, `us`), and numbers have commas between
//! thousands (`180,160`), so that a cell means nothing without its unit.

use std::collections::HashMap;
use std::sync::Arc;

use super::csv;
use super::metrics::Unit;

/// A row: what was measured of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct RawKernel {
    /// Its name, as it was asked to be printed.
    pub name: String,
    columns: Arc<HashMap<String, Column>>,
    cells: Vec<String>,
}

#[derive(Debug, PartialEq)]
struct Column {
    position: usize,
    unit: String,
}

/// Why a text is no such page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// There is no line of columns.
    #[error("it has no line of columns, which begins with \"ID\" and has \"Kernel Name\"")]
    NoHeader,
    /// It ends within a quoted field.
    #[error("it ends within a quoted field")]
    Unfinished,
    /// What follows the columns is not the row of units.
    #[error("the row after the columns is not that of the units")]
    NoUnits,
    /// A row has another number of fields than there are columns.
    #[error("row {row} has {found} fields, and there are {expected} columns")]
    Fields {
        /// Counted from the columns, which are row 1.
        row: usize,
        /// How many it has.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
}

/// Reads a page. What is printed before its columns, and lines of the profiler's own after them (`==PROF== …`), are passed
/// over.
///
/// # Errors
/// When it is not such a page. One without a kernel is none.
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
    // The units' row is of no kernel: it has no number.
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
    /// A number, in this unit.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn value(&self, metric: &str, unit: Unit) -> Result<f64, String> {
        let column = self.columns.get(metric).ok_or("ncu's report has no such column")?;
        let factor = unit
            .factor(&column.unit)
            .ok_or_else(|| format!("its unit is `{}`, which is not known", column.unit))?;
        let cell = self.cells[column.position].trim();
        let number: Option<f64> = cell.replace(',', "").parse().ok();
        // Some releases print NaN for counters that they could not read.
        match number.filter(|number| number.is_finite()) {
            Some(number) => Ok(number * factor),
            None => Err(format!("ncu printed `{cell}`")),
        }
    }
}
