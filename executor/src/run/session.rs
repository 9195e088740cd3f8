//! Sessions: repeated calls of one program, whose params are given once.

mod calls;
mod staging;
mod tensor;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fourfold_ir::bind::{BindError, concrete_dims, solve_symbols};
use fourfold_ir::{Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::Partition;

pub use tensor::{DeviceTensor, SessionInput};

use self::staging::{Slots, Staging};
use super::record::describe;
use super::residents::Residents;
use super::{
    DEVICE_ERROR, Kernels, Machine, NO_DEVICE, Preparation, PreparedProgram, Refused, RunError, SegmentRun,
};
use crate::device::{Buffer, Device, DeviceError, Stream};

/// The maximum number of prepared programs, one for each combination of extents, that a session keeps.
const MAX_SHAPES: usize = 8;

/// Repeated calls of one program on one device.
///
/// Params are given once. They are uploaded once, and so are the values that depend on params and constants only, which
/// the fallback computes. If all other segments run on the device, then a call launches a [`PreparedProgram`], which is
/// kept with its memory for the last 8 combinations of extents. After the first call with some extents, a call allocates
/// no device memory, loads no kernel, uploads no param, and waits for the device once. Otherwise a call runs segment by
/// segment, as [`run`](super::run) does.
///
/// A call copies host tensors of up to 1 MiB through page-locked memory: at most 32 MiB, which the session keeps. Tensors
/// on the device are not copied.
///
/// A session shares the program and its kernels. It has a stream of its own, and may be moved to another thread. Several sessions, of one program or of
/// several, may be called at the same time on threads of their own. They share the device and the loaded kernels, but
/// no memory.
pub struct Session {
    program: Arc<Program>,
    partition: Arc<Partition>,
    place: Option<Place>,
    residents: Residents,
    /// The inputs that are no params.
    inputs: Vec<Value>,
    /// The extents of symbols that no input's shape determines.
    given: Vec<(String, u64)>,
    /// The most recently used last.
    shapes: Vec<Shape>,
    /// The memory of the last call that ran segment by segment, and its extents.
    spare: (SymbolValues, Vec<Buffer>),
    staging: Staging,
    /// By output: the first position at which the program returns its value.
    first_outputs: Vec<usize>,
}

/// The device, its kernels, and the session's stream.
struct Place {
    device: Device,
    kernels: Arc<Kernels>,
    stream: Stream,
}

impl Place {
    fn machine(&self) -> Machine<'_> {
        let machine = Machine::new(&self.device, &self.kernels);
        // The stream belongs to the device.
        machine.with_stream(&self.stream).unwrap_or(machine)
    }
}

/// The prepared program for some extents.
struct Shape {
    symbols: SymbolValues,
    state: Result<Ready, Refused>,
}

/// A prepared program and the memory of inputs and outputs whose tensors are on the host.
struct Ready {
    prepared: PreparedProgram,
    inputs: Slots,
    outputs: Slots,
}

/// The result of a call.
#[derive(Clone, Debug)]
pub struct SessionRun {
    /// The outputs, in the program's order; `None` for those written to device memory.
    pub outputs: Vec<Option<Tensor>>,
    /// The reason that the call ran segment by segment; `None` if it launched a prepared program.
    pub refused: Option<Refused>,
    /// One record for each segment, if the call ran segment by segment.
    pub segments: Vec<SegmentRun>,
}

/// The reason that a session cannot be created, or a call cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The number of inputs or outputs is wrong.
    #[error("`@{program}` has {expected} {what}, not {found}")]
    Count {
        /// The program.
        program: String,
        /// `inputs besides params` or `outputs`.
        what: &'static str,
        /// The number in the program.
        expected: usize,
        /// The number given.
        found: usize,
    },
    /// A tensor does not have its value's type.
    #[error("`%{value}` is {expected}, but its tensor is {found}")]
    Type {
        /// The value.
        value: String,
        /// Its type.
        expected: String,
        /// The tensor's type.
        found: String,
    },
    /// A param is missing, or the shapes of inputs do not fit the program.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The program cannot run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Session {
    /// Creates a session. Computes and uploads what depends on params only. Tensors that match no param by name are
    /// ignored. Without a device and its kernels, everything runs on the fallback.
    ///
    /// # Errors
    /// When a param is missing or does not have its type, a constant cannot be computed, or the device fails.
    pub fn new(
        program: Arc<Program>,
        partition: Arc<Partition>,
        mut params: HashMap<String, Tensor>,
        machine: Option<(Device, Arc<Kernels>)>,
    ) -> Result<Session, SessionError> {
        let module = program.module();
        let mut known = HashMap::new();
        for &value in module.inputs.iter().filter(|value| module.is_param(**value)) {
            let data = &module.values[value];
            let tensor = params.remove(&data.name).ok_or_else(|| BindError::Missing {
                name: data.name.clone(),
                ty: module.display_type(&data.ty).to_string(),
            })?;
            let fits = data.ty.shape.iter().zip(tensor.dims());
            let fits =
                fits.into_iter().all(|(dim, extent)| dim.as_fixed().is_none_or(|it| it == *extent as u64));
            let same_kind = (data.ty.element, data.ty.layout) == (tensor.element(), tensor.layout());
            if !fits || !same_kind || data.ty.rank() != tensor.dims().len() {
                return Err(SessionError::Type {
                    value: data.name.clone(),
                    expected: module.display_type(&data.ty).to_string(),
                    found: describe(tensor.element(), tensor.dims(), tensor.layout()),
                });
            }
            known.insert(value, tensor);
        }
        let mut residents = Residents::compute(&program, &partition, known)?;
        let place = match machine {
            Some((device, kernels)) => {
                let stream = device.new_stream()?;
                Some(Place { device, kernels, stream })
            }
            None => None,
        };
        if let Some(place) = &place {
            residents.upload(&partition, &place.machine())?;
        }
        let inputs = module.inputs.iter().copied().filter(|value| !module.is_param(*value)).collect();
        let mut firsts = HashMap::new();
        let first = |(position, value)| *firsts.entry(value).or_insert(position);
        let first_outputs = module.outputs.iter().enumerate().map(first).collect();
        Ok(Session {
            program,
            partition,
            place,
            residents,
            inputs,
            given: Vec::new(),
            shapes: Vec::new(),
            spare: (SymbolValues::default(), Vec::new()),
            staging: Staging::default(),
            first_outputs,
        })
    }

    /// Sets the extents of symbols that no input's shape determines, such as those of a product `B*S`.
    #[must_use]
    pub fn with_symbols(mut self, given: Vec<(String, u64)>) -> Session {
        self.set_symbols(given);
        self
    }

    /// Sets the extents of symbols that no input's shape determines, for later calls.
    pub fn set_symbols(&mut self, given: Vec<(String, u64)>) {
        self.given = given;
    }

    /// The inputs that are no params, in the order in which [`Session::run`] takes them.
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// Prepares launches at the caller's addresses. The addresses of params and of values that depend on params only
    /// are bound already, and those of the other inputs and outputs are to be bound. Outputs that depend on params only
    /// are not written: see [`Session::constant`]. The result of [`Preparation::build`] keeps the memory of params.
    ///
    /// # Errors
    /// When a segment that does not depend on params only runs on the fallback, or its kernel cannot run here.
    pub fn prepare(&self, symbols: &SymbolValues) -> Result<Preparation<'_>, Refused> {
        let place = self.place.as_ref().ok_or_else(without_device)?;
        Preparation::beside(&self.program, &self.partition, symbols, &place.machine(), &self.residents)
    }

    /// A param, or a value that depends on params only and that calls need.
    pub fn constant(&self, value: Value) -> Option<&Tensor> {
        self.residents.tensor(value)
    }

    /// Runs the program. `inputs` are those of [`Session::inputs`]. `outputs` has the device memory of each output, or
    /// `None` for an output to return on the host; an empty slice returns all of them. The device is idle when this
    /// returns, as far as this session is concerned.
    ///
    /// # Errors
    /// When tensors do not fit the program, an op cannot be computed on them, or the device fails.
    pub fn run(
        &mut self,
        inputs: &[SessionInput<'_>],
        outputs: &[Option<DeviceTensor<'_>>],
    ) -> Result<SessionRun, SessionError> {
        let symbols = self.bind(inputs)?;
        self.check_outputs(&symbols, outputs)?;
        match self.launch(&symbols, inputs, outputs) {
            Ok(Ok(outputs)) => Ok(SessionRun { outputs, refused: None, segments: Vec::new() }),
            Ok(Err(refused)) => self.run_segments(&symbols, inputs, outputs, refused),
            Err(SessionError::Run(error)) if error.is_bad_index() => {
                // The fallback finds the same index, and its error names the axis too.
                let refused = Refused::new(DEVICE_ERROR, None, error.to_string());
                match self.run_segments(&symbols, inputs, outputs, refused) {
                    Err(SessionError::Run(named @ RunError::Op { .. })) => Err(named.into()),
                    _ => Err(error.into()),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the inputs, and finds the extents of symbols.
    fn bind(&self, inputs: &[SessionInput<'_>]) -> Result<SymbolValues, SessionError> {
        let module = self.program.module();
        if inputs.len() != self.inputs.len() {
            return Err(self.count("inputs besides params", self.inputs.len(), inputs.len()));
        }
        let mut given = inputs.iter();
        let shapes: Vec<&[usize]> = module
            .inputs
            .iter()
            .filter_map(|value| match self.residents.tensor(*value) {
                Some(param) => Some(param.dims()),
                None => given.next().map(SessionInput::dims),
            })
            .collect();
        let symbols = solve_symbols(module, &shapes, &self.given)?;
        for (value, input) in self.inputs.iter().zip(inputs) {
            self.check_type(*value, &symbols, (input.element(), input.dims(), input.layout()))?;
            if let SessionInput::Device(tensor) = input {
                self.check_device(tensor)?;
            }
        }
        Ok(symbols)
    }

    fn check_outputs(
        &self,
        symbols: &SymbolValues,
        outputs: &[Option<DeviceTensor<'_>>],
    ) -> Result<(), SessionError> {
        let module = self.program.module();
        if !outputs.is_empty() && outputs.len() != module.outputs.len() {
            return Err(self.count("outputs", module.outputs.len(), outputs.len()));
        }
        for (value, tensor) in module.outputs.iter().zip(outputs) {
            if let Some(tensor) = tensor {
                self.check_type(*value, symbols, (tensor.element(), tensor.dims(), tensor.layout()))?;
                self.check_device(tensor)?;
            }
        }
        Ok(())
    }

    fn check_type(
        &self,
        value: Value,
        symbols: &SymbolValues,
        (element, dims, layout): tensor::Type<'_>,
    ) -> Result<(), SessionError> {
        let module = self.program.module();
        let ty = module.ty(value);
        let expected = concrete_dims(ty, symbols);
        if expected.as_deref() == Some(dims) && (ty.element, ty.layout) == (element, layout) {
            return Ok(());
        }
        let expected = match &expected {
            Some(dims) => describe(ty.element, dims, ty.layout),
            None => module.display_type(ty).to_string(),
        };
        let (value, found) = (module.name_of(value).to_owned(), describe(element, dims, layout));
        Err(SessionError::Type { value, expected, found })
    }

    fn check_device(&self, tensor: &DeviceTensor<'_>) -> Result<(), SessionError> {
        match &self.place {
            Some(place) if tensor.is_on(&place.device) => Ok(()),
            _ => Err(DeviceError::OtherDevice { what: "tensor" }.into()),
        }
    }

    fn count(&self, what: &'static str, expected: usize, found: usize) -> SessionError {
        SessionError::Count { program: self.program.module().name.clone(), what, expected, found }
    }
}

fn without_device() -> Refused {
    Refused::new(NO_DEVICE, None, "no device can run the program's kernels")
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.program.module().name;
        f.debug_struct("Session").field("program", name).field("shapes", &self.shapes.len()).finish()
    }
}
