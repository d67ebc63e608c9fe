//! Coroutines: threads of the model, all on one thread of the machine.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{CoroutineResult, Yielder};

/// Stack of a thread. The engine's own are half of that; builds without optimization need more.
const STACK_BYTES: usize = 512 << 10;

type Inner = corosensei::Coroutine<(), (), (), DefaultStack>;

thread_local! {
    /// Stacks of coroutines that have ended, to be used again.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
    /// Of the coroutine that runs; null outside of any.
    static RUNNING: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

/// What came of a resumption.
#[derive(Debug)]
pub(crate) enum Resumed {
    /// It has suspended itself.
    Suspended,
    /// It is over.
    Ended,
    /// It is over, by a panic with this message. Only where panics unwind.
    Panicked(String),
}

/// A coroutine.
pub(crate) struct Coroutine(Option<Inner>);

impl Coroutine {
    /// One that has not begun.
    pub fn new(body: impl FnOnce() + 'static) -> Coroutine {
        let stack = STACKS.with_borrow_mut(Vec::pop);
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("there is memory for a stack"));
        // What is put on a fresh stack must be small.
        let body: Box<dyn FnOnce()> = Box::new(body);
        Coroutine(Some(Inner::with_stack(stack, move |yielder, ()| {
            RUNNING.set(yielder);
            body();
        })))
    }

    /// Lets it run until it suspends itself or ends.
    pub fn resume(&mut self) -> Resumed {
        let inner = self.0.as_mut().expect("it has not been abandoned");
        let result = catch_unwind(AssertUnwindSafe(|| inner.resume(())));
        RUNNING.set(std::ptr::null());
        match result {
            Ok(CoroutineResult::Yield(())) => Resumed::Suspended,
            Ok(CoroutineResult::Return(())) => Resumed::Ended,
            Err(payload) => {
                let text = payload.downcast_ref::<String>().map(String::as_str);
                Resumed::Panicked(text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
            }
        }
    }

    /// Forgets it where it stands, as the kernel does with a thread of a process that is killed: nothing of it is run any more.
    fn abandon(&mut self) {
        let Some(mut inner) = self.0.take() else { return };
        // SAFETY: what lies on its stack is leaked, not dropped. Nobody else has a reference to any of it: threads of the model
        // share heap and statics, and waits know words by their address only, which is never followed.
        unsafe { inner.force_reset() };
        STACKS.with_borrow_mut(|stacks| stacks.push(inner.into_stack()));
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Suspends the coroutine that runs, until it is resumed.
///
/// # Panics
/// Outside of any.
pub(crate) fn suspend() {
    let yielder = RUNNING.get();
    assert!(!yielder.is_null(), "only a thread of the model can be suspended");
    // SAFETY: corosensei keeps the yielder until the body has returned, and it is that of the coroutine that calls this: each sets
    // it when it begins and again, below, whenever it is resumed.
    unsafe { (*yielder).suspend(()) };
    RUNNING.set(yielder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn coroutines_take_turns_and_can_be_forgotten() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let body = |number: u32| {
            let log = log.clone();
            move || {
                for step in 0..2 {
                    log.borrow_mut().push((number, step));
                    suspend();
                }
            }
        };
        let (mut one, mut two) = (Coroutine::new(body(1)), Coroutine::new(body(2)));
        assert!(matches!(one.resume(), Resumed::Suspended));
        assert!(matches!(two.resume(), Resumed::Suspended));
        assert!(matches!(one.resume(), Resumed::Suspended));
        drop(two);
        assert!(matches!(one.resume(), Resumed::Ended));
        assert_eq!(*log.borrow(), [(1, 0), (2, 0), (1, 1)]);
    }

    #[test]
    fn a_panic_is_told() {
        let mut one = Coroutine::new(|| panic!("so it is"));
        assert!(matches!(one.resume(), Resumed::Panicked(text) if text == "so it is"));
    }
}
