//! Sessions on several threads, and the time of a call.

use std::collections::HashMap;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fourfold::ir::{ElementType, Tensor, Value, sample};
use fourfold::{Compiled, DeviceTensor, RunOptions, Session, SessionInput};
use fourfold_tests::repository;

use crate::{CHAIN, MIXED, OUTPUTS, compile, recipe};

const EXTENTS: [u64; 4] = [1, 37, 128, 1000];

/// Inputs and the outputs of `Compiled::run`.
struct Case {
    inputs: HashMap<String, Tensor>,
    outputs: Vec<Tensor>,
}

fn cases(compiled: &Compiled) -> Result<Vec<Case>> {
    let planned = compiled.planned();
    // Params must be the same in all cases: they are drawn by the first.
    let first = sample::inputs(planned.program(), &recipe(EXTENTS[0], 11))?;
    let module = planned.program().module();
    let is_input = |value: &Value| {
        module.ty(*value).shape.iter().any(|dim| dim.as_fixed().is_none()) || module.ty(*value).is_scalar()
    };
    EXTENTS
        .iter()
        .map(|m| {
            let mut inputs = sample::inputs(planned.program(), &recipe(*m, 11))?;
            for value in module.inputs.iter().filter(|value| !is_input(value)) {
                let name = module.name_of(*value);
                inputs.insert(name.to_owned(), first[name].clone());
            }
            let run = compiled.run(&inputs, &RunOptions::default())?;
            let outputs = planned.original().module().outputs.iter();
            let outputs = outputs.map(|value| run.value(*value).cloned().context("an output"));
            Ok(Case { outputs: outputs.collect::<Result<_>>()?, inputs })
        })
        .collect()
}

fn call<'a>(session: &Session, inputs: &'a HashMap<String, Tensor>) -> HashMap<&'a str, SessionInput<'a>> {
    let wanted = session.inputs();
    let given = inputs.iter().filter(|(name, _)| wanted.contains(name));
    given.map(|(name, tensor)| (name.as_str(), tensor.into())).collect()
}

/// Every call gives the bits of a run, on four threads at once.
pub fn sessions() -> Result<()> {
    for (source, is_whole) in [(CHAIN, true), (OUTPUTS, true), (MIXED, false)] {
        let compiled = compile(source)?;
        let cases = cases(&compiled)?;
        thread::scope(|scope| {
            let work = || {
                let mut session = compiled.session(cases[0].inputs.clone())?;
                for turn in 0..40 {
                    let case = &cases[turn % cases.len()];
                    let run = session.run(&call(&session, &case.inputs))?;
                    ensure!(run.outputs.iter().flatten().eq(&case.outputs), "turn {turn}: {:?}", run.refused);
                    // Programs of kernels are always prepared. A mixed one is where the target has the device tier.
                    ensure!(!is_whole || run.refused.is_none(), "{:?}", run.refused);
                }
                anyhow::Ok(())
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
    }
    bad_index()?;
    let chain = compile(CHAIN)?;
    let case = cases(&chain)?.swap_remove(1);
    time("two kernels, M = 37", &chain, &case)?;
    let text = std::fs::read_to_string(repository().join("fixtures/minilm_ffn.fir"))?;
    let compiled = compile(&text)?;
    let inputs = sample::inputs(compiled.planned().program(), &recipe(91, 11))?;
    let run = compiled.run(&inputs, &RunOptions::default())?;
    let outputs = compiled.planned().original().module().outputs.iter();
    let outputs = outputs.map(|value| run.value(*value).cloned().context("an output"));
    let case = Case { outputs: outputs.collect::<Result<_>>()?, inputs };
    time("minilm_ffn, M = 91", &compiled, &case)
}

/// A bad index is an error that names the op, and later calls do not report it.
fn bad_index() -> Result<()> {
    const ROWS: &str = "fir 1
func @rows(%x: tensor<[M, 64], f32>, %i: tensor<[R], i32>) {
  %rows = gather %x, %i {axis = 0} : tensor<[R, 64], f32>
  return %rows
}
";
    let compiled = compile(ROWS)?;
    let mut session = compiled.session(HashMap::new())?;
    let x = Tensor::from_f32(vec![5, 64], &(0..5 * 64).map(|index| index as f32).collect::<Vec<_>>())?;
    let mut run = |indices: [f64; 3]| {
        let indices = Tensor::from_f64(ElementType::I32, vec![3], None, &indices)?;
        anyhow::Ok(session.run(&HashMap::from([("x", (&x).into()), ("i", (&indices).into())]))?)
    };
    for _ in 0..2 {
        let run = run([4.0, 0.0, 4.0])?;
        ensure!(run.refused.is_none(), "{:?}", run.refused);
        let rows = run.outputs[0].as_ref().context("an output")?.to_f32();
        ensure!(rows[64] == 0.0 && rows[127] == 63.0 && rows[128] == 256.0, "the rows are wrong");
    }
    let Err(error) = run([4.0, 5.0, -1.0]) else { anyhow::bail!("a bad index is no error") };
    let text =
        "`%rows = gather` in segment 0: index 5, element 1 of the indices, is outside axis 0 of extent 5";
    ensure!(error.to_string() == text, "{error}");
    run([0.0, 1.0, 2.0]).map(drop)
}

/// Prints the time of a call with tensors on the host and on the device.
fn time(name: &str, compiled: &Compiled, case: &Case) -> Result<()> {
    let device = compiled.device().context("a device")?;
    let mut session = compiled.session(case.inputs.clone())?;
    let host = call(&session, &case.inputs);
    let upload = |tensor: &Tensor| {
        let buffer = device.alloc(tensor.bytes().len())?;
        device.stream().upload(&buffer, 0, tensor.bytes())?;
        anyhow::Ok(buffer)
    };
    let on_device = |tensor: &Tensor, buffer| {
        DeviceTensor::new(device, buffer, tensor.element(), tensor.dims().to_vec(), tensor.layout())
    };
    let names = session.inputs();
    let from = names.iter().map(|name| Ok((name.as_str(), upload(&case.inputs[name])?)));
    let from: Vec<_> = from.collect::<Result<_>>()?;
    let to: Vec<_> = case.outputs.iter().map(upload).collect::<Result<_>>()?;
    let module = compiled.planned().original().module();
    let mut inputs: HashMap<&str, SessionInput<'_>> = HashMap::new();
    for (name, buffer) in &from {
        inputs.insert(name, on_device(&case.inputs[*name], buffer)?.into());
    }
    let mut outputs = HashMap::new();
    for ((value, tensor), buffer) in module.outputs.iter().zip(&case.outputs).zip(&to) {
        device.stream().fill(buffer, 0, buffer.len(), 0xFF)?;
        outputs.insert(module.name_of(*value), on_device(tensor, buffer)?);
    }
    device.stream().synchronize()?;
    let mut median = |inputs: &HashMap<&str, SessionInput<'_>>, outputs: &HashMap<&str, DeviceTensor<'_>>| {
        let mut times = Vec::new();
        for _ in 0..200 {
            let start = Instant::now();
            let run = session.run_to(inputs, outputs)?;
            times.push(start.elapsed());
            let returned = run.outputs.iter().zip(&case.outputs);
            let is_right = |(found, expected): (&Option<Tensor>, &Tensor)| match found {
                Some(found) => found == expected,
                None => !outputs.is_empty(),
            };
            ensure!(returned.into_iter().all(is_right), "{name}: an output differs");
        }
        times.sort_unstable();
        anyhow::Ok(times[times.len() / 2])
    };
    let (host, on_device) = (median(&host, &HashMap::new())?, median(&inputs, &outputs)?);
    println!("a call of {name}: {host:?} with host tensors, {on_device:?} with device tensors");
    for (expected, buffer) in case.outputs.iter().zip(&to) {
        let mut found = vec![0; buffer.len()];
        device.stream().download(buffer, 0, &mut found)?;
        ensure!(found == expected.bytes(), "{name}: an output on the device differs");
    }
    Ok(())
}
