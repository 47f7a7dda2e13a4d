//! NVIDIA's container toolkit beside us: for every sort of row that the table tests of its 1.20
//! have (images, devices, mounts, channels, annotations: `internal/config/image`, and the hook's
//! configuration), what it would give a container, and what we make of the same container in front
//! of it. Whatever it injects, we see.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]

use mpsgate_config::{Policy, Unallocated};
use mpsgate_model::{Code, GpuUuid, NodeCard};
use mpsgate_oci::spec::{Edit, View, glance};
use mpsgate_policy::{
    Action, Caller, Cards, Decision, Input, Ipc, Majors, Node, Shm, Users, Verdict, decide,
    may_matter,
};
use serde_json::{Value, json};

/// The managed card by its UUID.
const CARD: &str = "GPU-00000000-1111-2222-3333-444444444444";
/// The card that everybody may have.
const OTHER: &str = "GPU-00000001-1111-2222-3333-444444444444";
const LIST: &str = "/var/run/nvidia-container-devices";

/// Settings of the toolkit that say where it looks. All that would make it look at less is left
/// out: we do not count on it.
#[derive(Debug, Clone, Copy, Default)]
struct Toolkit {
    swarm: &'static [&'static str],
    prefixes: &'static [&'static str],
}

const PLAIN: Toolkit = Toolkit { swarm: &[], prefixes: &[] };

/// What becomes of a container that the toolkit would look at next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ours {
    /// The toolkit gives it nothing that is managed: it starts as it is.
    Untouched,
    /// The toolkit would give it a managed card.
    Refused(Code),
    /// The toolkit would give it every card because it says nothing: it starts, and gets none.
    Voided,
}
use Ours::{Refused, Untouched, Voided};

fn node(toolkit: Toolkit) -> Node {
    let card = |index: u32, uuid: &str, managed| NodeCard {
        uuid: GpuUuid::parse(uuid).unwrap(),
        index,
        minor: index,
        managed,
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Node {
        cards: Cards::Known(vec![card(0, CARD, true), card(1, OTHER, false)]),
        majors: Majors::default(),
        ipc_inode: Some(1),
        shm: Some((1, 2)),
        swarm_resources: names(toolkit.swarm),
        annotation_prefixes: names(toolkit.prefixes),
        ..Node::unknown()
    }
}

fn decided(spec: &Value, toolkit: Toolkit, policy: &Policy) -> Decision {
    decide(&Input {
        view: View::new(spec),
        node: &node(toolkit),
        policy,
        requests_from_env: true,
        mounts: &[],
        ipc: Ipc::Inode(1),
        shm: Shm::Servers,
        users: Users::OfSpec,
        pids: mpsgate_policy::Pids::Own,
        unruled: mpsgate_policy::Unruled::Closed,
        caller: Caller::Local,
        action: Action::Create,
        runtime_is_nvidia: true,
    })
}

fn ours(spec: &Value, toolkit: Toolkit) -> Ours {
    match decided(spec, toolkit, &Policy::default()).verdict {
        Verdict::Pass => Untouched,
        Verdict::Refuse(refusal) => Refused(refusal.code),
        Verdict::Edit(edits) => {
            let void = Edit::Env {
                drop: Vec::new(),
                set: vec![("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())],
            };
            assert_eq!(edits, [void], "{spec}");
            Voided
        }
        Verdict::Reserve(_) => panic!("nobody asked: {spec}"),
    }
}

/// One row: what stands in the document, and what becomes of it; also privileged, which is where
/// the toolkit trusts variables in any case, and under "strip", after which nothing of it is left.
fn row(what: &str, toolkit: Toolkit, spec: &Value, expected: Ours) {
    assert_eq!(ours(spec, toolkit), expected, "{what}: {spec}");
    let mut privileged = spec.clone();
    privileged["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]);
    assert_eq!(ours(&privileged, toolkit), expected, "{what}, with CAP_SYS_ADMIN: {spec}");
    let mut matters = false;
    glance(&mut spec.to_string().as_bytes(), &mut |seen| matters |= may_matter(&seen)).unwrap();
    // A name that the operator chose is known by the node alone.
    let chosen = toolkit.swarm.iter().any(|name| !name.starts_with("DOCKER_RESOURCE_"))
        || !toolkit.prefixes.is_empty();
    assert!(matters || expected == Untouched || chosen, "{what}: not seen at a glance: {spec}");
    let strip = Policy { unallocated: Unallocated::Strip, ..Policy::default() };
    if let Verdict::Edit(edits) = decided(spec, toolkit, &strip).verdict {
        let mut stripped = spec.clone();
        mpsgate_oci::spec::apply(&mut stripped, &edits).unwrap();
        assert_eq!(ours(&stripped, toolkit), Untouched, "{what}, stripped: {stripped}");
    }
}

fn env(entries: &[&str]) -> Value {
    json!({ "process": { "env": entries } })
}

fn by_variables(toolkit: Toolkit, rows: &[(&str, &[&str], Ours)]) {
    for (what, entries, expected) in rows {
        row(what, toolkit, &env(entries), *expected);
    }
}

fn list(mounts: &[(&str, &str)]) -> Value {
    let mounts = mounts.iter().map(|(source, destination)| {
        json!({ "source": source, "destination": destination, "options": ["bind"] })
    });
    json!({ "mounts": mounts.collect::<Vec<_>>() })
}

#[test]
fn an_image_is_legacy_by_a_version_and_no_requirement_whatever_else_it_requires() {
    // Of a version only that there is one: an unreadable one is the legacy hook's error, and no
    // other mode's.
    for version in [
        "0",
        "8",
        "7.5",
        "9.0.116",
        "4294967295.4294967295.4294967295",
        "v11.6",
        "foo",
        "foo.5.10",
        "9.0.116.50",
        "9.0.116foo",
        "7.foo",
        "9.0.bar",
        "9.4294967296",
        "9.0.116.",
        "9..0",
        "9.",
        ".5.10",
        "-9",
        "+9",
        "-9.1.116",
        "-9.-1.-116",
        "legacy",
        " ",
    ] {
        row("a version", PLAIN, &env(&[&format!("CUDA_VERSION={version}")]), Voided);
    }
    by_variables(
        PLAIN,
        &[
            ("nothing", &[], Untouched),
            ("an empty version", &["CUDA_VERSION="], Untouched),
            ("Jetpack's requirement", &["NVIDIA_REQUIRE_JETPACK=csv-mounts=all"], Untouched),
            ("Jetpack's mounts", &["NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS=base-only"], Untouched),
            ("a requirement", &["NVIDIA_REQUIRE_CUDA=cuda>=11.6"], Untouched),
            (
                "two requirements",
                &["NVIDIA_REQUIRE_CUDA=cuda>=11.6", "NVIDIA_REQUIRE_BRAND=brand=tesla"],
                Untouched,
            ),
            ("a modern image", &["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"], Untouched),
            (
                "another requirement",
                &["CUDA_VERSION=11.6", "NVIDIA_REQUIRE_BRAND=brand=tesla"],
                Voided,
            ),
            (
                "requirements switched off",
                &["NVIDIA_REQUIRE_CUDA=cuda>=11.6", "NVIDIA_DISABLE_REQUIRE=true"],
                Untouched,
            ),
            (
                "requirements of a legacy image switched off",
                &[
                    "CUDA_VERSION=11.6",
                    "NVIDIA_REQUIRE_BRAND=brand=tesla",
                    "NVIDIA_DISABLE_REQUIRE=true",
                ],
                Voided,
            ),
            ("an empty requirement", &["CUDA_VERSION=12.2", "NVIDIA_REQUIRE_CUDA="], Voided),
            (
                "an empty requirement after another",
                &["CUDA_VERSION=12.2", "NVIDIA_REQUIRE_CUDA=cuda>=9", "NVIDIA_REQUIRE_CUDA="],
                Voided,
            ),
            (
                "a requirement after an empty one",
                &["CUDA_VERSION=12.2", "NVIDIA_REQUIRE_CUDA=", "NVIDIA_REQUIRE_CUDA=cuda>=9"],
                Untouched,
            ),
            ("a version that is emptied", &["CUDA_VERSION=12.2", "CUDA_VERSION="], Untouched),
        ],
    );
}

#[test]
fn devices_are_named_by_a_variable_as_the_toolkit_reads_it() {
    for (kind, image) in [
        ("without an image's variables", &[][..]),
        ("in a legacy image", &["CUDA_VERSION=9.0"]),
        (
            "in a legacy image by an empty requirement",
            &["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA="],
        ),
        ("in a modern image", &["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"]),
    ] {
        for (value, expected) in [
            ("all", Refused(Code::VisibleDevices)),
            (CARD, Refused(Code::VisibleDevices)),
            ("0", Refused(Code::VisibleDevices)),
            ("1,0", Refused(Code::VisibleDevices)),
            (" 0 ", Refused(Code::VisibleDevices)),
            ("gpu0,gpu1", Refused(Code::VisibleDevices)),
            ("GPU-12345", Refused(Code::VisibleDevices)),
            ("MIG-12345", Refused(Code::VisibleDevices)),
            ("all,none", Refused(Code::VisibleDevices)),
            ("nvidia.com/gpu=all", Refused(Code::VisibleDevices)),
            ("none,all", Untouched),
            ("0,none", Untouched),
            (OTHER, Untouched),
            ("1", Untouched),
            ("", Untouched),
            (",", Untouched),
            ("void", Untouched),
            ("none", Untouched),
            ("all,void", Untouched),
        ] {
            let mut entries = image.to_vec();
            let variable = format!("NVIDIA_VISIBLE_DEVICES={value}");
            entries.push(&variable);
            row(kind, PLAIN, &env(&entries), expected);
        }
    }
    by_variables(
        PLAIN,
        &[
            (
                "beside a mount of its own",
                &["NVIDIA_VISIBLE_DEVICES=all", "OTHER=value"],
                Refused(Code::VisibleDevices),
            ),
            (
                "the last counts",
                &["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"],
                Untouched,
            ),
            (
                "capabilities say nothing of cards",
                &["NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=all"],
                Untouched,
            ),
        ],
    );
}

#[test]
fn a_swarm_resource_goes_before_the_variable() {
    let enabled =
        Toolkit { swarm: &["DOCKER_RESOURCE_GPUS", "DOCKER_RESOURCE_GPUS_ADDITIONAL"], ..PLAIN };
    let custom =
        Toolkit { swarm: &["NOT_DOCKER_SWARM_RESOURCE", "DOCKER_SWARM_RESOURCE"], ..PLAIN };
    let swarm = Refused(Code::SwarmResource);
    // Where the toolkit is not told to look, it does not; Docker's own names are a signal all the
    // same.
    for toolkit in [PLAIN, enabled] {
        by_variables(
            toolkit,
            &[
                ("alone", &["DOCKER_RESOURCE_GPUS=GPU-67890"], swarm),
                (
                    "beside an empty variable",
                    &["DOCKER_RESOURCE_GPUS=0", "NVIDIA_VISIBLE_DEVICES="],
                    swarm,
                ),
                ("beside void", &["DOCKER_RESOURCE_GPUS=0", "NVIDIA_VISIBLE_DEVICES=void"], swarm),
                ("beside none", &["DOCKER_RESOURCE_GPUS=0", "NVIDIA_VISIBLE_DEVICES=none"], swarm),
                ("in a legacy image", &["DOCKER_RESOURCE_GPUS=0", "CUDA_VERSION=legacy"], swarm),
                (
                    "the other name",
                    &["NVIDIA_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_GPUS_ADDITIONAL=0"],
                    swarm,
                ),
                (
                    "both names",
                    &["DOCKER_RESOURCE_GPUS=1", "DOCKER_RESOURCE_GPUS_ADDITIONAL=0"],
                    swarm,
                ),
                ("blank", &["DOCKER_RESOURCE_GPUS="], Untouched),
                ("void", &["DOCKER_RESOURCE_GPUS=void"], Untouched),
                ("none", &["DOCKER_RESOURCE_GPUS=none"], Untouched),
                ("the unmanaged card", &["DOCKER_RESOURCE_GPUS=1"], Untouched),
            ],
        );
    }
    by_variables(
        custom,
        &[
            ("a name of one's own", &["DOCKER_SWARM_RESOURCE=GPU1,GPU2"], swarm),
            (
                "before the variable",
                &["DOCKER_SWARM_RESOURCE=0", "NVIDIA_VISIBLE_DEVICES=1"],
                swarm,
            ),
            ("with the unmanaged card", &["DOCKER_SWARM_RESOURCE=1"], Untouched),
        ],
    );
    by_variables(PLAIN, &[("nobody's name", &["DOCKER_SWARM_RESOURCE=0"], Untouched)]);
}

#[test]
fn devices_are_named_by_mounts_as_the_toolkit_cleans_them() {
    let device = Refused(Code::VolumeDevices);
    for (name, expected) in [
        ("GPU0", device),
        ("0", device),
        ("all", device),
        (CARD, device),
        ("GPU0-MIG0/0/1", device),
        ("nvidia.com/gpu=all", device),
        ("cdi/nvidia.com/gpu/0", device),
        ("cdi/nvidia.com/gpu=0", device),
        ("cdi/runtime.nvidia.com/gpu/all", device),
        // One name to the toolkit; its legacy hook hands on a list.
        ("0,1", device),
        ("all,x/none", device),
        ("imex/0", Refused(Code::ImexChannel)),
        ("1", Untouched),
        (OTHER, Untouched),
        ("cdi/nvidia.com/gpu/1", Untouched),
        ("void", Untouched),
        ("none", Untouched),
        ("", Untouched),
    ] {
        for place in [
            format!("{LIST}/{name}"),
            format!("{LIST}//{name}/"),
            format!("/var//run/./nvidia-container-devices/{name}"),
            format!("/var/run//nvidia-container-devices/{name}"),
            format!("/tmp/../var/run/nvidia-container-devices/x/../{name}/."),
            format!("//var/run/nvidia-container-devices/{name}"),
        ] {
            for source in ["/dev/null", "/dev//null", "/tmp/../dev/./null"] {
                row("a mount", PLAIN, &list(&[(source, &place)]), expected);
            }
        }
    }
    for (what, mounts, expected) in [
        ("another prefix", &[("/dev/null", "/other/prefix/GPU0")][..], Untouched),
        (
            "cleaned away from the list",
            &[("/dev/null", "/var/run/nvidia-container-devices/../0")],
            Untouched,
        ),
        (
            "the root of the list alone",
            &[("/dev/null", "/var/run/nvidia-container-devices/.")],
            Untouched,
        ),
        (
            "the toolkit compares text",
            &[("/dev/null", "/var/run/nvidia-container-devices-0/x")],
            device,
        ),
        (
            "two, of which one is managed",
            &[
                ("/dev/null", "/var/run/nvidia-container-devices/1"),
                ("/dev/null", "/var/run//nvidia-container-devices/0"),
            ],
            device,
        ),
        // A directory for such lists, from elsewhere: stricter than the toolkit, which wants
        // /dev/null.
        ("another source", &[("/not/dev/null", "/var/run/nvidia-container-devices/GPU0")], device),
    ] {
        row(what, PLAIN, &list(mounts), expected);
    }
    // Mounts go before variables, whatever those say.
    let mut both = list(&[("/dev/null", "/var/run//nvidia-container-devices/GPU0")]);
    both["process"] = json!({ "env": ["NVIDIA_VISIBLE_DEVICES=void"] });
    row("beside void", PLAIN, &both, device);
    both["process"] = json!({ "env": ["NVIDIA_VISIBLE_DEVICES=1"] });
    row("beside the unmanaged card", PLAIN, &both, device);
}

#[test]
fn channels_and_mig_are_named_by_variables() {
    for image in [&[][..], &["NVIDIA_VISIBLE_DEVICES=1"]] {
        for (value, expected) in [
            ("NVIDIA_IMEX_CHANNELS=3,4", Refused(Code::ImexChannel)),
            // The toolkit gives no channel for `all`; stricter.
            ("NVIDIA_IMEX_CHANNELS=all", Refused(Code::ImexChannel)),
            ("NVIDIA_IMEX_CHANNELS=", Untouched),
            ("NVIDIA_IMEX_CHANNELS=3,void", Untouched),
            ("NVIDIA_MIG_CONFIG_DEVICES=mig0,mig1", Refused(Code::MigCaps)),
            ("NVIDIA_MIG_CONFIG_DEVICES=all,void", Refused(Code::MigCaps)),
            ("NVIDIA_MIG_MONITOR_DEVICES=mig0,mig1", Refused(Code::MigCaps)),
            ("NVIDIA_MIG_MONITOR_DEVICES=all", Refused(Code::MigCaps)),
            ("NVIDIA_MIG_MONITOR_DEVICES=", Untouched),
            ("NVIDIA_MIG_CONFIG_DEVICES=void", Untouched),
        ] {
            let mut entries = image.to_vec();
            entries.push(value);
            row("a variable", PLAIN, &env(&entries), expected);
        }
    }
    by_variables(
        PLAIN,
        &[
            (
                "a channel in a legacy image",
                &["CUDA_VERSION=1.2.3", "NVIDIA_IMEX_CHANNELS=3"],
                Refused(Code::ImexChannel),
            ),
            ("no channel in a legacy image", &["CUDA_VERSION=1.2.3"], Voided),
        ],
    );
}

#[test]
fn devices_are_named_by_annotations_of_every_prefix_that_the_toolkit_reads() {
    let toolkit = Toolkit { prefixes: &["prefix/", "another-prefix/"], ..PLAIN };
    let of = |pairs: &[(&str, &str)]| {
        let all: serde_json::Map<String, Value> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({ "annotations": all })
    };
    let cdi = Refused(Code::CdiAnnotation);
    for (what, pairs, expected) in [
        ("none", &[][..], Untouched),
        ("none that matches", &[("other/foo", "nvidia.com/gpu=0")], Untouched),
        ("one", &[("prefix/foo", "nvidia.com/gpu=0")], cdi),
        ("one of the unmanaged card", &[("prefix/foo", "nvidia.com/gpu=1")], Untouched),
        ("one of another vendor", &[("prefix/foo", "example.com/device=bar")], Untouched),
        ("one that is no name of a device", &[("prefix/foo", "example.com/device")], Untouched),
        (
            "two prefixes",
            &[
                ("prefix/foo", "example.com/device=bar"),
                ("another-prefix/bar", "nvidia.com/gpu=all"),
            ],
            cdi,
        ),
        (
            "one device by two prefixes",
            &[("prefix/foo", "nvidia.com/gpu=0"), ("another-prefix/bar", "nvidia.com/gpu=0")],
            cdi,
        ),
        ("a name of the default kind", &[("prefix/foo", "0")], cdi),
        ("every device of the default kind", &[("prefix/foo", "all")], cdi),
        ("a UUID of the default kind", &[("prefix/foo", CARD)], cdi),
        ("a name by type and index", &[("prefix/foo", "gpu0")], cdi),
        ("the unmanaged card of the default kind", &[("prefix/foo", "1")], Untouched),
        ("text that names no card", &[("prefix/foo", "a sentence, and another")], Untouched),
        (
            "the engines' prefix, with the default kind",
            &[("cdi.k8s.io/foo", "vendor.com/net=a,0")],
            cdi,
        ),
        ("the engines' prefix", &[("cdi.k8s.io/foo", "vendor.com/net=a")], Untouched),
    ] {
        row(what, toolkit, &of(pairs), expected);
    }
    row(
        "a prefix that it does not read",
        PLAIN,
        &of(&[("prefix/foo", "nvidia.com/gpu=0")]),
        Untouched,
    );
}
