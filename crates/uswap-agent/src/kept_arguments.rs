//! What wrappers written as machine code have in common.

/// Machine code that runs some lines, among them one call, and leaves a function's arguments as they came. It stands where a function
/// begins: the stack is aligned for the call. What `rax` is afterwards is the call's.
macro_rules! keeping_arguments {
    ($($line:expr),+ $(,)?) => {
        concat!(
            "push rdi\n",
            "push rsi\n",
            "push rdx\n",
            "push rcx\n",
            "push r8\n",
            "push r9\n",
            "sub rsp, 8\n",
            $($line, "\n",)+
            "add rsp, 8\n",
            "pop r9\n",
            "pop r8\n",
            "pop rcx\n",
            "pop rdx\n",
            "pop rsi\n",
            "pop rdi",
        )
    };
}

pub(crate) use keeping_arguments;
