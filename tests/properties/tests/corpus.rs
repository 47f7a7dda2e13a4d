//! Replays every corpus file and every regression of `tests/fuzz` through the property of its
//! target, and keeps targets, corpora, the fuzz workspace and its table of parsers in step.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use mpsgate_properties::TARGETS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn names(directory: &str) -> BTreeSet<String> {
    let names = files(&root().join(directory));
    names.iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_corpus_file_and_regression_holds() {
    let mut broken = Vec::new();
    for (target, property) in TARGETS {
        for path in files(&root().join("tests/fuzz/corpus").join(target)) {
            let data = fs::read(&path).unwrap();
            if catch_unwind(|| property(&data)).is_err() {
                broken.push(path);
            }
        }
    }
    assert!(broken.is_empty(), "the property of its target does not hold for {broken:#?}");
}

#[test]
fn every_target_has_a_corpus_a_fuzz_target_and_a_row() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("tests/fuzz/corpus"), targets);
    assert_eq!(names("tests/fuzz/fuzz_targets"), targets);
    let manifest = fs::read_to_string(root().join("tests/fuzz/Cargo.toml")).unwrap();
    let table = fs::read_to_string(root().join("tests/fuzz/README.md")).unwrap();
    for target in &targets {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is in no [[bin]]");
        assert!(table.contains(&format!("| `{target}` |")), "{target} has no row in README.md");
    }
}

/// What a line must hold for its file to be one that parses.
const PARSES: [&str; 6] = [
    "fn parse",
    "serde_json::from_slice",
    "serde_json::from_str",
    "serde_saphyr::from_str",
    "Deserializer::from_str",
    "DeTable::parse",
];

fn parsing_files(directory: &Path, found: &mut BTreeSet<String>) {
    for path in files(directory) {
        if path.is_dir() {
            if !path.ends_with("tests") {
                parsing_files(&path, found);
            }
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.ends_with(".rs") || name.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let product = text.split("mod tests {").next().unwrap();
        if PARSES.iter().any(|sign| product.contains(sign)) {
            found.insert(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn every_file_that_parses_is_in_the_table() {
    let mut found = BTreeSet::new();
    parsing_files(&root().join("src"), &mut found);
    assert!(found.len() > 20, "the search is broken: {found:?}");
    let table = fs::read_to_string(root().join("tests/fuzz/README.md")).unwrap();
    let missing: Vec<&String> =
        found.iter().filter(|file| !table.contains(&format!("`{file}`"))).collect();
    assert!(
        missing.is_empty(),
        "these files parse, but tests/fuzz/README.md names no target and no reason for them: {missing:#?}"
    );
}
