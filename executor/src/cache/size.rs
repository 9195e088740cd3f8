//! Parsing and formatting of sizes.

use super::error::CacheError;

const UNITS: [(&str, u32); 4] = [("K", 1), ("M", 2), ("G", 3), ("T", 4)];

/// Parses a size in bytes: a number, with an optional unit from `K` to `T`. A decimal point requires a unit. `K`,
/// `KB` and `KiB` all mean 1024 bytes.
///
/// # Errors
/// [`CacheError::Size`] when the text is not a size.
pub fn parse_size(text: &str) -> Result<u64, CacheError> {
    let error = || CacheError::Size { value: text.to_owned() };
    let trimmed = text.trim();
    let end = trimmed.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    if unit.is_empty() {
        return number.parse().map_err(|_| error());
    }
    let (_, power) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?;
    let bytes = number.parse::<f64>().map_err(|_| error())? * 1024f64.powi(power.cast_signed());
    // Conservative bound: larger values do not fit a file size.
    if bytes.is_finite() && bytes < 2f64.powi(63) { Ok(bytes as u64) } else { Err(error()) }
}

/// Formats a size with a binary unit, such as `1.4 MiB`.
pub fn human_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut name = "B";
    for (unit, _) in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        name = match unit {
            "K" => "KiB",
            "M" => "MiB",
            "G" => "GiB",
            _ => "TiB",
        };
    }
    if name == "B" { format!("{bytes} B") } else { format!("{value:.1} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let cases = [
            ("0", 0),
            ("123", 123),
            (" 7 b ", 7),
            ("1K", 1024),
            ("1.5 KiB", 1536),
            ("500M", 500 << 20),
            ("4GiB", 4 << 30),
            ("2 TB", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for wrong in ["", "x", "-1", "1.5", "4 GiBs", "1e3", "99999999T", "99999999999999999999", "..K", "K"]
        {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            ["0 B", "1023 B", "1.0 KiB", "4.0 GiB"],
            [0, 1023, 1024, 4 << 30].map(human_size).each_ref().map(|s| s.as_str())
        );
    }
}
