//! Replacement policies against plain models of them: queues that are searched from end to end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use uswap_policy::{Access, PageIndex, belady_misses, by_name};

const CASES: u32 = 10_000;
const PAGES: PageIndex = 40;

#[derive(Clone, Copy, Debug)]
enum Step {
    Access(PageIndex),
    Evict,
    Forget(PageIndex),
    Resize(usize),
}

/// From 20 pages on the small queue of S3-FIFO has more than one.
fn capacity() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 1..9usize, 1 => 20..32usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        // A few pages are used more than the others.
        12 => (0..PAGES, 0..PAGES).prop_map(|(one, other)| Step::Access(one.min(other))),
        8 => (0..PAGES).prop_map(Step::Access),
        1 => Just(Step::Evict),
        1 => (0..PAGES).prop_map(Step::Forget),
        1 => capacity().prop_map(Step::Resize),
    ]
}

/// What a model must do. It never sees a use of a page that is not there.
trait Model {
    fn resident(&self) -> BTreeSet<PageIndex>;
    fn touch(&mut self, page: PageIndex);
    fn insert(&mut self, page: PageIndex);
    fn evict(&mut self) -> Option<PageIndex>;
    fn forget(&mut self, page: PageIndex);
    fn resize(&mut self, capacity: usize);
}

fn compare(name: &str, mut model: impl Model, mut capacity: usize, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut policy = by_name(name, capacity).unwrap();
    for &step in steps {
        match step {
            Step::Access(page) if model.resident().contains(&page) => {
                prop_assert_eq!(policy.access(page), Access::Hit);
                model.touch(page);
            }
            Step::Access(page) => {
                let evicted = if model.resident().len() >= capacity { model.evict() } else { None };
                model.insert(page);
                prop_assert_eq!(policy.access(page), Access::Miss { evicted });
            }
            Step::Evict => prop_assert_eq!(policy.evict(), model.evict()),
            Step::Forget(page) => {
                policy.forget(page);
                model.forget(page);
            }
            Step::Resize(size) => {
                capacity = size;
                policy.resize(size);
                model.resize(size);
                while policy.resident() > size {
                    prop_assert_eq!(policy.evict(), model.evict());
                }
            }
        }
        let resident = model.resident();
        prop_assert_eq!(policy.resident(), resident.len());
        prop_assert!((0..PAGES).all(|page| policy.is_resident(page) == resident.contains(&page)));
    }
    Ok(())
}

/// Front of each queue: oldest.
#[derive(Default)]
struct PlainSecondChance(VecDeque<(PageIndex, bool)>);

impl Model for PlainSecondChance {
    fn resident(&self) -> BTreeSet<PageIndex> {
        self.0.iter().map(|&(page, _)| page).collect()
    }

    fn touch(&mut self, page: PageIndex) {
        self.0.iter_mut().filter(|entry| entry.0 == page).for_each(|entry| entry.1 = true);
    }

    fn insert(&mut self, page: PageIndex) {
        self.0.push_back((page, false));
    }

    fn evict(&mut self) -> Option<PageIndex> {
        loop {
            match self.0.pop_front()? {
                (page, true) => self.0.push_back((page, false)),
                (page, false) => return Some(page),
            }
        }
    }

    fn forget(&mut self, page: PageIndex) {
        self.0.retain(|&(other, _)| other != page);
    }

    fn resize(&mut self, _capacity: usize) {}
}

struct PlainS3Fifo {
    small: VecDeque<PageIndex>,
    main: VecDeque<PageIndex>,
    ghosts: VecDeque<PageIndex>,
    uses: BTreeMap<PageIndex, u32>,
    capacity: usize,
}

impl PlainS3Fifo {
    fn new(capacity: usize) -> Self {
        Self { small: VecDeque::new(), main: VecDeque::new(), ghosts: VecDeque::new(), uses: BTreeMap::new(), capacity }
    }

    fn small_pages(&self) -> usize {
        (self.capacity / 10).max(1)
    }

    fn trim(&mut self) {
        while self.ghosts.len() > self.capacity - self.small_pages() {
            self.ghosts.pop_front();
        }
    }
}

impl Model for PlainS3Fifo {
    fn resident(&self) -> BTreeSet<PageIndex> {
        self.small.iter().chain(&self.main).copied().collect()
    }

    fn touch(&mut self, page: PageIndex) {
        *self.uses.entry(page).or_default() += 1;
    }

    fn insert(&mut self, page: PageIndex) {
        self.uses.insert(page, 0);
        if self.ghosts.contains(&page) {
            self.ghosts.retain(|&ghost| ghost != page);
            self.main.push_back(page);
        } else {
            self.small.push_back(page);
        }
    }

    fn evict(&mut self) -> Option<PageIndex> {
        loop {
            if self.main.is_empty() || self.small.len() >= self.small_pages() {
                let page = self.small.pop_front()?;
                if self.uses[&page] < 2 {
                    self.ghosts.push_back(page);
                    self.trim();
                    return Some(page);
                }
                self.uses.insert(page, 0);
                self.main.push_back(page);
            } else {
                let page = self.main.pop_front()?;
                match self.uses[&page].min(3) {
                    0 => return Some(page),
                    uses => {
                        self.uses.insert(page, uses - 1);
                        self.main.push_back(page);
                    }
                }
            }
        }
    }

    fn forget(&mut self, page: PageIndex) {
        for queue in [&mut self.small, &mut self.main, &mut self.ghosts] {
            queue.retain(|&other| other != page);
        }
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.trim();
    }
}

struct PlainLirs {
    /// Last used at the end.
    stack: Vec<PageIndex>,
    warm: BTreeSet<PageIndex>,
    trial: VecDeque<PageIndex>,
    capacity: usize,
}

impl PlainLirs {
    fn warm_max(&self) -> usize {
        self.capacity - (self.capacity / 100).max(1)
    }

    fn lift(&mut self, page: PageIndex) -> bool {
        let there = self.stack.contains(&page);
        self.stack.retain(|&other| other != page);
        self.stack.push(page);
        there
    }

    /// The stack ends with a warm page; without one nothing is left of it.
    fn cut(&mut self) {
        let keep = self.stack.iter().position(|page| self.warm.contains(page));
        self.stack.drain(..keep.unwrap_or(self.stack.len()));
    }

    fn cool(&mut self) {
        let last = *self.stack.iter().find(|page| self.warm.contains(page)).unwrap();
        self.stack.retain(|&page| page != last);
        self.warm.remove(&last);
        self.trial.push_back(last);
        self.cut();
    }

    fn place(&mut self, page: PageIndex, again_soon: bool) {
        if self.warm_max() > 0 && (again_soon || self.warm.len() < self.warm_max()) {
            self.warm.insert(page);
            if self.warm.len() > self.warm_max() {
                self.cool();
            }
            self.cut();
        } else {
            self.trial.push_back(page);
        }
    }
}

impl Model for PlainLirs {
    fn resident(&self) -> BTreeSet<PageIndex> {
        self.warm.iter().chain(&self.trial).copied().collect()
    }

    fn touch(&mut self, page: PageIndex) {
        let there = self.lift(page);
        if self.warm.contains(&page) {
            return self.cut();
        }
        self.trial.retain(|&other| other != page);
        self.place(page, there);
    }

    fn insert(&mut self, page: PageIndex) {
        let there = self.lift(page);
        self.place(page, there);
    }

    fn evict(&mut self) -> Option<PageIndex> {
        if self.trial.is_empty() && !self.warm.is_empty() {
            self.cool();
        }
        self.trial.pop_front()
    }

    fn forget(&mut self, page: PageIndex) {
        let known = self.stack.contains(&page) || self.resident().contains(&page);
        self.warm.remove(&page);
        self.trial.retain(|&other| other != page);
        self.stack.retain(|&other| other != page);
        if known {
            self.cut();
        }
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        while self.warm.len() > self.warm_max() {
            self.cool();
        }
    }
}

#[derive(Default)]
struct PlainLinuxLru {
    inactive: VecDeque<PageIndex>,
    active: VecDeque<PageIndex>,
    young: BTreeSet<PageIndex>,
    referenced: BTreeSet<PageIndex>,
    /// When each page left.
    left: BTreeMap<PageIndex, u64>,
    clock: u64,
}

impl Model for PlainLinuxLru {
    fn resident(&self) -> BTreeSet<PageIndex> {
        self.inactive.iter().chain(&self.active).copied().collect()
    }

    fn touch(&mut self, page: PageIndex) {
        self.young.insert(page);
    }

    fn insert(&mut self, page: PageIndex) {
        let distance = self.left.remove(&page).map(|then| self.clock - then);
        if distance.is_some_and(|distance| distance <= self.active.len() as u64) {
            self.clock += 1;
            self.active.push_back(page);
        } else {
            self.inactive.push_back(page);
        }
        self.young.insert(page);
    }

    fn evict(&mut self) -> Option<PageIndex> {
        loop {
            // Less than 1 GiB: the inactive list is to be as long as the active one.
            if self.inactive.len() < self.active.len() {
                for page in self.active.drain(..self.active.len().min(32)) {
                    self.young.remove(&page);
                    self.inactive.push_back(page);
                }
            }
            let page = self.inactive.pop_front()?;
            match (self.young.remove(&page), self.referenced.remove(&page)) {
                (true, true) => {
                    self.active.push_back(page);
                    self.clock += 1;
                }
                (true, false) => {
                    self.referenced.insert(page);
                    self.inactive.push_back(page);
                }
                (false, _) => {
                    self.left.insert(page, self.clock);
                    self.clock += 1;
                    return Some(page);
                }
            }
        }
    }

    fn forget(&mut self, page: PageIndex) {
        self.inactive.retain(|&other| other != page);
        self.active.retain(|&other| other != page);
        self.young.remove(&page);
        self.referenced.remove(&page);
        self.left.remove(&page);
    }

    fn resize(&mut self, _capacity: usize) {}
}

/// Fewest misses over all choices: for each set of pages that can be in memory, the fewest misses that lead to it.
fn fewest_misses(trace: &[PageIndex], capacity: usize) -> u64 {
    let mut reached = BTreeMap::from([(0u32, 0u64)]);
    for &page in trace {
        let mut next = BTreeMap::new();
        let mut reach = |set: u32, misses: u64| {
            let fewest = next.entry(set).or_insert(misses);
            *fewest = misses.min(*fewest);
        };
        for (&set, &misses) in &reached {
            if set >> page & 1 == 1 {
                reach(set, misses);
            } else if (set.count_ones() as usize) < capacity {
                reach(set | 1 << page, misses + 1);
            } else {
                let victims = (0..u32::BITS).filter(|victim| set >> victim & 1 == 1);
                victims.for_each(|victim| reach(set & !(1 << victim) | 1 << page, misses + 1));
            }
        }
        reached = next;
    }
    reached.into_values().min().unwrap()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..160)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn second_chance_is_a_queue_with_bits(capacity in capacity(), steps in steps()) {
        compare("second-chance", PlainSecondChance::default(), capacity, &steps)?;
    }

    #[test]
    fn s3_fifo_is_three_queues(capacity in capacity(), steps in steps()) {
        compare("s3-fifo", PlainS3Fifo::new(capacity), capacity, &steps)?;
    }

    #[test]
    fn lirs_is_a_stack_and_a_queue(capacity in capacity(), steps in steps()) {
        let model = PlainLirs { stack: Vec::new(), warm: BTreeSet::new(), trial: VecDeque::new(), capacity };
        compare("lirs", model, capacity, &steps)?;
    }

    #[test]
    fn linux_lru_is_two_queues_with_bits_and_a_clock(capacity in capacity(), steps in steps()) {
        compare("linux-lru", PlainLinuxLru::default(), capacity, &steps)?;
    }

    #[test]
    fn beladys_choice_is_the_best_of_all(capacity in 1..5usize, trace in proptest::collection::vec(0..7u32, 1..30)) {
        prop_assert_eq!(belady_misses(&trace, capacity), fewest_misses(&trace, capacity));
    }
}
