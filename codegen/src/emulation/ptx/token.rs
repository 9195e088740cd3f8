//! Splits a PTX text into tokens that cover it without gaps.

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// White space.
    Blank,
    /// A comment: `// ..` without its newline, or `/* .. */`.
    Comment,
    /// A string literal with its quotes.
    String,
    /// A name, a number, a directive, or an opcode with its modifiers.
    Word,
    /// Any other single character.
    Symbol,
    /// A comment or a string that the end of the text cuts off.
    Unterminated,
}

/// A token and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub kind: TokenKind,
    pub text: &'a str,
    /// The byte offset in the whole text.
    pub offset: usize,
}

impl Token<'_> {
    /// Returns the byte offset after the token.
    pub fn end(&self) -> usize {
        self.offset + self.text.len()
    }

    /// Returns true for a symbol with this text.
    pub fn is(&self, symbol: &str) -> bool {
        self.kind == TokenKind::Symbol && self.text == symbol
    }

    /// Returns true for a word that begins with a dot, as directives and modifiers do.
    pub fn is_dotted(&self) -> bool {
        self.kind == TokenKind::Word && self.text.starts_with('.')
    }
}

/// Returns the tokens of a text. Their texts joined are the text, whatever it is.
pub(super) fn tokenize(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    while let Some(rest) = text.get(offset..).filter(|rest| !rest.is_empty()) {
        let (kind, length) = first(rest);
        tokens.push(Token { kind, text: &rest[..length], offset });
        offset += length;
    }
    tokens
}

/// Returns the kind and the length in bytes of the first token of a text that is not empty.
fn first(text: &str) -> (TokenKind, usize) {
    let length_while = |accept: fn(char) -> bool| text.find(|c| !accept(c)).unwrap_or(text.len());
    if text.starts_with("//") {
        return (TokenKind::Comment, length_while(|c| c != '\n'));
    }
    if let Some(inside) = text.strip_prefix("/*") {
        return match inside.find("*/") {
            Some(length) => (TokenKind::Comment, length + 4),
            None => (TokenKind::Unterminated, text.len()),
        };
    }
    match text.chars().next() {
        Some('"') => string(text),
        Some(c) if c.is_whitespace() => (TokenKind::Blank, length_while(char::is_whitespace)),
        Some(c) if is_word(c) => (TokenKind::Word, word(text)),
        c => (TokenKind::Symbol, c.map_or(0, char::len_utf8)),
    }
}

/// Measures a string literal; a backslash escapes the next character.
fn string(text: &str) -> (TokenKind, usize) {
    let mut escaped = true; // The opening quote does not end the string.
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return (TokenKind::String, at + 1),
            _ => {}
        }
    }
    (TokenKind::Unterminated, text.len())
}

/// Measures a word. `::` between two word characters belongs to it, as in `shared::cta`.
fn word(text: &str) -> usize {
    let mut length = 0;
    loop {
        let rest = &text[length..];
        length += rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        match text[length..].strip_prefix("::") {
            Some(next) if next.starts_with(is_word) => length += 2,
            _ => return length,
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}
