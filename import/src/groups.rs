//! Linears that belong together: those that share an input, and feed-forward blocks.

use std::collections::BTreeMap;

use fourfold_ir::{Dim, TensorType, UnaryKind};
use serde_json::Value;

use crate::below;
use crate::checkpoint::Checkpoint;
use crate::error::ImportError;
use crate::imported::{ImportedProgram, LeftOut, LeftOutCode, ProgramKind};
use crate::linear::Linear;
use crate::options::ImportOptions;
use crate::program::{Activations, Draft};
use crate::settings;

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

/// The last parts of the paths of modules whose q, k and v have one input.
const SELF_ATTENTION: [&str; 6] = ["self_attn", "self", "attention", "attn", "self_attention", "attn1"];

/// Parts of the paths of modules whose k and v have another input than q, in lower case.
const OTHER_ATTENTION: [&str; 7] =
    ["cross", "encoder_attn", "encdec", "enc_dec", "perceiver", "resampler", "pool"];

/// Parts of the names of architectures that add a position to q and k, but not to v.
const POSITIONED: [&str; 7] =
    ["detr", "sam", "grounding", "maskformer", "mask2former", "table-transformer", "oneformer"];

/// Finds the groups of a model's linears, in the order of their names, and those that have no program.
pub(crate) fn find<'a>(linears: &ByName<'a>, checkpoint: &Checkpoint) -> (Vec<Group<'a>>, Vec<LeftOut>) {
    let (mut groups, mut left_out) = (Vec::new(), Vec::new());
    let mut add = |name: String, kind: &str, group: Result<Group<'a>, String>| match group {
        Ok(group) => groups.push(group),
        Err(reason) => {
            let message = format!("no {kind} is built: {reason}");
            left_out.push(LeftOut { name, code: LeftOutCode::UnsupportedBlock, message });
        }
    };
    for (name, first) in linears {
        let Some((module, own)) = name.rsplit_once('.') else { continue };
        for (group, members) in GROUPS.iter().filter(|(_, members)| members[0] == own) {
            let found: Vec<(&'static str, &Linear)> = members
                .iter()
                .filter_map(|member| Some((*member, *linears.get(&*format!("{module}.{member}"))?)))
                .collect();
            if found.len() == members.len() && found.iter().all(|(_, member)| member.k == first.k) {
                let name = format!("{module}.{group}");
                let shared = match *group {
                    "qkv" => has_one_input(module, &checkpoint.config),
                    _ => Ok(()),
                };
                let shared = shared.map(|()| Group::Shared { name: name.clone(), members: found });
                add(name, "group", shared);
            }
        }
        let Some(parts) = parts_of(module, own, checkpoint) else { continue };
        if parts.first(linears) == Some(*name) {
            add(parts.name.clone(), "feed-forward block", parts.group(linears, checkpoint));
        }
    }
    (groups, left_out)
}

/// Fails if q, k and v of a module may have different inputs.
fn has_one_input(module: &str, config: &Value) -> Result<(), String> {
    let parts = || module.split('.').map(str::to_ascii_lowercase);
    if let Some(part) = parts().find(|part| OTHER_ATTENTION.iter().any(|other| part.contains(other))) {
        return Err(format!("k and v of `{part}` have another input than q"));
    }
    let last = parts().next_back().unwrap_or_default();
    if !SELF_ATTENTION.contains(&&*last) {
        return Err(format!("`{last}` is not known to have one input for q, k and v"));
    }
    let architecture = config["model_type"].as_str().unwrap_or_default();
    if POSITIONED.iter().any(|positioned| architecture.contains(positioned)) {
        return Err(format!("k and v of the architecture `{architecture}` have different inputs"));
    }
    Ok(())
}

/// The paths of the parts of a feed-forward block.
struct Parts {
    name: String,
    gate: Option<String>,
    up: String,
    down: String,
    /// The modules that hold all of its tensors, and the tensors there that follow the block.
    below: Vec<String>,
    after: Vec<String>,
}

/// The feed-forward block that the linear `own` of `module` is a part of.
fn parts_of(module: &str, own: &str, checkpoint: &Checkpoint) -> Option<Parts> {
    let gated = |gate: &str, up: &str, down: &str| {
        let of = |name: &str| format!("{module}.{name}");
        // Other modules have a `down_proj`, too.
        let is_one = [gate, up].iter().all(|name| checkpoint.modules.contains_key(&of(name)));
        is_one.then(|| Parts {
            name: module.to_owned(),
            gate: Some(of(gate)),
            up: of(up),
            down: of(down),
            below: vec![module.to_owned()],
            after: Vec::new(),
        })
    };
    match own {
        "gate_proj" | "up_proj" | "down_proj" => gated("gate_proj", "up_proj", "down_proj"),
        "w1" | "w2" | "w3" => gated("w1", "w3", "w2"),
        // BERT: `layer.N.intermediate.dense` and `layer.N.output.dense`.
        "dense" => {
            let layer = module.strip_suffix(".intermediate")?;
            let norm = |field: &str| format!("{layer}.output.LayerNorm.{field}");
            Some(Parts {
                name: format!("{layer}.mlp"),
                gate: None,
                up: format!("{layer}.intermediate.dense"),
                down: format!("{layer}.output.dense"),
                below: vec![format!("{layer}.intermediate"), format!("{layer}.output")],
                after: vec![norm("weight"), norm("bias")],
            })
        }
        _ => None,
    }
}

impl Parts {
    /// The first linear of the block that is imported.
    fn first(&self, linears: &ByName<'_>) -> Option<&str> {
        let mut paths = self.gate.iter().chain([&self.up, &self.down]).map(String::as_str);
        paths.find(|path| linears.contains_key(path))
    }

    fn group<'a>(&self, linears: &ByName<'a>, checkpoint: &Checkpoint) -> Result<Group<'a>, String> {
        let relative = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
        let of = |path: &str| {
            let missing = || format!("`{}` is not imported", relative(path));
            linears.get(path).copied().ok_or_else(missing)
        };
        let gate = self.gate.as_deref().map(of).transpose()?;
        let (up, down) = (of(&self.up)?, of(&self.down)?);
        let function = settings::of_feed_forward(&checkpoint.config, &self.name)?;
        let members = || gate.into_iter().chain([up, down]);
        for module in &self.below {
            let layer = self.name.trim_end_matches(".mlp");
            below::check(checkpoint, (module, layer), members(), &self.after)?;
        }
        let has_bias = &checkpoint.config["mlp_bias"];
        if let Some(member) =
            members().find(|it| has_bias.as_bool().is_some_and(|has| has != it.bias.is_some()))
        {
            return Err(format!(
                "`mlp_bias` is {has_bias}, which the tensors of `{}` contradict",
                relative(&member.name)
            ));
        }
        if !(gate.is_none_or(|gate| gate.n == up.n && gate.k == up.k) && up.n == down.k) {
            return Err("the extents of its linears do not fit".to_owned());
        }
        Ok(Group::Mlp { name: self.name.clone(), gate, up, down, function })
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
    let mut draft = Draft::new(group.name(), types);
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
