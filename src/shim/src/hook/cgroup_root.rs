//! A container's cgroup: the directory that controls its devices, how a process joins it, and the
//! check that the container does not leave it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use mpsgate_host::cgroup::{self, CgroupId};
use mpsgate_model::{Code, Refusal};
use nix::sched::{CloneFlags, setns};

/// The cgroup that controls a container's devices: in v1's `devices` hierarchy, or in v2's.
pub(super) struct Cgroup {
    /// Path and inode.
    pub(super) id: CgroupId,
    /// The file into which a process writes its pid to join.
    pub(super) procs: PathBuf,
}

/// The cgroup of a process; `None` if the kernel does not show it.
pub(super) fn of(pid: u32) -> Option<Cgroup> {
    let directory = cgroup::of_devices(&cgroup::text_of(pid)?, cgroup::is_unified())?;
    Some(Cgroup { procs: directory.join("cgroup.procs"), id: CgroupId::of(&directory)? })
}

/// Refuses a container with an init that is not at the root of its cgroup namespace. runc, crun and
/// youki put it there: they make the namespace when the init is in the container's cgroup. If the
/// init is below the root (crun's `run.oci.delegate-cgroup`), the container can write the cgroups
/// in between, and leave the init's cgroup. If it is beside the root, the namespace is another
/// container's. Without a namespace of its own the container writes cgroups only by mounts, which
/// have a check of their own.
pub(super) fn check_root(pid: u32) -> Result<(), Refusal> {
    let refusal = |found: &str| {
        Err(Refusal::new(
            Code::Cgroup,
            format!("{found}, so that it could leave the cgroup in which its grant is counted"),
            "remove what moves it (the annotation run.oci.delegate-cgroup, a hook), and give it a cgroup namespace of \
             its own (docker or podman run --cgroupns=private)",
        ))
    };
    match text_within(pid) {
        Ok(None) => Ok(()),
        Ok(Some(text)) if is_root(&text, cgroup::is_unified()) => Ok(()),
        Ok(Some(_)) => refusal("its first process is not at the root of its cgroup namespace"),
        Err(error) => refusal(&format!("its cgroup namespace cannot be looked at ({error})")),
    }
}

/// `/proc/PID/cgroup` as read in the process's own cgroup namespace; `None` if that is this
/// process's, and before Linux 4.6, which has none.
fn text_within(pid: u32) -> io::Result<Option<String>> {
    let open = |process: &str| File::open(format!("/proc/{process}/ns/cgroup"));
    let own = match open("self") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let its = open(&pid.to_string())?;
    let inode = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino()));
    if inode(&own)? == inode(&its)? {
        return Ok(None);
    }
    setns(&its, CloneFlags::CLONE_NEWCGROUP)?;
    let text = cgroup::text_of(pid);
    // Without going back, all paths of cgroups would be read from there.
    setns(&own, CloneFlags::CLONE_NEWCGROUP)?;
    text.map(Some).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Whether a process is at the root, by its text as read from there.
fn is_root(text: &str, unified: bool) -> bool {
    let of = |text: &str| cgroup::of_devices(text, unified);
    of(text).is_some() && of(text) == of("1:devices:/\n0::/\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn a_container_s_init_is_at_the_root_of_its_namespace_and_not_below_or_beside() {
        for (text, unified, expected) in [
            ("0::/\n", true, true),
            ("0::/inner\n", true, false),
            ("0::/../other\n", true, false),
            ("0::/..\n", true, false),
            ("", true, false),
            // On v1 the hierarchy that controls devices counts.
            ("9:memory:/in\n5:cpu,devices:/\n0::/x\n", false, true),
            ("9:memory:/\n5:devices:/in\n0::/\n", false, false),
            ("9:memory:/\n5:devices:/../a\n0::/\n", false, false),
            ("0::/\n", false, false),
        ] {
            assert_eq!(is_root(text, unified), expected, "{text} {unified}");
        }
    }

    #[test]
    fn a_process_in_our_own_namespace_is_not_looked_at_from_within() {
        assert_eq!(text_within(std::process::id()).unwrap(), None);
    }
}
