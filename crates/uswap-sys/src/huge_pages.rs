//! Whether the kernel may make transparent huge pages in this process: prctl(PR_SET_THP_DISABLE). A child of fork inherits that, and so
//! does what is executed.

#![allow(unsafe_code)]

use libc::{PR_GET_THP_DISABLE, PR_SET_THP_DISABLE, c_ulong, prctl};

/// PR_GET_THP_DISABLE answers two bits: none is made; and none but where MADV_HUGEPAGE asks for them (Linux 6.18), which PR_SET_THP_DISABLE
/// takes as a flag of its own.
const DISABLED: u32 = 1;
const EXCEPT_ADVISED: u32 = 2;

/// None from here on. What was allowed before; `None` where nothing was, or it is refused.
pub fn forbid() -> Option<u32> {
    // SAFETY: it only answers a number.
    let before = u32::try_from(unsafe { prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) }).ok().filter(|&now| now != DISABLED)?;
    set(true, 0).then_some(before)
}

/// As [`forbid`] found it.
pub fn allow(before: u32) {
    set(before & DISABLED != 0, before & EXCEPT_ADVISED);
}

fn set(disabled: bool, flags: u32) -> bool {
    let zero: c_ulong = 0;
    // SAFETY: huge pages make memory faster, and are not to be told otherwise.
    unsafe { prctl(PR_SET_THP_DISABLE, c_ulong::from(disabled), c_ulong::from(flags), zero, zero) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> libc::c_int {
        // SAFETY: as above.
        unsafe { prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) }
    }

    #[test]
    fn they_are_as_they_were() {
        assert_eq!(now(), 0);
        let before = forbid();
        assert_eq!((before, now()), (Some(0), 1));
        assert_eq!(forbid(), None, "nothing to forbid");
        allow(before.unwrap());
        assert_eq!(now(), 0);
    }
}
