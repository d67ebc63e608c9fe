//! Whether parts know their room: structs of the product that one can hold in mind, and modules of the engine that do not import each
//! other in a circle.
//!
//! What is still above is listed. The lists may become shorter, but not longer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::places::sources;
use super::rust::Source;

/// Fields of a struct.
const FIELDS_MAX: usize = 10;
/// Where structs are looked at: what is in the product.
const PRODUCT: [&str; 6] = ["agent", "cli", "core", "engine", "sys", "system"];
/// The crate whose modules are.
const ENGINE: &str = "engine";

/// Structs with more, with their fields: options of the command, lines of a report, and records of the kernel's.
const WIDE_STRUCTS: &[(&str, usize)] = &[
    ("cli/run/options.rs: RunOptions", 13),
    ("cli/sim/run.rs: Report", 14),
    ("cli/sim/time.rs: TimeArgs", 20),
    ("sys/maps.rs: QueryRequest", 15),
    ("sys/pagemap.rs: ScanRequest", 12),
];

/// Modules that import each other in a circle, still.
const IN_CIRCLES: &[&str] = &[];

/// What is wrong, with the struct or the modules.
pub fn mistakes(root: &Path) -> Result<Vec<String>, String> {
    let mut structs = Vec::new();
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for of in PRODUCT {
        let directory = root.join(format!("crates/uswap-{of}/src"));
        let mut paths = Vec::new();
        sources(&directory, &mut paths)?;
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let source = Source::new(&text);
            let name = path.strip_prefix(&directory).unwrap_or(&path).display().to_string();
            structs.extend(source.structs().into_iter().map(|(it, fields)| (format!("{of}/{name}: {it}"), fields)));
            let module = name.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
            if of == ENGINE && module != "lib" {
                imports.entry(module).or_default().extend(source.imports());
            }
        }
    }
    let mut wrong = wide(&structs, WIDE_STRUCTS);
    wrong.extend(circles(&imports, IN_CIRCLES));
    Ok(wrong)
}

/// Structs with too many fields, and exceptions that can go.
fn wide(structs: &[(String, usize)], listed: &[(&str, usize)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, fields) in structs {
        match listed.iter().find(|(of, _)| of == name) {
            None if *fields > FIELDS_MAX => {
                wrong.push(format!("{name} has {fields} fields, and at most {FIELDS_MAX} shall they be"));
            }
            Some((_, most)) if fields > most => {
                wrong.push(format!("{name} has {fields} fields, more than the {most} it had"));
            }
            Some(_) if *fields <= FIELDS_MAX => {
                wrong.push(format!("{name} has {fields} fields: its exception in docs/parts.rs can go"));
            }
            _ => {}
        }
    }
    let gone = listed.iter().filter(|(name, _)| !structs.iter().any(|(of, _)| of == name));
    wrong.extend(gone.map(|(name, _)| format!("{name} is not there: its exception in docs/parts.rs can go")));
    wrong
}

/// Modules that can be reached from themselves, and exceptions that can go.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>, listed: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for module in imports.keys() {
        let way = way_back(imports, module);
        match (way, listed.contains(&module.as_str())) {
            (Some(way), false) => wrong.push(format!("modules import each other in a circle: {}", way.join(", "))),
            (None, true) => {
                wrong.push(format!("module {module} is in no circle: its exception in docs/parts.rs can go"))
            }
            _ => {}
        }
    }
    let gone = listed.iter().filter(|name| !imports.contains_key(**name));
    wrong.extend(gone.map(|name| format!("module {name} is not there: its exception in docs/parts.rs can go")));
    wrong
}

/// The shortest way of imports from `module` to itself.
fn way_back(imports: &BTreeMap<String, BTreeSet<String>>, module: &str) -> Option<Vec<String>> {
    let mut ways = std::collections::VecDeque::from([vec![module.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let last = way.last()?;
        for next in imports.get(last).into_iter().flatten().filter(|next| *next != last) {
            if next == module {
                return Some(way);
            }
            if seen.insert(next.clone()) {
                let mut longer = way.clone();
                longer.push(next.clone());
                ways.push_back(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_know_their_room() {
        let wrong = mistakes(crate::run::root()).unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_wide_struct_is_found_and_an_exception_may_only_shrink() {
        let of = |fields| vec![("Engine".to_owned(), fields)];
        assert!(wide(&of(10), &[]).is_empty());
        assert!(wide(&of(11), &[])[0].contains("at most 10"));
        assert!(wide(&of(11), &[("Engine", 12)]).is_empty());
        assert!(wide(&of(13), &[("Engine", 12)])[0].contains("more than the 12"));
        assert!(wide(&of(10), &[("Engine", 12)])[0].contains("can go"));
        assert!(wide(&[], &[("Engine", 12)])[0].contains("not there"));
    }

    #[test]
    fn a_circle_is_found_however_long() {
        let imports = |text: &str| {
            let of = |line: &str| {
                let (module, others) = line.split_once(": ").unwrap();
                (module.to_owned(), others.split(' ').map(str::to_owned).collect())
            };
            text.split("; ").map(of).collect::<BTreeMap<String, BTreeSet<String>>>()
        };
        assert!(circles(&imports("a: b c; b: c; c: d; d: d"), &[]).is_empty());
        let circle = imports("a: b; b: c; c: a; d: a");
        assert!(circles(&circle, &[])[0].contains("circle: a, b, c"));
        assert!(circles(&circle, &["a", "b", "c"]).is_empty());
        assert!(circles(&imports("a: b"), &["a"])[0].contains("can go"));
    }
}
