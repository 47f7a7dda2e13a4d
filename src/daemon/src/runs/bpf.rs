//! bpf(2): a program that decides over the devices of a v2 cgroup.
//!
//! Attached to the cgroup itself and not by a link, because a link is a descriptor, and with the
//! end of mpsgated its program would be gone. So it stays until the cgroup is removed.
//!
//! JUSTIFICATION (2 blocks): neither rustix nor nix has bpf(2). aya has, and attaches by a link;
//! libbpf is C, with libelf.
#![expect(unsafe_code, reason = "see the justification above")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::libc;

// linux/bpf.h.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Another program may be attached beside it, and below it: all of them have to allow an access.
const ALLOW_MULTI: u32 = 1 << 1;
/// Bytes of an instruction.
const INSTRUCTION: usize = 8;

/// The fields of `union bpf_attr` that loading needs; the kernel takes those behind it for zero.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

#[repr(C)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

/// Attaches a program to the directory of a cgroup.
///
/// # Errors
/// What the kernel says, also of a program that it does not accept (EINVAL, EACCES).
pub(super) fn attach(directory: &Path, program: &[u8]) -> io::Result<()> {
    let program = load(program)?;
    let directory = File::open(directory)?;
    let number = |fd: RawFd| u32::try_from(fd).map_err(io::Error::other);
    let attributes = Attach {
        target_fd: number(directory.as_raw_fd())?,
        attach_bpf_fd: number(program.as_raw_fd())?,
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: ALLOW_MULTI,
    };
    call(PROG_ATTACH, &attributes).map(drop)
}

fn load(program: &[u8]) -> io::Result<OwnedFd> {
    let attributes = Load {
        prog_type: PROG_TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(program.len() / INSTRUCTION).map_err(io::Error::other)?,
        insns: program.as_ptr().addr() as u64,
        license: c"Apache-2.0".as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    let fd = call(PROG_LOAD, &attributes)?;
    // SAFETY: the kernel has just made this descriptor for us, and closes it at exec by itself.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of what is a struct of these bytes without
    // padding. Where it has addresses of more, they are of slices that outlive the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>())
    };
    let answer = RawFd::try_from(answer).map_err(io::Error::other)?;
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
