//! The argument of `--swap`, and sizes as people write them.

use crate::size;
use crate::swap_spec::{SwapSpec, parse};
use crate::{Canary, Seed, Target};

/// This target.
pub const TARGET: Target = Target {
    name: "swap_specs",
    run,
    seeds,
    words: &[
        b"file:",
        b",size=",
        b",prio=",
        b",priority=",
        b",overwrite",
        b",",
        b"=",
        b"KiB",
        b"000",
        b"32768",
        b".5",
        b"T",
        b"/",
    ],
};

/// Reads it.
pub fn run(bytes: &[u8], canary: Canary) {
    // What a program is given as an argument has no zero byte; what is no text is refused before.
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut parsed = parse(text);
    if let (Canary::Planted, Ok(SwapSpec { size_bytes: Some(bytes), .. })) = (canary, &mut parsed) {
        // As if sizes had 32 bits.
        *bytes &= 0xffff_ffff;
    }
    match parsed {
        Ok(spec) => says_what_stands_there(&spec, text),
        Err(why) => assert!(!why.is_empty()),
    }
    size(text);
}

/// The path and the options put together are what was read, however they were put together there.
fn says_what_stands_there(spec: &SwapSpec, text: &str) {
    let path = spec.path.to_str().expect("what was text is text");
    assert!(!path.is_empty());
    let options = text.strip_prefix("file:").and_then(|rest| rest.strip_prefix(path)).expect("the path comes first");
    let mut found = SwapSpec { path: spec.path.clone(), size_bytes: None, priority: None, overwrite: false };
    for option in options.split(',').skip(1) {
        match option.split_once('=') {
            None => {
                assert_eq!(option, "overwrite");
                found.overwrite = true;
            }
            Some(("size", value)) => {
                let last = found.size_bytes.replace(size::parse(value).expect("a size"));
                assert_eq!(last, None, "two sizes");
            }
            Some(("prio" | "priority", value)) => {
                let last = found.priority.replace(value.parse().expect("a number"));
                assert_eq!(last, None, "two priorities");
            }
            Some((name, _)) => panic!("option {name}"),
        }
    }
    assert_eq!(*spec, found);
    assert!(spec.priority.is_none_or(|priority| (0..=32767).contains(&priority)));
    // In one order, and with all that is optional written out, it is the same.
    let mut again = format!("file:{path}");
    spec.priority.iter().for_each(|priority| again += &format!(",priority={priority}"));
    spec.size_bytes.iter().for_each(|bytes| again += &format!(",size={bytes}"));
    again += if spec.overwrite { ",overwrite" } else { "" };
    assert_eq!(parse(&again).as_ref(), Ok(spec), "{again}");
}

fn size(text: &str) {
    let Ok(bytes) = size::parse(text) else { return };
    assert!(bytes > 0);
    assert_eq!(size::parse(&bytes.to_string()), Ok(bytes));
    // Whole numbers are exact.
    let digits = text.trim().trim_end_matches(|c: char| !c.is_ascii_digit());
    if let Ok(number) = digits.parse::<u64>() {
        assert_eq!(bytes % number.max(1), 0, "{text}");
    }
    // What is shown, if that is not 2^64, is read again to one digit after the point.
    if bytes > u64::MAX - (1 << 40) {
        return;
    }
    let shown = size::chosen(bytes);
    let again = size::parse(&shown).unwrap_or_else(|why| panic!("{shown}: {why}"));
    let unit_bytes = 1u64 << (bytes.max(1).ilog2() / 10 * 10).min(40);
    assert!(again.abs_diff(bytes) <= unit_bytes / 10, "{bytes} is shown as {shown}");
}

fn seeds() -> Vec<Seed> {
    let texts: [(&'static str, &str); 10] = [
        ("all", "file:/var/a,size=2G,prio=5"),
        ("name_alone", "file:b"),
        ("commas", "file:/a,b/c,size=1M"),
        ("overwrite", "file:/x,overwrite,size=1M,priority=32767"),
        ("relative_with_equals", "file:/x=1,y/z,prio=0"),
        ("unknown", "file:a,colour=red"),
        ("missing", "file:a,size=1M,,prio=3"),
        ("other", "zram:1G"),
        ("size", "1.5GiB"),
        ("decimal_size", "10MB"),
    ];
    texts.map(|(name, text)| (name, text.as_bytes().to_vec())).into()
}
