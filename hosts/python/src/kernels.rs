//! The kernels of a tuning manifest as ops. Each op multiplies with its kernel, or says why the kernel cannot.
//!
//! A kernel travels as JSON, so that calls can be exported: its generator, target and parameters. Its program states M
//! as a number, and a dispatch table of this kernel alone selects it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::dispatch::{self, Bounds, Condition, Otherwise, Rule, Shared, Table, Tables};
use fourfold::codegen::{Target, capabilities, target};
use fourfold::ir::BlockFormat;
use fourfold::kernels::planned_kernels;
use fourfold::{Backend, DeviceChoice, Options, chain};
use fourfold_tuner::generator::{Configured, Generator, generator};
use fourfold_tuner::manifest::{Combination, Manifest};
use fourfold_tuner::parameters::Parameters;
use fourfold_tuner::problem::Problem;
use serde::{Deserialize, Serialize};

use crate::by_m::target_of_gpu;
use crate::error::Error;
use crate::product::{Product, ProductOptions, Tensors, product};
use crate::run::call_with;
use crate::shim::Place;
use crate::stack::{Arguments, Results};

/// The reason that the table states, by which a plan shows that the kernel was selected.
const WHY: &str = "the kernel of the manifest";
/// The kernel for the rows that a small-M kernel does not take. No call reaches it.
const OTHERWISE: Shared = Shared { tile: [64, 128], cluster: 0 };

/// A kernel, as ops name it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Named {
    generator: String,
    target: String,
    parameters: Parameters,
}

/// A line of a listed manifest.
#[derive(Debug, Serialize)]
struct Listed {
    /// The name of the op.
    name: String,
    /// The kernel as JSON.
    kernel: String,
    /// The type of the result.
    d: String,
    /// The reason, if no op is registered for the kernel.
    reason: Option<String>,
}

/// A kernel that is ready to be called.
#[derive(Debug)]
struct Ready {
    configured: Box<dyn Configured>,
    tables: Arc<Tables>,
    /// The tables as text.
    table: Arc<str>,
    name: String,
    target: &'static str,
    format: String,
    d: &'static str,
    /// The programs that the kernel takes, by place.
    checked: Mutex<HashSet<(Place, String)>>,
}

static KERNELS: LazyLock<Mutex<HashMap<String, Arc<Ready>>>> = LazyLock::new(Default::default);

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// The name of a kernel: the target, and the parameters in the generator's order.
fn name(generator: &dyn Generator, target: &str, parameters: &Parameters) -> String {
    let values = generator.parameters().iter().filter_map(|it| parameters.get(it.name));
    let text = values.fold(target.to_owned(), |text, value| format!("{text}_{value}"));
    text.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

fn parameter(parameters: &Parameters, name: &str) -> String {
    parameters.get(name).map_or_else(String::new, ToString::to_string)
}

/// The table that selects a kernel for every problem that it takes.
fn tables(kernel: dispatch::Kernel, target: &str, format: BlockFormat) -> Tables {
    let why = WHY.to_owned();
    let (rules, kernel) = match kernel {
        dispatch::Kernel::Hopper(Shared { tile: [m, _], .. }) if m < OTHERWISE.tile[0] => {
            let when = Condition { m: Some(Bounds::up_to(u64::from(m))), ..Condition::default() };
            (vec![Rule { when, kernel, why: why.clone() }], dispatch::Kernel::Hopper(OTHERWISE))
        }
        kernel => (Vec::new(), kernel),
    };
    let note = "one kernel of a manifest".to_owned();
    let (targets, formats) = (vec![target.to_owned()], vec![format]);
    Tables { tables: vec![Table { targets, formats, note, rules, default: Otherwise { kernel, why } }] }
}

/// Configures a kernel, and selects it by a table. The error is the reason why that is impossible.
fn configure(
    generator: &dyn Generator,
    target: &'static Target,
    parameters: &Parameters,
) -> Result<(Box<dyn Configured>, Tables), String> {
    let configured = generator
        .configure(parameters, target, CutlassVersion::PINNED)
        .map_err(|broken| broken.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let format = parameter(parameters, "format");
    let formats = capabilities(target.name).into_iter().flat_map(|it| it.formats);
    let format = formats.map(|rules| rules.format).find(|known| known.to_string() == format);
    let (Some(kernel), Some(format)) = (configured.entry(), format) else {
        return Err("a dispatch table cannot name this kernel".to_owned());
    };
    let tables = tables(kernel, target.name, format);
    Ok((configured, tables))
}

impl Ready {
    fn new(text: &str) -> Result<Ready, Error> {
        let wrong = |message: String| Error::argument(format!("kernel is {text}: {message}"));
        let named: Named = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let Named { generator: of, target: at, parameters } = named;
        let generator = generator(&of).ok_or_else(|| wrong(format!("no generator is named `{of}`")))?;
        let target = target(&at).ok_or_else(|| wrong(format!("no target is named `{at}`")))?;
        let (configured, tables) = configure(generator, target, &parameters).map_err(wrong)?;
        let table =
            tables.to_text().map_err(|error| Error::Bug(format!("the table of a kernel: {error}")))?;
        Ok(Ready {
            name: name(generator, target.name, &parameters),
            target: target.name,
            format: parameter(&parameters, "format"),
            d: match parameter(&parameters, "d").as_str() {
                "f16" => "f16",
                "bf16" => "bf16",
                _ => "f32",
            },
            checked: Mutex::default(),
            configured,
            tables: Arc::new(tables),
            table: Arc::from(table),
        })
    }

    /// The kernel that a text names.
    fn named(text: &str) -> Result<Arc<Ready>, Error> {
        let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = kernels.get(text) {
            return Ok(Arc::clone(ready));
        }
        let ready = Arc::new(Ready::new(text)?);
        kernels.insert(text.to_owned(), Arc::clone(&ready));
        Ok(ready)
    }

    /// Checks that a call can use the kernel.
    fn check(&self, text: &str, problem: Problem, place: Place) -> Result<(), Error> {
        let key = (place, text.to_owned());
        if self.checked.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            return Ok(());
        }
        let refuse =
            |why: String| Error::argument(format!("the kernel {} does not take {problem}: {why}", self.name));
        if let Place::Cuda(ordinal) = place {
            let found = target_of_gpu(ordinal)?;
            if found != self.target {
                return Err(Error::argument(format!(
                    "the kernel {} is for {}, and GPU {ordinal} is {found}",
                    self.name, self.target
                )));
            }
        }
        self.configured.takes(&problem).map_err(refuse)?;
        let options = Options::default().device(DeviceChoice::None).target(self.target);
        let options = options.dispatch(Some(Arc::clone(&self.tables)));
        let backend = Backend::new(&options).map_err(|error| Error::argument(chain(&error)))?;
        let bug = || Error::Bug("the program of a kernel does not parse".to_owned());
        let (program, _) = fourfold::ir::load(text).map_err(|_| bug())?;
        let planned = backend.plan(program);
        match planned_kernels(&planned, CutlassVersion::PINNED, false).as_slice() {
            [kernel] if kernel.why.contains(WHY) => {}
            [kernel] => return Err(refuse(kernel.why.clone())),
            _ => {
                return Err(refuse(
                    "no kernel takes this product; `fourfold explain` has the reason".to_owned(),
                ));
            }
        }
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(())
    }
}

/// `scaled_mm_kernel`: a block-scaled product, by one kernel.
pub fn scaled_mm_kernel(mut arguments: Arguments) -> Result<Results, Error> {
    let (a, sfa) = (arguments.tensor()?, arguments.optional()?);
    let (b, sfb) = (arguments.tensor()?, arguments.tensor()?);
    let alpha = arguments.optional()?;
    let kernel = Ready::named(&arguments.text()?)?;
    let place = a.place()?;
    if a.sizes()?.len() != b.sizes()?.len() {
        return Err(Error::argument("a and b must have equally many axes, two or three"));
    }
    let of_b = kernel.format.rsplit(" x ").next().unwrap_or("");
    let options = ProductOptions {
        format: if sfa.is_some() { kernel.format.clone() } else { of_b.to_owned() },
        swizzled: [true; 2],
        activation: "none".to_owned(),
        out: kernel.d,
    };
    let Product { operands, mut program, rows: [m, l] } =
        product(Tensors { a, sfa, b, sfb, alpha, bias: None }, options)?;
    program.state_rows(m);
    let text = program.program(None)?;
    if m > 0 && l > 0 {
        let [l, m, n, k] = [l, m, program.n, program.k].map(|extent| extent as u64);
        kernel.check(&text, Problem { l, m, n, k }, place)?;
    }
    Ok(Results::Tensors(call_with(&text, operands, Some(Arc::clone(&kernel.table)))?))
}

/// The lines of a manifest's kernels.
fn list(text: &str) -> Result<Vec<Listed>, String> {
    let combinations = Manifest::parse(text).and_then(|manifest| manifest.combinations());
    let combinations = combinations.map_err(|error| error.to_string())?;
    let line = |Combination { generator, target, parameters }: Combination| {
        let named = Named {
            generator: generator.name().to_owned(),
            target: target.name.to_owned(),
            parameters: parameters.clone(),
        };
        Ok(Listed {
            name: name(generator, target.name, &parameters),
            kernel: serde_json::to_string(&named).map_err(|error| error.to_string())?,
            d: parameter(&parameters, "d"),
            reason: configure(generator, target, &parameters).err(),
        })
    };
    combinations.into_iter().map(line).collect()
}

/// Lists the kernels of a manifest: the JSON of an array of lines, or of an object with an `error`. The text is valid
/// until the thread's next call.
///
/// # Safety
/// `manifest` points to a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourfold_torch_manifest(manifest: *const c_char) -> *const c_char {
    // SAFETY: the caller vouches for it.
    let manifest = unsafe { CStr::from_ptr(manifest) }.to_string_lossy();
    let listed = catch_unwind(AssertUnwindSafe(|| list(&manifest)));
    let listed =
        listed.unwrap_or_else(|_| Err("bug: a panic in Fourfold; please report the manifest".to_owned()));
    let json = match listed {
        Ok(lines) => serde_json::json!(lines),
        Err(error) => serde_json::json!({ "error": error }),
    };
    TEXT.with(|text| {
        *text.borrow_mut() = CString::new(json.to_string()).unwrap_or_default();
        text.borrow().as_ptr()
    })
}
