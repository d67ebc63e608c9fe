//! As much of Markdown as our documents use: headings, links, code spans, code blocks.

/// One document, line by line.
pub struct Document {
    /// Its path from the top of the repository.
    pub name: String,
    lines: Vec<(Kind, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Code,
}

impl Document {
    /// Takes the text apart.
    pub fn new(name: String, text: &str) -> Document {
        let (mut fenced, mut after_blank) = (false, true);
        let mut lines = Vec::new();
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                lines.push((Kind::Code, String::new()));
                continue;
            }
            let in_block = matches!(lines.last(), Some((Kind::Code, _)));
            let indented = line.starts_with("    ") && (after_blank || in_block);
            after_blank = line.trim().is_empty();
            lines.push((if fenced || indented { Kind::Code } else { Kind::Text }, line.to_owned()));
        }
        Document { name, lines }
    }

    fn texts(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.lines.iter().enumerate();
        numbered.filter(|(_, (kind, _))| *kind == Kind::Text).map(|(index, (_, text))| (index + 1, text.as_str()))
    }

    /// The targets of links, with their lines.
    pub fn links(&self) -> Vec<(usize, String)> {
        let mut links = Vec::new();
        for (number, line) in self.texts() {
            let bare: String = line.split('`').step_by(2).collect();
            for rest in bare.split("](").skip(1) {
                links.extend(rest.split_once(')').map(|(target, _)| (number, target.to_owned())));
            }
        }
        links
    }

    /// What stands between single backticks, also over the end of a line.
    pub fn spans(&self) -> Vec<(usize, String)> {
        let mut spans = Vec::new();
        let mut open: Option<(usize, String)> = None;
        let mut last = 0;
        for (number, line) in self.texts() {
            if number != last + 1 || line.trim().is_empty() {
                open = None;
            }
            last = number;
            for (place, part) in line.split('`').enumerate() {
                if place > 0 {
                    open = match open.take() {
                        Some(span) => {
                            spans.push(span);
                            None
                        }
                        None => Some((number, String::new())),
                    };
                }
                if let Some((_, text)) = &mut open {
                    text.push_str(if place == 0 { " " } else { "" });
                    text.push_str(part.trim());
                }
            }
        }
        spans
    }

    /// Lines of code blocks, and code spans.
    pub fn commands(&self) -> Vec<(usize, String)> {
        let mut commands: Vec<(usize, String)> = Vec::new();
        let mut prompts = false;
        for (index, (kind, line)) in self.lines.iter().enumerate() {
            let begins = index == 0 || self.lines[index - 1].0 == Kind::Text || line.is_empty();
            if *kind == Kind::Text || begins {
                prompts = false;
            }
            // What follows a prompt in the same block is what the command printed.
            prompts |= line.starts_with("$ ");
            if *kind == Kind::Text || (prompts && !line.starts_with("$ ")) {
                continue;
            }
            // The options of a long usage line go on in the next one.
            match commands.last_mut() {
                Some((_, before)) if line.trim_start().starts_with('[') => before.push_str(line),
                _ => commands.push((index + 1, line.clone())),
            }
        }
        commands.extend(self.spans());
        commands
    }

    /// The bold words with which paragraphs begin, without the point at their end.
    pub fn bold(&self) -> Vec<(usize, String)> {
        let begun =
            self.texts().filter_map(|(number, line)| Some((number, line.strip_prefix("**")?.split_once("**")?.0)));
        begun.map(|(number, words)| (number, words.trim_end_matches('.').to_owned())).collect()
    }

    /// How many lines it has.
    pub fn length(&self) -> usize {
        self.lines.len()
    }

    /// The first cells of the tables whose own first cell is `title`, with their lines.
    pub fn column(&self, title: &str) -> Vec<(usize, &str)> {
        let mut inside = false;
        let mut cells = Vec::new();
        for (number, line) in self.texts() {
            match line.strip_prefix("| ").and_then(|row| row.split_once(" |")) {
                None => inside = false,
                Some((first, _)) if first == title => inside = true,
                Some((first, _)) if inside && !first.starts_with("---") => cells.push((number, first)),
                Some(_) => {}
            }
        }
        cells
    }

    /// The first cells of all rows of tables.
    pub fn rows(&self) -> Vec<&str> {
        let cells = self.texts().filter_map(|(_, line)| line.strip_prefix("| ")?.split_once(" |"));
        cells.map(|(first, _)| first.trim()).collect()
    }

    /// The anchors of all headings, as GitHub makes them.
    pub fn anchors(&self) -> impl Iterator<Item = String> {
        let headings = self.texts().filter_map(|(_, line)| line.strip_prefix('#'));
        headings.map(|heading| {
            let words = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A `b`, c\n\nSee [it](x.md#y) and `not [this](z.md)`, `two\nlines`.\n\n    uswap run\n        [-q]\n\n\
                        ```sh\n$ uswap doctor\nuswap says\n```\n\n**Bold.** x\n| row | y |\n";

    #[test]
    fn links_spans_and_blocks_are_told_apart() {
        let document = Document::new("a.md".to_owned(), TEXT);
        assert_eq!(document.links(), [(3, "x.md#y".to_owned())]);
        let spans: Vec<String> = document.spans().into_iter().map(|(_, span)| span).collect();
        assert_eq!(spans, ["b", "not [this](z.md)", "two lines"]);
        let commands: Vec<String> = document.commands().into_iter().map(|(_, line)| line.trim().to_owned()).collect();
        assert!(commands.contains(&"uswap run        [-q]".to_owned()), "{commands:?}");
        assert!(commands.contains(&"$ uswap doctor".to_owned()), "{commands:?}");
        assert!(!commands.contains(&"uswap says".to_owned()), "{commands:?}");
        assert_eq!((document.bold(), document.rows()), (vec![(14, "Bold".to_owned())], vec!["row"]));
        assert_eq!(document.anchors().collect::<Vec<_>>(), ["a-b-c"]);
        assert_eq!(document.length(), 15);
    }

    #[test]
    fn a_column_ends_with_its_table() {
        let text = "| option | x |\n| --- | --- |\n| `-m` | y |\n\n| other | x |\n| --- | --- |\n| z | z |\n";
        let document = Document::new("a.md".to_owned(), text);
        assert_eq!(document.column("option"), [(3, "`-m`")]);
        assert_eq!(document.column("other"), [(7, "z")]);
    }
}
