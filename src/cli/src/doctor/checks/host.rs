//! What stands round mpsgate on this machine: the driver's module, engines, kubelet, security
//! modules, clock.

use super::{Finding, fail, failed, ok, skip, warn};
use crate::doctor::facts::{EngineFacts, Facts};

/// No clock that is right shows a time before this was written: 2025-01-01.
const CLOCK_FLOOR: u64 = 1_735_689_600;
/// What a clock may be set back by without harm.
const CLOCK_SLACK_S: u64 = 60;
/// Types that container-selinux lets containers write.
const CONTAINER_TYPES: [&str; 2] = ["container_file_t", "svirt_sandbox_file_t"];

/// The kernel's half of the driver, and whether the library is of the same version.
pub(super) fn driver(facts: &Facts) -> Vec<Finding> {
    const LOAD: &str = "install the NVIDIA driver, or load it: modprobe nvidia; why it does not load: dmesg | grep -i nvrm";
    if facts.is_simulated() {
        return vec![skip("the cards are simulated")];
    }
    let module = match &facts.module {
        Ok(Some(module)) => module,
        Ok(None) => return vec![fail("the kernel module nvidia is not loaded", LOAD)],
        Err(trouble) => return vec![failed(trouble, LOAD)],
    };
    let library = facts.nvml.as_ref().ok().and_then(|nvml| nvml.driver.as_ref().ok());
    vec![match library {
        Some(library) if library != module => fail(
            format!(
                "the kernel module is {module}, the library {library}: an upgrade of the driver was not finished"
            ),
            "drain the node and reboot it, or unload the old module: rmmod nvidia_uvm nvidia; modprobe nvidia",
        ),
        _ => ok(format!("kernel module {module}")),
    }]
}

/// Whether the engines really call mpsgate, by their own settings.
pub(super) fn engines(facts: &Facts) -> Vec<Finding> {
    const TRUST: &str = "what runs as an engine has to be root's alone, with the directories above \
                         it: chown root: PROGRAM; chmod go-w PROGRAM; sudo mpsgate doctor";
    if facts.engines.is_empty() && facts.doubts.is_empty() {
        return vec![skip("no containerd, Docker, Podman or CRI-O is installed")];
    }
    let managed = !facts.managed().is_empty();
    let known = facts.engines.iter().map(|engine| evaluate(engine, managed).about(engine.name));
    let doubt = |why: &String| warn(format!("{why}; its settings were not evaluated"), TRUST);
    known.chain(facts.doubts.iter().map(doubt)).collect()
}

fn evaluate(engine: &EngineFacts, managed: bool) -> Finding {
    let name = engine.name;
    if !engine.in_use && matches!(name, "containerd" | "crio") {
        return skip("no kubelet uses it here; Docker's own is evaluated as docker");
    }
    let ways = match &engine.ways {
        Ok(ways) => ways,
        Err(trouble) => return failed(trouble, &format!("mpsgate configure {name} --check")),
    };
    let version = engine.version.as_ref().map(|v| format!("{v}; ")).unwrap_or_default();
    // A card that nobody manages is protected from nobody; an engine that does not run starts
    // nothing.
    let say = if managed && engine.in_use { fail } else { warn };
    if let Some(pid) = ways.stale {
        return say(
            format!("{version}its daemon (pid {pid}) runs since before its settings were changed"),
            format!("systemctl restart {name}"),
        );
    }
    if !ways.round.is_empty() || ways.through.is_empty() {
        let round = if ways.round.is_empty() {
            "nothing in it leads to mpsgate".to_owned()
        } else {
            ways.round.join("; ")
        };
        return say(
            format!("{version}{round}"),
            format!("mpsgate configure {name} shows the change, --write makes it"),
        );
    }
    ok(format!("{version}{}", ways.through.join("; ")))
}

/// kubelet's CPU manager: with `static` it has the runtime update containers that run.
pub(super) fn kubelet(facts: &Facts) -> Vec<Finding> {
    vec![match &facts.cpu_manager {
        Err(trouble) => failed(trouble, "journalctl -u kubelet -n 50"),
        Ok(None) => ok("no kubelet keeps CPUs apart here"),
        Ok(Some(policy)) if policy == "static" => warn(
            "CPU manager policy static: kubelet updates running containers, which takes devices away that are not in \
             their spec (mpsgate's are; an NVIDIA hook's are not)",
            "cpuManagerPolicy: none in kubelet's configuration; then drain the node, rm \
             /var/lib/kubelet/cpu_manager_state, systemctl restart kubelet",
        ),
        Ok(Some(policy)) => ok(format!("CPU manager policy {policy}")),
    }]
}

/// SELinux and AppArmor: what containers may do with the directory of MPS that they are given.
pub(super) fn security(facts: &Facts) -> Vec<Finding> {
    let security = &facts.security;
    let apparmor = if security.apparmor {
        "AppArmor on: the engines' usual profile lets containers use MPS; one of your own needs the paths in docs/selinux.md"
    } else {
        ""
    };
    let Some(enforcing) = security.selinux else {
        return vec![ok(if security.apparmor { apparmor } else { "neither SELinux nor AppArmor" })];
    };
    let wrong = security
        .client_types
        .iter()
        .find(|(_, label)| label.as_deref().is_none_or(|label| !CONTAINER_TYPES.contains(&label)));
    vec![match wrong {
        Some((path, label)) if enforcing => warn(
            format!(
                "SELinux enforces; {} has the type {}: a container that SELinux confines cannot reach MPS",
                path.display(),
                label.as_deref().unwrap_or("unknown")
            ),
            "Docker and Podman with --ipc=host are not confined; for Kubernetes see docs/selinux.md: semanage fcontext -a \
             -t container_file_t '/run/mpsgate/mps/[0-9]+/containers(/.*)?', then restorecon -R /run/mpsgate/mps",
        ),
        _ if enforcing => ok("SELinux enforces; the directories for containers have their type"),
        _ => ok("SELinux is permissive"),
    }]
}

/// Ages of keys and of uses of tokens are told by the clock.
pub(super) fn clock(facts: &Facts) -> Vec<Finding> {
    const SET: &str = "let the clock be kept: timedatectl set-ntp true, or chronyc makestep; then look: timedatectl";
    let clock = &facts.clock;
    if clock.now < CLOCK_FLOOR {
        return vec![warn(
            format!("it stands at {} s since 1970, before this program was made", clock.now),
            SET,
        )];
    }
    vec![match &clock.newest {
        Some((path, written)) if *written > clock.now + CLOCK_SLACK_S => warn(
            format!(
                "it went back: {} was written {} s from now. Ages of keys and tokens, and times in logs, are wrong",
                path.display(),
                written - clock.now
            ),
            SET,
        ),
        _ => ok("not before what mpsgate last wrote"),
    }]
}
