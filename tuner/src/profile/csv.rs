//! A parser for ncu's CSV output. A quoted field may contain commas, quotes and line ends.

/// Parses all records; `None` if a quote is not closed.
pub(super) fn records(text: &str) -> Option<Vec<Vec<String>>> {
    let mut records = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (record, after) = record(rest)?;
        // An empty line is not a record.
        if record.len() > 1 || !record[0].is_empty() {
            records.push(record);
        }
        rest = after;
    }
    Some(records)
}

/// Parses the first record. Returns it and the remaining text.
fn record(text: &str) -> Option<(Vec<String>, &str)> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let field;
        (field, rest) = match rest.strip_prefix('"') {
            Some(quoted) => self::quoted(quoted)?,
            None => {
                let end = rest.find([',', '\n']).unwrap_or(rest.len());
                (rest[..end].trim_end_matches('\r').to_owned(), &rest[end..])
            }
        };
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
                return Some((fields, &rest[end..]));
            }
        }
    }
}

/// Parses a field after its opening quote. Returns it and the text after the closing quote. Two quotes in a row are one
/// quote of the field.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                field.push('"');
                rest = more;
            }
            None => return Some((field, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_hold_commas_quotes_and_line_ends() {
        let text = "\"a\",\"b, c\",\"d \"\"e\"\"\"\r\n\n1,,\"x\ny\"\n";
        let expected = [vec!["a", "b, c", "d \"e\""], vec!["1", "", "x\ny"]];
        assert_eq!(records(text).unwrap(), expected);
    }

    #[test]
    fn a_text_that_ends_within_a_field_has_no_records() {
        assert_eq!(records("\"a\",\"b"), None);
        assert_eq!(records(""), Some(vec![]));
        assert_eq!(records("a,b"), Some(vec![vec!["a".to_owned(), "b".to_owned()]]));
    }
}
