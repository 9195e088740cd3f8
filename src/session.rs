//! Sessions: repeated calls of a compiled program, whose params are given once.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold_executor::{DeviceTensor, Preparation, Refused, SessionError, SessionInput, SessionRun};
use fourfold_ir::{BindError, SymbolValues, Tensor};

use crate::backend::Planned;
use crate::compiled::Compiled;
use crate::error::Error;

/// Repeated calls of a compiled program on its device.
///
/// Params are uploaded once, and values that depend on params only are computed once. If all other segments run on the
/// device, a call launches a prepared program. It is kept, with its memory, for the last 8 combinations of extents.
/// After the first call with some extents, a call allocates no device memory, loads no kernel and uploads no param.
///
/// A session owns what it needs, so the [`Compiled`] may be dropped before it. It has a stream of its own, and may be
/// moved to another thread. Sessions of one or several programs may run at the same time, each on a thread of its own.
///
/// ```
/// use std::collections::HashMap;
/// use fourfold::ir::sample::{Recipe, Rule, inputs};
/// # use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
/// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
/// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
///
/// let tensors = inputs(&program, &Recipe { rule: Rule::Exact, seed: 1, symbols: Vec::new() })?;
/// # let backend = Backend::new(&Options::default().device(DeviceChoice::None))?;
/// # let compiled = backend.compile(backend.plan(program), &CompileOptions::default(), &|_| ());
/// let mut session = compiled.session(tensors.clone())?;
/// let names = session.inputs();
/// let call = names.iter().map(|name| (name.as_str(), (&tensors[name]).into())).collect();
/// let run = session.run(&call)?;
/// assert!(run.outputs[0].is_some());
/// assert_eq!(run.refused.expect("no GPU").code, "no_device");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    planned: Arc<Planned>,
    inner: fourfold_executor::Session,
}

impl Compiled {
    /// Starts a session. `params` maps the names of params to tensors; other names are ignored.
    ///
    /// # Errors
    /// [`Error::Bind`] or [`Error::Session`] when a param is missing or has another type; [`Error::Run`] when a value
    /// that depends on params only cannot be computed; [`Error::Device`] when the device fails; [`Error::Unclaimed`]
    /// when an op belongs to the host.
    pub fn session(&self, params: HashMap<String, Tensor>) -> Result<Session, Error> {
        let planned = self.shared_plan();
        planned.refuse_unclaimed()?;
        let (program, partition) = (planned.normalized().shared_program(), planned.shared_partition());
        let inner = fourfold_executor::Session::new(program, partition, params, self.shared_machine())?;
        Ok(Session { planned, inner })
    }
}

impl Session {
    /// Sets the extents of symbols that no input's shape determines, such as those of a product `B*S`.
    #[must_use]
    pub fn with_symbols(mut self, given: Vec<(String, u64)>) -> Session {
        self.set_symbols(given);
        self
    }

    /// Sets the extents of symbols that no input's shape determines, for later calls.
    pub fn set_symbols(&mut self, given: Vec<(String, u64)>) {
        self.inner.set_symbols(given);
    }

    /// The names of the inputs that are no params.
    pub fn inputs(&self) -> Vec<String> {
        let module = self.planned.program().module();
        self.inner.inputs().iter().map(|value| module.name_of(*value).to_owned()).collect()
    }

    /// Runs the program on inputs by name, and returns all outputs on the host.
    ///
    /// # Errors
    /// [`Error::Bind`] or [`Error::Session`] when tensors do not fit; [`Error::Run`] when an op cannot be computed;
    /// [`Error::Device`] when the device fails.
    pub fn run(&mut self, inputs: &HashMap<&str, SessionInput<'_>>) -> Result<SessionRun, Error> {
        self.run_to(inputs, &HashMap::new())
    }

    /// Like [`Session::run`], but writes the outputs named in `outputs` to the caller's device memory.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_to(
        &mut self,
        inputs: &HashMap<&str, SessionInput<'_>>,
        outputs: &HashMap<&str, DeviceTensor<'_>>,
    ) -> Result<SessionRun, Error> {
        let planned = Arc::clone(&self.planned);
        let (module, original) = (planned.program().module(), planned.original().module());
        let mut given = Vec::with_capacity(inputs.len());
        for &value in self.inner.inputs() {
            let name = module.name_of(value);
            let input = inputs.get(name).ok_or_else(|| BindError::Missing {
                name: name.to_owned(),
                ty: module.display_type(module.ty(value)).to_string(),
            })?;
            given.push(input.clone());
        }
        // Both programs return the same values in the same order, under the names of the original.
        let targets: Vec<Option<DeviceTensor<'_>>> =
            original.outputs.iter().map(|value| outputs.get(original.name_of(*value)).cloned()).collect();
        Ok(self.inner.run(&given, &targets)?)
    }

    /// Prepares launches on the host's device memory and stream, as [`Compiled::prepare`] does. Params, and values that
    /// depend on params only, are bound already.
    ///
    /// # Errors
    /// When a segment that does not depend on params only runs on the fallback, or its kernel cannot run here.
    pub fn prepare(&self, symbols: &SymbolValues) -> Result<Preparation<'_>, Refused> {
        self.inner.prepare(symbols)
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Error {
        match error {
            SessionError::Bind(error) => Error::Bind(error),
            SessionError::Run(error) => Error::Run(error),
            SessionError::Device(error) => Error::Device(error),
            error => Error::Session(Box::new(error)),
        }
    }
}
