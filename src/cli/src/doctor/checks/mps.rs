//! MPS: its program, its control daemons, their gates.

use std::collections::BTreeMap;
use std::path::Path;

use mpsgate_config::paths;
use mpsgate_mps::{Capabilities, MpsDirectories, MpsInstance, MpsState, Server};

use super::programs::Program;
use super::{Check, Finding, LOGS, Told, fail, failed, ok, skip, warn};
use crate::doctor::node::Node;
use crate::doctor::root::{Known, Root, Trouble, read, there};

/// Why there is nothing to look at.
pub(super) const WITHOUT: &str = "the cards are shared without MPS (schedule share)";
/// The default pipe directory of MPS (NVIDIA MPS documentation).
const DEFAULT_MPS: &str = "/tmp/nvidia-mps";
const INSTALL: &str = "install the MPS programs of the NVIDIA driver (Debian: nvidia-cuda-mps), or \
                       set mps.control in /etc/mpsgate/config.toml";

pub(super) const CONTROL: Check<Control> = Check {
    name: "mps-control",
    gather: |root, node| Ok(control(root, node)),
    judge: |control, node| vec![judge_control(control, node)],
    otherwise: "",
};

pub(super) struct Control {
    program: Program,
    /// `None`: there is no binary to ask.
    capabilities: Option<Known<Capabilities>>,
    /// What the control daemons' logs say of their version; 535 and 550 say nothing.
    version: Option<String>,
}

/// Runs the control program for a moment, in a directory of its own that is removed again.
fn control(root: Root<'_>, node: &Node) -> Control {
    let program = Program::gather(root.below(node.settings().mps.control));
    let is_program = program.file.as_ref().ok().and_then(Option::as_ref);
    let is_program = is_program.is_some_and(|file| file.mode & 0o111 != 0);
    let scratch = ["/run", "/tmp"].map(|dir| root.below(dir)).into_iter().find(|dir| dir.is_dir());
    let capabilities = scratch.filter(|_| is_program).map(|scratch| {
        Capabilities::probe(&program.path, &scratch)
            .map_err(|error| Trouble::of(&error, error.hint()))
    });
    // Drivers from 580 on write `CUDA MPS Control binary version: 13000` when they start.
    let logs = root.entries(paths::MPS_DIR).map(|card| card.path().join("log/control.log"));
    let version = logs.filter_map(|log| read(&log).ok().flatten()).find_map(|log| {
        let (_, rest) = log.rsplit_once("binary version:")?;
        rest.split_whitespace().next().map(str::to_owned)
    });
    Control { program, capabilities, version }
}

fn judge_control(control: &Control, node: &Node) -> Finding {
    if node.shares() {
        return skip(WITHOUT);
    }
    let path = control.program.path.display();
    let file = match &control.program.file {
        Ok(Some(file)) => file,
        Ok(None) => return fail(format!("{path} is missing"), INSTALL),
        Err(trouble) => return failed(trouble, INSTALL),
    };
    if file.mode & 0o111 == 0 {
        return fail(
            format!("{path} has mode {:04o}: it cannot be run", file.mode),
            format!("chmod 755 {path}"),
        );
    }
    if file.uid != 0 || file.mode & 0o022 != 0 {
        return fail(
            format!(
                "{path} (uid {}, mode {:04o}) can be written by others than root",
                file.uid, file.mode
            ),
            "reinstall the package that brought it: it runs as root",
        );
    }
    let capabilities = match &control.capabilities {
        Some(Ok(capabilities)) => capabilities,
        Some(Err(trouble)) => return failed(trouble, INSTALL),
        None => return skip(format!("{path} was not tried")),
    };
    let multiuser =
        if capabilities.multiuser { "one server for all uids" } else { "one server per uid" };
    let version = control.version.as_ref().map(|v| format!(", version {v}"));
    ok(format!("{path}: {multiuser}{}", version.unwrap_or_default()))
}

/// What the control daemons answer to us, by number of their directory below `/run/mpsgate/mps`,
/// and which managed cards mpsgated finds without one.
pub(super) const STATE: Check<BTreeMap<u32, Known<MpsState>>> =
    Check { name: "mps-state", gather: states, judge: judge_states, otherwise: LOGS };

fn states(root: Root<'_>, node: &Node) -> Known<BTreeMap<u32, Known<MpsState>>> {
    let (directory, control) =
        (root.below(paths::MPS_DIR), root.below(node.settings().mps.control));
    let entries = there(std::fs::read_dir(&directory));
    let entries = entries.map_err(|error| Trouble::io("read", &directory, &error))?;
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let cards = names.filter_map(|name| name.to_str()?.parse().ok());
    Ok(cards.map(|card| (card, state(&directory, card, &control))).collect())
}

fn state(directory: &Path, card: u32, control: &Path) -> Known<MpsState> {
    // The UUID only matters to a daemon that is started, and none is.
    let state = MpsDirectories::new(directory, card)
        .and_then(|dirs| MpsInstance::new(card, "", control, dirs).state());
    state.map_err(|error| Trouble::of(&error, error.hint()))
}

fn judge_states(states: &BTreeMap<u32, Known<MpsState>>, node: &Node) -> Vec<Finding> {
    if node.shares() {
        let runs = |state: &Known<MpsState>| !matches!(state, Ok(MpsState::Dead { orphans }) if orphans.is_empty());
        let left = states.iter().filter(|(_, state)| runs(state));
        let left: Vec<Finding> = left.map(|(card, _)| left_over().about(card)).collect();
        return if left.is_empty() { vec![skip(WITHOUT)] } else { left };
    }
    let managed = node.managed();
    if states.is_empty() && managed.is_empty() {
        return vec![skip("no card is managed: mpsgate enable GPU")];
    }
    let mut findings: Vec<_> = states
        .iter()
        .map(|(card, state)| {
            let finding = match state {
                Ok(state) => evaluate(state, *card),
                Err(trouble) => failed(trouble, LOGS),
            };
            finding.about(card)
        })
        .collect();
    if states.len() < managed.len() {
        findings.push(fail(
            format!("{} cards are managed, {} have a control daemon", managed.len(), states.len()),
            format!("systemctl restart mpsgated; {LOGS}"),
        ));
    }
    findings
}

/// A control daemon, or a server of one, where there should be none.
fn left_over() -> Finding {
    warn(
        "MPS runs on a card, and the cards are shared without it",
        format!("systemctl restart mpsgated ends it; {LOGS}"),
    )
}

fn evaluate(state: &MpsState, card: u32) -> Finding {
    let unit = format!(
        "journalctl -u mpsgate-mps@{card} -u mpsgate-hold -n 50; without systemd /run/mpsgate/hold/hold.log"
    );
    match state {
        MpsState::Running { pid, servers } => {
            ok(format!("control daemon {pid} answers, {}", list(servers)))
        }
        MpsState::Dead { orphans } if orphans.is_empty() => fail(
            "no control daemon runs",
            format!("mpsgated starts it again; if it does not last: {unit}"),
        ),
        MpsState::Dead { orphans } => fail(
            format!("no control daemon runs; its servers {orphans:?} still hold the card"),
            format!("end the containers on it (mpsgate status), then: {unit}"),
        ),
        MpsState::Wedged { pid, cause } => {
            let (why, hint) = cause.explain(pid);
            fail(format!("control daemon {pid} does not answer{why}"), hint)
        }
        MpsState::Fault { pid, servers } => fail(
            format!("control daemon {pid}: a fatal GPU error, {}", list(servers)),
            "it recovers when the containers on this card have ended: mpsgate status; for the cause: \
             Xid lines in dmesg",
        ),
    }
}

fn list(servers: &[Server]) -> String {
    if servers.is_empty() {
        return "no server yet".to_owned();
    }
    let one = |server: &Server| match server.uid {
        Some(uid) => format!("server {} of uid {uid}: {:?}", server.pid, server.status),
        None => format!("server {}: {:?}", server.pid, server.status),
    };
    servers.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Clients that were ended at their containers' doors get no more than error 805.
pub(super) const GATE: Told = Told { name: "mps-gate", judge: gate };

fn gate(node: &Node) -> Vec<Finding> {
    let Ok(status) = &node.daemon else { return vec![skip("mpsgated does not tell")] };
    let gates = status.cards.iter().filter_map(|card| {
        let gate = card.gate.as_ref()?;
        let finding = if gate.ended.is_empty() {
            ok(gate.to_string())
        } else {
            warn(
                gate.to_string(),
                format!(
                    "journalctl -u mpsgate-gate@{} -g 'client ended' names their containers; \
                     docs/gate.md says what the reasons mean",
                    card.minor
                ),
            )
        };
        Some(finding.about(card.index))
    });
    let findings: Vec<Finding> = gates.collect();
    if findings.is_empty() { vec![ok("no card has a gate yet")] } else { findings }
}

pub(super) const DEFAULT: Check<bool> = Check {
    name: "default-mps",
    gather: |root, _| Ok(root.below(DEFAULT_MPS).exists()),
    judge: |exists, _| vec![default_daemon(*exists)],
    otherwise: "",
};

fn default_daemon(exists: bool) -> Finding {
    if exists {
        warn(
            "/tmp/nvidia-mps exists: NVIDIA's container toolkit mounts it into every GPU container, \
             which then share one MPS daemon without limits",
            "stop that daemon (echo quit | nvidia-cuda-mps-control), then: rm -r /tmp/nvidia-mps",
        )
    } else {
        ok("no MPS daemon in the default directory")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use mpsgate_api::GateStatus;
    use mpsgate_mps::WedgeCause;

    use super::*;
    use crate::doctor::checks::programs::ProgramFile;
    use crate::doctor::checks::tests::{FAIL, WARN, assert_calm, nothing_managed, trouble};
    use crate::doctor::elf::Linking;

    fn control() -> Control {
        let path = "/usr/bin/nvidia-cuda-mps-control".into();
        let capabilities = Capabilities { multiuser: false, server_status: true };
        Control {
            program: Program {
                path,
                file: Ok(Some(ProgramFile { uid: 0, mode: 0o755, linking: Linking::Static })),
            },
            capabilities: Some(Ok(capabilities)),
            version: None,
        }
    }

    fn file(control: &mut Control) -> &mut ProgramFile {
        control.program.file.as_mut().unwrap().as_mut().unwrap()
    }

    fn running() -> BTreeMap<u32, Known<MpsState>> {
        [(0, Ok(MpsState::Running { pid: 7, servers: Vec::new() }))].into()
    }

    fn set(states: &mut BTreeMap<u32, Known<MpsState>>, state: MpsState) {
        *states = [(3, Ok(state))].into();
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        CONTROL.turns_red(control, "", &[
            (|f, _| f.program.file = Ok(None), FAIL, "is missing", "nvidia-cuda-mps"),
            (|f, _| f.program.file = trouble("denied"), FAIL, "denied", "mps.control"),
            (|f, _| file(f).mode = 0o644, FAIL, "mode 0644", "chmod 755"),
            (|f, _| file(f).uid = 7, FAIL, "uid 7", "reinstall"),
            (|f, _| f.capabilities = Some(trouble("ended at once")), FAIL, "ended at once", "nvidia-cuda-mps"),
        ]);
        STATE.turns_red(running, "journalctl", &[
            (|f, _| set(f, MpsState::Dead { orphans: Vec::new() }), FAIL, "no control daemon runs", "mpsgate-mps@3"),
            (|f, _| set(f, MpsState::Dead { orphans: vec![9] }), FAIL, "[9] still hold the card", "mpsgate status"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::Stopped }), FAIL, "control daemon 7 does not answer: somebody stopped it, pid 7", "kill -CONT 7"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::ServerStopped { server: 9 } }), FAIL, "somebody stopped its MPS server, pid 9", "kill -CONT 9"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::LogBlocked }), FAIL, "its log was full", "systemctl restart mpsgated"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::Unknown }), FAIL, "does not answer", "/proc/7/stack"),
            (|f, _| set(f, MpsState::Fault { pid: 7, servers: Vec::new() }), FAIL, "fatal GPU error", "Xid"),
            (|f, _| f.clear(), FAIL, "1 cards are managed, 0 have", "systemctl restart mpsgated"),
            (|f, _| *f.get_mut(&0).unwrap() = trouble("locked by pid 8"), FAIL, "locked by pid 8", "journalctl"),
        ]);
        GATE.turns_red(&[
            (|n| n.said().cards.get_mut(0).unwrap().gate = Some(GateStatus { ended: [("uid".to_owned(), 2)].into(), ..GateStatus::default() }), WARN, "clients handed over 0, waiting 0, ended: uid 2", "journalctl -u mpsgate-gate@"),
        ]);
        DEFAULT.turns_red(|| false, "", &[
            (|exists, _| *exists = true, WARN, "/tmp/nvidia-mps exists", "rm -r /tmp/nvidia-mps"),
        ]);
    }

    #[test]
    fn nothing_is_managed_after_installation_and_that_is_no_failure() {
        let found = judge_states(&BTreeMap::new(), &nothing_managed());
        assert_calm(&found);
        assert_eq!(found[0].evidence, "no card is managed: mpsgate enable GPU");
    }
}
