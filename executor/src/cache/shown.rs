//! Redaction of credentials in URLs before they are printed.

/// Redacts URLs in a text: user information, and everything after a `?` or `#`.
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

/// Redacts a place that is as a whole a folder or a URL, whatever characters it contains.
pub fn shown_place(place: &str) -> String {
    let Some((scheme, url)) = split(place) else { return place.to_owned() };
    let mut shown = scheme.to_owned();
    push_url(&mut shown, url);
    shown
}

/// Redacts a message that may mention `place`, in full or in part.
pub(super) fn shown_of(place: &str, message: &str) -> String {
    without_credentials(&message.replace(place, &shown_place(place)))
}

/// Splits a text after its first `://`.
fn split(text: &str) -> Option<(&str, &str)> {
    const MARK: &str = "://";
    text.find(MARK).map(|at| text.split_at(at + MARK.len()))
}

/// Appends a URL's redacted part after the scheme.
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
                "cannot use the cache tier `https://me:x@h?y`: s3://b",
                "cannot use the cache tier `https://...@h?...`: s3://b",
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
