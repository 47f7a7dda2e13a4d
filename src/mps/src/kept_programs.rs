//! NVIDIA's files that MPS executes or loads at its start, kept open.
//!
//! A process with the uid of a file's owner can take a lease on the file (fcntl(2), `F_SETLEASE`),
//! also in a container that has it by a read-only bind. Then the kernel makes each open and each
//! exec wait until the lease is given back, at most `fs.lease-break-time` (45 s). It gives no such
//! lease on a file that another process has open.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;

use crate::subprocess::FIXED_PATH;

/// File name of the server program.
pub(crate) const SERVER_PROGRAM: &str = "nvidia-cuda-mps-server";

/// Files that cannot be leased while this value lives.
#[derive(Debug, Default)]
pub struct Kept {
    files: Vec<File>,
    /// Opens that wait for the end of a lease: at most one for each path, each in a thread.
    waiting: Vec<(PathBuf, JoinHandle<io::Result<File>>)>,
}

impl Kept {
    /// Keeps the files that these paths lead to now, and no others. A kept file costs one look, a
    /// missing one nothing. Never waits: a leased file is opened when the lease ends, and is kept
    /// from then on.
    pub fn keep(&mut self, paths: &[PathBuf]) {
        for (_, thread) in self.waiting.extract_if(.., |(_, thread)| thread.is_finished()) {
            // Kept below only if its path still leads to it.
            if let Ok(Ok(file)) = thread.join() {
                self.files.push(file);
            }
        }
        let mut kept = Vec::with_capacity(paths.len());
        for path in paths {
            let Ok(found) = fs::metadata(path) else { continue };
            if !found.is_file() {
                continue;
            }
            let is_it = |file: &File| {
                file.metadata()
                    .is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
            };
            if let Some(place) = self.files.iter().position(is_it) {
                kept.push(self.files.swap_remove(place));
                continue;
            }
            match open_at_once(path) {
                Ok(file) => kept.push(file),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.open_later(path),
                // The start reports the reason.
                Err(_) => {}
            }
        }
        self.files = kept;
    }

    /// Waits in a thread, which has the file when the lease ends: repeated attempts could find
    /// another lease each time. An older kernel (5.15) counts the waiting open only afterwards.
    /// That leaves a moment for another lease, and the thread waits for its end as well.
    #[expect(clippy::disallowed_methods, reason = "nobody waits for it, and it ends by itself")]
    fn open_later(&mut self, path: &Path) {
        if self.waiting.iter().any(|(awaited, _)| awaited == path) {
            return;
        }
        log::warn!(
            path:% = path.display(), hint = "who it is: grep LEASE /proc/locks";
            "somebody has a lease on a file of NVIDIA's; its use waits until the kernel ends it"
        );
        let awaited = path.to_owned();
        let thread = Builder::new().name("lease".to_owned()).spawn(move || File::open(awaited));
        // Without a thread the next call tries again.
        self.waiting.extend(thread.ok().map(|thread| (path.to_owned(), thread)));
    }
}

/// The server program of that control program, which searches PATH and not its own directory
/// (measured).
#[must_use]
pub fn server_of(control: &Path) -> Option<PathBuf> {
    let places = control.parent().into_iter().chain(FIXED_PATH.split(':').map(Path::new));
    places.map(|place| place.join(SERVER_PROGRAM)).find(|path| path.is_file())
}

/// The server program, open over exec, so that it is kept even if mpsgated is away. A leased
/// program is not waited for: mpsgated does that, and keeps it from then on.
pub(crate) fn server_over_exec(control: &Path) -> Option<File> {
    let server = open_at_once(&server_of(control)?).ok()?;
    fcntl(&server, FcntlArg::F_SETFD(FdFlag::empty())).ok()?;
    Some(server)
}

fn open_at_once(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use mpsgate_testing::{can_be_leased, leased, wait_for};

    use super::*;

    #[test]
    fn what_a_path_leads_to_now_is_kept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("program"), dir.path().join("old"));
        fs::write(&path, "").unwrap();
        // A child that another test forks has these files open until it executes its program.
        wait_for("it can be leased", || can_be_leased(&path));
        let mut kept = Kept::default();
        let paths = [dir.path().join("missing"), dir.path().to_owned(), path.clone()];
        for _ in 0..2 {
            kept.keep(&paths);
            assert!(!can_be_leased(&path));
            assert_eq!(kept.files.len(), 1);
        }
        fs::rename(&path, &old).unwrap();
        fs::write(&path, "").unwrap();
        kept.keep(&paths);
        assert!(!can_be_leased(&path));
        wait_for("the old one can be leased", || can_be_leased(&old));
        kept.keep(&[]);
        wait_for("it can be leased again", || can_be_leased(&path));
    }

    #[test]
    fn a_lease_from_before_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("program"), dir.path().join("old"));
        fs::write(&path, "").unwrap();
        wait_for("it can be leased", || can_be_leased(&path));
        let (mut kept, paths) = (Kept::default(), [path.clone()]);
        let quicker = leased(&path, 1000);
        for _ in 0..2 {
            kept.keep(&paths);
            assert_eq!((kept.files.len(), kept.waiting.len()), (0, 1));
        }
        let refused = open_at_once(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "the lease is there still");
        drop(quicker);
        wait_for("the open has ended", || kept.waiting[0].1.is_finished());
        assert!(!can_be_leased(&path), "from the end of the lease on");
        kept.keep(&paths);
        assert_eq!((kept.files.len(), kept.waiting.len()), (1, 0));
        assert!(!can_be_leased(&path));

        // A file that is replaced during the wait is closed after it.
        kept.keep(&[]);
        wait_for("it can be leased again", || can_be_leased(&path));
        let quicker = leased(&path, 1000);
        kept.keep(&paths);
        fs::rename(&path, &old).unwrap();
        fs::write(&path, "").unwrap();
        kept.keep(&paths);
        assert_eq!((kept.files.len(), kept.waiting.len()), (1, 1));
        drop(quicker);
        wait_for("the wait is over", || {
            kept.keep(&paths);
            kept.waiting.is_empty()
        });
        wait_for("the old one can be leased", || can_be_leased(&old));
        assert!(!can_be_leased(&path));
    }

    #[test]
    fn the_server_beside_the_control_program_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("nvidia-cuda-mps-control");
        let beside = dir.path().join(SERVER_PROGRAM);
        assert_ne!(server_of(&control), Some(beside.clone()));
        fs::write(&beside, "").unwrap();
        assert_eq!(server_of(&control), Some(beside));
    }
}
