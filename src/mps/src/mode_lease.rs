//! Compute-mode leases: a card's compute mode before mpsgate made it EXCLUSIVE_PROCESS. There is
//! one file per card, in a place that survives a reboot. The caller sets the mode: this crate does
//! not use NVML.
//!
//! Write the lease *before* changing the mode and remove it *after* the mode is back: a crash in
//! between then leaves a lease too many, never one too few.
//!
//! While the card is EXCLUSIVE_PROCESS only the lease has the former mode. A card in another mode
//! has lost mpsgate's: it was rebooted, its driver was reloaded (NVML's modes do not survive
//! either), or somebody set it. That mode is the one that the card would have without mpsgate. So a
//! new lease records it, and giving the card back leaves it alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mpsgate_host::clock::now_ms;
use mpsgate_host::crash_steps;
use mpsgate_host::file::{self, Durability, New};
use mpsgate_host::format::{self, FormatError};
use mpsgate_model::ComputeMode;
use serde::{Deserialize, Serialize};

use crate::error::MpsError;

/// The only format so far.
const FORMAT: u32 = 1;

/// The mode to restore, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    format: u32,
    /// The card.
    pub uuid: String,
    /// The mode to go back to.
    pub previous: ComputeMode,
    /// Seconds since 1970.
    pub taken_at_s: u64,
}

/// The result of [`LeaseDir::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// A new lease was written.
    New(Lease),
    /// A lease from before a crash exists: its `previous` is the true one.
    Existing(Lease),
    /// A lease exists, but the card has lost mpsgate's mode since: the lease now has its present
    /// mode.
    Renewed(Lease),
}

/// The directory of the leases, usually `/var/lib/mpsgate/compute-mode`.
#[derive(Debug, Clone)]
pub struct LeaseDir {
    path: PathBuf,
}

impl LeaseDir {
    /// Names the directory; the first [`Self::take`] makes it.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Records the mode that `uuid` has now, unless it has a lease and the card still has mpsgate's
    /// own mode.
    ///
    /// # Errors
    /// [`MpsError::BadUuid`], [`MpsError::Fs`]; [`MpsError::LeaseCorrupt`] or
    /// [`MpsError::LeaseNewer`] when the existing lease cannot be read: it is never overwritten,
    /// because it may be the only record of the old mode.
    pub fn take(&self, uuid: &str, previous: ComputeMode) -> Result<Taken, MpsError> {
        let old = self.read(uuid)?;
        let path = self.file(uuid)?;
        remove_leftover(&path);
        if let Some(lease) = &old
            && (previous == ComputeMode::ExclusiveProcess || previous == lease.previous)
        {
            return Ok(Taken::Existing(lease.clone()));
        }
        let taken_at_s = now_ms() / 1000;
        let lease = Lease { format: FORMAT, uuid: uuid.to_owned(), previous, taken_at_s };
        fs::create_dir_all(&self.path)
            .map_err(|source| MpsError::fs("create directory", &self.path, source))?;
        let mut text = serde_json::to_vec(&lease)
            .map_err(|source| MpsError::fs("write lease", &path, io::Error::from(source)))?;
        text.push(b'\n');
        let steps = crash_steps!("lease": "created", "written", "renamed");
        let new = New { steps, ..New::of(0o600, Durability::Synced) };
        if old.is_some() {
            return match file::replace(&path, &text, &new) {
                Ok(()) => Ok(Taken::Renewed(lease)),
                Err(source) => Err(MpsError::fs("replace lease", path, source)),
            };
        }
        match file::create(&path, &text, &new) {
            Ok(()) => Ok(Taken::New(lease)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self
                .read(uuid)?
                .map(Taken::Existing)
                .ok_or_else(|| MpsError::fs("write lease", path, error)),
            Err(source) => Err(MpsError::fs("write lease", path, source)),
        }
    }

    /// The lease of one card.
    ///
    /// # Errors
    /// [`MpsError::BadUuid`], [`MpsError::Fs`], [`MpsError::LeaseCorrupt`],
    /// [`MpsError::LeaseNewer`].
    pub fn read(&self, uuid: &str) -> Result<Option<Lease>, MpsError> {
        let path = self.file(uuid)?;
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MpsError::fs("read lease", path, source)),
        };
        let lease: Lease = match format::read(&text, FORMAT) {
            Ok(lease) => lease,
            Err(FormatError::Other { found, known }) => {
                return Err(MpsError::LeaseNewer { path, found, known });
            }
            Err(FormatError::Content(error)) => {
                return Err(MpsError::LeaseCorrupt { path, reason: error.to_string() });
            }
        };
        if lease.uuid != uuid {
            return Err(MpsError::LeaseCorrupt {
                path,
                reason: format!("it is for {}", lease.uuid),
            });
        }
        Ok(Some(lease))
    }

    /// All leases, each readable or not: the modes to restore at boot.
    ///
    /// # Errors
    /// [`MpsError::Fs`] when the directory cannot be read; a missing one holds no lease.
    pub fn read_all(&self) -> Result<Vec<Result<Lease, MpsError>>, MpsError> {
        let failed = |source| MpsError::fs("read directory", &self.path, source);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut leases = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            // Names with a dot are temporary files of an interrupted write.
            if let Some(uuid) = name.to_str().filter(|name| !name.starts_with('.')) {
                leases.extend(self.read(uuid).transpose());
            }
        }
        Ok(leases)
    }

    /// Removes the lease, once the old mode is back. A missing one is a success.
    ///
    /// # Errors
    /// [`MpsError::BadUuid`], [`MpsError::Fs`].
    pub fn remove(&self, uuid: &str) -> Result<(), MpsError> {
        let path = self.file(uuid)?;
        remove_leftover(&path);
        match fs::remove_file(&path) {
            Ok(()) => file::sync_directory(&self.path)
                .map_err(|source| MpsError::fs("sync", &self.path, source)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(MpsError::fs("remove lease", path, source)),
        }
    }

    fn file(&self, uuid: &str) -> Result<PathBuf, MpsError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if uuid.is_empty() || uuid.len() > 96 || !uuid.bytes().all(plain) {
            return Err(MpsError::BadUuid { uuid: uuid.to_owned() });
        }
        Ok(self.path.join(uuid))
    }
}

/// Removes a file that an interrupted write left. Only one mpsgated runs, so no process uses it.
fn remove_leftover(lease: &Path) {
    let _ = fs::remove_file(file::beside(lease));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    const UUID: &str = "GPU-8d4a3c5e-0000-1111-2222-333344445555";

    #[test]
    fn the_first_lease_stays_the_true_one_while_the_card_has_our_mode() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDir::new(dir.path().join("compute-mode"));
        assert!(leases.read_all().unwrap().is_empty());
        let Taken::New(lease) = leases.take(UUID, ComputeMode::Default).unwrap() else {
            panic!("not new")
        };
        let again = leases.take(UUID, ComputeMode::ExclusiveProcess).unwrap();
        assert_eq!(again, Taken::Existing(lease.clone()));
        let all: Vec<_> = leases.read_all().unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(all, [lease]);
        // A crash before the mode was changed.
        let again = leases.take(UUID, ComputeMode::Default).unwrap();
        assert!(matches!(again, Taken::Existing(_)), "{again:?}");
        leases.remove(UUID).unwrap();
        leases.remove(UUID).unwrap();
        assert!(leases.read(UUID).unwrap().is_none());
        assert_eq!(fs::read_dir(dir.path().join("compute-mode")).unwrap().count(), 0);
    }

    #[test]
    fn what_a_crash_left_of_a_lease_goes_with_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDir::new(dir.path());
        let left = dir.path().join(format!(".{UUID}.new"));
        fs::write(&left, "{").unwrap();
        leases.take(UUID, ComputeMode::Default).unwrap();
        // Killed between giving the file its name and removing the other one.
        fs::hard_link(dir.path().join(UUID), &left).unwrap();
        let again = leases.take(UUID, ComputeMode::ExclusiveProcess).unwrap();
        assert!(matches!(again, Taken::Existing(_)), "{again:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_card_that_lost_our_mode_is_leased_anew_with_what_it_shows() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDir::new(dir.path());
        leases.take(UUID, ComputeMode::Prohibited).unwrap();
        let anew = leases.take(UUID, ComputeMode::Default).unwrap();
        let Taken::Renewed(lease) = anew else { panic!("{anew:?}") };
        assert_eq!(lease.previous, ComputeMode::Default);
        let after = leases.take(UUID, ComputeMode::ExclusiveProcess).unwrap();
        assert_eq!(after, Taken::Existing(lease));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn an_unreadable_lease_is_named_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDir::new(dir.path());
        let other = r#"{"format":1,"uuid":"GPU-x","previous":"default","taken_at_s":1}"#;
        for (content, why) in
            [("", "EOF"), ("{", "EOF"), ("\u{0}", "expected value"), (other, "it is for GPU-x")]
        {
            fs::write(dir.path().join(UUID), content).unwrap();
            let error = leases.take(UUID, ComputeMode::Default).unwrap_err();
            let MpsError::LeaseCorrupt { path, reason } = &error else { panic!("{error}") };
            assert!(path.ends_with(UUID) && reason.contains(why), "{error}");
            assert_eq!(fs::read_to_string(dir.path().join(UUID)).unwrap(), content);
        }
    }

    #[test]
    fn a_newer_lease_and_a_broken_one_are_different_errors_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDir::new(dir.path());
        let alike =
            format!(r#"{{"format":2,"uuid":"{UUID}","previous":"default","taken_at_s":1}}"#);
        for content in [alike.as_str(), r#"{"format":2,"boot":"x"}"#] {
            fs::write(dir.path().join(UUID), content).unwrap();
            let error = leases.take(UUID, ComputeMode::Default).unwrap_err();
            assert!(matches!(error, MpsError::LeaseNewer { found: 2, known: 1, .. }), "{error}");
            assert!(error.hint().unwrap().starts_with("install the mpsgate that wrote it"));
            assert_eq!(fs::read_to_string(dir.path().join(UUID)).unwrap(), content);
        }
    }

    #[test]
    fn refuses_a_uuid_that_is_a_path() {
        let leases = LeaseDir::new("/nonexistent");
        for uuid in ["", "../x", "a/b", "GPU x"] {
            assert!(
                matches!(leases.take(uuid, ComputeMode::Default), Err(MpsError::BadUuid { .. })),
                "{uuid}"
            );
        }
    }
}
