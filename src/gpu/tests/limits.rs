//! Memory limits of cgroups, against the fake NVML. Directories take the place of cgroups.
//! `tests/gpu` checks what a real driver of r615 answers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod node;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mpsgate_gpu::{GpuError, LimitAction, MemoryLimit, NvmlError};
use serde_json::{Value, json};

use node::Node;

const CARD: &str = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77";
const OTHER: &str = "GPU-8c3b1a52-6f0e-4d7a-9a41-0b8a5f7f1c02";
const MIB: u64 = 1 << 20;
const NONE: MemoryLimit = MemoryLimit { soft_bytes: 0, hard_bytes: u64::MAX, used_bytes: 0 };

impl Node {
    fn with_limits(offer: Value) -> Self {
        Self::new(|state| state["memory_limits"] = offer)
    }

    /// With a kernel that counts.
    fn with_dmem() -> Self {
        Self::with_limits(json!({ "needs": "dmem.max" }))
    }

    fn cgroup(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    fn cgroup_with_dmem(&self, name: &str) -> PathBuf {
        let path = self.cgroup(name);
        fs::write(path.join("dmem.max"), "").unwrap();
        path
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        edit(&mut state);
        fs::write(self.file(), state.to_string()).unwrap();
    }

    /// Sets what the driver counts for a cgroup that has a limit.
    fn charge(&self, cgroup: &Path, mib: u64) {
        self.edit(|state| {
            state["cards"][0]["limits"][name(cgroup)]["charged_bytes"] = (mib * MIB).into()
        });
    }
}

fn name(cgroup: &Path) -> &str {
    cgroup.to_str().unwrap()
}

fn limit(mib: u64) -> MemoryLimit {
    MemoryLimit { hard_bytes: mib * MIB, ..NONE }
}

#[test]
fn a_limit_is_set_read_back_and_cleared_for_one_cgroup_on_one_card() {
    let node = Node::with_dmem();
    let (web, neighbour) = (node.cgroup_with_dmem("web"), node.cgroup_with_dmem("neighbour"));
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    assert_eq!(limits.get(CARD, &web).unwrap(), NONE);
    limits.set(CARD, &web, 7168).unwrap();
    assert_eq!(limits.get(CARD, &web).unwrap(), limit(7168));
    assert_eq!(limits.get(CARD, &neighbour).unwrap(), NONE);
    assert_eq!(limits.get(OTHER, &web).unwrap(), NONE);
    let stored = &node.state()["cards"][0]["limits"][web.to_str().unwrap()];
    assert_eq!((&stored["soft_bytes"], &stored["hard_bytes"]), (&json!(0), &json!(7168 * MIB)));
    limits.clear(CARD, &web).unwrap();
    assert_eq!(limits.get(CARD, &web).unwrap(), NONE);
    assert_eq!(node.state()["cards"][0]["limits"], json!({}));
}

#[test]
fn what_was_rounded_is_read_back_as_it_holds() {
    let node = Node::with_limits(json!({ "round_mib": 128 }));
    let web = node.cgroup("web");
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    limits.set(CARD, &web, 4000).unwrap();
    assert_eq!(limits.get(CARD, &web).unwrap(), limit(4096));
}

#[test]
fn a_cgroup_that_was_made_anew_has_no_limit() {
    let node = Node::with_dmem();
    let web = node.cgroup_with_dmem("web");
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    limits.set(CARD, &web, 1024).unwrap();
    // Renamed, not removed: the inode must not come back.
    fs::rename(&web, node.directory.path().join("old")).unwrap();
    node.cgroup_with_dmem("web");
    assert_eq!(limits.get(CARD, &web).unwrap(), NONE);
}

#[test]
fn a_library_without_the_calls_offers_no_limits() {
    let node = Node::with_limits(json!({}));
    for call in [&b"nvmlDeviceSetMemoryLimits_v1"[..], b"nvmlDeviceGetMemoryLimits_v1"] {
        let mut library = fs::read(fake_nvml::library().unwrap()).unwrap();
        let places: Vec<_> =
            (0..library.len() - call.len()).filter(|at| library[*at..].starts_with(call)).collect();
        assert!(!places.is_empty());
        for place in places {
            library[place] = b'x';
        }
        fs::remove_file(&node.library).unwrap();
        fs::write(&node.library, library).unwrap();
        let nvml = node.load().unwrap();
        assert!(nvml.memory_limits().is_none(), "{}", String::from_utf8_lossy(call));
        assert_eq!(nvml.cards().unwrap().len(), 2, "all else is there");
    }
}

#[test]
fn a_driver_that_has_the_calls_without_the_limits_is_no_failure() {
    let node = Node::new(|_| ());
    let web = node.cgroup("web");
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    assert!(limits.set(CARD, &web, 1).unwrap_err().is_no_limits());
    assert!(limits.get(CARD, &web).unwrap_err().is_no_limits());
}

#[test]
fn every_refusal_names_card_and_cgroup_and_what_to_do() {
    let node = Node::with_limits(json!({ "needs": "dmem.max" }));
    let (web, missing) = (node.cgroup("web"), node.directory.path().join("missing"));
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    for (cgroup, is) in [(&web, "NotSupported"), (&missing, "NotFound")] {
        let error = limits.set(CARD, cgroup, 7168).unwrap_err();
        let expected = format!(
            "cannot set a memory limit of 7168 MiB on the processes of {} on card {CARD}",
            cgroup.display()
        );
        assert_eq!(error.to_string(), expected);
        let GpuError::MemoryLimit { action, source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*action, LimitAction::Set { mib: 7168 });
        assert_eq!(format!("{source:?}"), is);
        let hint = error.hint().unwrap();
        assert!(hint.contains(&format!("ls {}/dmem.max", cgroup.display())), "{hint}");
    }
    fs::write(web.join("dmem.max"), "").unwrap();
    limits.set(CARD, &web, 7168).unwrap();
    assert!(matches!(limits.set("GPU-0", &web, 1), Err(GpuError::UnknownCard { .. })));
    assert!(matches!(limits.set("MIG-0", &web, 1), Err(GpuError::MigInstance { .. })));
    let nul = limits.get(CARD, Path::new("/a\0b")).unwrap_err();
    assert!(matches!(nul, GpuError::MemoryLimit { source: NvmlError::NulError(_), .. }), "{nul:?}");
}

#[test]
fn a_card_in_mig_mode_and_a_caller_that_is_not_root_are_refused() {
    let node = Node::new(|state| {
        state["memory_limits"] = json!({ "needs": "dmem.max" });
        state["cards"][0]["mig"] = "enabled".into();
        state["cards"][1]["error"] = "NO_PERMISSION".into();
        state["cards"][1]["error_in"] = json!(["nvmlDeviceSetMemoryLimits_v1"]);
    });
    let web = node.cgroup_with_dmem("web");
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    let mig = limits.set(CARD, &web, 1).unwrap_err();
    assert!(
        matches!(mig, GpuError::MemoryLimit { source: NvmlError::NotSupported, .. }),
        "{mig:?}"
    );
    let denied = limits.clear(OTHER, &web).unwrap_err();
    assert!(denied.to_string().starts_with("cannot clear the memory limit of "), "{denied}");
    assert!(denied.hint().unwrap().contains("root of the host"));
    assert_eq!(limits.get(OTHER, &web).unwrap(), NONE, "reading needs no privilege");
}

/// `memacct.c` of 615.71.09: `tests/fakes/nvml/src/limits.rs` says where.
#[test]
fn a_driver_that_counts_by_itself_knows_the_nearest_limit_alone() {
    let node = Node::with_limits(json!({}));
    let pod = node.cgroup("pod");
    let (web, below) = (node.cgroup("pod/web"), node.cgroup("pod/web/below"));
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    let none = limits.get(CARD, &web).unwrap_err();
    assert!(
        matches!(none, GpuError::MemoryLimit { source: NvmlError::NotSupported, .. }),
        "{none:?}"
    );
    limits.set(CARD, &pod, 4096).unwrap();
    node.charge(&pod, 100);
    let shown = MemoryLimit { used_bytes: 100 * MIB, ..limit(4096) };
    for cgroup in [&pod, &web, &below] {
        assert_eq!(limits.get(CARD, cgroup).unwrap(), shown, "{}", cgroup.display());
    }
    limits.set(CARD, &web, 1024).unwrap();
    assert_eq!(limits.get(CARD, &web).unwrap(), limit(1024), "nothing charged from before");
    assert_eq!(limits.get(CARD, &below).unwrap(), limit(1024), "and not the pod's");
    limits.clear(CARD, &web).unwrap();
    assert_eq!(limits.get(CARD, &below).unwrap(), NONE, "an entry without a limit hides the pod's");
}

#[test]
fn a_driver_that_counts_by_itself_takes_no_limit_below_what_it_counts() {
    let node = Node::with_limits(json!({}));
    let web = node.cgroup("web");
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    limits.set(CARD, &web, 4096).unwrap();
    node.charge(&web, 2048);
    assert!(limits.set(CARD, &web, 2047).is_err());
    let counted = |mib| MemoryLimit { used_bytes: 2048 * MIB, ..limit(mib) };
    assert_eq!(limits.get(CARD, &web).unwrap(), counted(4096), "it is as it was");
    limits.set(CARD, &web, 2048).unwrap();
    assert_eq!(limits.get(CARD, &web).unwrap(), counted(2048));
}

#[test]
fn a_driver_that_counts_by_itself_keeps_an_entry_whose_cgroup_has_gone() {
    let node = Node::with_limits(json!({}));
    let (web, other) = (node.cgroup("web"), node.cgroup("other"));
    let nvml = node.load().unwrap();
    let limits = nvml.memory_limits().unwrap();
    limits.set(CARD, &web, 1024).unwrap();
    fs::remove_dir(&web).unwrap();
    limits.set(CARD, &other, 2048).unwrap();
    let entries = node.state()["cards"][0]["limits"].as_object().unwrap().len();
    assert_eq!(entries, 2);
    // Another cgroup at its address.
    let later = node.cgroup("later");
    node.edit(|state| {
        state["cards"][0]["limits"][name(&web)]["inode"] = later.metadata().unwrap().ino().into()
    });
    assert_eq!(limits.get(CARD, &later).unwrap(), limit(1024));
}
