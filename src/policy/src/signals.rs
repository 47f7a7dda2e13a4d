//! Signals: everything in a spec that could reach a GPU without a grant.
//!
//! [`may_matter`] is the cheap question of the pass-through path: it needs neither node nor
//! configuration and errs on the side of yes. [`find`] names each signal that reaches a managed
//! card, with the edits that would take it away.

use std::collections::HashSet;

use mpsgate_model::{Code, is_claim_env, is_request_annotation, is_request_env, printable};
use mpsgate_oci::spec::{Edit, Seen, Shows, View};

use crate::found::{Signal, Signals};
use crate::input::{Input, MountFact, MountKind};
use crate::node_facts::{NVIDIA_MAJOR, Node};
use crate::path::inside;
use crate::reach::is_privileged;
use crate::{Unruled, container_uid, mount_rules, notes, reach, toolkit};

/// The kernel hands out dynamic character majors from 234 up.
const FIRST_DYNAMIC_MAJOR: u32 = 234;
/// `/dev/dri`.
const DRM_MAJOR: u32 = 226;
/// Drivers without a major of their own share this one; WSL's `/dev/dxg` has a dynamic minor.
const MISC_MAJOR: u32 = 10;
/// Whether a part of a spec is anything that mpsgate must look at. Of mounts only the forms that
/// need no file system; [`MountFact`]s are the caller's.
#[must_use]
pub fn may_matter(seen: &Seen<'_>) -> bool {
    match seen {
        Seen::Annotation(name) => {
            is_request_annotation(name) || toolkit::may_read_annotation(name) || opens_files(name)
        }
        Seen::Variable(name) => {
            toolkit::may_read_variable(name)
                || name.starts_with("CUDA_MPS_")
                || is_request_env(name)
                || is_claim_env(name)
        }
        Seen::Device(d) => {
            d.is_character()
                && (d.major == NVIDIA_MAJOR
                    || d.major >= FIRST_DYNAMIC_MAJOR
                    || d.major == DRM_MAJOR
                    || (d.major == MISC_MAJOR && is_dynamic_misc(d.minor))
                    || notes::is_memory(d)
                    || d.path.starts_with("/dev/nvidia"))
        }
        Seen::Rule(r) => {
            r.allow
                && (r.covers(NVIDIA_MAJOR, None)
                    || r.major.is_some_and(|m| {
                        let of_misc = m == MISC_MAJOR && r.minor.is_none_or(is_dynamic_misc);
                        (m >= FIRST_DYNAMIC_MAJOR || m == DRM_MAJOR || of_misc) && r.covers(m, None)
                    }))
        }
        Seen::Mount(m) => {
            toolkit::may_read_mount(m.destination)
                || m.shows == Shows::Unknown
                || (m.is_bind() && notes::reaches_engine(m.source))
        }
        Seen::Unclear => true,
        // What it leads to, the caller says; the last stops nobody who asks for nothing.
        Seen::OtherRules | Seen::Layer { .. } | Seen::Root(_) | Seen::OpenProcSys => false,
    }
}

/// The kernel counts dynamic minors down from 63, newer ones from 127, and where these are used up
/// from 256 up (`DYNAMIC_MINORS` of `drivers/char/misc.c`).
fn is_dynamic_misc(minor: u32) -> bool {
    !(128..256).contains(&minor)
}

/// Every signal that reaches a managed card, in the order in which they are reported. What a
/// privileged container shows on account of being privileged is left out.
#[must_use]
pub(crate) fn find(
    view: View<'_>,
    node: &Node,
    mounts: &[MountFact],
    runtime_is_nvidia: bool,
    unruled: Unruled,
) -> Vec<Signal> {
    if node.manages_nothing() {
        return Vec::new();
    }
    let mut signals = Signals::default();
    toolkit::find(view, node, runtime_is_nvidia, &mut signals);
    annotations(view, node, &mut signals);
    if !is_privileged(view) {
        devices(view, node, &mut signals);
        rules(view, node, unruled, &mut signals);
    }
    for mount in mounts.iter().filter(|m| m.kind == MountKind::Ours) {
        let tell = || mount_rules::mounts_ours(&mount.source);
        // A bundle that is created again still holds the mount of its last grant.
        let again = inside(&mount.destination) == crate::CLIENT_DIRECTORY;
        let remove = Edit::RemoveMount { destination: mount.destination.clone() };
        signals.add(Code::MpsMount, tell, again.then(|| vec![remove]));
    }
    signals.into_vec()
}

/// A container without a device cgroup (crun's `--cgroup-manager=disabled`) opens whatever node it
/// comes to. It has one with a grant, and without where the spec brings one in or it can make one.
pub(crate) fn without_cgroup(input: &Input<'_>, asks: bool) -> Option<Signal> {
    let (view, node) = (input.view, input.node);
    if input.unruled != Unruled::NoCgroup
        || node.manages_nothing()
        || (!asks && is_privileged(view))
    {
        return None;
    }
    // In a user namespace in which nobody is the host's root, neither makes a node that opens.
    let may_be_root = container_uid::may_be_root(view, &input.users);
    let by_capability =
        ["CAP_MKNOD", "CAP_SYS_ADMIN"].into_iter().find(|name| may_be_root && view.may_gain(name));
    let mount = input.mounts.iter().find(|mount| mount.kind == MountKind::Card);
    let unknown = mount_rules::unknown(view).next();
    let device = view.devices().find(|device| reach::managed(node, device).is_some());
    let how = match (mount, device, by_capability) {
        (Some(mount), ..) => {
            format!(
                "it mounts {}, a GPU's node, or what holds one or has too much in it to be looked through",
                printable::value(&mount.source)
            )
        }
        (_, Some(device), _) => format!("it has the device {}", printable::value(device.path)),
        _ if unknown.is_some() => {
            format!("it {}", unknown.as_ref().map(mount_rules::not_looked_into).unwrap_or_default())
        }
        (_, _, Some(name)) => format!("it may use {name} to make the node of a GPU"),
        _ if asks => "it asks for GPU memory".to_owned(),
        _ => return None,
    };
    let found = format!("{how}, and no device cgroup keeps GPUs shut (--cgroups=disabled)");
    Some(Signal::fixed(Code::DeviceRule, found))
}

/// crun's annotation by which the container's init is put into a child of the cgroup that is its
/// own to write: a grant would be counted in the child, and the container can leave that.
pub(crate) fn delegated(view: View<'_>) -> Option<Signal> {
    const NAME: &str = "run.oci.delegate-cgroup";
    let found = || {
        format!(
            "it asks for GPU memory, and the annotation {NAME} lets it leave the cgroup in which its grant is counted"
        )
    };
    // crun takes an empty one for none.
    let names_one = view.annotation(NAME).filter(|cgroup| !cgroup.is_empty());
    names_one.map(|_| Signal::fixed(Code::Annotation, found()))
}

fn annotations(view: View<'_>, node: &Node, signals: &mut Signals) {
    for (name, value) in view.annotations() {
        if opens_files(name) {
            let tell = || format!("the annotation {name} makes the runtime open devices or files");
            let remove = Edit::RemoveAnnotation { name: name.to_owned() };
            signals.add(Code::Annotation, tell, Some(vec![remove]));
        } else {
            toolkit::cdi_annotation(name, value, node, signals);
        }
    }
}

/// Annotations by which runc and crun open devices, host files, or another bundle. Those that
/// engines set themselves (`org.systemd.property.TimeoutStopUSec`, `run.oci.systemd.subgroup`)
/// are not among them.
fn opens_files(name: &str) -> bool {
    matches!(
        name,
        "bundle"
            | "org.criu.config"
            | "run.oci.hooks.stdout"
            | "run.oci.hooks.stderr"
            | "org.systemd.property.DeviceAllow"
            | "org.systemd.property.DevicePolicy"
    )
}

fn devices(view: View<'_>, node: &Node, signals: &mut Signals) {
    /// Minors have 20 bits.
    const EVERY: u32 = u32::MAX;
    // What rules name by themselves: of anything else none can be taken away for one device.
    let rules: HashSet<(u32, u32)> = view
        .device_rules()
        .filter(|rule| rule.allow)
        .filter_map(|rule| Some((rule.major?, rule.minor.unwrap_or(EVERY))))
        .collect();
    let mut removed = HashSet::new();
    for device in view.devices() {
        let Some((code, what)) = reach::managed(node, &device) else { continue };
        let (major, minor) = (device.major, device.minor);
        let mut remove = Vec::new();
        if removed.insert((major, minor)) {
            remove.push(Edit::RemoveDevice { major, minor });
            if rules.contains(&(major, EVERY)) || rules.contains(&(major, minor)) {
                remove.push(Edit::RemoveRules { major, minor: Some(minor) });
            }
        }
        let path = printable::value(device.path);
        let tell = || format!("the device {path} ({major}:{minor}) is {what}");
        signals.add(code, tell, Some(remove));
    }
}

fn rules(view: View<'_>, node: &Node, unruled: Unruled, signals: &mut Signals) {
    // Nothing in the spec opens or closes anything: `decide` evaluates it by what else there is.
    if unruled == Unruled::NoCgroup {
        return;
    }
    let mut opened = reach::opened(view, node, unruled, &[]);
    if opened.is_empty() {
        return;
    }
    let except = node.closed_majors();
    let mut remove = Vec::new();
    let unruled = unruled.is_open(view) && !view.device_rules().any(|rule| rule.denies_all());
    if unruled {
        remove.push(Edit::OpenAllBut { except: except.clone() });
    }
    let all = view.device_rules().any(|rule| rule.opens_every_major());
    if all {
        remove.push(Edit::CloseAllowAll { except: except.clone() });
    }
    let found = if all {
        "a device-cgroup rule opens every device, GPUs too"
    } else if unruled {
        "no device-cgroup rule closes what the runtime leaves open, GPUs too"
    } else {
        "a device-cgroup rule opens a managed GPU"
    };
    if all || unruled {
        opened = except.iter().map(|major| (*major, None)).collect();
    }
    remove.extend(opened.into_iter().map(|(major, minor)| Edit::RemoveRules { major, minor }));
    signals.add(Code::DeviceRule, || found.to_owned(), Some(remove));
}

#[cfg(test)]
mod tests {
    use mpsgate_model::DeviceNode;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Node 1 of the fixture's cards is managed; each other driver has a node of it.
    fn with_other_drivers() -> Node {
        let other = |path: &str, major, minor| DeviceNode { path: path.to_owned(), major, minor };
        let other_nodes = vec![
            other("/dev/dri/renderD128", 226, 128),
            other("/dev/vfio/12", 243, 0),
            other("/dev/dxg", 10, 125),
        ];
        Node { other_nodes, ..crate::node_facts::tests::node(&[false, true]) }
    }

    fn matters(spec: &Value) -> bool {
        let view = View::new(spec);
        let mut seen = view.annotations().map(|(name, _)| Seen::Annotation(name)).chain(
            view.env().map(|(name, _)| Seen::Variable(name)).chain(
                view.devices().map(Seen::Device).chain(
                    view.device_rules().map(Seen::Rule).chain(view.mounts().map(Seen::Mount)),
                ),
            ),
        );
        seen.any(|seen| may_matter(&seen))
    }

    #[test]
    fn a_rule_for_drivers_without_a_major_is_looked_at_and_engines_own_are_not() {
        for (rule, expected) in [
            (json!({"major": 10}), true),
            (json!({"major": 10, "minor": -1}), true),
            (json!({"major": 10, "minor": 125}), true),
            (json!({"major": 10, "minor": 63}), true),
            (json!({"major": 10, "minor": 300}), true),
            // /dev/net/tun, which Docker and Podman open to every container; /dev/fuse, /dev/kvm.
            (json!({"major": 10, "minor": 200}), false),
            (json!({"major": 10, "minor": 229}), false),
            (json!({"major": 10, "minor": 232}), false),
            (json!({"major": 10, "access": "m"}), false),
            (json!({"major": 10, "allow": false}), false),
            (json!({"major": 1, "minor": 3}), false),
        ] {
            let mut whole = json!({"allow": true, "type": "c", "access": "rwm"});
            whole.as_object_mut().into_iter().zip(rule.as_object()).for_each(|(whole, rule)| {
                whole.extend(rule.clone());
            });
            let spec = json!({"linux": {"resources": {"devices": [whole]}}});
            assert_eq!(matters(&spec), expected, "{rule}");
        }
    }

    proptest! {
        /// Else a container would pass unseen that is refused as soon as something else in it is
        /// looked at.
        #[test]
        fn what_is_a_signal_is_looked_at(
            is_rule in any::<bool>(),
            kind in prop::sample::select(vec!["c", "a", "", "b", "u"]),
            major in prop::sample::select(vec![-1i64, 1, 4, 10, 195, 226, 236, 243, 507]),
            minor in prop::sample::select(vec![-1i64, 0, 1, 4, 5, 63, 64, 125, 128, 200, 255, 256]),
            access in prop::sample::select(vec!["rwm", "r", "w", "m", "rm", ""]),
            path in prop::sample::select(vec!["/dev/x", "/dev/nvidia1"]),
        ) {
            let entry = json!({"path": path, "allow": true, "type": kind, "major": major, "minor": minor, "access": access});
            let spec = match is_rule {
                true => json!({"linux": {"resources": {"devices": [entry]}}}),
                false => json!({"linux": {"devices": [entry]}}),
            };
            let found = find(View::new(&spec), &with_other_drivers(), &[], false, Unruled::Closed);
            prop_assert!(found.is_empty() || matters(&spec), "{:?}", found);
        }
    }
}
