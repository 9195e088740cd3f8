//! Formatting of errors with their causes.

use std::error::Error;

/// Formats an error and its causes on one line. A cause is omitted if the text already contains its message.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let also = error.to_string();
        if !text.contains(&also) {
            text = format!("{text}: {also}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Link {
        words: &'static str,
        source: Option<Box<Link>>,
    }

    #[test]
    fn causes_are_named_once() {
        let link = |words, source: Option<Link>| Link { words, source: source.map(Box::new) };
        let error = link("cannot read: gone away", Some(link("gone away", Some(link("by itself", None)))));
        assert_eq!(chain(&error), "cannot read: gone away: by itself");
    }
}
