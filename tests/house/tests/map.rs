//! Crates, `src/README.md` and `deny.toml` say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

type Names = BTreeSet<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The folders of `src` that are crates.
fn crates() -> Names {
    let entries = fs::read_dir(root().join("src")).expect("src can be listed").flatten();
    let of_a_crate = entries.filter(|entry| entry.path().join("Cargo.toml").is_file());
    of_a_crate.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What each package of the workspace depends on, by package. `with_tests` has what only tests
/// need, too.
fn dependencies(with_tests: bool) -> BTreeMap<String, Names> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let output = cargo.current_dir(root()).output().expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo's metadata");
    let list = |value: &Value| value.as_array().cloned().expect("a list");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let of_a_package = |package: &Value| {
        let kept = |dependency: &&Value| with_tests || dependency["kind"] != "dev";
        list(&package["dependencies"]).iter().filter(kept).map(name).collect()
    };
    list(&metadata["packages"]).iter().map(|p| (name(p), of_a_package(p))).collect()
}

/// The names in the map's drawing, line by line from the top, and those of its table's rows.
fn map() -> (BTreeMap<String, usize>, Names) {
    let text = text("src/README.md");
    let (_, section) = text.split_once("\n## The crates\n").expect("src/README.md has the section");
    let (_, drawing) = section.split_once("```text\n").expect("the map has a drawing");
    let (drawing, below) = drawing.split_once("```").expect("the drawing ends");
    let (table, _) = below.split_once("\n### ").expect("the table ends");
    let crates = crates();
    let mut lines = BTreeMap::new();
    for (number, line) in drawing.lines().enumerate() {
        // What a line's floor may do stands behind it, in brackets.
        let line = line.split('(').next().unwrap_or_default();
        for word in line.split(|c: char| !c.is_ascii_lowercase()) {
            if crates.contains(word) {
                let earlier = lines.insert(word.to_owned(), number);
                assert_eq!(earlier, None, "{word} is drawn twice");
            }
        }
    }
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    (lines, rows.map(str::to_owned).collect())
}

#[test]
fn every_crate_has_its_place_in_the_drawing_its_row_and_its_bans() {
    let crates = crates();
    let (drawn, rows) = map();
    assert_eq!(drawn.into_keys().collect::<Names>(), crates, "the drawing of src/README.md");
    assert_eq!(rows, crates, "the table of src/README.md");
    for name in &crates {
        let bans = text(&format!("src/{name}/clippy.toml"));
        assert!(bans.contains("reason = "), "src/{name}/clippy.toml bans nothing");
    }
}

#[test]
fn a_crate_depends_only_on_those_that_are_drawn_below_it() {
    let (drawn, _) = map();
    let mut arrows = 0;
    for (user, used) in dependencies(true) {
        let Some(own) = user.strip_prefix("mpsgate-").and_then(|name| drawn.get(name)) else {
            continue;
        };
        for name in used {
            let Some(line) = name.strip_prefix("mpsgate-").and_then(|name| drawn.get(name)) else {
                continue;
            };
            assert!(line > own, "{user} depends on {name}, which is not drawn below it");
            arrows += 1;
        }
    }
    assert!(arrows > 30, "{arrows} arrows found");
}

/// deny.toml says who may use each crate of ours; what it says too much would let in what nobody
/// has looked at.
#[test]
fn who_may_use_a_crate_of_ours_is_who_does() {
    let rules: toml::Table = text("deny.toml").parse().expect("deny.toml");
    let rules = rules["bans"]["deny"].as_array().expect("a list of bans");
    let text = |value: &toml::Value| value.as_str().expect("a name").to_owned();
    let mut allowed = BTreeMap::new();
    for rule in rules {
        let wrappers = rule.get("wrappers").and_then(toml::Value::as_array);
        let wrappers: Names = wrappers.into_iter().flatten().map(text).collect();
        let earlier = allowed.insert(text(&rule["crate"]), wrappers);
        assert!(earlier.is_none(), "{rule:?} is the second");
    }
    let dependencies = dependencies(true);
    for name in crates() {
        let name = format!("mpsgate-{name}");
        let users = dependencies.iter().filter(|(_, used)| used.contains(&name));
        let users: Names = users.map(|(user, _)| user.clone()).collect();
        let mut listed = allowed.remove(&name).unwrap_or_else(|| panic!("{name} is not listed"));
        // The programs of a crate use its library.
        listed.remove(&name);
        assert_eq!(listed, users, "the wrappers of {name} in deny.toml");
    }
    for (name, wrappers) in allowed {
        assert!(!name.starts_with("mpsgate-"), "{name} is no crate of ours any more");
        for ours in wrappers.iter().filter(|wrapper| wrapper.starts_with("mpsgate-")) {
            let uses = dependencies.get(ours).is_some_and(|used| used.contains(&name));
            assert!(uses, "{ours} may use {name} and does not");
        }
    }
}

/// What others have solved is used, not written anew; what is there for packagers stays where they
/// look.
#[test]
fn crates_of_others_are_used_and_the_top_of_the_tree_is_complete() {
    let dependencies = dependencies(false);
    let ours = crates();
    let of_ours =
        |user: &str| user.strip_prefix("mpsgate-").is_some_and(|name| ours.contains(name));
    for name in [
        "caps",
        "clap",
        "kube",
        "log",
        "nix",
        "nvml-wrapper",
        "oci-spec",
        "serde_json",
        "tempfile",
        "tokio",
    ] {
        let used = dependencies.iter().any(|(user, used)| of_ours(user) && used.contains(name));
        assert!(used, "no crate under src uses {name}");
    }
    for name in
        ["Cargo.toml", "README.md", "config", "deb", "hooks", "packaging", "rpm", "src", "tests"]
    {
        assert!(root().join(name).exists(), "{name}");
    }
}
