//! Peers: a Python process that times the same computations in torch.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use fourfold_executor::device::Gpu;
use fourfold_executor::measure::{Rotation, Rounds};
use fourfold_executor::{LineError, LineProcess};
use fourfold_ir::{ElementType, Module, SymbolValues, bind};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::jobs::Job;

/// The program of the process.
const SCRIPT: &str = include_str!("peers.py");

/// Time limit for importing torch.
const START: Duration = Duration::from_secs(180);

/// Time limit for one answer, which may compile a function twice.
const ANSWER: Duration = Duration::from_secs(300);

/// The versions that the process reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerVersions {
    /// Python.
    pub python: String,
    /// torch.
    pub torch: String,
    /// Triton, which torch.compile uses.
    pub triton: Option<String>,
    /// The CUDA version that torch was built with.
    pub cuda: Option<String>,
    /// The GPU that torch uses.
    pub gpu: String,
}

/// The samples of a peer, or the reason that there are none.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum PeerSamples {
    Samples { samples: Vec<f64> },
    Failed { error: String },
}

/// The answer to a measurement, by the name of the peer.
pub(super) type PeerRound = BTreeMap<String, PeerSamples>;

/// A running process.
#[derive(Debug)]
pub(super) struct Peers {
    process: LineProcess,
    pub(super) versions: PeerVersions,
}

/// A process that is importing torch.
#[derive(Debug)]
pub(super) struct Starting {
    python: String,
    process: LineProcess,
}

impl Starting {
    /// Starts the process. The error tells why no peer can be measured.
    pub(super) fn spawn(python: &Path, gpu: &Gpu) -> Result<Starting, String> {
        let shown = python.display().to_string();
        let ordinal = gpu.ordinal.to_string();
        let process = LineProcess::start(python, ["-c", SCRIPT, &ordinal])
            .map_err(|error| format!("{shown} cannot be started: {error}"))?;
        Ok(Starting { python: shown, process })
    }

    /// Waits until torch is imported. The error tells why no peer can be measured.
    pub(super) fn ready(mut self) -> Result<Peers, String> {
        let python = &self.python;
        let line = self.process.answer(START).map_err(|error| format!("{python}: {error}"))?;
        match serde_json::from_str::<PeerVersions>(&line) {
            Ok(versions) => Ok(Peers { process: self.process, versions }),
            Err(_) => Err(format!("{python}: {}", error_of(&line).unwrap_or(line))),
        }
    }
}

impl Peers {
    /// Draws inputs, compiles and measures the peers of a job for the first time.
    pub(super) fn open(
        &mut self,
        job: &Job,
        module: &Module,
        symbols: &SymbolValues,
        rotation: &Rotation,
        rounds: &Rounds,
    ) -> Result<PeerRound, String> {
        let Some(peer) = &job.peer else { return Ok(PeerRound::new()) };
        let mut inputs = Vec::new();
        for &input in &module.inputs {
            let ty = module.ty(input);
            let name = module.name_of(input);
            let Some(dims) = bind::concrete_dims(ty, symbols).filter(|_| is_known(ty.element)) else {
                continue;
            };
            inputs.push(json!({
                "name": name.replace('.', "_"),
                "type": ty.element.name(),
                "dims": dims,
                "rotates": !module.is_param(input),
                "value": job.constants.get(name),
            }));
        }
        let request = json!({
            "op": "open",
            "setup": peer.setup,
            "body": peer.body,
            "sizes": job.size,
            "inputs": inputs,
            "sets": rotation.sets(),
            "calls": rotation.calls(),
            "warm_up": rounds.warm_up.as_secs_f64(),
            "replays": rounds.replays,
            "limit": rounds.limit.as_secs_f64(),
        });
        self.ask(&request)
    }

    /// Measures the same peers again.
    pub(super) fn again(&mut self) -> Result<PeerRound, String> {
        self.ask(&json!({ "op": "again" }))
    }

    /// Frees the memory of the peers.
    pub(super) fn close(&mut self) -> Result<(), String> {
        self.ask(&json!({ "op": "close" })).map(drop)
    }

    fn ask(&mut self, request: &serde_json::Value) -> Result<PeerRound, String> {
        let line =
            self.process.ask(&request.to_string(), ANSWER).map_err(|error: LineError| error.to_string())?;
        serde_json::from_str(&line).map_err(|_| error_of(&line).unwrap_or(line))
    }
}

/// Returns true for the types that torch has; the others are block-scaled data.
fn is_known(element: ElementType) -> bool {
    use ElementType as E;
    matches!(element, E::F16 | E::BF16 | E::F32 | E::I32 | E::I1)
}

/// Returns the member `error` of an object.
fn error_of(line: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(value.get("error")?.as_str()?.to_owned())
}
