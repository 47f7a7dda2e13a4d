//! The machine's files as a [`Source`]: the only place of this crate that looks at any.
//!
//! Engines' settings are read as root, and links among them are followed as the engine follows
//! them; what is no regular file is not read (a FIFO would hang), nor more than [`LARGEST`] bytes.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the one place that reads the machine's settings"
)]

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::{ConfigureError, Source};

/// Settings are some KiB, the whole of containerd's some 20.
pub const LARGEST: u64 = 4 << 20;
/// `O_NONBLOCK` of Linux on every architecture that is shipped (asm-generic/fcntl.h): opening a
/// FIFO does not wait for who writes.
const NONBLOCK: i32 = 0o4000;

/// The file system.
#[derive(Debug, Clone, Copy)]
pub struct Disk {
    /// Where runtimes are looked for by their names.
    pub programs: &'static [&'static str],
}

impl Source for Disk {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        let file = match File::options().read(true).custom_flags(NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut text = String::new();
        file.take(LARGEST + 1).read_to_string(&mut text)?;
        if u64::try_from(text.len()).is_ok_and(|length| length <= LARGEST) {
            Ok(Some(text))
        } else {
            Err(io::Error::other(format!("it has more than {} MiB", LARGEST >> 20)))
        }
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
        files
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        let files = below(directory)?;
        for path in &files {
            let what = match fs::metadata(path) {
                Ok(found) if found.is_file() => continue,
                Ok(found) if found.is_dir() => "is a link to a folder",
                Ok(_) => "is no file",
                Err(error) if error.kind() == ErrorKind::NotFound => "is a link that leads nowhere",
                // Reading it says more.
                Err(_) => continue,
            };
            return Err(ConfigureError::NoFile { path: path.clone(), what });
        }
        Ok(files)
    }

    fn has_program(&self, program: &str) -> bool {
        self.programs.iter().any(|directory| Path::new(directory).join(program).is_file())
    }
}

/// All that is below a directory but folders, themselves and not what they may lead to; by name,
/// folder by folder.
///
/// # Errors
/// A folder that cannot be read.
pub fn below(directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
    let failed = |path: &Path, source| ConfigureError::Read { path: path.to_owned(), source };
    let mut found = Vec::new();
    match fs::symlink_metadata(directory) {
        // A link in the folder's place is not followed either.
        Ok(metadata) if !metadata.is_dir() => return Ok(vec![directory.to_owned()]),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(failed(directory, error)),
    }
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| failed(&folder, error))? {
            let entry = entry.map_err(|error| failed(&folder, error))?;
            let kind = entry.file_type().map_err(|error| failed(&entry.path(), error))?;
            if kind.is_dir() { &mut folders } else { &mut found }.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    const DISK: Disk = Disk { programs: &["/usr/bin", "/bin"] };

    #[test]
    fn drop_ins_are_found_folder_by_folder_whatever_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let etc = dir.path();
        for folder in ["b.d", "b.d/c"] {
            fs::create_dir(etc.join(folder)).unwrap();
        }
        for name in ["a.conf", "a.conf~", ".hidden", "b", "b-", "b.d/x", "b.d/c/y", "c"] {
            fs::write(etc.join(name), "").unwrap();
        }
        symlink(etc.join("a.conf"), etc.join("b.d/linked")).unwrap();
        let found = DISK.walk(etc).unwrap();
        let names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(etc).unwrap().to_str().unwrap()).collect();
        assert_eq!(
            names,
            [".hidden", "a.conf", "a.conf~", "b", "b-", "b.d/c/y", "b.d/linked", "b.d/x", "c"]
        );
        assert_eq!(DISK.walk(&etc.join("none")).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_is_no_file_among_drop_ins_is_said_with_what_it_is() {
        for (target, what) in [
            ("gone", "is a link that leads nowhere"),
            ("/", "is a link to a folder"),
            ("/dev/null", "is no file"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let link = dir.path().join("drop.conf");
            symlink(target, &link).unwrap();
            let error = DISK.walk(dir.path()).unwrap_err().to_string();
            let said = format!("{} {what}, and CRI-O does not start with it", link.display());
            assert_eq!(error, said);
        }
        let dir = tempfile::tempdir().unwrap();
        symlink("/usr", dir.path().join("folder")).unwrap();
        let error = DISK.walk(&dir.path().join("folder")).unwrap_err().to_string();
        assert!(error.contains("is a link to a folder"), "{error}");
    }

    #[test]
    fn what_is_no_file_and_what_is_too_large_is_an_error_and_a_missing_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| DISK.read(&dir.path().join(name));
        assert_eq!(read("missing").unwrap(), None);
        assert_eq!(read(".").unwrap_err().to_string(), "it is no file");
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(read("fifo").unwrap_err().to_string(), "it is no file");
        File::create(dir.path().join("large")).unwrap().set_len(100 << 20).unwrap();
        assert_eq!(read("large").unwrap_err().to_string(), "it has more than 4 MiB");
        fs::write(dir.path().join("good"), "a = 1\n").unwrap();
        assert_eq!(read("good").unwrap().as_deref(), Some("a = 1\n"));
    }

    #[test]
    fn a_program_is_there_by_its_name_or_by_its_path() {
        assert!(DISK.has_program("sh"));
        assert!(DISK.has_program("/bin/sh"));
        assert!(!DISK.has_program("no-such-program"));
    }
}
