//! The options of every command that plans: the target, the device, the dispatch tables.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use fourfold::codegen::dispatch::Tables;
use fourfold::{DeviceChoice, Options, chain};
use fourfold_executor::environment::Environment;
use fourfold_executor::{TEXT_LIMIT, read_input};

/// The target, the device and the planning options.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// Plan for TARGET: sm_100a, sm_103a, sm_120a, sm_121a, sm_90a or cpu [default: the GPU's, else sm_100a; with --emulate, sm_120a]
    #[arg(long)]
    target: Option<String>,
    /// Run kernels of a Blackwell target on a Hopper GPU, with the instructions that it lacks emulated
    #[arg(long)]
    emulate: bool,
    /// Use GPU number N, or none [default: FOURFOLD_DEVICE, else the first]
    #[arg(long, value_name = "N|none", value_parser = str::parse::<DeviceChoice>)]
    device: Option<DeviceChoice>,
    /// Let normalization drop roundings, as the line `; allow: contract` of a program does
    #[arg(long)]
    contract: bool,
    /// Select kernels by this dispatch table, a .toml file, for the targets and formats it names
    #[arg(long, value_name = "FILE")]
    dispatch: Option<PathBuf>,
}

impl Place {
    /// Returns the options of a backend. The command line overrides FOURFOLD_DEVICE.
    pub fn options(&self) -> Result<Options, String> {
        let device = match (self.device, Environment::from_process().fourfold_device) {
            (Some(device), _) => device,
            (None, Some(text)) => {
                text.to_string_lossy().parse().map_err(|error| format!("FOURFOLD_DEVICE: {error}"))?
            }
            (None, None) => DeviceChoice::First,
        };
        let Place { emulate, contract, .. } = *self;
        let dispatch = self.dispatch.as_deref().map(read_tables).transpose()?;
        Ok(Options::default()
            .maybe_target(self.target.clone())
            .device(device)
            .emulate(emulate)
            .contract(contract)
            .dispatch(dispatch))
    }
}

fn read_tables(file: &Path) -> Result<Arc<Tables>, String> {
    let text = read_input(file, TEXT_LIMIT).map_err(|error| chain(&error))?;
    let tables = Tables::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(Arc::new(tables))
}
