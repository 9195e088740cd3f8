//! What a table calls a kernel by.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cutlass::configuration::Family;
use crate::cutlass::defaults;
use crate::hopper;

/// What kind of kernels a table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// CUTLASS's collectives of a family.
    Cutlass(Family),
    /// The tiles of sm_90a.
    Hopper,
}

impl Kind {
    /// Of a target; `None` where there are no kernels.
    pub fn of(target: &str) -> Option<Kind> {
        if target == hopper::TARGET {
            return Some(Kind::Hopper);
        }
        defaults::family(target).map(Kind::Cutlass)
    }
}

/// A kernel as a table names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Kernel {
    /// One of CUTLASS's collectives.
    Cutlass(Collectives),
    /// A tile of sm_90a.
    Hopper(Shared),
}

/// What a table says of a kernel of CUTLASS's collectives. What it does not say is as in the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collectives {
    /// The MMA tile: M, over both SMs where there are two as 256 on Sm100 demands it; N; K.
    pub tile: [u32; 3],
    /// CTAs along M and N that share tiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<[u32; 2]>,
    /// The schedule of the main loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleName>,
    /// The schedule of the epilogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<EpilogueName>,
    /// Rows and columns that the epilogue handles at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue_tile: Option<[u32; 2]>,
    /// Buffers of the main loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
    /// What hands out tiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerName>,
}

/// A schedule of the main loop that is not the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleName {
    /// Sm120, both consumer warp groups on one tile.
    Cooperative,
    /// Sm120, each consumer warp group on a tile of its own.
    Pingpong,
    /// Sm100 at low latency: scales through cp.async.
    CpAsync,
}

/// A schedule of the epilogue that is not the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpilogueName {
    /// Registers to global memory.
    NoSmem,
}

/// What hands out tiles, where it is not the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerName {
    /// The family's own.
    Own,
    /// A fixed stride over the grid.
    Static,
    /// K is split across CTAs.
    StreamK,
}

/// A tile of sm_90a, and how many blocks share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// M and N of the tile.
    pub tile: [u32; 2],
    /// Blocks that share it, each with a part of K; 0, the default, leaves it to each call.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cluster: u32,
}

fn is_zero(cluster: &u32) -> bool {
    *cluster == 0
}

impl Shared {
    /// The tile.
    pub const fn tile(self) -> hopper::Tile {
        hopper::Tile::new(self.tile[0], self.tile[1])
    }
}

impl Collectives {
    /// The usual kernel of a tile.
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
    /// Whether it takes small M only, so that it cannot be a default.
    pub fn is_for_small_m(&self) -> bool {
        matches!(self, Kernel::Hopper(shared) if shared.tile().is_small_m())
    }
}

/// As in a file: `{ tile = [128, 64, 256] }`.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = toml::Value::try_from(self).map_err(|_| fmt::Error)?;
        value.fmt(f)
    }
}
