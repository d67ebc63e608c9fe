//! `--swap file:PATH,size=8G,prio=5`.

use std::path::PathBuf;

use crate::size;

/// One swap area as the user asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    /// The file.
    pub path: PathBuf,
    /// Its size; its own length when not given.
    pub size_bytes: Option<u64>,
    /// 0 to 32767, higher is used first; when not given, below all that are.
    pub priority: Option<i32>,
    /// What is in the file may be lost.
    pub overwrite: bool,
}

/// Reads the argument of `--swap`. A path may contain commas: only known options at the end are cut off.
pub fn parse(text: &str) -> Result<SwapSpec, String> {
    let Some(mut rest) = text.strip_prefix("file:") else {
        return Err("a swap area is file:PATH[,size=SIZE][,prio=NUMBER][,overwrite]".to_owned());
    };
    let mut spec = SwapSpec { path: PathBuf::new(), size_bytes: None, priority: None, overwrite: false };
    while let Some((before, option)) = rest.rsplit_once(',') {
        if option == "overwrite" {
            spec.overwrite = true;
            rest = before;
            continue;
        }
        match option.split_once('=') {
            Some(("size", value)) if spec.size_bytes.is_none() => spec.size_bytes = Some(size::parse(value)?),
            Some(("prio" | "priority", value)) if spec.priority.is_none() => {
                let number = value.parse().ok().filter(|n| (0..=32767).contains(n));
                spec.priority = Some(number.ok_or_else(|| format!("priority '{value}' is not in 0 to 32767"))?);
            }
            Some((name, _)) if !name.contains('/') => {
                return Err(format!("unknown or repeated option '{name}'"));
            }
            None if option.is_empty() => return Err("an option is missing after a comma".to_owned()),
            _ => break,
        }
        rest = before;
    }
    if rest.is_empty() {
        return Err("a swap area needs a path".to_owned());
    }
    spec.path = PathBuf::from(rest);
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: &str, size_bytes: Option<u64>, priority: Option<i32>) -> Result<SwapSpec, String> {
        Ok(SwapSpec { path: path.into(), size_bytes, priority, overwrite: false })
    }

    #[test]
    fn specifications_are_read() {
        assert_eq!(parse("file:/var/a,size=8G,prio=5"), spec("/var/a", Some(8 << 30), Some(5)));
        assert_eq!(parse("file:/var/a,prio=5,size=1M"), spec("/var/a", Some(1 << 20), Some(5)));
        assert_eq!(parse("file:b"), spec("b", None, None));
        assert_eq!(parse("file:/a,b/c,size=1M"), spec("/a,b/c", Some(1 << 20), None));
        assert_eq!(parse("file:/x,y"), spec("/x,y", None, None));
        let overwritten = Ok(SwapSpec { overwrite: true, ..spec("/x", Some(1 << 20), None).unwrap() });
        assert_eq!(parse("file:/x,overwrite,size=1M"), overwritten);
        assert_eq!(parse("file:/x,size=1M,overwrite"), overwritten);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse("/var/a").unwrap_err().contains("file:PATH"));
        assert!(parse("zram:1G").is_err());
        assert!(parse("file:").unwrap_err().contains("path"));
        assert!(parse("file:,size=1G").unwrap_err().contains("path"));
        assert!(parse("file:a,size=1Q").unwrap_err().contains("suffix"));
        assert!(parse("file:a,prio=40000").unwrap_err().contains("40000"));
        assert!(parse("file:a,prio=-1").unwrap_err().contains("-1"));
        assert!(parse("file:a,size=1G,size=2G").unwrap_err().contains("'size'"));
        assert!(parse("file:a,colour=red").unwrap_err().contains("'colour'"));
        assert!(parse("file:a,size=1M,,prio=3").unwrap_err().contains("comma"));
    }
}
