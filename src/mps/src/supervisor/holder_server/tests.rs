#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::supervisor::ask;

#[test]
fn its_socket_is_roots_alone_and_there_is_one_for_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let (dir, mps) = (root.path().join("hold"), root.path().join("mps"));
    let (control, launcher) = ("/usr/bin/tail".into(), "/proc/self/exe".into());
    let options = Options { dir, mps, control, gate: None, launcher };
    let holder = Holder::bind(&options).unwrap();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&options.dir), mode(&holder.socket)), (0o700, 0o600));
    assert_eq!(Root::of_holder(&options.dir), Root::of(Path::new("/proc/self")));
    assert!(matches!(Holder::bind(&options), Err(HoldError::Locked { .. })));
    drop(holder);
    Holder::bind(&options).unwrap();
    fs::set_permissions(&options.dir, fs::Permissions::from_mode(0o711)).unwrap();
    assert!(matches!(Holder::bind(&options), Err(HoldError::Unsafe { mode: 0o711, .. })));
}

#[test]
fn nobody_there_is_told_from_somebody_who_says_no() {
    let root = tempfile::tempdir().unwrap();
    let error = ask(&root.path().join("hold"), &Request::Check).unwrap_err();
    assert!(error.to_string().contains("no holder of MPS control daemons answers"), "{error}");
}

#[test]
fn control_daemons_have_the_capabilities_that_their_unit_would_leave() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/mpsgate-mps@.service");
    let unit = fs::read_to_string(unit).unwrap();
    let lists = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=~"));
    let names = lists.flat_map(str::split_whitespace);
    let left_out: caps::CapsHashSet = names.map(|name| name.parse().unwrap()).collect();
    assert_eq!(caps::CapsHashSet::from(UNNEEDED), left_out);
}
