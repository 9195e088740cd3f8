//! The structure of an epilogue without the names of its ops and element types. Epilogues that differ here are
//! different graphs.

use std::fmt::Write;

use fourfold::codegen::{Epilogue, OutputKind, StepKind};
use fourfold::scheduler::EpilogueRef;

/// Returns the graph as text: the operands of the root, then the operand count and sources of each step, then the
/// outputs.
pub fn structure(epilogue: &Epilogue) -> String {
    let mut text = String::from("root");
    for (present, name) in
        [(epilogue.alpha, " alpha"), (epilogue.c.is_some(), " C"), (epilogue.beta, " beta")]
    {
        text += if present { name } else { "" };
    }
    let source = |reference: &EpilogueRef| match reference {
        EpilogueRef::Accumulator => "acc".to_owned(),
        EpilogueRef::Odd => "odd".to_owned(),
        EpilogueRef::Step(step) => format!("s{step}"),
        EpilogueRef::Operand(operand) => format!("{}{operand}", epilogue.operands[*operand].shape),
    };
    for step in &epilogue.steps {
        let arity = if matches!(step.kind, StepKind::Constant(_)) { 0 } else { step.operands.len() };
        let operands: Vec<String> = step.operands.iter().map(source).collect();
        let _ = write!(text, "; op{arity}({})", operands.join(", "));
    }
    for output in &epilogue.outputs {
        let of = source(&output.of);
        let _ = match output.kind {
            OutputKind::Value => write!(text, "; value({of})"),
            OutputKind::Quantized { global, .. } => {
                write!(text, "; blocks({of}{})", if global.is_some() { ", scalar" } else { "" })
            }
            OutputKind::Reduced { shape, .. } => write!(text, "; {shape} of ({of})"),
        };
    }
    text
}
