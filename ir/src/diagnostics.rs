//! Errors with a place, rendered with the offending line.

use codespan_reporting::diagnostic::{Diagnostic as Report, Label};
use codespan_reporting::files::SimpleFile;
use codespan_reporting::term;

use crate::entities::{Entity, Op};

/// A range of bytes in a source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// A part of a program that an error can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The program as a whole.
    Module,
    /// An input, by position.
    Input(usize),
    /// An op.
    Op(Op),
    /// A program output, by position.
    Output(usize),
}

/// Where the parts of a parsed program stand in its text. Kept beside the module, which stays free of it.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// The function's name.
    pub module: Span,
    /// By position.
    pub inputs: Vec<Span>,
    /// By op index.
    pub ops: Vec<Span>,
    /// By position.
    pub outputs: Vec<Span>,
}

impl Spans {
    /// The text of a place, when it has one.
    pub fn of(&self, place: Place) -> Option<Span> {
        match place {
            Place::Module => Some(self.module),
            Place::Input(index) => self.inputs.get(index).copied(),
            Place::Op(op) => self.ops.get(op.index()).copied(),
            Place::Output(index) => self.outputs.get(index).copied(),
        }
    }
}

/// One error about a program, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// A stable code, such as `shape_mismatch`.
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// Where, in the source text.
    pub span: Option<Span>,
    /// The op as text, for programs that came from a builder and have no source.
    pub op: Option<String>,
    /// What to do, and related facts.
    pub notes: Vec<String>,
}

impl Diagnostic {
    /// The line and column (from 1, in characters) where the error starts.
    pub fn line_and_column(&self, source: &str) -> Option<(usize, usize)> {
        let start = self.span?.start as usize;
        let before = source.get(..start)?;
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Some((line, column))
    }

    /// The error with its source line, ending in a newline. Without a place in the source, the op's text
    /// stands in for it.
    pub fn render(&self, file: &str, source: &str) -> String {
        let mut notes = self.notes.clone();
        let mut labels = Vec::new();
        match (self.span, &self.op) {
            (Some(span), _) => labels.push(Label::primary((), span.start as usize..span.end as usize)),
            (None, Some(op)) => notes.insert(0, format!("in `{op}`")),
            (None, None) => {}
        }
        let report = Report::error()
            .with_code(self.code)
            .with_message(&self.message)
            .with_labels(labels)
            .with_notes(notes);
        let file = SimpleFile::new(file, source);
        term::emit_into_string(&term::Config::default(), &file, &report)
            .unwrap_or_else(|_| format!("error[{}]: {}\n", self.code, self.message))
    }
}
