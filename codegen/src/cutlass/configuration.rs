//! The configuration of one block-scaled kernel: plain data that names CUTLASS building blocks.

use std::fmt;

use fourfold_ir::{BlockFormat, ElementType};

use crate::groups::Groups;

pub use super::format::{Format, Fp6, Fp8};

/// The architecture tag of a kernel. It differs from the compilation target: `Sm100` also serves `sm_103a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// tcgen05: B200, and B300 with the same instructions.
    Sm100,
    /// The "ultra" FP4 instructions of B300.
    Sm103,
    /// mma.sync: RTX 50, RTX PRO, DGX Spark.
    Sm120,
}

/// One operand, as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Elements and scales.
    pub format: Format,
    /// True if K is contiguous: A row-major, B column-major.
    pub k_major: bool,
    /// The guaranteed alignment of rows, in elements.
    pub alignment: u32,
}

impl Operand {
    /// A K-major operand of a kind of instruction, with the alignment that the kind requires.
    pub fn k_major(format: Format, kind: Kind) -> Operand {
        Operand { format, k_major: true, alignment: kind.alignment(format) }
    }
}

/// The kind of MMA instruction for a pair of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// FP4 by FP4 with ue4m3 scales.
    Nvf4,
    /// FP4 by FP4 with ue8m0 scales.
    Mxf4,
    /// Any mix of 8, 6 and 4 bits. Each element takes a byte of shared memory.
    Mxf8f6f4,
}

impl Kind {
    /// The kind that the builder deduces for a pair of formats.
    pub fn of(a: Format, b: Format) -> Kind {
        match (a.bits(), b.bits()) {
            (4, 4) if a.scale_vector().min(b.scale_vector()) == 16 => Kind::Nvf4,
            (4, 4) => Kind::Mxf4,
            _ => Kind::Mxf8f6f4,
        }
    }

    /// The alignment of rows that an operand needs, in elements. TMA spreads 4 and 6 bits over bytes, 128 elements at a
    /// time.
    pub fn alignment(self, format: Format) -> u32 {
        match (self, format.bits()) {
            (Kind::Nvf4 | Kind::Mxf4, _) => 32,
            (Kind::Mxf8f6f4, 8) => 16,
            (Kind::Mxf8f6f4, _) => 128,
        }
    }
}

/// The cluster: CTAs that share tiles through multicast, along M and N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cluster {
    /// Fixed at compile time.
    Static([u32; 2]),
    /// Chosen at launch.
    Dynamic,
}

/// The number of SMs per MMA tile. It is a separate field, because "2Sm" also occurs inside `UltraVs32Sm103`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sms {
    /// One SM.
    One,
    /// A pair of SMs, each with half of the tile's rows.
    Two,
}

impl Sms {
    /// The number, 1 or 2.
    pub fn count(self) -> u32 {
        match self {
            Sms::One => 1,
            Sms::Two => 2,
        }
    }
}

/// The prefetch mode of the Sm103 mainloop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefetch {
    /// The builder's choice.
    Default,
    /// No prefetch.
    Disabled,
    /// Prefetch through TMA.
    Tma,
}

/// The schedule of the mainloop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mainloop {
    /// The builder chooses by tile and cluster.
    Auto,
    /// Sm100, for one kind of MMA instruction.
    Sm100(Kind),
    /// Sm100, with the kind deduced from the operands.
    Sm100BlockScaled,
    /// Sm100, low latency: scales through cp.async, A and B through TMA.
    Sm100MixedTmaCpAsync,
    /// Sm103, for one scale vector.
    Sm103Ultra {
        /// The scale vector, 16 or 32.
        vector: u32,
        /// The prefetch mode.
        prefetch: Prefetch,
    },
    /// Sm120, with both consumer warpgroups on one tile.
    Cooperative,
    /// Sm120, with one tile per consumer warpgroup.
    Pingpong,
    /// Sm120, for one kind of MMA instruction.
    Sm120 {
        /// The kind of instruction.
        kind: Kind,
        /// True for pingpong, false for cooperative.
        pingpong: bool,
    },
}

impl Mainloop {
    /// The family of the tag; `None` for [`Mainloop::Auto`].
    pub fn family(self) -> Option<Family> {
        match self {
            Mainloop::Auto => None,
            Mainloop::Sm100(_) | Mainloop::Sm100BlockScaled | Mainloop::Sm100MixedTmaCpAsync => {
                Some(Family::Sm100)
            }
            Mainloop::Sm103Ultra { .. } => Some(Family::Sm103),
            Mainloop::Cooperative | Mainloop::Pingpong | Mainloop::Sm120 { .. } => Some(Family::Sm120),
        }
    }

    /// Returns whether each consumer warpgroup works on its own tile.
    pub fn is_pingpong(self) -> bool {
        matches!(self, Mainloop::Pingpong | Mainloop::Sm120 { pingpong: true, .. })
    }
}

/// The schedule of the epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueSchedule {
    /// The builder chooses.
    Auto,
    /// Through shared memory and TMA (Sm100, Sm103).
    Tma,
    /// The same as `Tma`, under its NVFP4 name (Sm100).
    TmaNvf4,
    /// From registers to global memory (Sm100, Sm103).
    NoSmem,
    /// Sm120, grouped, with a cooperative mainloop.
    Cooperative,
    /// Sm120, grouped, with a pingpong mainloop.
    Pingpong,
}

/// The operator class of the epilogue. It determines the automatic epilogue tile at N = 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperatorClass {
    /// `OpClassBlockScaledTensorOp`
    BlockScaledTensorOp,
    /// `OpClassTensorOp`
    TensorOp,
}

/// The epilogue of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Its schedule.
    pub schedule: EpilogueSchedule,
    /// The SM count in its tag. It must equal the mainloop's; no compiler checks this.
    pub sms: Sms,
    /// True for the PtrArray form of the tag.
    pub grouped: bool,
    /// The rows and columns per step; `None` for the builder's choice.
    pub tile: Option<[u32; 2]>,
    /// Its operator class.
    pub class: OperatorClass,
}

/// The number of mainloop stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stages {
    /// As many as fit beside the epilogue.
    Auto,
    /// This many. Nothing checks that they fit.
    Fixed(u32),
}

/// The tile scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileScheduler {
    /// The family's default. On Blackwell it uses a hardware instruction.
    Default,
    /// A fixed stride over the grid, without that instruction.
    StaticPersistent,
    /// Splits K across CTAs if there are too few tiles to occupy them.
    StreamK,
    /// Splits K of every tile into this many parts.
    SplitK(u32),
}

impl TileScheduler {
    /// Returns whether several CTAs may share a tile, each with a part of K.
    pub fn splits_k(self) -> bool {
        matches!(self, TileScheduler::StreamK | TileScheduler::SplitK(_))
    }
}

/// The raster direction of the tile scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Raster {
    /// The scheduler chooses by the extents.
    #[default]
    Heuristic,
    /// Along M.
    AlongM,
    /// Along N.
    AlongN,
}

/// The order in which the scheduler assigns tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileOrder {
    /// The raster direction.
    pub raster: Raster,
    /// The largest swizzle: the width of a band across that direction in tiles, 1, 2, 4 or 8.
    pub swizzle: u32,
}

impl Default for TileOrder {
    fn default() -> TileOrder {
        TileOrder { raster: Raster::Heuristic, swizzle: 1 }
    }
}

/// The configuration of one kernel, without the computation of its epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// The architecture tag.
    pub family: Family,
    /// A, the activations, `[M, K]`.
    pub a: Operand,
    /// B, the weights, `[N, K]`.
    pub b: Operand,
    /// The MMA tile: M (over both SMs of a pair), N, K.
    pub tile: [u32; 3],
    /// The cluster.
    pub cluster: Cluster,
    /// The SMs per MMA tile. Under [`Mainloop::Auto`], the builder's expected choice.
    pub sms: Sms,
    /// The schedule of the mainloop.
    pub mainloop: Mainloop,
    /// The groups of rows; absent in a `scaled_mma`. Each is a problem of a grouped GEMM.
    pub groups: Option<Groups>,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// The number of mainloop stages.
    pub stages: Stages,
    /// The tile scheduler.
    pub scheduler: TileScheduler,
    /// The element type of C; `None` if the kernel reads no C.
    pub c: Option<ElementType>,
    /// The element type of D.
    pub d: ElementType,
    /// True if D (and C) are row-major: N contiguous.
    pub d_row_major: bool,
    /// The order in which the scheduler assigns tiles.
    pub order: TileOrder,
    /// True if the kernel computes the transpose, B by A: the tile's M then lies along N, and its N along M.
    /// Only for epilogues that read at most C, alpha and beta, and write only D.
    pub swapped: bool,
}

impl Configuration {
    /// Returns the same kernel with other element types of C and D.
    pub fn with_elements(&self, c: Option<ElementType>, d: ElementType) -> Configuration {
        Configuration { c, d, ..self.clone() }
    }

    /// The format in a program; `None` if programs do not support it: unequal scales.
    pub fn block_format(&self) -> Option<BlockFormat> {
        let (a, b) = (self.a.format, self.b.format);
        let scale = match a.scale_vector() {
            16 => ElementType::F8E4M3FN,
            _ => ElementType::F8E8M0FNU,
        };
        let same = a.scale_vector() == b.scale_vector();
        same.then_some(BlockFormat { a: a.element(), b: b.element(), scale, block: a.scale_vector() })
    }

    /// A readable name: family, tile, SMs, cluster, and every non-default part. Element types are not
    /// included.
    pub fn name(&self) -> String {
        let [m, n, k] = self.tile;
        let family = match self.family {
            Family::Sm100 => "sm100",
            Family::Sm103 => "sm103",
            Family::Sm120 => "sm120",
        };
        let mut name = format!("{family}_{m}x{n}x{k}");
        if self.family != Family::Sm120 {
            name += &format!("_{}sm", self.sms.count());
        }
        match self.cluster {
            Cluster::Static([m, n]) => name += &format!("_c{m}x{n}"),
            Cluster::Dynamic => name += "_cdynamic",
        }
        if self.mainloop.is_pingpong() {
            name += "_pingpong";
        }
        if self.mainloop == Mainloop::Sm100MixedTmaCpAsync {
            name += "_cpasync";
        }
        if let Some(groups) = self.groups {
            name += if groups.masked { "_masked" } else { "_grouped" };
            name += if groups.blocked { "_blocked" } else { "" };
        }
        if self.epilogue.schedule == EpilogueSchedule::NoSmem {
            name += "_nosmem";
        }
        if let Some([m, n]) = self.epilogue.tile {
            name += &format!("_e{m}x{n}");
        }
        if let Stages::Fixed(stages) = self.stages {
            name += &format!("_s{stages}");
        }
        match self.scheduler {
            TileScheduler::Default | TileScheduler::StaticPersistent => {}
            TileScheduler::StreamK => name += "_streamk",
            TileScheduler::SplitK(splits) => name += &format!("_split{splits}"),
        }
        match self.order.raster {
            Raster::Heuristic => {}
            Raster::AlongM => name += "_rm",
            Raster::AlongN => name += "_rn",
        }
        if self.order.swizzle != 1 {
            name += &format!("_w{}", self.order.swizzle);
        }
        if self.swapped {
            name += "_swap";
        }
        name
    }

    /// The kind of MMA instruction: the mainloop's if its tag names one, otherwise the builder's deduction.
    pub fn kind(&self) -> Kind {
        match self.mainloop {
            Mainloop::Sm100(kind) | Mainloop::Sm120 { kind, .. } => kind,
            _ => Kind::of(self.a.format, self.b.format),
        }
    }

    /// The SM count that [`Mainloop::Auto`] picks on Sm100: two if tile M is 256 and the static cluster's M
    /// is even, otherwise one.
    pub fn auto_sms(&self) -> Sms {
        match self.cluster {
            Cluster::Static([m, _]) if self.tile[0] == 256 && m.is_multiple_of(2) => Sms::Two,
            _ => Sms::One,
        }
    }

    /// The tile of one CTA: the MMA tile, with half of its rows if two SMs share it.
    pub fn cta_tile(&self) -> [u32; 3] {
        let [m, n, k] = self.tile;
        [m / self.sms.count(), n, k]
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
