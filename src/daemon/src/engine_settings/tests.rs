#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use std::os::unix::fs::chown;

use mpsgate_host::engine::Program;
use mpsgate_testing::need;

use super::*;
use crate::process_end::{self, ProcessId};

/// An engine with these words, of this test's own process and program.
fn engine(kind: Kind, words: &[&str]) -> Result<Engine, String> {
    mpsgate_testing::root()?;
    let process = process_end::identify(std::process::id()).unwrap();
    let program = Program::of(Path::new("/"), process.pid).map_err(|error| error.to_string())?;
    let command_line = words.iter().map(ToString::to_string).collect();
    Ok(Engine { kind, process, command_line, environment: Vec::new(), program })
}

fn since(start_time: u64, engine: &Engine) -> Engine {
    Engine { process: ProcessId { start_time, ..engine.process }, ..engine.clone() }
}

/// A CRI-O with its drop-ins in this folder.
fn crio_of(directory: &Path) -> Result<Engine, String> {
    engine(Kind::Crio, &["crio", "--config=", "--config-dir", &directory.to_string_lossy()])
}

#[test]
fn crio_is_asked_itself_and_what_it_does_not_say_its_files_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let options = super::super::handler_watch::options(Path::new("runc"));
    let one = need!(crio_of(dir.path()));
    // The program of this process is this test, which knows no `--config=`.
    let reading = read(&one, &options).unwrap();
    assert!(reading.own);
    assert!(reading.said.unwrap_err().starts_with("crio config: it failed"));
    std::os::unix::fs::symlink("gone", dir.path().join("x.conf")).unwrap();
    let said = read(&one, &options).unwrap().said.unwrap_err();
    assert!(said.contains("is a link that leads nowhere"), "{said}");
}

#[test]
fn the_fingerprint_of_crio_changes_with_a_drop_in_of_a_sub_folder_and_with_a_flag() {
    let dir = tempfile::tempdir().unwrap();
    let options = super::super::handler_watch::options(Path::new("runc"));
    let one = need!(crio_of(dir.path()));
    assert_eq!(settings(&one), dir.path().join("zz-mpsgate.conf"));
    let first = fingerprint(&one, &options).unwrap();
    assert_eq!(fingerprint(&one, &options), Some(first));
    let environment = vec!["CONTAINER_DEFAULT_RUNTIME=crun".to_owned()];
    assert_ne!(fingerprint(&Engine { environment, ..one.clone() }, &options), Some(first));
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/late"), "[crio.runtime]\n").unwrap();
    assert_ne!(fingerprint(&one, &options), Some(first));
}

#[test]
fn a_file_that_is_younger_than_the_engine_makes_it_stale_and_an_older_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, "").unwrap();
    let files = Files::default();
    files.read(&path).unwrap();
    let me = need!(engine(Kind::Containerd, &[]));
    assert!(stale(&since(0, &me), &files));
    let later = process_end::ticks_now().unwrap();
    assert!(!stale(&since(later, &me), &files));
    assert!(!stale(&since(0, &me), &Files::default()));
}

#[test]
fn the_fingerprint_changes_with_a_drop_in_and_with_the_engines_next_life() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let import = format!("version = 3\nimports = [\"{}/conf.d/*.toml\"]\n", dir.path().display());
    std::fs::write(&path, import).unwrap();
    std::fs::create_dir(dir.path().join("conf.d")).unwrap();
    let options = super::super::handler_watch::options(Path::new("runc"));
    let config = format!("--config={}", path.display());
    let one = need!(engine(Kind::Containerd, &["containerd", &config]));
    let first = fingerprint(&one, &options).unwrap();
    assert_eq!(fingerprint(&one, &options), Some(first));
    assert_ne!(fingerprint(&since(7, &one), &options), Some(first));
    std::fs::write(dir.path().join("conf.d/a.toml"), "version = 3\n").unwrap();
    assert_ne!(fingerprint(&one, &options), Some(first));
    std::fs::write(&path, "no = [toml").unwrap();
    assert_eq!(fingerprint(&one, &options), None);
}

#[test]
fn settings_that_another_user_can_change_are_not_opened_and_the_engine_is_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("home");
    std::fs::create_dir(&users).unwrap();
    let file = users.join("config.toml");
    let importing = dir.path().join("importing.toml");
    let import = format!("version = 3\nimports = [\"{}\"]\n", file.display());
    std::fs::write(&importing, import).unwrap();
    std::fs::write(&file, "no = [toml").unwrap();
    let options = super::super::handler_watch::options(Path::new("runc"));
    let (file, users, importing) =
        (&*file.to_string_lossy(), &*users.to_string_lossy(), &*importing.to_string_lossy());
    let lines = [
        (Kind::Containerd, &["containerd", "--config", file][..]),
        (Kind::Containerd, &["containerd", "-c", importing]),
        (Kind::Containerd, &["containerd", "-c", "relative.toml"]),
        (Kind::Crio, &["crio", "--config", file]),
        (Kind::Crio, &["crio", "--config=", "--config-dir", users]),
    ];
    for (kind, line) in lines {
        let one = need!(engine(kind, line));
        chown(users, Some(1000), None).unwrap();
        let reading = read(&one, &options).unwrap();
        let said = reading.said.unwrap_err();
        let name = kind.program();
        assert!(said.starts_with(&format!("{name} reads ")), "{line:?}: {said}");
        assert!(said.ends_with(", and mpsgated does not"), "{line:?}: {said}");
        assert!(!reading.own && fingerprint(&one, &options).is_none(), "{line:?}");
    }
}
