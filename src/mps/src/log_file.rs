//! The file that receives a control daemon's stdout: its own lines and those of its servers.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::MpsError;
use crate::protocol::LogLine;

/// The most bytes that are read at once.
const READ_CAP: u64 = 256 * 1024;

/// A log that the control daemon appends to, and that mpsgate reads and trims.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
}

impl LogFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Present length in bytes: a mark for [`Self::since`]. 0 without a log.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.path.metadata().map(|meta| meta.len()).unwrap_or_default()
    }

    /// The text after `mark`, at most its last 256 KiB. A log that became shorter was trimmed and
    /// is read from its start.
    ///
    /// # Errors
    /// [`MpsError::Fs`]; a missing file is an empty log.
    pub fn since(&self, mark: u64) -> Result<String, MpsError> {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.path)?;
            let length = file.metadata()?.len();
            let start = if mark > length { 0 } else { mark };
            file.seek(SeekFrom::Start(start.max(length.saturating_sub(READ_CAP))))?;
            let mut bytes = Vec::new();
            file.take(READ_CAP).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            other => other.map_err(|source| MpsError::fs("read log", &self.path, source)),
        }
    }

    /// The last informative lines after `mark`, for an error message.
    pub(crate) fn tail(&self, mark: u64) -> String {
        let log = self.since(mark).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !is_chatter(line)).collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// Empties the log once it is longer than `max_bytes`. It is in memory (/run), and the daemon
    /// writes about 250 bytes for each command.
    ///
    /// # Errors
    /// [`MpsError::Fs`].
    pub fn trim(&self, max_bytes: u64) -> Result<bool, MpsError> {
        if self.mark() <= max_bytes {
            return Ok(false);
        }
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&self.path)
            .map_err(|source| MpsError::fs("trim log", &self.path, source))?;
        Ok(true)
    }
}

/// Whether each question of a front-end leaves such a line in the log.
fn is_chatter(line: &str) -> bool {
    let Some(line) = LogLine::parse(line).filter(|line| line.component == "Control") else {
        return false;
    };
    matches!(line.text, "Accepting connection..." | "NEW UI" | "UI closed")
        || line.text.starts_with("Cmd:get_")
        || line.text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::io::Write;

    #[test]
    fn a_trimmed_log_goes_on_from_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile::new(dir.path().join("control.log"));
        assert_eq!((log.mark(), log.since(7).unwrap().as_str()), (0, ""));
        let mut daemon = crate::supervisor::open_log(log.path()).unwrap();
        daemon.write_all(b"one\n").unwrap();
        let mark = log.mark();
        daemon.write_all(b"two\n").unwrap();
        assert_eq!(log.since(mark).unwrap(), "two\n");
        assert!(!log.trim(8).unwrap() && log.trim(7).unwrap());
        daemon.write_all(b"three\n").unwrap();
        assert_eq!(log.since(mark + 100).unwrap(), "three\n");
        assert_eq!(log.tail(0), "three");
    }
}
