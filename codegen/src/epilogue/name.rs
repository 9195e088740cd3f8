//! Names and signatures of epilogues.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, ScaleRounding};
use fourfold_scheduler::EpilogueRef;

use super::{Epilogue, Output, OutputKind, StepKind};

impl Epilogue {
    /// A readable name: `alpha_add_gelu_bf16`.
    pub fn name(&self) -> String {
        /// The maximum number of steps in a name; a longer epilogue also states the number of the others.
        const NAMED: usize = 6;
        let mut parts = Vec::new();
        parts.extend(self.pair.then(|| "pair".to_owned()));
        parts.extend(self.alpha.then(|| "alpha".to_owned()));
        parts.extend(self.c.map(|c| format!("c{c}")));
        parts.extend(self.beta.then(|| "beta".to_owned()));
        if self.accumulator != ElementType::F32 && !self.steps.is_empty() {
            parts.push(self.accumulator.to_string());
        }
        let names: Vec<&str> = self.steps.iter().filter_map(|step| step.kind.name()).collect();
        parts.extend(names.iter().take(NAMED).map(|name| (*name).to_owned()));
        if NAMED < names.len() {
            parts.push(format!("{}more", names.len() - NAMED));
        }
        parts.extend(self.outputs.iter().map(|output| output_name(self, output)));
        parts.join("_")
    }

    /// The epilogue's words in a kernel's signature: `alpha`, `c=bf16`, the operands and the outputs.
    pub(crate) fn signature(&self) -> Vec<String> {
        let mut parts = Vec::new();
        parts.extend(self.pair.then(|| "pair".to_owned()));
        parts.extend(self.alpha.then(|| "alpha".to_owned()));
        parts.extend(self.c.map(|c| format!("c={c}")));
        parts.extend(self.beta.then(|| "beta".to_owned()));
        parts.extend(self.operands.iter().map(|operand| format!("{}={}", operand.shape, operand.element)));
        parts.extend(self.outputs.iter().map(|output| output_signature(self, output)));
        parts
    }
}

impl StepKind {
    /// The name of the function; `None` for constants and conversions.
    fn name(self) -> Option<&'static str> {
        match self {
            StepKind::Constant(_) | StepKind::Convert => None,
            StepKind::Unary(kind) => Some(kind.name()),
            StepKind::Binary(kind) => Some(kind.name()),
            StepKind::Clamp { .. } => Some("clamp"),
            StepKind::Compare(predicate) => Some(predicate.name()),
            StepKind::Select => Some("select"),
        }
    }
}

/// An output's word in the signature.
fn output_signature(epilogue: &Epilogue, output: &Output) -> String {
    let mut word = match output.kind {
        OutputKind::Value => format!("d={}", epilogue.element(output.of)),
        OutputKind::Quantized { global, element, block, scale_rounding, formula } => {
            let mut word = format!("q={element}:{}/{block}", scale_element(scale_rounding));
            word += &scale_rounding.map_or(String::new(), |rounding| format!(":{}", direction(rounding)));
            if formula != Nvfp4Formula::DEFAULT {
                let separator = if scale_rounding.is_none() { ':' } else { '_' };
                word += &format!("{separator}{formula}");
            }
            word + &global.map_or(String::new(), |operand| format!("*x{operand}"))
        }
        OutputKind::Reduced { kind, shape } => format!("{kind}={shape}"),
    };
    if output.of != epilogue.last() {
        word += &match output.of {
            EpilogueRef::Step(step) => format!("@s{step}"),
            EpilogueRef::Odd => "@odd".to_owned(),
            EpilogueRef::Accumulator | EpilogueRef::Operand(_) => "@acc".to_owned(),
        };
    }
    word
}

/// An output's part of the kernel's name.
fn output_name(epilogue: &Epilogue, output: &Output) -> String {
    match output.kind {
        OutputKind::Value => epilogue.element(output.of).to_string(),
        OutputKind::Quantized { element, scale_rounding, formula, .. } => match scale_rounding {
            None if formula == Nvfp4Formula::DEFAULT => "nvfp4".to_owned(),
            None => format!("nvfp4_{formula}"),
            Some(_) if formula == Nvfp4Formula::DEFAULT => format!("mx{element}"),
            Some(_) => format!("mx{element}_{formula}"),
        },
        OutputKind::Reduced { kind, .. } => kind.to_string(),
    }
}

fn scale_element(scale_rounding: Option<ScaleRounding>) -> ElementType {
    match scale_rounding {
        None => ElementType::F8E4M3FN,
        Some(_) => ElementType::F8E8M0FNU,
    }
}

pub(super) fn direction(rounding: ScaleRounding) -> &'static str {
    match rounding {
        ScaleRounding::Floor => "floor",
        ScaleRounding::Ceil => "ceil",
        ScaleRounding::Even => "even",
    }
}
