//! Files are written, kept and put back.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use std::os::unix::fs::symlink;

use super::*;

fn target(named: &Path, after: &str) -> Target {
    let before = DISK.read(named).unwrap();
    let change = Change { path: named.to_owned(), before, after: after.to_owned() };
    Target::of(&change).unwrap()
}

/// `users/` is a user's, `roots/` holds what he may not write.
fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (users, roots) = (dir.path().join("users"), dir.path().join("roots"));
    for made in [users.join("etc"), roots.clone()] {
        fs::create_dir_all(made).unwrap();
    }
    (dir, users, roots)
}

#[test]
fn a_directory_that_was_exchanged_for_a_link_is_not_written_through() {
    for existed in [true, false] {
        let (_dir, users, roots) = places();
        let file = users.join("etc/daemon.json");
        if existed {
            fs::write(&file, "old").unwrap();
            // The same text is there: only the place differs.
            fs::write(roots.join("daemon.json"), "old").unwrap();
        }
        let planned = target(&file, "new");
        fs::rename(users.join("etc"), users.join("away")).unwrap();
        symlink(&roots, users.join("etc")).unwrap();
        let error = planned.write().unwrap_err();
        assert!(matches!(error, SetUpError::Write { .. }), "{error}");
        let left = DISK.read(&roots.join("daemon.json")).unwrap();
        assert_eq!(left.as_deref(), existed.then_some("old"));
        assert!(remove(&planned.real, &[]).is_err());
        assert_eq!(roots.join("daemon.json").exists(), existed);
        assert_eq!(fs::read_dir(&roots).unwrap().count(), usize::from(existed));
    }
}

#[test]
fn directories_that_are_missing_are_made_through_no_link() {
    let (_dir, users, roots) = places();
    let planned = target(&users.join("etc/a/b/daemon.json"), "new");
    fs::remove_dir(users.join("etc")).unwrap();
    symlink(&roots, users.join("etc")).unwrap();
    planned.write().unwrap_err();
    assert_eq!(fs::read_dir(&roots).unwrap().count(), 0);
}

#[test]
fn links_that_were_there_are_followed_and_owner_and_mode_stay() {
    let (_dir, users, roots) = places();
    let real = roots.join("daemon.json");
    fs::write(&real, "old").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o4640)).unwrap();
    symlink(&roots, users.join("etc/docker")).unwrap();
    symlink(users.join("etc/docker/daemon.json"), users.join("link")).unwrap();
    for (named, text) in [("link", "one"), ("etc/docker/daemon.json", "two")] {
        let planned = target(&users.join(named), text);
        assert!(planned.sentence().contains("roots/daemon.json, to which"));
        planned.write().unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), text);
        assert_eq!(real.metadata().unwrap().mode() & 0o7777, 0o640);
    }
    let planned = target(&users.join("etc/a/b/daemon.json"), "new");
    assert_eq!(planned.directories.len(), 2);
    planned.write().unwrap();
    assert_eq!(fs::read_to_string(users.join("etc/a/b/daemon.json")).unwrap(), "new");
    let names = fs::read_dir(users.join("etc/a/b")).unwrap().count();
    assert_eq!(names, 1, "nothing is left behind");
}

#[test]
fn a_link_in_the_files_place_is_no_file() {
    let (_dir, users, roots) = places();
    let file = users.join("etc/daemon.json");
    fs::write(&file, "old").unwrap();
    let secret = roots.join("secret");
    fs::write(&secret, "old").unwrap();
    let planned = target(&file, "new");
    fs::remove_file(&file).unwrap();
    symlink(&secret, &file).unwrap();
    planned.write().unwrap_err();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "old");
    assert!(file.is_symlink());
}

#[test]
fn a_place_of_ours_is_looked_at_before_it_is_written_and_reached_through_no_link() {
    let (dir, users, roots) = places();
    let ours = users.join("etc/mpsgate/config.toml");
    check_place(&ours).unwrap();
    assert!(!users.join("etc/mpsgate").exists(), "nothing was made");
    replace_bytes(&ours, b"old", 0o644).unwrap();
    check_place(&ours).unwrap();
    replace_bytes(&ours, b"new", 0o644).unwrap();
    assert_eq!(fs::read_to_string(&ours).unwrap(), "new");

    let link = users.join("link");
    symlink(&roots, &link).unwrap();
    let nowhere = users.join("nowhere");
    symlink(dir.path().join("none"), &nowhere).unwrap();
    let to_file = users.join("config.toml");
    symlink(&ours, &to_file).unwrap();
    let link_says = format!("{} is a link to {}", link.display(), roots.display());
    let (no_directory, no_file) = (ErrorKind::NotADirectory, ErrorKind::Other);
    for (place, said, kind) in [
        (link.join("config.toml"), link_says.as_str(), no_directory),
        (link.join("a/config.toml"), "users/link is a link", no_directory),
        (nowhere.join("config.toml"), "users/nowhere is a link", no_directory),
        (to_file, "users/config.toml is a link", no_file),
        (ours.join("config.toml"), "config.toml is neither a file nor a directory", no_directory),
        (users.join("etc"), "users/etc is neither a file nor a directory", no_file),
    ] {
        let error = check_place(&place).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.hint().unwrap().contains("mv "), "{error}");
        match replace_bytes(&place, b"x", 0o644).unwrap_err() {
            SetUpError::Write { path, source } => {
                assert_eq!((path, source.kind()), (place, kind), "{source}");
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(fs::read_dir(&roots).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(&ours).unwrap(), "new");
}
