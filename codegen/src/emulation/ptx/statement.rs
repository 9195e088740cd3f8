//! Splits the tokens of a PTX text into statements.

use std::ops::Range;

use super::error::{PtxText, RewriteError, RewriteProblem};
use super::token::{Token, TokenKind, tokenize};

/// The longest statement that an error message quotes, in characters.
const LONGEST_QUOTE: usize = 200;

/// The linkage words before a module-level declaration.
pub(super) const LINKAGE: [&str; 4] = [".visible", ".weak", ".extern", ".common"];

/// The kind of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StatementKind<'a> {
    /// `.version`, with the version.
    Version(&'a str),
    /// `.target`, with the architecture.
    Target(&'a str),
    /// `.address_size`, with the number of bits.
    AddressSize(&'a str),
    /// `{`.
    Open,
    /// `}`.
    Close,
    /// `name:`.
    Label,
    /// `;` alone.
    Empty,
    /// The header of an `.entry` or a `.func`, up to the `{` of its body, or with the `;` of a declaration.
    Function { entry: bool, name: &'a str, declared: bool },
    /// Any other directive, by its first word that is not about linkage.
    Directive(&'a str),
    /// An instruction.
    Instruction(Instruction<'a>),
}

/// An instruction: `@guard opcode operands;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction<'a> {
    /// The predicate, with `!` if negated.
    pub guard: Option<String>,
    /// The opcode with its modifiers.
    pub opcode: String,
    /// The operands of the instruction, commas included.
    pub operands: Vec<Token<'a>>,
}

/// A statement with its tokens, without blanks and comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement<'a> {
    pub kind: StatementKind<'a>,
    pub tokens: Vec<Token<'a>>,
}

impl Statement<'_> {
    /// Returns the bytes from the first token to the last.
    pub fn range(&self) -> Range<usize> {
        let start = self.tokens.first().map_or(0, |token| token.offset);
        start..self.tokens.last().map_or(start, Token::end)
    }

    /// Returns the words that begin with a dot.
    pub fn dotted(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().filter(|token| token.is_dotted()).map(|token| token.text)
    }

    /// Returns the statement on one line, with one space for each gap.
    pub fn quote(&self) -> String {
        quote(&self.tokens)
    }
}

/// A PTX text and its statements.
pub(super) struct Module<'a> {
    pub name: PtxText,
    pub text: &'a str,
    pub statements: Vec<Statement<'a>>,
}

impl<'a> Module<'a> {
    /// Parses a text.
    pub fn parse(name: PtxText, text: &'a str) -> Result<Module<'a>, RewriteError> {
        let mut parser = Parser { name, text, tokens: significant(tokenize(text)), next: 0 };
        let mut statements = Vec::new();
        while parser.next < parser.tokens.len() {
            let start = parser.next;
            let kind = parser
                .statement()
                .map_err(|problem| parser.error(&parser.tokens[start..parser.next], problem))?;
            statements.push(Statement { kind, tokens: parser.tokens[start..parser.next].to_vec() });
        }
        Ok(Module { name, text, statements })
    }

    /// Returns the error for a statement of the text.
    pub fn error(&self, statement: &Statement<'_>, problem: RewriteProblem) -> RewriteError {
        error(self.name, self.text, &statement.tokens, problem)
    }

    /// Returns the error at the end of the text.
    pub fn error_at_end(&self, problem: RewriteProblem) -> RewriteError {
        let end = Token { kind: TokenKind::Blank, text: "", offset: self.text.len() };
        error(self.name, self.text, &[end], problem)
    }
}

fn significant(mut tokens: Vec<Token<'_>>) -> Vec<Token<'_>> {
    tokens.retain(|token| !matches!(token.kind, TokenKind::Blank | TokenKind::Comment));
    tokens
}

fn quote(tokens: &[Token<'_>]) -> String {
    let mut quote = String::new();
    let mut end = tokens.first().map_or(0, |token| token.offset);
    for token in tokens {
        if token.offset > end {
            quote.push(' ');
        }
        quote.extend(token.text.split('\n'));
        end = token.end();
    }
    quote
}

fn error(name: PtxText, text: &str, tokens: &[Token<'_>], problem: RewriteProblem) -> RewriteError {
    let offset = tokens.first().map_or(text.len(), |token| token.offset);
    let line = 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    let quoted = quote(tokens);
    let mut statement: String = quoted.chars().take(LONGEST_QUOTE).collect();
    if statement.len() < quoted.len() {
        statement.push_str("...");
    }
    RewriteError { text: name, line, statement, problem }
}

/// The significant tokens of a text, and a position among them.
struct Parser<'a> {
    name: PtxText,
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, tokens: &[Token<'a>], problem: RewriteProblem) -> RewriteError {
        error(self.name, self.text, tokens, problem)
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.next).copied()
    }

    /// Takes the next token.
    fn take(&mut self) -> Result<Token<'a>, RewriteProblem> {
        let token = self.peek().ok_or(RewriteProblem::Unterminated)?;
        self.next += 1;
        match token.kind {
            TokenKind::Unterminated => Err(RewriteProblem::Unterminated),
            _ => Ok(token),
        }
    }

    fn word(&mut self) -> Result<&'a str, RewriteProblem> {
        let token = self.take()?;
        (token.kind == TokenKind::Word).then_some(token.text).ok_or(RewriteProblem::Structure)
    }

    fn statement(&mut self) -> Result<StatementKind<'a>, RewriteProblem> {
        let first = self.take()?;
        match (first.kind, first.text) {
            (TokenKind::Symbol, "{") => Ok(StatementKind::Open),
            (TokenKind::Symbol, "}") => Ok(StatementKind::Close),
            (TokenKind::Symbol, ";") => Ok(StatementKind::Empty),
            (TokenKind::Symbol, "@") => {
                let negated = self.peek().is_some_and(|token| token.is("!"));
                self.next += usize::from(negated);
                let guard = format!("{}{}", if negated { "!" } else { "" }, self.word()?);
                let opcode = self.word()?;
                self.instruction(Some(guard), opcode)
            }
            (TokenKind::Word, _) if first.is_dotted() => self.directive(first),
            (TokenKind::Word, opcode) => match self.peek() {
                Some(token) if token.is(":") => {
                    self.next += 1;
                    Ok(StatementKind::Label)
                }
                _ => self.instruction(None, opcode),
            },
            _ => Err(RewriteProblem::Structure),
        }
    }

    /// Parses an instruction after the first word of its opcode.
    fn instruction(
        &mut self,
        guard: Option<String>,
        opcode: &str,
    ) -> Result<StatementKind<'a>, RewriteProblem> {
        let mut opcode = opcode.to_owned();
        while let Some(token) = self.peek().filter(Token::is_dotted) {
            opcode.push_str(token.text);
            self.next += 1;
        }
        let start = self.next;
        self.semicolon()?;
        let operands = self.tokens[start..self.next - 1].to_vec();
        Ok(StatementKind::Instruction(Instruction { guard, opcode, operands }))
    }

    /// Parses a directive after its first word.
    fn directive(&mut self, first: Token<'a>) -> Result<StatementKind<'a>, RewriteProblem> {
        let mut name = first.text;
        while LINKAGE.contains(&name) {
            name = self.word()?;
        }
        match name {
            ".version" => Ok(StatementKind::Version(self.word()?)),
            ".address_size" => Ok(StatementKind::AddressSize(self.word()?)),
            ".target" => {
                let architecture = self.word()?;
                while self.peek().is_some_and(|token| token.is(",")) {
                    self.next += 1;
                    self.word()?;
                }
                Ok(StatementKind::Target(architecture))
            }
            ".entry" | ".func" => self.function(name == ".entry"),
            ".section" => {
                self.word()?;
                self.braces()?;
                Ok(StatementKind::Directive(name))
            }
            ".file" | ".loc" => {
                self.line()?;
                Ok(StatementKind::Directive(name))
            }
            _ => {
                self.semicolon()?;
                Ok(StatementKind::Directive(name))
            }
        }
    }

    /// Parses the header of a function after `.entry` or `.func`.
    fn function(&mut self, entry: bool) -> Result<StatementKind<'a>, RewriteProblem> {
        let (mut name, mut depth) = (None, 0_usize);
        loop {
            let token = self.peek().ok_or(RewriteProblem::Unterminated)?;
            if depth == 0 && (token.is("{") || token.is(";")) {
                let declared = token.is(";");
                self.next += usize::from(declared);
                let name = name.ok_or(RewriteProblem::Structure)?;
                return Ok(StatementKind::Function { entry, name, declared });
            }
            self.take()?;
            match token.text {
                "(" => depth += 1,
                ")" => depth = depth.checked_sub(1).ok_or(RewriteProblem::Structure)?,
                text if depth == 0 && token.kind == TokenKind::Word && !token.is_dotted() => {
                    name.get_or_insert(text);
                }
                _ => {}
            }
        }
    }

    /// Takes the tokens up to the next semicolon, included. Braces group operands and initializers.
    fn semicolon(&mut self) -> Result<(), RewriteProblem> {
        let mut depth = 0_usize;
        loop {
            let token = self.take()?;
            match token.text {
                "{" => depth += 1,
                "}" => depth = depth.checked_sub(1).ok_or(RewriteProblem::Structure)?,
                ";" if depth == 0 => return Ok(()),
                ";" => return Err(RewriteProblem::Structure),
                _ => {}
            }
        }
    }

    /// Takes the tokens from a brace to its partner.
    fn braces(&mut self) -> Result<(), RewriteProblem> {
        let mut depth = 0_usize;
        loop {
            match self.take()?.text {
                "{" => depth += 1,
                "}" => depth = depth.checked_sub(1).ok_or(RewriteProblem::Structure)?,
                _ if depth == 0 => return Err(RewriteProblem::Structure),
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Takes the tokens up to the end of the line.
    fn line(&mut self) -> Result<(), RewriteProblem> {
        let mut end = self.next.checked_sub(1).and_then(|last| self.tokens.get(last)).map_or(0, Token::end);
        while let Some(token) = self.peek() {
            if self.text.get(end..token.offset).is_none_or(|gap| gap.contains('\n')) {
                break;
            }
            end = self.take()?.end();
        }
        Ok(())
    }
}
