//! Each mechanism of the model by itself.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use common::{Log, ModelFaults, rests, run_alone, start_serving, world};
use uswap_model::mremap::{Place, Refused};
use uswap_model::scheduler::Kind;
use uswap_model::switching::Switching;
use uswap_model::touch::Signal;
use uswap_model::user_mode::*;
use uswap_model::world::current;
use uswap_model::{Chance, Checker, Content, End, Model, PAGE_SIZE as P, World, WorldConfig};
use uswap_system::faults::{Faults, Holes, Message, Stop, Wake};
use uswap_system::looks::{Footprint, Mappings, PopulatedRange, Residency};
use uswap_system::sync::{Lock, Word};
use uswap_system::{Advice, System, Waited};

/// Whole pages of real memory, as the engine's frames are.
fn frames(pages: usize) -> usize {
    let memory = vec![0u8; (pages + 1) * P].leak();
    memory.as_ptr().addr().next_multiple_of(P)
}

#[test]
fn the_same_seed_takes_the_same_steps() {
    let run = |seed| {
        let world = World::new(seed);
        let process = world.new_process();
        for _ in 0..3 {
            world.spawn(process, "program", Kind::Program, || {
                for page in 450..460 {
                    mmap(page..page + 1);
                    let _ = write(page, current().new_content());
                    munmap(page..page + 1);
                }
            });
        }
        world.run()
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1).ns, run(2).ns);
}

#[test]
fn memory_reads_as_what_was_written() {
    rests(1, || {
        mmap(450..454);
        assert_eq!(read(450), Ok(Content::ZERO));
        let content = current().new_content();
        assert_eq!(write(451, content), Ok(Content::ZERO));
        assert_eq!(read(451), Ok(content));
        assert_eq!(mremap(450..452, 2, Place::Fixed(460), false), Ok(460));
        assert_eq!((read(461), read(451)), (Ok(content), Err(Signal::Segv)));
        discard(460..462, false);
        assert_eq!(read(461), Ok(Content::ZERO));
        assert_eq!(mremap(452..454, 3, Place::Here, false), Ok(452));
        assert_eq!(mremap(453..462, 9, Place::Anywhere(480), true), Err(Refused::NotOne));
        mprotect(452..453, true, false, false);
        assert_eq!((read(452), write(452, content)), (Ok(Content::ZERO), Err(Signal::Segv)));
    });
}

#[test]
fn a_wrong_page_is_found() {
    let outcome = run_alone(1, || {
        mmap(450..451);
        let _ = write(450, current().new_content());
        // As if an engine had lost it.
        current().kernel_mut().processes[0].mm.set(450, uswap_model::pte::Pte::Missing);
        let _ = read(450);
    });
    assert!(matches!(outcome.end, End::Violation(violation) if violation.checker == Checker::RightContent));
}

#[test]
fn locks_are_held_by_one() {
    for seed in 0..50 {
        let world = world(seed);
        let process = world.new_process();
        let lock: &'static Lock<u32, Model> = Box::leak(Box::new(Lock::new(0)));
        let counted = Rc::new(Cell::new(0));
        for _ in 0..4 {
            let counted = counted.clone();
            world.spawn(process, "program", Kind::Program, move || {
                for _ in 0..10 {
                    let mut held = lock.lock();
                    let before = *held;
                    Model::sleep(Duration::from_micros(3));
                    *held = before + 1;
                    counted.set(counted.get().max(*held));
                }
            });
        }
        assert_eq!(world.run().end, End::Rest);
        assert_eq!(counted.get(), 40);
    }
}

#[test]
fn who_waits_for_each_other_is_found() {
    let locks: &'static [Lock<(), Model>; 2] = Box::leak(Box::new([Lock::new(()), Lock::new(())]));
    let deadlocks = (0..50).filter(|&seed| {
        let locks: &'static [Lock<(), Model>; 2] =
            if seed == 0 { locks } else { Box::leak(Box::new([Lock::new(()), Lock::new(())])) };
        let world = world(seed);
        let process = world.new_process();
        for first in 0..2 {
            world.spawn(process, "program", Kind::Program, move || {
                let _one = locks[first].lock();
                let _other = locks[1 - first].lock();
            });
        }
        matches!(world.run().end, End::Violation(violation) if violation.checker == Checker::NoLostWakeUp)
    });
    assert!((1..50).contains(&deadlocks.count()));
}

#[test]
fn words_are_waited_for_and_time_passes() {
    rests(3, || {
        static WORD: Word<Model> = Word::new(0);
        let (world, begun) = (current(), Model::now());
        assert_eq!(WORD.wait(1, None), Waited::Changed);
        assert_eq!(WORD.wait(0, Some(Duration::from_millis(7))), Waited::TimedOut);
        assert!(begun.elapsed_in_model() >= Duration::from_millis(7));
        world.spawn(world.this_process(), "other", Kind::Program, || WORD.store_and_wake(1));
        while WORD.load() == 0 {
            WORD.wait(0, None);
        }
    });
    let outcome = run_alone(3, || {
        static NOBODY: AtomicU32 = AtomicU32::new(0);
        Model::wait(&NOBODY, uswap_system::Scope::Process, NOBODY.load(SeqCst), None);
    });
    assert!(matches!(outcome.end, End::Violation(violation) if violation.checker == Checker::NoLostWakeUp));
}

trait ElapsedInModel {
    fn elapsed_in_model(&self) -> Duration;
}

impl ElapsedInModel for std::time::Instant {
    fn elapsed_in_model(&self) -> Duration {
        Model::now() - *self
    }
}

#[test]
fn priorities_let_everybody_go_on_in_the_end() {
    for seed in 0..30 {
        let config = WorldConfig { switching: Switching::Priorities { one_in: 1 << 20 }, ..WorldConfig::plain() };
        let world = World::with(config, Chance::new(seed));
        let process = world.new_process();
        static FLAG: AtomicU32 = AtomicU32::new(0);
        FLAG.store(0, SeqCst);
        world.spawn(process, "spins", Kind::Program, || {
            while FLAG.load(SeqCst) == 0 {
                current().point();
            }
        });
        world.spawn(process, "ends it", Kind::Program, || {
            current().point();
            FLAG.store(1, SeqCst);
        });
        assert_eq!(world.run().end, End::Rest);
    }
}

#[test]
fn missing_pages_are_messages_and_calls_are_events_in_their_order() {
    for seed in 0..40 {
        let log = Log::default();
        let seen = log.clone();
        rests(seed, move || {
            let world = current();
            let faults = start_serving(&world, world.this_process(), &seen);
            mmap(450..458);
            let content = world.new_content();
            let _ = write(450, content);
            faults.register(450 * P, 8 * P).expect("it is mapped");
            assert_eq!((read(450), read(451)), (Ok(content), Ok(Content::ZERO)));
            assert_eq!(mremap(450..452, 2, Place::Fixed(454), false), Ok(454));
            assert_eq!(read(454), Ok(content));
            discard(454..455, false);
            munmap(452..458);
            assert!(!faults.is_changing());
        });
        let unmap = |start: usize, end: usize| Message::Unmap { start: start * P, end: end * P };
        assert_eq!(
            *log.borrow(),
            [
                unmap(454, 456),
                Message::Remap { from: 450 * P, to: 454 * P, len: 2 * P },
                unmap(450, 452),
                Message::Remove { start: 454 * P, end: 455 * P },
                unmap(452, 458),
            ]
        );
    }
}

/// A process whose thread has a userfaultfd and reads it itself.
fn with_faults(body: impl FnOnce(&ModelFaults) + 'static) {
    rests(5, move || body(&ModelFaults::for_program(None).expect("there is one")));
}

fn stopped(done: usize, stop: Stop) -> uswap_system::faults::Progress {
    uswap_system::faults::Progress { bytes: done * P, stop: Some(stop) }
}

#[test]
fn filling_answers_as_linux_does() {
    with_faults(|faults| {
        mmap(450..454);
        mmap(460..461);
        faults.register(450 * P, 4 * P).expect("it is mapped");
        let source = frames(4);
        let from = source as *const u8;
        assert!(faults.copy(451 * P, from, P, Wake::Wake).is_complete());
        assert_eq!(faults.copy(450 * P, from, 4 * P, Wake::Wake), stopped(1, Stop::AlreadyThere));
        assert_eq!(faults.copy(453 * P, from, 2 * P, Wake::Wake), stopped(0, Stop::Missing));
        assert_eq!(faults.copy(460 * P, from, P, Wake::Wake), stopped(0, Stop::Missing));
        assert!(faults.poison(452 * P, P).is_complete());
        assert_eq!(faults.zeropage(452 * P, P, Wake::Wake), stopped(0, Stop::AlreadyThere));
        assert_eq!(read(452), Err(Signal::Bus));
        assert!(faults.copy(452 * P, from, P, Wake::Wake).is_complete());
        assert_eq!(read(452), Ok(Content::ZERO));
        assert_eq!(faults.zeropage(450 * P + 1, P, Wake::Wake), stopped(0, Stop::Invalid));
        assert_eq!(faults.is_registered(450 * P, 4 * P), Some(true));
        assert_eq!(faults.is_registered(450 * P, 5 * P), Some(false));
        assert!(faults.register(500 * P, P).is_err());
    });
}

#[test]
fn pages_are_moved_out_and_in_with_their_bytes() {
    with_faults(|faults| {
        let frames = frames(8);
        faults.register(frames, 8 * P).expect("it is memory");
        mmap(450..454);
        faults.register(450 * P, 4 * P).expect("it is mapped");
        let (one, two) = (current().new_content(), current().new_content());
        assert!(faults.zeropage(450 * P, 4 * P, Wake::Wake).is_complete());
        let _ = (write(450, one), write(451, two));
        assert!(faults.move_pages(frames, 450 * P, 2 * P, Holes::Refuse, Wake::DontWake).is_complete());
        // SAFETY: memory of this test.
        let bytes = unsafe { *(frames as *const [u8; P]) };
        assert_eq!(bytes, one.bytes());
        let move_to =
            |to: usize, from: usize, pages: usize, holes| faults.move_pages(to, from, pages * P, holes, Wake::Wake);
        assert_eq!(move_to(frames + 2 * P, 450 * P, 1, Holes::Refuse), stopped(0, Stop::Missing));
        assert!(move_to(frames + 2 * P, 450 * P, 4, Holes::Allow).is_complete());
        assert_eq!(move_to(frames + 3 * P, 452 * P, 3, Holes::Allow), stopped(0, Stop::Invalid));
        assert_eq!(move_to(frames, 452 * P, 1, Holes::Allow), stopped(0, Stop::AlreadyThere));
        assert!(move_to(450 * P, frames, 2, Holes::Refuse).is_complete());
        assert_eq!((read(450), read(451)), (Ok(one), Ok(two)));
        mprotect(450..451, true, true, true);
        assert_eq!(move_to(frames, 450 * P, 1, Holes::Refuse), stopped(0, Stop::Invalid));
        assert!(Model::let_execute(frames, 2 * P, true));
        assert!(move_to(frames, 450 * P, 1, Holes::Refuse).is_complete());
        assert_eq!(move_to(frames + P, 451 * P, 1, Holes::Refuse), stopped(0, Stop::Invalid));
        assert_eq!(move_to(460 * P, frames, 1, Holes::Refuse), stopped(0, Stop::Missing));
        pin(451, true);
        assert!(Model::let_execute(frames, 2 * P, false));
        assert_eq!(move_to(frames + P, 451 * P, 1, Holes::Refuse), stopped(0, Stop::Busy));
    });
}

#[test]
fn a_fork_shares_pages_until_they_are_written() {
    let world = world(1);
    let process = world.new_process();
    world.spawn(process, "program", Kind::Program, || {
        let world = current();
        mmap(450..453);
        let (one, two) = (world.new_content(), world.new_content());
        let _ = (write(450, one), write(451, one), write(452, one));
        keep_from_forks(452..453, true);
        let child = fork();
        world.spawn(child, "child", Kind::Program, move || {
            assert_eq!((read(450), read(452)), (Ok(one), Err(Signal::Segv)));
            let _ = write(450, two);
            assert_eq!((read(450), read(451)), (Ok(two), Ok(one)));
            assert!(Model::parent_is(100));
        });
        let faults = ModelFaults::for_program(None).expect("there is one");
        let frames = frames(2);
        faults.register(frames, 2 * P).expect("it is memory");
        let moved = || faults.move_pages(frames, 450 * P, P, Holes::Refuse, Wake::Wake);
        assert_eq!(moved(), stopped(0, Stop::Busy));
        Model::advise(450 * P, P, Advice::PopulateWrite).expect("it is mapped");
        assert!(moved().is_complete());
        assert_eq!(read(451), Ok(one));
    });
    assert_eq!(world.run().end, End::Rest);
}

#[test]
fn what_a_fork_shares_is_in_one_frame_until_it_is_written() {
    rests(3, || {
        let world = current();
        mmap(450..453);
        let one = world.new_content();
        let _ = (write(450, one), write(451, one), read(452));
        let residency = <Model as System>::Residency::open().expect("it can be looked at");
        let in_common = || residency.in_common(450 * P, 453 * P).expect("it can be looked at");
        let taken = || world.kernel().frames.taken();
        assert_eq!((in_common(), taken()), (0, 2));
        let child = fork();
        assert_eq!((in_common(), taken()), (2, 2));
        let _ = write(450, one);
        assert_eq!((in_common(), taken()), (1, 3), "the child has the old one");
        discard(451..452, false);
        assert_eq!((in_common(), taken()), (0, 3));
        world.kill(child);
        assert_eq!((in_common(), taken()), (0, 1));
    });
}

#[test]
fn nothing_is_filled_while_a_call_is_under_way() {
    for seed in 0..40 {
        rests(seed, || {
            let world = current();
            let faults: &'static ModelFaults =
                Box::leak(Box::new(ModelFaults::for_program(None).expect("there is one")));
            mmap(450..454);
            faults.register(450 * P, 4 * P).expect("it is mapped");
            let other = world.spawn(world.this_process(), "unmaps", Kind::Program, || munmap(450..452));
            while !faults.is_changing() {
                world.point();
            }
            let zeros = faults.zeropage(452 * P, P, Wake::Wake);
            assert_eq!(zeros, stopped(0, Stop::TryLater));
            let mut messages = [Message::Other(0); 4];
            while faults.read(&mut messages).expect("it is a userfaultfd") == 0 {}
            assert_eq!(messages[0], Message::Unmap { start: 450 * P, end: 452 * P });
            world.join(other);
            assert!(faults.zeropage(452 * P, P, Wake::Wake).is_complete());
        });
    }
}

#[test]
fn what_is_there_is_shown() {
    with_faults(|faults| {
        let residency = <Model as System>::Residency::open().expect("it can be looked at");
        mmap(450..456);
        let _ = (read(450), write(451, current().new_content()), write(452, current().new_content()));
        let mut ranges = [PopulatedRange::default(); 4];
        let (count, next) = residency.populated(448 * P, 460 * P, &mut ranges).expect("it can be looked at");
        assert_eq!((count, next), (2, 460 * P));
        assert!(ranges[0].zero_page() && (ranges[0].start, ranges[0].end) == (450 * P, 451 * P));
        assert!(!ranges[1].zero_page() && (ranges[1].start, ranges[1].end) == (451 * P, 453 * P));
        assert!(!residency.has_populated(453 * P, 460 * P).expect("it can be looked at"));
        assert_eq!(<Model as System>::Footprint::by_kind().expect("it can").anon_pages, 2);
        faults.register(451 * P, P).expect("it is mapped");
        let mut text = Vec::new();
        <Model as System>::Mappings::read_maps(&mut text).expect("it can be read");
        assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 3);
        assert!(text.starts_with(b"001c2000-001c3000 rw-p 00000000 00:00 0"));
        let mut query = <Model as System>::Mappings::open().expect("it can be asked");
        let (start, end) = query.at(454 * P).map(|vma| (vma.start, vma.end)).expect("it is mapped");
        assert_eq!((start, end), (452 * P, 456 * P));
        assert!(query.at(457 * P).is_none());
    });
}

#[test]
fn a_killed_process_leaves_its_threads_where_they_stand() {
    let world = world(2);
    let (first, second) = (world.new_process(), world.new_process());
    let ended = Rc::new(Cell::new(0));
    let count = ended.clone();
    world.spawn(first, "program", Kind::Program, move || {
        for _ in 0..100 {
            Model::sleep(Duration::from_micros(10));
        }
        count.set(count.get() + 1);
    });
    world.spawn(second, "kills", Kind::Program, move || {
        Model::sleep(Duration::from_micros(100));
        current().kill(first);
    });
    assert_eq!(world.run().end, End::Rest);
    assert_eq!(ended.get(), 0);
    let outcome = run_alone(1, || Model::end(format_args!("so it must be")));
    assert!(matches!(outcome.end, End::Ended { why, .. } if why == "so it must be"));
}

#[test]
fn a_panic_is_an_assertion_that_fails() {
    let outcome = run_alone(1, || panic!("it is not so"));
    assert!(matches!(outcome.end, End::Violation(violation) if violation.checker == Checker::Assertion));
}
