//! Kernels for D = Σ (a·sfa)(b·sfb): one type per hardware family, and their common parts.

mod cutlass;
mod hopper;
mod values;

use std::collections::HashMap;

use fourfold_codegen::{Epilogue, Output, OutputKind, Target, capabilities};
use fourfold_executor::{fallback, kernel};
use fourfold_ir::{BlockFormat, ElementType, FormatCapability, SymbolValues, Tensor, sample};
use fourfold_scheduler::EpilogueRef;

use super::{Work, Workload};
use crate::problem::Problem;

pub use cutlass::Cutlass;
pub use hopper::Hopper;

/// The computation of a kernel: format and type of D. The sum is rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Computed {
    format: BlockFormat,
    d: ElementType,
}

impl Computed {
    /// No alpha, no C, no steps.
    fn epilogue(self) -> Epilogue {
        Epilogue {
            pair: false,
            alpha: false,
            c: None,
            beta: false,
            accumulator: self.d,
            steps: Vec::new(),
            operands: Vec::new(),
            outputs: vec![Output { of: EpilogueRef::Accumulator, kind: OutputKind::Value }],
        }
    }

    /// The target's limits for the format; `None` if the target does not support it.
    fn capability(self, target: &Target) -> Option<FormatCapability> {
        capabilities(target.name)?.formats.into_iter().find(|capability| capability.format == self.format)
    }

    fn takes(self, target: &Target, problem: &Problem) -> Result<(), String> {
        let format = self.format;
        let Some(capability) = self.capability(target) else {
            return Err(format!("{} has no kernels for {format}", target.name));
        };
        let multiple = |name, extent: u64, of: u64| match extent.is_multiple_of(of) {
            true => Ok(()),
            false => Err(format!("{name} = {extent} is not a multiple of {of}")),
        };
        multiple("K", problem.k, capability.k_multiple)?;
        if let Some(output) = capability.output(self.d) {
            multiple("N", problem.n, output.n_multiple)?;
        }
        let Problem { l, m, n, k } = *problem;
        if let Some(extent) = [l, m, n, k].into_iter().find(|extent| *extent > capability.max_extent) {
            return Err(format!("an extent, {extent}, exceeds {}", capability.max_extent));
        }
        let at_most = |name, extent: u64, most: u64| match extent <= most {
            true => Ok(()),
            false => Err(format!("{name} = {extent} exceeds {most}, the limit of a launch")),
        };
        let tiles = capability.grid.tiles(l, m, n).unwrap_or(u64::MAX);
        at_most("L", l, capability.grid.max_matrices)?;
        at_most("N", n, capability.grid.max_columns)?;
        at_most("tiles of D", tiles, capability.grid.max_tiles)
    }

    fn key(self) -> String {
        format!("scaled_mma {} {}", self.format, self.d)
    }

    fn work(self, problem: &Problem) -> Work {
        let Problem { l, m, n, k } = *problem;
        let matrix = |element: ElementType, extent: u64| extent * element.storage_bits() as u64 / 8;
        let scales = |rows: u64| rows * k.div_ceil(u64::from(self.format.block));
        let a = matrix(self.format.a, m * k) + if self.format.is_weight_only() { 0 } else { scales(m) };
        let b = matrix(self.format.b, n * k) + scales(n);
        Work { bytes: l * (a + b + matrix(self.d, m * n)), flops: 2 * l * m * n * k }
    }

    /// Contest-rule data, with the results of the CPU fallback. f32 accumulation is exact in any order, so every
    /// correct kernel gives the same bits. That is proven up to the K of [`sample::Rule::exact_k`]. For larger K it
    /// fails only for sums that are tens of standard deviations from the mean.
    fn workload(self, problem: &Problem, seed: u64) -> Result<Workload, String> {
        let Problem { l, m, n, k } = *problem;
        let Computed { format, d } = self;
        let (block, scale) = (format.block, format.scale);
        let (batch, scales) =
            (if l == 1 { String::new() } else { format!("{l}, ") }, k.div_ceil(u64::from(block)));
        let (sfa, names): (String, &[&str]) = if format.is_weight_only() {
            (String::new(), &["a", "b", "sfb"])
        } else {
            (format!(" %sfa: tensor<[{batch}{m}, {scales}], {scale}, blocked>,"), &["a", "sfa", "b", "sfb"])
        };
        let source = format!(
            "fir 1\nfunc @main(\n  %a: tensor<[{batch}{m}, {k}], {}>,{sfa}\n  \
             %b: tensor<[{batch}{n}, {k}], {}>, %sfb: tensor<[{batch}{n}, {scales}], {scale}, blocked>\n) {{\n  \
             %d = scaled_mma %{} {{block = {block}}} : tensor<[{batch}{m}, {n}], {d}>\n  return %d\n}}\n",
            format.a,
            format.b,
            names.join(", %")
        );
        let (program, _) = fourfold_ir::load(&source).map_err(|errors| {
            errors.first().map_or_else(|| "no program".to_owned(), |error| error.message.clone())
        })?;
        let recipe = sample::Recipe { rule: sample::Rule::Contest, seed, symbols: Vec::new() };
        let mut tensors: HashMap<String, Tensor> =
            sample::inputs(&program, &recipe).map_err(|error| error.to_string())?;
        let op = program.module().ops.keys().next().ok_or("the program has no op")?;
        let mut given = Vec::new();
        for name in names {
            let tensor = tensors.remove(*name).ok_or_else(|| format!("no sample for %{name}"))?;
            given.push(((*name).to_owned(), tensor));
        }
        let operands: Vec<&Tensor> = given.iter().map(|(_, tensor)| tensor).collect();
        let results = fallback::run_op(&program, op, &operands, &SymbolValues::default())
            .map_err(|error| error.to_string())?;
        let extent =
            |extent: u64| i64::try_from(extent).map_err(|_| format!("the extent {extent} exceeds 63 bits"));
        Ok(Workload {
            extents: kernel::Extents::of_product(extent(l)?, extent(m)?, extent(n)?, extent(k)?),
            inputs: given.into_iter().map(|(role, tensor)| (role, tensor.bytes().to_vec())).collect(),
            expected: results.into_iter().map(|tensor| tensor.bytes().to_vec()).collect(),
            rule: "contest-rule data, every byte equal to the fallback's",
        })
    }
}
