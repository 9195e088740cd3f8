//! The tasks of a sweep, and the work recorded before.

use std::collections::{BTreeMap, BTreeSet};

use fourfold_codegen::KernelSource;
use fourfold_executor::service::Request;

use super::{Shard, Tools};
use crate::generator::{Broken, Configured};
use crate::manifest::Combination;
use crate::parameters::Parameters;
use crate::problem::Problem;
use crate::record::{Machine, Record, SCHEMA, State};

/// A combination, with its kernel if it is valid.
#[derive(Debug)]
pub struct Task {
    /// The kernel's id in records.
    pub id: String,
    /// The combination.
    pub combination: Combination,
    /// A readable name.
    pub name: String,
    /// The kernel, or the broken rules.
    pub planned: Planned,
}

/// The result of configuring a combination.
#[derive(Debug)]
pub enum Planned {
    /// The combination breaks these rules.
    Invalid(Vec<Broken>),
    /// The combination is valid.
    Kernel {
        /// The kernel.
        configured: Box<dyn Configured>,
        /// Its source.
        source: KernelSource,
        /// The request to the compile service.
        request: Request,
    },
}

/// Configures every combination of a shard. Combinations with the same source remain separate tasks.
pub fn plan(combinations: &[Combination], shard: Shard, tools: &Tools<'_>) -> Vec<Task> {
    let own = combinations.iter().enumerate().filter(|(position, _)| shard.has(*position));
    own.map(|(_, combination)| task(combination, tools)).collect()
}

fn task(combination: &Combination, tools: &Tools<'_>) -> Task {
    let Combination { generator, target, parameters } = combination;
    let (planned, name, key) = match generator.configure(parameters, target, tools.cutlass) {
        Ok(configured) => {
            let source = configured.source();
            let request = (tools.request)(&source);
            let (name, key) = (configured.name(), request.key().to_string());
            (Planned::Kernel { configured, source, request }, name, key)
        }
        Err(broken) => {
            let name = format!("{} {parameters}", generator.name());
            (Planned::Invalid(broken), name, format!("CUTLASS {}", tools.cutlass))
        }
    };
    let id = id(generator.name(), target.name, parameters, &key);
    Task { id, combination: combination.clone(), name, planned }
}

/// The id of a kernel: a hash of generator, target, parameters and `key`, which covers source, compiler and options.
fn id(generator: &str, target: &str, parameters: &Parameters, key: &str) -> String {
    const DIGITS: usize = 20;
    let text = format!("{generator}\n{target}\n{parameters}\n{key}");
    let mut id = blake3::hash(text.as_bytes()).to_hex().to_string();
    id.truncate(DIGITS);
    id
}

impl Task {
    /// Creates a record of the kernel, or of the kernel on a problem.
    pub(super) fn record(&self, state: State, problem: Option<Problem>, at: u64) -> Record {
        Record {
            schema: SCHEMA,
            kernel: self.id.clone(),
            generator: self.combination.generator.name().to_owned(),
            target: self.combination.target.name.to_owned(),
            name: self.name.clone(),
            parameters: self.combination.parameters.clone(),
            problem,
            workload: match (&self.planned, problem) {
                (Planned::Kernel { configured, .. }, Some(_)) => Some(configured.workload_key()),
                _ => None,
            },
            state,
            message: None,
            broken: Vec::new(),
            build: None,
            timing: None,
            check: None,
            machine: None,
            at,
        }
    }
}

/// The work recorded by earlier runs.
#[derive(Clone, Debug, Default)]
pub struct Done {
    kernels: BTreeMap<String, State>,
    runs: BTreeSet<(String, Problem, Option<Machine>)>,
}

impl Done {
    /// Collects the work in records.
    pub fn of(records: &[Record]) -> Done {
        let mut done = Done::default();
        for record in records {
            match record.problem {
                None => {
                    done.kernels.insert(record.kernel.clone(), record.known_state());
                }
                Some(_) if record.known_state() == State::Deferred => {}
                Some(problem) => {
                    done.runs.insert((record.kernel.clone(), problem, record.machine.clone()));
                }
            }
        }
        done
    }

    /// The outcome of building a kernel; `None` if it is not recorded.
    pub fn kernel(&self, id: &str) -> Option<State> {
        self.kernels.get(id).copied()
    }

    /// Returns true if a kernel was run on a problem on this machine.
    pub fn has_run(&self, id: &str, problem: &Problem, machine: Option<&Machine>) -> bool {
        self.runs.contains(&(id.to_owned(), *problem, machine.cloned()))
    }
}
