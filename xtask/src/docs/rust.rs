//! Rust source, as far as counting its lines needs: where comments, strings and braces are.

/// A function and its lines of code, from its name to its closing brace.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Without its path.
    pub name: String,
    /// Neither blank nor comments.
    pub lines: usize,
}

/// A file without comments, without what strings hold, and without its modules of tests.
pub struct Source(String);

impl Source {
    /// Takes out what does not count.
    pub fn new(text: &str) -> Source {
        let mut code = blanked(text);
        while let Some((start, end)) = tests_of(&code) {
            code.replace_range(start..end, "");
        }
        Source(code)
    }

    /// Lines with code.
    pub fn lines(&self) -> usize {
        lines_in(&self.0)
    }

    /// All functions that have a body.
    pub fn functions(&self) -> Vec<Function> {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = self.0[from..].find("fn ").map(|at| from + at) {
            from = at + 3;
            let is_word = self.0[..at].chars().next_back().is_none_or(|before| !is_part_of_name(before));
            let name: String = self.0[from..].chars().take_while(|letter| is_part_of_name(*letter)).collect();
            if let (true, false, Some(body)) = (is_word, name.is_empty(), body_after(&self.0, from)) {
                found.push(Function { name, lines: lines_in(&self.0[at..=closing(&self.0, body)]) });
            }
        }
        found
    }

    /// All structs with named fields, and how many they have.
    pub fn structs(&self) -> Vec<(String, usize)> {
        let mut found = Vec::new();
        for (at, _) in self.0.match_indices("struct ") {
            let is_word = self.0[..at].chars().next_back().is_none_or(|before| !is_part_of_name(before));
            let rest = &self.0[at + "struct ".len()..];
            let name: String = rest.chars().take_while(|letter| is_part_of_name(*letter)).collect();
            let Some(end) = rest.find(['{', ';', '(']).filter(|_| is_word && !name.is_empty()) else { continue };
            if rest.as_bytes()[end] == b'{' {
                found.push((name, fields_in(&rest[end + 1..closing(rest, end)])));
            }
        }
        found
    }

    /// The modules of its crate that it names.
    pub fn imports(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (at, _) in self.0.match_indices("crate::") {
            let rest = &self.0[at + "crate::".len()..];
            let several = rest.strip_prefix('{').map(|inner| &inner[..closing(rest, 0) - 1]);
            let paths = several.map_or_else(|| vec![rest], |inner| parts_of(inner).collect());
            for path in paths {
                found.push(path.trim().chars().take_while(|letter| is_part_of_name(*letter)).collect());
            }
        }
        found
    }
}

/// What stands between the commas of `code` that are in no bracket.
fn parts_of(code: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    code.split(move |letter| {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

/// Fields of a struct with this body.
fn fields_in(body: &str) -> usize {
    parts_of(&body.replace("->", "")).filter(|part| part.contains(':')).count()
}

fn is_part_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn lines_in(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// Where the first module that is only for tests begins and ends.
fn tests_of(code: &str) -> Option<(usize, usize)> {
    let start = code.find("#[cfg(test)]\nmod ").or_else(|| code.find("#[cfg(test)]\npub mod "))?;
    let after = start + code[start..].find("mod ")?;
    let end = after + code[after..].find(['{', ';'])?;
    Some((start, if code.as_bytes()[end] == b'{' { closing(code, end) + 1 } else { end + 1 }))
}

/// Where the body of a function opens whose name begins at `from`; `None` if it has none.
fn body_after(code: &str, from: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, letter) in code[from..].char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            '{' if depth == 0 => return Some(from + at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Where the brace that opens at `open` is closed.
fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, letter) in code[open..].char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return open + at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len() - 1
}

/// With nothing in comments, strings and characters but their line ends.
fn blanked(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let before = code.chars().next_back();
        let (length, kept) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), ""),
            '/' if rest.starts_with("/*") => (rest.find("*/").map_or(rest.len(), |end| end + 2), ""),
            '"' => (string(rest), "\"x"),
            'r' if before.is_none_or(|before| !is_part_of_name(before) || before == 'b') => match raw_string(rest) {
                Some(length) => (length, "\"x"),
                None => (1, "r"),
            },
            '\'' => character(rest).map_or((1, "'"), |length| (length, "'x'")),
            other => {
                code.push(other);
                rest = &rest[other.len_utf8()..];
                continue;
            }
        };
        code.push_str(kept);
        // A string of several lines is code on each of them.
        for _ in rest[..length].matches('\n') {
            code.push_str(if kept.is_empty() { "\n" } else { "\nx" });
        }
        rest = &rest[length..];
    }
    code
}

/// Length of the string that `text` begins with.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Length of the raw string that `text` begins with, if it is one.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    text[1 + hashes..].starts_with('"').then(|| {
        let end = format!("\"{}", "#".repeat(hashes));
        let body = 2 + hashes;
        text[body..].find(&end).map_or(text.len(), |at| body + at + end.len())
    })
}

/// Length of the character that `text` begins with; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut letters = text.char_indices().skip(1);
    let (_, first) = letters.next()?;
    if first == '\\' {
        let _ = letters.next();
        return letters.find(|(_, letter)| *letter == '\'').map(|(at, _)| at + 1);
    }
    letters.next().filter(|(_, letter)| *letter == '\'').map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(text: &str) -> Vec<(String, usize)> {
        Source::new(text).functions().into_iter().map(|function| (function.name, function.lines)).collect()
    }

    #[test]
    fn lines_are_those_with_code() {
        let text = "//! Head.\n\nuse std::fs; // twice\n/* one\ntwo */\nfn f() {\n\n    // why\n    g();\n}\n";
        assert_eq!(Source::new(text).lines(), 4);
        assert_eq!(functions(text), [("f".to_owned(), 3)]);
    }

    #[test]
    fn tests_do_not_count() {
        let text = "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {\n    }\n}\nfn h() {}\n#[cfg(test)]\nmod more;\n";
        assert_eq!(Source::new(text).lines(), 2);
        assert_eq!(functions(text).len(), 2);
    }

    #[test]
    fn braces_in_strings_and_characters_are_none() {
        let text = "fn f<'a>(x: &'a str) -> [u8; 2] {\n    if x == \"}\\\"{\" {\n        r#\"}\"}\"#;\n        '}';\n    }\n}\nfn g() {}\n";
        assert_eq!(functions(text), [("f".to_owned(), 6), ("g".to_owned(), 1)]);
    }

    #[test]
    fn a_string_of_several_lines_is_code() {
        assert_eq!(functions("fn f() {\n    \"one\n\n    three\"\n}\n"), [("f".to_owned(), 5)]);
    }

    #[test]
    fn fields_are_counted_and_imports_found() {
        let text = "struct A<T: B> {\n    /// Two: words.\n    pub a: [u8; 3],\n    b: Map<T, u8>,\n    c: fn(u8, u8) -> u8\n}\nstruct C(u8);\nstruct D {}\n";
        assert_eq!(Source::new(text).structs(), [("A".to_owned(), 3), ("D".to_owned(), 0)]);
        let text = "use crate::one::{Two, Three};\nuse crate::{four, five::{Six, Seven}};\n// crate::eight\nfn f() { crate::nine::f() }\n#[cfg(test)]\nmod tests {\n    use crate::ten;\n}\n";
        assert_eq!(Source::new(text).imports(), ["one", "four", "five", "nine"]);
    }

    #[test]
    fn a_function_without_a_body_is_none() {
        assert_eq!(
            functions("trait T {\n    fn f(x: [u8; 3]);\n    fn g() {\n    }\n}\nstatic P: fn (u8);\n"),
            [("g".to_owned(), 2)]
        );
    }
}
