//! What the kernel tells: devices, cgroups, namespaces, limits.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::{below, io_trouble, read};
use crate::doctor::facts::{Cgroup, DeviceFile, Known, OpenFiles, Trouble};

/// Names of the processes whose limits count, as `/proc/PID/comm` cuts them: 15 bytes.
const COUNTED: [&str; 2] = ["mpsgated", "nvidia-cuda-mps"];

pub(super) fn majors(root: &Path) -> Known<BTreeMap<String, u64>> {
    let path = below(root, "/proc/devices");
    let text = read(&path)?.ok_or_else(|| missing(&path))?;
    // `Character devices:`, lines of major and name, an empty line, `Block devices:`.
    let character = text.split("\n\n").next().unwrap_or_default();
    let entry = |line: &str| {
        let (major, name) = line.trim().split_once(' ')?;
        Some((name.trim().to_owned(), major.parse().ok()?))
    };
    let all = character.lines().filter_map(entry);
    Ok(all.filter(|(name, _): &(String, u64)| name.starts_with("nvidia")).collect())
}

pub(super) fn nodes(root: &Path) -> BTreeMap<String, DeviceFile> {
    let Ok(entries) = std::fs::read_dir(below(root, "/dev")) else { return BTreeMap::new() };
    let node = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_str().filter(|n| n.starts_with("nvidia"))?.to_owned();
        let metadata = entry.metadata().ok()?;
        let node = if metadata.file_type().is_char_device() {
            DeviceFile::Char { major: major(metadata.rdev()), minor: minor(metadata.rdev()) }
        } else {
            DeviceFile::Other
        };
        Some((format!("/dev/{name}"), node))
    };
    entries.flatten().filter_map(node).collect()
}

pub(super) const CGROUPS: &str = "/sys/fs/cgroup";

pub(super) fn cgroup(root: &Path) -> Cgroup {
    let has = |name: &str| below(root, CGROUPS).join(name).exists();
    if has("cgroup.controllers") {
        Cgroup::V2
    } else if has("unified/cgroup.controllers") {
        Cgroup::Hybrid
    } else if has("devices") {
        Cgroup::V1
    } else {
        Cgroup::None
    }
}

pub(super) fn dmem(root: &Path) -> bool {
    let controllers = read(&below(root, CGROUPS).join("cgroup.controllers"));
    let controllers = controllers.ok().flatten().unwrap_or_default();
    controllers.split_ascii_whitespace().any(|name| name == "dmem")
}

pub(super) fn pidfd() -> Known<()> {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    pidfd_open(getpid(), PidfdFlags::empty())
        .map(drop)
        .map_err(|error| Trouble { what: format!("pidfd_open: {error}"), hint: None })
}

pub(super) fn kernel(root: &Path) -> Known<String> {
    let path = below(root, "/proc/sys/kernel/osrelease");
    let text = read(&path)?.ok_or_else(|| missing(&path))?;
    Ok(text.trim().to_owned())
}

pub(super) fn ipc_inode(root: &Path) -> Known<u64> {
    let path = below(root, "/proc/self/ns/ipc");
    let target =
        std::fs::read_link(&path).map_err(|error| io_trouble("read the link", &path, &error))?;
    let text = target.to_string_lossy();
    let inode = text.strip_prefix("ipc:[").and_then(|rest| rest.strip_suffix(']'));
    inode.and_then(|digits| digits.parse().ok()).ok_or_else(|| Trouble {
        what: format!("{} leads to {text:?}, no IPC namespace", path.display()),
        hint: None,
    })
}

/// The limits of every mpsgated and MPS process. Whoever may not look sees none.
pub(super) fn open_files(root: &Path) -> Vec<OpenFiles> {
    let Ok(entries) = std::fs::read_dir(below(root, "/proc")) else { return Vec::new() };
    let limits = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let comm = read(&entry.path().join("comm")).ok()??;
        let comm = comm.trim_end();
        COUNTED.contains(&comm).then(|| OpenFiles {
            process: format!("{comm} (pid {pid})"),
            hard: hard_limit(&entry.path().join("limits")),
        })
    };
    let mut found: Vec<_> = entries.flatten().filter_map(limits).collect();
    found.sort_by(|a, b| a.process.cmp(&b.process));
    found
}

/// The third column of `Max open files`; `None` where it says `unlimited`.
fn hard_limit(path: &Path) -> Known<Option<u64>> {
    let text = read(path)?.ok_or_else(|| missing(path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_whitespace().nth(1)) {
        Some("unlimited") => Ok(None),
        Some(number) => number.parse().map(Some).map_err(|_| unreadable(path)),
        None => Err(unreadable(path)),
    }
}

fn missing(path: &Path) -> Trouble {
    Trouble { what: format!("{} is missing", path.display()), hint: None }
}

fn unreadable(path: &Path) -> Trouble {
    Trouble { what: format!("{} names no limit of open files", path.display()), hint: None }
}
