//! `fourfold cache`: lists, verifies, prunes and shares the cached kernels.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use fourfold_executor::cache::{
    Cache, CacheError, CacheKey, CacheOptions, EntryInfo, Prune, Pruned, PushError, PushResult, Pushed,
    Verified, human_size, parse_size, shown_place,
};
use fourfold_executor::environment::Environment;
use serde_json::{Value, json};

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the kernels, most recently used first
    #[command(
        after_help = "Example:\n  fourfold cache list --json | jq -r '.entries[] | select(.in_use) | .kernel'\n\n\
            Exit codes: 0 ok, 2 bad input, 3 the cache cannot be used"
    )]
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Verify every byte of every kernel
    #[command(after_help = "Example:\n  fourfold cache verify --repair\n\n\
        Removed kernels are rebuilt when needed.\n\n\
        Exit codes: 0 every kernel is intact, 1 a kernel is rejected, even if it was removed, 2 bad input, 3 the cache \
        cannot be used")]
    Verify {
        /// Remove rejected kernels
        #[arg(long)]
        repair: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove kernels, least recently used first; kernels in use stay
    #[command(
        after_help = "Examples:\n  fourfold cache prune --to 500M\n  fourfold cache prune --older-than 30\n\n\
            Exit codes: 0 ok, 2 bad input, 3 a kernel cannot be removed or the cache cannot be used"
    )]
    Prune {
        #[command(flatten)]
        which: Which,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Copy kernels to a folder or an object store
    #[command(after_help = "Examples:\n  fourfold cache push --to /shared/kernels\n  \
        fourfold cache push --to s3://bucket/kernels 0f3a91c2\n\n\
        Other machines name the place in FOURFOLD_CACHE_TIERS. They run the code in it, so grant write access only to \
        trusted users.\n\n\
        Exit codes: 0 ok, 1 a local kernel is rejected, 2 bad input, or the place does not exist, 3 a kernel could not \
        be written")]
    Push {
        /// Copy to this folder, or to this URL if built with the feature object-store
        #[arg(long, value_name = "DIR|URL")]
        to: String,
        /// Copy every kernel, which is the default
        #[arg(long, conflicts_with = "keys")]
        all: bool,
        /// Copy the kernels with these keys or unambiguous prefixes [default: every kernel]
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
#[group(required = true, multiple = true)]
struct Which {
    /// Remove kernels until at most SIZE bytes are left, such as 500M or 4GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    to: Option<u64>,
    /// Remove kernels unused for DAYS days
    #[arg(long, value_name = "DAYS")]
    older_than: Option<u32>,
    /// Remove every kernel that is not in use
    #[arg(long, conflicts_with_all = ["to", "older_than"])]
    all: bool,
}

/// The output of a command, as text and as JSON, and its exit code.
struct Outcome {
    text: String,
    json: Value,
    code: u8,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let (outcome, json) = match &arguments.command {
        Command::List { json } => (open().and_then(|cache| list(&cache)), *json),
        Command::Verify { repair, json } => (open().and_then(|cache| verify(&cache, *repair)), *json),
        Command::Prune { which, json } => (open().and_then(|cache| prune(&cache, which)), *json),
        Command::Push { to, keys, json, .. } => (open().and_then(|cache| push(&cache, to, keys)), *json),
    };
    match outcome {
        Ok(outcome) => {
            let text = if json { crate::to_json(&outcome.json) } else { outcome.text };
            crate::leave(outcome.code, crate::print(&text))
        }
        Err(error) => fail(&error, json),
    }
}

fn open() -> Result<Cache, CacheError> {
    Cache::open(&CacheOptions::from_environment(&Environment::from_process())?)
}

fn list(cache: &Cache) -> Result<Outcome, CacheError> {
    let entries = cache.list()?;
    let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let mut text = format!("{}: {}\n", cache.folder().display(), sum(entries.len(), bytes));
    for entry in &entries {
        let _ = writeln!(text, "{}", line(entry));
    }
    let json =
        json!({ "ok": true, "folder": crate::shown(cache.folder()), "bytes": bytes, "entries": entries });
    Ok(Outcome { text, json, code: 0 })
}

fn verify(cache: &Cache, repair: bool) -> Result<Outcome, CacheError> {
    let found = cache.verify(repair)?;
    let refused: Vec<&Verified> = found.iter().filter(|entry| entry.refusal.is_some()).collect();
    let good = found.len() - refused.len();
    let bytes: u64 = found.iter().filter(|entry| entry.refusal.is_none()).map(|entry| entry.bytes).sum();
    let mut text = format!("{}: {} verified\n", cache.folder().display(), sum(good, bytes));
    for refusal in refused.iter().filter_map(|entry| entry.refusal.as_ref()) {
        let _ = writeln!(text, "{refusal}");
    }
    if !refused.is_empty() && !repair {
        text.push_str("`fourfold cache verify --repair` removes the rejected kernels\n");
    }
    let messages: Vec<String> =
        refused.iter().filter_map(|entry| Some(entry.refusal.as_ref()?.to_string())).collect();
    let ok = refused.is_empty();
    let json = json!({
        "ok": ok, "folder": crate::shown(cache.folder()), "verified": good, "bytes": bytes, "refused": refused,
        "messages": messages,
    });
    Ok(Outcome { text, json, code: if ok { 0 } else { crate::EXIT_MISMATCH } })
}

fn prune(cache: &Cache, which: &Which) -> Result<Outcome, CacheError> {
    let older_than = which.older_than.map(|days| Duration::from_secs(u64::from(days) * 24 * 3600));
    let Pruned { removed, in_use, stuck, bytes } =
        cache.prune(&Prune { to: which.to, older_than, all: which.all })?;
    let freed: u64 = removed.iter().map(|entry| entry.bytes).sum();
    let mut text = format!("removed {}; {} are left\n", sum(removed.len(), freed), human_size(bytes));
    for (entries, why) in [(&in_use, "stays because it is in use"), (&stuck, "cannot be removed")] {
        for entry in entries {
            let _ = writeln!(text, "{} {why}", line(entry));
        }
    }
    let ok = stuck.is_empty();
    let json = json!({
        "ok": ok, "folder": crate::shown(cache.folder()), "removed": removed, "in_use": in_use, "stuck": stuck,
        "freed": freed, "bytes": bytes,
    });
    Ok(Outcome { text, json, code: if ok { 0 } else { crate::EXIT_ENVIRONMENT } })
}

fn push(cache: &Cache, to: &str, keys: &[String]) -> Result<Outcome, CacheError> {
    let keys: Vec<CacheKey> = match keys {
        [] => cache.list()?.into_iter().map(|entry| entry.key).collect(),
        keys => keys.iter().map(|digits| cache.resolve(digits)).collect::<Result<_, _>>()?,
    };
    let pushed = cache.push(to, &keys)?;
    let mut text = String::new();
    let mut results = Vec::new();
    for PushResult { key, outcome } in &pushed {
        let words = match outcome {
            Ok(Pushed::Written) => "written".to_owned(),
            Ok(Pushed::Present) => "already present".to_owned(),
            Ok(Pushed::Replaced) => "replaced a rejected one".to_owned(),
            Err(why) => format!("failed: {why}"),
        };
        let _ = writeln!(text, "{key} {words}");
        let error = outcome.as_ref().err().map(ToString::to_string);
        results.push(json!({ "key": key, "done": outcome.as_ref().ok(), "error": error }));
    }
    let written =
        pushed.iter().filter(|result| !matches!(result.outcome, Err(_) | Ok(Pushed::Present))).count();
    let to = shown_place(to);
    let _ = writeln!(text, "{written} of {} written to {to}", pushed.len());
    let mut failures = pushed.iter().filter_map(|result| result.outcome.as_ref().err()).peekable();
    let ok = failures.peek().is_none();
    // A place that cannot be written decides the exit code, whatever else failed.
    let code = match failures.any(|failure| matches!(failure, PushError::Place { .. })) {
        true => crate::EXIT_ENVIRONMENT,
        false if ok => 0,
        false => crate::EXIT_MISMATCH,
    };
    if !ok {
        const REMEDY: &str = "check the write permissions there, and run `fourfold cache verify --repair`";
        let _ = writeln!(text, "help: {REMEDY}");
    }
    let json = json!({ "ok": ok, "to": to, "entries": results });
    Ok(Outcome { text, json, code })
}

fn fail(error: &CacheError, json: bool) -> ExitCode {
    tell!("error: {error}\nhelp: {}", error.remedy());
    let is_request = matches!(
        error,
        CacheError::Size { .. }
            | CacheError::Variable { .. }
            | CacheError::NoEntry { .. }
            | CacheError::Tier { .. }
            | CacheError::Target { .. }
    );
    let (code, fault) =
        if is_request { (2, "invalid_input") } else { (crate::EXIT_ENVIRONMENT, "environment") };
    let object = json!({
        "ok": false, "fault": fault, "code": error.code(), "error": error.to_string(), "remedy": error.remedy(),
    });
    let printed = if json { crate::print(&crate::to_json(&object)) } else { Ok(()) };
    crate::leave(code, printed)
}

fn line(entry: &EntryInfo) -> String {
    // The text shows enough digits to tell entries apart; JSON has all.
    const DIGITS: usize = 16;
    let key = entry.key.to_string();
    let in_use = if entry.in_use { "  in use" } else { "" };
    format!(
        "{}  {:>10}  {:>8}  {}  {}{in_use}",
        &key[..DIGITS],
        human_size(entry.bytes),
        age(entry.last_use),
        entry.target.as_deref().unwrap_or("?"),
        entry.kernel.as_deref().unwrap_or("?"),
    )
}

/// Returns the time elapsed since `time` as text.
fn age(time: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(time).unwrap_or_default().as_secs();
    match seconds {
        0..60 => "now".to_owned(),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

fn sum(count: usize, bytes: u64) -> String {
    format!("{count} kernel{}, {}", if count == 1 { "" } else { "s" }, human_size(bytes))
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}
