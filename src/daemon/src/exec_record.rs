//! The records from which `exec` restores a granted environment. The shim writes them; the daemon only
//! removes them, when their grant ends.

use std::path::Path;

use mpsgate_allocation::GrantKey;
use mpsgate_allocation::ledger::Ledger;
use mpsgate_api::ExecRecord;

/// Larger is no record: the longest environment that execve takes is 2 MiB.
const SIZE_LIMIT: u64 = 4 << 20;

/// Removes the record of `key`; that of another life of the container stays.
pub(crate) fn remove(directory: &Path, key: &GrantKey) {
    let root = &key.runtime_root;
    let Some(name) = GrantKey::record_name(root, key.container_id.as_str()) else { return };
    let path = directory.join(name);
    if read(&path).is_some_and(|found| found == *key) {
        unlink(&path);
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
    for path in entries.flatten().map(|entry| entry.path()) {
        if read(&path).is_none_or(|key| ledger.get(&key).is_none()) {
            log::info!(path:% = path.display(); "exec record without a grant removed");
            unlink(&path);
        }
    }
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
