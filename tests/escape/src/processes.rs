//! Other processes: signals, tracing, and what `/proc` gives of them.
//!
//! JUSTIFICATION for unsafe code: pidfd_open has no wrapper in nix or std. One place.

#![allow(unsafe_code, reason = "see above")]

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::signal::kill;
use nix::unistd::{Pid, getegid, geteuid};

use crate::{Outcome, failed, io_failed};

/// Asks whether a signal could be sent; sends none.
pub(crate) fn signal(pid: i32) -> Outcome {
    kill(Pid::from_raw(pid), None).map_err(failed("kill"))?;
    Ok(format!("pid {pid} can be signalled"))
}

/// Attaches and lets go at once.
pub(crate) fn attach(pid: i32) -> Outcome {
    let pid = Pid::from_raw(pid);
    ptrace::seize(pid, ptrace::Options::empty()).map_err(failed("ptrace"))?;
    let _ = ptrace::detach(pid, None);
    Ok(format!("pid {pid} can be traced"))
}

/// Opens a pidfd.
pub(crate) fn pidfd(pid: i32) -> Outcome {
    // SAFETY: takes two numbers and gives a descriptor or an error; it touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 { Err(failed("pidfd_open")(Errno::last())) } else { Ok(format!("pid {pid} opens")) }
}

fn pids() -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).collect()
}

/// A descriptor of any visible process that leads out: to a file of mpsgate's or a runtime's, to a
/// directory, or to a file on a file system that no mount of ours shows. The first three come from
/// the engine, and where they lead is its choice. A directory of the container's own /proc leads
/// nowhere else: runc's init reads its descriptors there before it becomes the program.
pub(crate) fn descriptors() -> Outcome {
    let mounted = mounted_devices();
    let own_proc = fs::metadata("/proc").map(|meta| meta.dev()).ok();
    let mut seen = 0;
    for pid in pids() {
        let own = pid == std::process::id().to_string();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let Ok(meta) = fs::metadata(entry.path()) else { continue };
            seen += 1;
            let name = target.to_string_lossy();
            let ours = ["mpsgate", "runc", "ledger"].iter().any(|word| name.contains(word));
            let from_engine = ["0", "1", "2"].iter().any(|number| entry.file_name() == *number);
            let foreign = meta.is_file() && !mounted.contains(&meta.dev());
            let directory = meta.is_dir() && !own && Some(meta.dev()) != own_proc;
            if ours || (!from_engine && (foreign || directory)) {
                return Ok(format!(
                    "descriptor {} of pid {pid} is {name}",
                    entry.file_name().display()
                ));
            }
        }
    }
    Err(format!("{seen} descriptors, none leads out"))
}

/// `st_dev` of every mount that this mount namespace shows.
fn mounted_devices() -> BTreeSet<u64> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter_map(|point| Some(fs::metadata(point).ok()?.dev())).collect()
}

/// A visible process whose root or working directory is not in this container.
pub(crate) fn roots() -> Outcome {
    let id = |path: &str| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let own = id("/").map_err(|error| io_failed("stat", &error))?;
    let mut seen = 0;
    for pid in pids() {
        if let Ok(found) = id(&format!("/proc/{pid}/root")) {
            seen += 1;
            if found != own {
                return Ok(format!("pid {pid} has another root"));
            }
        }
        let socket = format!("/proc/{pid}/root/run/mpsgate/mpsgated.sock");
        if Path::new(&socket).exists() {
            return Ok(format!("{socket} is there"));
        }
    }
    Err(format!("{seen} processes, all in this root"))
}

/// A procfs that is not this container's own: a mount of another device than that of `/proc`, or a
/// `/proc` in which we have another number.
pub(crate) fn procfs() -> Outcome {
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(|e| io_failed("open", &e))?;
    let of_proc =
        |line: &&str| line.split_once(" - ").is_some_and(|(_, fs)| fs.starts_with("proc "));
    let mounts: Vec<(&str, &str)> = table
        .lines()
        .filter(of_proc)
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(2);
            Some((fields.next()?, fields.nth(1)?))
        })
        .collect();
    let own = mounts.iter().find(|(_, point)| *point == "/proc").map(|(device, _)| *device);
    if let Some((_, point)) = mounts.iter().find(|(device, _)| Some(*device) != own) {
        return Ok(format!("{point} is a procfs of another"));
    }
    match fs::read_link("/proc/self") {
        Ok(pid) if pid.as_os_str() == std::process::id().to_string().as_str() => {
            Err(format!("{} mounts of a procfs, all of its own", mounts.len()))
        }
        found => Ok(format!("/proc shows another PID namespace: {found:?}")),
    }
}

/// Watches for programs that come into this pid namespace from outside (a runtime's init before its
/// exec), and tries to write to their files: CVE-2019-5736.
pub(crate) fn foreign_programs(seconds: u64) -> Outcome {
    let own = mounted_devices();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
    let mut hidden: BTreeSet<String> = BTreeSet::new();
    while Instant::now() < end {
        for pid in pids() {
            let link = format!("/proc/{pid}/exe");
            let (Ok(name), Ok(meta)) = (fs::read_link(&link), fs::metadata(&link)) else {
                // Gone, or not to be traced, which is how runc guards its init.
                if Path::new(&format!("/proc/{pid}/stat")).exists() {
                    hidden.insert(pid);
                }
                continue;
            };
            if own.contains(&meta.dev()) && Path::new(&name).exists() {
                continue;
            }
            match OpenOptions::new().write(true).open(&link) {
                Ok(_) => return Ok(format!("{} opens for writing", name.display())),
                Err(_) => {
                    seen.insert(name);
                }
            }
        }
    }
    let names: Vec<String> = seen.iter().map(|path| path.display().to_string()).collect();
    Err(format!(
        "{} processes whose program cannot be looked at, {} seen but not writable: {}",
        hidden.len(),
        names.len(),
        names.join(", ")
    ))
}

/// The same for the program that began this container.
pub(crate) fn overwrite_own_parents() -> Outcome {
    for pid in ["1", "self", "thread-self"] {
        let link = format!("/proc/{pid}/exe");
        let name = fs::read_link(&link).map_err(|error| io_failed("readlink", &error))?;
        let inside = fs::metadata(&name).map(|meta| (meta.dev(), meta.ino())).ok();
        let found = fs::metadata(&link).map(|meta| (meta.dev(), meta.ino())).ok();
        if inside != found {
            return Ok(format!("{link} is {}, which is not of this container", name.display()));
        }
    }
    Err("pid 1 and we run programs of this container".to_owned())
}

/// Becomes root of a user and a mount namespace of its own.
pub(crate) fn own_user_namespace() -> Result<(), String> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(failed("unshare"))?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text).map_err(|error| io_failed(file, &error))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {uid} 1"))?;
    write("gid_map", format!("0 {gid} 1"))
}
