//! What the daemon tells the shim through files: the node's facts, and the link to the real
//! runtime.

use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use mpsgate_api::{FILES_FORMAT, NodeSnapshot};
use mpsgate_config::{Schedule, paths};
use mpsgate_host::crash_point;
use mpsgate_host::file::Durability;
use mpsgate_model::NodeCard;
use mpsgate_node::card::Card;
use mpsgate_policy::ToolkitNames;

use crate::daemon::Daemon;
use crate::files::{FileKind, write_file};
use crate::{device_nodes, kubelet, node_root, other_nodes};

/// Settings of the NVIDIA container toolkit.
const TOOLKIT_CONFIG: &str = "/etc/nvidia-container-runtime/config.toml";
/// Larger is no settings file.
const TOOLKIT_LIMIT: u64 = 1 << 20;

/// Writes the snapshot where it changed; done also where nobody waits.
pub(crate) fn publish(daemon: &Arc<Daemon>) -> impl Future<Output = ()> + use<> {
    let own = Arc::clone(daemon);
    daemon.files.run(FileKind::Snapshot, move || publish_now(&own))
}

fn publish_now(daemon: &Daemon) {
    let snapshot = match take(daemon) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            log::error!(reason:% = error; "node snapshot not taken");
            return;
        }
    };
    let mut last = daemon.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
    if last.as_ref() == Some(&snapshot) {
        return;
    }
    let path = daemon.paths.snapshot();
    crash_point!("daemon.snapshot.before");
    match write(daemon, &path, &snapshot) {
        Ok(()) => {
            crash_point!("daemon.snapshot.after");
            *last = Some(snapshot);
        }
        // The shim then takes every card for managed; the next change tries again.
        Err(error) => {
            log::error!(path:% = path.display(), reason:% = error; "node snapshot not written")
        }
    }
}

/// Who finds the mark finds the names: it comes before them and goes after them.
fn write(daemon: &Daemon, path: &Path, snapshot: &NodeSnapshot) -> io::Result<()> {
    let mark = daemon.paths.toolkit_names();
    let has_names = !ToolkitNames::of(&snapshot.clone().into()).is_empty();
    if has_names {
        write_file(&mark, b"", 0o644, Durability::Atomic)?;
    }
    write_file(path, &serde_json::to_vec(snapshot)?, 0o644, Durability::Atomic)?;
    if has_names {
        return Ok(());
    }
    match std::fs::remove_file(&mark) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn take(daemon: &Daemon) -> io::Result<NodeSnapshot> {
    let ipc_inode = std::fs::metadata("/proc/self/ns/ipc")?.ino();
    let toolkit = node_root::look(toolkit_config)?;
    let (cards, kubelet, share, shared_memory, control) = {
        let node = daemon.node();
        let managed = || node.cards().iter().filter(|card| card.is_managed());
        let shared_memory = node.shared_memory();
        let control = managed().find_map(Card::control_pid);
        let cards: Vec<NodeCard> = node
            .cards()
            .iter()
            .map(|card| NodeCard {
                uuid: card.uuid.clone(),
                index: card.index,
                minor: card.minor,
                managed: card.is_managed(),
            })
            .collect();
        let share = node.schedule.now() == Schedule::Share;
        (cards, node.kubelet, share, shared_memory, control)
    };
    let minors: Vec<u32> =
        cards.iter().filter(|card| card.managed).map(|card| card.minor).collect();
    Ok(NodeSnapshot {
        format: FILES_FORMAT,
        ipc_inode,
        shm: servers_shm(control),
        shared_memory: shared_memory.as_str().to_owned(),
        kubelet,
        cards,
        majors: device_nodes::majors(),
        swarm_resources: parse_swarm_resources(&toolkit),
        annotation_prefixes: parse_annotation_prefixes(&toolkit),
        other_nodes: other_nodes::find(Path::new("/"), &minors),
        device_plugin: kubelet::is_in_charge(daemon),
        share,
    })
}

/// What stands at `/dev/shm` where the control daemons live, whose servers are their children; ours
/// until one runs.
fn servers_shm(control: Option<u32>) -> Option<(u64, u64)> {
    let theirs = control.map(|pid| PathBuf::from(format!("/proc/{pid}/root/dev/shm")));
    let path = theirs.unwrap_or_else(|| PathBuf::from("/dev/shm"));
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The text of the toolkit's settings; empty where there is none.
fn toolkit_config() -> String {
    let readable =
        std::fs::metadata(TOOLKIT_CONFIG).is_ok_and(|found| found.len() <= TOOLKIT_LIMIT);
    if !readable {
        return String::new();
    }
    std::fs::read_to_string(TOOLKIT_CONFIG).unwrap_or_default()
}

/// `swarm-resource = "DOCKER_RESOURCE_GPU,OTHER"` outside comments. By line, because the rest of
/// the file is not ours to evaluate.
pub(crate) fn parse_swarm_resources(text: &str) -> Vec<String> {
    let names = |value: String| {
        let names = value.split(',').map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
    };
    let lines = text.lines().filter_map(|line| value_of(line, "swarm-resource"));
    lines.filter_map(quoted).flat_map(|(value, _)| names(value)).collect()
}

/// `annotation-prefixes = ["cdi.k8s.io/", "example.com/"]`, also over several lines, and with the
/// tables before it in the key. An empty prefix, by which every annotation would be one, is left
/// out.
pub(crate) fn parse_annotation_prefixes(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut in_list = false;
    for line in text.lines() {
        let mut rest = line.trim();
        if !in_list {
            let Some(value) = value_of(line, "annotation-prefixes") else { continue };
            let Some(list) = value.strip_prefix('[') else { continue };
            (in_list, rest) = (true, list);
        }
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            if rest.is_empty() || rest.starts_with('#') {
                break;
            }
            let Some((prefix, after)) = quoted(rest) else {
                in_list = false;
                break;
            };
            if !prefix.is_empty() && !found.contains(&prefix) {
                found.push(prefix);
            }
            rest = after;
        }
    }
    found
}

/// What stands after `key =`, where a line is of that key; the tables that it is in may stand
/// before it.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (found, value) = line.split_once('=')?;
    let last = found.rsplit('.').next()?.trim().trim_matches(['"', '\'']);
    (last == key && !found.trim_start().starts_with('#')).then(|| value.trim())
}

/// A text in quotes at the beginning, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (inner, after) = text.get(1..)?.split_once(quote)?;
    Some((inner.to_owned(), after))
}

/// Points the link at the node's real runtime; removes it where there is none.
pub(crate) async fn link_runtime(daemon: &Daemon, runtime: &Path) {
    let (link, runtime) = (daemon.paths.runtime_link(), runtime.to_owned());
    daemon.files.run(FileKind::Snapshot, move || link_now(&link, &runtime)).await;
}

fn link_now(link: &Path, runtime: &Path) {
    let shim = Path::new(paths::HOOK).with_file_name("mpsgate-runtime");
    let found = node_root::look(|| {
        let own = std::fs::metadata(shim).ok();
        mpsgate_config::find_runtime(runtime, own.as_ref())
    });
    let target = match found {
        Ok(Some(target)) => target,
        unknown => {
            match unknown {
                Err(error) => log::error!(
                    reason:% = error, hint = "a pod of mpsgated needs hostPID: true and privileged: true";
                    "the node's runtime cannot be looked up"
                ),
                _ => log::error!(
                    runtime:% = runtime.display(), hint = "install it, or set runtime.path in /etc/mpsgate/config.toml";
                    "the real runtime is not installed"
                ),
            }
            // Without it the shim looks for itself, so an old one must not stay.
            let _ = std::fs::remove_file(link);
            return;
        }
    };
    if std::fs::read_link(link).is_ok_and(|now| now == target) {
        return;
    }
    let temporary = link.with_file_name(".runtime.new");
    let _ = std::fs::remove_file(&temporary);
    let linked = symlink(&target, &temporary).and_then(|()| {
        crash_point!("daemon.link.made");
        std::fs::rename(&temporary, link)
    });
    match linked {
        Ok(()) => {
            crash_point!("daemon.link.renamed");
            log::info!(runtime:% = target.display(); "runtime linked");
        }
        Err(error) => log::error!(path:% = link.display(), reason:% = error; "runtime not linked"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swarm_resources_are_read_from_any_form_of_the_line_and_from_no_comment() {
        for (text, names) in [
            ("swarm-resource = \"DOCKER_RESOURCE_GPU\"\n", &["DOCKER_RESOURCE_GPU"][..]),
            ("  swarm-resource='A, B' # two\n", &["A", "B"]),
            ("#swarm-resource = \"A\"\n", &[]),
            ("swarm-resource = \"\"\n", &[]),
            ("swarm-resource = A\n", &[]),
            ("swarm-resource = \"A\n", &[]),
            ("swarm-resources = \"A\"\n[nvidia-container-cli]\n", &[]),
        ] {
            assert_eq!(parse_swarm_resources(text), names, "{text}");
        }
    }

    #[test]
    fn annotation_prefixes_are_read_from_any_form_of_the_list_and_from_no_comment() {
        for (text, prefixes) in [
            (
                "[nvidia-container-runtime.modes.cdi]\nannotation-prefixes = [\"cdi.k8s.io/\"]\n",
                &["cdi.k8s.io/"][..],
            ),
            ("annotation-prefixes=['a/', \"b.example/\",] # two", &["a/", "b.example/"]),
            (
                "annotation-prefixes = [\n  # not \"x/\"\n  \"a/\",\n  'b/' ]\nkey = \"c\"\n",
                &["a/", "b/"],
            ),
            (
                "nvidia-container-runtime.modes.cdi.annotation-prefixes = [\"cdi.k8s.io/\", \"example.vendor.com/\",]",
                &["cdi.k8s.io/", "example.vendor.com/"],
            ),
            ("\"annotation-prefixes\" = [\"a/\", \"a/\"]\n", &["a/"]),
            ("#annotation-prefixes = [\"a/\"]\n", &[]),
            ("annotation-prefixes = []\nx = [\"a/\"]\n", &[]),
            ("annotation-prefixes = [\"\"]\n", &[]),
            ("annotation-prefixes = \"a/\"\n", &[]),
            ("annotation-prefixes = [\"a/\n", &[]),
            ("my-annotation-prefixes = [\"a/\"]\n", &[]),
        ] {
            assert_eq!(parse_annotation_prefixes(text), prefixes, "{text}");
        }
    }
}
