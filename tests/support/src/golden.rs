//! Text that is compared with a file, so that a review of the file shows what changes.

use std::fs;
use std::path::Path;

/// Compares block by block, so that a difference is read where it is. With `MPSGATE_BLESS=1` in the
/// environment the file is written first.
///
/// # Panics
/// Where the file holds another text.
#[track_caller]
pub fn compare(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    if std::env::var_os("MPSGATE_BLESS").is_some() {
        fs::write(path, text).expect("the golden file can be written");
    }
    let recorded = fs::read_to_string(path).unwrap_or_default();
    for (now, then) in text.split("\n\n").zip(recorded.split("\n\n")) {
        assert_eq!(now, then, "\n{} differs; MPSGATE_BLESS=1 records the new text", path.display());
    }
    assert!(
        text == recorded,
        "{} differs; it is now:\n{text}\nMPSGATE_BLESS=1 records it",
        path.display()
    );
}

/// Blocks of lines, each with the lines of its name above what it shows. Where neighbours show the
/// same, that stands once, below both names.
#[must_use]
pub fn together(blocks: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let mut shown: Vec<(String, String)> = Vec::new();
    for (name, shows) in blocks {
        match shown.last_mut() {
            Some((names, before)) if *before == shows => names.push_str(&name),
            _ => shown.push((name, shows)),
        }
    }
    shown.into_iter().map(|(names, shows)| names + &shows).collect()
}
