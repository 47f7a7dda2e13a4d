//! `mpsgate configure` on files: what it shows, writes, puts back and refuses.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::{Ended, mpsgate, text};

/// A node with one engine's settings, somewhere else than the machine's own.
struct Node {
    dir: tempfile::TempDir,
    engine: &'static str,
    settings: PathBuf,
}

impl Node {
    fn new(engine: &'static str, settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = dir.path().join(settings);
        for program in ["mpsgate-runtime", "runc"] {
            fs::write(dir.path().join(program), "#!/bin/sh\n").unwrap();
            fs::set_permissions(dir.path().join(program), fs::Permissions::from_mode(0o755))
                .unwrap();
        }
        fs::write(
            dir.path().join("mpsgate.toml"),
            format!("[runtime]\npath = \"{}\"\n", dir.path().join("runc").display()),
        )
        .unwrap();
        fs::set_permissions(dir.path().join("mpsgate.toml"), fs::Permissions::from_mode(0o644))
            .unwrap();
        Self { dir, engine, settings }
    }

    fn with(self, content: &str) -> Self {
        fs::create_dir_all(self.settings.parent().unwrap()).unwrap();
        fs::write(&self.settings, content).unwrap();
        self
    }

    fn call(&self, args: &[&str]) -> Ended {
        let path = |name: &str| text(&self.dir.path().join(name)).to_owned();
        let (program, settings, state) =
            (path("mpsgate-runtime"), path("mpsgate.toml"), path("state"));
        let mut all = vec![
            "configure",
            self.engine,
            "--config",
            text(&self.settings),
            "--program",
            &program,
            "--settings",
            &settings,
            "--state",
            &state,
        ];
        all.extend(args);
        mpsgate(&all)
    }

    fn write(&self) -> Ended {
        let ended = self.call(&["--write"]);
        ended.assert_code(0);
        ended
    }

    fn content(&self) -> String {
        fs::read_to_string(&self.settings).unwrap()
    }

    /// Everything below the node's folder but undo's own, with contents and modes.
    fn tree(&self) -> Vec<(PathBuf, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let mut todo = vec![self.dir.path().to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                let (path, metadata) = (entry.path(), entry.metadata().unwrap());
                if path.ends_with("state") {
                    continue;
                }
                let content = if metadata.is_dir() {
                    todo.push(path.clone());
                    Vec::new()
                } else {
                    fs::read(&path).unwrap()
                };
                found.push((path, metadata.mode(), content));
            }
        }
        found.sort();
        found
    }
}

const DEBIAN: &str = include_str!("../../../configure/tests/fixtures/containerd-debian.toml");

fn nodes() -> Vec<(&'static str, Node)> {
    let docker = || Node::new("docker", "etc/docker/daemon.json");
    let containerd = || Node::new("containerd", "etc/containerd/config.toml");
    vec![
        ("docker, missing with its directory", docker()),
        ("docker, empty", docker().with("")),
        ("docker, tabs, no last line end", docker().with("{\n\t\"debug\": true\n}")),
        ("containerd, missing", containerd()),
        ("containerd, Debian's", containerd().with(DEBIAN)),
        ("containerd, Debian's with CRLF", containerd().with(&DEBIAN.replace('\n', "\r\n"))),
        (
            "containerd, GKE's",
            containerd()
                .with(include_str!("../../../configure/tests/fixtures/containerd-gke.toml")),
        ),
        (
            "containerd, a template",
            Node::new("containerd", "k3s/config-v3.toml.tmpl").with("{{ template \"base\" . }}\n"),
        ),
        (
            "podman, missing",
            Node::new("podman", "etc/containers/containers.conf.d/zz-mpsgate.conf"),
        ),
        ("crio, missing", Node::new("crio", "etc/crio/crio.conf.d/zz-mpsgate.conf")),
    ]
}

#[test]
fn undo_puts_back_every_byte_mode_and_directory() {
    for (name, node) in nodes() {
        let before = node.tree();
        let shown = node.call(&[]);
        shown.assert_code(0);
        assert!(
            shown.stdout.contains("\n+++ ") && shown.stdout.contains("Nothing was written"),
            "{name}: {shown:#?}"
        );
        assert_eq!(node.tree(), before, "{name}: showing changed something");

        let written = node.write();
        assert!(written.stdout.contains("Written: "), "{name}: {written:#?}");
        let after = node.tree();
        assert_ne!(after, before, "{name}");
        let again = node.write();
        assert!(again.stdout.starts_with("Nothing to change"), "{name}: {again:#?}");
        assert_eq!(node.tree(), after, "{name}: a second --write changed something");

        let undone = node.call(&["--undo"]);
        undone.assert_code(0);
        if node.engine == "crio" {
            assert!(undone.stdout.contains("names the handler that was added"), "{undone:#?}");
        }
        assert_eq!(node.tree(), before, "{name}: {undone:#?}");
        let nothing = node.call(&["--undo"]);
        nothing.assert_code(0);
        assert!(nothing.stdout.starts_with("Nothing to undo"), "{name}: {nothing:#?}");
        assert!(!node.dir.path().join("state").join(node.engine).exists());
    }
}

#[test]
fn a_link_stays_and_its_file_is_written_with_its_mode() {
    let node = Node::new("docker", "etc/daemon.json");
    let real = node.dir.path().join("real.json");
    fs::write(&real, "{}\n").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(node.dir.path().join("etc")).unwrap();
    symlink("../real.json", &node.settings).unwrap();
    let before = node.tree();
    let written = node.write();
    assert!(
        written.stdout.contains(&format!("to which {} is a link", node.settings.display())),
        "{written:#?}"
    );
    assert!(fs::symlink_metadata(&node.settings).unwrap().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().contains("mpsgate-runtime"));
    assert_eq!(fs::metadata(&real).unwrap().mode() & 0o7777, 0o600);
    node.call(&["--undo"]).assert_code(0);
    assert_eq!(node.tree(), before);
}

#[test]
fn a_link_to_nothing_gets_its_file_and_loses_it_again() {
    let node = Node::new("podman", "conf.d/zz-mpsgate.conf");
    fs::create_dir(node.dir.path().join("conf.d")).unwrap();
    symlink("../elsewhere.conf", &node.settings).unwrap();
    node.write();
    assert!(node.dir.path().join("elsewhere.conf").is_file());
    node.call(&["--undo"]).assert_code(0);
    assert!(!node.dir.path().join("elsewhere.conf").exists());
    assert!(fs::symlink_metadata(&node.settings).unwrap().is_symlink());
}

#[test]
fn undo_never_loses_a_later_edit_but_shows_it() {
    let before = "{\n  \"debug\": true,\n  \"mtu\": 1400\n}\n";
    let node = Node::new("docker", "daemon.json").with(before);
    node.write();
    let edited = node.content().replace("\"debug\": true", "\"debug\": false");
    fs::write(&node.settings, &edited).unwrap();
    for _ in 0..2 {
        let refused = node.call(&["--undo"]);
        refused.assert_code(1).assert_stderr(&["was changed after mpsgate wrote it", "\nhint: "]);
        assert!(refused.stdout.contains("\n-  \"debug\": true,\n+  \"debug\": false,\n"));
        assert_eq!(node.content(), edited);
        let again = node.write();
        assert!(again.stdout.contains("wrote it: --undo will refuse"), "{again:#?}");
        assert_eq!(node.content(), edited);
    }
    // As the hint says.
    fs::copy(node.dir.path().join("state/docker/0.after"), &node.settings).unwrap();
    node.call(&["--undo"]).assert_code(0);
    assert_eq!(node.content(), before);
}

#[test]
fn what_is_written_beside_an_edit_keeps_it_and_undo_goes_on_refusing() {
    let node = Node::new("docker", "daemon.json").with("{}\n");
    node.write();
    fs::write(
        &node.settings,
        "{\n  \"runtimes\": { \"x\": { \"path\": \"/x\" } },\n  \"debug\": true\n}\n",
    )
    .unwrap();
    let written = node.write();
    assert!(written.stdout.contains("wrote it: --undo will refuse"), "{written:#?}");
    let both = node.content();
    assert!(both.contains("/x") && both.contains("mpsgate-runtime"), "{both}");
    node.call(&["--undo"]).assert_code(1).assert_stderr(&["take mpsgate's lines out", "rm -r "]);
    assert_eq!(node.content(), both);
}

#[test]
fn what_was_put_back_by_hand_is_forgotten() {
    let node = Node::new("docker", "daemon.json").with("{}\n");
    node.write();
    fs::write(&node.settings, "{}\n").unwrap();
    let undone = node.call(&["--undo"]);
    undone.assert_code(0);
    assert_eq!(undone.stdout.lines().next(), Some("Everything was put back already."));
    node.write();
    node.call(&["--undo"]).assert_code(0);
    assert_eq!(node.content(), "{}\n");
}

#[test]
fn what_cannot_or_should_not_be_written_is_left_alone() {
    let read_only = Node::new("docker", "daemon.json").with("{}\n");
    fs::set_permissions(&read_only.settings, fs::Permissions::from_mode(0o444)).unwrap();
    read_only
        .call(&["--write"])
        .assert_code(2)
        .assert_stderr(&["is read-only (mode 0444)", "hint: chmod u+w "]);
    assert_eq!(read_only.content(), "{}\n");

    let broken = Node::new("docker", "daemon.json").with("{\n  \"debug\": true,\n}\n");
    broken.call(&["--write"]).assert_code(78).assert_stderr(&["daemon.json:3:1: ", "\nhint: "]);

    let none = Node::new("docker", "daemon.json").with("{}\n");
    fs::remove_file(none.dir.path().join("mpsgate-runtime")).unwrap();
    none.call(&["--write"])
        .assert_code(2)
        .assert_stderr(&["there is no program ", "no container would start"]);
    assert_eq!(none.content(), "{}\n");

    let no_runc = Node::new("docker", "daemon.json").with("{}\n");
    fs::remove_file(no_runc.dir.path().join("runc")).unwrap();
    no_runc
        .call(&["--write"])
        .assert_code(2)
        .assert_stderr(&["runtime.path names ", "no such program"]);
    for node in [&read_only, &broken, &none, &no_runc] {
        assert!(!node.dir.path().join("state").exists());
    }

    let bytes = Node::new("podman", "zz.conf");
    fs::write(&bytes.settings, b"\xff\xfe").unwrap();
    bytes.call(&[]).assert_code(78).assert_stderr(&["cannot read ", "UTF-8"]);
}

#[test]
fn check_tells_what_bypasses() {
    let node = Node::new("docker", "daemon.json")
        .with("{\"runtimes\": {\"crun\": {\"path\": \"/usr/bin/crun\"}}}\n");
    let before = node.call(&["--check"]);
    before.assert_code(1);
    assert!(
        before.stdout.contains("BYPASS default runtime runc: runs runc and bypasses mpsgate\n"),
        "{before:#?}"
    );
    node.write();
    let after = node.call(&["--check"]);
    after.assert_code(1);
    assert!(after.stdout.starts_with("ok     default runtime mpsgate: through mpsgate\nBYPASS runtime crun runs /usr/bin/crun"), "{after:#?}");
    node.call(&["--write", "--all-handlers"]).assert_code(0);
    let all = node.call(&["--check"]);
    all.assert_code(0);
    assert!(all.stdout.contains("note   runtime runc: dockerd's own"), "{all:#?}");
    // Both writings are one to undo.
    node.call(&["--undo"]).assert_code(0);
    assert_eq!(node.content(), "{\"runtimes\": {\"crun\": {\"path\": \"/usr/bin/crun\"}}}\n");
}

#[test]
fn a_record_of_another_version_is_not_guessed_at() {
    let node = Node::new("docker", "daemon.json").with("{}\n");
    node.write();
    let record = node.dir.path().join("state/docker/record.json");
    fs::write(
        &record,
        fs::read_to_string(&record).unwrap().replace("\"format\": 1", "\"format\": 2"),
    )
    .unwrap();
    for args in [&["--undo"][..], &["--write"]] {
        node.call(args).assert_code(2).assert_stderr(&[
            "record.json has format 2, this mpsgate knows 1",
            "hint: install the mpsgate that wrote it",
        ]);
    }
}

#[test]
fn undos_files_are_roots_alone() {
    let node = Node::new("docker", "daemon.json").with("{}\n");
    node.write();
    let folder = node.dir.path().join("state/docker");
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    for file in fs::read_dir(&folder).unwrap().flatten() {
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{file:?}");
    }
    assert!(!Path::new(&node.settings).with_file_name(".mpsgate").exists());
}
