//! Checks that a running card's directories and files are as mpsgate and the control daemon made
//! them, and repairs what can be repaired without harm.

use std::fmt;
use std::path::PathBuf;

use nix::sys::stat::{Mode, SFlag, fchmod};

use super::walk::{kind, lstat, words};
use super::{MpsDirectories, PARTS};
use crate::error::MpsError;

/// The files that the control daemon keeps in its directory for as long as it lives. The FIFO of
/// its log is of no use to others, and 535 has no pid file.
const PIPE_FILES: [(&str, SFlag); 3] = [
    ("control", SFlag::S_IFSOCK),
    ("control_privileged", SFlag::S_IFSOCK),
    ("control_lock", SFlag::S_IFREG),
];

/// Something that was wrong and was repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The file or directory.
    pub path: PathBuf,
    /// Its state before: `missing`, `a regular file`, `of mode 0700`.
    pub found: String,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {}", self.path.display(), self.found)
    }
}

impl MpsDirectories {
    /// Checks everything below the card's directory, without following a link, and corrects the
    /// directories' modes.
    ///
    /// # Errors
    /// What cannot be repaired: [`MpsError::Planted`], [`MpsError::ForeignOwner`],
    /// [`MpsError::WritableByOthers`], [`MpsError::Lost`], [`MpsError::Fs`].
    pub fn repair(&self) -> Result<Vec<Repair>, MpsError> {
        let mut repairs = Vec::new();
        for (name, mode) in PARTS {
            let dir = self.open_dir(name)?;
            let path = self.base.join(name);
            let found = super::check_own(&dir, &path)?;
            if found != mode {
                fchmod(&dir, Mode::from_bits_truncate(mode))
                    .map_err(|errno| MpsError::fs("set mode of", &path, errno))?;
                repairs.push(Repair { path, found: format!("of mode {found:04o}") });
            }
        }
        // No client reaches files outside of the daemon's own tmpfs.
        let Some(pipe) = self.open_pipe()? else { return Ok(repairs) };
        for (name, wanted) in PIPE_FILES {
            let path = self.pipe_dir().join(name);
            let found =
                lstat(&pipe, name).map_err(|errno| MpsError::fs("look at", &path, errno))?;
            if found.is_none_or(|stat| kind(&stat) != wanted) {
                let found = found.as_ref().map_or("missing", words);
                return Err(MpsError::Lost { path, found });
            }
        }
        Ok(repairs)
    }
}
