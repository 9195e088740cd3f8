//! The options of planning.

use std::str::FromStr;
use std::sync::Arc;

use fourfold_codegen::EMULATED_TARGETS;
use fourfold_codegen::dispatch::Tables;

/// The target planned for when [`Options::target`] is unset and the machine has no supported GPU.
pub const DEFAULT_TARGET: &str = "sm_100a";

/// The target planned for when [`Options::emulate`] is set and [`Options::target`] is not.
pub const DEFAULT_EMULATED_TARGET: &str = EMULATED_TARGETS[0];

/// Planning options: target, device, and the ops to claim.
///
/// ```
/// use fourfold::{Claim, Options};
///
/// let options = Options::default().target("sm_90a").claim(Claim::KernelsOnly);
/// assert_eq!(options.target.as_deref(), Some("sm_90a"));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The target to plan for, such as `sm_120a` or `cpu`. Default: the GPU's own target, or [`DEFAULT_TARGET`]
    /// without a supported GPU; with `emulate`, [`DEFAULT_EMULATED_TARGET`].
    pub target: Option<String>,
    /// The device that kernels run on.
    pub device: DeviceChoice,
    /// Run kernels of a Blackwell target on a Hopper GPU by emulating the instructions that it lacks. Results are
    /// correct, speed is not representative: for tests.
    pub emulate: bool,
    /// The ops that the backend takes from its host.
    pub claim: Claim,
    /// Allow normalization to drop roundings that the program states, such as the rounding of each dequantized
    /// element.
    pub contract: bool,
    /// Keep weights as the program has them. By default, normalization rearranges weights that are params where one kernel
    /// then computes two products. A [`Session`](crate::Session) does this once, but launches of
    /// [`Compiled::prepare`](crate::Compiled::prepare) do it each time.
    pub keep_weights: bool,
    /// Dispatch tables that override kernel selection for their targets and formats. The default tables
    /// ([`fourfold_codegen::dispatch`]) apply to every other problem, and wherever a selected kernel is invalid.
    pub dispatch: Option<Arc<Tables>>,
}

impl Options {
    /// Sets [`Options::target`].
    ///
    /// ```
    /// # use fourfold::Options;
    /// assert_eq!(Options::default().target("sm_120a").target.as_deref(), Some("sm_120a"));
    /// ```
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Options {
        self.target = Some(target.into());
        self
    }

    /// Sets [`Options::target`], or clears it so that the GPU's own target is used.
    ///
    /// ```
    /// # use fourfold::Options;
    /// assert!(Options::default().target("cpu").maybe_target(None).target.is_none());
    /// ```
    #[must_use]
    pub fn maybe_target(mut self, target: Option<String>) -> Options {
        self.target = target;
        self
    }

    /// Sets [`Options::device`].
    ///
    /// ```
    /// # use fourfold::{DeviceChoice, Options};
    /// assert_eq!(Options::default().device(DeviceChoice::Ordinal(1)).device, DeviceChoice::Ordinal(1));
    /// ```
    #[must_use]
    pub fn device(mut self, device: DeviceChoice) -> Options {
        self.device = device;
        self
    }

    /// Sets [`Options::emulate`].
    ///
    /// ```
    /// # use fourfold::Options;
    /// assert!(Options::default().emulate(true).emulate);
    /// ```
    #[must_use]
    pub fn emulate(mut self, emulate: bool) -> Options {
        self.emulate = emulate;
        self
    }

    /// Sets [`Options::claim`].
    ///
    /// ```
    /// # use fourfold::{Claim, Options};
    /// assert_eq!(Options::default().claim(Claim::KernelsOnly).claim, Claim::KernelsOnly);
    /// ```
    #[must_use]
    pub fn claim(mut self, claim: Claim) -> Options {
        self.claim = claim;
        self
    }

    /// Sets [`Options::contract`].
    ///
    /// ```
    /// # use fourfold::Options;
    /// assert!(Options::default().contract(true).contract);
    /// ```
    #[must_use]
    pub fn contract(mut self, contract: bool) -> Options {
        self.contract = contract;
        self
    }

    /// Sets [`Options::keep_weights`].
    ///
    /// ```
    /// # use fourfold::Options;
    /// assert!(Options::default().keep_weights(true).keep_weights);
    /// ```
    #[must_use]
    pub fn keep_weights(mut self, keep_weights: bool) -> Options {
        self.keep_weights = keep_weights;
        self
    }

    /// Sets [`Options::dispatch`].
    ///
    /// ```
    /// # use fourfold::Options;
    /// assert!(Options::default().dispatch(None).dispatch.is_none());
    /// ```
    #[must_use]
    pub fn dispatch(mut self, dispatch: impl Into<Option<Arc<Tables>>>) -> Options {
        self.dispatch = dispatch.into();
        self
    }
}

/// Selects the GPU that kernels run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// GPU 0, or none if the driver is missing or reports no GPU.
    #[default]
    First,
    /// The GPU with this ordinal. Its absence is an error.
    Ordinal(usize),
    /// No GPU. The driver is not queried, and everything runs on the fallback.
    None,
}

/// Parses the command line's and `FOURFOLD_DEVICE`'s form: a GPU's ordinal, or `none`.
///
/// ```
/// # use fourfold::DeviceChoice;
/// assert_eq!("none".parse(), Ok(DeviceChoice::None));
/// assert_eq!("2".parse(), Ok(DeviceChoice::Ordinal(2)));
/// assert!("first".parse::<DeviceChoice>().is_err());
/// ```
impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match (text, text.parse()) {
            ("none", _) => Ok(DeviceChoice::None),
            (_, Ok(ordinal)) => Ok(DeviceChoice::Ordinal(ordinal)),
            _ => Err(format!("expected the number of a GPU or `none`, found `{text}`")),
        }
    }
}

/// Selects the ops that a backend takes from its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Claim {
    /// Every op. Ops outside kernels run on the fallback.
    #[default]
    Everything,
    /// Ops of kernel segments only. The host runs the other ops itself and calls claimed segments one by one, so
    /// [`Compiled::run`](crate::Compiled::run) is unavailable. The program is not normalized, so that its ops remain
    /// the host's ops.
    KernelsOnly,
    /// Ops of kernel and device segments. The host runs the ops of fallback segments itself, as with
    /// [`Claim::KernelsOnly`].
    Device,
}

impl Claim {
    /// The name in reports: `everything`, `kernels_only` or `device`.
    pub fn name(self) -> &'static str {
        match self {
            Claim::Everything => "everything",
            Claim::KernelsOnly => "kernels_only",
            Claim::Device => "device",
        }
    }

    /// Returns the claim with this name.
    pub fn from_name(name: &str) -> Option<Claim> {
        [Claim::Everything, Claim::KernelsOnly, Claim::Device].into_iter().find(|claim| claim.name() == name)
    }
}
