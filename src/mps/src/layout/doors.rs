//! The containers' own directories, and the file beside each that tells the gate of its container:
//!
//! ```text
//! <root>/<n>/clients/<name>/      0755  all that a container gets: `control`, which the gate makes
//! <root>/<n>/clients/<name>.json  0600  for the gate alone, replaced by a rename
//! ```
//!
//! A file comes after its directory and goes before it, so that whoever finds a file finds both.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use mpsgate_host::crash_point;
use mpsgate_host::file::{self, Durability, New};
use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::walk::{entries, make_own, open_child, unlink};
use super::{MpsDirectories, note};
use crate::door_name::is_door;
use crate::error::MpsError;
use crate::log_file::LogFile;

/// Where they lie.
pub(super) const CLIENTS: &str = "clients";

impl MpsDirectories {
    /// Where the containers' own directories are.
    #[must_use]
    pub fn clients_dir(&self) -> PathBuf {
        self.base.join(CLIENTS)
    }

    /// A container's own directory, which it gets read-only.
    #[must_use]
    pub fn door_dir(&self, name: &str) -> PathBuf {
        self.clients_dir().join(name)
    }

    /// Locked by the card's gate for as long as it lives (POSIX lock).
    #[must_use]
    pub fn gate_lock(&self) -> PathBuf {
        self.base.join("gate.lock")
    }

    /// mpsgated's socket for the gate's questions.
    #[must_use]
    pub fn gate_socket(&self) -> PathBuf {
        self.base.join("gate.sock")
    }

    /// Receives what the gate prints where no journal does.
    #[must_use]
    pub fn gate_log(&self) -> LogFile {
        LogFile::new(self.log_dir().join("gate.log"))
    }

    /// Makes a container's directory where there is none, and writes its file.
    ///
    /// # Errors
    /// [`MpsError::NotPlainPath`] for a name that is none, [`MpsError::Fs`], and what the
    /// directories' checks say.
    pub fn put_door(&self, name: &str, file: &[u8]) -> Result<(), MpsError> {
        let path = self.door_dir(name);
        if !is_door(name) {
            return Err(MpsError::NotPlainPath { path });
        }
        let clients = self.open_dir(CLIENTS)?;
        make_own(&clients, &path, name.as_ref(), 0o755)?;
        crash_point!("mps.door.made");
        let own = file_of(name);
        let new = New::of(0o600, Durability::Atomic);
        file::replace_at(clients.as_fd(), OsStr::new(&own), file, &new)
            .map_err(|source| MpsError::fs("write", self.door_dir(&own), source))?;
        crash_point!("mps.door.written");
        Ok(())
    }

    /// Whether the gate has made a container's socket.
    #[must_use]
    pub fn is_open_door(&self, name: &str) -> bool {
        fs::symlink_metadata(self.door_dir(name).join("control")).is_ok()
    }

    /// Removes a container's file and directory; nothing there is success.
    ///
    /// # Errors
    /// [`MpsError::NotPlainPath`] for a name that is none, [`MpsError::Fs`], and what the
    /// directories' checks say.
    pub fn remove_door(&self, name: &str) -> Result<(), MpsError> {
        let path = self.door_dir(name);
        if !is_door(name) {
            return Err(MpsError::NotPlainPath { path });
        }
        let clients = self.open_dir(CLIENTS)?;
        for file in [file_of(name), format!(".{}.new", file_of(name))] {
            match unlinkat(&clients, file.as_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(MpsError::fs("remove", self.door_dir(&file), errno)),
            }
        }
        crash_point!("mps.door.file_removed");
        let dir = match open_child(&clients, &path, name.as_ref()) {
            Ok(dir) => dir,
            Err(error) if error.is_missing() => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries(&dir, &path)? {
            unlink(&dir, &entry, &path)?;
        }
        unlinkat(&clients, name, UnlinkatFlags::RemoveDir)
            .map_err(|errno| MpsError::fs("remove", path, errno))?;
        crash_point!("mps.door.removed");
        Ok(())
    }

    /// The names of which there is a directory or a file.
    ///
    /// # Errors
    /// [`MpsError::Fs`] and what the directories' checks say.
    pub fn doors(&self) -> Result<BTreeSet<String>, MpsError> {
        let clients = self.open_dir(CLIENTS)?;
        let found = entries(&clients, &self.clients_dir())?;
        Ok(found.iter().filter_map(name_in).collect())
    }

    /// Clean-up, as [`Self::remove`].
    pub(super) fn remove_doors(&self, left: &mut Vec<String>) {
        match self.doors() {
            Ok(names) => {
                for name in names {
                    if let Err(error) = self.remove_door(&name) {
                        left.push(error.to_string());
                    }
                }
            }
            Err(error) if error.is_missing() => {}
            Err(error) => note(left, &self.clients_dir(), &std::io::Error::other(error)),
        }
    }
}

fn file_of(name: &str) -> String {
    format!("{name}.json")
}

/// The name that a directory or file belongs to.
fn name_in(entry: &CString) -> Option<String> {
    let text = entry.to_str().ok()?;
    let text = text.strip_suffix(".new").and_then(|text| text.strip_prefix('.')).unwrap_or(text);
    let text = text.strip_suffix(".json").unwrap_or(text);
    is_door(text).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ClientLinks;

    const NAMES: [&str; 2] =
        ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"];

    fn made() -> (tempfile::TempDir, MpsDirectories) {
        let temp = tempfile::tempdir().unwrap();
        let dirs = MpsDirectories::new(&temp.path().join("mps"), 0, ClientLinks::default());
        let dirs = dirs.unwrap();
        dirs.create().unwrap();
        (temp, dirs)
    }

    #[test]
    fn a_door_is_a_directory_and_a_file_beside_it_and_both_go() {
        let (_temp, dirs) = made();
        let [one, other] = NAMES;
        dirs.put_door(one, b"first").unwrap();
        dirs.put_door(one, b"second").unwrap();
        dirs.put_door(other, b"other").unwrap();
        let file = dirs.clients_dir().join(format!("{one}.json"));
        let mode = |path: &PathBuf| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(fs::read(&file).unwrap(), b"second");
        assert_eq!((mode(&file), mode(&dirs.door_dir(one))), (0o600, 0o755));
        assert!(!dirs.is_open_door(one));
        fs::write(dirs.door_dir(one).join("control"), "").unwrap();
        assert!(dirs.is_open_door(one));
        assert_eq!(dirs.doors().unwrap(), NAMES.map(str::to_owned).into());
        dirs.remove_door(one).unwrap();
        dirs.remove_door(one).unwrap();
        assert_eq!(dirs.doors().unwrap(), [other.to_owned()].into());
    }

    #[test]
    fn what_was_left_half_is_found_and_removed() {
        let (temp, dirs) = made();
        let [one, other] = NAMES;
        fs::create_dir(dirs.door_dir(one)).unwrap();
        fs::write(dirs.clients_dir().join(format!(".{other}.json.new")), "").unwrap();
        assert_eq!(dirs.doors().unwrap().len(), 2);
        for name in NAMES {
            dirs.remove_door(name).unwrap();
        }
        assert_eq!(fs::read_dir(dirs.clients_dir()).unwrap().count(), 0);
        dirs.put_door(one, b"").unwrap();
        fs::write(dirs.gate_lock(), "").unwrap();
        dirs.remove().unwrap();
        assert_eq!(fs::read_dir(temp.path().join("mps")).unwrap().count(), 0);
    }

    #[test]
    fn nothing_but_a_name_leads_anywhere() {
        let (_temp, dirs) = made();
        for name in ["", "..", "x", "../0123456789abcdef0123456789abc", &NAMES[0].to_uppercase()] {
            assert!(
                matches!(dirs.put_door(name, b""), Err(MpsError::NotPlainPath { .. })),
                "{name}"
            );
            assert!(matches!(dirs.remove_door(name), Err(MpsError::NotPlainPath { .. })), "{name}");
        }
        std::os::unix::fs::symlink("/etc", dirs.door_dir(NAMES[0])).unwrap();
        assert!(matches!(dirs.put_door(NAMES[0], b""), Err(MpsError::Planted { .. })));
        assert!(matches!(dirs.remove_door(NAMES[0]), Err(MpsError::Planted { .. })));
    }
}
