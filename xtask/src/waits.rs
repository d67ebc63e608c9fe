//! The list of waits: docs/waits.md has each place in which a thread waits for another.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    /// By these a thread waits. A new way to wait belongs here.
    const WAYS: [&str; 16] = [
        ".wait(",
        ".wait_while(",
        "usleep(",
        "nanosleep(",
        "::sleep(",
        "event::poll(",
        "event::select(",
        "H::wait(",
        "waitpid(",
        "process::wait(",
        "recvmsg(",
        "accept_with(",
        "lock.lock()",
        "FORKING.lock()",
        "awake.lock()",
        ".lock_within(",
    ];
    const CRATES: [&str; 5] = ["uswap-agent", "uswap-engine", "uswap-system", "uswap-sys", "uswap-cli"];

    fn waits_in(source: &str) -> usize {
        let product = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code = product.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        code.filter(|line| {
            WAYS.iter().any(|way| line.contains(way)) || line.ends_with("pause();") || line.contains("pause::<")
        })
        .count()
    }

    fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).expect("a directory of sources") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            // The simulator is in no program's way, nor are tests of words.
            if path.is_dir() && !["sim", "words"].contains(&name) {
                sources(&path, found);
            } else if name.ends_with(".rs") && !["tests.rs", "words.rs"].contains(&name) {
                found.push(path);
            }
        }
    }

    fn in_the_code(root: &Path) -> BTreeMap<String, usize> {
        let mut found = Vec::new();
        CRATES.iter().for_each(|name| sources(&root.join("crates").join(name).join("src"), &mut found));
        let crates = root.join("crates");
        let count = |path: &PathBuf| {
            let waits = waits_in(&std::fs::read_to_string(path).expect("a source"));
            let name = path.strip_prefix(&crates).expect("below crates").display().to_string();
            (waits > 0).then_some((name, waits))
        };
        found.iter().filter_map(count).collect()
    }

    fn in_the_list(root: &Path) -> BTreeMap<String, usize> {
        let list = std::fs::read_to_string(root.join("docs/waits.md")).expect("docs/waits.md");
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            let file = cells.next()?.trim().trim_end_matches('`').to_owned();
            let waits = cells.next()?.trim().parse().ok()?;
            (waits > 0).then_some((file, waits))
        };
        list.lines().filter_map(row).collect()
    }

    #[test]
    fn every_wait_is_in_the_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let (code, list) = (in_the_code(root), in_the_list(root));
        assert!(code.len() > 20, "the search finds nothing: {code:?}");
        assert_eq!(
            code, list,
            "left: waits in the code, right: docs/waits.md. Who waits, for how long, and what if nobody answers?"
        );
    }

    #[test]
    fn a_wait_is_seen_and_a_comment_is_not() {
        assert_eq!(
            waits_in("word.wait(1, None);\n// word.wait(\nlet x = 1;\nself.awake.lock();\n#[cfg(test)]\na.wait("),
            2
        );
    }
}
