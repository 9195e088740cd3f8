//! Collects the problems of a manifest, including those of files and programs.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fourfold::ir::SymbolValues;
use fourfold::{Backend, DeviceChoice, Options};
use fourfold_cli::replay::{load, plan};
use fourfold_tuner::manifest::{Graph, Problems, merged, read_problems};
use fourfold_tuner::problem::{Problem, Weighted};

use super::Refused;

/// Returns every problem once, in the order of the manifest. Files are relative to the manifest.
pub fn all(problems: &Problems, beside: &Path) -> Result<Vec<Weighted>> {
    let mut all = problems.named()?;
    for name in &problems.files {
        let path = beside.join(name);
        let text = fourfold_executor::read_text(&path)?;
        all.extend(read_problems(&text).with_context(|| path.display().to_string())?);
    }
    for graph in &problems.graphs {
        all.extend(of_graph(graph, beside)?);
    }
    Ok(merged(all))
}

/// Returns the problems that the kernels of a program solve, for each choice of its symbols' extents.
fn of_graph(graph: &Graph, beside: &Path) -> Result<Vec<Weighted>> {
    let path = beside.join(&graph.file);
    let name = path.display();
    let loaded = load(&path).map_err(Refused::from)?;
    let options = Options::default().target(fourfold::DEFAULT_TARGET).device(DeviceChoice::None);
    let backend = Backend::new(&options).map_err(|error| Refused::from(fourfold_cli::Error::from(error)))?;
    let planned = plan(&backend, &loaded).map_err(Refused::from)?;
    let (module, partition) = (planned.program().module(), planned.partition());
    let mut choices = vec![SymbolValues::default()];
    for (symbol, symbol_name) in module.symbols.iter() {
        let Some(values) = graph.symbols.get(symbol_name) else {
            bail!(
                "{name} has the symbol {symbol_name}: list its extents, such as `symbols = {{ {symbol_name} = [1, 64] }}`"
            );
        };
        let with = |choice: &SymbolValues, value: u64| {
            let mut choice = choice.clone();
            choice.set(symbol, value);
            choice
        };
        choices = choices.iter().flat_map(|choice| values.iter().map(|value| with(choice, *value))).collect();
    }
    if let Some(unknown) =
        graph.symbols.keys().find(|key| module.symbols.iter().all(|(_, known)| known != *key))
    {
        bail!("{name} has no symbol {unknown}");
    }
    if partition.kernels().count() == 0 {
        bail!("no op of {name} becomes a kernel; `fourfold explain {name}` lists the reasons");
    }
    let mut problems = Vec::new();
    for choice in &choices {
        for (_, kernel) in partition.kernels() {
            let extents = [&kernel.batch, &kernel.m, &kernel.n, &kernel.k].map(|dim| dim.evaluate(choice));
            let [Some(l), Some(m), Some(n), Some(k)] = extents else {
                bail!("{name}: an extent is too large for these symbols");
            };
            // If all matrices of A share one B, the batch is flattened into M.
            let problem = if kernel.b_batched { Problem { l, m, n, k } } else { Problem::new(l * m, n, k) };
            if l * m * n * k > 0 {
                problems.push(Weighted { problem, weight: graph.weight });
            }
        }
    }
    Ok(problems)
}
