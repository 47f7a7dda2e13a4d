//! Whether a running card's directories and files are what mpsgate and the control daemon made;
//! what can be made again without harm is.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::walk::{entries, kind, lstat, words};
use super::{ClientLinks, MpsDirectories, PARTS};
use crate::error::MpsError;

/// What the control daemon keeps in its directory for as long as it lives. Its pid file is not
/// among them: anybody may change it, and 535 has none.
const PIPE_FILES: [(&str, SFlag); 4] = [
    ("control", SFlag::S_IFSOCK),
    ("control_privileged", SFlag::S_IFSOCK),
    ("control_lock", SFlag::S_IFREG),
    ("log", SFlag::S_IFIFO),
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
    /// Looks at everything below the card's directory, without following a link; makes the
    /// containers' links and the directories' modes again where they differ. Only of a
    /// card whose containers may reach the daemon: links are made where there are none.
    ///
    /// # Errors
    /// What cannot be repaired, by name: [`MpsError::Planted`], [`MpsError::ForeignOwner`],
    /// [`MpsError::WritableByOthers`], [`MpsError::Lost`], [`MpsError::InTheWay`],
    /// [`MpsError::Fs`].
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
        let (pipe, client) = (self.open_dir("pipe")?, self.open_dir("client")?);
        for (name, wanted) in PIPE_FILES {
            // Where containers have no use for the FIFO, nobody else has.
            if name == "log" && self.links == ClientLinks::ControlOnly {
                continue;
            }
            let path = self.pipe_dir().join(name);
            let found =
                lstat(&pipe, name).map_err(|errno| MpsError::fs("look at", &path, errno))?;
            if found.is_none_or(|stat| kind(&stat) != wanted) {
                let found = found.as_ref().map_or("missing", words);
                return Err(MpsError::Lost { path, found });
            }
        }
        self.repair_links(&pipe, &client, &mut repairs)?;
        Ok(repairs)
    }

    fn repair_links(
        &self,
        pipe: &OwnedFd,
        client: &OwnedFd,
        repairs: &mut Vec<Repair>,
    ) -> Result<(), MpsError> {
        let directory = self.client_dir();
        let mut wrong = false;
        for name in self.links.names() {
            let path = directory.join(name);
            let look =
                |dir| lstat(dir, name).map_err(|errno| MpsError::fs("look at", &path, errno));
            let (own, given) = (look(pipe)?, look(client)?);
            if own.map(inode) == given.map(inode) {
                continue;
            }
            wrong = true;
            let found = given.as_ref().map_or("missing", words);
            if found == "a directory" {
                self.make_room(client, name)?;
            }
            let another =
                given.is_some_and(|given| own.is_some_and(|own| kind(&own) == kind(&given)));
            let found =
                if another { format!("{found} that leads elsewhere") } else { found.to_owned() };
            repairs.push(Repair { path, found });
        }
        for name in entries(client, &directory)? {
            let name = name.to_string_lossy().into_owned();
            if self.links.names().contains(&name.as_str()) {
                continue;
            }
            wrong = true;
            let found = lstat(client, &name).ok().flatten();
            if found.is_some_and(|stat| kind(&stat) == SFlag::S_IFDIR) {
                self.make_room(client, &name)?;
            }
            repairs.push(Repair { path: directory.join(&name), found: "not mpsgate's".to_owned() });
        }
        if wrong { self.renew_links() } else { Ok(()) }
    }

    /// Removes an empty directory; one that holds something is left to its owner.
    fn make_room(&self, client: &OwnedFd, name: &str) -> Result<(), MpsError> {
        let path = self.client_dir().join(name);
        match unlinkat(client, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY) => {
                Err(MpsError::InTheWay { path, found: "a directory" })
            }
            Err(errno) => Err(MpsError::fs("remove", path, errno)),
        }
    }
}

fn inode(stat: FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
