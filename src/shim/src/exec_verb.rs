//! `exec`: engines build the process from their own copy of the spec, so it lacks the env of a
//! grant (measured, dockerd 20.10 and containerd 1.6). This module adds it.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use mpsgate_host::crash_point;
use mpsgate_host::file::remove_leftovers;
use mpsgate_model::{Code, GRANTED_CARDS, GRANTED_MEMORY, Refusal};
use mpsgate_oci::argv::{Invocation, with_exec_env};
use mpsgate_oci::process_edit::rewrite_env;
use mpsgate_policy::{DOCUMENT_MAX, told};

use crate::engine_log::{Refused, chain};
use crate::grant_record::{Found, find};
use crate::replace::replace;
use crate::{descriptors, exec, facts};

/// Puts the grant's env into the process of a granted container. Returns changed arguments if these
/// describe the process; a container without a grant costs one failed stat.
pub(crate) fn prepare(
    args: &[OsString],
    invocation: &Invocation,
) -> Result<Option<Vec<OsString>>, Refused> {
    let Some(id) = invocation.container_id.as_deref().and_then(|id| id.to_str()) else {
        return Ok(None);
    };
    // The runtime's name matters only without a --root.
    let runtime = if invocation.root.is_none() { exec::runtime_path() } else { None };
    let root = facts::runtime_root(invocation, runtime.as_deref());
    let mut record = match find(&root, id) {
        Found::None => return Ok(None),
        Found::Record(record) => record,
        Found::Unusable(why) => {
            return Err(Refusal::new(
                Code::Write,
                format!("a process in it would run without its memory limit: {why}"),
                "recreate the container",
            )
            .into());
        }
    };
    descriptors::ensure_standard_descriptors();
    // A resize may have changed the grant; the variables may still have its first amount.
    record.set.retain(|(name, _)| name != GRANTED_MEMORY && name != GRANTED_CARDS);
    record.set.extend(told(&record.grant));
    if let Some(file) = &invocation.process_file {
        rewrite(file, &record.drop, &record.set)?;
        crash_point!("shim.process_edited");
        return Ok(None);
    }
    Ok(with_exec_env(args, invocation, &record.set))
}

fn rewrite(path: &Path, drop: &[String], set: &[(String, String)]) -> Result<(), Refusal> {
    let refuse = |code: Code, why: String| {
        Refusal::new(
            code,
            format!(
                "the process document {} cannot be given the memory limit: {why}",
                path.display()
            ),
            "try again; if it stays so, look for a full file system: df -h",
        )
    };
    let meta = std::fs::symlink_metadata(path).map_err(|e| refuse(Code::Bundle, e.to_string()))?;
    if !meta.is_file() {
        return Err(refuse(Code::Bundle, "it is not a regular file".to_owned()));
    }
    if meta.len() > DOCUMENT_MAX {
        return Err(refuse(Code::Bundle, format!("it has {} bytes", meta.len())));
    }
    let bytes = std::fs::read(path).map_err(|e| refuse(Code::Bundle, e.to_string()))?;
    let mut document =
        mpsgate_oci::spec::parse_process(&bytes).map_err(|e| refuse(Code::Bundle, chain(&e)))?;
    let drop: Vec<&str> = drop.iter().map(String::as_str).collect();
    let changed = rewrite_env(document.value_mut(), &drop, set)
        .map_err(|e| refuse(Code::Bundle, chain(&e)))?;
    if !changed {
        return Ok(());
    }
    let text = document.to_vec().map_err(|e| refuse(Code::Write, e.to_string()))?;
    if let Some(directory) = path.parent() {
        remove_leftovers(directory);
    }
    replace(path, &text, meta.mode() & 0o7777, (meta.uid(), meta.gid()))
        .map_err(|e| refuse(Code::Write, e.to_string()))
}
