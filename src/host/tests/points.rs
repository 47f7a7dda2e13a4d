//! The list and the source agree.

use std::path::{Path, PathBuf};

use mpsgate_host::crash::{POINTS, is_listed};

/// Every `crash_point!("NAME")` and `crash_steps!("OF": "STEP", …)` in the crates' sources, with
/// its file.
fn passed(directory: &Path, found: &mut Vec<(String, PathBuf)>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the workspace") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            passed(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            for part in text.split("crash_point!(\"").skip(1) {
                let name = part.split('"').next().unwrap_or_default();
                found.push((name.to_owned(), path.clone()));
            }
            for part in text.split("crash_steps!(").skip(1) {
                let mut quoted =
                    part.split(')').next().unwrap_or_default().split('"').skip(1).step_by(2);
                let of = quoted.next().unwrap_or_default();
                found.extend(quoted.map(|step| (format!("{of}.{step}"), path.clone())));
            }
        }
    }
}

#[test]
fn every_listed_point_is_passed_at_one_place_and_no_other_exists() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("src");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crates).expect("src") {
        let crate_dir = entry.expect("an entry").path();
        if crate_dir.is_dir() && !crate_dir.ends_with("host") {
            passed(&crate_dir.join("src"), &mut found);
        }
    }
    for (name, path) in &found {
        assert!(is_listed(name), "{name} in {} is not listed", path.display());
    }
    for point in POINTS {
        let places: Vec<_> = found.iter().filter(|(name, _)| name == point).collect();
        assert_eq!(places.len(), 1, "{point}: {places:?}");
    }
}

#[test]
fn no_name_is_listed_twice_or_could_be_another_words_part() {
    for (at, point) in POINTS.iter().enumerate() {
        assert!(!POINTS[..at].contains(point), "{point} twice");
        // The search for names in shipped programs must not find an ordinary word.
        assert!(point.contains('.') && point.len() >= 8, "{point}");
    }
    assert!(!is_listed("ledger.renam") && !is_listed("ledger.renamed2") && !is_listed(""));
}
