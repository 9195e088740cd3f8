//! What is shown of where kernels come from: URLs without what may be secret in them.

/// A text without what may be secret in the URLs in it: who logs in how, and what comes after a `?` or a `#`.
pub fn without_credentials(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || ",`'\"".contains(c);
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, url)) = split(rest) {
        let (url, after) = url.split_at(url.find(is_end).unwrap_or(url.len()));
        shown.push_str(before);
        push_url(&mut shown, url);
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// What is shown of a place, which is a folder or a URL as a whole, whatever characters are in it.
pub fn shown_place(place: &str) -> String {
    let Some((scheme, url)) = split(place) else { return place.to_owned() };
    let mut shown = scheme.to_owned();
    push_url(&mut shown, url);
    shown
}

/// A message about a place, which may name it in words of its own.
pub(super) fn shown_of(place: &str, message: &str) -> String {
    without_credentials(&message.replace(place, &shown_place(place)))
}

/// The text to the end of the first `://`, and what follows.
fn split(text: &str) -> Option<(&str, &str)> {
    const MARK: &str = "://";
    text.find(MARK).map(|at| text.split_at(at + MARK.len()))
}

/// Writes what comes after the scheme.
fn push_url(shown: &mut String, url: &str) {
    let (place, secret) = match url.find(['?', '#']) {
        Some(at) => (&url[..at], &url[at..=at]),
        None => (url, ""),
    };
    let host = place.find('/').unwrap_or(place.len());
    let (login, place) = place[..host].rfind('@').map_or(("", place), |at| ("...", &place[at..]));
    for part in [login, place, secret] {
        shown.push_str(part);
    }
    if !secret.is_empty() {
        shown.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_what_may_be_secret() {
        for (value, shown) in [
            ("/srv/kernels,s3://kernels/v1", "/srv/kernels,s3://kernels/v1"),
            ("https://me:hunter2@host/a@b", "https://...@host/a@b"),
            ("/a, https://t@h:1/x?sig=hunter2", "/a, https://...@h:1/x?..."),
            ("https://host?key=x", "https://host?..."),
            ("https://host/x#sig=hunter2", "https://host/x#..."),
            ("/usr/bin:/bin", "/usr/bin:/bin"),
            (
                "the tier `https://me:x@h?y` cannot be used: s3://b",
                "the tier `https://...@h?...` cannot be used: s3://b",
            ),
        ] {
            assert_eq!(without_credentials(value), shown);
        }
    }

    #[test]
    fn a_place_as_a_whole_may_have_any_characters() {
        let place = "https://me:hun'ter 2@host/k?sig=`s3cr\"et` x";
        assert_eq!(shown_place(place), "https://...@host/k?...");
        assert_eq!(shown_place("/srv/a b?c"), "/srv/a b?c");
        let message = format!("cannot reach {place} at https://me:x@host/k/manifest.json?sig=s3cr");
        let shown = shown_of(place, &message);
        assert_eq!(shown, "cannot reach https://...@host/k?... at https://...@host/k/manifest.json?...");
    }
}
