//! Parses types and attribute values.

use super::errors::{Failed, quoted};
use super::lexer::Kind;
use super::names::nearest;
use super::parser::Parser;
use crate::diagnostics::Span;
use crate::entities::Symbol;
use crate::ops::AttributeValue;
use crate::types::{Dim, ElementType, ScaleLayout, TensorType};

/// The maximum number of extents of a type, and of symbols of an extent. Real programs stay far below. Later stages
/// form products of extents, whose cost grows with the square of this number.
const MAX_RANK: usize = 64;

impl<'s> Parser<'s> {
    /// `tensor<[M, 384], f8E4M3FN, linear>`
    pub(super) fn tensor_type(&mut self) -> Result<TensorType, Failed> {
        if !self.cursor.is_word("tensor") {
            return Err(self.expected("a type such as `tensor<[M, 384], bf16>`"));
        }
        let start = self.cursor.token.span.start;
        self.cursor.bump();
        self.expect(Kind::Less, "`<` after `tensor`")?;
        self.expect(Kind::LeftBracket, "`[` and the extents")?;
        let mut shape = Vec::with_capacity(2);
        if !self.eat(Kind::RightBracket) {
            loop {
                shape.push(self.dim()?);
                if !self.eat(Kind::Comma) {
                    break;
                }
                if shape.len() == MAX_RANK {
                    let span = Span { start, end: self.cursor.previous_end };
                    let message = format!("a type has at most {MAX_RANK} extents");
                    return Err(self.errors.report("bad_type", span, message, None));
                }
            }
            self.expect(Kind::RightBracket, "`,` or `]` after an extent")?;
        }
        self.expect(Kind::Comma, "`,` and the element type")?;
        let element = self.element_type()?;
        let layout = if self.eat(Kind::Comma) { Some(self.layout()?) } else { None };
        let end = if layout.is_some() { "`>`" } else { "`>`, or `,` and a scale layout" };
        self.expect(Kind::Greater, end)?;
        Ok(TensorType { shape, element, layout })
    }

    fn element_type(&mut self) -> Result<ElementType, Failed> {
        let token = self.expect(Kind::Word, "an element type such as `bf16`")?;
        let text = self.cursor.slice(token.span);
        element_from_bytes(text.as_bytes()).ok_or_else(|| {
            let names = ElementType::ALL.map(ElementType::name);
            let note = match nearest(text, names.into_iter()) {
                Some(name) => format!("help: did you mean `{name}`?"),
                None => format!("note: the element types are {}", names.join(", ")),
            };
            let message = format!("unknown element type `{}`", quoted(text));
            self.errors.report("bad_type", token.span, message, Some(note))
        })
    }

    fn layout(&mut self) -> Result<ScaleLayout, Failed> {
        let token = self.expect(Kind::Word, "a scale layout, `linear` or `blocked`")?;
        match self.cursor.slice(token.span) {
            "linear" => Ok(ScaleLayout::Linear),
            "blocked" => Ok(ScaleLayout::Blocked),
            other => {
                let message =
                    format!("expected the scale layout `linear` or `blocked`, found `{}`", quoted(other));
                Err(self.errors.report("bad_type", token.span, message, None))
            }
        }
    }

    /// `384`, `M`, `4*B*S`
    fn dim(&mut self) -> Result<Dim, Failed> {
        let start = self.cursor.token.span.start;
        let mut constant: Option<u64> = Some(1);
        self.factors.clear();
        loop {
            let text = self.cursor.text();
            match self.cursor.token.kind {
                Kind::Number => {
                    constant = self.extent(text)?.zip(constant).and_then(|(a, b)| a.checked_mul(b))
                }
                Kind::Word => self.factors.push(text),
                _ => return Err(self.expected("an extent such as `384`, `M` or `4*B*S`")),
            }
            self.cursor.bump();
            if !self.eat(Kind::Star) {
                break;
            }
        }
        let span = Span { start, end: self.cursor.previous_end };
        let Some(constant) = constant else {
            let message = format!("the extent `{}` does not fit 64 bits", quoted(self.cursor.slice(span)));
            return Err(self.errors.report("bad_type", span, message, None));
        };
        if self.factors.len() > MAX_RANK {
            let message = format!("an extent has at most {MAX_RANK} symbols");
            return Err(self.errors.report("bad_type", span, message, None));
        }
        // A zero extent drops its symbols, so they are not interned.
        Ok(match self.factors.as_slice() {
            [] => Dim::fixed(constant),
            _ if constant == 0 => Dim::fixed(0),
            _ => {
                let symbols = (0..self.factors.len()).map(|index| self.symbol(self.factors[index])).collect();
                Dim::product(constant, symbols)
            }
        })
    }

    /// The value of a digit string; `None` if it exceeds 64 bits.
    fn extent(&mut self, text: &str) -> Result<Option<u64>, Failed> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(text.parse().ok());
        }
        let message = format!("expected an extent, found `{}`", quoted(text));
        let note =
            "help: write an extent as a whole number, a symbol, or a product such as `4*B*S`".to_owned();
        Err(self.errors.report("bad_type", self.cursor.token.span, message, Some(note)))
    }

    fn symbol(&mut self, name: &'s str) -> Symbol {
        let module = &mut self.module;
        *self.symbols.entry(name).or_insert_with(|| module.symbols.push(name.to_owned()))
    }

    /// `16`, `floor`, `[1, -2.5, inf]`
    pub(super) fn attribute_value(&mut self) -> Result<AttributeValue, Failed> {
        match self.cursor.token.kind {
            Kind::Word if !matches!(self.cursor.text(), "inf" | "nan") => {
                let word = self.cursor.text().to_owned();
                self.cursor.bump();
                Ok(AttributeValue::Word(word))
            }
            Kind::Word | Kind::Number => Ok(AttributeValue::Number(self.number()?)),
            Kind::LeftBracket => {
                self.cursor.bump();
                let mut numbers = Vec::new();
                if !self.eat(Kind::RightBracket) {
                    loop {
                        numbers.push(self.number()?);
                        if !self.eat(Kind::Comma) {
                            break;
                        }
                    }
                    self.expect(Kind::RightBracket, "`,` or `]` after a number")?;
                }
                Ok(AttributeValue::Numbers(numbers))
            }
            _ => Err(self.expected("a number, a word, or a list such as `[0, 1]`")),
        }
    }

    fn number(&mut self) -> Result<f64, Failed> {
        let text = self.cursor.text();
        let number = match self.cursor.token.kind {
            Kind::Number => number_from_text(text),
            Kind::Word if text == "inf" => Some(f64::INFINITY),
            Kind::Word if text == "nan" => Some(f64::NAN),
            _ => return Err(self.expected("a number")),
        };
        let number = number.ok_or_else(|| {
            let message = format!("`{}` is not a number", quoted(text));
            let note = "help: write a number as `16`, `-1.5`, `1e-12`, `inf`, `-inf` or `nan`".to_owned();
            self.errors.report("bad_number", self.cursor.token.span, message, Some(note))
        })?;
        if number.is_infinite() && !text.ends_with("inf") {
            let message = format!("`{}` is too large for a 64-bit float", quoted(text));
            let note = "help: write `inf` or `-inf` for infinity".to_owned();
            return Err(self.errors.report("bad_number", self.cursor.token.span, message, Some(note)));
        }
        self.cursor.bump();
        Ok(number)
    }
}

/// Does the same as [`ElementType::from_name`] with one match instead of a search.
fn element_from_bytes(name: &[u8]) -> Option<ElementType> {
    Some(match name {
        b"f4E2M1FN" => ElementType::F4E2M1FN,
        b"f6E2M3FN" => ElementType::F6E2M3FN,
        b"f6E3M2FN" => ElementType::F6E3M2FN,
        b"f8E4M3FN" => ElementType::F8E4M3FN,
        b"f8E5M2" => ElementType::F8E5M2,
        b"f8E8M0FNU" => ElementType::F8E8M0FNU,
        b"f16" => ElementType::F16,
        b"bf16" => ElementType::BF16,
        b"f32" => ElementType::F32,
        b"i32" => ElementType::I32,
        b"i1" => ElementType::I1,
        _ => return None,
    })
}

/// Parses a number. Stricter than `str::parse`, which also accepts `1.`, `.5`, `infinity` and `+1`.
fn number_from_text(text: &str) -> Option<f64> {
    /// An integer of at most 15 digits is exact in f64.
    const EXACT_DIGITS: usize = 15;
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if text.len() <= EXACT_DIGITS && digits(text) == text.len() {
        return Some(text.bytes().fold(0u64, |number, byte| 10 * number + u64::from(byte - b'0')) as f64);
    }
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    if magnitude == "inf" {
        return Some(f64::NEG_INFINITY);
    }
    let whole = digits(magnitude);
    let mut rest = &magnitude[whole..];
    let mut well_formed = whole > 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        well_formed &= digits(fraction) > 0;
        rest = &fraction[digits(fraction)..];
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        well_formed &= digits(exponent) > 0;
        rest = &exponent[digits(exponent)..];
    }
    if well_formed && rest.is_empty() { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_are_matched_as_their_names_say() {
        for element in ElementType::ALL {
            assert_eq!(element_from_bytes(element.name().as_bytes()), Some(element));
        }
        assert_eq!(element_from_bytes(b"F32"), None);
    }

    #[test]
    fn numbers_follow_the_grammar_and_nothing_looser() {
        for (text, number) in [("0", 0.0), ("-0", -0.0), ("007", 7.0), ("1.50", 1.5), ("-1E+3", -1000.0)] {
            assert_eq!(number_from_text(text).map(f64::to_bits), Some(f64::to_bits(number)), "{text}");
        }
        assert_eq!(number_from_text("-inf"), Some(f64::NEG_INFINITY));
        assert_eq!(number_from_text("9007199254740993"), Some(9007199254740992.0));
        for text in
            ["1.", ".5", "1.e5", "1e", "1e+", "1.2.3", "-", "-nan", "--1", "0x10", "1_000", "-infinity"]
        {
            assert_eq!(number_from_text(text), None, "{text}");
        }
    }
}
