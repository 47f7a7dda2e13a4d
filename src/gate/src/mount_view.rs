//! What the gate sees of the machine where no unit narrows that: as a container of its own, which
//! Kubernetes gives all devices and a writable /proc and /sys, or beside an mpsgated without
//! systemd. Root without capabilities may still write what is root's.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability};
use mpsgate_host::cgroup;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{chdir, chroot};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::error::GateError;

/// Becomes the root directory. Every container has it, and whoever runs the gate needs none of it.
const ROOT: &str = "/dev";
const SEALED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Leaves three things: the directories of the cards at `mps`, and read-only the processes and
/// their cgroups, as the node's. Nothing is done without CAP_SYS_ADMIN, which a mount takes.
///
/// # Errors
/// [`GateError::System`], [`GateError::Fs`]: then nothing may be read.
pub fn narrow(mps: &Path) -> Result<(), GateError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN)? {
        return Ok(());
    }
    enter_cgroups()?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(GateError::system("leave the mount namespace"))?;
    // What the node unmounts goes here, too; nothing of ours goes there.
    attach(None, Path::new("/"), MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
    let (proc, cgroups) = (Path::new("/proc"), Path::new(cgroup::MOUNT));
    // By descriptors: /dev is covered next. Of /proc alone what the kernel has there, and not what
    // an engine has put over it.
    let parts = [
        (mps, directory(mps)?, MsFlags::MS_REC, false),
        (proc, directory(proc)?, MsFlags::empty(), true),
        (cgroups, directory(cgroups)?, MsFlags::MS_REC, true),
    ];
    mount(Some("tmpfs"), ROOT, Some("tmpfs"), SEALED, Some("mode=0755,size=64k"))
        .map_err(GateError::fs("mount", ROOT))?;
    for (path, directory, depth, is_sealed) in parts {
        let place = Path::new(ROOT).join(path.strip_prefix("/").unwrap_or(path));
        fs::create_dir_all(&place).map_err(GateError::fs("make", &place))?;
        let source = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        attach(Some(&source), &place, MsFlags::MS_BIND | depth)?;
        if is_sealed {
            seal(&place)?;
        }
    }
    attach(None, Path::new(ROOT), SEALED | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY)?;
    chroot(ROOT).map_err(GateError::fs("enter", ROOT))?;
    chdir("/").map_err(GateError::fs("enter", "/"))
}

/// The node's, which its pid 1 is in: mpsgated names cgroups as they are seen from there. Who stays
/// in another one takes every client for one of elsewhere, and hands over none.
fn enter_cgroups() -> Result<(), GateError> {
    let [node, own] = ["/proc/1/ns/cgroup", "/proc/self/ns/cgroup"];
    let node = match File::open(node) {
        Ok(node) => node,
        Err(error) => {
            log::warn!(error:%; "the node's cgroup namespace is not known: this one is taken for it");
            return Ok(());
        }
    };
    let own = fs::metadata(own).map_err(GateError::fs("look at", own))?;
    if node.metadata().is_ok_and(|node| node.ino() == own.ino()) {
        return Ok(());
    }
    setns(node, CloneFlags::CLONE_NEWCGROUP)
        .map_err(GateError::system("enter the node's cgroup namespace"))
}

fn directory(path: &Path) -> Result<OwnedFd, GateError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(GateError::fs("open", path))
}

/// Read-only, with every mount below it: those of v1's hierarchies are mounts of their own.
fn seal(place: &Path) -> Result<(), GateError> {
    const MOUNTS: &str = "/proc/self/mountinfo";
    let mounts = fs::read(MOUNTS).map_err(GateError::fs("read", MOUNTS))?;
    // As bytes: a path need not be text.
    let lines = mounts.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    for point in points
        .map(|point| Path::new(OsStr::from_bytes(point)))
        .filter(|point| point.starts_with(place))
    {
        let flags = SEALED | MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        attach(None, point, flags)?;
    }
    Ok(())
}

fn attach(source: Option<&Path>, place: &Path, flags: MsFlags) -> Result<(), GateError> {
    let none: Option<&Path> = None;
    mount(source, place, none, flags, none).map_err(GateError::fs("mount", place))
}
