//! `scaled_mm_by_m`: a weight in NVFP4 multiplied with 16-bit or with quantized numbers, chosen by M.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_char};
use std::fmt::Write;
use std::sync::{LazyLock, Mutex, PoisonError};

use fourfold::codegen::select::{ActivationTables, Activations, Quantized};
use fourfold::executor::device::discover;

use crate::arguments::{extents, float, number, out_dtype};
use crate::error::Error;
use crate::module::Operand;
use crate::programs::{Form, Forms, ScaledMmByM};
use crate::run::call;
use crate::shim::{Element, Place, Tensor};
use crate::stack::{Arguments, Results};

/// N and K of a weight, the largest M of a range, `None` for the last, and its form.
type Range = (usize, usize, Option<u32>, Form);

/// The number of calls.
static CALLS: Mutex<BTreeMap<Range, u64>> = Mutex::new(BTreeMap::new());

thread_local! {
    static LINES: RefCell<CString> = RefCell::default();
}

/// The calls so far, a line of N, K, the largest M or `-`, the form and the number for each range of M that had one. The
/// text is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn fourfold_torch_choices() -> *const c_char {
    let mut text = String::new();
    for ((n, k, end, form), count) in CALLS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let end = end.map_or("-".to_owned(), |end| end.to_string());
        let _ = writeln!(text, "{n} {k} {end} {} {count}", form.name());
    }
    LINES.with(|lines| {
        *lines.borrow_mut() = CString::new(text).unwrap_or_default();
        lines.borrow().as_ptr()
    })
}

/// The target of a GPU.
pub fn target_of_gpu(ordinal: i32) -> Result<&'static str, Error> {
    static TARGETS: LazyLock<Mutex<HashMap<i32, &'static str>>> = LazyLock::new(Default::default);
    let mut targets = TARGETS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(target) = targets.get(&ordinal) {
        return Ok(target);
    }
    let gpus = discover().map_err(|error| Error::argument(error.to_string()))?;
    let gpu = usize::try_from(ordinal).ok().and_then(|ordinal| gpus.get(ordinal));
    let target = gpu.and_then(|gpu| gpu.target());
    let target = target.ok_or_else(|| Error::argument(format!("GPU {ordinal} is of no known target")))?;
    targets.insert(ordinal, target);
    Ok(target)
}

/// The measured forms of a weight, quantized apart. On the host, a quantization saves nothing.
fn measured(place: Place, n: usize, k: usize) -> Result<Forms, Error> {
    let Place::Cuda(ordinal) = place else { return Ok(Forms { first: Form::W4A16, ends: Vec::new() }) };
    let target = target_of_gpu(ordinal)?;
    let choices = ActivationTables::measured().choices(target, n as u64, k as u64, Quantized::Apart);
    let form = |activations| match activations {
        Activations::W4A16 => Form::W4A16,
        Activations::W4A4 => Form::W4A4,
    };
    let first = choices.first().map(|choice| form(choice.activations));
    let first = first.ok_or_else(|| Error::argument(format!("{target} has no kernels")))?;
    let changes = choices.windows(2).filter(|pair| pair[0].activations != pair[1].activations);
    let ends = changes.filter_map(|pair| u32::try_from(pair[0].up_to?).ok()).collect();
    Ok(Forms { first, ends })
}

/// The forms of a call: `measured`, or the first one with the largest M of each but the last.
fn forms(first: &str, ends: &[i64], place: Place, n: usize, k: usize) -> Result<Forms, Error> {
    let first = match first {
        "measured" if ends.is_empty() => return measured(place, n, k),
        "W4A16" => Form::W4A16,
        "W4A4" => Form::W4A4,
        other => {
            let expected = "\"W4A16\", \"W4A4\" or, without ends, \"measured\"";
            return Err(Error::unknown("first", format!("\"{other}\""), expected));
        }
    };
    let whole: Option<Vec<u32>> = ends.iter().map(|end| u32::try_from(*end).ok()).collect();
    match whole {
        Some(ends) if ends.is_sorted_by(|end, next| end < next) => Ok(Forms { first, ends }),
        _ => Err(Error::argument(format!("the ends {ends:?} do not ascend from 0 to at most 4294967295"))),
    }
}

fn matrix(tensor: &Tensor, name: &str) -> Result<[usize; 2], Error> {
    let sizes = extents(tensor, name, 2..=2)?;
    Ok([sizes[0], sizes[1]])
}

/// The op.
pub fn scaled_mm_by_m(mut arguments: Arguments) -> Result<Results, Error> {
    let (a, b, sfb) = (arguments.tensor()?, arguments.tensor()?, arguments.tensor()?);
    let scale = arguments.tensor()?;
    let (input_scale, alpha) = (arguments.optional()?, arguments.optional()?);
    let bias = arguments.optional()?;
    let (first, ends) = (arguments.text()?, arguments.ints()?);
    let out = out_dtype(arguments.dtype()?)?;
    let element = match a.element()? {
        Element::Float16 | Element::BFloat16 => float(&a, "a")?,
        other => return Err(Error::argument(format!("a is {other:?}; expected float16 or bfloat16"))),
    };
    let ([m, k], [n, stored]) = (matrix(&a, "a")?, matrix(&b, "b")?);
    if stored * 2 != k || !k.is_multiple_of(16) {
        return Err(Error::argument(format!(
            "a has the shape [{m}, {k}] and b [{n}, {stored}]; expected [M, K] and [N, K/2], with K a multiple of 16"
        )));
    }
    if input_scale.is_some() != alpha.is_some() {
        return Err(Error::argument("input_scale and alpha, its product with scale, are given together"));
    }
    let forms = forms(&first, &ends, a.place()?, n, k)?;
    let bias_type = bias.as_ref().map(|bias| float(bias, "bias")).transpose()?;
    let program = ScaledMmByM { element, n, k, is_static: alpha.is_some(), bias: bias_type, forms, out };
    let mut operands = vec![Operand::new(a), Operand::new(b), Operand::shaped(sfb, vec![n, k / 16])];
    operands.push(number(scale, "scale")?);
    for (tensor, name) in [(input_scale, "input_scale"), (alpha, "alpha")] {
        operands.extend(tensor.map(|tensor| number(tensor, name)).transpose()?);
    }
    operands.extend(bias.map(Operand::new));
    let results = call(&program.program()?, operands)?;
    count(&program, m);
    Ok(Results::Tensors(results))
}

fn count(program: &ScaledMmByM, m: usize) {
    let Forms { ends, .. } = &program.forms;
    let position = ends.iter().filter(|end| (**end as usize) < m).count();
    let key = (program.n, program.k, ends.get(position).copied(), program.forms.all()[position]);
    *CALLS.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
}
