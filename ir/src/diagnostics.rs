//! Errors with their places in the source text, rendered with the offending line.

use std::ops::Range;

use codespan_reporting::diagnostic::{Diagnostic as Report, Label};
use codespan_reporting::files::{self, Files, SimpleFile};
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

/// The part of a program that an error is about.
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

/// Source spans of the parts of a parsed program. Kept apart from the module, so that equal programs compare equal.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// The function's name.
    pub module: Span,
    /// The inputs, by position.
    pub inputs: Vec<Span>,
    /// The ops, by index.
    pub ops: Vec<Span>,
    /// The outputs, by position.
    pub outputs: Vec<Span>,
}

impl Spans {
    /// The span of a place; `None` if it has none.
    pub fn of(&self, place: Place) -> Option<Span> {
        match place {
            Place::Module => Some(self.module),
            Place::Input(index) => self.inputs.get(index).copied(),
            Place::Op(op) => self.ops.get(op.index()).copied(),
            Place::Output(index) => self.outputs.get(index).copied(),
        }
    }
}

/// One error about a program, ready to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// A stable code, such as `shape_mismatch`.
    pub code: &'static str,
    /// The error text.
    pub message: String,
    /// The place in the source text.
    pub span: Option<Span>,
    /// The op as text. Shown for programs without source text, such as those from a builder.
    pub op: Option<String>,
    /// Related facts, which begin with `note: `, and remedies, which begin with `help: `.
    pub notes: Vec<String>,
}

impl Diagnostic {
    /// The line and column at which the error starts, both from 1; columns are characters.
    pub fn line_and_column(&self, source: &str) -> Option<(usize, usize)> {
        let start = self.span?.start as usize;
        let before = source.get(..start)?;
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Some((line, column))
    }

    /// Renders the error with its source line; the text ends in a newline. A line of more than 240 characters is cut
    /// to the part around the error. Without a span, the op's text is shown instead of the source line.
    pub fn render(&self, file: &str, source: &str) -> String {
        let span = self.span.map(|span| span.start as usize..span.end as usize);
        match span.clone().and_then(|span| Window::around(file, source, span)) {
            Some(window) => self.render_in(&window, Some(window.span.clone())),
            None => self.render_in(&SimpleFile::new(file, source), span),
        }
    }

    fn render_in<'a>(&self, file: &'a impl Files<'a, FileId = ()>, span: Option<Range<usize>>) -> String {
        let mut notes = self.notes.clone();
        let mut labels = Vec::new();
        match (span, &self.op) {
            (Some(span), _) => labels.push(Label::primary((), span)),
            (None, Some(op)) => notes.insert(0, format!("note: in `{op}`")),
            (None, None) => {}
        }
        let report = Report::error()
            .with_code(self.code)
            .with_message(&self.message)
            .with_labels(labels)
            .with_notes(notes);
        term::emit_into_string(&term::Config::default(), file, &report)
            .unwrap_or_else(|_| format!("error[{}]: {}\n", self.code, self.message))
    }
}

/// Lines of more characters are cut. An op with its types can take two hundred.
const MAX_WHOLE: usize = 240;

/// Characters shown of a line that is cut.
const MAX_SHOWN: usize = 160;

/// Characters shown before the error, if the error itself has to be cut.
const SHOWN_BEFORE: usize = 20;

/// Part of one long line, presented to the renderer as if it were the whole file.
struct Window<'a> {
    name: &'a str,
    /// The part shown, with an ellipsis at each cut.
    text: String,
    /// The error's bytes in `text`.
    span: Range<usize>,
    /// The line and column at which the error starts in the file, from 1.
    line: usize,
    column: usize,
}

impl<'a> Window<'a> {
    /// `None` if no line of the span is long enough to be cut.
    fn around(name: &'a str, source: &str, span: Range<usize>) -> Option<Window<'a>> {
        let start = source.floor_char_boundary(span.start);
        let end = source.ceil_char_boundary(span.end).max(start);
        let line_start = source[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let end_of_line = |from: usize| source[from..].find('\n').map_or(source.len(), |at| from + at);
        let is_long = |line: &str| line.chars().nth(MAX_WHOLE).is_some();
        if !source[line_start..end_of_line(end)].split('\n').any(is_long) {
            return None;
        }
        let line_end = end_of_line(start);
        let (before, rest) = (&source[line_start..start], &source[start..line_end]);
        let marked = source[start..end.min(line_end)].chars().take(MAX_SHOWN).count();
        let shown_before =
            if marked < MAX_SHOWN - 2 * SHOWN_BEFORE { (MAX_SHOWN - marked) / 2 } else { SHOWN_BEFORE };
        let shown_start =
            before.char_indices().rev().take(shown_before).last().map_or(start, |(at, _)| line_start + at);
        let shown_after = MAX_SHOWN - source[shown_start..start].chars().count();
        let shown_end = rest.char_indices().nth(shown_after).map_or(line_end, |(at, _)| start + at);
        let cut = |is_cut: bool| if is_cut { "…" } else { "" };
        let (head, tail) = (cut(line_start < shown_start), cut(shown_end < line_end));
        let in_text = |at: usize| at.min(shown_end) - shown_start + head.len();
        Some(Window {
            name,
            text: format!("{head}{}{tail}", &source[shown_start..shown_end]),
            span: in_text(start)..in_text(end),
            line: source[..start].matches('\n').count() + 1,
            column: before.chars().count() + 1,
        })
    }
}

impl<'a> Files<'a> for Window<'_> {
    type FileId = ();
    type Name = &'a str;
    type Source = &'a str;

    fn name(&'a self, (): ()) -> Result<&'a str, files::Error> {
        Ok(self.name)
    }
    fn source(&'a self, (): ()) -> Result<&'a str, files::Error> {
        Ok(&self.text)
    }
    fn line_index(&'a self, (): (), _byte: usize) -> Result<usize, files::Error> {
        Ok(0)
    }
    fn line_number(&'a self, (): (), _line: usize) -> Result<usize, files::Error> {
        Ok(self.line)
    }
    fn column_number(&'a self, (): (), _line: usize, _byte: usize) -> Result<usize, files::Error> {
        Ok(self.column)
    }
    fn line_range(&'a self, (): (), _line: usize) -> Result<Range<usize>, files::Error> {
        Ok(0..self.text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn render(source: &str, span: Range<usize>) -> String {
        let span = Some(Span { start: span.start as u32, end: span.end as u32 });
        let diagnostic =
            Diagnostic { code: "some_code", message: "wrong".to_owned(), span, op: None, notes: Vec::new() };
        let text = diagnostic.render("x.fir", source);
        if let Some((line, column)) = diagnostic.line_and_column(source) {
            assert!(text.contains(&format!("x.fir:{line}:{column}\n")), "{text}");
        }
        text
    }

    /// The source line and the `^` marks below it, without the gutter.
    fn shown(text: &str) -> (&str, &str) {
        let mut lines = text.lines().skip_while(|line| !line.trim_end().ends_with('│')).skip(1);
        let mut next =
            || lines.next().and_then(|line| line.split_once("│ ")).expect("a line after a gutter").1;
        (next(), next())
    }

    #[test]
    fn a_line_of_ordinary_length_is_shown_whole() {
        let source = format!("first\n{}\nlast\n", "ä".repeat(240));
        let text = render(&source, 6..8);
        assert_eq!(shown(&text), ("ä".repeat(240).as_str(), "^"));
    }

    #[test]
    fn of_a_long_line_what_surrounds_the_error_is_shown() {
        let long = format!("{}[ERROR]{}", "ä€".repeat(1000), "x".repeat(4_000_000));
        let at = long.find('[').unwrap();
        let source = format!("first\nsecond\n{long}\nlast\n");
        let text = render(&source, at + 13..at + 20);
        assert!(text.chars().count() < 600, "{}", text.len());
        let (line, marks) = shown(&text);
        assert_eq!(line.chars().count(), 160 + 2);
        assert!(line.starts_with("…ä€") || line.starts_with("…€ä"), "{line}");
        assert!(line.ends_with("x…"));
        let marked: String =
            line.chars().zip(marks.chars()).filter(|(_, mark)| *mark == '^').map(|(c, _)| c).collect();
        assert_eq!(marked, "[ERROR]");
    }

    #[test]
    fn an_error_longer_than_what_is_shown_is_cut() {
        for source in ["y".repeat(5000), format!("{}\n{}", "y".repeat(5000), "z".repeat(5000))] {
            let text = render(&source, 100..source.len());
            let (line, marks) = shown(&text);
            assert_eq!(line, format!("…{}…", "y".repeat(160)));
            assert_eq!(marks.trim(), "^".repeat(140));
        }
        // A span over several short lines is shown whole; with one long line only the first line is shown.
        let source = format!("{}\n{}\n", "y".repeat(30), "z".repeat(5000));
        let text = render(&source, 10..200);
        assert_eq!(
            shown(&text),
            ("y".repeat(30).as_str(), format!("{}{}", " ".repeat(10), "^".repeat(20)).as_str())
        );
    }

    #[test]
    fn the_ends_of_a_long_line_are_not_cut() {
        let source = format!("{}\n", "0123456789".repeat(100));
        let text = render(&source, 0..3);
        assert_eq!(shown(&text), (format!("{}…", "0123456789".repeat(16)).as_str(), "^^^"));
        let text = render(&source, 998..1000);
        let (line, marks) = shown(&text);
        assert!(line.starts_with('…') && line.ends_with("789"));
        assert!(marks.trim_start() == "^^" && marks.chars().count() == line.chars().count());
        // Spans at the end of the line, and beyond the end of the source.
        for span in [1000..1000, 1000..1001, 5000..6000, 998..9000] {
            assert!(render(&source, span).chars().count() < 600);
        }
    }
}
