//! Collects the parser's errors and adds their notes.

use super::names::{NameMap, nearest};
use crate::diagnostics::{Diagnostic, Span};
use crate::entities::Value;
use crate::module::Module;

/// Parsing stops after this many errors, because later ones mostly follow from earlier ones.
const MAX_ERRORS: usize = 20;

/// An error was reported. The caller abandons the statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed;

/// The definition of a value.
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
    /// Uses without a definition, as positions in `list`. Their notes depend on later definitions.
    unknown: Vec<(usize, &'s str)>,
}

impl<'s> Errors<'s> {
    pub fn new(source: &'s str) -> Errors<'s> {
        Errors { source, list: Vec::new(), unknown: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns true if parsing stops because there are too many errors.
    pub fn is_full(&self) -> bool {
        self.list.len() >= MAX_ERRORS
    }

    /// Adds an error, unless the limit is reached.
    pub fn report(
        &mut self,
        code: &'static str,
        span: Span,
        message: String,
        note: Option<String>,
    ) -> Failed {
        /// The message may quote a name or a list, which can be as long as the text.
        const MAX_MESSAGE: usize = 300;
        if !self.is_full() {
            let message = shorten(&message, MAX_MESSAGE);
            let notes = note.into_iter().collect();
            self.list.push(Diagnostic { code, message, span: Some(span), op: None, notes });
        }
        Failed
    }

    /// Adds the error that `name` has no definition before `span`.
    pub fn unknown_value(&mut self, span: Span, name: &'s str) {
        if !self.is_full() {
            self.unknown.push((self.list.len(), name));
            self.report("unknown_value", span, format!("unknown value `%{}`", quoted(name)), None);
        }
    }

    /// The line (from 1) of a byte.
    pub fn line(&self, offset: u32) -> usize {
        1 + self.source.as_bytes()[..offset as usize].iter().filter(|byte| **byte == b'\n').count()
    }

    /// All errors in text order.
    pub fn finish(mut self, names: &NameMap<'s, Definition>, module: &Module) -> Vec<Diagnostic> {
        for (index, name) in std::mem::take(&mut self.unknown) {
            let used = self.list[index].span.unwrap_or_default().start;
            let note = self.note_on_unknown(name, used, names, module);
            self.list[index].notes.extend(note);
        }
        let full = self.is_full();
        self.list.sort_by_key(|error| error.span.map_or(0, |span| span.start));
        if let Some(last) = self.list.last_mut().filter(|_| full) {
            last.notes.push(format!("note: parsing stopped after {MAX_ERRORS} errors; there may be more"));
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
        /// Searching only the latest definitions for a similar name bounds the time in a large program.
        const CANDIDATES: usize = 2000;
        if let Some(definition) = names.get(name) {
            let line = self.line(definition.start);
            // Results are defined after the operands are parsed, so an earlier position is the op's own result.
            return Some(if definition.start < used {
                "note: it is a result of this op, and an op cannot use its own results".to_owned()
            } else {
                format!("note: it is defined at line {line}; a value must be defined before its uses")
            });
        }
        let earlier = |known: &&str| names.get(known).is_some_and(|definition| definition.start < used);
        let known =
            module.values.values().rev().take(CANDIDATES).map(|data| data.name.as_str()).filter(earlier);
        nearest(name, known).map(|known| format!("help: did you mean `%{known}`?"))
    }
}

/// Quotes a piece of the text for a message: escapes it and limits its length.
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
