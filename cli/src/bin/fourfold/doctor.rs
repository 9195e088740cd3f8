//! `fourfold doctor`: reports what this machine has for building kernels, what is missing, and the remedy.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use fourfold::{CompileOptions, DeviceChoice, Options};
use fourfold_cli::doctor::{Doctor, FindingReport, examine};
use fourfold_cli::hosts::{examine_host, host_names};
use fourfold_executor::BuildOptions;
use fourfold_executor::environment::Environment;

use crate::progress::Progress;
use crate::toolchain::Tools;

#[derive(Args)]
#[command(after_help = "Examples:\n  fourfold doctor\n  fourfold doctor --self-test\n  \
    fourfold doctor --nvcc /usr/local/cuda/bin/nvcc --json\n  fourfold doctor --host torch\n\n\
    Uses no network and changes nothing. The self-test builds the smallest kernel, which takes about half a minute, \
    and runs it if a GPU can.\n\n\
    Exit codes: 0 this machine can build kernels for the target and the self-test, if any, did not fail, 2 bad input, \
    3 something is missing or the self-test failed, 130 interrupted")]
pub struct Arguments {
    #[command(flatten)]
    tools: Tools,
    /// Check the tools for TARGET, such as sm_90a [default: that of the GPUs, else any]
    #[arg(long, value_name = "TARGET", value_parser = crate::toolchain::target)]
    target: Option<String>,
    /// Build the smallest kernel and run it if a GPU can
    #[arg(long)]
    self_test: bool,
    /// Kill the compiler of the self-test after SECONDS
    #[arg(long, value_name = "SECONDS", requires = "self_test", default_value_t = BuildOptions::TIME_LIMIT.as_secs())]
    time_limit: u64,
    /// Start the compiler of the self-test through PROGRAM, such as sccache
    #[arg(long, value_name = "PROGRAM", requires = "self_test")]
    launcher: Option<PathBuf>,
    /// Examine a host that embeds Fourfold instead: what is installed for it, and which versions were tested
    #[arg(long, value_name = "HOST", value_parser = host_name,
        conflicts_with_all = ["target", "self_test", "nvcc", "cutlass", "allow_known_bad"])]
    host: Option<String>,
    /// Ask this interpreter for the packages of a host
    #[arg(long, value_name = "PYTHON", requires = "host", default_value = "python3")]
    python: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some(host) = &arguments.host {
        return run_host(host, arguments);
    }
    let environment = Environment::from_process();
    let options = arguments.tools.options_for(arguments.target.clone());
    let mut doctor = examine(&options, &environment);
    if arguments.self_test {
        let device = match environment.fourfold_device.as_deref().map(|text| text.to_string_lossy()) {
            Some(text) => match text.parse() {
                Ok(device) => device,
                Err(error) => return crate::misused(&format!("FOURFOLD_DEVICE: {error}"), arguments.json),
            },
            None => DeviceChoice::First,
        };
        let place = Options::default().device(device).maybe_target(arguments.target.clone());
        let build = BuildOptions {
            time_limit: Duration::from_secs(arguments.time_limit),
            launcher: arguments.launcher.clone(),
            ..BuildOptions::default()
        };
        let compile = CompileOptions::default().toolchain(options).build(build);
        let progress = Progress::new(arguments.json);
        crate::with_stdout_kept(|| doctor.test(&place, &compile, &|event| progress.event(event)));
    }
    let text = if arguments.json { crate::to_json(&doctor) } else { report(&doctor) };
    let code = if doctor.ok { 0 } else { crate::EXIT_ENVIRONMENT };
    crate::leave(code, crate::print(&text))
}

fn host_name(name: &str) -> Result<String, String> {
    let known = host_names();
    match known.iter().any(|host| host == name) {
        true => Ok(name.to_owned()),
        false => Err(format!("the hosts are {}", known.join(", "))),
    }
}

fn run_host(host: &str, arguments: &Arguments) -> ExitCode {
    let Some(report) = examine_host(host, &arguments.python) else {
        return crate::misused(&format!("no host is named `{host}`"), arguments.json);
    };
    let text = if arguments.json {
        crate::to_json(&report)
    } else {
        let findings: String = report.findings.iter().map(lines).collect();
        let python = report.python.as_ref().map_or(String::new(), |it| format!(", asked of {it}"));
        let end = if report.ok { "Everything that it needs is installed" } else { "Something is missing" };
        format!("{}{python}\n\n{findings}\n{end}; {} describes the host\n", report.title, report.guide)
    };
    crate::leave(if report.ok { 0 } else { crate::EXIT_ENVIRONMENT }, crate::print(&text))
}

fn report(doctor: &Doctor) -> String {
    let version = &doctor.fourfold;
    let described = version.described.as_ref().map_or(String::new(), |text| format!(" ({text})"));
    let mut text = format!("fourfold {}{described}\n\n", version.version);
    for finding in &doctor.findings {
        text += &lines(finding);
    }
    for gpu in doctor.devices.iter().filter(|_| !doctor.gpus.is_empty()) {
        text += &format!("{:<8} {:<17} {gpu}\n", "ok", "device");
    }
    let test = &doctor.self_test;
    text += &lines(&FindingReport {
        name: "self-test".to_owned(),
        state: test.state,
        detail: test.detail.clone(),
        remedy: test.remedy.clone(),
    });
    text += "\nTargets\n";
    for target in &doctor.targets {
        let why = target.why.as_ref().map_or(String::new(), |why| format!("; {why}"));
        let formats = match target.formats.is_empty() {
            true => String::new(),
            false => format!("; {}", target.formats.join(", ")),
        };
        let runs = target.runs.map_or(String::new(), |how| format!("; runs here ({how})"));
        text += &format!("{:<8} {:<17} {}{formats}{runs}{why}\n", target.state, target.name, target.hardware);
    }
    text += "\nVariables\n";
    for variable in &doctor.variables {
        let value = variable.value.as_deref().unwrap_or("unset");
        text += &format!("{:<20} {value}\n", variable.name);
        text +=
            &format!("{:20} {} ({}; default: {})\n", "", variable.meaning, variable.kind, variable.default);
    }
    text += match (doctor.ok, doctor.self_test.state) {
        (true, _) => "\nKernels can be built here\n",
        (false, "failed") => {
            "\nThe self-test failed although nothing is missing: other kernels will fail in the same way\n"
        }
        (false, _) => {
            "\nKernels cannot be built here: everything runs on the fallback until the missing items are installed\n"
        }
    };
    text
}

fn lines(finding: &FindingReport) -> String {
    let detail = finding.detail.replace('\n', &format!("\n{:27}", ""));
    let mut text = format!("{:<8} {:<17} {detail}\n", finding.state, finding.name);
    if let Some(remedy) = &finding.remedy {
        text += &format!("{:26} -> {remedy}\n", "");
    }
    text
}
