//! The root directory of a process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Device and inode of a `/`: identifies a process's root directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
}

impl Root {
    /// The root of a process or thread, by its directory of `/proc`; `None` if it cannot be seen.
    #[must_use]
    pub fn of(process: &Path) -> Option<Self> {
        let found = fs::metadata(process.join("root/")).ok()?;
        Some(Self { dev: found.dev(), ino: found.ino() })
    }

    /// The holder's root, as it recorded it at its start: servers of its control daemons have it as
    /// well, also those that outlived it. `None` if there never was a holder.
    #[must_use]
    pub fn of_holder(dir: &Path) -> Option<Self> {
        let text = fs::read_to_string(Self::file(dir)).ok()?;
        let (dev, ino) = text.trim_end().split_once(' ')?;
        Some(Self { dev: dev.parse().ok()?, ino: ino.parse().ok()? })
    }

    /// The file with that record.
    pub(crate) fn file(dir: &Path) -> PathBuf {
        dir.join("root")
    }
}
