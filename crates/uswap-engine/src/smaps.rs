//! /proc/self/smaps: what the kernel remembers of the program's madvise.

use std::io;

use uswap_core::PageRange;
use uswap_system::System;
use uswap_system::looks::Mappings;

/// A mapping about which the program has said something that matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub range: PageRange,
    /// MADV_DONTFORK: the program's, or the engine's where it is managed.
    pub kept: bool,
    /// Registered with a userfaultfd.
    pub managed: bool,
    /// MADV_WIPEONFORK.
    pub wiped: bool,
    /// Pages of it were given up with MADV_FREE, not written since, and are still there.
    pub lazily_freed: bool,
}

/// Reads it. Slow: the kernel looks at every page.
pub(crate) fn mappings<S: System>() -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    S::Mappings::read_smaps(&mut text)?;
    Ok(parse(&text))
}

fn parse(smaps: &[u8]) -> Vec<Mapping> {
    let mut found = Vec::new();
    let mut mapping = None;
    for line in smaps.split(|&byte| byte == b'\n') {
        if let Some(size) = line.strip_prefix(b"LazyFree:") {
            if let Some(Mapping { lazily_freed, .. }) = &mut mapping {
                *lazily_freed = size.trim_ascii() != b"0 kB";
            }
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            // The last line of a mapping.
            let has = |flag: &[u8]| flags.split(|&byte| byte == b' ').any(|word| word == flag);
            found.extend(mapping.take().map(|mapping| Mapping {
                kept: has(b"dc"),
                managed: has(b"um"),
                wiped: has(b"wf"),
                ..mapping
            }));
        } else if line.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
            mapping = addresses(line).map(|range| Mapping { range, ..Mapping::default() });
        }
    }
    found.retain(|mapping| mapping.kept || mapping.wiped || mapping.lazily_freed);
    found
}

fn addresses(line: &[u8]) -> Option<PageRange> {
    let text = str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (start, end) = text.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    (start < end).then(|| PageRange::of_bytes(start, end))
}

#[cfg(test)]
mod tests {
    use uswap_core::PageNumber;

    use super::*;

    #[test]
    fn what_was_advised_is_read() {
        let smaps = b"7f0000000000-7f0000003000 rw-p 00000000 00:00 0 \nSize: 12 kB\nVmFlags: rd wr mr mw me dc ac \n\
            7f0000003000-7f0000004000 rw-p 00000000 00:00 0 [heap]\nLazyFree:              0 kB\nVmFlags: rd wr mr sd \n\
            7f0000005000-7f0000006000 rw-p 00000000 00:00 0\nVmFlags: rd wr wf\n\
            7f0000006000-7f0000007000 rw-p 00000000 00:00 0\nVmFlags: rd wr dc um\n\
            7f0000007000-7f0000009000 rw-p 00000000 00:00 0\nLazyFree:              4 kB\nVmFlags: rd wr\n";
        let range = |start, pages| PageRange { start: PageNumber(start), pages };
        assert_eq!(
            parse(smaps),
            [
                Mapping { range: range(0x7f0000000, 3), kept: true, ..Mapping::default() },
                Mapping { range: range(0x7f0000005, 1), wiped: true, ..Mapping::default() },
                Mapping { range: range(0x7f0000006, 1), kept: true, managed: true, ..Mapping::default() },
                Mapping { range: range(0x7f0000007, 2), lazily_freed: true, ..Mapping::default() },
            ]
        );
    }
}
