//! A helper process that answers each line on its standard input with one line on its standard output.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Group, Guard, read_in_background, spawn};

/// The longest answer in bytes.
const LONGEST_ANSWER: usize = 1 << 20;

/// The bytes kept of the end of the standard error output.
const KEPT_ERRORS: usize = 16 << 10;

/// Time limit for error output that is still in the pipe when the process has closed its standard output.
const DRAIN: Duration = Duration::from_millis(200);

/// A running helper. Dropping it kills the process and its children.
#[derive(Debug)]
pub struct LineProcess {
    input: ChildStdin,
    answers: Receiver<io::Result<Vec<u8>>>,
    /// Output after the last answer.
    partial: Vec<u8>,
    errors: Arc<Mutex<VecDeque<u8>>>,
    _group: Group,
}

/// The reason that a helper has not answered. It must not be asked again.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The process cannot be started, or its pipes cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The process has ended or closed its standard output.
    #[error("the process ended{}", last_words(last))]
    Ended {
        /// The last line of its standard error output; empty if there is none.
        last: String,
    },
    /// The time limit is over.
    #[error("no answer within {seconds:.0} s")]
    Late {
        /// The limit in seconds.
        seconds: f64,
    },
    /// The answer is too long.
    #[error("the answer is longer than {LONGEST_ANSWER} bytes")]
    TooLong,
}

fn last_words(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!(": {last}") }
}

impl LineProcess {
    /// Starts a program, which is searched in PATH if its name has no slash, in this process's environment.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> io::Result<LineProcess> {
        let (answers, output) = io::pipe()?;
        let (errors, error_output) = io::pipe()?;
        let guard = Guard::start();
        let number = guard.as_ref().map_or(0, |guard| guard.process.id().cast_signed());
        let mut command = Command::new(program);
        command.args(arguments).process_group(number);
        command.stdin(Stdio::piped()).stdout(output).stderr(error_output);
        let mut child = spawn(&mut command)?;
        // The command holds copies of the pipes' writing ends; with them, reading would never end.
        drop(command);
        let input = child.stdin.take().ok_or_else(|| io::Error::other("the process has no input"))?;
        let group = Group { child, guard, reaped: false };
        let answers = read_in_background(answers)?;
        let errors = keep_end(read_in_background(errors)?)?;
        Ok(LineProcess { input, answers, partial: Vec::new(), errors, _group: group })
    }

    /// Writes a line and waits for the answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn ask(&mut self, line: &str, limit: Duration) -> Result<String, LineError> {
        let written = self.input.write_all(format!("{line}\n").as_bytes()).and_then(|()| self.input.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(self.ended()),
            Err(error) => Err(error.into()),
            Ok(()) => self.answer(limit),
        }
    }

    /// Waits for a line, such as one that the process prints when it is ready.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn answer(&mut self, limit: Duration) -> Result<String, LineError> {
        let begun = Instant::now();
        let mut searched = 0;
        loop {
            if let Some(end) = self.partial[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.partial.split_off(searched + end + 1);
                let line = std::mem::replace(&mut self.partial, rest);
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            searched = self.partial.len();
            if searched > LONGEST_ANSWER {
                return Err(LineError::TooLong);
            }
            match self.answers.recv_timeout(limit.saturating_sub(begun.elapsed())) {
                Ok(chunk) => self.partial.extend(chunk?),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(LineError::Late { seconds: limit.as_secs_f64() });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    /// The last line of the standard error output that is not empty.
    fn ended(&self) -> LineError {
        std::thread::sleep(DRAIN);
        let kept = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("");
        LineError::Ended { last: last.to_owned() }
    }
}

/// Keeps the end of a pipe's output, so that the writer never waits.
fn keep_end(chunks: Receiver<io::Result<Vec<u8>>>) -> io::Result<Arc<Mutex<VecDeque<u8>>>> {
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let shared = Arc::clone(&kept);
    crate::parallel::thread_of("helper log")?.spawn(move || {
        for chunk in chunks.iter().map_while(Result::ok) {
            let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(chunk);
            let excess = kept.len().saturating_sub(KEPT_ERRORS);
            kept.drain(..excess);
        }
    })?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> LineProcess {
        LineProcess::start("/bin/sh", ["-c", script]).expect("a shell")
    }

    #[test]
    fn each_line_has_its_answer() {
        let mut helper = shell("echo ready; while read -r line; do echo \"<$line>\"; done");
        assert_eq!(helper.answer(LIMIT).expect("a greeting"), "ready");
        for line in ["one", "two words", ""] {
            assert_eq!(helper.ask(line, LIMIT).expect("an answer"), format!("<{line}>"));
        }
    }

    #[test]
    fn the_last_line_of_errors_tells_why_it_ended() {
        let mut helper = shell("read -r line; echo first >&2; echo 'no such module' >&2; echo >&2; exit 3");
        let error = helper.ask("go", LIMIT).expect_err("it ends");
        assert_eq!(error.to_string(), "the process ended: no such module");
        let mut silent = shell("exit 0");
        assert_eq!(silent.answer(LIMIT).expect_err("it ends").to_string(), "the process ended");
        assert!(LineProcess::start("/nonexistent/python", [""; 0]).is_err());
    }

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for() {
        let mut helper = shell("sleep 600");
        let error = helper.answer(Duration::from_millis(20)).expect_err("it sleeps");
        assert!(matches!(error, LineError::Late { .. }), "{error}");
        let mut endless = shell("while :; do printf '%08192d' 0; done");
        assert!(matches!(endless.answer(LIMIT).expect_err("no line"), LineError::TooLong));
        // Output on the standard error does not block the process.
        let mut loud =
            shell("i=0; while [ $i -lt 200 ]; do printf '%01024d\\n' $i >&2; i=$((i+1)); done; echo done");
        assert_eq!(loud.answer(LIMIT).expect("an answer"), "done");
    }
}
