//! MPS: its program, its control daemons, the mode of the cards.

use mpsgate_api::CardStatus;
use mpsgate_model::{ComputeMode, Verdict};
use mpsgate_mps::{MpsState, Server, WedgeCause};

use super::{Finding, fail, failed, ok, skip, warn};
use crate::doctor::facts::{Facts, Known};

/// Why there is nothing to look at.
const WITHOUT: &str = "the cards are shared without MPS (schedule share)";
const LOGS: &str = "journalctl -u mpsgated -n 50";

pub(super) fn control(facts: &Facts) -> Vec<Finding> {
    const INSTALL: &str = "install the MPS programs of the NVIDIA driver (Debian: nvidia-cuda-mps), or \
                           set mps.control in /etc/mpsgate/config.toml";
    if facts.shares() {
        return vec![skip(WITHOUT)];
    }
    let path = facts.control.path.display();
    let file = match &facts.control.file {
        Ok(Some(file)) => file,
        Ok(None) => return vec![fail(format!("{path} is missing"), INSTALL)],
        Err(trouble) => return vec![failed(trouble, INSTALL)],
    };
    if file.mode & 0o111 == 0 {
        return vec![fail(
            format!("{path} has mode {:04o}: it cannot be run", file.mode),
            format!("chmod 755 {path}"),
        )];
    }
    if file.uid != 0 || file.mode & 0o022 != 0 {
        return vec![fail(
            format!(
                "{path} (uid {}, mode {:04o}) can be written by others than root",
                file.uid, file.mode
            ),
            "reinstall the package that brought it: it runs as root",
        )];
    }
    let capabilities = match &facts.capabilities {
        Some(Ok(capabilities)) => capabilities,
        Some(Err(trouble)) => return vec![failed(trouble, INSTALL)],
        None => return vec![skip(format!("{path} was not tried"))],
    };
    let multiuser =
        if capabilities.multiuser { "one server for all uids" } else { "one server per uid" };
    let version = facts.mps_version.as_ref().map(|v| format!(", version {v}"));
    vec![ok(format!("{path}: {multiuser}{}", version.unwrap_or_default()))]
}

/// What the control daemons answer to us, and which managed cards mpsgated finds without one.
pub(super) fn state(facts: &Facts) -> Vec<Finding> {
    let states = match &facts.mps_states {
        Ok(states) => states,
        Err(trouble) => return vec![failed(trouble, LOGS)],
    };
    if facts.shares() {
        let runs = |state: &Known<MpsState>| !matches!(state, Ok(MpsState::Dead { orphans }) if orphans.is_empty());
        let left = states.iter().filter(|(_, state)| runs(state));
        let left: Vec<Finding> = left.map(|(card, _)| left_over().about(card)).collect();
        return if left.is_empty() { vec![skip(WITHOUT)] } else { left };
    }
    let managed = facts.managed();
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
        MpsState::Wedged { pid, cause } => wedged(*pid, cause),
        MpsState::Fault { pid, servers } => fail(
            format!("control daemon {pid}: a fatal GPU error, {}", list(servers)),
            "it recovers when the containers on this card have ended: mpsgate status; for the cause: \
             Xid lines in dmesg",
        ),
    }
}

fn wedged(pid: i32, cause: &WedgeCause) -> Finding {
    let evidence = format!("control daemon {pid} does not answer");
    match cause {
        WedgeCause::Stopped => {
            fail(format!("{evidence}: somebody stopped it"), format!("kill -CONT {pid}"))
        }
        WedgeCause::ServerStopped { server } => fail(
            format!("{evidence}: somebody stopped its server, pid {server}"),
            format!("kill -CONT {server}"),
        ),
        WedgeCause::LogBlocked => fail(
            format!("{evidence}: its log is full and nobody reads it"),
            format!("systemctl restart mpsgated reads it; {LOGS}"),
        ),
        WedgeCause::Unknown => fail(
            evidence,
            format!("mpsgate status; see what it does: cat /proc/{pid}/stack; {LOGS}"),
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
pub(super) fn gate(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.daemon else { return vec![skip("mpsgated does not tell")] };
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

/// What the cards have answered to `mpsgate qualify`.
pub(super) fn qualified(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.daemon else { return vec![skip("mpsgated does not tell")] };
    if facts.shares() {
        return vec![skip(WITHOUT)];
    }
    let managed = status.cards.iter().filter(|card| card.managed);
    let findings: Vec<Finding> = managed.flat_map(|card| answers(card, status.simulated)).collect();
    if findings.is_empty() {
        vec![skip("no card is managed: mpsgate enable GPU")]
    } else {
        findings
    }
}

fn answers(card: &CardStatus, is_simulated: bool) -> Vec<Finding> {
    let ask = format!("mpsgate qualify {}", card.index);
    let failing = card.failures.iter().map(|failure| {
        let hint = format!(
            "do not rely on it for containers that are not trusted; once the driver is another: {ask}"
        );
        fail(failure.as_str(), hint)
    });
    let mut findings: Vec<Finding> = failing.collect();
    match &card.qualify {
        _ if is_simulated && findings.is_empty() => {
            findings.push(skip("not asked what holds on it: the GPU is simulated"));
        }
        Some(why) => findings.push(warn(
            format!("what holds on it is not proven: {why}"),
            format!("while it has no grants: {ask}"),
        )),
        None if card.qualification.is_none() => {
            findings.push(skip("this mpsgated does not tell what holds on it: it is an older one"));
        }
        None if findings.is_empty() => {
            let answers = card.qualification.iter().flat_map(|found| &found.answers);
            let open: Vec<&str> = answers
                .filter(|answer| answer.verdict == Verdict::Unanswered)
                .map(|answer| answer.question.as_str())
                .collect();
            findings.push(if open.is_empty() {
                ok("every question was answered as expected")
            } else {
                warn(format!("could not be asked: {}", open.join(", ")), ask)
            });
        }
        None => {}
    }
    findings.into_iter().map(|finding| finding.about(card.index)).collect()
}

pub(super) fn compute_mode(facts: &Facts) -> Vec<Finding> {
    let managed = facts.managed();
    let mut findings: Vec<_> = facts
        .cards()
        .filter(|card| managed.contains(&card.uuid))
        .map(|card| {
            let finding = if facts.shares() {
                shared_mode(card.compute_mode, &card.uuid)
            } else if card.compute_mode == ComputeMode::ExclusiveProcess {
                ok("EXCLUSIVE_PROCESS")
            } else {
                fail(
                    format!("{}: a process that bypasses MPS gets the card", card.compute_mode),
                    format!("systemctl restart mpsgated sets it; {LOGS}"),
                )
            };
            finding.about(card.index)
        })
        .collect();
    if findings.is_empty() {
        findings.push(skip("no managed card can be seen"));
    }
    findings
}

fn shared_mode(mode: ComputeMode, uuid: &str) -> Finding {
    if mode == ComputeMode::Default {
        return ok("DEFAULT, as without MPS");
    }
    fail(
        format!("{mode}: containers cannot share the card without MPS"),
        format!("end what has set it, then: nvidia-smi -i {uuid} -c DEFAULT"),
    )
}

pub(super) fn lease(facts: &Facts) -> Vec<Finding> {
    let leases = match &facts.leases {
        Ok(leases) => leases,
        Err(trouble) => return vec![failed(trouble, LOGS)],
    };
    let managed = facts.managed();
    let mut findings = Vec::new();
    for lease in leases {
        let lease = match lease {
            Ok(lease) => lease,
            Err(trouble) => {
                findings.push(failed(trouble, LOGS));
                continue;
            }
        };
        if !managed.contains(&lease.uuid) {
            findings.push(warn(
                format!("{} is not managed and was not given back its mode {}", lease.uuid, lease.previous),
                format!(
                    "systemctl restart mpsgated gives it back; without mpsgated: nvidia-smi -i {} -c {}",
                    lease.uuid, lease.previous
                ),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(ok(format!("{} held, none left over", leases.len())));
    }
    findings
}

pub(super) fn default_daemon(facts: &Facts) -> Vec<Finding> {
    vec![if facts.default_mps {
        warn(
            "/tmp/nvidia-mps exists: NVIDIA's container toolkit mounts it into every GPU container, \
             which then share one MPS daemon without limits",
            "stop that daemon (echo quit | nvidia-cuda-mps-control), then: rm -r /tmp/nvidia-mps",
        )
    } else {
        ok("no MPS daemon in the default directory")
    }]
}
