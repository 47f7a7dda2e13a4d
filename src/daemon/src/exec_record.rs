//! The records from which `exec` restores a granted environment. The shim writes them; the daemon
//! removes them when their grant ends, and writes another amount into them when that is resized.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use mpsgate_api::ExecRecord;
use mpsgate_host::crash_point;
use mpsgate_host::file::{self, Durability, New, Writers, temporary_writer};
use mpsgate_model::ledger::Ledger;
use mpsgate_model::{Grant, GrantKey, Mib};
use mpsgate_policy::{MPS_LIMIT, mps_limit, mps_limit_of};

/// Larger is no record: the longest environment that execve takes is 2 MiB.
const SIZE_LIMIT: u64 = 4 << 20;

/// Removes the record of `key`; that of another instance of the container stays.
pub(crate) fn remove(directory: &Path, key: &GrantKey) {
    let root = &key.runtime_root;
    let Some(name) = GrantKey::record_name(root, key.container_id.as_str()) else { return };
    let path = directory.join(name);
    if read(&path).is_some_and(|found| found.grant.key == *key) {
        crash_point!("daemon.record.before_remove");
        unlink(&path);
        crash_point!("daemon.record.removed");
    }
}

/// Writes the grant's memory into its record, where that says another.
pub(crate) fn renew(directory: &Path, grant: &Grant) {
    let key = &grant.key;
    let Some(name) = GrantKey::record_name(&key.runtime_root, key.container_id.as_str()) else {
        return;
    };
    let path = directory.join(name);
    let Some(record) = read(&path).filter(|record| record.grant.key == *key) else { return };
    if record.grant.memory == grant.memory {
        return;
    }
    crash_point!("daemon.record.before_renew");
    let new = New { writers: Writers::Many, ..New::of(0o600, Durability::Atomic) };
    let written = serde_json::to_vec(&resized(record, grant.memory)).map_err(io::Error::from);
    if let Err(error) = written.and_then(|text| file::replace(&path, &text, &new)) {
        log::warn!(path:% = path.display(), reason:% = error; "exec record keeps the amount of before");
    }
}

/// A container's own lower limit stays, as far as it is one.
fn resized(mut record: ExecRecord, memory: Mib) -> ExecRecord {
    let has = record.grant.memory;
    record.grant.memory = memory;
    for (name, value) in &mut record.set {
        if name == MPS_LIMIT
            && let Some(own) = mps_limit_of(value)
        {
            *value = mps_limit(if own < has { own.min(memory) } else { memory });
        }
    }
    record
}

/// Removes all records that belong to no entry. What cannot be read stays where a living grant's
/// record would lie: a newer shim wrote it, and `exec` and the hook need it when that version is
/// back.
pub(crate) fn remove_strays(directory: &Path, ledger: &Ledger) {
    remove_leftovers(directory);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            log::warn!(path:% = directory.display(), reason:% = error; "cannot list exec records");
            return;
        }
    };
    let keys = ledger.entries().iter().map(|entry| &entry.grant.key);
    let names: HashSet<String> = keys
        .filter_map(|key| GrantKey::record_name(&key.runtime_root, key.container_id.as_str()))
        .collect();
    for entry in entries.flatten() {
        let path = entry.path();
        // Half written ones are none of these: a shim may be about to give one its name.
        if entry.file_name().to_str().and_then(temporary_writer).is_some() {
            continue;
        }
        let stray = match read(&path) {
            Some(record) => match ledger.get(&record.grant.key) {
                // What a daemon that was killed had not come to.
                Some(entry) => {
                    renew(directory, &entry.grant);
                    false
                }
                None => true,
            },
            None => !entry.file_name().to_str().is_some_and(|name| names.contains(name)),
        };
        if stray {
            log::info!(path:% = path.display(); "exec record without a grant removed");
            unlink(&path);
        }
    }
}

/// Removes what shims left that were killed while they wrote a record.
pub(crate) fn remove_leftovers(directory: &Path) {
    for path in file::remove_leftovers(directory) {
        log::info!(path:% = path.display(); "half written exec record removed");
    }
}

fn read(path: &Path) -> Option<ExecRecord> {
    let found = std::fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > SIZE_LIMIT {
        return None;
    }
    ExecRecord::parse(&std::fs::read(path).ok()?).ok()
}

fn unlink(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!(path:% = path.display(), reason:% = error; "cannot remove exec record");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::fs::File;

    use mpsgate_host::file::temporary_name;

    use super::*;

    #[test]
    fn what_killed_shims_left_goes_and_what_a_living_one_writes_stays_through_a_start() {
        let dir = tempfile::tempdir().unwrap();
        // Whoever has these pids here is not who writes them.
        let alive = temporary_name("a@b", 4_194_305);
        for name in [temporary_name("a@b", std::process::id()), alive.clone(), "c@d".to_owned()] {
            std::fs::write(dir.path().join(name), "{").unwrap();
        }
        let writing = File::open(dir.path().join(&alive)).unwrap();
        writing.try_lock().unwrap();
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

    #[test]
    fn a_newer_shims_record_of_a_living_grant_stays_through_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/0.1.0");
        let text = std::fs::read(formats.join("ledger.json")).unwrap();
        let (_, ledger) = mpsgate_model::ledger_file::parse(&text, dir.path()).unwrap();
        let key = &ledger.entries()[0].grant.key;
        let name = GrantKey::record_name(&key.runtime_root, key.container_id.as_str()).unwrap();
        for name in [name.as_str(), "of@nobody"] {
            std::fs::write(dir.path().join(name), r#"{"format":2,"elsewhere":1}"#).unwrap();
        }
        remove_strays(dir.path(), &ledger);
        assert!(dir.path().join(&name).exists() && !dir.path().join("of@nobody").exists());
        remove_strays(dir.path(), &Ledger::default());
        assert!(!dir.path().join(&name).exists());
    }
}
