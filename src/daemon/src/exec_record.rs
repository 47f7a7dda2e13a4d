//! The records from which `exec` restores a granted environment. The shim writes them; the daemon only
//! removes them, when their grant ends.

use std::path::Path;

use mpsgate_allocation::GrantKey;
use mpsgate_allocation::ledger::Ledger;
use mpsgate_api::{ExecRecord, temporary_writer};
use mpsgate_crashpoint::crash_point;

use crate::process;

/// Larger is no record: the longest environment that execve takes is 2 MiB.
const SIZE_LIMIT: u64 = 4 << 20;

/// Removes the record of `key`; that of another life of the container stays.
pub(crate) fn remove(directory: &Path, key: &GrantKey) {
    let root = &key.runtime_root;
    let Some(name) = GrantKey::record_name(root, key.container_id.as_str()) else { return };
    let path = directory.join(name);
    if read(&path).is_some_and(|found| found == *key) {
        crash_point!("daemon.record.before_remove");
        unlink(&path);
        crash_point!("daemon.record.removed");
    }
}

/// Removes all records that belong to no entry, and what is no record.
pub(crate) fn remove_strays(directory: &Path, ledger: &Ledger) {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            log::warn!(path:% = directory.display(), reason:% = error; "cannot list exec records");
            return;
        }
    };
    for entry in entries.flatten() {
        let path = entry.path();
        // A shim is about to give it its name.
        if entry.file_name().to_str().is_some_and(is_being_written) {
            continue;
        }
        if read(&path).is_none_or(|key| ledger.get(&key).is_none()) {
            log::info!(path:% = path.display(); "exec record without a grant removed");
            unlink(&path);
        }
    }
}

/// Removes what shims left that were killed while they wrote a record.
pub(crate) fn remove_leftovers(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if temporary_writer(name).is_some() && !is_being_written(name) {
            log::info!(path:% = entry.path().display(); "half written exec record removed");
            unlink(&entry.path());
        }
    }
}

/// Whether it is a temporary file whose writer lives.
fn is_being_written(name: &str) -> bool {
    temporary_writer(name).is_some_and(|writer| process::identify(writer).is_some())
}

fn read(path: &Path) -> Option<GrantKey> {
    let found = std::fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > SIZE_LIMIT {
        return None;
    }
    let record: ExecRecord = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    Some(record.grant.key)
}

fn unlink(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            log::warn!(path:% = path.display(), reason:% = error; "cannot remove exec record");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_api::temporary_name;

    use super::*;

    #[test]
    fn what_killed_shims_left_goes_and_what_a_living_one_writes_stays_through_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let alive = temporary_name("a@b", std::process::id());
        // Above the kernel's largest pid: nobody's.
        for name in [temporary_name("a@b", 4_194_305), alive.clone(), "c@d".to_owned()] {
            std::fs::write(dir.path().join(name), "{").unwrap();
        }
        let names = || -> Vec<String> {
            let entries = dir.path().read_dir().unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        remove_leftovers(dir.path());
        assert_eq!(names(), [alive.as_str(), "c@d"]);
        remove_strays(dir.path(), &Ledger::default());
        assert_eq!(names(), [alive]);
    }
}
