//! Whether this process runs on valgrind.

#![allow(unsafe_code)]

use std::arch::asm;

/// `VG_USERREQ__RUNNING_ON_VALGRIND`, with its five arguments.
const IS_RUNNING: [usize; 6] = [0x1001, 0, 0, 0, 0, 0];

/// Whether the process runs on the processor that valgrind imitates: there, a sequence of instructions that leaves all
/// registers as they are is a question to valgrind.
///
/// Valgrind runs one thread at a time, and its tools keep their own tables in memory that is not told from the
/// program's. A tool that touches a page that is swapped out would wait for a handler, which waits for the tool.
pub fn is_running() -> bool {
    let mut answer = 0usize;
    // SAFETY: the register turns by 128 bits in all, and the exchange is of a register with itself, so nothing changes on
    // a real processor. Valgrind reads the six words that rax points to, and writes its answer into rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") IS_RUNNING.as_ptr(),
            inout("rdx") answer,
            options(nostack, readonly),
        );
    }
    answer != 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn not_here() {
        assert!(!super::is_running());
    }
}
