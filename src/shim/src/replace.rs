//! The files that the shim replaces: records, `config.json`, process documents.
//!
//! A killed shim leaves a temporary file. The next shim that replaces a bundle's or a process's
//! document removes those beside it; the daemon removes those beside records. The hook names its
//! nodes below `/dev` in the same way.

use std::io;
use std::path::Path;

use mpsgate_host::crash_steps;
use mpsgate_host::file::{self, Durability, New, Writers};

/// Replaces a file whole.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32, owner: (u32, u32)) -> io::Result<()> {
    let new = New {
        owner: Some(owner),
        writers: Writers::Many,
        steps: crash_steps!("shim.file": "created", "written", "renamed"),
        ..New::of(mode, Durability::Whole)
    };
    file::replace(path, bytes, &new)
}
