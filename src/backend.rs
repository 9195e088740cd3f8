//! The embedding interface: hand over a program, get a partition, run it.

use std::collections::HashMap;

use fourfold_executor::{Run, RunOptions};
use fourfold_ir::{Capabilities, Module, Program, Tensor, bind, verify};
use fourfold_scheduler::{Partition, check, partition};

use crate::error::Error;

/// The target that is planned for when none is named and no GPU is there to ask.
pub const DEFAULT_TARGET: &str = "sm_100a";

/// How a backend plans.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What is planned for, such as `sm_120a` or `cpu`; [`DEFAULT_TARGET`] when absent.
    pub target: Option<String>,
}

/// Plans programs for one target.
#[derive(Clone, Debug)]
pub struct Backend {
    capabilities: Capabilities,
}

/// A program with its partition, ready to run.
#[derive(Clone, Debug)]
pub struct Planned {
    program: Program,
    partition: Partition,
}

impl Backend {
    /// A backend for these options.
    ///
    /// # Errors
    /// When there is no such target.
    pub fn new(options: &Options) -> Result<Backend, Error> {
        let name = options.target.as_deref().unwrap_or(DEFAULT_TARGET);
        let capabilities = fourfold_codegen::capabilities(name).ok_or_else(|| {
            let known: Vec<&str> = fourfold_codegen::TARGETS.iter().map(|target| target.name).collect();
            Error::UnknownTarget { name: name.to_owned(), known: known.join(", ") }
        })?;
        Ok(Backend { capabilities })
    }

    /// What the target's kernels take.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Verifies a module and partitions it: every op is in a segment, and every op outside a kernel has a reason.
    ///
    /// # Errors
    /// When the module is not a program; never because an op is not taken.
    pub fn plan_module(&self, module: Module) -> Result<Planned, Error> {
        match verify(module) {
            Ok(program) => Ok(self.plan(program)),
            Err(invalid) => Err(Error::Module {
                name: invalid.module.name.clone(),
                diagnostics: invalid.errors.iter().map(|error| error.diagnostic(None)).collect(),
            }),
        }
    }

    /// Partitions a verified program.
    pub fn plan(&self, program: Program) -> Planned {
        let partition = partition(&program, &self.capabilities);
        Planned { program, partition }
    }

    /// Proves a plan again, with a checker that shares no code with what made it.
    ///
    /// # Errors
    /// A bug of ours, with everything that is wrong.
    pub fn check(&self, planned: &Planned) -> Result<(), Error> {
        check(&planned.program, &self.capabilities, &planned.partition).map_err(|errors| {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Error::Partition(texts.join("; "))
        })
    }
}

impl Planned {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its segments and decisions.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Runs the program on these inputs, which bind by name.
    ///
    /// # Errors
    /// When the tensors do not fit the inputs, or memory does not suffice.
    pub fn run(&self, tensors: &HashMap<String, Tensor>, options: &RunOptions) -> Result<Run, Error> {
        let bound = bind::bind(&self.program, tensors)?;
        Ok(fourfold_executor::run(&self.program, &self.partition, &bound, options, None)?)
    }
}
