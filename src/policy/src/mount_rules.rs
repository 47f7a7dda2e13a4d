//! What mounts open besides our own directories: the cgroups of the whole node, paths that somebody
//! can exchange between our look and the runtime's mount, and file systems that are not looked
//! into.
//!
//! ```text
//!                    writable cgroups of the node        a path that others may exchange
//!  with a request    E_CGROUP                            our hook looks again, as it is there anyway
//!  without           noted; refused under "close"        our hook is added, to look again
//!
//!                    a file system that is not looked    a directory that holds our own
//!                    into
//!  with a request    E_MPS_MOUNT                         E_MPS_MOUNT
//!  without           noted; E_DEVICE_RULE where no       noted
//!                    device cgroup keeps GPUs shut
//!
//!                    a managed card's files in sysfs
//!  with a request    E_DEVICE_NODE
//!  without           noted; a writable one refused under "close"
//! ```
//! A container with CAP_SYS_ADMIN is not refused without a request: it mounts them by itself, and
//! node agents have it.

use std::path::{Path, PathBuf};

use mpsgate_config::{Privileged, Unallocated, paths};
use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::spec::{Edit, HookStage, MountEntry, Shows, View};

use crate::found::{Few, Findings, Note};
use crate::grant_edits::{HOOK_ENV, HOOK_TIMEOUT_S};
use crate::input::{Action, Input, MountFact, MountKind, Reach};
use crate::path::clean;

/// Argument of our hook where it shall look at mounts alone.
pub const HOOK_MOUNTS: &str = "--mounts";

/// A request with the cgroups of the node in reach, or with what may hold anything of the node's.
pub(crate) fn refuses_request(input: &Input<'_>) -> Option<Refusal> {
    if let Some((mount, reach)) = cgroups(input.mounts).next() {
        let end = ", so that no limit would hold";
        return Some(refusal("it asks for GPU memory and ", mount, reach, end));
    }
    if let Some((mount, _)) = card_files(input.mounts).next() {
        let end = ", so that no limit would hold";
        return Some(card_files_refusal("it asks for GPU memory and ", mount, end));
    }
    if let Some(mount) = input.mounts.iter().find(|mount| mount.kind == MountKind::Ancestor) {
        return Some(holds_ours(&mount.source));
    }
    let mount = unknown(input.view).next()?;
    let found = format!("it asks for GPU memory and {}", not_looked_into(&mount));
    let hint = if mount.open_option().is_some() {
        "take the backslash from the end of the option (before a comma or a colon of a path it belongs), or leave the \
         mount out"
    } else {
        "mount it on the node and bind that directory into the container (docker run -v), or leave the mount out"
    };
    Some(Refusal::new(Code::MpsMount, found, hint))
}

/// What a path of the node is to mpsgate's own directories, by its name alone: one of them
/// ([`MountKind::Ours`]), or a directory above ([`MountKind::Ancestor`]). Every distribution has a
/// link at `/var/run`.
#[must_use]
pub fn touches(path: &str) -> Option<MountKind> {
    let path = clean(path);
    let linked = Path::new(&*path).strip_prefix("/var/run").ok();
    let path = linked.map_or_else(|| PathBuf::from(&*path), |rest| Path::new("/run").join(rest));
    let config = Path::new(paths::CONFIG_FILE).parent();
    let own = [Some(Path::new(paths::RUN_DIR)), Some(Path::new(paths::STATE_DIR)), config];
    let mut own = own.into_iter().flatten();
    if own.clone().any(|own| path.starts_with(own)) {
        Some(MountKind::Ours)
    } else if own.any(|own| own.starts_with(&path)) {
        Some(MountKind::Ancestor)
    } else {
        None
    }
}

/// Whether a directory of a sysfs holds files by which a card is removed, unbound or mapped: those
/// of its bus and of the bus's drivers, or its own. `cards`: their PCI directories.
#[must_use]
pub fn shows_card_files(place: &Path, cards: &[PathBuf]) -> bool {
    let bus = Path::new("/bus/pci");
    let of_card = |card: &PathBuf| card.starts_with(place) || place.starts_with(card);
    bus.starts_with(place) || place.starts_with(bus) || cards.iter().any(of_card)
}

/// A mount of mpsgate's own, as a sentence.
#[must_use]
pub fn mounts_ours(source: &str) -> String {
    format!("it mounts {}, which is mpsgate's own", printable::value(source))
}

/// A request with a mount of a directory above mpsgate's own.
#[must_use]
pub fn holds_ours(source: &str) -> Refusal {
    let found = format!(
        "it asks for GPU memory and mounts {}, which holds mpsgate's directories and their keys",
        printable::value(source)
    );
    let hint = "mount what it needs of that directory (docker run -v /run/dbus:/run/dbus; hostPath: /var/log)";
    Refusal::new(Code::MpsMount, found, hint)
}

/// Mounts that show who knows what.
pub(crate) fn unknown(view: View<'_>) -> impl Iterator<Item = MountEntry<'_>> {
    view.mount_entries().filter(|mount| mount.shows() == Shows::Unknown)
}

/// The end of a sentence about one.
pub(crate) fn not_looked_into(mount: &MountEntry<'_>) -> String {
    let [source, destination, kind] =
        [mount.source, mount.destination, mount.kind].map(printable::value);
    match mount.open_option() {
        Some(option) => format!(
            "mounts {source} at {destination} with an option that ends in a backslash and so takes in the next one: {}",
            printable::value(option)
        ),
        None => format!(
            "mounts {source} at {destination} with the type {kind}, which mpsgate does not look into for its own \
             directories and GPUs' nodes"
        ),
    }
}

/// What is to be said and done about a container that asks for nothing.
///
/// # Errors
/// A refusal, which the settings ask for.
pub(crate) fn without_request(input: &Input<'_>) -> Result<Findings, Refusal> {
    let close =
        input.policy.privileged == Privileged::Close && !input.view.may_gain("CAP_SYS_ADMIN");
    let end = ", past its device rules; policy.privileged = \"close\" refuses that";
    let mut findings = Findings::default();
    let mut told = Few::default();
    for (mount, reach) in cgroups(input.mounts) {
        if close && reach != Reach::BelowReadOnly {
            return Err(refusal("it ", mount, reach, end));
        }
        told.add(|| {
            format!("it {}, past its device rules (SECURITY.md, row 33)", found(mount, reach))
        });
    }
    findings.notes.extend(Note::of_few(Code::Cgroup, &told));
    let mut told = Few::default();
    for (mount, read_only) in card_files(input.mounts) {
        if close && !read_only {
            return Err(card_files_refusal("it ", mount, end));
        }
        told.add(|| {
            format!("it {}, past its device rules (SECURITY.md, row 33a)", with_card_files(mount))
        });
    }
    findings.notes.extend(Note::of_few(Code::DeviceNode, &told));
    let mut told = Few::default();
    for mount in unknown(input.view) {
        told.add(|| format!("it {} (SECURITY.md, row 19)", not_looked_into(&mount)));
    }
    findings.notes.extend(Note::of_few(Code::MpsMount, &told));
    let looks = input.policy.unallocated != Unallocated::Warn
        && input.action == Action::Create
        && input.mounts.iter().any(|mount| mount.kind == MountKind::Exchangeable);
    findings.edits.extend(looks.then(look_again));
    Ok(findings)
}

fn cgroups(mounts: &[MountFact]) -> impl Iterator<Item = (&MountFact, Reach)> {
    mounts.iter().filter_map(|mount| match mount.kind {
        MountKind::Cgroups(reach) => Some((mount, reach)),
        _ => None,
    })
}

fn card_files(mounts: &[MountFact]) -> impl Iterator<Item = (&MountFact, bool)> {
    mounts.iter().filter_map(|mount| match mount.kind {
        MountKind::CardFiles { read_only } => Some((mount, read_only)),
        _ => None,
    })
}

fn with_card_files(mount: &MountFact) -> String {
    let source = printable::value(&mount.source);
    format!("mounts {source}, which holds files of GPUs in sysfs")
}

fn card_files_refusal(begin: &str, mount: &MountFact, end: &str) -> Refusal {
    let hint = "mount what it needs of sysfs (docker run -v /sys/class/net:…, hostPath: /sys/devices/system/node), or \
                leave the mount out: a container has a read-only /sys of its own";
    Refusal::new(Code::DeviceNode, format!("{begin}{}{end}", with_card_files(mount)), hint)
}

fn found(mount: &MountFact, reach: Reach) -> String {
    let source = printable::value(&mount.source);
    match reach {
        Reach::Itself => format!("can write the node's cgroups by its mount of {source}"),
        Reach::Below => format!("can write the node's cgroups below its mount of {source}"),
        Reach::BelowReadOnly => format!(
            "can write the node's cgroups below its mount of {source}, which is read-only without them"
        ),
    }
}

fn refusal(begin: &str, mount: &MountFact, reach: Reach, end: &str) -> Refusal {
    let hint = match reach {
        Reach::Itself => {
            "leave the mount out, or make it read-only with all below (the options bind and ro, or rro); a container of \
             systemd needs a cgroup namespace of its own (docker or podman run --cgroupns=private)"
        }
        Reach::Below | Reach::BelowReadOnly => {
            "mount what it needs of it, or do without the mounts below (docker run --mount \
             type=bind,…,bind-recursive=disabled), or make them read-only too (the option rro)"
        }
    };
    Refusal::new(Code::Cgroup, format!("{begin}{}{end}", found(mount, reach)), hint)
}

/// Whether edits do nothing but have the hook look at what was mounted: a container starts without
/// them, too.
#[must_use]
pub fn only_looks_again(edits: &[Edit]) -> bool {
    edits.iter().all(|edit| *edit == look_again())
}

/// The hook that looks at what was mounted.
fn look_again() -> Edit {
    Edit::AddHook {
        stage: HookStage::CreateRuntime,
        path: paths::HOOK.to_owned(),
        args: ["mpsgate-hook", "createRuntime", HOOK_MOUNTS].map(str::to_owned).to_vec(),
        env: vec![HOOK_ENV.to_owned()],
        timeout_s: Some(HOOK_TIMEOUT_S),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cards_files_are_its_own_those_above_and_the_buss() {
        let cards = [PathBuf::from("/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0")];
        for (place, is) in [
            ("/", true),
            ("/bus", true),
            ("/bus/pci", true),
            ("/bus/pci/drivers/nvidia", true),
            ("/bus/pci/slots", true),
            ("/devices", true),
            ("/devices/pci0000:3a", true),
            ("/devices/pci0000:3a/0000:3a:00.0", true),
            ("/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", true),
            ("/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/drm/card0", true),
            ("/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1", false),
            ("/devices/pci0000:3a/0000:3a:01.0", false),
            ("/devices/pci0000:3a/0000:3a:00.0/0000:3b", false),
            ("/devices/system/node", false),
            ("/bus/usb", false),
            ("/bus/pci_express", false),
            ("/class/net", false),
            ("/fs/bpf", false),
            ("/kernel", false),
        ] {
            assert_eq!(shows_card_files(Path::new(place), &cards), is, "{place}");
        }
        assert!(!shows_card_files(Path::new("/devices"), &[]));
        assert!(shows_card_files(Path::new("/bus/pci/rescan"), &[]));
    }

    #[test]
    fn mpsgates_directories_are_known_by_name_with_what_is_above_them() {
        for (path, kind) in [
            ("/run/mpsgate", Some(MountKind::Ours)),
            ("//run/./mpsgate/mps/", Some(MountKind::Ours)),
            ("/var/run/mpsgate", Some(MountKind::Ours)),
            ("/var/lib/mpsgate/tokens", Some(MountKind::Ours)),
            ("/etc/mpsgate/config.toml", Some(MountKind::Ours)),
            ("/", Some(MountKind::Ancestor)),
            ("/run", Some(MountKind::Ancestor)),
            ("/var/run/", Some(MountKind::Ancestor)),
            ("/var", Some(MountKind::Ancestor)),
            ("/etc", Some(MountKind::Ancestor)),
            ("/run/mpsgate2", None),
            ("/var/running", None),
            ("/run/dbus", None),
            ("/var/log", None),
            ("run/mpsgate", None),
        ] {
            assert_eq!(touches(path), kind, "{path}");
        }
    }
}
