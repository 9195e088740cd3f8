//! Collects the parser's errors and works out their notes.

use super::names::{NameMap, nearest};
use crate::diagnostics::{Diagnostic, Span};
use crate::entities::Value;
use crate::module::Module;

/// Parsing stops after this many errors: later ones mostly follow from earlier ones.
const MAX_ERRORS: usize = 20;

/// An error was reported; the caller gives up what it was parsing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed;

/// Where a value is defined.
#[derive(Clone, Copy)]
pub(super) struct Definition {
    pub value: Value,
    /// The first byte of the name.
    pub start: u32,
}

/// The errors so far.
pub(super) struct Errors<'s> {
    source: &'s str,
    list: Vec<Diagnostic>,
    /// Positions in `list` of uses without a definition; what to say about them is only known at the end.
    unknown: Vec<(usize, &'s str)>,
}

impl<'s> Errors<'s> {
    pub fn new(source: &'s str) -> Errors<'s> {
        Errors { source, list: Vec::new(), unknown: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there are so many that parsing stops.
    pub fn is_full(&self) -> bool {
        self.list.len() >= MAX_ERRORS
    }

    /// Adds an error, if there is room.
    pub fn report(
        &mut self,
        code: &'static str,
        span: Span,
        message: String,
        note: Option<String>,
    ) -> Failed {
        /// A name or a list may be as long as the text.
        const MAX_MESSAGE: usize = 300;
        if !self.is_full() {
            let message = shorten(&message, MAX_MESSAGE);
            let notes = note.into_iter().collect();
            self.list.push(Diagnostic { code, message, span: Some(span), op: None, notes });
        }
        Failed
    }

    /// Adds the error that nothing before `span` defines `name`.
    pub fn unknown_value(&mut self, span: Span, name: &'s str) {
        if !self.is_full() {
            self.unknown.push((self.list.len(), name));
            self.report("unknown_value", span, format!("there is no value `%{}`", quoted(name)), None);
        }
    }

    /// The line (from 1) of a byte.
    pub fn line(&self, offset: u32) -> usize {
        1 + self.source.as_bytes()[..offset as usize].iter().filter(|byte| **byte == b'\n').count()
    }

    /// All errors in the order of the text.
    pub fn finish(mut self, names: &NameMap<'s, Definition>, module: &Module) -> Vec<Diagnostic> {
        for (index, name) in std::mem::take(&mut self.unknown) {
            let used = self.list[index].span.unwrap_or_default().start;
            let note = self.note_on_unknown(name, used, names, module);
            self.list[index].notes.extend(note);
        }
        let full = self.is_full();
        self.list.sort_by_key(|error| error.span.map_or(0, |span| span.start));
        if let Some(last) = self.list.last_mut().filter(|_| full) {
            last.notes.push(format!("parsing stopped here, after {MAX_ERRORS} errors; there may be more"));
        }
        self.list
    }

    fn note_on_unknown(
        &self,
        name: &str,
        used: u32,
        names: &NameMap<'s, Definition>,
        module: &Module,
    ) -> Option<String> {
        /// The latest definitions are searched for a similar name, so that a large program does not wait for it.
        const CANDIDATES: usize = 2000;
        if let Some(definition) = names.get(name) {
            let line = self.line(definition.start);
            // Results are entered after the operands are read, so an earlier definition is the op's own result.
            return Some(if definition.start < used {
                "it is a result of this op, and an op cannot use its own results".to_owned()
            } else {
                format!("it is defined later, at line {line}; a value must be defined before its uses")
            });
        }
        let earlier = |known: &&str| names.get(known).is_some_and(|definition| definition.start < used);
        let known =
            module.values.values().rev().take(CANDIDATES).map(|data| data.name.as_str()).filter(earlier);
        nearest(name, known).map(|known| format!("did you mean `%{known}`?"))
    }
}

/// A piece of the text as messages quote it: printable and not too long.
pub(super) fn quoted(text: &str) -> String {
    const MAX_QUOTE: usize = 40;
    let start: String = text.chars().take(MAX_QUOTE + 1).collect();
    shorten(&start.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\""), MAX_QUOTE)
}

fn shorten(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
