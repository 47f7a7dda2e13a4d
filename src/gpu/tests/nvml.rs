//! The whole way through the dynamic loader and nvml-wrapper, against the fake NVML. `tests/gpu`
//! checks what a real driver answers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests make what they look at"
)]

mod node;

use std::error::Error;
use std::process::Command;
use std::{env, fs, thread};

use mpsgate_gpu::{
    Card, CardAction, GpuError, GpuProcess, MigState, Nvml, NvmlError, ProcessKind, Unfit,
};
use mpsgate_model::ComputeMode;
use serde_json::{Value, json};

use node::Node;

const FIRST: &str = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77";
const SECOND: &str = "GPU-8c3b1a52-6f0e-4d7a-9a41-0b8a5f7f1c02";

impl Node {
    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        edit(&mut state);
        fs::write(self.file(), state.to_string()).unwrap();
    }
}

/// The answers for both cards, where both are healthy.
fn healthy(nvml: &Nvml) -> Vec<Card> {
    nvml.cards().unwrap().into_iter().map(Result::unwrap).collect()
}

/// NVML's answer, from the end of the chain of causes.
fn cause(error: &(dyn Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), cause)
}

#[test]
fn a_missing_library_is_named() {
    for library in ["/nonexistent/libnvidia-ml.so.1", "libnvidia-ml-nowhere.so.1"] {
        let error = Nvml::load(library).unwrap_err();
        assert!(matches!(error, GpuError::NoLibrary { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("this node has no NVML library {library}"));
        assert!(error.hint().unwrap().contains("nvml.library"));
    }
}

#[test]
fn a_file_that_is_no_library_cannot_be_loaded() {
    let node = Node::new(|_| ());
    for (library, reason) in
        [(node.file(), "invalid ELF header"), (node.directory.path().to_owned(), "directory")]
    {
        let error = Nvml::load(&library).unwrap_err();
        assert!(matches!(error, GpuError::LibraryUnavailable { .. }), "{error:?}");
        assert!(cause(&error).contains(reason), "{}", cause(&error));
    }
}

#[test]
fn a_library_that_is_not_nvml_has_an_error_of_its_own() {
    // dlopen takes the empty name for the running program itself.
    for library in ["libc.so.6", ""] {
        let error = Nvml::load(library).unwrap_err();
        assert!(matches!(error, GpuError::NotNvml { .. }), "{error:?}");
        assert!(cause(&error).contains("nvmlInit_v2"), "{}", cause(&error));
        assert!(error.hint().unwrap().contains("nvml.library"));
    }
}

#[test]
fn nvml_that_does_not_start_says_what_to_do() {
    for (name, remedy) in [
        ("DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("LIB_RM_VERSION_MISMATCH", "reboot"),
        ("NO_PERMISSION", "run as root"),
        ("OPERATING_SYSTEM", "DeviceAllow="),
    ] {
        let node = Node::new(|state| state["init_error"] = name.into());
        let error = node.load().unwrap_err();
        assert!(matches!(error, GpuError::Init { .. }), "{name}: {error:?}");
        assert!(error.to_string().contains(node.library.to_str().unwrap()), "{error}");
        assert!(error.hint().unwrap().contains(remedy), "{name}");
    }
}

#[test]
fn a_malformed_file_makes_the_fake_fail_to_start() {
    for text in ["", "{", "[]", r#"{"cards": []}"#] {
        let node = Node::new(|_| ());
        fs::write(node.file(), text).unwrap();
        let error = node.load().unwrap_err();
        assert!(matches!(error, GpuError::Init { source: NvmlError::Unknown, .. }), "{error:?}");
    }
}

#[test]
fn a_file_that_vanishes_later_makes_every_call_fail() {
    let node = Node::new(|_| ());
    let nvml = node.load().unwrap();
    fs::remove_file(node.file()).unwrap();
    let error = nvml.cards().unwrap_err();
    assert!(matches!(error, GpuError::System { source: NvmlError::Unknown, .. }), "{error:?}");
    assert!(matches!(nvml.card(FIRST), Err(GpuError::Card(_))));
}

#[test]
fn reads_the_node_and_two_cards() {
    let node = Node::new(|_| ());
    let nvml = node.load().unwrap();
    assert!(nvml.is_simulated());
    assert_eq!(nvml.driver_version().unwrap(), "550.163.01");
    assert_eq!(nvml.cuda_driver_version().unwrap(), "12.4");

    let card = |uuid: &str, index, pci_bus_id: &str| Card {
        uuid: uuid.to_owned(),
        index,
        minor: index,
        name: "Tesla T4".to_owned(),
        memory_total_mib: 16384,
        memory_used_mib: 0,
        compute_capability: (7, 5),
        mig: MigState::Unsupported,
        compute_mode: ComputeMode::Default,
        pci_bus_id: pci_bus_id.to_owned(),
    };
    let expected = [card(FIRST, 0, "00000000:3B:00.0"), card(SECOND, 1, "00000000:AF:00.0")];
    assert_eq!(healthy(&nvml), expected);
    for card in expected {
        assert_eq!(nvml.card(&card.uuid).unwrap(), card);
        assert_eq!(card.fitness(), Ok(()));
        assert_eq!(card.advertised_mib(Card::DEFAULT_RESERVE_MIB), 15 * 1024);
    }
}

#[test]
fn a_library_without_the_marker_is_not_simulated() {
    let node = Node::new(|_| ());
    let mut library = fs::read(&node.library).unwrap();
    let marker = b"mpsgate_simulated_gpus";
    let mut renamed = 0;
    for place in 0..library.len() - marker.len() {
        if library[place..].starts_with(marker) {
            library[place] = b'x';
            renamed += 1;
        }
    }
    assert!(renamed > 0);
    fs::write(&node.library, library).unwrap();
    let nvml = node.load().unwrap();
    assert!(!nvml.is_simulated());
    assert_eq!(healthy(&nvml).len(), 2);
}

#[test]
fn sees_what_changes_after_loading() {
    let node = Node::new(|_| ());
    let nvml = node.load().unwrap();
    node.edit(|state| {
        state["cards"][1]["minor"] = 7.into();
        state["cards"][1]["memory_used_mib"] = 418.into();
        state["cards"][1]["memory_total_mib"] = 15360.into();
        state["cuda_driver_version"] = "13.0".into();
    });
    let card = nvml.card(SECOND).unwrap();
    assert_eq!((card.minor, card.memory_used_mib, card.memory_total_mib), (7, 418, 15360));
    assert_eq!(nvml.cuda_driver_version().unwrap(), "13.0");
    node.edit(|state| state["cards"] = json!([]));
    assert!(nvml.cards().unwrap().is_empty());
}

#[test]
fn a_lost_card_hides_no_other() {
    let node = Node::new(|_| ());
    let nvml = node.load().unwrap();
    node.edit(|state| state["cards"][0]["error"] = "GPU_IS_LOST".into());

    let mut cards = nvml.cards().unwrap();
    assert_eq!(cards.len(), 2);
    assert_eq!(cards.pop().unwrap().unwrap().uuid, SECOND);
    let lost = cards.pop().unwrap().unwrap_err();
    assert_eq!((lost.index, lost.uuid.as_deref(), lost.action), (Some(0), None, CardAction::Open));
    assert!(matches!(lost.source, NvmlError::GpuLost), "{lost:?}");
    assert!(lost.hint().unwrap().contains("--gpu-reset -i 0"));

    let error = nvml.card(FIRST).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open card {FIRST}"));
    assert!(error.hint().unwrap().contains(FIRST));
    assert!(nvml.card(SECOND).is_ok());
}

#[test]
fn every_property_that_cannot_be_read_is_named() {
    for (call, property) in [
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetMinorNumber", "minor number"),
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetMemoryInfo_v2", "memory"),
        ("nvmlDeviceGetCudaComputeCapability", "compute capability"),
        ("nvmlDeviceGetMigMode", "mig mode"),
        ("nvmlDeviceGetComputeMode", "compute mode"),
        ("nvmlDeviceGetPciInfo_v3", "pci address"),
    ] {
        let node = Node::new(|state| {
            state["cards"][1]["error"] = "RESET_REQUIRED".into();
            state["cards"][1]["error_in"] = json!([call]);
        });
        let nvml = node.load().unwrap();
        let error = nvml.cards().unwrap().pop().unwrap().unwrap_err();
        assert_eq!(error.action, CardAction::Read(property));
        assert!(matches!(error.source, NvmlError::ResetRequired), "{error:?}");
        let known = (call != "nvmlDeviceGetUUID").then_some(SECOND);
        assert_eq!((error.index, error.uuid.as_deref()), (Some(1), known));
    }
}

#[test]
fn mig_and_cards_before_volta_are_seen_and_unfit() {
    let node = Node::new(|state| {
        state["cards"][0]["mig"] = "enabled".into();
        state["cards"][0]["compute_capability"] = "9.0".into();
        state["cards"][1]["compute_capability"] = "6.1".into();
    });
    let cards = healthy(&node.load().unwrap());
    assert_eq!(cards[0].mig, MigState::Enabled);
    assert!(matches!(cards[0].fitness(), Err(Unfit::MigEnabled { .. })));
    assert_eq!(cards[1].compute_capability, (6, 1));
    assert!(matches!(cards[1].fitness(), Err(Unfit::PreVolta { .. })));

    node.edit(|state| state["cards"][0]["mig"] = "disabled".into());
    let cards = healthy(&node.load().unwrap());
    assert_eq!((cards[0].mig, cards[0].fitness()), (MigState::Disabled, Ok(())));
}

#[test]
fn a_uuid_that_names_no_card_is_an_error() {
    let node = Node::new(|_| ());
    let nvml = node.load().unwrap();
    for uuid in ["GPU-0", "", "0", "GPU-\0", &FIRST[..20], &FIRST.to_uppercase()] {
        let error = nvml.card(uuid).unwrap_err();
        assert!(matches!(&error, GpuError::UnknownCard { uuid: given } if given == uuid));
        assert!(error.hint().unwrap().contains("nvidia-smi -L"));
    }
    let error = nvml.card("MIG-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77").unwrap_err();
    assert!(matches!(error, GpuError::MigInstance { .. }), "{error:?}");
}

#[test]
fn a_compute_mode_that_was_set_is_there_for_everybody() {
    let node = Node::new(|_| ());
    let before = node.state();
    let nvml = node.load().unwrap();
    for mode in [
        ComputeMode::ExclusiveProcess,
        ComputeMode::Prohibited,
        ComputeMode::ExclusiveThread,
        ComputeMode::Default,
        ComputeMode::ExclusiveProcess,
    ] {
        nvml.set_compute_mode(SECOND, mode).unwrap();
        assert_eq!(nvml.compute_mode(SECOND).unwrap(), mode);
    }
    drop(nvml);

    let mut expected = before;
    expected["cards"][1]["compute_mode"] = "EXCLUSIVE_PROCESS".into();
    assert_eq!(node.state(), expected);
    let modes: Vec<_> =
        healthy(&node.load().unwrap()).iter().map(|card| card.compute_mode).collect();
    assert_eq!(modes, [ComputeMode::Default, ComputeMode::ExclusiveProcess]);
    let left: Vec<_> = fs::read_dir(node.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_refused_compute_mode_changes_nothing() {
    let node = Node::new(|state| state["refuse_compute_mode"] = true.into());
    let nvml = node.load().unwrap();
    let error = nvml.set_compute_mode(FIRST, ComputeMode::ExclusiveProcess).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot set compute mode EXCLUSIVE_PROCESS on card {FIRST}")
    );
    assert!(error.hint().unwrap().contains("root of the host"));
    assert_eq!(nvml.compute_mode(FIRST).unwrap(), ComputeMode::Default);
}

#[test]
fn lists_every_process_once_and_mps_clients_as_such() {
    let node = Node::new(|state| {
        state["cards"][0]["processes"] = json!([
            { "pid": 4001, "used_mib": 418, "kind": "compute" },
            { "pid": 4003, "used_mib": null, "kind": "mps" },
            { "pid": 4002, "used_mib": 7168, "kind": "mps" },
            { "pid": 3999, "used_mib": 12, "kind": "graphics" },
        ]);
    });
    let nvml = node.load().unwrap();
    let process = |pid, mib: Option<u64>, kind| GpuProcess {
        pid,
        used_bytes: mib.map(|mib| mib << 20),
        kind,
    };
    assert_eq!(
        nvml.processes(FIRST).unwrap(),
        [
            process(3999, Some(12), ProcessKind::Graphics),
            process(4001, Some(418), ProcessKind::Compute),
            process(4002, Some(7168), ProcessKind::Mps),
            process(4003, None, ProcessKind::Mps),
        ]
    );
    assert_eq!(nvml.processes(SECOND).unwrap(), []);
}

#[test]
fn only_the_list_of_compute_processes_must_be_there() {
    let supported = |call: &str| {
        let node = Node::new(|state| {
            state["cards"][0]["processes"] =
                json!([{ "pid": 1, "used_mib": 1, "kind": "compute" }]);
            state["cards"][0]["error"] = "NOT_SUPPORTED".into();
            state["cards"][0]["error_in"] = json!([call]);
        });
        let list = node.load().unwrap().process_list(FIRST);
        list.map(|list| (list.processes.len(), list.tells_clients))
    };
    let (graphics, mps) =
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3");
    assert_eq!(supported(graphics).unwrap(), (1, true));
    assert_eq!(supported(mps).unwrap(), (1, false), "clients look like all others");
    let error = supported("nvmlDeviceGetComputeRunningProcesses_v3").unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read the compute processes of card {FIRST}"));
}

#[test]
fn an_mps_list_that_fails_is_never_taken_for_an_empty_one() {
    let node = Node::new(|state| {
        state["cards"][0]["error"] = "UNKNOWN".into();
        state["cards"][0]["error_in"] = json!(["nvmlDeviceGetMPSComputeRunningProcesses_v3"]);
    });
    let error = node.load().unwrap().processes(FIRST).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read the mps processes of card {FIRST}"));
}

#[test]
fn process_lists_of_a_driver_that_would_overrun_them_are_not_asked_for() {
    let node = Node::new(|state| state["driver_version"] = "535.54.03".into());
    let nvml = node.load().unwrap();
    let error = nvml.processes(FIRST).unwrap_err();
    assert!(matches!(error, GpuError::UnsoundProcessLists { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("535.104.05"));
    assert_eq!(healthy(&nvml).len(), 2);
}

#[test]
fn one_handle_serves_many_threads_and_outlives_another() {
    let node = Node::new(|_| ());
    let nvml = node.load().unwrap();
    drop(node.load().unwrap());
    thread::scope(|scope| {
        for uuid in [FIRST, SECOND] {
            let nvml = &nvml;
            scope.spawn(move || nvml.set_compute_mode(uuid, ComputeMode::Prohibited).unwrap());
            scope.spawn(move || (0..50).for_each(|_| assert_eq!(healthy(nvml).len(), 2)));
        }
    });
    assert!(healthy(&nvml).iter().all(|card| card.compute_mode == ComputeMode::Prohibited));
}

/// A process of its own, because the dynamic loader and the fake read their environment.
#[test]
fn the_default_name_is_found_by_the_dynamic_loader() {
    let node = Node::new(|_| ());
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("other.json");
    fs::rename(node.file(), &file).unwrap();

    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child_sets_the_first_card_exclusive", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", node.directory.path())
        .env("MPSGATE_FAKE_NVML", &file)
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    let state: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(state["cards"][0]["compute_mode"], "EXCLUSIVE_PROCESS");
    assert_eq!(state["cards"][1]["compute_mode"], "DEFAULT");
}

#[test]
#[ignore = "run by the_default_name_is_found_by_the_dynamic_loader in an environment of its own"]
fn child_sets_the_first_card_exclusive() {
    let nvml = Nvml::load(Nvml::DEFAULT_LIBRARY).unwrap();
    assert!(nvml.is_simulated());
    nvml.set_compute_mode(FIRST, ComputeMode::ExclusiveProcess).unwrap();
}
