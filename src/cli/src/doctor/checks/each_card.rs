//! Each card: whether MPS can share it, its compute mode, and what it has answered.

use mpsgate_api::CardStatus;
use mpsgate_config::paths;
use mpsgate_gpu::Card;
use mpsgate_model::{ComputeMode, Verdict};
use mpsgate_mps::{Lease, LeaseDir, MpsError};

use super::control_daemons::{NONE_MANAGED, WITHOUT};
use super::{Finding, Found, LOGS, fail, failed, ok, or, skip, warn};
use crate::doctor::doctor_node::Node;
use crate::doctor::trouble::{Known, Trouble};

/// Directory of the compute-mode leases, below [`paths::STATE_DIR`].
pub(in crate::doctor) const LEASES: &str = "compute-mode";

pub(super) fn card(node: &Node) -> Found {
    const LOOK: &str = "see which cards the driver finds: nvidia-smi -L, and NVRM lines in dmesg";
    let cards = match node.nvml.as_ref().map(|nvml| &nvml.cards) {
        Err(_) => return Err(skip("NVML does not answer")),
        Ok(cards) => or(cards.as_ref(), LOOK)?,
    };
    if cards.is_empty() {
        return Err(fail("NVML finds no card", LOOK));
    }
    let managed = node.managed();
    let one = |card: &Card| {
        let is_managed = managed.contains(&card.uuid);
        let (major, minor) = card.compute_capability;
        let finding = match card.fitness() {
            Ok(()) => ok(format!(
                "{} ({}), compute capability {major}.{minor}, {}",
                card.name,
                card.uuid,
                if is_managed { "managed" } else { "not managed" }
            )),
            Err(unfit) if is_managed => fail(format!("{unfit}, and is managed"), unfit.hint()),
            Err(unfit) => warn(format!("{unfit}; not managed"), unfit.hint()),
        };
        finding.about(card.index)
    };
    let mut findings: Vec<_> = cards
        .iter()
        .map(|card| card.as_ref().map_or_else(|trouble| failed(trouble, LOOK), one))
        .collect();
    let seen = |uuid: &String| node.cards().any(|card| card.uuid == *uuid);
    findings.extend(managed.iter().filter(|uuid| !seen(uuid)).map(|uuid| {
        fail(
            format!("{uuid} is managed, but NVML does not find it"),
            format!("see NVRM lines in dmesg; where it was taken out: mpsgate disable {uuid}"),
        )
    }));
    Ok(findings)
}

pub(super) fn compute_mode(node: &Node) -> Found {
    let managed = node.managed();
    let findings: Vec<_> = node
        .cards()
        .filter(|card| managed.contains(&card.uuid))
        .map(|card| {
            let finding = if node.shares() {
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
    if findings.is_empty() { Err(skip("no managed card can be seen")) } else { Ok(findings) }
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

/// A card's UUID, and the mode that it had before, as `nvidia-smi -c` takes it.
type Before = (String, &'static str);

pub(super) fn lease(node: &Node) -> Found {
    let failed = |error: MpsError| Trouble::of(&error, error.hint());
    let fact = |lease: Lease| (lease.uuid, lease.previous.as_str());
    let all = LeaseDir::new(node.below(paths::STATE_DIR).join(LEASES)).read_all();
    let all = all.map(|all| all.into_iter().map(|one| one.map(fact).map_err(failed)).collect());
    judge_lease(all.map_err(failed), node)
}

fn judge_lease(leases: Known<Vec<Known<Before>>>, node: &Node) -> Found {
    let leases = or(leases, LOGS)?;
    let managed = node.managed();
    let left_over = leases.iter().filter_map(|lease| match lease {
        Ok((uuid, _)) if managed.contains(uuid) => None,
        Ok((uuid, previous)) => Some(warn(
            format!("{uuid} is not managed and was not given back its mode {previous}"),
            format!(
                "systemctl restart mpsgated gives it back; without mpsgated: nvidia-smi -i {uuid} -c {previous}"
            ),
        )),
        Err(trouble) => Some(failed(trouble, LOGS)),
    });
    let mut findings: Vec<_> = left_over.collect();
    if findings.is_empty() {
        findings.push(ok(format!("{} held, none left over", leases.len())));
    }
    Ok(findings)
}

/// What the cards have answered to `mpsgate qualify`.
pub(super) fn qualified(node: &Node) -> Found {
    let Ok(status) = &node.daemon else { return Err(skip("mpsgated does not tell")) };
    if node.shares() {
        return Err(skip(WITHOUT));
    }
    let managed = status.cards.iter().filter(|card| card.managed);
    let findings: Vec<Finding> = managed.flat_map(|card| answers(card, status.simulated)).collect();
    if findings.is_empty() { Err(skip(NONE_MANAGED)) } else { Ok(findings) }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use mpsgate_gpu::MigState;

    use super::*;
    use crate::doctor::checks::Outcome;
    use crate::doctor::checks::tests::{
        FAIL, OTHER, UUID, WARN, assert_calm, card as a_card, node, nothing_managed, trouble,
        turns_red,
    };

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("card", |(), n| card(n), || (), &[
            (|(), n| n.with_card(|c| c.compute_capability = (6, 1)), FAIL, "needs 7.0 (Volta) or newer, and is managed", "gpus.manage"),
            (|(), n| n.with_card(|c| c.mig = MigState::Enabled), FAIL, "is in MIG mode", "-mig 0"),
            (|(), n| n.nvml().cards = Ok(vec![Ok(a_card()), Ok(Card { uuid: OTHER.into(), compute_capability: (6, 0), ..a_card() })]), WARN, "; not managed", "gpus.manage"),
            (|(), n| n.nvml().cards = Ok(vec![Ok(a_card()), trouble("cannot open card 1")]), FAIL, "cannot open card 1", "nvidia-smi -L"),
            (|(), n| n.nvml().cards = Ok(Vec::new()), FAIL, "no card", "nvidia-smi -L"),
            (|(), n| n.with_card(|c| c.uuid = OTHER.into()), FAIL, "is managed, but NVML does not find it", "mpsgate disable GPU-00000000"),
            (|(), n| n.nvml().cards = trouble("cannot count the cards"), FAIL, "cannot count", "nvidia-smi -L"),
        ]);
        turns_red("compute-mode", |(), n| compute_mode(n), || (), &[
            (|(), n| n.with_card(|c| c.compute_mode = ComputeMode::Default), FAIL, "DEFAULT: a process that bypasses MPS", "systemctl restart mpsgated"),
        ]);
        turns_red("lease", judge_lease, || Ok(vec![Ok((UUID.to_owned(), "DEFAULT"))]), &[
            (|f, _| *f = Ok(vec![Ok((OTHER.to_owned(), "DEFAULT"))]), WARN, "not given back its mode DEFAULT", "nvidia-smi -i GPU-11111111-1111-1111-1111-111111111111 -c DEFAULT"),
            (|f, _| *f = Ok(vec![trouble("the lease cannot be read")]), FAIL, "cannot be read", "journalctl"),
            (|f, _| *f = trouble("denied"), FAIL, "denied", "journalctl"),
        ]);
        turns_red("qualified", |(), n| qualified(n), || (), &[
            (|(), n| n.said().cards.get_mut(0).unwrap().failures = vec!["The memory limit does not hold on this card: a client with 1024 MiB got 4096".to_owned()], FAIL, "got 4096", "mpsgate qualify 0"),
            (|(), n| n.said().cards.get_mut(0).unwrap().qualify = Some("it was never asked".to_owned()), WARN, "not proven: it was never asked", "mpsgate qualify 0"),
        ]);
    }

    #[test]
    fn nothing_is_managed_after_installation_and_that_is_no_failure() {
        let node = nothing_managed();
        let lease = |node: &Node| judge_lease(Ok(Vec::new()), node);
        for check in [card, compute_mode, lease, qualified] {
            assert_calm(check(&node));
        }
    }

    #[test]
    fn an_mpsgated_that_tells_nothing_of_answers_is_not_taken_for_one_that_has_them() {
        let mut node = node();
        node.said().cards.get_mut(0).unwrap().qualification = None;
        assert_eq!(qualified(&node).unwrap()[0].result, Outcome::Skip);
    }
}
