//! The record of an applied grant: the hook checks against it, and `exec` takes the env from it.

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_api::ExecRecord;
use mpsgate_config::{paths, runs_as_root};
use mpsgate_model::{Code, GrantKey, Refusal};

use crate::facts::read_own;
use crate::replace::replace;

const SIZE_MAX: u64 = 1 << 20;

fn path(runtime_root: &str, container: &str) -> Option<PathBuf> {
    Some(Path::new(paths::GRANTS_DIR).join(GrantKey::record_name(runtime_root, container)?))
}

/// Writes a record, in the place of a previous instance's.
pub(crate) fn write(record: &ExecRecord) -> Result<(), Refusal> {
    let key = &record.grant.key;
    let refuse = |sentence: String, hint: &str| Refusal::new(Code::Write, sentence, hint);
    let path = path(&key.runtime_root, key.container_id.as_str()).ok_or_else(|| {
        refuse(
            "its id and runtime root are too long to record the grant".to_owned(),
            "use a shorter container name",
        )
    })?;
    let written = serde_json::to_vec(record)
        .map_err(io::Error::from)
        .and_then(|text| replace(&path, &text, 0o600, (0, 0)));
    written.map_err(|error| {
        refuse(
            format!("its grant cannot be recorded in {}: {error}", path.display()),
            "make room: df -h /run",
        )
    })
}

/// The record of a container.
pub(crate) enum Found {
    /// It has no grant.
    None,
    /// It has this record.
    Record(Box<ExecRecord>),
    /// It has a record that cannot be used.
    Unusable(String),
}

/// Looks up a container's record. Without one this is a single failed open.
pub(crate) fn find(runtime_root: &str, container: &str) -> Found {
    let Some(path) = path(runtime_root, container) else { return Found::None };
    match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::None,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Found::None,
        // Not readable for a rootless engine, which gets no grants.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !runs_as_root() => {
            return Found::None;
        }
        _ => {}
    }
    let unusable = |why: &str| Found::Unusable(format!("{} {why}", path.display()));
    let Some(bytes) = read_own(&path, SIZE_MAX) else {
        return unusable("is not a file that root alone could write");
    };
    match ExecRecord::parse(&bytes) {
        Err(error) => unusable(&format!("is no record of a grant: {error}")),
        Ok(record)
            if record.grant.key.runtime_root != runtime_root
                || record.grant.key.container_id.as_str() != container =>
        {
            unusable("is another container's")
        }
        Ok(record) => Found::Record(Box::new(record)),
    }
}
