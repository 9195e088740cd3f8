//! Replays a program from one CUDA graph on the inputs of several seeds.
//!
//! The graph is captured once for each set of extents. Each replay must give the bytes that a run with the same inputs
//! gives; that run is what the other rows compare with the interpreter.

use std::collections::HashMap;

use fourfold::Compiled;
use fourfold_executor::measure::{CaptureError, Captured};
use fourfold_executor::{Ran, RunOptions};
use fourfold_ir::sample::{self, Recipe};
use fourfold_ir::{Entity, Tensor, Value, bind};
use fourfold_scheduler::Plan;

use super::Candidate;
use crate::error::Error;
use crate::load::Inputs;
use crate::report::VerifyRow;
use crate::unused_rows::{counts_of_values, held, without_unused_rows};

/// The seeds of a graph: those of the inputs and the following ones. The ends of groups have five distributions, which
/// take turns with the seed.
const SEEDS: u64 = 5;

/// Returns a row for each output of the program, or one that says why there is no graph. Inputs without a seed have no
/// others, so they have no row.
pub(super) fn graph_rows(
    candidate: &Candidate,
    compiled: &Compiled,
    inputs: &Inputs,
) -> Result<Vec<VerifyRow>, Error> {
    let Inputs::Sampled { recipe, tensors } = inputs else { return Ok(Vec::new()) };
    let Some(device) = compiled.device() else { return Ok(Vec::new()) };
    let program = compiled.planned().program();
    let module = program.module();
    let described = format!("{} to {}, one graph", inputs.describe(), recipe.seed + SEEDS - 1);
    let note = |message: &str| Ok(vec![VerifyRow::note(&candidate.name, &described, message)]);
    if compiled.planned().partition().plans().any(|(_, plan)| matches!(plan, Plan::Mma(_))) {
        // The algorithm of a library may depend on the memory that it gets.
        return note("no graph is compared: the library's plain products need not repeat their bits");
    }
    let symbols = bind::bind_given(program, tensors, &recipe.symbols)?.symbols;
    let captured = compiled.prepare(&symbols).map_err(CaptureError::from);
    let mut captured = match captured.and_then(|preparation| Captured::new(device, preparation)) {
        Ok(captured) => captured,
        Err(CaptureError::Refused(refused)) => return note(&format!("no graph: {}", refused.message)),
        Err(error) => return Err(failed(error)),
    };
    let counts = counts_of_values(program);
    let mut rows: Vec<VerifyRow> = Vec::new();
    for seed in recipe.seed..recipe.seed + SEEDS {
        let tensors = sample::inputs(program, &Recipe { seed, ..recipe.clone() })?;
        let bound = bind::bind_given(program, &tensors, &recipe.symbols)?;
        let run = compiled
            .run_normalized(&bound, &RunOptions::default().keep_all(true).poison(0xFF).locate(true))?;
        let given: HashMap<Value, &[u8]> =
            module.inputs.iter().zip(&bound.inputs).map(|(value, tensor)| (*value, tensor.bytes())).collect();
        let outputs = captured.replay(&given, 0xFF).map_err(failed)?;
        for (place, (value, found)) in outputs.iter().enumerate() {
            let Some(want) = run.value(*value) else {
                return Err(Error::NotKept(module.name_of(*value).to_owned()));
            };
            if place == rows.len() {
                let is_emulated = run.segments.iter().any(|segment| segment.ran == Ran::Emulated);
                rows.push(VerifyRow {
                    value: module.name_of(*value).to_owned(),
                    ran: if is_emulated { Ran::Emulated.as_str() } else { Ran::Kernel.as_str() },
                    rule: format!("bytes of a run, {SEEDS} replays"),
                    against: "a run with the same inputs".to_owned(),
                    message: None,
                    ..VerifyRow::note(&candidate.name, &described, "")
                });
            }
            let counts = held(program, &bound, &run, &counts[value.index()]);
            let (dims, layout) = (want.dims().to_vec(), want.layout());
            let tensor = Tensor::new(want.element(), dims, layout, found.to_vec()).ok();
            let defined = tensor.and_then(|found| without_unused_rows(&found, want, &counts));
            compare(&mut rows[place], want, defined.as_ref().map_or(found, Tensor::bytes), seed);
        }
    }
    Ok(rows)
}

fn failed(error: CaptureError) -> Error {
    match error {
        CaptureError::Device(error) => Error::Backend(Box::new(fourfold::Error::Device(error))),
        error => Error::NotKept(error.to_string()),
    }
}

/// Adds the bytes of one replay to a row.
fn compare(row: &mut VerifyRow, want: &Tensor, found: &[u8], seed: u64) {
    let wrong: Vec<usize> =
        (0..found.len()).filter(|at| want.bytes().get(*at) != Some(&found[*at])).collect();
    row.elements += want.count();
    row.mismatches += wrong.len();
    row.ok = row.ok && wrong.is_empty() && found.len() == want.bytes().len();
    if let (None, Some(first)) = (&row.worst, wrong.first()) {
        let expected = want.bytes().get(*first).map_or("no byte".to_owned(), u8::to_string);
        row.worst = Some(format!("byte {first} with seed {seed}: {}, expected {expected}", found[*first]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_wrong_bytes_over_all_replays_and_names_the_first() {
        let want = Tensor::from_f32(vec![2], &[1.0, 2.0]).expect("two elements");
        let mut row = VerifyRow::note("a.fir", "seeds", "");
        compare(&mut row, &want, want.bytes(), 7);
        assert_eq!((row.ok, row.elements, row.mismatches, row.worst.as_deref()), (true, 2, 0, None));
        let mut found = want.bytes().to_vec();
        (found[3], found[6]) = (9, 8);
        compare(&mut row, &want, &found, 8);
        compare(&mut row, &want, want.bytes(), 9);
        assert_eq!((row.ok, row.elements, row.mismatches), (false, 6, 2));
        assert_eq!(row.worst.as_deref(), Some("byte 3 with seed 8: 9, expected 63"));
        let mut short = VerifyRow::note("a.fir", "seeds", "");
        compare(&mut short, &want, &want.bytes()[..7], 7);
        assert!(!short.ok);
    }
}
