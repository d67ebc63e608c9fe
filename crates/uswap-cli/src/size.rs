//! Sizes as people write and read them: `512M`, `2G`, `1.5GiB`; 148.9 MiB.

/// What each suffix multiplies by. As in swapon(8) and systemd, `M` is the binary mega; `MB` is the decimal
/// one, as in coreutils.
const SUFFIXES: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// 2^64 bytes, which no number of them is.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

/// Reads a size in bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = (&text[..digits], text[digits..].trim_start());
    if number.is_empty() {
        return Err("a size is a number and K, M, G or T, as in 512M".to_owned());
    }
    let lower = suffix.to_ascii_lowercase();
    let Some((_, unit)) = SUFFIXES.iter().find(|(name, _)| *name == lower) else {
        return Err(format!("unknown size suffix '{suffix}' (K, M, G or T)"));
    };
    let bytes = match number.split_once('.') {
        None => number.parse::<u64>().ok().and_then(|n| n.checked_mul(*unit)),
        Some(_) => number.parse::<f64>().ok().map(|n| n * *unit as f64).filter(|n| *n < TOO_LARGE).map(|n| n as u64),
    };
    match bytes {
        None => Err("not a size, or too large a one".to_owned()),
        Some(0) => Err("a size of zero".to_owned()),
        Some(bytes) => Ok(bytes),
    }
}

fn in_units(bytes: u64) -> (f64, &'static str) {
    match bytes {
        0..0x400 => (bytes as f64, "B"),
        0x400..0x10_0000 => (bytes as f64 / 1024.0, "KiB"),
        0x10_0000..0x4000_0000 => (bytes as f64 / 1048576.0, "MiB"),
        0x4000_0000..0x100_0000_0000 => (bytes as f64 / 1073741824.0, "GiB"),
        _ => (bytes as f64 / 1099511627776.0, "TiB"),
    }
}

/// A measured size: always one digit after the point.
pub fn measured(bytes: u64) -> String {
    let (number, unit) = in_units(bytes);
    format!("{number:.1} {unit}")
}

/// A size that somebody chose: without the point when it is a round number.
pub fn chosen(bytes: u64) -> String {
    measured(bytes).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("4096", 4096),
            ("64k", 65536),
            ("10MB", 10_000_000),
            ("3 GiB", 3 << 30),
            ("1T", 1 << 40),
            (".5K", 512),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn with_a_point_sizes_may_be_as_large_as_without() {
        assert_eq!(parse("1011014.0 TiB"), Ok(1_011_014 << 40));
        let large = 1_111_622_011_622_011_622;
        assert!(parse(&chosen(large)).unwrap().abs_diff(large) < 1 << 40);
        assert!(parse("16777215.9T").is_ok() && parse("16777216.0T").is_err());
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        assert!(parse("5X").unwrap_err().contains("unknown size suffix 'X'"));
        assert!(parse("5 MM").unwrap_err().contains("'MM'"));
        for text in ["", "M", "-5M", "1.2.3G", "0", "0M", "99999999999999999999", "99999999999T", "1e3", "."] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(measured(150 << 20), "150.0 MiB");
        assert_eq!(chosen(150 << 20), "150 MiB");
        assert_eq!(chosen((3 << 30) / 2), "1.5 GiB");
        assert_eq!(chosen(99 << 40), "99 TiB");
        assert_eq!(measured(0), "0.0 B");
    }
}
