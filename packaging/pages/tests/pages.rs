//! The pages lead where they say, and their commands are what the programs take.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every page for a reader: below the root, and below `docs`.
fn pages() -> Vec<PathBuf> {
    let of = |folder: PathBuf| {
        let entries = fs::read_dir(&folder).expect("the folder can be listed").flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut pages = of(root());
    pages.extend(of(root().join("docs")));
    pages.extend(["src", "tests", "hooks"].map(|folder| root().join(folder).join("README.md")));
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// The lines of a page outside fences, or those inside of one that is for a shell.
fn lines(text: &str, is_shell: bool) -> Vec<&str> {
    let mut fence = None;
    let mut found = Vec::new();
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), fence) {
            (Some(language), None) => fence = Some(language),
            (Some(_), Some(_)) => fence = None,
            (None, None) if !is_shell => found.push(line),
            (None, Some("sh" | "bash" | "shell")) if is_shell => found.push(line),
            _ => {}
        }
    }
    found
}

/// As GitHub names headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text, false).into_iter().filter(|line| line.starts_with('#'));
    let name = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(name).collect()
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page is text");
        let prose = lines(&text, false).join("\n");
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = page.parent().expect("a page is in a folder");
            let to = if file.is_empty() { page.clone() } else { folder.join(file) };
            let leads = to.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&to).is_ok_and(|text| anchors(&text).contains(anchor)));
            if !leads {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_command_of_a_page_is_one_that_mpsgate_takes() {
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page is text");
        for line in lines(&text, true) {
            let parts = line.split("&&").flat_map(|part| part.split(['|', ';', '#', '<', '>']));
            for part in parts.filter(|part| part.trim_start().starts_with("mpsgate ")) {
                count += 1;
                // What a reader puts in.
                let words = part.split_whitespace().map(|word| match word {
                    "GPU" | "N" => "0",
                    other => other,
                });
                if let Err(error) = mpsgate_cli::command().try_get_matches_from(words) {
                    wrong.push(format!("{}: {part}: {error}", page.display()));
                }
            }
        }
    }
    assert!(count >= 10, "only {count} commands were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_book_has_every_page() {
    let summary = root().join("packaging/book/SUMMARY.md");
    let summary = fs::read_to_string(summary).expect("the book has a summary");
    let missing: Vec<_> = pages()
        .into_iter()
        .filter_map(|page| Some(page.strip_prefix(root()).ok()?.to_string_lossy().into_owned()))
        .filter(|page| !summary.contains(&format!("({page})")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
