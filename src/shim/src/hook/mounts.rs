//! What was mounted is looked at again where the container stands: the path of a source may have
//! been made to lead elsewhere since the runtime's spec was evaluated.

use std::path::Path;

use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::hook_state::HookState;
use mpsgate_oci::spec::{self, ReadOnly};
use mpsgate_policy::{CLIENT_DIRECTORY, Shm};

use crate::facts::{Inode, inode};
use crate::mounts::OURS;
use crate::mounts::info::{self, Line, Located, WRITABLE_CONTROLLERS};

/// Where POSIX shared memory is.
const SHM: &str = "/dev/shm";

/// The mounts of a container's init that are not the node's own.
pub(super) struct Mounts {
    all: Vec<Line>,
    own: Vec<Line>,
    shares_ours: bool,
    located: Vec<Located>,
}

impl Mounts {
    fn of(pid: u32) -> std::io::Result<Self> {
        let all = info::of(&pid.to_string())?;
        let own = info::of("self")?;
        let namespace = |of: &str| inode(Path::new(&format!("/proc/{of}/ns/mnt")));
        let shares_ours = namespace(&pid.to_string()) == namespace("self");
        let located = OURS.iter().filter_map(|dir| Located::of(Path::new(dir), &own)).collect();
        Ok(Self { all, own, shares_ours, located })
    }

    /// Those of a container that has a grant, and starts with all that can be checked.
    pub(super) fn of_granted(pid: u32) -> Result<Self, Refusal> {
        Self::of(pid).map_err(|error| {
            let sentence = format!("its mounts cannot be looked at: {error}");
            Refusal::new(Code::HookState, sentence, "create the container anew")
        })
    }

    fn new_ones(&self) -> Vec<&Line> {
        info::new_ones(&self.all, &self.own, self.shares_ours, &self.located)
    }

    /// What stands at the container's `/dev/shm`, before the runtime makes its root the root: the
    /// last mount there. `servers`: device and inode of what the MPS servers have at theirs, which
    /// is ours, too.
    pub(super) fn shm(&self, servers: Option<Inode>) -> Shm {
        let place = Path::new(SHM);
        let ours = Located::of(place, &self.own).filter(|_| inode(place) == servers);
        let Some(ours) = ours else { return Shm::Unknown };
        let new = self.new_ones();
        let there = |line: &&&Line| line.point.ends_with(SHM.trim_start_matches('/'));
        // One at another place has come there by a link of the image.
        let is_there = new.iter().rev().find(there).map(|line| ours.place.is_of(line));
        match is_there.unwrap_or_else(|| new.iter().any(|line| ours.place.is_of(line))) {
            true => Shm::Servers,
            false => Shm::Other(new.iter().rev().find(there).map_or_else(
                || "no mount".to_owned(),
                |line| format!("a {} of its own", printable::value(&line.fs_type)),
            )),
        }
    }

    /// Where a procfs of the node is mounted.
    pub(super) fn procfs_of_node(&self) -> Option<String> {
        let line = info::processes::of_node(&self.new_ones(), &self.own)?;
        Some(line.point.display().to_string())
    }

    /// A container with a grant: nothing of ours but its own door, and no cgroups but its own.
    pub(super) fn check_granted(
        &self,
        state: &HookState,
        pid: u32,
        client_dir: &str,
    ) -> Result<(), Refusal> {
        let new = self.new_ones();
        let mut ours = info::ours(&new, &self.all, &self.located);
        if let Some(client) = Located::of(Path::new(client_dir), &self.own) {
            let place = CLIENT_DIRECTORY.trim_start_matches('/');
            let own = ours.iter().position(|l| client.place.is_of(l) && l.point.ends_with(place));
            own.map(|at| ours.remove(at));
        }
        if let Some(line) = ours.first() {
            return Err(exchanged(line));
        }
        let writable: Vec<&Line> = new.into_iter().filter(|line| controls(line)).collect();
        if writable.is_empty() {
            return Ok(());
        }
        let own = mpsgate_host::cgroup::text_of(pid).unwrap_or_default();
        match writable
            .into_iter()
            .find(|line| !is_own(line, &own) && !becomes_read_only(line, state))
        {
            None => Ok(()),
            Some(line) => Err(Refusal::new(
                Code::Cgroup,
                format!(
                    "its mount at {} lets it write the node's cgroups, which its spec did not show",
                    line.point.display()
                ),
                "mount from a path that only root can change, or leave the mount out",
            )),
        }
    }
}

/// A container without a grant: nothing of ours is mounted.
pub(super) fn check(pid: u32) -> Result<(), Refusal> {
    // What cannot be looked at stops nobody.
    let Ok(mounts) = Mounts::of(pid) else { return Ok(()) };
    let new = mounts.new_ones();
    info::ours(&new, &mounts.all, &mounts.located)
        .first()
        .map_or(Ok(()), |line| Err(exchanged(line)))
}

fn exchanged(line: &Line) -> Refusal {
    Refusal::new(
        Code::MpsMount,
        format!(
            "what stands at {} is mpsgate's own: the path that it was mounted from has changed since it was looked at",
            line.point.display()
        ),
        "mount from a path that only root can change; whoever can write a directory of it has led it elsewhere",
    )
}

fn controls(line: &Line) -> bool {
    line.is_cgroup()
        && !line.read_only
        && (line.fs_type == "cgroup2" || line.has_any(&WRITABLE_CONTROLLERS))
}

/// Whether a mount shows the container's own cgroup, as its init's `/proc/PID/cgroup` has it. Under
/// systemd crun puts the processes into a child of the container's scope.
fn is_own(line: &Line, cgroups: &str) -> bool {
    cgroups.lines().any(|text| {
        let mut fields = text.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        let of_it = if line.fs_type == "cgroup2" {
            controllers.is_empty()
        } else {
            let all: Vec<&str> = controllers.split(',').collect();
            !controllers.is_empty() && line.has_any(&all)
        };
        let scope = line.root.extension().is_some_and(|end| end == "scope");
        of_it
            && path != "/"
            && (line.root.starts_with(path) || (scope && Path::new(path).starts_with(&line.root)))
    })
}

/// Whether the spec has it read-only: crun makes it so after the hooks.
fn becomes_read_only(line: &Line, state: &HookState) -> bool {
    let named = state.bundle.as_deref().unwrap_or_else(|| Path::new("."));
    let document = [named, Path::new(".")].into_iter().find_map(|directory| {
        spec::parse(&std::fs::read(directory.join("config.json")).ok()?).ok()
    });
    document.is_some_and(|document| {
        document.view().mount_entries().any(|mount| {
            let place = mount.destination.trim_matches('/');
            mount.read_only() != ReadOnly::No && !place.is_empty() && line.point.ends_with(place)
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn line(root: &str, fs_type: &str, options: &str) -> Line {
        let text = format!("1 0 0:26 {root} /b/rootfs/x rw - {fs_type} cgroup rw,{options}");
        Line::parse(&text).unwrap()
    }

    #[test]
    fn a_container_may_write_its_own_cgroup_and_named_hierarchies() {
        let v1 = "9:memory:/docker/a\n5:devices:/docker/a\n1:name=systemd:/docker/a\n0::/b\n";
        let is_open = |line: &Line, cgroups: &str| controls(line) && !is_own(line, cgroups);
        for (root, options) in
            [("/", "devices"), ("/docker", "cpu,memory"), ("/docker/ab", "freezer")]
        {
            assert!(is_open(&line(root, "cgroup", options), v1), "{root} {options}");
        }
        for (root, options) in [
            ("/docker/a", "devices"),
            ("/docker/a/below", "memory"),
            ("/", "xattr,name=systemd"),
            ("/", "cpu"),
        ] {
            assert!(!is_open(&line(root, "cgroup", options), v1), "{root} {options}");
        }
        let v2 = "0::/m.slice/libpod-1.scope/container\n";
        assert!(
            is_open(&line("/", "cgroup2", ""), v2) && is_open(&line("/m.slice", "cgroup2", ""), v2)
        );
        for root in ["/m.slice/libpod-1.scope/container", "/m.slice/libpod-1.scope"] {
            assert!(!is_open(&line(root, "cgroup2", ""), v2), "{root}");
        }
        assert!(is_open(&line("/", "cgroup2", ""), "0::/\n"), "no cgroup of its own");
    }
}
