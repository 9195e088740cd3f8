//! The options of a session: those of the provider, and those of EPContext.

use std::ffi::CStr;
use std::path::PathBuf;

use fourfold::DeviceChoice;
use ort_sys::OrtSessionOptions;

use crate::api::Api;
use crate::error::ProviderError;

/// The name of the provider in ONNX Runtime.
pub const NAME: &CStr = c"FourfoldExecutionProvider";
/// ONNX Runtime's prefix of the provider's options: `ep.`, the lower-case name, and a point.
const PREFIX: &str = "ep.fourfoldexecutionprovider.";

/// The options of the provider.
const KEYS: &[&str] = &["device", "target"];
/// The option of tests that makes calls panic.
const PANIC: &str = "panic_in_compute";

/// The options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target to plan for. Default: the GPU's own, else `sm_100a`.
    pub target: Option<String>,
    /// The GPU. Default: the first.
    pub device: DeviceChoice,
    /// The EPContext model to write, if there is one.
    pub context: Option<ContextOptions>,
    /// The path of the EPContext model as the session states it, which locates contexts of models in memory.
    pub context_path: Option<PathBuf>,
    /// Panic at each call of a compiled node, for tests.
    pub panic_in_compute: bool,
}

/// The form of an EPContext model.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    /// The contexts are part of the model file.
    pub embed: bool,
    /// The text before the names of nodes.
    pub prefix: String,
}

impl Options {
    /// Reads the options.
    ///
    /// # Safety
    /// The session options are live.
    pub unsafe fn read(api: Api, session: *const OrtSessionOptions) -> Result<Options, ProviderError> {
        // SAFETY: the caller vouches for the options.
        let get = |key: &str| unsafe { api.session_option(session, key) };
        let own = |key: &str| get(&format!("{PREFIX}{key}"));
        // SAFETY: as above.
        for name in unsafe { api.session_keys(session, PREFIX)? } {
            let is_of_tests = cfg!(feature = "slow") && name == PANIC;
            if !is_of_tests && !KEYS.contains(&name.as_str()) {
                return Err(ProviderError::UnknownOption { name, known: KEYS });
            }
        }
        let device = match own("device")? {
            None => DeviceChoice::First,
            Some(value) => value.parse().map_err(|_| ProviderError::Option {
                name: "device",
                value,
                expected: "the number of a GPU, or `none`",
            })?,
        };
        let is = |value: Option<String>| value.as_deref() == Some("1");
        let context = match is(get("ep.context_enable")?) {
            true => Some(ContextOptions {
                embed: is(get("ep.context_embed_mode")?),
                prefix: get("ep.context_node_name_prefix")?.unwrap_or_default(),
            }),
            false => None,
        };
        let context_path = get("ep.context_file_path")?.filter(|path| !path.is_empty()).map(PathBuf::from);
        let panic_in_compute = cfg!(feature = "slow") && is(own(PANIC)?);
        Ok(Options { target: own("target")?, device, context, context_path, panic_in_compute })
    }
}
