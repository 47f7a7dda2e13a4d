//! The doors: a directory for each, and a file that describes it to the gate.
//!
//! ```text
//! <root>/<n>/containers/<name>/   0755  all that a container gets: `control`, which the gate makes
//! <root>/<n>/clients/<name>/      0755  the same of a plain process; an older version had all here
//! <root>/<n>/clients/<name>.json  0600  of either, for the gate alone, replaced by a rename
//! ```
//!
//! A file is made after its directory and removed before it, so that a reader of a file finds both.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use mpsgate_host::crash_point;
use mpsgate_host::door_place::{FILES, Kind};
use mpsgate_host::file::{self, Durability, New};
use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::walk::{entries, make_own, open_child, unlink};
use super::{MpsDirectories, note};
use crate::door_name::is_door;
use crate::error::MpsError;
use crate::log_file::LogFile;

impl MpsDirectories {
    /// The directory of a kind's doors.
    #[must_use]
    pub fn doors_dir(&self, kind: Kind) -> PathBuf {
        self.base.join(kind.directory())
    }

    /// A door; a container gets it read-only.
    #[must_use]
    pub fn door_dir(&self, kind: Kind, name: &str) -> PathBuf {
        self.doors_dir(kind).join(name)
    }

    /// The file that describes a door to the gate.
    #[must_use]
    pub fn door_file(&self, name: &str) -> PathBuf {
        self.base.join(FILES).join(file_of(name))
    }

    /// The card's gate holds this lock for as long as it lives (POSIX lock).
    #[must_use]
    pub fn gate_lock(&self) -> PathBuf {
        self.base.join("gate.lock")
    }

    /// mpsgated's socket for the gate's questions.
    #[must_use]
    pub fn gate_socket(&self) -> PathBuf {
        self.base.join("gate.sock")
    }

    /// Receives the gate's output if no journal does.
    #[must_use]
    pub fn gate_log(&self) -> LogFile {
        LogFile::new(self.log_dir().join("gate.log"))
    }

    /// Makes a door if it is missing, and writes its file.
    ///
    /// # Errors
    /// [`MpsError::NotPlainPath`] for a wrong name, [`MpsError::Fs`], and errors of the
    /// directories' checks.
    pub fn put_door(&self, kind: Kind, name: &str, file: &[u8]) -> Result<(), MpsError> {
        let path = self.door_dir(kind, name);
        if !is_door(name) {
            return Err(MpsError::NotPlainPath { path });
        }
        let doors = self.open_dir(kind.directory())?;
        make_own(&doors, &path, name.as_ref(), 0o755)?;
        crash_point!("mps.door.made");
        let (files, own) = (self.open_dir(FILES)?, file_of(name));
        let new = New::of(0o600, Durability::Atomic);
        file::replace_at(files.as_fd(), OsStr::new(&own), file, &new)
            .map_err(|source| MpsError::fs("write", self.door_file(name), source))?;
        crash_point!("mps.door.written");
        Ok(())
    }

    /// Whether the gate has made a door's socket.
    #[must_use]
    pub fn is_open_door(&self, kind: Kind, name: &str) -> bool {
        fs::symlink_metadata(self.door_dir(kind, name).join("control")).is_ok()
    }

    /// Removes a door of either kind with its file; a missing one is a success.
    ///
    /// # Errors
    /// [`MpsError::NotPlainPath`] for a wrong name, [`MpsError::Fs`], and errors of the
    /// directories' checks.
    pub fn remove_door(&self, name: &str) -> Result<(), MpsError> {
        if !is_door(name) {
            return Err(MpsError::NotPlainPath { path: self.door_dir(Kind::Process, name) });
        }
        let files = self.open_dir(FILES)?;
        for file in [file_of(name), format!(".{}.new", file_of(name))] {
            match unlinkat(&files, file.as_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(MpsError::fs("remove", self.door_file(name), errno)),
            }
        }
        crash_point!("mps.door.file_removed");
        for kind in Kind::ALL {
            match self.remove_door_dir(kind, name) {
                Err(error) if !error.is_missing() => return Err(error),
                _ => {}
            }
        }
        crash_point!("mps.door.removed");
        Ok(())
    }

    fn remove_door_dir(&self, kind: Kind, name: &str) -> Result<(), MpsError> {
        let (doors, path) = (self.open_dir(kind.directory())?, self.door_dir(kind, name));
        let dir = open_child(&doors, &path, name.as_ref())?;
        for entry in entries(&dir, &path)? {
            unlink(&dir, &entry, &path)?;
        }
        unlinkat(&doors, name, UnlinkatFlags::RemoveDir)
            .map_err(|errno| MpsError::fs("remove", path, errno))
    }

    /// The names with a directory or a file.
    ///
    /// # Errors
    /// [`MpsError::Fs`] and errors of the directories' checks.
    pub fn doors(&self) -> Result<BTreeSet<String>, MpsError> {
        let mut names = BTreeSet::new();
        for kind in Kind::ALL {
            match self.open_dir(kind.directory()) {
                Ok(doors) => {
                    let found = entries(&doors, &self.doors_dir(kind))?;
                    names.extend(found.iter().filter_map(name_in));
                }
                // An older version had one directory.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// Cleans up as [`Self::remove`] does.
    pub(super) fn remove_doors(&self, left: &mut Vec<String>) {
        match self.doors() {
            Ok(names) => {
                for name in names {
                    if let Err(error) = self.remove_door(&name) {
                        left.push(error.to_string());
                    }
                }
            }
            Err(error) => note(left, &self.base, &std::io::Error::other(error)),
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

    const NAMES: [&str; 2] =
        ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"];

    fn made() -> (tempfile::TempDir, MpsDirectories) {
        let temp = tempfile::tempdir().unwrap();
        let dirs = MpsDirectories::new(&temp.path().join("mps"), 0).unwrap();
        dirs.create().unwrap();
        (temp, dirs)
    }

    #[test]
    fn a_door_is_a_directory_and_a_file_and_both_go() {
        let (_temp, dirs) = made();
        let [one, other] = NAMES;
        let mode = |path: &PathBuf| path.metadata().unwrap().permissions().mode() & 0o7777;
        for kind in Kind::ALL {
            assert_eq!(mode(&dirs.doors_dir(kind)), kind.mode());
            dirs.put_door(kind, one, b"first").unwrap();
            dirs.put_door(kind, one, b"second").unwrap();
            dirs.put_door(Kind::Process, other, b"other").unwrap();
            assert_eq!(fs::read(dirs.door_file(one)).unwrap(), b"second");
            let modes = (mode(&dirs.door_file(one)), mode(&dirs.door_dir(kind, one)));
            assert_eq!(modes, (0o600, 0o755));
            assert!(!dirs.is_open_door(kind, one));
            fs::write(dirs.door_dir(kind, one).join("control"), "").unwrap();
            assert!(dirs.is_open_door(kind, one));
            assert_eq!(dirs.doors().unwrap(), NAMES.map(str::to_owned).into());
            dirs.remove_door(one).unwrap();
            dirs.remove_door(one).unwrap();
            assert_eq!(dirs.doors().unwrap(), [other.to_owned()].into());
        }
    }

    #[test]
    fn what_was_left_half_is_found_and_removed() {
        let (temp, dirs) = made();
        let [one, other] = NAMES;
        fs::create_dir(dirs.door_dir(Kind::Container, one)).unwrap();
        let files = dirs.doors_dir(Kind::Process);
        fs::write(files.join(format!(".{other}.json.new")), "").unwrap();
        assert_eq!(dirs.doors().unwrap().len(), 2);
        for name in NAMES {
            dirs.remove_door(name).unwrap();
        }
        let left = Kind::ALL.map(|kind| fs::read_dir(dirs.doors_dir(kind)).unwrap().count());
        assert_eq!(left, [0, 0]);
        for kind in Kind::ALL {
            dirs.put_door(kind, one, b"").unwrap();
        }
        fs::write(dirs.gate_lock(), "").unwrap();
        dirs.remove().unwrap();
        assert_eq!(fs::read_dir(temp.path().join("mps")).unwrap().count(), 0);
    }

    /// Older versions had all doors in the directory of plain processes' doors.
    #[test]
    fn doors_of_an_older_version_are_found_and_removed() {
        let (_temp, dirs) = made();
        let [one, other] = NAMES;
        fs::remove_dir(dirs.doors_dir(Kind::Container)).unwrap();
        dirs.put_door(Kind::Process, one, b"").unwrap();
        assert_eq!(dirs.doors().unwrap(), [one.to_owned()].into());
        dirs.remove_door(one).unwrap();
        assert!(dirs.doors().unwrap().is_empty());
        dirs.create().unwrap();
        dirs.put_door(Kind::Container, other, b"").unwrap();
        assert_eq!(dirs.doors().unwrap(), [other.to_owned()].into());
    }

    #[test]
    fn nothing_but_a_name_leads_anywhere() {
        let (_temp, dirs) = made();
        for kind in Kind::ALL {
            for name in
                ["", "..", "x", "../0123456789abcdef0123456789abc", &NAMES[0].to_uppercase()]
            {
                let put = dirs.put_door(kind, name, b"");
                assert!(matches!(put, Err(MpsError::NotPlainPath { .. })), "{name}");
                let removed = dirs.remove_door(name);
                assert!(matches!(removed, Err(MpsError::NotPlainPath { .. })), "{name}");
            }
            std::os::unix::fs::symlink("/etc", dirs.door_dir(kind, NAMES[0])).unwrap();
            let put = dirs.put_door(kind, NAMES[0], b"");
            assert!(matches!(put, Err(MpsError::Planted { .. })));
            assert!(matches!(dirs.remove_door(NAMES[0]), Err(MpsError::Planted { .. })));
        }
    }
}
