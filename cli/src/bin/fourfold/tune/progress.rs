//! Shows the progress of a sweep and the time it has left.

use std::io::IsTerminal;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use fourfold::Event;
use fourfold_tuner::record::{Record, State};
use fourfold_tuner::sweep::Told;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress of a sweep, on stderr: a bar on a terminal, a line for each record elsewhere.
pub struct Progress {
    bar: ProgressBar,
    is_shown: bool,
    ticker: Once,
    state: Mutex<Stage>,
}

struct Stage {
    begun: Instant,
    done: usize,
    total: usize,
}

impl Progress {
    /// Creates the progress display; `quiet`, for scripts, prints plain lines.
    pub fn new(quiet: bool) -> Progress {
        let style = ProgressStyle::with_template("{spinner} {pos} of {len}, {elapsed}, {msg}");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let is_shown = !quiet && std::io::stderr().is_terminal();
        let stage = Stage { begun: Instant::now(), done: 0, total: 0 };
        Progress { bar, is_shown, ticker: Once::new(), state: Mutex::new(stage) }
    }

    /// Shows what happens.
    pub fn tell(&self, told: &Told<'_>) {
        match told {
            Told::Needed { kernels, done } => {
                self.begin(*kernels);
                self.say(&format!("{kernels} kernels to build, {done} recorded before"));
            }
            Told::Runs { runs, done } => {
                self.begin(*runs);
                self.say(&format!("{runs} runs of a kernel on a problem, {done} recorded before"));
            }
            Told::Build(Event::Note(text)) => self.say(text),
            Told::Build(event @ Event::Refused { .. }) => self.say(&event.to_string()),
            Told::Recorded(record) => self.recorded(record),
            _ => {}
        }
    }

    fn begin(&self, total: usize) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) =
            Stage { begun: Instant::now(), done: 0, total };
        self.bar.set_length(total as u64);
        self.bar.set_position(0);
        if self.is_shown && total > 0 {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.ticker.call_once(|| crate::progress::tick(&self.bar));
        }
    }

    fn recorded(&self, record: &Record) {
        let mut stage = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Records without a compiler run took no time and are not part of the estimate.
        if record.build.is_none() && record.problem.is_none() {
            return;
        }
        stage.done += 1;
        let left = stage
            .begun
            .elapsed()
            .mul_f64(stage.total.saturating_sub(stage.done) as f64 / stage.done.max(1) as f64);
        let estimate = format!("about {} left", shown(left));
        self.bar.set_position(stage.done as u64);
        self.bar.set_message(estimate.clone());
        let line = format!("{} of {}, {estimate}: {}", stage.done, stage.total, line(record));
        drop(stage);
        if !self.is_shown || !matches!(record.state, State::Built | State::Good | State::Refused) {
            self.say(&line);
        }
    }

    fn say(&self, line: &str) {
        if self.is_shown {
            self.bar.suspend(|| tell!("{line}"));
        } else {
            tell!("{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn line(record: &Record) -> String {
    let state = word(record.state);
    let name = &record.name;
    let problem = record.problem.map_or(String::new(), |problem| format!(" on {problem}"));
    let figure = match (&record.timing, &record.build) {
        (Some(timing), _) => format!(", {:.1} us", timing.median_us),
        (None, Some(build)) if record.problem.is_none() => {
            format!(", {:.0} s of the compiler", build.seconds)
        }
        _ => String::new(),
    };
    let why = record.message.as_ref().map_or(String::new(), |why| format!(": {why}"));
    format!("{state}{problem}: {name}{figure}{why}")
}

/// Returns a state as text.
pub fn word(state: State) -> &'static str {
    match state {
        State::Invalid => "invalid",
        State::CompileError => "compile error",
        State::Deferred => "deferred",
        State::NoMma => "no MMA",
        State::Built => "built",
        State::Refused => "refused",
        State::LaunchError => "launch error",
        State::Wrong => "wrong",
        State::Slow => "slow",
        State::Good => "good",
    }
}

/// Returns the remaining time as text.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}
