//! The design of a `scaled_mma` kernel, for either backend.

use fourfold_ir::{BlockFormat, ElementType};

use crate::cutlass::configuration::Configuration;
use crate::groups::Groups;
use crate::hopper;

/// The configuration of a `scaled_mma` kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Design {
    /// A CUTLASS kernel.
    Cutlass(Configuration),
    /// A Hopper kernel, for sm_90a.
    Hopper(hopper::Configuration),
}

impl Design {
    /// A readable name: family, tiles, and every non-default part.
    pub fn name(&self) -> String {
        match self {
            Design::Cutlass(configuration) => configuration.name(),
            Design::Hopper(configuration) => configuration.name(),
        }
    }

    /// The tile, M, N and K; the largest if there are several.
    pub fn tile(&self) -> [u32; 3] {
        match self {
            Design::Cutlass(configuration) => configuration.tile,
            Design::Hopper(configuration) => configuration.tile(),
        }
    }

    /// The format of A and B; `None` for a mix that programs do not support.
    pub fn block_format(&self) -> Option<BlockFormat> {
        match self {
            Design::Cutlass(configuration) => configuration.block_format(),
            Design::Hopper(configuration) => Some(configuration.format),
        }
    }

    /// The names of the element types of A and B.
    pub(crate) fn operand_elements(&self) -> [&'static str; 2] {
        match self {
            Design::Cutlass(configuration) => {
                [configuration.a, configuration.b].map(|operand| operand.format.element().name())
            }
            Design::Hopper(configuration) => {
                [configuration.format.a, configuration.format.b].map(ElementType::name)
            }
        }
    }

    /// The element type of the scales: f8E4M3FN, read unsigned, per 16 along K, or f8E8M0FNU per 32.
    pub(crate) fn scale_element(&self) -> ElementType {
        match self {
            Design::Cutlass(configuration) if configuration.a.format.scale_vector() == 16 => {
                ElementType::F8E4M3FN
            }
            Design::Cutlass(_) => ElementType::F8E8M0FNU,
            Design::Hopper(configuration) => configuration.format.scale,
        }
    }

    /// The groups of rows; `None` in a `scaled_mma`.
    pub fn groups(&self) -> Option<Groups> {
        match self {
            Design::Cutlass(configuration) => configuration.groups,
            Design::Hopper(configuration) => configuration.groups,
        }
    }

    /// Returns whether the kernel has no groups and reads linear scales of A.
    pub(crate) fn reads_linear_scales(&self) -> bool {
        match self {
            Design::Cutlass(_) => false,
            Design::Hopper(configuration) => configuration.linear_sfa,
        }
    }

    /// The CUTLASS configuration; `None` for another backend.
    pub fn cutlass(&self) -> Option<&Configuration> {
        match self {
            Design::Cutlass(configuration) => Some(configuration),
            Design::Hopper(_) => None,
        }
    }
}

impl From<Configuration> for Design {
    fn from(configuration: Configuration) -> Design {
        Design::Cutlass(configuration)
    }
}

impl From<hopper::Configuration> for Design {
    fn from(configuration: hopper::Configuration) -> Design {
        Design::Hopper(configuration)
    }
}
