//! What one block-scaled kernel is built from: plain data, and the CUTLASS names it stands for.

use std::fmt;

use fourfold_ir::{BlockFormat, ElementType};

/// The architecture tag of a kernel, which is not the target it is compiled for: `Sm100` also serves `sm_103a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// tcgen05: B200, and B300 through the same instructions.
    Sm100,
    /// The "ultra" FP4 instructions that only B300 has.
    Sm103,
    /// mma.sync: RTX 50, RTX PRO, DGX Spark.
    Sm120,
}

/// An 8-bit float of an MXFP8 operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// e4m3
    E4m3,
    /// e5m2
    E5m2,
}

/// A 6-bit float of an MXFP6 operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp6 {
    /// e2m3
    E2m3,
    /// e3m2
    E3m2,
}

/// Elements and scales of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// e2m1, a ue4m3 scale per 16.
    Nvfp4,
    /// e2m1, a ue8m0 scale per 32.
    Mxfp4,
    /// e4m3 or e5m2, a ue8m0 scale per 32.
    Mxfp8(Fp8),
    /// e2m3 or e3m2, a ue8m0 scale per 32.
    Mxfp6(Fp6),
    /// NVFP4 spelled as a tuple, as the Sm103 collectives want it.
    UltraNvfp4,
    /// MXFP4 spelled as a tuple, as the Sm103 collectives want it.
    UltraMxfp4,
}

impl Format {
    /// Elements of K that share a scale: 16 or 32.
    pub fn scale_vector(self) -> u32 {
        match self {
            Format::Nvfp4 | Format::UltraNvfp4 => 16,
            Format::Mxfp4 | Format::Mxfp8(_) | Format::Mxfp6(_) | Format::UltraMxfp4 => 32,
        }
    }

    /// The type of a scale, in the words of the hardware: `ue4m3` or `ue8m0`.
    pub fn scale_text(self) -> &'static str {
        match self.scale_vector() {
            16 => "ue4m3",
            _ => "ue8m0",
        }
    }

    /// The elements as a program states them; `None` for 6-bit floats, which no program has.
    pub fn element(self) -> Option<ElementType> {
        match self {
            Format::Nvfp4 | Format::Mxfp4 | Format::UltraNvfp4 | Format::UltraMxfp4 => {
                Some(ElementType::F4E2M1FN)
            }
            Format::Mxfp8(Fp8::E4m3) => Some(ElementType::F8E4M3FN),
            Format::Mxfp8(Fp8::E5m2) => Some(ElementType::F8E5M2),
            Format::Mxfp6(_) => None,
        }
    }

    /// The name of the element type. No program has 6-bit floats yet: their names are MLIR's.
    pub(crate) fn element_name(self) -> &'static str {
        match (self.element(), self) {
            (Some(element), _) => element.name(),
            (None, Format::Mxfp6(Fp6::E2m3)) => "f6E2M3FN",
            (None, _) => "f6E3M2FN",
        }
    }

    /// Bits of an element in global memory: 4, 6 or 8.
    pub fn bits(self) -> u32 {
        match self {
            Format::Nvfp4 | Format::Mxfp4 | Format::UltraNvfp4 | Format::UltraMxfp4 => 4,
            Format::Mxfp6(_) => 6,
            Format::Mxfp8(_) => 8,
        }
    }

    /// Whether it is one of the tuples of Sm103.
    pub fn is_ultra(self) -> bool {
        matches!(self, Format::UltraNvfp4 | Format::UltraMxfp4)
    }

    /// The C++ type that a collective builder takes.
    pub fn type_text(self) -> &'static str {
        match self {
            Format::Nvfp4 => "cutlass::nv_float4_t<cutlass::float_e2m1_t>",
            Format::Mxfp4 => "cutlass::mx_float4_t<cutlass::float_e2m1_t>",
            Format::Mxfp8(Fp8::E4m3) => "cutlass::mx_float8_t<cutlass::float_e4m3_t>",
            Format::Mxfp8(Fp8::E5m2) => "cutlass::mx_float8_t<cutlass::float_e5m2_t>",
            Format::Mxfp6(Fp6::E2m3) => "cutlass::mx_float6_t<cutlass::float_e2m3_t>",
            Format::Mxfp6(Fp6::E3m2) => "cutlass::mx_float6_t<cutlass::float_e3m2_t>",
            Format::UltraNvfp4 => "cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>",
            Format::UltraMxfp4 => "cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue8m0_t>",
        }
    }
}

/// One operand as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Elements and scales.
    pub format: Format,
    /// Whether K is the contiguous axis: A row-major, B column-major.
    pub k_major: bool,
    /// Promised alignment of rows, in elements.
    pub alignment: u32,
}

impl Operand {
    /// K-major, with the alignment of the format: 32 for FP4 against FP4, 16 for FP8, 128 for FP6. FP4 beside wider
    /// operands needs 128 too.
    pub fn k_major(format: Format) -> Operand {
        let alignment = match format.bits() {
            4 => 32,
            6 => 128,
            _ => 16,
        };
        Operand { format, k_major: true, alignment }
    }
}

/// What the pair of formats is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// FP4 by FP4 with ue4m3 scales.
    Nvf4,
    /// FP4 by FP4 with ue8m0 scales.
    Mxf4,
    /// Any mix of 8, 6 and 4 bits, each element in a byte of shared memory.
    Mxf8f6f4,
}

/// CTAs that share tiles through multicast: along M and along N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cluster {
    /// Fixed when the kernel is compiled.
    Static([u32; 2]),
    /// Chosen at launch.
    Dynamic,
}

/// How many SMs work on one MMA tile. A field of its own: "2Sm" also occurs inside `UltraVs32Sm103`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sms {
    /// One.
    One,
    /// A pair, each with half of the rows of the tile.
    Two,
}

impl Sms {
    /// 1 or 2.
    pub fn count(self) -> u32 {
        match self {
            Sms::One => 1,
            Sms::Two => 2,
        }
    }
}

/// How the Sm103 main loop prefetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefetch {
    /// As the builder decides.
    Default,
    /// Not at all.
    Disabled,
    /// Through TMA.
    Tma,
}

/// The schedule of the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mainloop {
    /// The builder decides from tile and cluster.
    Auto,
    /// Sm100, for one kind of instruction.
    Sm100(Kind),
    /// Sm100, the kind deduced from the operands.
    Sm100BlockScaled,
    /// Sm100 at low latency: scales through cp.async, the rest through TMA.
    Sm100MixedTmaCpAsync,
    /// Sm103, with the scale vector (16 or 32) that its name states.
    Sm103Ultra {
        /// 16 or 32.
        vector: u32,
        /// Prefetching.
        prefetch: Prefetch,
    },
    /// Sm120, both consumer warp groups on one tile.
    Cooperative,
    /// Sm120, each consumer warp group on a tile of its own.
    Pingpong,
    /// Sm120, for one kind of instruction.
    Sm120 {
        /// The instruction.
        kind: Kind,
        /// Pingpong, else cooperative.
        pingpong: bool,
    },
}

impl Mainloop {
    /// The family whose tag it is; `None` for [`Mainloop::Auto`].
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

    /// Whether consumer warp groups work on tiles of their own.
    pub fn is_pingpong(self) -> bool {
        matches!(self, Mainloop::Pingpong | Mainloop::Sm120 { pingpong: true, .. })
    }
}

/// The schedule of the epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueSchedule {
    /// The builder decides.
    Auto,
    /// Through shared memory and TMA (Sm100, Sm103).
    Tma,
    /// The same under its NVFP4 name (Sm100).
    TmaNvf4,
    /// Registers to global memory (Sm100, Sm103).
    NoSmem,
    /// Sm120, grouped, beside a cooperative main loop.
    Cooperative,
    /// Sm120, grouped, beside a pingpong main loop.
    Pingpong,
}

/// The operator class under which the epilogue is built; it decides the automatic epilogue tile of N = 256.
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
    /// The digit of its tag; must equal the main loop's, which no compiler checks.
    pub sms: Sms,
    /// Whether its tag is the PtrArray form.
    pub grouped: bool,
    /// Rows and columns handled at a time; `None` leaves them to the builder.
    pub tile: Option<[u32; 2]>,
    /// Its operator class.
    pub class: OperatorClass,
}

/// Buffers of the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stages {
    /// As many as fit beside the epilogue.
    Auto,
    /// This many, whether they fit or not.
    Fixed(u32),
}

/// What hands out tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileScheduler {
    /// The family's own; on Blackwell a hardware instruction.
    Default,
    /// A fixed stride over the grid, without that instruction.
    StaticPersistent,
    /// Splits K across CTAs where tiles alone do not occupy them.
    StreamK,
    /// Splits K of every tile into so many parts.
    SplitK(u32),
}

impl TileScheduler {
    /// Whether several CTAs may have a part of a tile each.
    pub fn splits_k(self) -> bool {
        matches!(self, TileScheduler::StreamK | TileScheduler::SplitK(_))
    }
}

/// Along which side of D neighbouring tiles are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Raster {
    /// The scheduler decides by the extents.
    #[default]
    Heuristic,
    /// Along M.
    AlongM,
    /// Along N.
    AlongN,
}

/// The order in which tiles are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileOrder {
    /// The direction.
    pub raster: Raster,
    /// Tiles at most that a band is wide across that direction: 1, 2, 4 or 8.
    pub swizzle: u32,
}

impl Default for TileOrder {
    fn default() -> TileOrder {
        TileOrder { raster: Raster::Heuristic, swizzle: 1 }
    }
}

/// One kernel, but for what its epilogue computes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// The architecture tag.
    pub family: Family,
    /// The activations, `[M, K]`.
    pub a: Operand,
    /// The weights, `[N, K]`.
    pub b: Operand,
    /// The MMA tile: M (over both SMs where there are two), N, K.
    pub tile: [u32; 3],
    /// The cluster.
    pub cluster: Cluster,
    /// SMs of one MMA tile; under [`Mainloop::Auto`], what the builder is expected to pick.
    pub sms: Sms,
    /// The schedule of the main loop.
    pub mainloop: Mainloop,
    /// Whether many problems are solved in one launch.
    pub grouped: bool,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Buffers of the main loop.
    pub stages: Stages,
    /// The tile scheduler.
    pub scheduler: TileScheduler,
    /// Elements of C; `None` where the kernel reads no C.
    pub c: Option<ElementType>,
    /// Elements of D.
    pub d: ElementType,
    /// Whether D (and C) are row-major: N contiguous.
    pub d_row_major: bool,
    /// The order in which tiles are handed out.
    pub order: TileOrder,
    /// Whether the kernel computes the transpose, B by A: its tile's M then lies along N of the problem, and its N along
    /// M. Only for epilogues that read nothing beside C, alpha and beta and write nothing beside D.
    pub swapped: bool,
}

impl Configuration {
    /// The same kernel with other elements of C and D.
    pub fn with_elements(&self, c: Option<ElementType>, d: ElementType) -> Configuration {
        Configuration { c, d, ..self.clone() }
    }

    /// The format as a program states it; `None` where no program can: unequal scales, 6-bit floats.
    pub fn block_format(&self) -> Option<BlockFormat> {
        let (a, b) = (self.a.format, self.b.format);
        let scale = match a.scale_vector() {
            16 => ElementType::F8E4M3FN,
            _ => ElementType::F8E8M0FNU,
        };
        let same = a.scale_vector() == b.scale_vector();
        same.then_some(BlockFormat { a: a.element()?, b: b.element()?, scale, block: a.scale_vector() })
    }

    /// A readable name: family, tile, SMs, cluster, and what is not the usual. Element types are not part of it.
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
        if self.grouped {
            name += "_grouped";
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

    /// What the pair of formats is multiplied with: the main loop's word where it has one, else as a builder
    /// deduces it.
    pub fn kind(&self) -> Kind {
        match (self.mainloop, self.a.format, self.b.format) {
            (Mainloop::Sm100(kind) | Mainloop::Sm120 { kind, .. }, ..) => kind,
            (_, a, b) if a.bits() == 4 && b.bits() == 4 => match a.scale_vector().min(b.scale_vector()) {
                16 => Kind::Nvf4,
                _ => Kind::Mxf4,
            },
            _ => Kind::Mxf8f6f4,
        }
    }

    /// The SMs that [`Mainloop::Auto`] picks on Sm100: two exactly when tile M is 256 and the static cluster's M
    /// is even.
    pub fn auto_sms(&self) -> Sms {
        match self.cluster {
            Cluster::Static([m, _]) if self.tile[0] == 256 && m.is_multiple_of(2) => Sms::Two,
            _ => Sms::One,
        }
    }

    /// The tile of one CTA: the MMA tile, half of its rows where two SMs share it.
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
