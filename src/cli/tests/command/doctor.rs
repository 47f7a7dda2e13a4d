//! `doctor` on made-up nodes: the way from files to findings.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{mpsgate, text};

const NODE_MOUNTS: &str = "4026531841";
const EMPTY_LEDGER: &str = r#"{"format":1,"generation":1,"entries":[],"promises":[]}"#;

/// A root directory with everything that can be made without a kernel's help.
pub(crate) struct Root {
    pub(crate) dir: tempfile::TempDir,
}

impl Root {
    /// Two simulated cards, no daemon.
    pub(crate) fn new() -> Self {
        let root = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(root.at("/lib")).unwrap();
        fake_nvml::install(&root.at("/lib"), fake_nvml::EXAMPLE).unwrap();
        root.write("/etc/mpsgate/config.toml", "[nvml]\nlibrary = \"/lib/libnvidia-ml.so.1\"\n");
        root.write("/proc/sys/kernel/osrelease", "6.1.0-28-amd64\n");
        root.write(
            "/proc/devices",
            "Character devices:\n195 nvidia\n507 nvidia-uvm\n\nBlock devices:\n",
        );
        root.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        std::fs::create_dir_all(root.at("/proc/self/ns")).unwrap();
        symlink("ipc:[4026531839]", root.at("/proc/self/ns/ipc")).unwrap();
        root.program("/usr/sbin/runc", "#!/bin/sh\necho runc version 1.1.5\necho spec: 1.0.2\n");
        root
    }

    /// A process as `/proc` shows it, in the first process's PID and user namespaces. Its program
    /// is this machine's shell, which is root's.
    fn process(&self, pid: u32, name: &str, uid: u32, mounts: &str) {
        for (pid, name, mounts) in [(1, "init", NODE_MOUNTS), (pid, name, mounts)] {
            let at = |file: &str| self.at(&format!("/proc/{pid}/{file}"));
            if at("ns").exists() {
                continue;
            }
            std::fs::create_dir_all(at("ns")).unwrap();
            for (kind, number) in [("mnt", mounts), ("pid", "1"), ("user", "1")] {
                symlink(format!("{kind}:[{number}]"), at("ns").join(kind)).unwrap();
            }
            symlink(std::fs::canonicalize("/bin/sh").unwrap(), at("exe")).unwrap();
            let fields = "1 ".repeat(17);
            let files = [
                ("comm", format!("{name}\n")),
                ("stat", format!("{pid} ({name}) S 1 {fields}4711 0\n")),
                ("status", format!("Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")),
                ("cmdline", format!("{name}\0")),
                ("environ", String::new()),
            ];
            for (file, text) in files {
                std::fs::write(at(file), text).unwrap();
            }
        }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn program(&self, path: &str, content: &str) {
        self.write(path, content);
        std::fs::set_permissions(self.at(path), PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Result and evidence by name, of the first finding of each check.
    fn doctor(&self) -> BTreeMap<String, (String, String)> {
        findings(self.dir.path())
    }

    #[track_caller]
    fn assert(&self, name: &str, result: &str, evidence: &str) {
        let found = self.doctor();
        let finding = found.get(name).unwrap();
        assert!(finding.0 == result && finding.1.contains(evidence), "{name}: {finding:?}");
    }
}

fn findings(root: &Path) -> BTreeMap<String, (String, String)> {
    let ended = mpsgate(&["doctor", "-o", "json", "--root", text(root)]);
    assert_eq!(ended.stderr, "");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(document["schema"], 1);
    let checks = document["checks"].as_array().unwrap();
    let failed = checks.iter().any(|check| check["result"] == "fail");
    ended.assert_code(i32::from(failed));
    let mut first = BTreeMap::new();
    for check in checks {
        let text = |key: &str| check[key].as_str().unwrap().to_owned();
        first.entry(text("name")).or_insert_with(|| (text("result"), text("evidence")));
    }
    first
}

#[test]
fn a_node_without_a_daemon_gets_a_whole_report() {
    let root = Root::new();
    let found = root.doctor();
    for (name, result, evidence) in [
        ("config", "ok", "config.toml; cards in gpus.manage: 0"),
        ("kernel", "ok", "6.1.0-28-amd64"),
        ("cgroup", "ok", "v2"),
        ("clock", "ok", "not before"),
        ("security-module", "ok", "neither SELinux nor AppArmor"),
        ("driver", "skip", "simulated"),
        ("engine", "skip", "no containerd, Docker, Podman or CRI-O"),
        ("kubelet", "ok", "no kubelet keeps"),
        ("tokens", "ok", "no keys yet"),
        ("device-plugin", "skip", "cannot be asked"),
        ("nvml", "warn", "SIMULATED, driver 550.163.01"),
        ("card", "ok", "Tesla T4"),
        ("device-nodes", "skip", "simulated"),
        ("runtime", "ok", "usr/sbin/runc: runc version 1.1.5"),
        ("programs", "fail", "usr/bin/mpsgate-runtime is missing"),
        ("daemon", "fail", "mpsgated is not running"),
        ("metrics", "skip", "cannot be asked"),
        ("socket-paths", "ok", "control_privileged, has "),
        ("ledger", "ok", "none yet"),
        ("enabled", "ok", "no card was handed over"),
        ("snapshot", "skip", "none yet; no card was ever handed over"),
        ("runtime-link", "warn", "none: "),
        ("ipc", "skip", "ipc:[4026531839]"),
        ("open-files", "skip", "neither"),
        ("mps-control", "fail", "nvidia-cuda-mps-control is missing"),
        ("mps-state", "skip", "no card is managed"),
        ("mps-gate", "skip", "does not tell"),
        ("qualified", "skip", "does not tell"),
        ("compute-mode", "skip", "no managed card"),
        ("lease", "ok", "0 held"),
        ("default-mps", "ok", "no MPS daemon"),
    ] {
        let finding = found.get(name).unwrap();
        assert!(finding.0 == result && finding.1.contains(evidence), "{name}: {finding:?}");
    }
}

#[test]
fn an_empty_root_breaks_no_check() {
    let dir = tempfile::tempdir().unwrap();
    for root in [dir.path(), Path::new("/nonexistent")] {
        let found = findings(root);
        assert_eq!(found.get("cgroup").unwrap().0, "fail");
        assert_eq!(found.len(), 37);
    }
}

#[test]
fn the_text_has_a_hint_below_each_failure() {
    let root = Root::new();
    let ended = mpsgate(&["doctor", "--root", text(root.dir.path())]);
    ended.assert_code(1);
    assert!(ended.stdout.starts_with("SIMULATED: no GPU is behind"), "{ended:#?}");
    let mut lines = ended.stdout.lines();
    let mut failures = 0;
    while let Some(line) = lines.next() {
        if line.starts_with("fail ") {
            failures += 1;
            assert!(lines.next().unwrap().starts_with("      hint: "), "{line}");
        }
    }
    assert!(failures >= 3, "{ended:#?}");
    assert!(!ended.stdout.contains('\x1b'), "a pipe is not coloured");
}

#[test]
fn broken_files_are_found_where_they_are() {
    let root = Root::new();
    root.write("/run/mpsgate/ledger/ledger.json", EMPTY_LEDGER);
    root.assert("ledger", "ok", "0 entries");
    root.write("/run/mpsgate/ledger/ledger.json", "{\"format\":1");
    root.assert("ledger", "fail", "ledger.json is no ledger: EOF");
    root.write("/run/mpsgate/ledger/ledger.json", "{\"format\":2}");
    root.assert("ledger", "fail", "has format 2");
    root.write("/var/lib/mpsgate/managed.json", "{\"format\":1,\"cards\":[");
    root.assert("enabled", "fail", "managed.json is no list of cards: EOF");
    root.write("/var/lib/mpsgate/managed.json", "{\"format\":2,\"gpus\":[]}");
    root.assert("enabled", "fail", "managed.json has format 2, this mpsgate knows 1");
    root.write("/var/lib/mpsgate/managed.json", "{\"format\":1,\"cards\":[],\"stopped\":[]}");
    root.assert("enabled", "ok", "no card was handed over");
    root.write("/run/mpsgate/node.json", "{}");
    root.assert("snapshot", "fail", "node.json is no node snapshot: missing field `format`");
    let uuid = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77";
    let lease =
        format!("{{\"format\":1,\"uuid\":\"{uuid}\",\"previous\":\"default\",\"taken_at_s\":1}}");
    root.write(&format!("/var/lib/mpsgate/compute-mode/{uuid}"), &lease);
    root.assert("lease", "warn", "is not managed and was not given back its mode DEFAULT");
    root.write(&format!("/var/lib/mpsgate/compute-mode/{uuid}"), "");
    root.assert("lease", "fail", "cannot be read");
    std::fs::create_dir_all(root.at("/tmp/nvidia-mps")).unwrap();
    root.assert("default-mps", "warn", "/tmp/nvidia-mps exists");
    root.write("/proc/77/comm", "mpsgated\n");
    root.write(
        "/proc/77/limits",
        "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n",
    );
    root.assert("open-files", "fail", "hard limit 4096, MPS needs 16384");
    symlink("/usr/sbin/crun", root.at("/run/mpsgate/runtime")).unwrap();
    root.assert("runtime-link", "fail", "usr/sbin/crun, the configuration says");
    root.write("/etc/mpsgate/config.toml", "[gpu]\n");
    root.assert("config", "fail", "config.toml:1: unknown key `gpu`");
}

#[test]
fn what_stands_round_it_is_found_where_it_is() {
    let root = Root::new();
    root.write(
        "/var/lib/kubelet/cpu_manager_state",
        "{\"policyName\":\"static\",\"defaultCpuSet\":\"0-3\"}",
    );
    root.assert("kubelet", "warn", "policy static");
    root.write("/var/lib/kubelet/cpu_manager_state", "static");
    root.assert("kubelet", "fail", "cpu_manager_state names no policy");
    root.write("/sys/module/apparmor/parameters/enabled", "Y\n");
    root.assert("security-module", "ok", "AppArmor on");
    root.write("/sys/fs/selinux/enforce", "1");
    std::fs::create_dir_all(root.at("/run/mpsgate/mps/0/containers")).unwrap();
    root.assert("security-module", "warn", "containers has the type unknown");
    root.write("/sys/fs/selinux/enforce", "0");
    root.assert("security-module", "ok", "permissive");
    root.write("/run/mpsgate/ledger/ledger.json", EMPTY_LEDGER);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    std::fs::File::open(root.at("/run/mpsgate/ledger/ledger.json"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    root.assert("clock", "warn", "ledger.json was written 3");
    root.write("/var/lib/mpsgate/tokens/keys.json", "secret");
    std::fs::set_permissions(root.at("/var/lib/mpsgate/tokens"), PermissionsExt::from_mode(0o755))
        .unwrap();
    root.assert("tokens", "fail", "mode 0755");
}

#[test]
fn an_engine_is_evaluated_by_its_own_settings() {
    let root = Root::new();
    root.program("/usr/bin/dockerd", "#!/bin/sh\n");
    root.assert("engine", "warn", "bypasses mpsgate");
    let shim = r#""runtimes":{"mpsgate":{"path":"/usr/bin/mpsgate-runtime"}}"#;
    root.write("/etc/docker/daemon.json", &format!("{{\"default-runtime\":\"mpsgate\",{shim}}}"));
    root.assert("engine", "ok", "through mpsgate");
    root.write("/etc/docker/daemon.json", "{");
    root.assert("engine", "fail", "/etc/docker/daemon.json");
    root.write("/etc/docker/daemon.json", "{}");
    // A process of that name in a container, of a user, and of root's on the node.
    root.process(88, "dockerd", 0, "4026532000");
    root.assert("engine", "warn", "bypasses mpsgate");
    root.process(89, "dockerd", 1000, NODE_MOUNTS);
    root.assert("engine", "warn", "bypasses mpsgate");
    root.write(
        "/etc/mpsgate/config.toml",
        "[nvml]\nlibrary = \"/lib/libnvidia-ml.so.1\"\n[gpus]\nmanage = \"all\"\n",
    );
    root.assert("engine", "warn", "bypasses mpsgate");
    root.process(90, "dockerd", 0, NODE_MOUNTS);
    root.assert("engine", "fail", "bypasses mpsgate");
    root.process(91, "dockerd", 0, NODE_MOUNTS);
    root.assert("engine", "fail", "dockerd (pid 90); default runtime runc: runs runc");
}

#[test]
fn an_engine_whose_program_others_can_change_is_told_of_once() {
    let root = Root::new();
    root.process(90, "dockerd", 0, NODE_MOUNTS);
    root.write("/srv/dockerd", "");
    std::fs::set_permissions(root.at("/srv/dockerd"), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::remove_file(root.at("/proc/90/exe")).unwrap();
    symlink(root.at("/srv/dockerd"), root.at("/proc/90/exe")).unwrap();
    root.assert("engine", "warn", "/srv/dockerd, and is not taken for an engine");
    let ended = mpsgate(&["doctor", "--root", text(root.dir.path())]);
    assert_eq!(ended.stdout.matches("pid 90 runs ").count(), 1, "{ended:#?}");
}

#[test]
fn a_card_in_the_settings_is_evaluated_as_managed() {
    let root = Root::new();
    let config = "[nvml]\nlibrary = \"/lib/libnvidia-ml.so.1\"\n[gpus]\nmanage = \"all\"\n";
    root.write("/etc/mpsgate/config.toml", config);
    root.assert("compute-mode", "fail", "DEFAULT: a process that bypasses MPS");
    root.assert("mps-state", "fail", "2 cards are managed, 0 have a control daemon");
    std::fs::write(root.at("/lib/nvml.json"), fake_nvml::EXAMPLE.replace("\"7.5\"", "\"6.1\""))
        .unwrap();
    root.assert("card", "fail", "needs 7.0 (Volta) or newer, and is managed");
}

#[test]
fn a_runtime_that_fails_or_prints_nothing_is_found() {
    let root = Root::new();
    root.program("/usr/sbin/runc", "#!/bin/sh\nexit 3\n");
    root.assert("runtime", "fail", "runc --version failed: exit status: 3");
    root.program("/usr/sbin/runc", "#!/bin/sh\n");
    root.assert("runtime", "fail", "prints nothing");
    std::fs::remove_file(root.at("/usr/sbin/runc")).unwrap();
    root.assert("runtime", "fail", "no program \"runc\" was found");
}

#[test]
fn a_control_program_that_is_none_is_found() {
    let root = Root::new();
    std::fs::create_dir(root.at("/run")).unwrap();
    root.program("/usr/bin/nvidia-cuda-mps-control", "#!/bin/sh\nexit 1\n");
    let found = root.doctor();
    assert_eq!(found.get("mps-control").unwrap().0, "fail", "{found:?}");
    assert_eq!(std::fs::read_dir(root.at("/run")).unwrap().count(), 0, "nothing is left behind");
}
