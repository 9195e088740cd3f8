//! Finds the known word closest to a misspelt one.

/// Returns the known word that `word` is or misspells. Tolerates one letter added, dropped, changed or swapped,
/// and in longer words up to a third of the letters if the first one is right.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let is_near = |(distance, candidate): &(usize, &str)| {
        let longer = word.len().max(candidate.len());
        let same_start = word.as_bytes().first() == candidate.as_bytes().first();
        *distance == 0 || (*distance == 1 && longer > 3) || (*distance <= word.len() / 3 && same_start)
    };
    let distances =
        known.iter().map(|candidate| (distance(word.as_bytes(), candidate.as_bytes()), *candidate));
    distances.filter(is_near).min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// Returns the number of letters to add, drop, change or swap with the next.
fn distance(word: &[u8], known: &[u8]) -> usize {
    let mut rows = [vec![0; known.len() + 1], vec![0; known.len() + 1], (0..=known.len()).collect()];
    for (i, letter) in word.iter().enumerate() {
        rows.rotate_left(1);
        let [before_last, last, row] = &mut rows;
        row[0] = i + 1;
        for (j, other) in known.iter().enumerate() {
            let changed = last[j] + usize::from(letter != other);
            row[j + 1] = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == known[j - 1] && word[i - 1] == *other {
                row[j + 1] = row[j + 1].min(before_last[j - 1] + 1);
            }
        }
    }
    rows[2][known.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_counted() {
        for (word, known, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("sample", "sample", 0),
            ("smaple", "sample", 1),
            ("sampel", "sample", 1),
            ("simple", "sample", 1),
            ("samples", "sample", 1),
            ("ample", "sample", 1),
            ("expect", "expected", 2),
            ("ca", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(word.as_bytes(), known.as_bytes()), expected, "{word} {known}");
        }
    }

    #[test]
    fn short_words_are_near_by_one_letter_and_long_ones_by_a_third() {
        let known = ["run", "test", "sample", "tolerance"];
        for (word, expected) in [
            ("test", Some("test")),
            ("tests", Some("test")),
            ("last", None),
            ("rn", None),
            ("same", None),
            ("sumpel", Some("sample")),
            ("example", None),
            ("tolerable", Some("tolerance")),
            ("entrance", None),
        ] {
            assert_eq!(nearest(word, &known), expected, "{word}");
        }
    }
}
