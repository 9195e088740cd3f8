//! Kernel specifications: the complete input of source generation.

use fourfold_ir::{BlockFormat, ElementType};

use crate::block_quantize::BlockQuantizeSpec;
use crate::columns::ColumnSpec;
use crate::design::Design;
use crate::epilogue::{Epilogue, outputs};
use crate::moves::MoveSpec;
use crate::row::RowSpec;
use crate::source::{Interface, Role, WIDE};
use crate::targets::{self, Target};

/// The specification of one kernel. It contains no names of the program and no extents, so equal
/// specifications are equal kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelSpec {
    /// A `scaled_mma` with its epilogue.
    ScaledMma(ScaledMmaSpec),
    /// A standalone `block_quantize`.
    BlockQuantize(BlockQuantizeSpec),
    /// Elementwise ops and reductions along rows.
    Row(Box<RowSpec>),
    /// Elements copied to other places.
    Move(MoveSpec),
    /// A reduction along any axes.
    Column(ColumnSpec),
}

impl KernelSpec {
    /// The target that the kernel is compiled for.
    pub fn target(&self) -> &'static Target {
        match self {
            KernelSpec::ScaledMma(spec) => spec.target,
            KernelSpec::BlockQuantize(spec) => spec.target,
            KernelSpec::Row(spec) => spec.target,
            KernelSpec::Move(spec) => spec.target,
            KernelSpec::Column(spec) => spec.target,
        }
    }

    /// A readable name. Not unique.
    pub fn name(&self) -> String {
        match self {
            KernelSpec::ScaledMma(spec) => spec.name(),
            KernelSpec::BlockQuantize(spec) => spec.configuration.name(),
            KernelSpec::Row(spec) => spec.configuration.name(),
            KernelSpec::Move(spec) => spec.name(),
            KernelSpec::Column(spec) => spec.name(),
        }
    }

    /// A readable name of the configuration.
    pub fn configuration_name(&self) -> String {
        match self {
            KernelSpec::ScaledMma(spec) => spec.configuration.name(),
            KernelSpec::BlockQuantize(spec) => spec.configuration.name(),
            KernelSpec::Row(spec) => spec.configuration.name(),
            KernelSpec::Move(spec) => spec.name(),
            KernelSpec::Column(spec) => spec.name(),
        }
    }

    /// The tile of a CTA in elements: M, N and K; the largest if there are several. A kernel without a
    /// product has N = 1.
    pub fn tile(&self) -> [u32; 3] {
        match self {
            KernelSpec::ScaledMma(spec) => spec.configuration.tile(),
            KernelSpec::BlockQuantize(spec) => spec.configuration.tile(),
            KernelSpec::Row(spec) => spec.configuration.tile(),
            KernelSpec::Move(spec) => spec.tile(),
            KernelSpec::Column(spec) => spec.tile(),
        }
    }

    /// The specification of a `scaled_mma` kernel; `None` for other kinds.
    pub fn scaled_mma(&self) -> Option<&ScaledMmaSpec> {
        match self {
            KernelSpec::ScaledMma(spec) => Some(spec),
            KernelSpec::BlockQuantize(_)
            | KernelSpec::Row(_)
            | KernelSpec::Move(_)
            | KernelSpec::Column(_) => None,
        }
    }

    /// The signature: a description of operands and outputs that equals the plan's.
    pub fn signature(&self) -> String {
        match self {
            KernelSpec::ScaledMma(spec) => spec.signature(),
            KernelSpec::BlockQuantize(spec) => spec.signature(),
            KernelSpec::Row(spec) => spec.signature(),
            KernelSpec::Move(spec) => spec.signature(),
            KernelSpec::Column(spec) => spec.signature(),
        }
    }

    /// The roles of a call.
    pub fn interface(&self) -> Interface {
        match self {
            KernelSpec::ScaledMma(spec) => spec.interface(),
            KernelSpec::BlockQuantize(spec) => spec.interface(),
            KernelSpec::Row(spec) => spec.interface(),
            KernelSpec::Move(spec) => spec.interface(),
            KernelSpec::Column(spec) => spec.interface(),
        }
    }
}

impl From<ScaledMmaSpec> for KernelSpec {
    fn from(spec: ScaledMmaSpec) -> KernelSpec {
        KernelSpec::ScaledMma(spec)
    }
}

impl From<BlockQuantizeSpec> for KernelSpec {
    fn from(spec: BlockQuantizeSpec) -> KernelSpec {
        KernelSpec::BlockQuantize(spec)
    }
}

impl From<MoveSpec> for KernelSpec {
    fn from(spec: MoveSpec) -> KernelSpec {
        KernelSpec::Move(spec)
    }
}

impl From<ColumnSpec> for KernelSpec {
    fn from(spec: ColumnSpec) -> KernelSpec {
        KernelSpec::Column(spec)
    }
}

impl From<RowSpec> for KernelSpec {
    fn from(spec: RowSpec) -> KernelSpec {
        KernelSpec::Row(Box::new(spec))
    }
}

/// The specification of a `scaled_mma` kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScaledMmaSpec {
    /// The compilation target.
    pub target: &'static Target,
    /// The design: tiles, clusters, schedules, stages.
    pub configuration: Design,
    /// The epilogue.
    pub epilogue: Epilogue,
}

impl ScaledMmaSpec {
    /// A readable name: `nvfp4_scaled_mm_sm100_128x128x256_1sm_c1x1_alpha_add_gelu_bf16`. Not unique; see
    /// [`KernelSource::hash`](crate::KernelSource::hash).
    pub fn name(&self) -> String {
        let format = self.configuration.block_format().map_or(String::new(), |format| format!("{format}_"));
        let format = format.replace(' ', "_");
        format!("{format}scaled_mm_{}_{}", self.configuration.name(), self.epilogue.name())
    }

    /// The signature: a description of operands and outputs, such as `nvfp4 alpha c=bf16 beta row=f16
    /// matrix=bf16 d=bf16`.
    ///
    /// The format comes first, then `grouped`, `grouped_alpha`, `masked` or `masked_alpha` for groups of rows. Next is the
    /// layout of the scales of A: `blocked` if they are blocked for each group, `linear` if they are linear without groups.
    /// Then follow, where present, `pair` for an epilogue that pairs columns, `alpha`, C and `beta`. The epilogue's operands
    /// and the outputs come last, each in order. An output is one of:
    /// - a value, `d=bf16`
    /// - codes and scales, `q=f4E2M1FN:f8E4M3FN/16*x2` with the operand position of the per-tensor scale, or
    ///   `q=f8E5M2:f8E8M0FNU/32:floor`
    /// - a reduction, `amax=row`
    ///
    /// An output that is not made from the last computed value ends in `@acc` or `@s3`. A library reports its
    /// signature, and callers compare it with the plan's: a kernel with another signature would access the
    /// wrong memory.
    pub fn signature(&self) -> String {
        let format =
            self.configuration.block_format().map_or("mixed".to_owned(), |format| format.to_string());
        let mut parts = vec![format];
        parts.extend(self.configuration.groups().map(|groups| groups.signature().to_owned()));
        let groups = self.configuration.groups().filter(|groups| groups.blocked);
        parts.extend(groups.map(|_| "blocked".to_owned()));
        parts.extend(self.configuration.reads_linear_scales().then(|| "linear".to_owned()));
        parts.extend(self.epilogue.signature());
        parts.join(" ")
    }

    /// Returns whether scales of A have whole tiles for each group of rows.
    fn has_padded_scales(&self) -> bool {
        self.configuration.groups().is_some_and(|groups| groups.has_padded_scales())
    }

    /// The roles of a call, in the order of the C interface: A `[L, M, K]` and B `[L, N, K]`, each with its
    /// padded scales except a 16-bit A, C, the operands of the epilogue, the outputs. With groups of rows, B is
    /// `[E, N, K]`, scales of A are linear, and the ends of the groups follow those of B: `offsets`, or the rows of each group
    /// in its matrix of A. Scales of A with whole tiles for each group have P rows, and `sfa_ends` follows `offsets`.
    pub fn interface(&self) -> Interface {
        let ScaledMmaSpec { target, configuration, epilogue } = self;
        let [a, b] = configuration.operand_elements();
        let scale = configuration.scale_element();
        let format = configuration.block_format();
        let [of_a, of_b] = format.map_or([WIDE; 2], |format| targets::operand_alignment(format, target));
        let is_weight_only = format.is_some_and(BlockFormat::is_weight_only);
        let mut operands = vec![Role { alignment: of_a, ..Role::tensor("a", a, &["L", "M", "K"]) }];
        // The number of linear scales is no product of extents, either. Without groups they may begin at any byte.
        let alignment = if configuration.reads_linear_scales() { 1 } else { WIDE };
        let sfa = || Role { alignment, ..Role::padded_scales("sfa", scale) };
        operands.extend((!is_weight_only).then(sfa));
        let groups = configuration.groups();
        let matrices = if groups.is_some() { "E" } else { "L" };
        operands.extend([
            Role { alignment: of_b, ..Role::tensor("b", b, &[matrices, "N", "K"]) },
            Role::padded_scales("sfb", scale),
        ]);
        let offsets = || Role { alignment: 4, ..Role::tensor("offsets", ElementType::I32, &["E"]) };
        operands.extend(groups.map(|_| offsets()));
        operands.extend(self.has_padded_scales().then(|| Role { name: "sfa_ends".to_owned(), ..offsets() }));
        let has_alphas = epilogue.alpha && groups.is_some_and(|groups| groups.has_alphas);
        let alphas = || Role { alignment: 4, ..Role::tensor("alphas", ElementType::F32, &["E"]) };
        operands.extend(has_alphas.then(alphas));
        operands.extend(epilogue.c.map(|c| Role::tensor("c", c, &["L", "M", "N"])));
        let read = epilogue.operands.iter().enumerate();
        let columns = outputs::columns(epilogue);
        operands.extend(read.map(|(position, it)| Role::beside_d(position, it.element, it.shape, columns)));
        let scalars = [(epilogue.alpha && !has_alphas, "alpha"), (epilogue.beta, "beta")];
        let scalars = scalars.into_iter().filter_map(|(present, name)| present.then_some(name)).collect();
        let mut extents = vec!["L", "M", "N", "K"];
        extents.extend(epilogue.pair.then_some(columns));
        extents.extend(groups.map(|_| "E"));
        extents.extend(self.has_padded_scales().then_some("P"));
        Interface { extents, operands, scalars, outputs: outputs::roles(epilogue) }
    }
}
