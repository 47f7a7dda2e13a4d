//! Files, device nodes, mounts and what else the kernel gives by a name.
//!
//! JUSTIFICATION for unsafe code: open_by_handle_at has no wrapper in nix or std. One place.

#![allow(unsafe_code, reason = "see above")]

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::{Outcome, failed, io_failed};

/// Opens a file or device; a node without a driver behind it counts as open, as the kernel let us
/// through. What opens is not the file where a runtime masks it, which it does with /dev/null.
pub(crate) fn open(path: &Path, how: &str) -> Outcome {
    let opened = OpenOptions::new()
        .read(how.contains('r'))
        .write(how.contains('w'))
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    match opened {
        Ok(file) if file.metadata().is_ok_and(|file| file.rdev() == makedev(1, 3)) => {
            Err("masked by /dev/null".to_owned())
        }
        Ok(_) => Ok(format!("{} opens for {how}", path.display())),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => {
            Ok(format!("{} opens for {how} (no driver behind it)", path.display()))
        }
        Err(error) => Err(io_failed("open", &error)),
    }
}

/// Makes a node and opens it in each way.
pub(crate) fn make_and_open(directory: &Path, major: u64, minor: u64) -> Outcome {
    let path = directory.join(format!(".escape-{major}-{minor}"));
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    mknod(&path, SFlag::S_IFCHR, mode, makedev(major, minor)).map_err(failed("mknod"))?;
    let ways = ["r", "w", "rw"].map(|how| open(&path, how));
    let _ = fs::remove_file(&path);
    let mut refused = Err(String::new());
    for way in ways {
        match way {
            Ok(_) => return Ok(format!("{major}:{minor} made in {}, opens", directory.display())),
            Err(why) => refused = Err(why),
        }
    }
    refused
}

/// Mounts something on a directory of its own, looks at it, and takes it away.
pub(crate) fn mount_at(kind: &str, target: &Path, data: Option<&str>) -> Outcome {
    fs::create_dir_all(target).map_err(|error| io_failed("mkdir", &error))?;
    mount(Some(kind), target, Some(kind), MsFlags::empty(), data).map_err(failed("mount"))?;
    let seen = fs::read_dir(target).map_or(0, Iterator::count);
    // A cgroup hierarchy stays for the next attempt; the script takes it away.
    if !kind.starts_with("cgroup") {
        let _ = umount(target);
    }
    Ok(format!("{kind} mounted, {seen} entries"))
}

/// Makes a read-only bind mount writable: a file of our own can be made in it, or `file` be opened.
pub(crate) fn remount(path: &Path, file: Option<&str>) -> Outcome {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).map_err(failed("mount"))?;
    let written = match file {
        Some(file) => open(&path.join(file), "w").map(drop),
        None => {
            let mine = path.join(".escape");
            let written = fs::write(&mine, "").map_err(|error| io_failed("write", &error));
            let _ = fs::remove_file(&mine);
            written
        }
    };
    // As it was: what follows is to meet the mount that the runtime made.
    let before = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let _ = mount(None::<&str>, path, None::<&str>, flags | before, None::<&str>);
    written.map(|()| format!("{} is writable", path.display()))
}

/// The attack of 2014's shocker.c: the root of the file system that a bind mount comes from, by a
/// guessed handle (inode 2 of ext4).
pub(crate) fn by_handle(mounted: &Path) -> Outcome {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        inode: u32,
        generation: u32,
    }
    let at = fs::File::open(mounted).map_err(|error| io_failed("open", &error))?;
    let handle = Handle { bytes: 8, kind: 1, inode: 2, generation: 0 };
    // SAFETY: `handle` has the layout of struct file_handle with the eight bytes that `bytes` tells
    // of, and outlives the call, which only reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            at.as_raw_fd(),
            &raw const handle,
            libc::O_RDONLY,
        )
    };
    if fd < 0 {
        return Err(failed("open_by_handle_at")(Errno::last()));
    }
    Ok(format!("the root of {}'s file system opens", mounted.display()))
}

/// Whether the kernel would take a module from us: it looks at the right before it looks at the
/// file.
pub(crate) fn module() -> Outcome {
    let null = fs::File::open("/dev/null").map_err(|error| io_failed("open", &error))?;
    let flags = nix::kmod::ModuleInitFlags::empty();
    match nix::kmod::finit_module(&null, &CString::default(), flags) {
        Ok(()) => Ok("a module was loaded".to_owned()),
        Err(errno @ (Errno::EPERM | Errno::ENOSYS)) => Err(failed("finit_module")(errno)),
        Err(errno) => Ok(format!("modules are taken ({errno:?} for an empty one)")),
    }
}
