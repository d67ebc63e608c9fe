#!/bin/bash
# about: cargo build of a workspace of six crates, a macro crate among them, two jobs; the program's answer
# group: build
# packages: gcc libc6-dev
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need cargo rustc
    local crate
    mkdir workspace
    echo '[workspace]
members = ["crate*", "macros", "program"]
resolver = "2"' >workspace/Cargo.toml
    local package='[package]
version = "0.1.0"
edition = "2021"'
    mkdir -p workspace/macros/src workspace/program/src
    printf '%s\nname = "macros"\n[lib]\nproc-macro = true\n' "$package" >workspace/macros/Cargo.toml
    cat >workspace/macros/src/lib.rs <<'END'
use proc_macro::TokenStream;
/// So many functions f0, f1 and so on, and `all`, their sum.
#[proc_macro]
pub fn functions(count: TokenStream) -> TokenStream {
    let count: usize = count.to_string().parse().unwrap();
    let one = |i| format!("pub fn f{i}(x: u64) -> u64 {{ let v: Vec<u64> = (0..x % 50).map(|y| y * {i} + x).collect(); v.iter().filter(|y| **y % 3 != 1).sum::<u64>() + format!(\"{{v:?}}\").len() as u64 }}");
    let mut code: String = (0..count).map(one).collect();
    code += "pub fn all(x: u64) -> u64 { let mut s = 0; ";
    for i in 0..count { code += &format!("s = s * 31 % 1000003 + f{i}(x); "); }
    (code + "s }").parse().unwrap()
}
END
    printf '%s\nname = "program"\n[dependencies]\n' "$package" >workspace/program/Cargo.toml
    local calls=
    for ((crate = 0; crate < 4; crate++)); do
        mkdir -p "workspace/crate$crate/src"
        printf '%s\nname = "crate%s"\n[dependencies]\nmacros = { path = "../macros" }\n' "$package" "$crate" >"workspace/crate$crate/Cargo.toml"
        echo "macros::functions!($(sized 60 15));" >"workspace/crate$crate/src/lib.rs"
        echo "crate$crate = { path = \"../crate$crate\" }" >>workspace/program/Cargo.toml
        calls+="sum = sum * 31 % 1000003 + crate$crate::all(sum + 7); "
    done
    echo "fn main() { let mut sum = 0u64; $calls println!(\"{sum}\"); }" >workspace/program/src/main.rs
}

work() {
    made=$PWD/made.$$
    trap 'rm -rf "$made"' EXIT
    cargo build --offline --quiet -j2 --manifest-path workspace/Cargo.toml --target-dir "$made" >&2
    "$made/debug/program"
}

main "$@"
