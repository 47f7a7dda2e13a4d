//! Makes our directories without following what somebody may have planted in their place.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::{DaemonError, Paths};

/// Makes every directory that the daemon writes to.
///
/// # Errors
/// Where one cannot be made, or something else has its name.
pub(crate) fn make(paths: &Paths) -> Result<(), DaemonError> {
    // 0711: containers' processes of any uid walk through to their client directory.
    ensure(&paths.run, 0o711)?;
    ensure(&paths.mps(), 0o711)?;
    ensure(&paths.grants(), 0o700)?;
    ensure(&paths.ledger(), 0o700)?;
    ensure(&paths.state, 0o700)?;
    ensure(&paths.tokens(), 0o700)
}

/// Makes `path`, or takes it where it is a directory of ours; sets its mode. Parents are left as
/// they are and must exist.
fn ensure(path: &Path, mode: u32) -> Result<(), DaemonError> {
    let failed = |action: &'static str| {
        move |source: io::Error| DaemonError::Directory { action, path: path.to_owned(), source }
    };
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("create directory")(errno.into())),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::LOOP | Errno::NOTDIR) => {
            let found = "a symbolic link or a file".to_owned();
            return Err(DaemonError::Planted { path: path.to_owned(), found });
        }
        Err(errno) => return Err(failed("open directory")(errno.into())),
    };
    let found = directory.metadata().map_err(failed("look at"))?;
    let owner = rustix::process::geteuid().as_raw();
    if found.uid() != owner {
        let found = format!("a directory of uid {}", found.uid());
        return Err(DaemonError::Planted { path: path.to_owned(), found });
    }
    if found.mode() & 0o022 != 0 {
        let found = format!("a directory of mode {:04o}", found.mode() & 0o7777);
        return Err(DaemonError::Planted { path: path.to_owned(), found });
    }
    if found.mode() & 0o7777 != mode {
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode))
            .map_err(|errno| failed("set the mode of")(errno.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn makes_all_directories_and_takes_them_again_with_their_modes() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::below(root.path());
        for _ in 0..2 {
            make(&paths).unwrap();
            for (path, mode) in [
                (paths.run.clone(), 0o711),
                (paths.mps(), 0o711),
                (paths.grants(), 0o700),
                (paths.ledger(), 0o700),
            ] {
                assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode, "{}", path.display());
            }
            std::fs::set_permissions(paths.grants(), PermissionsExt::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn refuses_a_planted_link_and_leaves_its_target_alone() {
        let root = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir().unwrap();
        let paths = Paths::below(root.path());
        symlink(target.path(), &paths.run).unwrap();
        assert!(matches!(make(&paths), Err(DaemonError::Planted { .. })));
        assert_eq!(target.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn refuses_a_directory_that_others_can_write() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::below(root.path());
        std::fs::create_dir(&paths.run).unwrap();
        std::fs::set_permissions(&paths.run, PermissionsExt::from_mode(0o777)).unwrap();
        let error = make(&paths).unwrap_err();
        assert!(error.to_string().contains("a directory of mode 0777"), "{error}");
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::below(root.path());
        std::fs::write(&paths.run, "").unwrap();
        let error = make(&paths).unwrap_err();
        assert!(matches!(error, DaemonError::Planted { .. }), "{error}");
    }
}
