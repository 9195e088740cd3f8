//! Linears that belong together: those that share an input, and feed-forward blocks.

use std::collections::BTreeMap;

use fourfold_ir::{Dim, TensorType, UnaryKind};
use serde_json::Value;

use crate::error::ImportError;
use crate::imported::{ImportedProgram, ProgramKind};
use crate::linear::Linear;
use crate::options::ImportOptions;
use crate::program::{Activations, Draft};

/// The linears of a model, by name.
pub(crate) type ByName<'a> = BTreeMap<&'a str, &'a Linear>;

/// The names of linears that share an input, and the name of their group.
const GROUPS: [(&str, &[&str]); 4] = [
    ("qkv", &["q_proj", "k_proj", "v_proj"]),
    ("qkv", &["query", "key", "value"]),
    ("gate_up", &["gate_proj", "up_proj"]),
    // Mixtral: w1 is gate, w3 is up, w2 is down.
    ("gate_up", &["w1", "w3"]),
];

/// Several linears of one module that a program computes together.
pub(crate) enum Group<'a> {
    /// Linears of one input, each with an output of its own.
    Shared { name: String, members: Vec<(&'static str, &'a Linear)> },
    /// down(f(gate(x)) · up(x)), or down(f(up(x))) without a gate.
    Mlp { name: String, gate: Option<&'a Linear>, up: &'a Linear, down: &'a Linear, function: UnaryKind },
}

impl Group<'_> {
    /// The name of the program.
    pub(crate) fn name(&self) -> &str {
        match self {
            Group::Shared { name, .. } | Group::Mlp { name, .. } => name,
        }
    }
}

/// Finds the groups of a model's linears, in the order of their names.
pub(crate) fn find<'a>(linears: &ByName<'a>, config: &Value) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    for (name, first) in linears {
        let Some((module, own)) = name.rsplit_once('.') else { continue };
        for (group, members) in GROUPS.iter().filter(|(_, members)| members[0] == own) {
            let found: Vec<(&'static str, &Linear)> = members
                .iter()
                .filter_map(|member| Some((*member, *linears.get(&*format!("{module}.{member}"))?)))
                .collect();
            if found.len() == members.len() && found.iter().all(|(_, member)| member.k == first.k) {
                groups.push(Group::Shared { name: format!("{module}.{group}"), members: found });
            }
        }
        groups.extend(mlp(linears, module, own, config));
    }
    groups
}

/// The feed-forward block whose first linear is `own` of `module`.
fn mlp<'a>(linears: &ByName<'a>, module: &str, own: &str, config: &Value) -> Option<Group<'a>> {
    let function = function_of(config)?;
    let of = |module: &str, name: &str| linears.get(&*format!("{module}.{name}")).copied();
    let (name, gate, up, down) = match own {
        "gate_proj" => {
            let gate = of(module, own)?;
            (module.to_owned(), Some(gate), of(module, "up_proj")?, of(module, "down_proj")?)
        }
        "w1" => (module.to_owned(), Some(of(module, own)?), of(module, "w3")?, of(module, "w2")?),
        // BERT: `layer.N.intermediate.dense` and `layer.N.output.dense`.
        "dense" => {
            let layer = module.strip_suffix(".intermediate")?;
            let down = of(&format!("{layer}.output"), "dense")?;
            (format!("{layer}.mlp"), None, of(module, own)?, down)
        }
        _ => return None,
    };
    let fits = gate.is_none_or(|gate| gate.n == up.n && gate.k == up.k) && up.n == down.k;
    fits.then_some(Group::Mlp { name, gate, up, down, function })
}

/// The activation function of a model's feed-forward blocks.
pub(crate) fn function_of(config: &Value) -> Option<UnaryKind> {
    let name = [config, &config["text_config"]].into_iter().find_map(|place| place["hidden_act"].as_str())?;
    match name {
        "silu" | "swish" => Some(UnaryKind::Silu),
        "gelu" => Some(UnaryKind::Gelu),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Some(UnaryKind::GeluTanh),
        "relu" => Some(UnaryKind::Relu),
        _ => None,
    }
}

/// Builds the program of a group: `%x` in; one output for each linear, or `%y` of a feed-forward block.
///
/// # Errors
/// When the program is not valid.
pub(crate) fn program(
    group: &Group<'_>,
    types: Activations,
    options: &ImportOptions,
) -> Result<ImportedProgram, ImportError> {
    let mut draft = Draft::new(group.name());
    let m = draft.builder.symbol(&options.m);
    let input = |draft: &mut Draft, k: u64| {
        draft.builder.input("x", TensorType::new(vec![m.clone(), Dim::fixed(k)], types.input))
    };
    match group {
        Group::Shared { name, members } => {
            let x = input(&mut draft, members[0].1.k);
            let outputs: Vec<_> = members
                .iter()
                .map(|(own, linear)| draft.linear(linear, x, &format!("{own}."), types.output, own))
                .collect();
            draft.finish(name, ProgramKind::Group, &outputs)
        }
        Group::Mlp { name, gate, up, down, function } => {
            let x = input(&mut draft, up.k);
            let y = draft.feed_forward(x, *gate, up, *function, down, types.output, "y");
            draft.finish(name, ProgramKind::Mlp, &[y])
        }
    }
}
