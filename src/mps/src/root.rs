//! Whose `/` a process has.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Device and inode of a `/`: tells whose root directory a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
}

impl Root {
    /// Of a process or thread, by its directory of `/proc`; `None` where it cannot be seen.
    #[must_use]
    pub fn of(process: &Path) -> Option<Self> {
        let found = fs::metadata(process.join("root/")).ok()?;
        Some(Self { dev: found.dev(), ino: found.ino() })
    }

    /// The holder's, as it wrote it down when it started: servers of its control daemons have it as
    /// well, also those that outlived it. `None` where none was ever there.
    #[must_use]
    pub fn of_holder(dir: &Path) -> Option<Self> {
        let text = fs::read_to_string(Self::file(dir)).ok()?;
        let (dev, ino) = text.trim_end().split_once(' ')?;
        Some(Self { dev: dev.parse().ok()?, ino: ino.parse().ok()? })
    }

    /// Where it writes it down.
    pub(crate) fn file(dir: &Path) -> PathBuf {
        dir.join("root")
    }
}
