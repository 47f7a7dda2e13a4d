#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use super::*;

fn engine(name: &'static str, words: &[&str]) -> Engine {
    let command_line = words.iter().map(ToString::to_string).collect();
    let me = process::identify(std::process::id()).unwrap();
    Engine { name, pid: me.pid, start_time: me.start_time, command_line, environment: Vec::new() }
}

#[test]
fn settings_are_where_the_command_line_says() {
    for (words, expected) in [
        (&["/usr/bin/containerd"][..], "/etc/containerd/config.toml"),
        (&["containerd", "-c", "/a/b.toml", "--root", "/x"], "/a/b.toml"),
        (&["containerd", "--config=/c.toml"], "/c.toml"),
        (&["containerd", "--config"], "/etc/containerd/config.toml"),
    ] {
        assert_eq!(engine("containerd", words).settings(), Path::new(expected));
    }
}

/// A CRI-O with its drop-ins in this folder, of this test's own process.
fn crio_of(directory: &Path) -> Engine {
    engine("crio", &["crio", "--config=", "--config-dir", &directory.to_string_lossy()])
}

#[test]
fn crio_is_asked_itself_and_what_it_does_not_say_its_files_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let options = super::super::handlers::options(Path::new("runc"));
    // The program of this process is this test, which knows no `--config=`.
    let reading = read(&crio_of(dir.path()), &options).unwrap();
    assert!(reading.own);
    assert!(reading.said.unwrap_err().starts_with("crio config: it failed"));
    std::os::unix::fs::symlink("gone", dir.path().join("x.conf")).unwrap();
    let said = read(&crio_of(dir.path()), &options).unwrap().said.unwrap_err();
    assert!(said.contains("is a link that leads nowhere"), "{said}");
}

#[test]
fn the_fingerprint_of_crio_changes_with_a_drop_in_of_a_sub_folder_and_with_a_flag() {
    let dir = tempfile::tempdir().unwrap();
    let options = super::super::handlers::options(Path::new("runc"));
    let one = crio_of(dir.path());
    assert_eq!(one.settings(), dir.path().join("zz-mpsgate.conf"));
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
    let me = engine("containerd", &[]);
    assert!(stale(&Engine { start_time: 0, ..me.clone() }, &files));
    let later = process::ticks_now().unwrap();
    assert!(!stale(&Engine { start_time: later, ..me.clone() }, &files));
    assert!(!stale(&Engine { start_time: 0, ..me }, &Files::default()));
}

#[test]
fn the_fingerprint_changes_with_a_drop_in_and_with_the_engines_next_life() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let import = format!("version = 3\nimports = [\"{}/conf.d/*.toml\"]\n", dir.path().display());
    std::fs::write(&path, import).unwrap();
    std::fs::create_dir(dir.path().join("conf.d")).unwrap();
    let options = super::super::handlers::options(Path::new("runc"));
    let config = format!("--config={}", path.display());
    let one = engine("containerd", &["containerd", &config]);
    let first = fingerprint(&one, &options).unwrap();
    assert_eq!(fingerprint(&one, &options), Some(first));
    assert_ne!(fingerprint(&Engine { start_time: 7, ..one.clone() }, &options), Some(first));
    std::fs::write(dir.path().join("conf.d/a.toml"), "version = 3\n").unwrap();
    assert_ne!(fingerprint(&one, &options), Some(first));
    std::fs::write(&path, "no = [toml").unwrap();
    assert_eq!(fingerprint(&one, &options), None);
}
