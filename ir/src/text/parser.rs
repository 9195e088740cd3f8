//! Parses a program by recursive descent. After an error, continues with the next statement.

use super::errors::{Definition, Errors, Failed, quoted};
use super::lexer::{Cursor, Kind, Token};
use super::names::{NameMap, nearest};
use super::{Parsed, VERSION};
use crate::diagnostics::{Diagnostic, Span, Spans};
use crate::entities::{Entity, Symbol, Value};
use crate::module::{Module, Operation, ValueData, ValueDef};
use crate::ops::{AttributeError, AttributeValue, OpKind};
use crate::types::TensorType;

/// The maximum number of attributes, and of named operands, of one op. No op takes nearly as many. Bounds the quadratic
/// check for repeated names.
const MAX_NAMED: usize = 16;

/// Parses a text of at most `max_len` bytes, itself at most `u32::MAX`.
pub(super) fn parse(source: &str, max_len: usize) -> Result<Parsed, Vec<Diagnostic>> {
    if source.len() > max_len {
        let message = format!("the text has {} bytes; the limit is {max_len}", source.len());
        return Err(vec![Diagnostic { code: "too_large", message, span: None, op: None, notes: Vec::new() }]);
    }
    let mut parser = Parser::new(source);
    // `errors` holds the failures.
    let _ = parser.program();
    if parser.errors.is_empty() {
        Ok(Parsed { module: parser.module, spans: parser.spans })
    } else {
        Err(parser.errors.finish(&parser.names, &parser.module))
    }
}

/// The state of the parser. After an error the module is malformed and serves only for suggestions.
pub(super) struct Parser<'s> {
    pub(super) cursor: Cursor<'s>,
    pub(super) module: Module,
    pub(super) symbols: NameMap<'s, Symbol>,
    pub(super) errors: Errors<'s>,
    /// The symbols of the extent being parsed.
    pub(super) factors: Vec<&'s str>,
    spans: Spans,
    names: NameMap<'s, Definition>,
    statement: Statement<'s>,
}

/// The parts of the op being parsed. Reused between ops to save allocations.
struct Statement<'s> {
    /// The point from which to search for the next statement if this one fails.
    resume: Cursor<'s>,
    /// The spans of the result names, `%` included.
    results: Vec<Span>,
    attributes: Vec<(&'s str, AttributeValue)>,
    /// The names and the values of the attributes.
    attribute_spans: Vec<(Span, Span)>,
    named: Vec<&'s str>,
    /// The name's span and the operand.
    named_operands: Vec<(Span, Value)>,
    types: Vec<TensorType>,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str) -> Parser<'s> {
        /// The typical length of a line, to size the map in advance.
        const BYTES_PER_NAME: usize = 100;
        let cursor = Cursor::new(source);
        Parser {
            cursor,
            module: Module::new(""),
            symbols: NameMap::default(),
            errors: Errors::new(source),
            factors: Vec::new(),
            spans: Spans::default(),
            names: NameMap::with_capacity_and_hasher(source.len() / BYTES_PER_NAME, Default::default()),
            statement: Statement {
                resume: cursor,
                results: Vec::new(),
                attributes: Vec::new(),
                attribute_spans: Vec::new(),
                named: Vec::new(),
                named_operands: Vec::new(),
                types: Vec::new(),
            },
        }
    }

    fn program(&mut self) -> Result<(), Failed> {
        self.version()?;
        self.signature()?;
        self.body()?;
        if self.cursor.token.kind != Kind::End {
            let found = describe(&self.cursor);
            let message = format!("expected the end of the file after the function's `}}`, found {found}");
            let note = "note: a file contains one function".to_owned();
            return Err(self.errors.report("syntax", self.cursor.token.span, message, Some(note)));
        }
        Ok(())
    }

    fn version(&mut self) -> Result<(), Failed> {
        if !self.cursor.is_word("fir") {
            let message =
                format!("expected `fir {VERSION}` as the first line, found {}", describe(&self.cursor));
            let note = format!("help: begin the file with `fir {VERSION}`, the version of the text form");
            let failed = self.errors.report("bad_version", self.cursor.token.span, message, Some(note));
            return if self.cursor.is_word("func") { Ok(()) } else { Err(failed) };
        }
        self.cursor.bump();
        let version = self.expect(Kind::Number, "the version of the text form after `fir`")?;
        let text = self.cursor.slice(version.span);
        if text != VERSION {
            let message =
                format!("version {} of the text form is not supported; use version {VERSION}", quoted(text));
            return Err(self.errors.report("bad_version", version.span, message, None));
        }
        if !self.cursor.token.on_new_line && self.cursor.token.kind != Kind::End {
            return Err(self.expected("the end of the line after the version"));
        }
        Ok(())
    }

    fn signature(&mut self) -> Result<(), Failed> {
        if !self.cursor.is_word("func") {
            return Err(self.expected("`func`"));
        }
        self.cursor.bump();
        let name = self.expect(Kind::Function, "the function's name, such as `@main`")?;
        self.cursor.slice(name.span)[1..].clone_into(&mut self.module.name);
        self.spans.module = name.span;
        self.expect(Kind::LeftParen, "`(` and the inputs")?;
        if self.cursor.token.kind != Kind::RightParen {
            while self.input().is_ok() || self.recover_input()? {}
        }
        // After a failure the cursor may already be at the brace.
        if self.errors.is_empty() || self.cursor.token.kind == Kind::RightParen {
            self.expect(Kind::RightParen, "`,` or `)` after an input")?;
        }
        self.expect(Kind::LeftBrace, "`{` and the function's body")?;
        Ok(())
    }

    /// Parses one input and the comma after it. Fails without an error if there is no comma.
    fn input(&mut self) -> Result<(), Failed> {
        let start = self.cursor.token.span.start;
        let param = self.cursor.is_word("param");
        if param {
            self.cursor.bump();
        }
        let token = self.expect(Kind::Value, "an input such as `%x: tensor<[M, 384], bf16>`")?;
        let index = self.module.inputs.len();
        let value = Value::from_index(self.module.values.len());
        let name = self.define(token.span, value);
        self.expect(Kind::Colon, "`:` and the input's type")?;
        let ty = self.tensor_type()?;
        self.module.values.push(ValueData {
            name: name.to_owned(),
            ty,
            def: ValueDef::Input { index, param },
        });
        self.module.inputs.push(value);
        self.spans.inputs.push(Span { start, end: self.cursor.previous_end });
        if self.cursor.token.kind != Kind::Comma && self.cursor.token.kind != Kind::RightParen {
            return Err(self.expected("`,` or `)` after an input"));
        }
        if self.eat(Kind::Comma) { Ok(()) } else { Err(Failed) }
    }

    /// Returns true if another input follows. After the last input or an error, skips to the next input or to the `)`
    /// or `{` that ends the inputs.
    fn recover_input(&mut self) -> Result<bool, Failed> {
        loop {
            let mut next = self.cursor;
            next.bump();
            match self.cursor.token.kind {
                Kind::End => return Err(Failed),
                _ if self.errors.is_full() => return Err(Failed),
                Kind::LeftBrace => return Ok(false),
                Kind::RightParen if self.errors.is_empty() || next.token.kind == Kind::LeftBrace => {
                    return Ok(false);
                }
                Kind::Comma if next.token.kind == Kind::Value || next.is_word("param") => {
                    self.cursor = next;
                    return Ok(true);
                }
                _ => self.cursor = next,
            }
        }
    }

    fn body(&mut self) -> Result<(), Failed> {
        loop {
            if self.errors.is_full() {
                return Err(Failed);
            }
            let start = self.cursor.token.span.start;
            self.statement.resume = self.cursor;
            self.statement.results.clear();
            let done = match self.cursor.token.kind {
                Kind::Value => self.op(),
                Kind::Word if self.cursor.is_word("return") => return self.finish(),
                Kind::RightBrace => {
                    if self.errors.is_empty() {
                        let message = "the function has no `return`".to_owned();
                        let note = "help: end it with the outputs, such as `return %y`".to_owned();
                        self.errors.report("syntax", self.cursor.token.span, message, Some(note));
                    }
                    self.cursor.bump();
                    return Ok(());
                }
                Kind::End => return Err(self.expected("a statement, or `}` to close the function")),
                _ => Err(self.not_a_statement()),
            };
            if done.is_err() {
                self.recover(start)?;
            }
        }
    }

    fn not_a_statement(&mut self) -> Failed {
        let found = describe(&self.cursor);
        let message = format!("expected a statement, found {found}");
        let text = self.cursor.text();
        let note = match nearest(text, std::iter::once("return")) {
            Some(word) => format!("help: did you mean `{word}`?"),
            None if self.cursor.token.kind == Kind::Word => {
                format!("help: name the results: `%name = {} ... : type`", quoted(text))
            }
            None => "help: write `%name = op ... : type` or `return ...`".to_owned(),
        };
        self.errors.report("syntax", self.cursor.token.span, message, Some(note))
    }

    /// Skips to the likely start of the next statement or end of the function: a line that begins with `return`, `}`,
    /// or names followed by `=`. Fails at the end of the text.
    fn recover(&mut self, statement_start: u32) -> Result<(), Failed> {
        // Defines the statement's results, so that their uses cause no further errors.
        for result in &self.statement.results {
            let start = result.start;
            let definition = Definition { value: Value::from_index(0), start };
            self.names.entry(&self.cursor.slice(*result)[1..]).or_insert(definition);
        }
        let mut cursor = self.statement.resume;
        let mut braces = 0usize;
        loop {
            let mut next = cursor;
            next.bump();
            let begins_line = cursor.token.on_new_line && cursor.token.span.start > statement_start;
            let found = match cursor.token.kind {
                Kind::End => return Err(Failed),
                Kind::LeftBrace => {
                    braces += 1;
                    false
                }
                Kind::RightBrace if next.token.kind == Kind::End => true,
                Kind::RightBrace if braces > 0 => {
                    braces -= 1;
                    false
                }
                Kind::RightBrace => begins_line,
                Kind::Word => begins_line && cursor.is_word("return"),
                Kind::Value if begins_line => {
                    // Continuing after the names keeps the time linear.
                    next = after_names(cursor);
                    next.token.kind == Kind::Equals
                }
                _ => false,
            };
            if found {
                self.cursor = cursor;
                return Ok(());
            }
            cursor = next;
        }
    }

    /// `%q, %s = block_quantize %y, %g {block = 16} : type, type`
    fn op(&mut self) -> Result<(), Failed> {
        let start = self.cursor.token.span.start;
        loop {
            let result = self.expect(Kind::Value, "the name of a result, such as `%y`")?;
            self.statement.results.push(result.span);
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::Equals, "`=` after the names of the results")?;
        self.statement.resume = self.cursor;
        if self.cursor.is_word("return") {
            return Err(self.expected("the name of an op, such as `relu`"));
        }
        let mnemonic = self.expect(Kind::Word, "the name of an op, such as `relu`")?;
        let mut operands = self.operands()?;
        self.attributes()?;
        let before_colon = if self.statement.attributes.is_empty() {
            "`:` and the result types, or `,` and an operand, or attributes in `{}`"
        } else {
            "`:` and the result types"
        };
        self.expect(Kind::Colon, before_colon)?;
        let types_start = self.cursor.token.span.start;
        self.statement.types.clear();
        loop {
            let ty = self.tensor_type()?;
            self.statement.types.push(ty);
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        let end = self.cursor.previous_end;
        self.check_result_count(Span { start: types_start, end })?;
        let text = self.cursor.slice(mnemonic.span);
        let kind = OpKind::from_text(text, &self.statement.attributes, operands.len(), &self.statement.named)
            .map_err(|error| self.not_an_op(mnemonic, error))?;
        if !self.statement.named.is_empty() {
            for name in kind.named_operands() {
                let position = self.statement.named.iter().position(|named| *named == name);
                operands.extend(position.map(|position| self.statement.named_operands[position].1));
            }
        }
        self.push_op(kind, operands);
        self.spans.ops.push(Span { start, end });
        Ok(())
    }

    fn push_op(&mut self, kind: OpKind, operands: Vec<Value>) {
        let op = Entity::from_index(self.module.ops.len());
        let mut results = Vec::with_capacity(self.statement.results.len());
        let mut types = std::mem::take(&mut self.statement.types);
        for (index, ty) in types.drain(..).enumerate() {
            let value = Value::from_index(self.module.values.len());
            let name = self.define(self.statement.results[index], value).to_owned();
            self.module.values.push(ValueData { name, ty, def: ValueDef::Result { op, index } });
            results.push(value);
        }
        self.statement.types = types;
        self.module.ops.push(Operation { kind, operands, results });
    }

    /// Parses the operands. Returns the positional ones and leaves the named ones in the statement.
    fn operands(&mut self) -> Result<Vec<Value>, Failed> {
        self.statement.named.clear();
        self.statement.named_operands.clear();
        let mut operands = Vec::new();
        const WHAT: &str = "an operand such as `%x` or `alpha = %x`";
        if !matches!(self.cursor.token.kind, Kind::Value | Kind::Word) || self.cursor.is_word("return") {
            return Ok(operands);
        }
        loop {
            match self.cursor.token.kind {
                Kind::Value if !self.statement.named.is_empty() => {
                    let message = "a positional operand follows a named one".to_owned();
                    return Err(self.errors.report("bad_operand", self.cursor.token.span, message, None));
                }
                Kind::Value => operands.push(self.operand(WHAT)?),
                Kind::Word if !self.cursor.is_word("return") => self.named_operand()?,
                _ => return Err(self.expected(WHAT)),
            }
            if !self.eat(Kind::Comma) {
                return Ok(operands);
            }
        }
    }

    fn named_operand(&mut self) -> Result<(), Failed> {
        let (name, span) = (self.cursor.text(), self.cursor.token.span);
        self.cursor.bump();
        self.expect(Kind::Equals, "`=` after the name of an operand")?;
        let message = if self.statement.named.contains(&name) {
            format!("the operand `{}` is given twice", quoted(name))
        } else if self.statement.named.len() == MAX_NAMED {
            format!("an op has at most {MAX_NAMED} named operands")
        } else if self.cursor.token.kind == Kind::Value {
            self.statement.named.push(name);
            let operand = self.operand("a value such as `%x`")?;
            self.statement.named_operands.push((span, operand));
            return Ok(());
        } else {
            return Err(self.expected("a value such as `%x`"));
        };
        Err(self.errors.report("bad_operand", span, message, None))
    }

    /// Parses an operand. An unknown value that starts the next statement means that the operand, described by
    /// `what`, is missing.
    fn operand(&mut self, what: &str) -> Result<Value, Failed> {
        let Token { span, on_new_line, .. } = self.cursor.token;
        let name = &self.cursor.text()[1..];
        if let Some(definition) = self.names.get(name) {
            self.cursor.bump();
            return Ok(definition.value);
        }
        if self.errors.is_full() {
            return Err(Failed);
        }
        if on_new_line && after_names(self.cursor).token.kind == Kind::Equals {
            return Err(self.expected(what));
        }
        self.errors.unknown_value(span, name);
        self.cursor.bump();
        Ok(Value::from_index(0))
    }

    fn attributes(&mut self) -> Result<(), Failed> {
        self.statement.attributes.clear();
        self.statement.attribute_spans.clear();
        if !self.eat(Kind::LeftBrace) || self.eat(Kind::RightBrace) {
            return Ok(());
        }
        loop {
            let token = self.expect(Kind::Word, "the name of an attribute, such as `block`")?;
            let name = self.cursor.slice(token.span);
            let message = if self.statement.attributes.iter().any(|(known, _)| *known == name) {
                Some(format!("the attribute `{}` is given twice", quoted(name)))
            } else if self.statement.attributes.len() == MAX_NAMED {
                Some(format!("an op has at most {MAX_NAMED} attributes"))
            } else {
                None
            };
            if let Some(message) = message {
                return Err(self.errors.report("bad_attribute", token.span, message, None));
            }
            self.expect(Kind::Equals, "`=` and the attribute's value")?;
            let start = self.cursor.token.span.start;
            let value = self.attribute_value()?;
            let span = Span { start, end: self.cursor.previous_end };
            self.statement.attributes.push((name, value));
            self.statement.attribute_spans.push((token.span, span));
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RightBrace, "`,` or `}` after an attribute")?;
        Ok(())
    }

    fn check_result_count(&mut self, types: Span) -> Result<(), Failed> {
        let count =
            |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let (results, found) = (self.statement.results.len(), self.statement.types.len());
        if results == found {
            return Ok(());
        }
        let message = format!("the op has {} but {}", count(results, "result"), count(found, "result type"));
        let note = "help: write one type for each result, separated by commas".to_owned();
        Err(self.errors.report("result_count", types, message, Some(note)))
    }

    fn not_an_op(&mut self, mnemonic: Token, error: AttributeError) -> Failed {
        let statement = &self.statement;
        let attribute = |name: &str| statement.attributes.iter().position(|(known, _)| *known == name);
        let (code, span, note) = match &error {
            AttributeError::UnknownOp(name) => {
                let note = match nearest(name, OpKind::mnemonics()) {
                    Some(known) => format!("help: did you mean `{known}`?"),
                    None => {
                        format!("note: the ops are {}", OpKind::mnemonics().collect::<Vec<_>>().join(", "))
                    }
                };
                ("unknown_op", None, Some(note))
            }
            AttributeError::UnknownAttribute { name, .. } => {
                ("bad_attribute", attribute(name).map(|index| statement.attribute_spans[index].0), None)
            }
            AttributeError::Missing { name, .. } => {
                let note = format!("help: write `{{{name} = ...}}` after the operands");
                ("bad_attribute", None, Some(note))
            }
            AttributeError::Invalid { name, .. } => {
                ("bad_attribute", attribute(name).map(|index| statement.attribute_spans[index].1), None)
            }
            AttributeError::UnknownNamedOperand { name, .. } => {
                let position = statement.named.iter().position(|known| known == name);
                ("bad_operand", position.map(|position| statement.named_operands[position].0), None)
            }
        };
        self.errors.report(code, span.unwrap_or(mnemonic.span), error.to_string(), note)
    }

    /// Parses `return %a, %b` and the `}` after it.
    fn finish(&mut self) -> Result<(), Failed> {
        self.cursor.bump();
        let mut what = "`}` after `return`, which ends the function";
        if self.cursor.token.kind == Kind::Value {
            loop {
                if self.cursor.token.kind != Kind::Value {
                    return Err(self.expected(what));
                }
                let span = self.cursor.token.span;
                let output = self.operand(what)?;
                self.module.outputs.push(output);
                self.spans.outputs.push(span);
                if !self.eat(Kind::Comma) {
                    break;
                }
                what = "an output such as `%y`";
            }
        }
        self.expect(Kind::RightBrace, "`}` after `return`, which ends the function")?;
        Ok(())
    }

    /// Defines a value under the name at `span`, and returns the name without `%`.
    fn define(&mut self, span: Span, value: Value) -> &'s str {
        let name = &self.cursor.slice(span)[1..];
        let definition = Definition { value, start: span.start };
        let first = *self.names.entry(name).or_insert(definition);
        if first.start != span.start {
            let message = format!("`%{}` is defined twice", quoted(name));
            let note = format!("note: the first definition is at line {}", self.errors.line(first.start));
            self.errors.report("duplicate_value", span, message, Some(note));
        }
        name
    }

    /// Consumes the current token if it has this kind.
    pub(super) fn eat(&mut self, kind: Kind) -> bool {
        let found = self.cursor.token.kind == kind;
        if found {
            self.cursor.bump();
        }
        found
    }

    /// Consumes the current token, which must have this kind. `what` describes it in the error.
    pub(super) fn expect(&mut self, kind: Kind, what: &str) -> Result<Token, Failed> {
        let token = self.cursor.token;
        if token.kind != kind {
            return Err(self.expected(what));
        }
        self.cursor.bump();
        Ok(token)
    }

    /// Reports that the current token is not `what`.
    #[cold]
    pub(super) fn expected(&mut self, what: &str) -> Failed {
        let token = self.cursor.token;
        let starts_statement =
            matches!(token.kind, Kind::Value | Kind::RightBrace) || self.cursor.is_word("return");
        // Point to the end of the line or file where the text is missing, not to the next statement.
        let end = self.cursor.previous_end;
        let (span, found) = if token.kind == Kind::End {
            (Span { start: end, end }, describe(&self.cursor))
        } else if token.on_new_line && starts_statement && end > 0 {
            (Span { start: end, end }, "the end of the line".to_owned())
        } else {
            (token.span, describe(&self.cursor))
        };
        let text = self.cursor.text();
        let note = match (token.kind, text) {
            (Kind::Unknown, "%" | "@") => {
                Some(format!("help: write a name of letters, digits, `_` and `.` after `{text}`"))
            }
            (Kind::Unknown, _) if !text.is_ascii() => {
                Some("note: names consist of ASCII letters, digits, `_` and `.`".to_owned())
            }
            _ => None,
        };
        self.errors.report("syntax", span, format!("expected {what}, found {found}"), note)
    }
}

/// Moves a cursor at `%name, %name` past the names.
fn after_names(mut cursor: Cursor) -> Cursor {
    cursor.bump();
    while cursor.token.kind == Kind::Comma {
        cursor.bump();
        if cursor.token.kind != Kind::Value {
            break;
        }
        cursor.bump();
    }
    cursor
}

/// Describes the current token for a message.
fn describe(cursor: &Cursor) -> String {
    let text = quoted(cursor.text());
    match cursor.token.kind {
        Kind::End => "the end of the file".to_owned(),
        Kind::Value => format!("the value `{text}`"),
        Kind::Number => format!("the number `{text}`"),
        Kind::Unknown => format!("the character `{text}`"),
        _ => format!("`{text}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_beyond_the_limit_is_refused_before_it_is_read() {
        let errors = parse("fir 1 and more", 10).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].code, "too_large");
        assert_eq!(errors[0].message, "the text has 14 bytes; the limit is 10");
    }
}
