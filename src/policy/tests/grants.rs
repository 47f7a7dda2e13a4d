//! What a grant does to a spec, as golden text; `MPSGATE_BLESS=1` rewrites it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "the golden text is a file")]

use std::fmt::Write;

use mpsgate_config::InjectMode;
use mpsgate_model::{
    Author, Cdi, CdiEdits, CdiHook, CdiMount, Code, ComputeShare, ContainerId, DeviceNode, GpuUuid,
    Grant, GrantKey, GrantedCard, Guarantee, Instance, Mib, Priority, parse_request,
};
use mpsgate_oci::spec::{View, apply};
use mpsgate_policy::{Injector, Wanted, grant_edits};
use mpsgate_testing::golden;
use serde_json::{Value, json};

/// The document with what fits into a line in one.
fn lines(value: &Value, depth: usize) -> String {
    let whole = value.to_string();
    if whole.len() <= 100 {
        return whole;
    }
    let (open, members, close) = match value {
        Value::Array(list) => {
            ('[', list.iter().map(|one| lines(one, depth + 1)).collect::<Vec<_>>(), ']')
        }
        Value::Object(map) => {
            let member = |(key, one)| format!("{key:?}: {}", lines(one, depth + 1));
            ('{', map.iter().map(member).collect(), '}')
        }
        _ => return whole,
    };
    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    format!("{open}\n{inner}{}\n{outer}{close}", members.join(&format!(",\n{inner}")))
}

const HOOK: &str = "/usr/bin/mpsgate-hook";

fn grant(compute: Option<u8>, priority: Priority) -> Grant {
    let device = |path: &str, major, minor| DeviceNode { path: path.to_owned(), major, minor };
    Grant {
        key: GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse("c").unwrap(),
            instance: Instance::from_bytes([7; 16]),
        },
        cards: vec![GrantedCard {
            uuid: GpuUuid::parse("GPU-00000000-0000-4000-8000-000000000000").unwrap(),
            index: 0,
            minor: 0,
        }],
        memory: Mib(7168),
        uid: 0,
        compute: compute.map(ComputeShare),
        priority,
        client_dir: "/run/mpsgate/mps/0/containers/0123456789abcdef0123456789abcdef".to_owned(),
        devices: vec![device("/dev/nvidia0", 195, 0), device("/dev/nvidiactl", 195, 255)],
        guarantee: Guarantee::Mps,
        user: None,
    }
}

/// Of two cards, without MPS.
fn shared() -> Grant {
    let one = grant(None, Priority::Normal);
    let mut cards = one.cards.clone();
    cards.push(GrantedCard {
        uuid: GpuUuid::parse("GPU-00000001-0000-4000-8000-000000000000").unwrap(),
        index: 1,
        minor: 1,
    });
    let mut devices = one.devices.clone();
    devices.push(DeviceNode { path: "/dev/nvidia1".to_owned(), major: 195, minor: 1 });
    Grant { cards, devices, client_dir: String::new(), guarantee: Guarantee::None, ..one }
}

fn two_cdi() -> CdiEdits {
    let mut both = cdi();
    let node = DeviceNode { path: "/dev/nvidia1".to_owned(), major: 195, minor: 1 };
    both.merge(CdiEdits { devices: vec![node], ..cdi() });
    both
}

fn wanted(own_limit: Option<u64>, own_share: Option<u8>) -> Wanted {
    let request =
        parse_request(Author::Operator, [("aliyun.com/gpu-mem", "7")].into_iter(), [].into_iter());
    Wanted {
        request: request.unwrap().unwrap(),
        uid: 0,
        own_limit: own_limit.map(Mib),
        own_share: own_share.map(ComputeShare),
        claim_variables: Vec::new(),
        edits: Vec::new(),
    }
}

fn cdi() -> CdiEdits {
    CdiEdits {
        env: vec![("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())],
        devices: vec![DeviceNode { path: "/dev/nvidia0".to_owned(), major: 195, minor: 0 }],
        mounts: vec![CdiMount {
            source: "/usr/lib/libcuda.so.1".to_owned(),
            destination: "/usr/lib/libcuda.so.1".to_owned(),
            options: vec!["ro".to_owned(), "rbind".to_owned()],
        }],
        hooks: vec![CdiHook {
            stage: "createContainer".to_owned(),
            path: "/usr/bin/nvidia-cdi-hook".to_owned(),
            args: vec!["nvidia-cdi-hook".to_owned(), "update-ldcache".to_owned()],
            env: Vec::new(),
            timeout_s: None,
        }],
        gids: vec![44],
    }
}

fn applied(mut spec: Value, wanted: &Wanted, grant: &Grant, injector: &Injector) -> Value {
    let edits = grant_edits(View::new(&spec), wanted, grant, injector, HOOK).unwrap();
    apply(&mut spec, &edits).unwrap();
    spec
}

#[test]
fn a_grant_changes_the_spec_as_recorded() {
    let normal = grant(None, Priority::Normal);
    let spec = json!({ "process": { "env": ["PATH=/bin", "CUDA_VISIBLE_DEVICES=1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=9G", "MPSGATE_GPU_MEM_MIB=9216"] } });
    let cases = [
        ("device nodes", wanted(None, None), normal.clone(), Injector::Devices),
        ("NVIDIA's runtime below", wanted(None, None), normal.clone(), Injector::NvidiaRuntime),
        ("CDI", wanted(None, None), normal.clone(), Injector::Cdi(cdi())),
        ("the driver's files there already", wanted(None, None), normal.clone(), Injector::Present),
        (
            "its own lower limit and share",
            wanted(Some(2048), Some(10)),
            grant(Some(30), Priority::Low),
            Injector::NvidiaRuntime,
        ),
        (
            "its own higher limit and share",
            wanted(Some(9216), Some(90)),
            grant(Some(30), Priority::Normal),
            Injector::NvidiaRuntime,
        ),
    ];
    let with_own = json!({ "process": { "env": ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=9G", "CUDA_MPS_PIPE_DIRECTORY=/x"] } });
    let without_mps = [
        ("two cards without MPS: device nodes", Injector::Devices),
        ("two cards without MPS: NVIDIA's runtime below", Injector::NvidiaRuntime),
        ("two cards without MPS: CDI", Injector::Cdi(two_cdi())),
        ("two cards without MPS: the driver's files there already", Injector::Present),
    ];
    let without_mps = without_mps.map(|(name, injector)| {
        (name, with_own.clone(), wanted(Some(2048), Some(10)), shared(), injector)
    });
    let cases =
        cases.map(|(name, wanted, grant, injector)| (name, spec.clone(), wanted, grant, injector));
    let mut text = String::new();
    for (name, spec, wanted, grant, injector) in cases.into_iter().chain(without_mps) {
        let once = applied(spec.clone(), &wanted, &grant, &injector);
        writeln!(text, "# {name}\n{}\n", lines(&once, 0)).unwrap();
        // A bundle that is created again: an edit on its own result, by another instance.
        let mut again = grant.clone();
        again.key.instance = Instance::from_bytes([8; 16]);
        let removed = Wanted {
            edits: vec![mpsgate_oci::spec::Edit::RemoveMount {
                destination: "/run/mpsgate/mps".to_owned(),
            }],
            ..wanted
        };
        let twice = applied(once.clone(), &removed, &again, &injector);
        let expected = once.to_string().replace(&"07".repeat(16), &"08".repeat(16));
        let sorted = |text: &str| {
            let mut lines: Vec<char> = text.chars().collect();
            lines.sort_unstable();
            lines
        };
        assert_eq!(sorted(&twice.to_string()), sorted(&expected), "{name}: nothing is added twice");
    }
    golden!("grants.txt", &text);
}

/// The specification's own types evaluate it, not the reader that our edits are made with.
#[test]
fn what_a_grant_leaves_of_an_engines_document_is_a_valid_one() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalogue/captured");
    let mut documents = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let captured: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for injector in [Injector::Devices, Injector::NvidiaRuntime, Injector::Cdi(cdi())] {
            let grant = grant(Some(30), Priority::Low);
            let spec = captured["config"].clone();
            let Ok(edits) =
                grant_edits(View::new(&spec), &wanted(None, None), &grant, &injector, HOOK)
            else {
                continue;
            };
            let mut edited = spec;
            apply(&mut edited, &edits).unwrap();
            let spec: oci_spec::runtime::Spec = serde_json::from_value(edited)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.create_runtime().clone());
            let ours = |hook: &oci_spec::runtime::Hook| hook.path().as_os_str() == HOOK;
            assert!(hooks.unwrap_or_default().iter().any(ours), "{}", path.display());
            documents += 1;
        }
    }
    assert!(documents > 100, "{documents}");
}

#[test]
fn a_mount_of_its_own_where_the_channel_belongs_is_refused() {
    let spec = |destination: &str| json!({ "mounts": [{ "destination": destination, "source": "/x", "options": ["bind"] }] });
    let refused = |destination: &str| {
        let spec = spec(destination);
        grant_edits(
            View::new(&spec),
            &wanted(None, None),
            &grant(None, Priority::Normal),
            &Injector::Devices,
            HOOK,
        )
        .map_err(|r| r.code)
        .err()
    };
    assert_eq!(refused("/run/mpsgate/mps"), Some(Code::Spec));
    assert_eq!(refused("/run/mpsgate/mps/control"), Some(Code::Spec));
    assert_eq!(refused("/run/mpsgate/mps-other"), None);
}

#[test]
fn without_mps_nothing_belongs_where_the_channel_would() {
    let spec = json!({ "mounts": [{ "destination": "/run/mpsgate/mps", "source": "/x", "options": ["bind"] }] });
    let edits =
        grant_edits(View::new(&spec), &wanted(None, None), &shared(), &Injector::Devices, HOOK);
    let binds =
        |edit: &mpsgate_oci::spec::Edit| matches!(edit, mpsgate_oci::spec::Edit::Bind { .. });
    assert!(!edits.unwrap().iter().any(binds));
}

/// Set, so that a container's own values are replaced; by `exec` too, which has the same variables.
#[test]
fn every_grant_tells_its_memory_on_each_card_and_its_cards() {
    let one = "GPU-00000000-0000-4000-8000-000000000000";
    let two = "GPU-00000000-0000-4000-8000-000000000000,GPU-00000001-0000-4000-8000-000000000000";
    for (grant, wanted, memory, cards) in [
        (grant(None, Priority::Normal), wanted(None, None), 7168, one),
        // Its own lower limit is one of each process.
        (grant(Some(30), Priority::Low), wanted(Some(2048), Some(10)), 7168, one),
        (shared(), wanted(None, None), 7168, two),
        (Grant { memory: Mib(1), ..shared() }, wanted(Some(9216), None), 1, two),
    ] {
        for injector in
            [Injector::Devices, Injector::NvidiaRuntime, Injector::Present, Injector::Cdi(cdi())]
        {
            let (_, set) = mpsgate_policy::grant_env(&wanted, &grant, &injector);
            let values = |name: &str| -> Vec<&str> {
                set.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
            };
            assert_eq!(values("MPSGATE_GPU_MEM_MIB"), [memory.to_string()], "{injector:?}");
            assert_eq!(values("MPSGATE_GPU_UUID"), [cards], "{injector:?}");
        }
    }
}

#[test]
fn no_process_of_a_container_has_its_claims_token() {
    let name = "MPSGATE_GRANT_web.gpu".to_owned();
    let wanted = Wanted { claim_variables: vec![name.clone()], ..wanted(None, None) };
    let (drop, _) = mpsgate_policy::grant_env(&wanted, &shared(), &Injector::Devices);
    assert!(drop.contains(&name), "{drop:?}");
}

#[test]
fn cdi_that_names_another_card_is_refused() {
    let mut edits = cdi();
    edits.devices.push(DeviceNode { path: "/dev/nvidia1".to_owned(), major: 195, minor: 1 });
    let spec = json!({});
    let grant = grant(None, Priority::Normal);
    let error =
        grant_edits(View::new(&spec), &wanted(None, None), &grant, &Injector::Cdi(edits), HOOK);
    assert_eq!(error.map_err(|r| r.to_string()), Err("the CDI specification of its card cannot be applied: it names /dev/nvidia1 too [E_NO_DRIVER_LIBS]".to_owned()));
}

#[test]
fn the_injector_follows_the_setting_and_what_there_is() {
    use InjectMode as M;
    let bare = json!({});
    let choose_for = |spec: &Value, mode, nvidia, cdi| {
        Injector::choose(mode, nvidia, View::new(spec), cdi).map_err(|r| r.code)
    };
    let choose = |mode, nvidia, cdi| choose_for(&bare, mode, nvidia, cdi);
    let edits = || Cdi::Edits(cdi());
    let problem = || Cdi::Problem("x".to_owned());
    assert_eq!(choose(M::Auto, true, edits()), Ok(Injector::NvidiaRuntime));
    assert_eq!(choose(M::Auto, false, edits()), Ok(Injector::Cdi(cdi())));
    assert_eq!(choose(M::Auto, false, Cdi::Absent), Err(Code::NoDriverLibs), "never bare nodes");
    assert_eq!(choose(M::Auto, false, problem()), Err(Code::NoDriverLibs));
    assert_eq!(choose(M::Cdi, true, Cdi::Absent), Err(Code::NoDriverLibs));
    assert_eq!(choose(M::Devices, true, edits()), Ok(Injector::Devices), "as root has said");
    assert_eq!(choose(M::Devices, false, Cdi::Absent), Ok(Injector::Devices));
    assert_eq!(choose(M::NvidiaRuntime, false, edits()), Ok(Injector::NvidiaRuntime));

    // nvidia-container-runtime above us in legacy mode: its hook, and nothing injected yet.
    let hook =
        json!({ "hooks": { "prestart": [{ "path": "/usr/bin/nvidia-container-runtime-hook" }] } });
    assert_eq!(choose_for(&hook, M::Auto, false, Cdi::Absent), Ok(Injector::NvidiaRuntime));
    // Above us in its other modes, or CDI by the engine: the files are mounts.
    let mount = |destination: &str, option: &str| json!({ "mounts": [{ "destination": destination, "source": "/x", "options": [option] }] });
    let injected = mount("/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01", "rbind");
    for (mode, nvidia) in [(M::Auto, false), (M::Auto, true), (M::NvidiaRuntime, false)] {
        assert_eq!(choose_for(&injected, mode, nvidia, edits()), Ok(Injector::Present));
    }
    assert_eq!(choose_for(&injected, M::Cdi, false, edits()), Ok(Injector::Cdi(cdi())));
    for other in [mount("/usr/lib/libcuda.so", "ro"), mount("/usr/lib/libcudart.so.12", "bind")] {
        assert_eq!(choose_for(&other, M::Auto, false, Cdi::Absent), Err(Code::NoDriverLibs));
    }
}

#[test]
fn of_what_others_injected_only_the_granted_card_stays() {
    let node = |path: &str, major: u32, minor: u32| json!({ "path": path, "type": "c", "major": major, "minor": minor });
    let rule = |major: u32, minor: u32| json!({ "allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm" });
    let spec = |cards: &[u32]| {
        let mut devices =
            vec![node("/dev/nvidiactl", 195, 255), node("/dev/dri/renderD128", 226, 128)];
        let mut rules = vec![rule(195, 255), rule(226, 128)];
        devices.extend(cards.iter().map(|n| node(&format!("/dev/nvidia{n}"), 195, *n)));
        rules.extend(cards.iter().map(|n| rule(195, *n)));
        json!({ "linux": { "devices": devices, "resources": { "devices": rules } } })
    };
    let after = |spec: Value| {
        let decided = Wanted {
            // As `decide` wants it of such a spec.
            edits: [0, 1]
                .map(|minor| mpsgate_oci::spec::Edit::RemoveDevice { major: 195, minor })
                .into_iter()
                .chain([mpsgate_oci::spec::Edit::RemoveRules { major: 195, minor: None }])
                .collect(),
            ..wanted(None, None)
        };
        applied(spec, &decided, &grant(None, Priority::Normal), &Injector::Present)
    };
    let seen = |spec: &Value| {
        let view = View::new(spec);
        let mut paths: Vec<String> = view.devices().map(|d| d.path.to_owned()).collect();
        paths.sort();
        (
            paths.join(" "),
            view.rules_open(195, Some(0)),
            view.rules_open(195, Some(1)),
            view.rules_open(226, Some(128)),
        )
    };
    // Whose card the display node is cannot be told where several were injected.
    assert_eq!(
        seen(&after(spec(&[0, 1]))),
        ("/dev/nvidia0 /dev/nvidiactl".to_owned(), true, false, false)
    );
    assert_eq!(
        seen(&after(spec(&[0]))),
        ("/dev/dri/renderD128 /dev/nvidia0 /dev/nvidiactl".to_owned(), true, false, true)
    );
}
