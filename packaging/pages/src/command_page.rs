//! A manual page for a command and for each of its subcommands.

use clap::Command;
use clap_mangen::Man;

use crate::roff_text::{escape, item, literal, section, see_also, title};

/// Pages that every page names.
const OTHERS: [&str; 8] = [
    "mpsgate.8",
    "mpsgated.8",
    "mpsgate-runtime.8",
    "mpsgate-hook.8",
    "mpsgate-gate.8",
    "mpsgate.toml.5",
    "mpsgate-scheduler.8",
    "kubectl-inspect-cgpu.1",
];
const EXIT_STATUS: &str = "Exit status";

/// All of them in a section of the manual, by file name: `mpsgate.8`, `mpsgate-mps-stop.8`, …
pub(crate) fn all(mut command: Command, number: u8) -> Vec<(String, String)> {
    command.build();
    let exit_status = blocks(&command).into_iter().find(|(title, _)| title == EXIT_STATUS);
    let exit_status = exit_status.map(|(_, lines)| lines).unwrap_or_default();
    let mut pages = Vec::new();
    collect(&command, number, &exit_status, &mut pages);
    pages
}

fn collect(
    command: &Command,
    number: u8,
    exit_status: &[String],
    pages: &mut Vec<(String, String)>,
) {
    let name = format!("{}.{number}", name(command));
    let text = page(command, number, &name, exit_status);
    pages.push((name, text));
    for below in subcommands(command) {
        collect(below, number, exit_status, pages);
    }
}

/// clap's own `help` says nothing of its own.
fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| below.get_name() != "help")
}

/// `mpsgate-mps-stop`
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &Command, number: u8, own: &str, exit_status: &[String]) -> String {
    let man = Man::new(command.clone());
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = man.render_name_section(&mut bytes);
    let _ = man.render_synopsis_section(&mut bytes);
    let _ = man.render_description_section(&mut bytes);
    let _ = man.render_options_section(&mut bytes);
    let mut text = title(name(command), number) + &tidied(&String::from_utf8_lossy(&bytes));

    let below: Vec<&Command> = subcommands(command).collect();
    if !below.is_empty() {
        text.push_str(&section("COMMANDS"));
    }
    for below in &below {
        let about = below.get_about().map(ToString::to_string).unwrap_or_default();
        let heading = format!("\\fB{}\\fR({number})", escape(name(below)));
        text.push_str(&item(&heading, &escape(&about)));
    }
    for (title, lines) in blocks(command).iter().filter(|(title, _)| title != EXIT_STATUS) {
        text.push_str(&section(&title.to_uppercase()));
        text.push_str(&literal(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    text.push_str(&section("EXIT STATUS"));
    for line in exit_status {
        let (code, meaning) = line.split_once(' ').unwrap_or((line, ""));
        text.push_str(&item(&format!("\\fB{code}\\fR"), &escape(meaning.trim())));
    }
    let others = OTHERS.iter().map(ToString::to_string).filter(|page| *page != own);
    text + &see_also(&others.collect::<Vec<_>>())
}

/// The blocks of the text behind the options: each has a title that ends with a colon, and lines
/// that are indented by two.
fn blocks(command: &Command) -> Vec<(String, Vec<String>)> {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut blocks: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("  "), line.strip_suffix(':'), blocks.last_mut()) {
            (Some(line), _, Some((_, lines))) => lines.push(line.to_owned()),
            (None, Some(title), _) => blocks.push((title.to_owned(), Vec::new())),
            _ => {}
        }
    }
    blocks
}

/// clap_mangen begins each part with a definition of the apostrophe, of which one is enough, and
/// breaks lines around an empty one, of which mandoc complains.
fn tidied(text: &str) -> String {
    let is_preamble = |line: &str| line.starts_with(".ie \\n(.g") || line.starts_with(".el .ds");
    let mut seen = 0;
    let mut kept = String::new();
    for line in text.lines() {
        if is_preamble(line) {
            seen += 1;
            if seen > 2 {
                continue;
            }
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept.replace(".br\n\n.br\n", ".sp\n")
}
