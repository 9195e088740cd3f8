//! Splits a text into tokens, one at a time and without allocating.

use crate::diagnostics::Span;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `%name`
    Value,
    /// `@name`
    Function,
    /// A mnemonic, keyword, symbol, element type or attribute name.
    Word,
    /// Text that begins with a digit or `-`. The parser checks that it is well-formed.
    Number,
    LeftParen,
    RightParen,
    LeftBrace,
    RightBrace,
    LeftBracket,
    RightBracket,
    Less,
    Greater,
    Comma,
    Colon,
    Equals,
    Star,
    /// The end of the text.
    End,
    /// A character that starts no token, or a `%` or `@` without a name.
    Unknown,
}

/// A token and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    /// True if the token is the first of its line.
    pub on_new_line: bool,
    pub span: Span,
}

/// A position in a text, and its token. The parser copies a cursor to look ahead and to backtrack.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'s> {
    source: &'s str,
    position: usize,
    /// The current token.
    pub token: Token,
    /// The end of the previous token.
    pub previous_end: u32,
}

impl<'s> Cursor<'s> {
    /// Starts at the first token of a text of at most `u32::MAX` bytes.
    pub fn new(source: &'s str) -> Cursor<'s> {
        let nothing = Token { kind: Kind::Unknown, on_new_line: true, span: Span::default() };
        let position = if source.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let mut cursor = Cursor { source, position, token: nothing, previous_end: 0 };
        cursor.bump();
        cursor.token.on_new_line = true;
        cursor
    }

    /// The text of a span.
    pub fn slice(&self, span: Span) -> &'s str {
        &self.source[span.start as usize..span.end as usize]
    }

    /// The text of the current token.
    pub fn text(&self) -> &'s str {
        self.slice(self.token.span)
    }

    /// Returns true if the current token is this word.
    pub fn is_word(&self, word: &str) -> bool {
        self.token.kind == Kind::Word && self.text() == word
    }

    /// Advances to the next token; at the end of the text, does nothing.
    pub fn bump(&mut self) {
        self.previous_end = self.token.span.end;
        let bytes = self.source.as_bytes();
        let mut start = self.position;
        let mut on_new_line = false;
        loop {
            match bytes.get(start) {
                Some(b' ' | b'\t' | b'\r') => start += 1,
                Some(b'\n') => {
                    on_new_line = true;
                    start += 1;
                }
                Some(b';') => {
                    start += bytes[start..].iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - start);
                }
                _ => break,
            }
        }
        let (kind, end) = match bytes.get(start) {
            None => (Kind::End, start),
            Some(first) => self.scan(*first, start),
        };
        self.position = end;
        self.token = Token { kind, on_new_line, span: Span { start: start as u32, end: end as u32 } };
    }

    fn scan(&self, first: u8, start: usize) -> (Kind, usize) {
        let bytes = self.source.as_bytes();
        let next = start + 1;
        match first {
            b'%' | b'@' => {
                let end = name_end(bytes, next);
                let kind = if first == b'%' { Kind::Value } else { Kind::Function };
                (if end == next { Kind::Unknown } else { kind }, end)
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => (Kind::Word, name_end(bytes, next)),
            b'0'..=b'9' => (Kind::Number, number_end(bytes, start)),
            b'-' if bytes.get(next).is_some_and(|byte| is_name(*byte)) => {
                (Kind::Number, number_end(bytes, next))
            }
            b'(' => (Kind::LeftParen, next),
            b')' => (Kind::RightParen, next),
            b'{' => (Kind::LeftBrace, next),
            b'}' => (Kind::RightBrace, next),
            b'[' => (Kind::LeftBracket, next),
            b']' => (Kind::RightBracket, next),
            b'<' => (Kind::Less, next),
            b'>' => (Kind::Greater, next),
            b',' => (Kind::Comma, next),
            b':' => (Kind::Colon, next),
            b'=' => (Kind::Equals, next),
            b'*' => (Kind::Star, next),
            _ => {
                let character = self.source[start..].chars().next();
                (Kind::Unknown, start + character.map_or(1, char::len_utf8))
            }
        }
    }
}

/// Returns true for the bytes of names.
pub(super) const fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.'
}

static NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_name(byte as u8);
        byte += 1;
    }
    table
};

fn name_end(bytes: &[u8], from: usize) -> usize {
    let mut end = from;
    while end < bytes.len() && NAME_BYTES[bytes[end] as usize] {
        end += 1;
    }
    end
}

/// The end of the longest text that could be meant as one number. A sign continues it after an exponent's `e`.
fn number_end(bytes: &[u8], from: usize) -> usize {
    let mut end = name_end(bytes, from);
    while matches!(bytes.get(end), Some(b'+' | b'-')) && matches!(bytes[end - 1], b'e' | b'E') {
        end = name_end(bytes, end + 1);
    }
    end
}
