//! Whether a running card's directories and files are what mpsgate and the control daemon made;
//! what can be made again without harm is.

use std::fmt;
use std::path::PathBuf;

use nix::sys::stat::{Mode, SFlag, fchmod};

use super::walk::{kind, lstat, words};
use super::{MpsDirectories, PARTS};
use crate::error::MpsError;

/// What the control daemon keeps in its directory for as long as it lives. The FIFO of its log has
/// no use to anybody, and 535 has no pid file.
const PIPE_FILES: [(&str, SFlag); 3] = [
    ("control", SFlag::S_IFSOCK),
    ("control_privileged", SFlag::S_IFSOCK),
    ("control_lock", SFlag::S_IFREG),
];

/// Something that was not as it should be, and is again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The file or directory.
    pub path: PathBuf,
    /// What it was: `missing`, `a regular file`, `of mode 0700`.
    pub found: String,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {}", self.path.display(), self.found)
    }
}

impl MpsDirectories {
    /// Looks at everything below the card's directory, without following a link; sets the
    /// directories' modes again where they differ.
    ///
    /// # Errors
    /// What cannot be repaired, by name: [`MpsError::Planted`], [`MpsError::ForeignOwner`],
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
        // What does not lie in the daemon's own tmpfs is reached by nobody.
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
