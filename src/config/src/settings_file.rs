//! Reads a settings file and turns its text into a [`Config`].

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use crate::error::MAX_BYTES;
use crate::{Config, ConfigError, keys};

/// `O_NONBLOCK` of Linux on `x86_64` and `aarch64`: opening a pipe must not wait for its writer.
const O_NONBLOCK: i32 = 0o4000;

/// The source of settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// There is no file.
    Defaults,
    /// This file.
    File(PathBuf),
}

impl Config {
    /// Loads settings. A missing file gives the defaults.
    ///
    /// A container that has the file by a bind can take a lease on it (fcntl(2)). Opening the file
    /// waits for the end of the lease, because the defaults would decide otherwise in the meantime;
    /// the kernel ends it after `fs.lease-break-time` (45 s).
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with_origin(path).map(|(config, _)| config)
    }

    /// Like [`Config::load`], and returns whether there was a file.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn load_with_origin(path: &Path) -> Result<(Self, Origin), ConfigError> {
        let Some(bytes) = read_trusted(path)? else {
            return Ok((Self::default(), Origin::Defaults));
        };
        let text = std::str::from_utf8(&bytes).map_err(|error| ConfigError::NotUtf8 {
            file: path.to_owned(),
            line: keys::line_at(&bytes, error.valid_up_to()),
        })?;
        Ok((Self::parse(text, path)?, Origin::File(path.to_owned())))
    }

    /// Reads settings from text. `file` only names the text in errors.
    ///
    /// # Errors
    /// `Syntax`, `UnknownKey`, `BadValue` and `MissingKey` of [`ConfigError`].
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            file: file.to_owned(),
            line: keys::line_at(text.as_bytes(), error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        keys::read(table.get_ref(), text, file)
    }
}

/// The bytes of a file that only root can write, if root reads it; `None` if there is no file.
pub(crate) fn read_trusted(path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    let read_error = |source| ConfigError::Read { file: path.to_owned(), source };
    let at_once = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
    let opened = match at_once {
        Err(error) if error.kind() == ErrorKind::WouldBlock => File::open(path),
        other => other,
    };
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(read_error(source)),
    };
    // Of the opened file, not of the path, which could be exchanged in between.
    let metadata = file.metadata().map_err(read_error)?;
    if !metadata.is_file() {
        return Err(ConfigError::NotRegular { file: path.to_owned() });
    }
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if runs_as_root() && !is_trusted(uid, mode) {
        return Err(ConfigError::NotTrusted { file: path.to_owned(), uid, mode });
    }
    read_capped(&file, &metadata)
        .map_err(read_error)?
        .ok_or_else(|| ConfigError::TooLong { file: path.to_owned() })
        .map(Some)
}

fn read_capped(file: &File, metadata: &Metadata) -> std::io::Result<Option<Vec<u8>>> {
    let expected = usize::try_from(metadata.len()).unwrap_or(MAX_BYTES).min(MAX_BYTES);
    let mut bytes = Vec::with_capacity(expected + 1);
    // The file may have grown since its length was read.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= MAX_BYTES).then_some(bytes))
}

/// Whether only root could have written a file with this owner and these permission bits.
fn is_trusted(uid: u32, mode: u32) -> bool {
    uid == 0 && mode & 0o022 == 0
}

/// The inode of the host's user namespace (`PROC_USER_INIT_INO` of Linux' `proc_ns.h`).
const INITIAL_USER_NAMESPACE: u64 = 0xeffffffd;

/// Whether this process is the host's root, and not a rootless engine's: `root` of a user namespace
/// of its own is not. The owner of `/proc/self` is the process' effective user. Without `/proc`,
/// the strict answer.
#[must_use]
pub fn runs_as_root() -> bool {
    let is_initial = |namespace: Metadata| namespace.ino() == INITIAL_USER_NAMESPACE;
    std::fs::metadata("/proc/self").map_or(true, |own| own.uid() == 0)
        && std::fs::metadata("/proc/self/ns/user").map_or(true, is_initial)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test is to panic")]
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use mpsgate_testing::{can_be_leased, leased, wait_for};

    use super::*;

    #[test]
    fn settings_on_which_somebody_has_a_lease_are_waited_for() {
        let text = "[policy]\nprivileged = \"close\"\n";
        let (_dir, file) = written(text.as_bytes(), 0o644);
        wait_for("it can be leased", || can_be_leased(&file));
        let _lease = leased(&file, 3);
        let at_once = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&file);
        assert_eq!(at_once.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(Config::load(&file).unwrap(), Config::parse(text, &file).unwrap());
    }

    fn written(bytes: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_missing_file_means_the_defaults_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let loaded = Config::load_with_origin(&dir.path().join("none.toml")).unwrap();
        assert_eq!(loaded, (Config::default(), Origin::Defaults));
    }

    #[test]
    fn a_file_is_read_and_named_as_the_origin() {
        let (_dir, path) = written(b"[runtime]\npath = \"crun\"\n", 0o644);
        let (config, origin) = Config::load_with_origin(&path).unwrap();
        assert_eq!(config.runtime.path, PathBuf::from("crun"));
        assert_eq!(origin, Origin::File(path));
    }

    #[test]
    #[expect(clippy::disallowed_types, reason = "the standard library makes no named pipes")]
    fn what_is_not_a_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let error = Config::load(dir.path()).unwrap_err();
        assert!(matches!(error, ConfigError::NotRegular { .. }), "{error}");
        let error = Config::load(Path::new("/dev/null")).unwrap_err();
        assert!(matches!(error, ConfigError::NotRegular { .. }), "{error}");
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        // Without O_NONBLOCK this would hang: the pipe has no writer.
        let error = Config::load(&pipe).unwrap_err();
        assert!(matches!(error, ConfigError::NotRegular { .. }), "{error}");
    }

    #[test]
    fn a_file_below_a_file_is_an_error_and_not_the_defaults() {
        let (_dir, path) = written(b"", 0o644);
        let error = Config::load(&path.join("x")).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }), "{error}");
    }

    #[test]
    fn only_root_may_have_written_what_root_reads() {
        for (uid, mode, trusted) in [
            (0, 0o644, true),
            (0, 0o600, true),
            (0, 0o755, true),
            (0, 0o664, false),
            (0, 0o646, false),
            (1000, 0o644, false),
        ] {
            assert_eq!(is_trusted(uid, mode), trusted, "owner {uid}, mode {mode:o}");
        }
        let (_dir, path) = written(b"", 0o666);
        match Config::load(&path) {
            Err(ConfigError::NotTrusted { uid: 0, mode: 0o666, .. }) => assert!(runs_as_root()),
            other => assert!(!runs_as_root() && other.is_ok(), "{other:?}"),
        }
    }

    #[test]
    fn a_file_may_be_as_long_as_the_limit_and_not_a_byte_longer() {
        let (_dir, path) = written(&vec![b'\n'; MAX_BYTES], 0o644);
        assert_eq!(Config::load(&path).unwrap(), Config::default());
        fs::write(&path, vec![b'\n'; MAX_BYTES + 1]).unwrap();
        assert!(matches!(Config::load(&path), Err(ConfigError::TooLong { .. })));
    }

    #[test]
    fn the_line_of_a_byte_that_is_not_utf8_is_named() {
        let (_dir, path) = written(b"[runtime]\npath = \"\xff\"\n", 0o644);
        assert!(matches!(Config::load(&path), Err(ConfigError::NotUtf8 { line: 2, .. })));
    }
}
