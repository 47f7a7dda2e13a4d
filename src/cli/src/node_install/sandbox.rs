//! The sandbox of the pod that this runs in.
//!
//! An engine keeps for a pod's lifetime what its handler ran when the sandbox was made (containerd:
//! the task options in the sandbox's record). A pod whose own installer has led its handler
//! elsewhere would have its next containers started as before: mpsgated without a driver. Kubelet
//! makes a pod's sandbox anew when the one that is there has ended.

use std::fs::File;
use std::path::Path;

use mpsgate_host::cgroup::text_of;
use mpsgate_host::process;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Ends it: every process of the pod that is not this container's, which while init containers run
/// is the sandbox's. `false` where there is none: this is no pod's container, or its engine runs
/// pods without one (CRI-O, `drop_infra_ctr`).
pub(super) fn end() -> bool {
    // Seen from a cgroup namespace of its own a path does not say whose it is.
    let Ok(node) = File::open("/proc/1/ns/cgroup") else { return false };
    if setns(node, CloneFlags::CLONE_NEWCGROUP).is_err() {
        return false;
    }
    let Some(own) = text_of(std::process::id()) else { return false };
    let mut ended = false;
    for pid in process::all() {
        if text_of(pid).is_some_and(|of_it| is_beside(&own, &of_it)) {
            ended |= kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).is_ok();
        }
    }
    ended
}

/// Whether `other` is in a cgroup of the same pod, and in another one than `own`; both are
/// `/proc/PID/cgroup`. The hierarchies have to agree.
fn is_beside(own: &str, other: &str) -> bool {
    let mut beside = false;
    for line in own.lines() {
        let Some((hierarchy, path)) = split(line) else { continue };
        let Some(pod) = pod_of(path) else { continue };
        let Some((_, of_it)) = other.lines().filter_map(split).find(|(name, _)| *name == hierarchy)
        else {
            return false;
        };
        // Some engines have a cgroup of their own below the container's.
        let within = |path: &str| path.strip_prefix(pod).is_some_and(|rest| rest.starts_with('/'));
        if !within(of_it) || container(of_it, pod) == container(path, pod) {
            return false;
        }
        beside = true;
    }
    beside
}

/// Hierarchy and path of a line.
fn split(line: &str) -> Option<(&str, &str)> {
    let path = line.splitn(3, ':').nth(2)?;
    Some((line.strip_suffix(path)?, path))
}

/// The cgroup of the pod that a path lies in: `…/pod<uid>`, or systemd's `…-pod<uid>.slice`.
fn pod_of(path: &str) -> Option<&str> {
    let mut end = 0;
    for part in path.split('/') {
        end += part.len() + 1;
        let name = part.strip_suffix(".slice").unwrap_or(part);
        let uid = name.rsplit_once("pod").map_or("", |(_, uid)| uid);
        let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
        if digits == 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-' || b == b'_') {
            return path.get(..end - 1);
        }
    }
    None
}

fn container<'a>(path: &'a str, pod: &str) -> Option<&'a str> {
    Path::new(path.strip_prefix(pod)?.trim_start_matches('/')).iter().next()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "/kubepods/besteffort/pod3f0d1e2c-0000-4000-8000-00000000000a";
    const SLICE: &str = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod3f0d1e2c_0000_4000_8000_00000000000a.slice";

    #[test]
    fn beside_it_is_what_is_in_another_cgroup_of_the_same_pod() {
        let v1 = |path: &str| {
            format!("12:devices:{path}\n4:memory:{path}\n1:name=systemd:{path}\n0::/\n")
        };
        let v2 = |path: &str| format!("0::{path}\n");
        for (own, other, expected) in [
            (v1(&format!("{POD}/own")), v1(&format!("{POD}/sandbox")), true),
            (v1(&format!("{POD}/own")), v1(&format!("{POD}/own")), false),
            (v1(&format!("{POD}/own")), v1(&format!("{POD}/own/below")), false),
            (v1(&format!("{POD}/own")), v1(&format!("{POD}b/sandbox")), false),
            (v1(&format!("{POD}/own")), v1(POD), false),
            (v1(&format!("{POD}/own")), v1("/"), false),
            // One hierarchy alone is no sign.
            (
                v1(&format!("{POD}/own")),
                format!("12:devices:{POD}/x\n4:memory:/y\n1:name=systemd:/y\n"),
                false,
            ),
            (v1(&format!("{POD}/own")), format!("12:devices:{POD}/x\n"), false),
            (
                v2(&format!("{SLICE}/cri-containerd-own.scope")),
                v2(&format!("{SLICE}/cri-containerd-sandbox.scope")),
                true,
            ),
            (
                v2(&format!("{SLICE}/crio-own.scope/container")),
                v2(&format!("{SLICE}/crio-own.scope")),
                false,
            ),
            // No pod's container: Docker's neighbours are nobody's to end.
            (v1("/docker/own"), v1("/docker/other"), false),
            (v2("/system.slice/docker-own.scope"), v2("/system.slice/docker-x.scope"), false),
            (v2("/podium/own"), v2("/podium/other"), false),
            (v2("/"), v2("/../other"), false),
            (String::new(), v2("/"), false),
        ] {
            assert_eq!(is_beside(&own, &other), expected, "{own} {other}");
        }
    }
}
