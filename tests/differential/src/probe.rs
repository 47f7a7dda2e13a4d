//! Inside a container: which nodes of the managed cards open?

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};

use crate::mutate::managed;

/// The last line: without it the program did not come to its end.
pub(crate) const END: &str = "probed";

pub(crate) fn run() {
    for (of, which) in managed() {
        let path = PathBuf::from(format!("/.probe-{of}-{which}"));
        let _ = fs::remove_file(&path);
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        if mknod(&path, SFlag::S_IFCHR, mode, makedev(of, which)).is_ok() {
            tell(&path);
        }
        let _ = fs::remove_file(&path);
    }
    for folder in ["/", "/dev", "/hostdev"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            tell(&entry.path());
        }
    }
    println!("{END}");
}

/// Prints `open MAJOR:MINOR` where it is a node of a managed card and opens.
fn tell(path: &Path) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    let numbers = (major(meta.rdev()), minor(meta.rdev()));
    if !meta.file_type().is_char_device() || !managed().contains(&numbers) {
        return;
    }
    let opens = [(true, false), (false, true)].into_iter().any(|(read, write)| {
        let file = OpenOptions::new()
            .read(read)
            .write(write)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        match file {
            Ok(_) => true,
            // The device cgroup let it through, and there is no driver.
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)),
        }
    });
    if opens {
        println!("open {}:{}", numbers.0, numbers.1);
    }
}
