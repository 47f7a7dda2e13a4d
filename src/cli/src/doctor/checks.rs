//! The checks: facts in, findings out. Pure, so that a test can show each of them a broken node.
//!
//! `fail`: containers are refused, or a limit does not hold. `warn`: works, and somebody should
//! know. `skip`: cannot be evaluated here, mostly because of another finding.

mod host;
mod mps;
mod node;
mod own;

use serde::Serialize;

use super::facts::{Facts, Trouble};

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

type Check = fn(&Facts) -> Vec<Finding>;

/// Every check, in the order of the report: what the others rest on comes first.
pub(super) const CHECKS: &[(&str, Check)] = &[
    ("root", own::root),
    ("config", own::config),
    ("kernel", node::kernel),
    ("pidfd", node::pidfd),
    ("cgroup", node::cgroup),
    ("clock", host::clock),
    ("security-module", host::security),
    ("driver", host::driver),
    ("nvml", node::nvml),
    ("card", node::cards),
    ("memory-limits", node::memory_limits),
    ("device-nodes", node::device_nodes),
    ("runtime", own::runtime),
    ("programs", own::programs),
    ("engine", host::engines),
    ("kubelet", host::kubelet),
    ("daemon", own::daemon),
    ("metrics", own::metrics),
    ("socket-paths", own::socket_paths),
    ("ledger", own::ledger),
    ("enabled", own::enabled),
    ("tokens", own::tokens),
    ("device-plugin", own::device_plugin),
    ("claims", own::claims),
    ("slurm", own::slurm),
    ("api-server", own::api_server),
    ("snapshot", own::snapshot),
    ("runtime-link", own::runtime_link),
    ("ipc", node::ipc),
    ("open-files", node::open_files),
    ("mps-control", mps::control),
    ("mps-state", mps::state),
    ("mps-gate", mps::gate),
    ("qualified", mps::qualified),
    ("compute-mode", mps::compute_mode),
    ("lease", mps::lease),
    ("default-mps", mps::default_daemon),
];

/// Runs every check.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    CHECKS.iter().flat_map(|(name, check)| named(name, check(facts))).collect()
}

fn named(name: &'static str, findings: Vec<Finding>) -> impl Iterator<Item = Finding> {
    findings.into_iter().map(move |finding| Finding { name, ..finding })
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

impl Finding {
    fn about(self, subject: impl ToString) -> Self {
        Self { subject: Some(subject.to_string()), ..self }
    }
}
