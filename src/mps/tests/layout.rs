//! The card's directories: what is refused, made and left.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use mpsgate_mps::{MpsDirectories, MpsError};

fn dirs(root: &Path) -> MpsDirectories {
    MpsDirectories::new(root, 3).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn makes_each_directory_with_its_mode_whatever_the_umask() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("run/mps");
    dirs(&root).create().unwrap();
    dirs(&root).create().unwrap();
    for (name, expected) in [
        ("", 0o711),
        ("3", 0o711),
        ("3/pipe", 0o700),
        ("3/log", 0o711),
        ("3/containers", 0o700),
        ("3/clients", 0o711),
    ] {
        assert_eq!(mode(&root.join(name)), expected, "{name}");
    }
    fs::set_permissions(root.join("3/pipe"), fs::Permissions::from_mode(0o711)).unwrap();
    dirs(&root).create().unwrap();
    assert_eq!(mode(&root.join("3/pipe")), 0o700);
}

#[test]
fn refuses_a_planted_link_or_file_at_every_level_and_names_it() {
    for planted in ["mps", "mps/3", "mps/3/pipe", "mps/3/clients", "mps/3/log"] {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().join("elsewhere");
        fs::create_dir(&target).unwrap();
        let path = temp.path().join(planted);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(&target, &path).unwrap();
        let error = dirs(&temp.path().join("mps")).create().unwrap_err();
        assert!(
            matches!(&error, MpsError::Planted { path: named, found: "a symbolic link" } if *named == path),
            "{error}"
        );
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        let error = dirs(&temp.path().join("mps")).create().unwrap_err();
        assert!(
            matches!(&error, MpsError::Planted { path: named, found: "a regular file" } if *named == path),
            "{error}"
        );
    }
}

#[test]
fn refuses_directories_that_others_may_write() {
    for open in ["mps", "mps/3", "mps/3/pipe", "mps/3/clients", "mps/3/log"] {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(open);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = dirs(&temp.path().join("mps")).create().unwrap_err();
        assert!(
            matches!(&error, MpsError::WritableByOthers { path: named, mode: 0o777 } if *named == path),
            "{error}"
        );
    }
}

#[test]
fn refuses_directories_of_another_owner() {
    mpsgate_testing::need!(mpsgate_testing::root());
    for foreign in ["mps", "mps/3", "mps/3/pipe", "mps/3/clients", "mps/3/log"] {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(foreign);
        fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
        let error = dirs(&temp.path().join("mps")).create().unwrap_err();
        assert!(
            matches!(&error, MpsError::ForeignOwner { path: named, found: 1000, expected: 0 } if *named == path),
            "{error}"
        );
    }
}

#[test]
fn refuses_paths_that_no_socket_address_can_hold() {
    let longest = format!("/{}", "r".repeat(107 - "//3/pipe/control_privileged".len()));
    assert!(MpsDirectories::new(Path::new(&longest), 3).is_ok());
    let error = MpsDirectories::new(Path::new(&format!("{longest}r")), 3).unwrap_err();
    assert!(matches!(error, MpsError::SocketPathTooLong { length: 108, .. }), "{error}");
    for path in ["run/mps", "/run/../mps"] {
        let error = MpsDirectories::new(Path::new(path), 3).unwrap_err();
        assert!(matches!(error, MpsError::NotPlainPath { .. }), "{error}");
    }
}

/// A container that has it from an older version finds no control daemon in it any more.
#[test]
fn what_an_older_mpsgate_gave_to_all_containers_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("mps");
    let dirs = dirs(&root);
    dirs.create().unwrap();
    let older = root.join("3/client");
    fs::create_dir(&older).unwrap();
    let socket = dirs.pipe_dir().join("control");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::hard_link(&socket, older.join("control")).unwrap();
    dirs.create().unwrap();
    assert!(!older.exists() && socket.exists());
}

#[test]
fn removal_leaves_nothing_and_names_what_it_cannot_remove() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("mps");
    let dirs = dirs(&root);
    dirs.remove().unwrap();
    dirs.create().unwrap();
    fs::write(dirs.pipe_dir().join("control_lock"), "").unwrap();
    dirs.remove().unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    dirs.create().unwrap();
    fs::create_dir(dirs.pipe_dir().join("surprise")).unwrap();
    let error = dirs.remove().unwrap_err();
    assert!(error.to_string().contains("/mps/3/pipe"), "{error}");
    assert!(!dirs.doors_dir(mpsgate_host::door_place::Kind::Process).exists());
}
