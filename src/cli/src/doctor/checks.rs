//! The checks: each gathers what it alone looks at, and decides that. What several rest on is
//! [`Node`]'s. To decide is pure, so that a test can show each check a broken node.
//!
//! A file has the checks of one subject, with their texts and their tests.
//!
//! `fail`: containers are refused, or a limit does not hold. `warn`: works, and somebody should
//! know. `skip`: cannot be evaluated here, mostly because of another finding.

mod callers;
mod control_daemons;
mod each_card;
mod installed_programs;
mod mpsgated;
mod node_kernel;
mod nvidia_driver;
mod own_settings;
mod state_files;

use std::borrow::Borrow;

use serde::Serialize;

pub(super) use self::each_card::LEASES;
pub(super) use self::nvidia_driver::MODULE_FILE;
pub(super) use self::state_files::LEDGER_FILE;

use super::doctor_node::Node;
use super::trouble::Trouble;

const LOGS: &str = "journalctl -u mpsgated -n 50";
const RESTART: &str = "systemctl restart mpsgated";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Ok,
    Warn,
    Fail,
    Skip,
}

impl Outcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// What one check found. The names are stable: scripts select by them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    /// Which card, program or process, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<String>,
    pub(super) result: Outcome,
    pub(super) evidence: String,
    /// What to do; always there where something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

/// Something of each thing that is looked at; or what ends the check.
type Found = Result<Vec<Finding>, Finding>;
type Check = fn(&Node) -> Found;

/// Every check, in the order of the report: what the others rest on comes first.
pub(super) const CHECKS: &[(&str, Check)] = &[
    ("root", own_settings::root),
    ("config", own_settings::config),
    ("kernel", node_kernel::kernel),
    ("pidfd", node_kernel::pidfd),
    ("cgroup", node_kernel::cgroup),
    ("clock", state_files::clock),
    ("security-module", node_kernel::security),
    ("driver", nvidia_driver::module),
    ("nvml", nvidia_driver::nvml),
    ("card", each_card::card),
    ("memory-limits", nvidia_driver::memory_limits),
    ("device-nodes", nvidia_driver::device_nodes),
    ("runtime", installed_programs::runtime),
    ("programs", installed_programs::own),
    ("engine", callers::engine),
    ("kubelet", callers::kubelet),
    ("daemon", mpsgated::daemon),
    ("metrics", mpsgated::metrics),
    ("socket-paths", state_files::socket_paths),
    ("ledger", state_files::ledger),
    ("enabled", own_settings::enabled),
    ("tokens", state_files::tokens),
    ("device-plugin", mpsgated::device_plugin),
    ("claims", mpsgated::claims),
    ("slurm", mpsgated::slurm),
    ("api-server", mpsgated::api_server),
    ("snapshot", state_files::snapshot),
    ("runtime-link", installed_programs::runtime_link),
    ("ipc", node_kernel::ipc),
    ("open-files", node_kernel::open_files),
    ("mps-control", control_daemons::control),
    ("mps-state", control_daemons::state),
    ("mps-gate", control_daemons::gate),
    ("qualified", each_card::qualified),
    ("compute-mode", each_card::compute_mode),
    ("lease", each_card::lease),
    ("default-mps", control_daemons::default),
];

/// Runs every check.
pub(super) fn all(node: &Node) -> Vec<Finding> {
    let look = |&(name, check): &(&'static str, Check)| {
        let found = check(node).unwrap_or_else(|finding| vec![finding]);
        found.into_iter().map(move |finding| Finding { name, ..finding })
    };
    CHECKS.iter().flat_map(look).collect()
}

fn finding(result: Outcome, evidence: impl Into<String>, hint: Option<String>) -> Finding {
    Finding { name: "", subject: None, result, evidence: evidence.into(), hint }
}

fn ok(evidence: impl Into<String>) -> Finding {
    finding(Outcome::Ok, evidence, None)
}

fn skip(evidence: impl Into<String>) -> Finding {
    finding(Outcome::Skip, evidence, None)
}

fn warn(evidence: impl Into<String>, hint: impl Into<String>) -> Finding {
    finding(Outcome::Warn, evidence, Some(hint.into()))
}

fn fail(evidence: impl Into<String>, hint: impl Into<String>) -> Finding {
    finding(Outcome::Fail, evidence, Some(hint.into()))
}

/// A missing fact is a failure, with the error's own remedy where it has one.
fn failed(trouble: &Trouble, otherwise: &str) -> Finding {
    let hint = trouble.hint.clone().unwrap_or_else(|| otherwise.to_owned());
    fail(trouble.what.clone(), hint)
}

/// Without its fact a check is a failure.
fn or<T>(fact: Result<T, impl Borrow<Trouble>>, otherwise: &str) -> Result<T, Finding> {
    fact.map_err(|trouble| failed(trouble.borrow(), otherwise))
}

impl Finding {
    fn about(self, subject: impl ToString) -> Self {
        Self { subject: Some(subject.to_string()), ..self }
    }
}

#[cfg(test)]
mod tests;
