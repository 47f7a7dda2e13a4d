//! MPS: its program, its control daemons, their gates.

use std::collections::BTreeMap;
use std::path::Path;

use mpsgate_config::paths;
use mpsgate_mps::{Capabilities, MpsDirectories, MpsInstance, MpsState, Server};

use super::installed_programs::Program;
use super::{Finding, Found, LOGS, fail, failed, ok, or, skip, warn};
use crate::doctor::doctor_node::Node;
use crate::doctor::trouble::{Known, Trouble, entries, read, there};

/// Why there is nothing to look at.
pub(super) const WITHOUT: &str = "the cards are shared without MPS (schedule share)";
pub(super) const NONE_MANAGED: &str = "no card is managed: mpsgate enable GPU";
/// The default pipe directory of MPS (NVIDIA MPS documentation).
const DEFAULT_MPS: &str = "/tmp/nvidia-mps";
const INSTALL: &str = "install the MPS programs of the NVIDIA driver (Debian: nvidia-cuda-mps), or \
                       set mps.control in /etc/mpsgate/config.toml";

struct Control {
    program: Program,
    /// `None`: there is no binary to ask.
    capabilities: Option<Known<Capabilities>>,
    /// What the control daemons' logs say of their version; 535 and 550 say nothing.
    version: Option<String>,
}

/// Runs the control program for a moment, in a directory of its own that is removed again.
pub(super) fn control(node: &Node) -> Found {
    let program = Program::gather(node.below(node.settings().mps.control));
    let is_program = program.file.as_ref().ok().and_then(Option::as_ref);
    let is_program = is_program.is_some_and(|file| file.mode & 0o111 != 0);
    let scratch = ["/run", "/tmp"].map(|dir| node.below(dir)).into_iter().find(|dir| dir.is_dir());
    let capabilities = scratch.filter(|_| is_program).map(|scratch| {
        Capabilities::probe(&program.path, &scratch)
            .map_err(|error| Trouble::of(&error, error.hint()))
    });
    // Drivers from 580 on write `CUDA MPS Control binary version: 13000` when they start.
    let cards = entries(&node.below(paths::MPS_DIR));
    let logs = cards.map(|card| card.path().join("log/control.log"));
    let version = logs.filter_map(|log| read(&log).ok().flatten()).find_map(|log| {
        let (_, rest) = log.rsplit_once("binary version:")?;
        rest.split_whitespace().next().map(str::to_owned)
    });
    judge_control(Control { program, capabilities, version }, node)
}

fn judge_control(Control { program, capabilities, version }: Control, node: &Node) -> Found {
    if node.shares() {
        return Err(skip(WITHOUT));
    }
    let path = program.path.display();
    let Some(file) = or(program.file.as_ref(), INSTALL)? else {
        return Err(fail(format!("{path} is missing"), INSTALL));
    };
    if file.mode & 0o111 == 0 {
        return Err(fail(
            format!("{path} has mode {:04o}: it cannot be run", file.mode),
            format!("chmod 755 {path}"),
        ));
    }
    if file.uid != 0 || file.mode & 0o022 != 0 {
        return Err(fail(
            format!(
                "{path} (uid {}, mode {:04o}) can be written by others than root",
                file.uid, file.mode
            ),
            "reinstall the package that brought it: it runs as root",
        ));
    }
    let Some(capabilities) = capabilities else {
        return Err(skip(format!("{path} was not tried")));
    };
    let is_multiuser = or(capabilities, INSTALL)?.multiuser;
    let multiuser = if is_multiuser { "one server for all uids" } else { "one server per uid" };
    let version = version.map(|v| format!(", version {v}")).unwrap_or_default();
    Ok(vec![ok(format!("{path}: {multiuser}{version}"))])
}

/// The control daemons by number of their directory below `/run/mpsgate/mps`.
type States = BTreeMap<u32, Known<MpsState>>;

/// What the control daemons answer to us, and which managed cards mpsgated finds without one.
pub(super) fn state(node: &Node) -> Found {
    judge_states(states(&node.below(paths::MPS_DIR), node), node)
}

fn states(directory: &Path, node: &Node) -> Known<States> {
    let control = node.below(node.settings().mps.control);
    let entries = there(std::fs::read_dir(directory));
    let entries = entries.map_err(|error| Trouble::io("read", directory, &error))?;
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let cards = names.filter_map(|name| name.to_str()?.parse().ok());
    Ok(cards.map(|card| (card, state_of(directory, card, &control))).collect())
}

fn state_of(directory: &Path, card: u32, control: &Path) -> Known<MpsState> {
    // The UUID only matters to a daemon that is started, and none is.
    let state = MpsDirectories::new(directory, card)
        .and_then(|dirs| MpsInstance::new(card, "", control, dirs).state());
    state.map_err(|error| Trouble::of(&error, error.hint()))
}

fn judge_states(states: Known<States>, node: &Node) -> Found {
    let states = or(states, LOGS)?;
    if node.shares() {
        let runs = |state: &Known<MpsState>| !matches!(state, Ok(MpsState::Dead { orphans }) if orphans.is_empty());
        let left = states.iter().filter(|(_, state)| runs(state));
        let left: Vec<Finding> = left.map(|(card, _)| left_over().about(card)).collect();
        return if left.is_empty() { Err(skip(WITHOUT)) } else { Ok(left) };
    }
    let managed = node.managed();
    if states.is_empty() && managed.is_empty() {
        return Err(skip(NONE_MANAGED));
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
    Ok(findings)
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
pub(super) fn gate(node: &Node) -> Found {
    let Ok(status) = &node.daemon else { return Err(skip("mpsgated does not tell")) };
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
    if findings.is_empty() { Err(ok("no card has a gate yet")) } else { Ok(findings) }
}

pub(super) fn default(node: &Node) -> Found {
    judge_default(node.below(DEFAULT_MPS).exists())
}

fn judge_default(exists: bool) -> Found {
    Ok(vec![if exists {
        warn(
            "/tmp/nvidia-mps exists: NVIDIA's container toolkit mounts it into every GPU container, \
             which then share one MPS daemon without limits",
            "stop that daemon (echo quit | nvidia-cuda-mps-control), then: rm -r /tmp/nvidia-mps",
        )
    } else {
        ok("no MPS daemon in the default directory")
    }])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use mpsgate_api::GateStatus;
    use mpsgate_mps::WedgeCause;

    use super::*;
    use crate::doctor::checks::installed_programs::ProgramFile;
    use crate::doctor::checks::tests::{
        FAIL, WARN, assert_calm, nothing_managed, trouble, turns_red,
    };
    use crate::doctor::elf::Linking;

    fn usual() -> Control {
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

    fn running() -> Known<States> {
        Ok([(0, Ok(MpsState::Running { pid: 7, servers: Vec::new() }))].into())
    }

    fn set(states: &mut Known<States>, state: MpsState) {
        *states = Ok([(3, Ok(state))].into());
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("mps-control", judge_control, usual, &[
            (|f, _| f.program.file = Ok(None), FAIL, "is missing", "nvidia-cuda-mps"),
            (|f, _| f.program.file = trouble("denied"), FAIL, "denied", "mps.control"),
            (|f, _| file(f).mode = 0o644, FAIL, "mode 0644", "chmod 755"),
            (|f, _| file(f).uid = 7, FAIL, "uid 7", "reinstall"),
            (|f, _| f.capabilities = Some(trouble("ended at once")), FAIL, "ended at once", "nvidia-cuda-mps"),
        ]);
        turns_red("mps-state", judge_states, running, &[
            (|f, _| set(f, MpsState::Dead { orphans: Vec::new() }), FAIL, "no control daemon runs", "mpsgate-mps@3"),
            (|f, _| set(f, MpsState::Dead { orphans: vec![9] }), FAIL, "[9] still hold the card", "mpsgate status"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::Stopped }), FAIL, "control daemon 7 does not answer: somebody stopped it, pid 7", "kill -CONT 7"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::ServerStopped { server: 9 } }), FAIL, "somebody stopped its MPS server, pid 9", "kill -CONT 9"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::LogBlocked }), FAIL, "its log was full", "systemctl restart mpsgated"),
            (|f, _| set(f, MpsState::Wedged { pid: 7, cause: WedgeCause::Unknown }), FAIL, "does not answer", "/proc/7/stack"),
            (|f, _| set(f, MpsState::Fault { pid: 7, servers: Vec::new() }), FAIL, "fatal GPU error", "Xid"),
            (|f, _| *f = Ok(BTreeMap::new()), FAIL, "1 cards are managed, 0 have", "systemctl restart mpsgated"),
            (|f, _| *f = trouble("denied"), FAIL, "denied", "journalctl"),
            (|f, _| *f.as_mut().unwrap().get_mut(&0).unwrap() = trouble("locked by pid 8"), FAIL, "locked by pid 8", "journalctl"),
        ]);
        turns_red("mps-gate", |(), n| gate(n), || (), &[
            (|(), n| n.said().cards.get_mut(0).unwrap().gate = Some(GateStatus { ended: [("uid".to_owned(), 2)].into(), ..GateStatus::default() }), WARN, "clients handed over 0, waiting 0, ended: uid 2", "journalctl -u mpsgate-gate@"),
        ]);
        turns_red("default-mps", |f, _| judge_default(f), || false, &[
            (|exists, _| *exists = true, WARN, "/tmp/nvidia-mps exists", "rm -r /tmp/nvidia-mps"),
        ]);
    }

    #[test]
    fn nothing_is_managed_after_installation_and_that_is_no_failure() {
        let found = assert_calm(judge_states(Ok(BTreeMap::new()), &nothing_managed()));
        assert_eq!(found[0].evidence, "no card is managed: mpsgate enable GPU");
    }
}
