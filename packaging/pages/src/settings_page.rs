//! mpsgate.toml(5), from the settings file that is shipped: its comments, its keys, its defaults.
//!
//! ```text
//! # text                 a paragraph of what follows
//! #   more               as it is: a list of values, an example
//! [table]                a section
//! #key = value           what the paragraphs above are about, at its default
//! ```

use crate::PagesError;
use crate::roff_text::{escape, item, literal, section, see_also, title};

pub(crate) fn render(settings: &str) -> Result<String, PagesError> {
    let mut text = title("mpsgate.toml", 5);
    text.push_str(&section("NAME"));
    text.push_str("mpsgate.toml \\- settings of mpsgate: /etc/mpsgate/config.toml\n");
    text.push_str(&section("DESCRIPTION"));
    let mut comment: Vec<&str> = Vec::new();
    let mut table = None;
    for (index, line) in settings.lines().enumerate() {
        let wrong = |what| PagesError::Settings { line: index + 1, what };
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            if table.is_none() {
                text.push_str(&paragraphs(&comment));
            } else if !comment.is_empty() {
                return Err(wrong("a comment above a table, and none of its keys"));
            }
            comment.clear();
            text.push_str(&section(&format!("[{}]", escape(name))));
            table = Some(name);
        } else if let Some(line) = line.strip_prefix("# ") {
            comment.push(line);
        } else if line == "#" {
            comment.push("");
        } else if let Some(key) = line.strip_prefix('#') {
            let (Some(table), Some((name, default))) = (table, key.split_once(" = ")) else {
                return Err(wrong("neither a comment nor a key at its default"));
            };
            let heading =
                format!("\\fB{}\\fR = {}", escape(&format!("{table}.{name}")), escape(default));
            text.push_str(&item(&heading, &indented(&comment)));
            comment.clear();
        } else if !line.is_empty() {
            return Err(wrong("a key that is not commented out"));
        }
    }
    if !comment.is_empty() {
        return Err(PagesError::Settings {
            line: settings.lines().count(),
            what: "a comment below which no key stands",
        });
    }
    let pages = ["mpsgate.8", "mpsgated.8", "mpsgate-runtime.8"].map(str::to_owned);
    Ok(text + &see_also(&pages))
}

/// Paragraphs of a section. The first line of the file is its title, which the page has already.
fn paragraphs(lines: &[&str]) -> String {
    let lines: Vec<&str> =
        lines.iter().skip(1).copied().skip_while(|line| line.is_empty()).collect();
    let paragraph = |line: &str| if line.is_empty() { ".PP".to_owned() } else { escape(line) };
    lines.iter().map(|line| paragraph(line) + "\n").collect()
}

/// What stands below a key: text is filled, lists and examples stay as they are.
fn indented(lines: &[&str]) -> String {
    let mut text = String::new();
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("  ") {
            let mut list = vec![line.strip_prefix("  ").unwrap_or(line)];
            while let Some(more) = lines.next_if(|line| line.starts_with("  ")) {
                list.push(more.strip_prefix("  ").unwrap_or(more));
            }
            // Inside the item; what follows belongs to it, too.
            let more = if lines.peek().is_some() { ".IP\n" } else { "" };
            text.push_str(&format!(".RS\n{}.RE\n{more}", literal(&list)));
        } else {
            text.push_str(&format!("{}\n", escape(line)));
        }
    }
    text.trim_end().to_owned()
}
