//! Shows the progress of builds: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use fourfold::Event;
use fourfold::ir::memory::check_memory;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress of one command, on stderr.
pub struct Progress {
    /// The bar, hidden until the number of kernels is known.
    bar: ProgressBar,
    /// True if stderr is a terminal and people read it.
    is_shown: bool,
    ticker: Once,
    /// The kernels that are being built or waited for, in the order in which they started.
    busy: Mutex<Vec<(Arc<str>, &'static str)>>,
}

impl Progress {
    /// Creates the progress display; `quiet`, for scripts, prints plain lines.
    pub fn new(quiet: bool) -> Progress {
        let template = "{spinner} {pos} of {len} kernels, {elapsed}: {wide_msg}";
        let style = ProgressStyle::with_template(template);
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let is_shown = !quiet && std::io::stderr().is_terminal();
        Progress { bar, is_shown, ticker: Once::new(), busy: Mutex::default() }
    }

    /// Shows an event.
    pub fn event(&self, event: &Event) {
        self.follow(event);
        // The bar shows what is in progress; results and errors stay above it.
        if !self.is_shown {
            if !matches!(event, Event::Needed { .. }) {
                tell!("{event}");
            }
        } else if matches!(
            event,
            Event::Finished { .. } | Event::Failed { .. } | Event::Refused { .. } | Event::Note(_)
        ) {
            self.bar.suspend(|| tell!("{event}"));
        }
    }

    fn follow(&self, event: &Event) {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Needed { kernels } => {
                self.bar.set_length(*kernels as u64);
                self.bar.set_position(0);
                self.bar.reset_elapsed();
                if self.is_shown {
                    self.bar.set_draw_target(ProgressDrawTarget::stderr());
                    self.ticker.call_once(|| tick(&self.bar));
                }
            }
            Event::Started { kernel, .. } => note(&mut busy, kernel, "building"),
            Event::Waiting { kernel, .. } => note(&mut busy, kernel, "waiting for"),
            event if event.is_end() => {
                busy.retain(|(kernel, _)| Some(kernel) != event.kernel());
                self.bar.inc(1);
            }
            _ => {}
        }
        let words: Vec<String> = busy.iter().map(|(kernel, what)| format!("{what} {kernel}")).collect();
        self.bar.set_message(words.join(", "));
        if self.bar.length().is_some_and(|length| self.bar.position() >= length) {
            self.bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Makes a bar spin and count seconds until it is finished. If no thread can be created, it moves with events
/// only; the bar's own ticker would panic.
pub fn tick(bar: &ProgressBar) {
    const TICK: Duration = Duration::from_millis(200);
    let bar = bar.downgrade();
    let work = move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            thread::sleep(TICK);
        }
    };
    // A thread that starts without memory ends the process.
    const ROOM: usize = 8 << 20;
    if check_memory(ROOM).is_ok() {
        let _ = thread::Builder::new().name("progress".to_owned()).spawn(work);
    }
}

fn note(busy: &mut Vec<(Arc<str>, &'static str)>, kernel: &Arc<str>, what: &'static str) {
    match busy.iter_mut().find(|(known, _)| known == kernel) {
        Some((_, old)) => *old = what,
        None => busy.push((Arc::clone(kernel), what)),
    }
}
