//! Derives the specification of a kernel from its plan. A specification contains no names of the program and
//! no extents, so equal specifications are equal kernels.

#[cfg(test)]
mod tests;

use fourfold_ir::Program;
use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_scheduler::{Plan, ScaledMmaPlan};

use crate::block_quantize::{self, BlockQuantizeSpec};
use crate::columns::ColumnSpec;
use crate::cutlass::configuration::Configuration;
use crate::cutlass::{CutlassVersion, defaults, grid, rules};
use crate::dispatch::Tables;
use crate::epilogue::{self, Epilogue};
use crate::extents::Extents;
use crate::groups::Groups;
use crate::hopper;
use crate::moves::MoveSpec;
use crate::row::{self, RowSpec};
use crate::select;
use crate::spec::{KernelSpec, ScaledMmaSpec};
use crate::targets::Target;

/// Derives the specification of a plan's kernel, and the reason for its configuration.
///
/// `tables` may override the default configuration for a target, a format and extents. A named kernel that
/// cannot be built is replaced by the default. `None` for a target or a format without kernels, for which no
/// plan exists.
pub fn specify(
    program: &Program,
    plan: &Plan,
    target: &'static Target,
    cutlass: CutlassVersion,
    tables: Option<&Tables>,
) -> Option<(KernelSpec, String)> {
    match plan {
        Plan::ScaledMma(plan) => {
            let (spec, why) = specify_scaled_mma(program, plan, target, cutlass, tables)?;
            Some((spec.into(), why))
        }
        Plan::BlockQuantize(plan) => {
            let format = match plan.scale_rounding {
                None if plan.formula == Nvfp4Formula::DEFAULT => block_quantize::Format::Nvfp4,
                None => {
                    let has_global = plan.global.is_some();
                    block_quantize::Format::Nvfp4By { formula: plan.formula, has_global }
                }
                Some(rounding) if plan.formula == Nvfp4Formula::DEFAULT => {
                    block_quantize::Format::Mx(plan.format.element, rounding)
                }
                Some(rounding) => block_quantize::Format::MxBy {
                    element: plan.format.element,
                    rounding,
                    edges: plan.formula.mx,
                },
            };
            let configuration = block_quantize::Configuration::usual(plan.input, format, plan.layout);
            let why = "the default threads, values and rows".to_owned();
            Some((BlockQuantizeSpec { target, configuration }.into(), why))
        }
        Plan::Row(plan) => {
            let configuration = row::Configuration::usual(&plan.program, plan.k.as_fixed(), target);
            let why = "the default threads and elements for rows of this length".to_owned();
            Some((RowSpec { target, configuration, program: plan.program.clone() }.into(), why))
        }
        Plan::Move(plan) => {
            let why = "the only kernel of this copy".to_owned();
            Some((MoveSpec { target, program: plan.program }.into(), why))
        }
        Plan::Column(plan) => {
            let why = "the only kernel of this reduction".to_owned();
            Some((ColumnSpec { target, program: plan.program }.into(), why))
        }
        Plan::Mma(_) | Plan::View(_) | Plan::Choose(_) | Plan::Constant(_) => None,
    }
}

fn specify_scaled_mma(
    program: &Program,
    plan: &ScaledMmaPlan,
    target: &'static Target,
    cutlass: CutlassVersion,
    tables: Option<&Tables>,
) -> Option<(ScaledMmaSpec, String)> {
    // One B for every matrix of A flattens the batch into M.
    let rows = if plan.b_batched { plan.m.as_fixed() } else { plan.m.times(&plan.batch)?.as_fixed() };
    let matrices = if plan.b_batched { plan.batch.as_fixed() } else { Some(1) };
    let extents = Extents { l: matrices, m: rows, n: plan.n.as_fixed(), k: plan.k.as_fixed() };
    let epilogue = epilogue::of_plan(program, plan);
    let table = tables.and_then(|tables| tables.find(target.name, plan.format));
    if target.name == hopper::TARGET {
        let only_values = epilogue.only_values();
        let (configuration, why) = match table {
            _ if let Some(groups) = &plan.groups => {
                let count = groups.count.as_fixed();
                select::hopper::choose_of_groups(plan.format, Groups::of(groups), extents, count)?
            }
            Some(table) => select::hopper::choose_by(table, plan.format, extents, only_values, cutlass)?,
            None => select::hopper::choose(plan.format, extents, only_values)?,
        };
        let linear_sfa = plan.groups.is_none() && plan.linear_sfa;
        let configuration = hopper::Configuration { linear_sfa, ..configuration };
        return Some((ScaledMmaSpec { target, configuration: configuration.into(), epilogue }, why));
    }
    let family = defaults::family(target.name)?;
    if let Some(groups) = &plan.groups {
        let (configuration, why) =
            select::cutlass::choose_of_groups(family, plan.format, Groups::of(groups))?;
        let configuration = fit(configuration, &epilogue).into();
        return Some((ScaledMmaSpec { target, configuration, epilogue }, why));
    }
    let vectors = |tile: [u32; 3]| epilogue.row_bits() / 8 * u64::from(tile[1]);
    let mut refused = None;
    if let Some(table) = table {
        let pick = table.pick(extents, cutlass);
        let named =
            pick.kernel.configuration(family, plan.format).ok_or("it is a kernel of another kind".to_owned());
        let held = named.map(|it| fit(it, &epilogue)).and_then(|configuration| {
            rules::check(&configuration, cutlass, target.name).map_err(|broken| rules::texts(&broken))?;
            grid::launches_all(&configuration, [matrices, extents.m, extents.n], target.most_extents())?;
            match defaults::has_room(&configuration, vectors(configuration.tile), cutlass) {
                true => Ok(configuration),
                false => Err("the epilogue's row operands leave no shared memory for its stages".to_owned()),
            }
        });
        match held {
            Ok(configuration) => {
                return Some((
                    ScaledMmaSpec { target, configuration: configuration.into(), epilogue },
                    pick.why,
                ));
            }
            Err(why) => refused = Some(format!("the table's {} is skipped: {why}", pick.kernel)),
        }
    }
    let (configuration, why) = select::cutlass::choose(family, plan.format, cutlass, extents)?;
    let (configuration, why) = match fit(configuration, &epilogue) {
        fitted if rules::invalid(&fitted, cutlass, target.name).is_empty() => (fitted, why),
        // More operands mean fewer columns per epilogue tile, and overlapping accumulators then take more
        // tensor memory.
        fitted => {
            let unknown = Extents { l: None, m: None, n: None, k: None };
            let (usual, _) = select::cutlass::choose(family, plan.format, cutlass, unknown)?;
            let why =
                format!("with this epilogue {} exceeds tensor memory, so the default tile", fitted.name());
            (fit(usual, &epilogue), why)
        }
    };
    let room = vectors(configuration.tile);
    let (configuration, shorter) = defaults::with_room(configuration, room, cutlass);
    let why = shorter.unwrap_or(why);
    let why = refused.map_or(why.clone(), |refused| format!("{why}; {refused}"));
    Some((ScaledMmaSpec { target, configuration: configuration.into(), epilogue }, why))
}

/// Adapts a configuration to an epilogue.
fn fit(configuration: Configuration, epilogue: &Epilogue) -> Configuration {
    configuration
        .with_elements(epilogue.source(), epilogue.destination())
        .for_operands(epilogue.fragments())
        .for_blocks(epilogue.longest_block())
}
