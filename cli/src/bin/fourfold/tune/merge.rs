//! `fourfold merge`: joins the records of several machines in one file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use super::Finished;
use super::choose::read_all;
use super::files::Outputs;

#[derive(Args)]
#[command(after_help = "Example:\n  fourfold merge shard-1.jsonl shard-2.jsonl --out all.jsonl\n\n\
    Duplicates of a record are dropped. `-` is the standard input or output.\n\n\
    Exit codes: 0 ok, 2 a file holds no records or contradicts another, 3 the result cannot be written")]
pub struct Arguments {
    /// Files of records
    #[arg(required = true, value_name = "RECORDS")]
    records: Vec<PathBuf>,
    /// Write the records to FILE, replacing it
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    super::finish(merge(arguments), arguments.json)
}

fn merge(arguments: &Arguments) -> Result<Finished> {
    let outputs = Outputs::new([arguments.out.as_path()], arguments.json)?;
    let records = read_all(&arguments.records)?;
    let mut text = String::new();
    for record in &records {
        text += &serde_json::to_string(record).context("a record")?;
        text.push('\n');
    }
    outputs.write(&arguments.out, text.as_bytes())?;
    let (count, files, out) = (records.len(), arguments.records.len(), &arguments.out);
    let named: Vec<_> = arguments.records.iter().map(crate::shown).collect();
    Ok(Finished {
        text: crate::without_controls(&format!("{}: {count} records from {files} files\n", out.display())),
        object: json!({ "ok": true, "records": count, "files": named, "out": crate::shown(out) }),
        code: 0,
        on_stdout: outputs.on_stdout,
    })
}
