//! The names of kernels in a dispatch table.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cutlass::configuration::Family;
use crate::cutlass::defaults;
use crate::hopper;

/// The kind of kernel that a table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A CUTLASS kernel of a family.
    Cutlass(Family),
    /// A Hopper kernel, for sm_90a.
    Hopper,
}

impl Kind {
    /// The kind of a target's kernels; `None` if it has none.
    pub fn of(target: &str) -> Option<Kind> {
        if target == hopper::TARGET {
            return Some(Kind::Hopper);
        }
        defaults::family(target).map(Kind::Cutlass)
    }
}

/// A kernel, as named in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Kernel {
    /// A CUTLASS kernel.
    Cutlass(Collectives),
    /// A Hopper tile, for sm_90a.
    Hopper(Shared),
}

/// A CUTLASS kernel, as named in a table. Absent fields take the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collectives {
    /// The MMA tile: M, N, K. On Sm100, M = 256 spans two SMs.
    pub tile: [u32; 3],
    /// The cluster: CTAs along M and N that share tiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<[u32; 2]>,
    /// The schedule of the mainloop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleName>,
    /// The schedule of the epilogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<EpilogueName>,
    /// The rows and columns of an epilogue tile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue_tile: Option<[u32; 2]>,
    /// The number of mainloop stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// The tile scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerName>,
}

/// A non-default schedule of the mainloop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleName {
    /// Sm120, with both consumer warpgroups on one tile.
    Cooperative,
    /// Sm120, with one tile per consumer warpgroup.
    Pingpong,
    /// Sm100, low latency: scales through cp.async.
    CpAsync,
}

/// A non-default schedule of the epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpilogueName {
    /// From registers to global memory.
    NoSmem,
}

/// A non-default tile scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerName {
    /// The family's default scheduler.
    Own,
    /// A fixed stride over the grid.
    Static,
    /// Stream-K: splits K across CTAs.
    StreamK,
}

/// A Hopper tile, and the number of CTAs that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// M and N of the tile.
    pub tile: [u32; 2],
    /// The cluster size: CTAs that share the tile, each with a part of K. 0, the default, lets each call
    /// decide.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cluster: u32,
}

fn is_zero(cluster: &u32) -> bool {
    *cluster == 0
}

impl Shared {
    /// The tile as a [`hopper::Tile`].
    pub const fn tile(self) -> hopper::Tile {
        hopper::Tile::new(self.tile[0], self.tile[1])
    }
}

impl Collectives {
    /// The default kernel for a tile.
    pub const fn of_tile(tile: [u32; 3]) -> Collectives {
        Collectives {
            tile,
            cluster: None,
            schedule: None,
            epilogue: None,
            epilogue_tile: None,
            stages: None,
            scheduler: None,
        }
    }
}

impl Kernel {
    /// Returns whether the kernel takes small M only, and so cannot be a table's default.
    pub fn is_for_small_m(&self) -> bool {
        matches!(self, Kernel::Hopper(shared) if shared.tile().is_small_m())
    }
}

/// Formats the kernel as in a file: `{ tile = [128, 64, 256] }`.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = toml::Value::try_from(self).map_err(|_| fmt::Error)?;
        value.fmt(f)
    }
}
