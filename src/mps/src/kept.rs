//! NVIDIA's files that a start of MPS executes or loads, kept open.
//!
//! Whoever has a file's owner as uid can take a lease on it (fcntl(2), `F_SETLEASE`): in a
//! container, too, that has it by a read-only bind. Then the kernel has each open and each exec
//! wait until the lease is given back, at most `fs.lease-break-time` (45 s). It gives no such lease
//! on a file that somebody else has open.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;

use crate::run::FIXED_PATH;

/// File name of the server program.
pub(crate) const SERVER_PROGRAM: &str = "nvidia-cuda-mps-server";

/// Files that nobody takes a lease on, for as long as this lives.
#[derive(Debug, Default)]
pub struct Kept(Vec<File>);

impl Kept {
    /// Keeps what these paths lead to now, and nothing else. What is kept already costs a look,
    /// what is not there nothing. A lease that somebody has already is waited for, once: from then
    /// on nobody takes another.
    pub fn keep(&mut self, paths: &[PathBuf]) {
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
            match self.0.iter().position(is_it) {
                Some(place) => kept.push(self.0.swap_remove(place)),
                // Of one that cannot be opened the start says why.
                None => kept.extend(open(path).ok()),
            }
        }
        self.0 = kept;
    }
}

/// The server program of that control program, which searches PATH and not beside itself
/// (measured).
#[must_use]
pub fn server_of(control: &Path) -> Option<PathBuf> {
    let places = control.parent().into_iter().chain(FIXED_PATH.split(':').map(Path::new));
    places.map(|place| place.join(SERVER_PROGRAM)).find(|path| path.is_file())
}

/// The server program, open over exec: so it is kept where mpsgated is away, too. One that somebody
/// has a lease on is not waited for: mpsgated does that before.
pub(crate) fn server_over_exec(control: &Path) -> Option<File> {
    let server = open_at_once(&server_of(control)?).ok()?;
    fcntl(&server, FcntlArg::F_SETFD(FdFlag::empty())).ok()?;
    Some(server)
}

fn open(path: &Path) -> io::Result<File> {
    match open_at_once(path) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            log::warn!(
                path:% = path.display(), hint = "who it is: grep LEASE /proc/locks";
                "somebody has a lease on a file of NVIDIA's; MPS waits until the kernel ends it"
            );
            // Waits, and has it when the lease ends: to ask again and again could find another
            // lease each time. An older kernel (5.15) counts who waits only afterwards, and leaves
            // a moment for one in between, which is waited for as well.
            File::open(path)
        }
        other => other,
    }
}

fn open_at_once(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use mpsgate_testing::{can_be_leased, wait_for};

    use super::*;

    #[test]
    fn what_a_path_leads_to_now_is_kept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("program"), dir.path().join("old"));
        fs::write(&path, "").unwrap();
        // Whoever another test forks has what we had open until it has become its program.
        wait_for("it can be leased", || can_be_leased(&path));
        let mut kept = Kept::default();
        let paths = [dir.path().join("missing"), dir.path().to_owned(), path.clone()];
        for _ in 0..2 {
            kept.keep(&paths);
            assert!(!can_be_leased(&path));
            assert_eq!(kept.0.len(), 1);
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
    fn the_server_beside_the_control_program_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("nvidia-cuda-mps-control");
        let beside = dir.path().join(SERVER_PROGRAM);
        assert_ne!(server_of(&control), Some(beside.clone()));
        fs::write(&beside, "").unwrap();
        assert_eq!(server_of(&control), Some(beside));
    }
}
