//! Replacing a file whole: written beside under a name of this process's own, then renamed.
//!
//! A process killed in between leaves the old file and a temporary one. The temporary ones beside a
//! bundle's or a process's document are removed by the next shim that replaces one there; those
//! beside records by the daemon. The hook names its nodes below `/dev` in the same way.
//!
//! A temporary file is locked while its writer lives. Its pid would not tell: engines in several PID namespaces
//! may keep their process documents in one `/tmp`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use mpsgate_api::{temporary_name, temporary_writer};
use mpsgate_crashpoint::crash_point;
use nix::libc;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

/// Writes bytes beside `path` and renames them over `path`.
pub(crate) fn replace(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    (uid, gid): (u32, u32),
) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(temporary_name(&name, std::process::id()));
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    let mut file = loop {
        let file = match create() {
            // One that had our pid was killed here.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(&temporary).and_then(|()| create())?
            }
            other => other?,
        };
        // Between the two calls somebody who tidies up may have taken it for a dead one's.
        if file.try_lock().is_ok() && file.metadata()?.nlink() > 0 {
            break file;
        }
    };
    crash_point!("shim.file.created");
    let written = fchown(&file, Some(uid), Some(gid))
        .and_then(|()| file.set_permissions(PermissionsExt::from_mode(mode)))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| if on_tmpfs(&file) { Ok(()) } else { file.sync_data() })
        .and_then(|()| {
            crash_point!("shim.file.written");
            std::fs::rename(&temporary, path)
        });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    crash_point!("shim.file.renamed");
    written
}

/// What lies on a tmpfs is lost with the power, synced or not; fsync would only cost time.
fn on_tmpfs(file: &File) -> bool {
    fstatfs(file.as_fd()).is_ok_and(|fs| fs.filesystem_type() == TMPFS_MAGIC)
}

/// Removes temporary files whose writers have ended. What cannot be removed harms nobody.
pub(crate) fn remove_leftovers(directory: &Path) {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let own = nix::unistd::geteuid().as_raw();
    for entry in entries.flatten() {
        let Some(writer) = entry.file_name().to_str().and_then(temporary_writer) else { continue };
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() || meta.uid() != own {
            continue;
        }
        // Held until the name is gone.
        let file = meta.is_file().then(|| open_to_look(&entry.path()));
        let dead = match &file {
            Some(Ok(file)) => file.try_lock().is_ok(),
            Some(Err(_)) => false,
            // A node of the hook's, which cannot be locked.
            None => !Path::new("/proc").join(writer.to_string()).exists(),
        };
        if dead {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn open_to_look(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // Whoever has these pids here is not who writes them.
        let dead = temporary_name("config.json", 1);
        let alive = temporary_name("config.json", 4_194_305);
        for name in [dead.as_str(), &alive, "config.json", ".config.json.swp"] {
            std::fs::write(at(name), "").unwrap();
        }
        std::fs::create_dir(at(&temporary_name("folder", 4_194_305))).unwrap();
        // As the hook's nodes: told by their pid.
        let node = |pid| at(&temporary_name("195-2", pid));
        for pid in [4_194_305, 1] {
            nix::unistd::mkfifo(&node(pid), nix::sys::stat::Mode::S_IRUSR).unwrap();
        }
        let writing = File::create(at(&alive)).unwrap();
        writing.try_lock().unwrap();
        remove_leftovers(dir.path());
        assert!(!at(&dead).exists());
        assert!(!node(4_194_305).exists() && node(1).exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);
    }

    #[test]
    fn a_leftover_of_a_process_with_our_pid_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(dir.path().join(temporary_name("f", std::process::id())), "half").unwrap();
        replace(&path, b"whole", 0o600, (nix::unistd::geteuid().as_raw(), 0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
