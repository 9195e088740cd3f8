//! The CUTLASS spelling of a configuration: schedule tags, operator classes, shapes and layouts.

use super::configuration::{
    Cluster, Configuration, EpilogueSchedule, Family, Kind, Mainloop, OperatorClass, Prefetch, Raster,
    Stages, TileScheduler,
};

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Kind::Nvf4 => "Nvf4",
            Kind::Mxf4 => "Mxf4",
            Kind::Mxf8f6f4 => "Mxf8f6f4",
        }
    }
}

impl Configuration {
    /// The architecture tag, such as `cutlass::arch::Sm100`.
    pub fn arch_tag(&self) -> &'static str {
        match self.family {
            Family::Sm100 => "cutlass::arch::Sm100",
            Family::Sm103 => "cutlass::arch::Sm103",
            Family::Sm120 => "cutlass::arch::Sm120",
        }
    }

    /// The mainloop schedule for the collective builder.
    pub fn mainloop_tag(&self) -> String {
        let array = if self.groups.is_some() { "PtrArray" } else { "" };
        let sms = self.sms.count();
        let name = match self.mainloop {
            Mainloop::Auto => return "cutlass::gemm::collective::KernelScheduleAuto".to_owned(),
            Mainloop::Sm100(kind) => format!("{array}TmaWarpSpecialized{sms}Sm{}Sm100", kind.text()),
            Mainloop::Sm100BlockScaled => format!("{array}TmaWarpSpecialized{sms}SmBlockScaledSm100"),
            // This tag has no PtrArray form.
            Mainloop::Sm100MixedTmaCpAsync => {
                format!("MixedTmaCpAsyncWarpSpecialized{sms}SmBlockScaledSm100")
            }
            Mainloop::Sm103Ultra { vector, prefetch } => {
                let prefetch = match prefetch {
                    Prefetch::Default => "",
                    Prefetch::Disabled => "DisablePrefetch",
                    Prefetch::Tma => "TmaPrefetch",
                };
                format!("{array}TmaWarpSpecialized{sms}SmBlockScaledMxNvf4UltraVs{vector}Sm103{prefetch}")
            }
            Mainloop::Cooperative => format!("{array}TmaWarpSpecializedCooperative"),
            Mainloop::Pingpong => format!("{array}TmaWarpSpecializedPingpong"),
            Mainloop::Sm120 { kind, pingpong } => {
                let pingpong = if pingpong { "Pingpong" } else { "" };
                format!("{array}TmaWarpSpecialized{pingpong}{}Sm120", kind.text())
            }
        };
        format!("cutlass::gemm::Kernel{name}")
    }

    /// The epilogue schedule for the collective builder.
    pub fn epilogue_tag(&self) -> String {
        let array = if self.epilogue.grouped { "PtrArray" } else { "" };
        let sms = self.epilogue.sms.count();
        let name = match self.epilogue.schedule {
            EpilogueSchedule::Auto => {
                return "cutlass::epilogue::collective::EpilogueScheduleAuto".to_owned();
            }
            EpilogueSchedule::Tma => format!("TmaWarpSpecialized{sms}Sm"),
            EpilogueSchedule::TmaNvf4 => format!("TmaWarpSpecialized{sms}SmNvf4"),
            EpilogueSchedule::NoSmem => format!("NoSmemWarpSpecialized{sms}Sm"),
            EpilogueSchedule::Cooperative => "TmaWarpSpecializedCooperative".to_owned(),
            EpilogueSchedule::Pingpong => "TmaWarpSpecializedPingpong".to_owned(),
        };
        format!("cutlass::epilogue::{array}{name}")
    }

    /// The operator class for the epilogue's builder. The mainloop's is always `OpClassBlockScaledTensorOp`.
    pub fn epilogue_class_tag(&self) -> &'static str {
        match self.epilogue.class {
            OperatorClass::BlockScaledTensorOp => "cutlass::arch::OpClassBlockScaledTensorOp",
            OperatorClass::TensorOp => "cutlass::arch::OpClassTensorOp",
        }
    }

    /// The type of the epilogue tile.
    pub fn epilogue_tile_type(&self) -> String {
        match self.epilogue.tile {
            None => "cutlass::epilogue::collective::EpilogueTileAuto".to_owned(),
            Some([m, n]) => format!("cute::Shape<cute::_{m}, cute::_{n}>"),
        }
    }

    /// The type of the MMA tile.
    pub fn tile_type(&self) -> String {
        let [m, n, k] = self.tile;
        format!("cute::Shape<cute::Int<{m}>, cute::Int<{n}>, cute::Int<{k}>>")
    }

    /// The type of the cluster shape.
    pub fn cluster_type(&self) -> String {
        match self.cluster {
            Cluster::Static([m, n]) => format!("cute::Shape<cute::Int<{m}>, cute::Int<{n}>, cute::_1>"),
            Cluster::Dynamic => "cute::Shape<int, int, cute::_1>".to_owned(),
        }
    }

    /// The type of the stage count. `epilogue` names the collective epilogue's type in the source.
    pub fn stages_type(&self, epilogue: &str) -> String {
        match self.stages {
            Stages::Auto => {
                // Sm120's builder counts two of the six descriptors that a kernel of groups keeps in shared memory.
                let beside = match (self.family, self.groups) {
                    (Family::Sm120, Some(_)) => " + 1024",
                    _ => "",
                };
                format!(
                    "cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename \
                     {epilogue}::SharedStorage)){beside}>"
                )
            }
            Stages::Fixed(stages) => format!("cutlass::gemm::collective::StageCount<{stages}>"),
        }
    }

    /// The type of the tile scheduler; `void` for the family's default, as grouped kernels need it.
    pub fn scheduler_tag(&self) -> &'static str {
        match self.scheduler {
            TileScheduler::Default => "void",
            TileScheduler::StaticPersistent => "cutlass::gemm::StaticPersistentScheduler",
            TileScheduler::StreamK | TileScheduler::SplitK(_) => "cutlass::gemm::StreamKScheduler",
        }
    }

    /// The CUTLASS name of the raster direction; `None` if the scheduler chooses.
    pub fn raster_tag(&self) -> Option<&'static str> {
        match self.order.raster {
            Raster::Heuristic => None,
            Raster::AlongM => Some("AlongM"),
            Raster::AlongN => Some("AlongN"),
        }
    }

    /// The layout of A: row-major if K is contiguous.
    pub fn a_layout_tag(&self) -> &'static str {
        layout_tag(self.a.k_major)
    }

    /// The layout of B, K × N for CUTLASS: column-major if K is contiguous.
    pub fn b_layout_tag(&self) -> &'static str {
        layout_tag(!self.b.k_major)
    }

    /// The layout of C and D.
    pub fn d_layout_tag(&self) -> &'static str {
        layout_tag(self.d_row_major)
    }
}

fn layout_tag(row_major: bool) -> &'static str {
    if row_major { "cutlass::layout::RowMajor" } else { "cutlass::layout::ColumnMajor" }
}
