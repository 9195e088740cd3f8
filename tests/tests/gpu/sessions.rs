//! Sessions on several threads, and the time of a call.

use std::collections::HashMap;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fourfold::ir::{Tensor, Value, sample};
use fourfold::{Compiled, DeviceTensor, RunOptions, Session, SessionInput};

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

fn call<'a>(
    session: &Session<'_>,
    inputs: &'a HashMap<String, Tensor>,
) -> HashMap<&'a str, SessionInput<'a>> {
    let wanted: Vec<&str> = session.inputs().collect();
    let given = inputs.iter().filter(|(name, _)| wanted.contains(&name.as_str()));
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
    time(&compile(CHAIN)?)
}

/// Prints the time of a call with tensors on the host and on the device.
fn time(compiled: &Compiled) -> Result<()> {
    let case = &cases(compiled)?[1];
    let device = compiled.device().context("a device")?;
    let mut session = compiled.session(case.inputs.clone())?;
    let host = call(&session, &case.inputs);
    let mut buffers = HashMap::new();
    for name in session.inputs() {
        let tensor = &case.inputs[name];
        let buffer = device.alloc(tensor.bytes().len())?;
        device.stream().upload(&buffer, 0, tensor.bytes())?;
        buffers.insert(name, buffer);
    }
    let on_device = |tensor: &Tensor, buffer| {
        DeviceTensor::new(device, buffer, tensor.element(), tensor.dims().to_vec(), tensor.layout())
    };
    let d = device.alloc(case.outputs[0].bytes().len())?;
    let outputs = HashMap::from([("d", on_device(&case.outputs[0], &d)?)]);
    let mut inputs: HashMap<&str, SessionInput<'_>> = HashMap::new();
    for (name, buffer) in &buffers {
        inputs.insert(name, on_device(&case.inputs[*name], buffer)?.into());
    }
    let mut median = |inputs: &HashMap<&str, SessionInput<'_>>, outputs: &HashMap<&str, DeviceTensor<'_>>| {
        let mut times = Vec::new();
        for _ in 0..200 {
            let start = Instant::now();
            session.run_to(inputs, outputs)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        anyhow::Ok(times[times.len() / 2])
    };
    let (host, on_device) = (median(&host, &HashMap::new())?, median(&inputs, &outputs)?);
    println!("a call of two kernels, M = 37: {host:?} with host tensors, {on_device:?} with device tensors");
    let mut found = vec![0; d.len()];
    device.stream().download(&d, 0, &mut found)?;
    ensure!(found == case.outputs[0].bytes(), "the output on the device differs");
    Ok(())
}
