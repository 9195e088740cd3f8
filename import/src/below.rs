//! The tensors below a module, which the program of a block must use.

use crate::checkpoint::{Checkpoint, Tensors};
use crate::formats::KV_SCALES;
use crate::linear::Linear;

/// The tensors of a module and of those below it, by module.
pub(crate) fn modules<'a>(
    checkpoint: &'a Checkpoint,
    module: &str,
) -> impl Iterator<Item = (&'a str, &'a Tensors)> {
    let prefix = format!("{module}.");
    let own = checkpoint.modules.get_key_value(module);
    let below =
        checkpoint.modules.range(prefix.clone()..).take_while(move |(name, _)| name.starts_with(&prefix));
    own.into_iter().chain(below).map(|(name, tensors)| (name.as_str(), tensors))
}

/// Fails if a tensor below `module` is neither of a linear nor one of `others`, given as paths. The message names it
/// relative to `layer`.
pub(crate) fn check<'a>(
    checkpoint: &Checkpoint,
    (module, layer): (&str, &str),
    linears: impl Iterator<Item = &'a Linear> + Clone,
    others: &[String],
) -> Result<(), String> {
    for (name, tensors) in modules(checkpoint, module) {
        if linears.clone().any(|linear| linear.name == name) {
            continue;
        }
        let is_other =
            |other: &String, field: &str| other.rsplit_once('.').is_some_and(|path| path == (name, field));
        let is_used = |field: &str| {
            KV_SCALES.contains(&field)
                // Derived from the configuration; the embedding is an input.
                || field == "inv_freq" && name.ends_with(".rotary_emb")
                || others.iter().any(|other| is_other(other, field))
        };
        if let Some(field) = tensors.iter().map(|(field, _)| field).find(|field| !is_used(field)) {
            let path = format!("{name}.{field}");
            let path = path.strip_prefix(&format!("{layer}.")).unwrap_or(&path);
            return Err(format!("the tensor `{path}` would not be used"));
        }
    }
    Ok(())
}

/// Returns true if a scale of the key-value cache is below a module.
pub(crate) fn has_cache_scale(checkpoint: &Checkpoint, module: &str) -> bool {
    modules(checkpoint, module).any(|(_, tensors)| KV_SCALES.iter().any(|scale| tensors.get(scale).is_some()))
}
