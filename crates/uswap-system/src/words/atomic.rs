//! Words in the layout of std's that let shuttle decide before each access who goes on.

use std::ops::Deref;
use std::sync::atomic::{self as real, Ordering};

use super::{Defect, preempt, rules};

/// A change that depends on the value before it is torn in two.
fn is_torn() -> bool {
    rules().defect == Some(Defect::Torn)
}

/// As std's.
pub fn fence(order: Ordering) {
    preempt();
    real::fence(order);
}

macro_rules! word {
    ($name:ident $(<$parameter:ident>)?, $value:ty) => {
        /// As std's, whose layout it has.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name $(<$parameter>)? (real::$name $(<$parameter>)?);

        impl $(<$parameter>)? Deref for $name $(<$parameter>)? {
            type Target = real::$name $(<$parameter>)?;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl $(<$parameter>)? $name $(<$parameter>)? {
            /// As std's.
            pub const fn new(value: $value) -> Self {
                Self(real::$name::new(value))
            }

            /// As std's.
            pub fn load(&self, order: Ordering) -> $value {
                preempt();
                self.0.load(order)
            }

            /// As std's.
            pub fn store(&self, value: $value, order: Ordering) {
                preempt();
                self.0.store(value, order);
            }

            /// The value before `change`, which makes a new one of it or leaves it.
            fn change(&self, change: impl FnOnce($value) -> Option<$value>) -> Result<$value, $value> {
                preempt();
                let before = self.0.load(Ordering::SeqCst);
                let Some(after) = change(before) else { return Err(before) };
                if is_torn() {
                    preempt();
                }
                self.0.store(after, Ordering::SeqCst);
                Ok(before)
            }

            fn always(&self, change: impl FnOnce($value) -> $value) -> $value {
                self.change(|before| Some(change(before))).unwrap_or_else(|before| before)
            }

            /// As std's.
            pub fn swap(&self, value: $value, _: Ordering) -> $value {
                self.always(|_| value)
            }

            /// As std's.
            ///
            /// # Errors
            /// As std's.
            pub fn compare_exchange(&self, old: $value, new: $value, _: Ordering, _: Ordering) -> Result<$value, $value> {
                self.change(|before| (before == old).then_some(new))
            }

            /// As std's; several steps of the word, as there.
            ///
            /// # Errors
            /// As std's.
            pub fn fetch_update(
                &self,
                _: Ordering,
                _: Ordering,
                mut update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.change(|before| update(before))
            }
        }
    };
}

macro_rules! integer {
    ($($name:ident: $value:ty),+) => {
        $(
            word!($name, $value);

            impl $name {
                /// As std's.
                pub fn fetch_add(&self, by: $value, _: Ordering) -> $value {
                    self.always(|before| before.wrapping_add(by))
                }

                /// As std's.
                pub fn fetch_sub(&self, by: $value, _: Ordering) -> $value {
                    self.always(|before| before.wrapping_sub(by))
                }

                /// As std's.
                pub fn fetch_or(&self, bits: $value, _: Ordering) -> $value {
                    self.always(|before| before | bits)
                }

                /// As std's.
                pub fn fetch_and(&self, bits: $value, _: Ordering) -> $value {
                    self.always(|before| before & bits)
                }

                /// As std's.
                pub fn fetch_max(&self, value: $value, _: Ordering) -> $value {
                    self.always(|before| before.max(value))
                }
            }
        )+
    };
}

integer!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);
word!(AtomicBool, bool);
word!(AtomicPtr<T>, *mut T);
