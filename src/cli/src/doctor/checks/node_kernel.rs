//! What the kernel tells: its version, cgroups, namespaces, limits, security modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mpsgate_config::paths;
use mpsgate_host::door_place::Kind;
use mpsgate_policy::SharedMemory;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::{Found, fail, failed, ok, or, skip, warn};
use crate::doctor::doctor_node::{Cgroup, Node};
use crate::doctor::trouble::{Known, Trouble, entries, need, read};

/// What the MPS server needs, else it cannot make its shared memory (NVIDIA MPS documentation,
/// known issues).
const OPEN_FILES_NEEDED: u64 = 16384;
/// Oldest kernel of a distribution that is still maintained and that the driver supports: RHEL 8.
const OLDEST_KERNEL: (u32, u32) = (4, 18);
/// A label is shorter: `system_u:object_r:container_file_t:s0`.
const LABEL_BYTES: usize = 512;
/// Types that container-selinux lets containers write.
const CONTAINER_TYPES: [&str; 2] = ["container_file_t", "svirt_sandbox_file_t"];
/// Names of the processes whose limits count, as `/proc/PID/comm` cuts them: 15 bytes.
const COUNTED: [&str; 2] = ["mpsgated", "nvidia-cuda-mps"];
pub(super) const MOUNT_PROC: &str = "mount /proc: mount -t proc proc /proc";
/// For v2.
pub(super) const UNIFIED: &str = "boot with systemd.unified_cgroup_hierarchy=1 for v2";

pub(super) fn kernel(node: &Node) -> Found {
    judge_kernel(need(&node.below("/proc/sys/kernel/osrelease")))
}

fn judge_kernel(release: Known<String>) -> Found {
    let release = or(release, MOUNT_PROC)?;
    let release = release.trim();
    let mut numbers = release.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    Ok(vec![match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST_KERNEL => warn(
            format!("{release}, older than any that mpsgate was tried on"),
            "upgrade to a kernel of 4.18 or newer",
        ),
        (Some(_), Some(_)) => ok(release),
        _ => warn(format!("{release}: no version"), "uname -r"),
    }])
}

pub(super) fn pidfd(_: &Node) -> Found {
    judge_pidfd(pidfd_open(getpid(), PidfdFlags::empty()).map(drop))
}

fn judge_pidfd(opened: Result<(), Errno>) -> Found {
    Ok(vec![match opened {
        Ok(()) => ok("pidfd_open works: the end of a container is seen at once"),
        Err(error) => warn(
            format!("pidfd_open: {error}: the end of a container is found by polling"),
            "upgrade to a kernel of 5.3 or newer; in a container, allow pidfd_open in its seccomp \
             profile",
        ),
    }])
}

pub(super) fn cgroup(node: &Node) -> Found {
    Ok(vec![match node.cgroup {
        Cgroup::V2 { .. } => ok("v2"),
        Cgroup::Hybrid => {
            warn("hybrid: crun does not run on it, and the driver's own limits need v2", UNIFIED)
        }
        Cgroup::V1 => warn("v1: the driver's own memory limits (r615) need v2", UNIFIED),
        Cgroup::None => {
            fail("no cgroup file system at /sys/fs/cgroup", "mount -t cgroup2 none /sys/fs/cgroup")
        }
    }])
}

/// What the kernel's security modules do here.
struct Security {
    /// `None`: no SELinux. Else whether it enforces.
    selinux: Option<bool>,
    apparmor: bool,
    /// SELinux type of each directory that containers are given; `None`: it cannot be read.
    client_types: BTreeMap<PathBuf, Option<String>>,
}

pub(super) fn security(node: &Node) -> Found {
    let word =
        |path| read(&node.below(path)).ok().flatten().map(|text: String| text.trim().to_owned());
    let selinux = word("/sys/fs/selinux/enforce").map(|enforce| enforce == "1");
    let cards = selinux.into_iter().flat_map(|_| entries(&node.below(paths::MPS_DIR)));
    let clients = cards.map(|card| card.path().join(Kind::Container.directory()));
    let clients = clients.filter(|path| path.is_dir());
    judge_security(Security {
        selinux,
        apparmor: word("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y"),
        client_types: clients.map(|path| (path.clone(), selinux_type(&path))).collect(),
    })
}

/// The third part of a label.
fn selinux_type(path: &Path) -> Option<String> {
    let mut bytes = [0_u8; LABEL_BYTES];
    let length = rustix::fs::lgetxattr(path, "security.selinux", &mut bytes).ok()?;
    let label = String::from_utf8_lossy(bytes.get(..length)?).into_owned();
    label.split(':').nth(2).map(|part| part.trim_end_matches('\0').to_owned())
}

/// SELinux and AppArmor: what containers may do with the directory of MPS that they are given.
fn judge_security(Security { selinux, apparmor, client_types }: Security) -> Found {
    let wrong = client_types
        .iter()
        .find(|(_, label)| label.as_deref().is_none_or(|label| !CONTAINER_TYPES.contains(&label)));
    Ok(vec![match (selinux, wrong) {
        (None, _) if apparmor => ok(
            "AppArmor on: the engines' usual profile lets containers use MPS; one of your own needs the paths in docs/selinux.md",
        ),
        (None, _) => ok("neither SELinux nor AppArmor"),
        (Some(true), Some((path, label))) => warn(
            format!(
                "SELinux enforces; {} has the type {}: a container that SELinux confines cannot reach MPS",
                path.display(),
                label.as_deref().unwrap_or("unknown")
            ),
            "Docker and Podman with --ipc=host are not confined; for Kubernetes see docs/selinux.md: semanage fcontext -a \
             -t container_file_t '/run/mpsgate/mps/[0-9]+/containers(/.*)?', then restorecon -R /run/mpsgate/mps",
        ),
        (Some(true), None) => {
            ok("SELinux enforces; the directories for containers have their type")
        }
        (Some(false), _) => ok("SELinux is permissive"),
    }])
}

pub(super) fn ipc(node: &Node) -> Found {
    judge_ipc(ipc_inode(&node.below("/proc/self/ns/ipc")), node)
}

/// Of our own namespace.
fn ipc_inode(path: &Path) -> Known<u64> {
    let target =
        std::fs::read_link(path).map_err(|error| Trouble::io("read the link", path, &error))?;
    let text = target.to_string_lossy();
    let inode = text.strip_prefix("ipc:[").and_then(|rest| rest.strip_suffix(']'));
    inode.and_then(|digits| digits.parse().ok()).ok_or_else(|| {
        Trouble::new(format!("{} leads to {text:?}, no IPC namespace", path.display()))
    })
}

fn judge_ipc(own: Known<u64>, node: &Node) -> Found {
    let own = or(own, MOUNT_PROC)?;
    let Ok(Some(snapshot)) = &node.snapshot else {
        return Err(skip(format!("here ipc:[{own}]; mpsgated's is not known")));
    };
    Ok(vec![if snapshot.ipc_inode == own {
        let needs = match SharedMemory::of_word(&snapshot.shared_memory) {
            SharedMemory::Unknown => "",
            SharedMemory::Anonymous => {
                "; this driver's CUDA processes need neither it nor the host's /dev/shm (policy.ipc)"
            }
            SharedMemory::Named => {
                "; this driver's CUDA processes look for what the MPS server has in /dev/shm"
            }
            SharedMemory::Required => {
                "; CUDA processes without the host's /dev/shm do not attach here, and are refused"
            }
        };
        ok(format!("ipc:[{own}], as the MPS servers{needs}"))
    } else {
        fail(
            format!("here ipc:[{own}], the MPS servers are in ipc:[{}]", snapshot.ipc_inode),
            "run the doctor on the host itself; if this is the host, remove PrivateIPC= from the \
             units: systemctl cat mpsgated 'mpsgate-mps@*' mpsgate-hold",
        )
    }])
}

/// A process, `mpsgated (pid 7)`, and its hard limit, unless it has none.
type OpenFiles = (String, Known<Option<u64>>);

/// Of every mpsgated and MPS process. Whoever may not look sees none.
pub(super) fn open_files(node: &Node) -> Found {
    let limits = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let comm = read(&entry.path().join("comm")).ok()??;
        let comm = comm.trim_end();
        let limit = || hard_limit(&entry.path().join("limits"));
        COUNTED.contains(&comm).then(|| (format!("{comm} (pid {pid})"), limit()))
    };
    let mut found: Vec<_> = entries(&node.below("/proc")).filter_map(limits).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    judge_open_files(found)
}

/// The third column of `Max open files`; `None` where it says `unlimited`.
fn hard_limit(path: &Path) -> Known<Option<u64>> {
    let text = need(path)?;
    let unreadable = || Trouble::new(format!("{} names no limit of open files", path.display()));
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_whitespace().nth(1)) {
        Some("unlimited") => Ok(None),
        Some(number) => number.parse().map(Some).map_err(|_| unreadable()),
        None => Err(unreadable()),
    }
}

fn judge_open_files(processes: Vec<OpenFiles>) -> Found {
    if processes.is_empty() {
        return Err(skip("neither mpsgated nor an MPS process runs"));
    }
    let one = |(process, hard): OpenFiles| {
        let finding = match hard {
            Ok(None) => ok("unlimited"),
            Ok(Some(hard)) if hard >= OPEN_FILES_NEEDED => ok(format!("hard limit {hard}")),
            Ok(Some(hard)) => fail(
                format!("hard limit {hard}, MPS needs {OPEN_FILES_NEEDED}"),
                "set LimitNOFILE=16384 in its unit: systemctl edit mpsgated 'mpsgate-mps@.service' mpsgate-hold",
            ),
            Err(trouble) => failed(&trouble, "run it with sudo, or as root"),
        };
        finding.about(process)
    };
    Ok(processes.into_iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::Outcome;
    use crate::doctor::checks::tests::{FAIL, IPC, WARN, assert_calm, node, trouble, turns_red};

    fn modules() -> Security {
        Security { selinux: None, apparmor: true, client_types: BTreeMap::new() }
    }

    fn selinux(security: &mut Security, label: Option<&str>) {
        let client = PathBuf::from("/run/mpsgate/mps/0/containers");
        security.selinux = Some(true);
        security.client_types = [(client, label.map(str::to_owned))].into();
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("kernel", |f, _| judge_kernel(f), || Ok("6.1.0-28-amd64\n".to_owned()), &[
            (|f, _| *f = Ok("3.10.0-1160.el7".into()), WARN, "3.10.0-1160.el7, older", "4.18"),
            (|f, _| *f = Ok("unknown".into()), WARN, "no version", "uname -r"),
            (|f, _| *f = trouble("/proc is missing"), FAIL, "missing", "mount -t proc"),
        ]);
        turns_red("pidfd", |f, _| judge_pidfd(f), || Ok(()), &[
            (|f, _| *f = Err(Errno::NOSYS), WARN, "(os error 38): the end", "5.3"),
        ]);
        turns_red("cgroup", |(), n| cgroup(n), || (), &[
            (|(), n| n.cgroup = Cgroup::Hybrid, WARN, "hybrid", "systemd.unified_cgroup_hierarchy=1"),
            (|(), n| n.cgroup = Cgroup::V1, WARN, "v1", "systemd.unified_cgroup_hierarchy=1"),
            (|(), n| n.cgroup = Cgroup::None, FAIL, "/sys/fs/cgroup", "mount -t cgroup2"),
        ]);
        turns_red("security-module", |f, _| judge_security(f), modules, &[
            (|f, _| selinux(f, Some("var_run_t")), WARN, "containers has the type var_run_t", "docs/selinux.md"),
            (|f, _| selinux(f, None), WARN, "type unknown", "restorecon"),
        ]);
        turns_red("ipc", judge_ipc, || Ok(IPC), &[
            (|own, _| *own = Ok(1), FAIL, "here ipc:[1], the MPS servers are in ipc:[4026531839]", "PrivateIPC="),
            (|own, _| *own = trouble("no /proc"), FAIL, "no /proc", "mount -t proc"),
        ]);
        let ours = || vec![("mpsgated (pid 7)".to_owned(), Ok(Some(16384)))];
        turns_red("open-files", |f, _| judge_open_files(f), ours, &[
            (|f, _| f.get_mut(0).unwrap().1 = Ok(Some(4096)), FAIL, "hard limit 4096", "LimitNOFILE=16384"),
            (|f, _| f.get_mut(0).unwrap().1 = trouble("denied"), FAIL, "denied", "sudo"),
        ]);
    }

    #[test]
    fn selinux_is_no_finding_where_the_directories_have_their_type_or_it_only_reports() {
        let mut enforcing = modules();
        selinux(&mut enforcing, Some("container_file_t"));
        assert_calm(judge_security(enforcing));
        let mut permissive = modules();
        selinux(&mut permissive, Some("var_run_t"));
        permissive.selinux = Some(false);
        assert_calm(judge_security(permissive));
    }

    #[test]
    fn what_the_driver_needs_of_shared_memory_is_told_beside_the_namespace() {
        for (seen, told) in [
            ("unknown", "as the MPS servers"),
            ("anonymous", "need neither it nor the host's /dev/shm"),
            ("named", "look for what the MPS server has in /dev/shm"),
            ("required", "without the host's /dev/shm do not attach"),
        ] {
            let mut node = node();
            seen.clone_into(&mut node.snapshot.as_mut().unwrap().as_mut().unwrap().shared_memory);
            let found = judge_ipc(Ok(IPC), &node).unwrap();
            assert_eq!(found[0].result, Outcome::Ok, "{found:?}");
            assert!(found[0].evidence.contains(told), "{found:?}");
        }
    }
}
