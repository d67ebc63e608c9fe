//! The dynamic symbols of a library that is loaded: where the loader finds its functions, and how others take their places.
//!
//! The loader adds a symbol's value to the address at which the library lies. So a value may lead anywhere, and what is bound to the
//! name from then on is bound to what lies there: by whatever search the loader has come to this library, also for calls that it binds
//! when they are first made. What has been bound already stays as it is.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use libc::{Elf64_Phdr, Elf64_Sym};
use rustix::mm::{MprotectFlags, mprotect};

use crate::PAGE_SIZE;

/// Tags of the dynamic section.
const STRINGS: u64 = 5;
const SYMBOLS: u64 = 6;
const GNU_HASH: u64 = 0x6fff_fef5;
const VERSIONS: u64 = 0x6fff_fff0;
/// Kind of a symbol: STT_FUNC. Others of the same name (STT_GNU_IFUNC) choose what is bound.
const FUNCTION: u8 = 2;
/// A version that only who asks for it gets.
const HIDDEN: u16 = 0x8000;
/// In `Symbols::writers`: all has been replaced.
const DONE: u32 = 1 << 31;

/// # Invariants
/// The library is loaded for ever, and the tables are its own, as the loader reads them.
pub struct Symbols {
    base: usize,
    segments: &'static [Elf64_Phdr],
    table: *const Elf64_Sym,
    strings: *const u8,
    versions: *const u16,
    hash: Hash,
    /// How many threads are replacing, or `DONE`.
    writers: AtomicU32,
}

/// DT_GNU_HASH: names with the same hash modulo the number of buckets stand one behind the other.
struct Hash {
    buckets: &'static [u32],
    /// For each symbol from the `first` on its hash, whose lowest bit is set for the last of a bucket.
    chain: *const u32,
    first: u32,
}

// SAFETY: the tables stay, and what changes in them is read and written whole.
unsafe impl Send for Symbols {}
// SAFETY: as above.
unsafe impl Sync for Symbols {}

impl Symbols {
    /// Those of the library in which `address` lies. `None` if there is none, or it has no such tables.
    ///
    /// # Safety
    /// That library is never unloaded.
    pub unsafe fn of_library_at(address: usize) -> Option<Symbols> {
        let mut search = Search { address, found: None };
        // SAFETY: the callback matches the signature, and keeps nothing; `search` outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.found
    }

    /// # Safety
    /// The library lies at `base`, has these headers, and is never unloaded.
    unsafe fn new(base: usize, segments: &'static [Elf64_Phdr]) -> Option<Symbols> {
        let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let mut entry = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
        let [mut strings, mut table, mut hash, mut versions] = [0; 4];
        loop {
            // SAFETY: the section ends with a tag of 0.
            let [tag, value] = unsafe { entry.read() };
            // The loader has made addresses of them, but not in a section that is read-only (the kernel's library).
            let at = if (value as usize) < base { base + value as usize } else { value as usize };
            match tag {
                0 => break,
                STRINGS => strings = at,
                SYMBOLS => table = at,
                GNU_HASH => hash = at,
                VERSIONS => versions = at,
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        if [strings, table, hash, versions].contains(&0) {
            return None;
        }
        Some(Symbols {
            base,
            segments,
            table: table as *const Elf64_Sym,
            strings: strings as *const u8,
            versions: versions as *const u16,
            // SAFETY: that is its table of hashes.
            hash: unsafe { Hash::at(hash as *const u32) }?,
            writers: AtomicU32::new(0),
        })
    }

    /// Whether this library is mapped there.
    pub fn contains(&self, address: usize) -> bool {
        self.segment_with(address).is_some()
    }

    /// Where the function of this name lies.
    pub fn find(&self, name: &CStr) -> Option<usize> {
        let symbol = self.functions(name).find(|symbol| !symbol.is_hidden)?;
        Some(self.base.wrapping_add(symbol.value.load(Relaxed) as usize))
    }

    /// Has other functions, at these addresses, take the places of those with these names, for who looks for them from here on. Where
    /// the kernel, or how the library was linked, does not allow it, they stay as they are. Several threads may do the same at once,
    /// and one that is gone in a forked child holds up nobody there.
    pub fn replace(&self, others: impl Iterator<Item = (&'static CStr, usize)> + Clone) {
        let is_done = |writers| writers & DONE != 0;
        if self.writers.fetch_update(AcqRel, Acquire, |writers| (!is_done(writers)).then_some(writers + 1)).is_err() {
            return;
        }
        let places = others.clone().flat_map(|(name, _)| self.functions(name)).map(|symbol| symbol.place());
        let range = places.fold(None, |range: Option<(usize, usize)>, place| {
            let (low, high) = range.unwrap_or((place, place));
            Some((low.min(place), high.max(place)))
        });
        let range = range.filter(|&(low, high)| self.is_only_read(low) && self.is_only_read(high));
        let is_open = range.is_some_and(|range| protect(range, MprotectFlags::READ | MprotectFlags::WRITE));
        if is_open {
            others.for_each(|(name, address)| self.replace_one(name, address));
        }
        // Only the last closes, and then nobody opens any more.
        let leave = |writers: u32| Some(if is_open && writers == 1 { DONE } else { writers - 1 });
        let before = self.writers.fetch_update(AcqRel, Acquire, leave);
        if let (true, Ok(1), Some(range)) = (is_open, before, range) {
            protect(range, MprotectFlags::READ);
        }
    }

    /// The place must be writable. Older versions follow if they are the same function; the one that all others get comes last,
    /// so that it has been replaced only when all have.
    fn replace_one(&self, name: &CStr, address: usize) {
        let Some(newest) = self.functions(name).find(|symbol| !symbol.is_hidden) else { return };
        let (old, new) = (newest.value.load(Relaxed), address.wrapping_sub(self.base) as u64);
        for symbol in self.functions(name).filter(|symbol| symbol.is_hidden && symbol.value.load(Relaxed) == old) {
            symbol.value.store(new, Relaxed);
        }
        newest.value.store(new, Release);
    }

    fn segment_with(&self, address: usize) -> Option<&Elf64_Phdr> {
        let is_in = |segment: &&Elf64_Phdr| {
            let start = self.base.wrapping_add(segment.p_vaddr as usize);
            segment.p_type == libc::PT_LOAD && address.wrapping_sub(start) < segment.p_memsz as usize
        };
        self.segments.iter().find(is_in)
    }

    /// Not in memory that is executed as well, as linkers arranged it before 2018.
    fn is_only_read(&self, address: usize) -> bool {
        self.segment_with(address).is_some_and(|segment| segment.p_flags == libc::PF_R)
    }

    /// All functions of this name that it defines.
    fn functions<'a>(&'a self, name: &'a CStr) -> impl Iterator<Item = Function> + 'a {
        let defined = move |index: u32| {
            // SAFETY: the table of hashes names symbols that are there, and so are their names and versions.
            let (symbol, is_hidden, named) = unsafe {
                let symbol = self.table.add(index as usize);
                let text = CStr::from_ptr(self.strings.add((*symbol).st_name as usize).cast());
                (symbol, *self.versions.add(index as usize) & HIDDEN != 0, text)
            };
            // SAFETY: as above. These fields nobody writes.
            let (kind, section) = unsafe { ((*symbol).st_info & 15, (*symbol).st_shndx) };
            // SAFETY: an aligned word of a table that stays; who writes it does so as here.
            let value = unsafe { AtomicU64::from_ptr((&raw const (*symbol).st_value).cast_mut()) };
            (kind == FUNCTION && section != 0 && named == name).then_some(Function { value, is_hidden })
        };
        self.hash.with(hash_of(name)).filter_map(defined)
    }
}

/// A symbol that is one.
struct Function {
    value: &'static AtomicU64,
    is_hidden: bool,
}

impl Function {
    fn place(&self) -> usize {
        std::ptr::from_ref(self.value) as usize
    }
}

impl Hash {
    /// # Safety
    /// The table of a library that stays.
    unsafe fn at(table: *const u32) -> Option<Hash> {
        // SAFETY: four numbers (buckets, first symbol, words of a filter, its shift), the filter, the buckets, the hashes.
        unsafe {
            let [count, first, words, _] = table.cast::<[u32; 4]>().read();
            let buckets = table.add(4 + 2 * words as usize);
            let chain = buckets.add(count as usize);
            (count > 0).then(|| Hash { buckets: std::slice::from_raw_parts(buckets, count as usize), chain, first })
        }
    }

    /// Symbols whose names have this hash.
    fn with(&self, hash: u32) -> impl Iterator<Item = u32> {
        let start = self.buckets[hash as usize % self.buckets.len()];
        let mut next = (start >= self.first).then_some(start);
        let all = std::iter::from_fn(move || {
            let index = next?;
            // SAFETY: no bucket goes on behind its last symbol.
            let found = unsafe { *self.chain.add((index - self.first) as usize) };
            next = (found & 1 == 0).then_some(index + 1);
            Some((index, found))
        });
        all.filter(move |(_, found)| found | 1 == hash | 1).map(|(index, _)| index)
    }
}

fn hash_of(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

/// Of all pages from that with the first word to that with the last.
fn protect((first, last): (usize, usize), protection: MprotectFlags) -> bool {
    let start = first & !(PAGE_SIZE - 1);
    let len = (last + size_of::<u64>()).next_multiple_of(PAGE_SIZE) - start;
    // SAFETY: a part of a table that is only read, by the loader alone; nobody relies on its being not writable.
    unsafe { mprotect(start as *mut c_void, len, protection) }.is_ok()
}

struct Search {
    address: usize,
    found: Option<Symbols>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader hands over a valid record for the time of the call, and what it was given.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: an array of this length.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let base = info.dlpi_addr as usize;
    let is_here = segments.iter().any(|segment| {
        let start = base.wrapping_add(segment.p_vaddr as usize);
        segment.p_type == libc::PT_LOAD && search.address.wrapping_sub(start) < segment.p_memsz as usize
    });
    if is_here {
        // SAFETY: the promise of who searches: the library with this address stays.
        search.found = unsafe { Symbols::new(base, segments) };
    }
    c_int::from(is_here)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn other() -> c_int {
        77
    }

    fn libcs() -> Symbols {
        // SAFETY: libc stays.
        unsafe { Symbols::of_library_at(libc::getppid as *const () as usize) }.unwrap()
    }

    fn looked_up(name: &CStr) -> usize {
        // SAFETY: libc is loaded, and stays; names are all that is read.
        unsafe { libc::dlsym(libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY), name.as_ptr()) as usize }
    }

    #[test]
    fn functions_are_found_as_the_loader_finds_them() {
        let libc = libcs();
        for name in [c"getppid", c"open64", c"posix_spawn", c"pthread_create", c"mremap"] {
            assert_eq!(libc.find(name), Some(looked_up(name)), "{name:?}");
            assert!(libc.contains(looked_up(name)));
        }
        // None, data, and one that chooses another by the processor.
        for name in [c"no_such_function", c"", c"environ", c"memcpy"] {
            assert_eq!(libc.find(name), None, "{name:?}");
        }
        assert!(!libc.contains(other as *const () as usize));
    }

    #[test]
    fn one_takes_the_place_of_another_and_the_table_is_closed_again() {
        let (libc, replaced) = (libcs(), [(c"swab", other as *const () as usize), (c"no_such_function", 1)]);
        let place = libc.functions(c"swab").next().unwrap().place();
        let neighbour = looked_up(c"ffsll");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| libc.replace(replaced.into_iter()));
            }
        });
        assert_eq!(looked_up(c"swab"), other as *const () as usize);
        assert_eq!(looked_up(c"ffsll"), neighbour);
        assert_eq!(libc.writers.load(Relaxed), DONE);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let protection = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
            (start..end).contains(&place).then(|| rest[..4].to_owned())
        });
        assert_eq!(protection.as_deref(), Some("r--p"));
    }

    #[test]
    fn who_is_gone_after_a_fork_holds_up_nobody() {
        let libc = libcs();
        libc.writers.store(1, Relaxed);
        libc.replace([(c"ffsl", other as *const () as usize)].into_iter());
        assert_eq!(looked_up(c"ffsl"), other as *const () as usize);
        assert_eq!(libc.writers.load(Relaxed), 1);
    }
}
