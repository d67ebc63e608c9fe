//! Programs that run on both, and what is seen of a run.

use std::ops::Range;

use uswap_model::Chance;

/// Pages of the address space that programs work in.
pub const SPAN: usize = 24;

/// One thing that a thread does. Pages are counted from the start of the address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// mmap(MAP_FIXED).
    Map(Range<usize>),
    /// munmap.
    Unmap(Range<usize>),
    /// mremap to a length, at a place of its own if there is one.
    Remap {
        old: Range<usize>,
        new_pages: usize,
        to: Option<usize>,
        stays: bool,
    },
    /// madvise.
    Discard {
        range: Range<usize>,
        lazily: bool,
    },
    /// UFFDIO_REGISTER.
    Register(Range<usize>),
    Read(usize),
    Write(usize, u64),
    /// fork; the child looks at all pages and ends.
    Fork,
}

/// What a thread sees of one thing that it did.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    Done,
    Refused,
    Value(u64),
    /// What a child has at each page; nothing where nothing is mapped.
    Child(Vec<Option<u64>>),
}

/// A message, in pages.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Told {
    Fault { page: usize, write: bool },
    Remap { from: usize, to: usize, pages: usize },
    Remove(Range<usize>),
    Unmap(Range<usize>),
}

/// What is seen of a run.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seen {
    pub told: Vec<Told>,
    /// Of each thread.
    pub answers: Vec<Vec<Answer>>,
    /// What is at each page in the end.
    pub pages: Vec<Option<u64>>,
}

impl Seen {
    /// How often a thread faults depends on who is how fast.
    pub fn without_faults(mut self) -> Seen {
        self.told.retain(|told| !matches!(told, Told::Fault { .. }));
        self
    }
}

/// What each thread does.
#[derive(Clone, Debug)]
pub struct Program {
    /// Before there are several threads.
    pub prologue: Vec<Op>,
    pub threads: Vec<Vec<Op>>,
}

impl Program {
    /// Two threads that get into each other's way.
    pub fn of_two_threads(chance: &mut Chance) -> Program {
        let mut prologue = vec![Op::Map(0..4), Op::Map(8..12), Op::Map(16..20)];
        prologue.extend([0, 1, 8, 9, 16].map(|page| Op::Write(page, 100 + page as u64)));
        prologue.extend([0..4, 8..12, 16..20].map(Op::Register));
        let threads = (0..2).map(|thread| {
            let count = 2 + chance.index(2);
            (0..count).map(|step| Self::op(chance, 1 + 10 * thread + step as u64)).collect()
        });
        Program { prologue, threads: threads.collect() }
    }

    fn op(chance: &mut Chance, serial: u64) -> Op {
        let place = [0, 8, 16][chance.index(3)];
        let start = place + chance.index(2);
        let range = start..start + 1 + chance.index(2);
        match chance.below(10) {
            0..4 => {
                let to = [4, 8, 12, 16, 20][chance.index(5)];
                let is_free = to + range.len() <= range.start || range.end <= to;
                match is_free {
                    true => Op::Remap { new_pages: range.len(), to: Some(to), stays: chance.happens(1, 4), old: range },
                    false => Op::Unmap(range),
                }
            }
            4 => Op::Unmap(range),
            5 => Op::Map(range),
            6 => Op::Discard { range, lazily: false },
            7 => Op::Read(start),
            8 => Op::Fork,
            _ => Op::Write(start, serial),
        }
    }
}
