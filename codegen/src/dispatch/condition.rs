//! The condition of a dispatch rule on a problem.

use serde::{Deserialize, Serialize};

use crate::cutlass::CutlassVersion;
use crate::extents::Extents;

/// A condition on a problem: all parts must hold. A bound on an extent holds only if the extent is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Bounds on M.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub m: Option<Bounds>,
    /// Bounds on N.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<Bounds>,
    /// Bounds on K.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<Bounds>,
    /// Bounds on the number of tiles of D, over all matrices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<Tiles>,
    /// The minimum CUTLASS version.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "version")]
    pub cutlass: Option<CutlassVersion>,
}

/// Bounds on a number. Empty bounds require only that the number is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// The minimum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// The maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// A divisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiple_of: Option<u64>,
}

/// Bounds on the number of tiles of D of one size, over all matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// Rows and columns of a tile.
    pub of: [u64; 2],
    /// The minimum number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// The maximum number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
}

impl Bounds {
    /// Bounds with a maximum only.
    pub const fn up_to(max: u64) -> Bounds {
        Bounds { min: None, max: Some(max), multiple_of: None }
    }

    /// Returns whether a number is within the bounds.
    pub fn hold(&self, number: u64) -> bool {
        self.min.is_none_or(|min| min <= number)
            && self.max.is_none_or(|max| number <= max)
            && self.multiple_of.is_none_or(|of| number.is_multiple_of(of))
    }

    /// Returns whether these bounds include every number within `other`.
    fn contain(&self, other: &Bounds) -> bool {
        let single = other.min.filter(|_| other.min == other.max);
        if let Some(number) = single {
            return self.hold(number) || !other.hold(number);
        }
        let multiple = |of: u64| other.multiple_of.is_some_and(|it| it.is_multiple_of(of));
        self.min.unwrap_or(0) <= other.min.unwrap_or(0)
            && self.max.is_none_or(|max| other.max.is_some_and(|other| other <= max))
            && self.multiple_of.is_none_or(|of| of == 1 || multiple(of))
    }

    /// Returns whether no number is within the bounds.
    fn is_empty(&self) -> bool {
        let (Some(max), least) = (self.max, self.min.unwrap_or(0)) else { return false };
        let least = match self.multiple_of {
            Some(of) if of > 0 => least.checked_next_multiple_of(of),
            _ => Some(least),
        };
        least.is_none_or(|least| max < least)
    }
}

impl Tiles {
    /// The number of tiles of a problem over all matrices; `None` if M or N is unknown. An L that is unknown
    /// or 0 is taken as 1.
    pub fn count(&self, problem: Extents) -> Option<u64> {
        Some(self.of_extents(problem.m?, problem.n?).saturating_mul(problem.l.unwrap_or(1).max(1)))
    }

    /// The number of tiles of one matrix.
    fn of_extents(&self, m: u64, n: u64) -> u64 {
        let [rows, columns] = self.of.map(|extent| extent.max(1));
        m.div_ceil(rows).saturating_mul(n.div_ceil(columns))
    }

    fn bounds(&self) -> Bounds {
        Bounds { min: self.at_least, max: self.at_most, multiple_of: None }
    }
}

impl Condition {
    /// The bounds on each extent, with the problem's extents.
    pub(crate) fn extents(&self, problem: Extents) -> [(Option<Bounds>, Option<u64>); 3] {
        [(self.m, problem.m), (self.n, problem.n), (self.k, problem.k)]
    }

    /// Returns whether a problem meets the condition.
    pub fn holds(&self, problem: Extents, cutlass: CutlassVersion) -> bool {
        self.extents(problem)
            .into_iter()
            .all(|(bounds, extent)| bounds.is_none_or(|it| extent.is_some_and(|extent| it.hold(extent))))
            && self.tiles.is_none_or(|it| it.count(problem).is_some_and(|count| it.bounds().hold(count)))
            && self.cutlass.is_none_or(|least| least <= cutlass)
    }

    /// Returns whether every problem that meets `other` also meets this condition, judged by bounds alone:
    /// `false` proves nothing.
    pub(crate) fn contains(&self, other: &Condition) -> bool {
        let extent = |mine: Option<Bounds>, other: Option<Bounds>, is_known: bool| {
            mine.is_none_or(|mine| match other {
                Some(other) => mine.contain(&other),
                None => is_known && mine.contain(&Bounds::default()),
            })
        };
        // A bound on tiles holds only if M and N are known.
        let counts = other.tiles.is_some();
        let tiles = self.tiles.is_none_or(|mine| {
            let same = other.tiles.is_some_and(|it| it.of == mine.of && mine.bounds().contain(&it.bounds()));
            let (m, n) = (other.m.unwrap_or_default(), other.n.unwrap_or_default());
            let known = counts || (other.m.is_some() && other.n.is_some());
            // More matrices have at least as many tiles.
            let least = mine.of_extents(m.min.unwrap_or(0), n.min.unwrap_or(0));
            let derived = Bounds { min: Some(least), max: None, multiple_of: None };
            same || (known && mine.bounds().contain(&derived))
        });
        extent(self.m, other.m, counts)
            && extent(self.n, other.n, counts)
            && extent(self.k, other.k, false)
            && tiles
            && self.cutlass.is_none_or(|mine| other.cutlass.is_some_and(|other| mine <= other))
    }

    /// Returns whether no problem meets the condition, judged by bounds alone.
    pub(crate) fn is_empty(&self) -> bool {
        let (m, n) = (self.m.unwrap_or_default(), self.n.unwrap_or_default());
        let no_tiles = self.tiles.is_some_and(|it| {
            let least = it.of_extents(m.min.unwrap_or(0), n.min.unwrap_or(0));
            let (at_least, at_most) = (it.at_least.unwrap_or(0), it.at_most.unwrap_or(u64::MAX));
            at_most < at_least.max(least)
        });
        no_tiles || [self.m, self.n, self.k].into_iter().flatten().any(|bounds| bounds.is_empty())
    }
}

/// Serializes a version as `4.5.0`.
mod version {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::cutlass::CutlassVersion;

    pub fn serialize<S: Serializer>(
        version: &Option<CutlassVersion>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match version {
            Some(version) => serializer.collect_str(version),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<CutlassVersion>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let version = CutlassVersion::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not a CUTLASS version such as 4.5.0")))?;
        Ok(Some(version))
    }
}
