//! The choices of a plan by an extent, and what is recommended for them.

use std::fmt;

use fourfold::{Choice, Planned};
use serde::Serialize;

/// A `choose` of the program.
#[derive(Clone, Debug, Serialize)]
pub struct ChoiceReport {
    /// The result, as `%name`.
    pub value: String,
    /// The extent that chooses.
    pub extent: String,
    /// The operands, by ascending extent.
    pub arms: Vec<ArmReport>,
    /// The choices that are recommended on the target for products of one weight in NVFP4, by ascending extent.
    pub recommended: Vec<RecommendedReport>,
}

/// An operand.
#[derive(Clone, Debug, Serialize)]
pub struct ArmReport {
    /// The largest extent that chooses it; null for the last.
    pub up_to: Option<u64>,
    /// The operand, as `%name`.
    pub value: String,
    /// `W4A16` or `W4A4`; null for other values than products of a weight in NVFP4.
    pub activations: Option<&'static str>,
}

/// A recommended choice.
#[derive(Clone, Debug, Serialize)]
pub struct RecommendedReport {
    /// The largest extent; null for the last.
    pub up_to: Option<u64>,
    /// `W4A16` or `W4A4`.
    pub activations: &'static str,
    /// The measurement.
    pub why: String,
}

/// The choices of a plan.
pub(super) fn choices(planned: &Planned) -> Vec<ChoiceReport> {
    let name = |value| format!("%{}", planned.original().module().name_of(value));
    let report = |choice: Choice| ChoiceReport {
        value: name(choice.value),
        extent: choice.extent,
        arms: (choice.arms.into_iter())
            .map(|arm| ArmReport {
                up_to: arm.up_to,
                value: name(arm.value),
                activations: arm.activations.map(|activations| activations.name()),
            })
            .collect(),
        recommended: (choice.recommended.into_iter())
            .map(|it| RecommendedReport { up_to: it.up_to, activations: it.activations.name(), why: it.why })
            .collect(),
    };
    planned.choices().into_iter().map(report).collect()
}

/// Writes the choices as text.
pub(super) fn write_choices(
    f: &mut fmt::Formatter<'_>,
    choices: &[ChoiceReport],
    target: &str,
) -> fmt::Result {
    if choices.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nchoices:")?;
    let range = |extent: &str, up_to: Option<u64>| match up_to {
        Some(end) => format!("{extent} <= {end}"),
        None => format!("any greater {extent}"),
    };
    for ChoiceReport { value, extent, arms, recommended } in choices {
        writeln!(f, "  {value}")?;
        for arm in arms {
            let activations = arm.activations.map_or(String::new(), |it| format!(" ({it})"));
            writeln!(f, "    {}: {}{activations}", range(extent, arm.up_to), arm.value)?;
        }
        for it in recommended {
            let range = match (&recommended[..], it.up_to) {
                ([_], _) => format!("any {extent}"),
                (_, up_to) => range(extent, up_to),
            };
            writeln!(f, "    recommended on {target}, {range}: {}, because {}", it.activations, it.why)?;
        }
    }
    Ok(())
}
