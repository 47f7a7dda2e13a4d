//! This process's own descriptors.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, fcntl};

/// Opens /dev/null on each closed standard descriptor, so that no file of this program gets its
/// number and no message goes into `config.json`. Close-on-exec: the runtime finds it closed again.
pub(crate) fn ensure_standard_descriptors() {
    for number in 0..=2 {
        if is_open(number) {
            continue;
        }
        // The kernel gives the lowest free number, and the lower ones are open by now.
        if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
            let _ = null.into_raw_fd();
        }
    }
}

/// JUSTIFICATION for unsafe code: std has no way to ask whether a number is an open descriptor.
#[allow(unsafe_code, reason = "see above")]
fn is_open(number: i32) -> bool {
    // SAFETY: F_GETFD only asks, and EBADF is an answer.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(descriptor, FcntlArg::F_GETFD).is_ok()
}

/// Another process's descriptor as one of this process, with the same position in its file; `None`
/// before Linux 5.6 and without the right to it.
///
/// JUSTIFICATION for unsafe code: nix has no pidfd_getfd. One place.
#[allow(unsafe_code, reason = "see above")]
pub(crate) fn descriptor_of(pid: u32, number: i32) -> Option<OwnedFd> {
    let pidfd = pidfd_open(pid)?;
    // SAFETY: plain arguments; the kernel returns a new descriptor, close-on-exec, or -1.
    let fd =
        unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel has just given us this descriptor.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A pidfd, close-on-exec; `None` on kernels before 5.3.
///
/// JUSTIFICATION for unsafe code: nix has no pidfd_open. One place.
#[allow(unsafe_code, reason = "see above")]
pub(crate) fn pidfd_open(pid: u32) -> Option<OwnedFd> {
    let pid = nix::libc::pid_t::try_from(pid).ok()?;
    // SAFETY: plain arguments; the kernel returns a new descriptor or -1.
    let fd = unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel has just given us this descriptor.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}
