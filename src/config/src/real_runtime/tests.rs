//! The operator's runtime is found despite damage elsewhere, and never a wrong one.
#![allow(clippy::unwrap_used, reason = "a failed test is to panic")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;
use crate::Config;

#[test]
fn the_hint_survives_damage_anywhere_else() {
    for text in [
        "[gpus]\nmanage = [\n[runtime]\npath = \"crun\"\n",
        "[gpus]\nmanage = [\"GPU-1\"\n\n[runtime]\npath = \"crun\"\n",
        "[gpus\n[runtime]\npath = \"crun\"\n",
        "?!\n[runtime]\npath = \"crun\"\n",
        "[log]\nlevel = \"info\n[runtime]\npath = \"crun\"\n",
        "[log]\nlevel = \"\"\"info\n[runtime]\npath = \"crun\"\n",
        "[log]\nlevel = '''info\n[ runtime ] # the real one\n  path='crun' # here\n",
        "[runtime]\npath = \"crun\"\n[mps]\nmultiuser = \n",
        "[runtime]\npath = \"crun\"\n[mps]\nmultiuser = \"on",
        "[runtime]\npath = \"crun\"\nfoo\n",
        "[runtime]\nfoo\npath = \"crun\"\n",
        "runtime.path = \"crun\"\n[\n",
        "runtime = { path = \"crun\" }\n[\n",
        // Valid TOML, but not valid settings.
        "[runtime]\npath = \"crun\"\ncolour = 1\n[log]\nlevel = 7\n",
    ] {
        assert_eq!(runtime_path_hint(text).as_deref(), Some("crun"), "{text}");
    }
}

#[test]
fn no_hint_is_better_than_a_wrong_one() {
    for text in [
        "",
        "[runtime]\n",
        "path = \"crun\"\n",
        "[nvml]\npath = \"crun\"\n",
        "[runtime]\n#path = \"crun\"\n",
        "[runtime]\npath = 5\n",
        "[runtime]\npath = \"\"\n",
        "[runtime]\npath = \"bin/crun\"\n",
        "[runtime]\npath = \"..\"\n",
        "[runtime]\npath = crun\n",
        "[runtime]\npath = \"crun\n",
        "[runtime]\npath = \"/usr/bin/ru",
        "[runtime]\npath = \"crun\" \"runc\"\n",
        "[runtime]\n[gpus\n[nvml]\npath = \"crun\"\n\"\"\"",
    ] {
        assert_eq!(runtime_path_hint(text), None, "{text}");
    }
}

#[test]
fn pass_through_takes_the_hint_and_else_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let name = |path: &Path| runtime_for_pass_through(path).to_str().unwrap().to_owned();
    assert_eq!(name(&path), "runc");
    fs::write(&path, b"[log]\nlevel = \"\xff\"\n[runtime]\npath = \"crun\"\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(name(&path), "crun");
    assert_eq!(name(dir.path()), "runc");
}

fn program(dir: &Path, name: &str, mode: u32) {
    fs::write(dir.join(name), "").unwrap();
    fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_name_is_searched_in_order_and_only_programs_count() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dirs = [first.path().to_str().unwrap(), "/nowhere", second.path().to_str().unwrap()];
    let find = |name: &str| find_in(Path::new(name), None, &dirs);
    program(second.path(), "crun", 0o755);
    assert_eq!(find("crun"), Some(second.path().join("crun")));
    program(first.path(), "crun", 0o644);
    assert_eq!(find("crun"), Some(second.path().join("crun")), "not executable");
    fs::remove_file(first.path().join("crun")).unwrap();
    fs::create_dir(first.path().join("crun")).unwrap();
    assert_eq!(find("crun"), Some(second.path().join("crun")), "a directory");
    fs::remove_dir(first.path().join("crun")).unwrap();
    program(first.path(), "crun", 0o755);
    assert_eq!(find("crun"), Some(first.path().join("crun")));
    assert_eq!(find("youki"), None);
    // exec will report what is wrong with it.
    assert_eq!(find("/nowhere/crun"), Some(PathBuf::from("/nowhere/crun")));
}

#[test]
fn a_shim_under_the_name_of_the_runtime_does_not_find_itself() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dirs = [first.path().to_str().unwrap(), second.path().to_str().unwrap()];
    program(first.path(), "mpsgate-runtime", 0o755);
    program(second.path(), "runc", 0o755);
    std::os::unix::fs::symlink("mpsgate-runtime", first.path().join("runc")).unwrap();
    let own = fs::metadata(first.path().join("mpsgate-runtime")).unwrap();
    let found = find_in(Path::new("runc"), Some(&own), &dirs);
    assert_eq!(found, Some(second.path().join("runc")));
    assert_eq!(find_in(&first.path().join("runc"), Some(&own), &dirs), None);
}

/// Found with its fuzz target: with an error on every line of a file that may have 1 MiB, a new
/// search for lines at each error took minutes, in the start of every container without a running
/// mpsgated.
#[test]
fn a_file_of_nothing_but_errors_gives_up_its_path_at_once() {
    let text = format!("[runtime]\npath = \"crun\"\n{}", "= =\n".repeat(1 << 15));
    assert_eq!(runtime_path_hint(&text).as_deref(), Some("crun"));
    // An error that begins on an earlier line and reaches into this one also makes the value a
    // guess.
    assert_eq!(runtime_path_hint("[runtime]\npath = \"crun\" \"\n").as_deref(), None);
}

fn any_settings() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        "[a-z]{1,8}".prop_map(|name| format!("\"{name}\"")),
        "(/[a-z ]{1,5}){1,3}".prop_map(|path| format!("'{path}'")),
        Just(r#""/opt/\u0063run\t""#.to_owned()),
    ];
    let runtime = (path, 0..5_u8).prop_map(|(path, form)| match form {
        0 => format!("[runtime]\npath = {path}\n"),
        1 => format!("[ runtime ] # real\n\t\"path\"={path} # here\n"),
        2 => format!("runtime.path = {path}\n"),
        3 => format!("runtime = {{ path = {path} }}\n"),
        _ => "[runtime]\n".to_owned(),
    });
    let other = "[log]\nlevel = '''\ndebug'''\n[nvml]\nlibrary = \"/l.so\"\n\
                 [[policy.exempt]]\nnamespace = \"runtime\"\nimage = \"path\"\n";
    (runtime, any::<bool>()).prop_map(move |(runtime, first)| match first {
        // Top-level keys must come before tables.
        true => runtime + other,
        false if runtime.starts_with('[') => other.to_owned() + &runtime,
        false => runtime,
    })
}

proptest! {
    #[test]
    fn the_hint_equals_the_parsed_value_of_every_valid_file(text in any_settings()) {
        // TOML trims the literal newline in `level`, so all of these are valid.
        let config = Config::parse(&text, Path::new("c.toml")).unwrap();
        let hint = runtime_path_hint(&text).map_or_else(|| Runtime::default().path, PathBuf::from);
        prop_assert_eq!(hint, config.runtime.path);
    }

    #[test]
    fn any_text_gives_a_usable_hint_or_none(text in "[a-z.=\"'\\[\\]#\n]{0,60}|\\PC{0,40}") {
        if let Some(hint) = runtime_path_hint(&text) {
            prop_assert!(keys::is_name_or_path(&hint));
        }
    }
}
