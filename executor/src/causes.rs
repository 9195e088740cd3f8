//! An error in words, with what caused it.

use std::error::Error;

/// An error with its causes, on one line. A cause whose words are there already, as many errors repeat them, is left out.
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
