//! Compiles the C programs of the tests, once per content, into the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::settings::programs;

/// The C program `programs/NAME.c`, compiled.
pub fn c_program(name: &str) -> PathBuf {
    compile(name, name, &["-pthread"])
}

/// The same, with all its libraries in it.
pub fn c_static_program(name: &str) -> PathBuf {
    compile(name, &format!("{name}.static"), &["-static"])
}

/// The C library `programs/NAME.c`, compiled as `FILE.so`.
pub fn c_library(name: &str) -> PathBuf {
    compile(name, &format!("{name}.so"), &["-shared", "-fPIC"])
}

/// The same, linked with these flags besides.
pub fn c_library_with(name: &str, flags: &[String]) -> PathBuf {
    let flags: Vec<&str> = ["-shared", "-fPIC"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    compile(name, &format!("{name}.so"), &flags)
}

/// The path of a script in `programs/`.
pub fn script(name: &str) -> PathBuf {
    let path = programs().join(name);
    assert!(path.is_file(), "no script {}", path.display());
    path
}

fn compile(name: &str, output: &str, flags: &[&str]) -> PathBuf {
    let source = programs().join(format!("{name}.c"));
    let place = place_for(&source);
    let result = place.join(output);
    if result.is_file() {
        return result;
    }
    std::fs::create_dir_all(&place).expect("the target directory is writable");
    // Another test may compile the same: each writes its own file, the last rename wins.
    let thread = format!("{:?}", std::thread::current().id());
    let own = place.join(format!("{output}.{}.{}", std::process::id(), thread.replace(['(', ')'], "")));
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&own, &source])
        // Behind the source: a library that is named before who needs it is left out.
        .args(flags)
        .output()
        .expect("a C compiler (package gcc)");
    assert!(compiled.status.success(), "{}:\n{}", source.display(), String::from_utf8_lossy(&compiled.stderr));
    std::fs::rename(&own, &result).expect("rename inside one directory");
    result
}

/// A directory named after the content of the source and of all headers.
fn place_for(source: &Path) -> PathBuf {
    let mut headers: Vec<PathBuf> = std::fs::read_dir(programs())
        .expect("the directory of the programs")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "h"))
        .collect();
    headers.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64; // FNV-1a
    for path in headers.iter().map(PathBuf::as_path).chain([source]) {
        for byte in std::fs::read(path).expect("a readable source") {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    let test = std::env::current_exe().expect("the test knows its path");
    let profile = test.ancestors().nth(2).expect("a test lies in TARGET/PROFILE/deps");
    profile.join("e2e-programs").join(format!("{hash:016x}"))
}
