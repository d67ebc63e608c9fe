//! The agent is found by name only: nothing of it needs to be looked up before it has started.
fn main() {
    // Calls inside the agent are bound when it is loaded: lazy binding would read the loader's tables, which may be
    // swapped out, on the fault path.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
