//! Texts of the kernel's in which others choose names: processes, cgroups; and of the NVIDIA
//! toolkit.

use std::path::{Component, Path};

use mpsgate_daemon::fuzz as daemon;
use mpsgate_host::process::Stat;
use mpsgate_model::DeviceNode;
use mpsgate_shim::fuzz as shim;

use crate::text;

/// The first line is taken for a process's name, the whole for each of the texts. No name hides or
/// forges a start time, no cgroup is looked for outside the kernel's tree, a device is never both
/// open and closed, and only NVIDIA's majors count.
pub(crate) fn proc_text(data: &[u8]) {
    let Some(text) = text(data) else { return };
    stat(text);
    cgroup(text);
    rules(text);
    if let Some((pid, _)) = daemon::fdinfo(text) {
        assert!(pid > 0);
    }
    let majors = daemon::majors(text);
    assert!(majors.contains_key("nvidia"));
    assert!(majors.keys().all(|name| name.starts_with("nvidia")));
    for name in daemon::swarm_resources(text) {
        assert!(!name.trim().is_empty() && !name.contains(','));
    }
    assert!(daemon::annotation_prefixes(text).iter().all(|prefix| !prefix.is_empty()));
    let _ = mpsgate_cli::fuzz::own_limit(text);
}

fn stat(text: &str) {
    let _ = Stat::parse(text);
    // The kernel cuts a name at 15 bytes, whatever it holds.
    let name: String = text.lines().next().unwrap_or_default().chars().take(15).collect();
    let fields = "1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3";
    for (state, expected) in [("S", Some(4711)), ("R", Some(4711)), ("Z", None), ("X", None)] {
        let stat = format!("7 ({name}) {state} {fields}\n");
        let read = Stat::parse(&stat).filter(|stat| !stat.has_ended());
        assert_eq!(read.map(|stat| stat.start_time), expected, "{stat:?}");
    }
}

fn cgroup(text: &str) {
    for unified in [false, true] {
        let Some(directory) = shim::device_cgroup(text, unified) else { continue };
        let mount = if unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/devices" };
        assert!(directory.starts_with(mount), "{directory:?}");
        let below = directory.strip_prefix(Path::new(mount)).unwrap();
        assert!(
            below.components().all(|part| matches!(part, Component::Normal(_))),
            "{directory:?} leads out of {mount}"
        );
    }
}

fn rules(text: &str) {
    assert!(shim::mounts(text) <= text.lines().count(), "a mount has a line");
    for minor in [0, 1, 255] {
        let node = DeviceNode { path: "/dev/nvidia".to_owned(), major: 195, minor };
        let (open, closed) =
            (shim::rules_agree(text, &node, true), shim::rules_agree(text, &node, false));
        assert!(!(open && closed), "{minor} is open and closed");
        let more = format!("{text}\nc 195:{minor} rw\n");
        assert!(shim::rules_agree(&more, &node, true), "a rule that opens it was not seen");
        assert!(!shim::rules_agree(&more, &node, false), "an open card counts as closed");
        if !text.contains("195") && !text.contains('*') && !text.contains("0195") {
            assert!(closed && !open);
        }
    }
}
