//! Amounts of bytes as people write them: `512MiB`, `1.5 GB`, `1048576`. For `value` and
//! `show`.

/// Units, the longer spelling first; those with an `i` count in powers of two.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// What messages show.
pub const EXAMPLES: &str = "536870912 or 512MiB";

/// A number with a unit; the letters' case is of no concern. `None` for anything else, a number that is no whole
/// number of bytes among it.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let factor = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || part.len() > 9 {
        return None;
    }
    let digits = u128::from(whole.parse::<u64>().ok()?);
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let part = if part.is_empty() { 0 } else { part.parse::<u128>().ok()? };
    let scaled = digits.checked_mul(scale)?.checked_add(part)?.checked_mul(u128::from(factor))?;
    if scaled % scale != 0 {
        return None;
    }
    u64::try_from(scaled / scale).ok()
}

/// In the largest unit of two that it is a whole number of.
#[must_use]
pub fn show(bytes: u64) -> String {
    let units = UNITS[..4].iter().rev();
    let fits = |factor: u64| bytes > 0 && bytes.is_multiple_of(factor);
    match units.into_iter().find(|(_, factor)| fits(*factor)) {
        Some((name, factor)) => format!("{}{name}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("17B", 17),
            (" 1KiB ", 1024),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "512",
            "MiB",
            "-1MiB",
            "1.MiB",
            ".5MiB",
            "1.2.3MiB",
            "0.3B",
            "5 apples",
            "99999999999TiB",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_as_the_same() {
        for bytes in [1, 1000, 1024, 1 << 20, (1 << 20) + 1, 3 << 29, u64::MAX >> 12] {
            assert_eq!(parse(&show(bytes)), Some(bytes), "{}", show(bytes));
        }
        assert_eq!(show(512 << 20), "512MiB");
    }
}
