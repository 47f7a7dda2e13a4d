//! The checks: each gathers what it alone looks at, and judges that. To judge is pure, so that a
//! test can show each check a broken node.
//!
//! A file has the checks of one subject, with their texts and their tests. What several subjects
//! rest on is [`Node`]'s.
//!
//! `fail`: containers are refused, or a limit does not hold. `warn`: works, and somebody should
//! know. `skip`: cannot be evaluated here, mostly because of another finding.

mod cards;
mod driver;
mod engines;
mod files;
mod kernel;
mod mps;
mod mpsgated;
mod programs;
mod settings;

use serde::Serialize;

pub(super) use self::cards::LEASES;
pub(super) use self::driver::MODULE_FILE;
pub(super) use self::files::LEDGER_FILE;

use super::node::Node;
use super::root::{Known, Root, Trouble};

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

/// A check of what it gathers itself. No more than the gathering touches the node.
struct Check<F> {
    name: &'static str,
    gather: fn(Root<'_>, &Node) -> Known<F>,
    judge: fn(&F, &Node) -> Vec<Finding>,
    /// What to do where nothing can be gathered, unless the error says it.
    otherwise: &'static str,
}

/// A check of what is known of the node already.
struct Told {
    name: &'static str,
    judge: fn(&Node) -> Vec<Finding>,
}

pub(super) trait Look: Sync {
    fn look(&self, root: Root<'_>, node: &Node) -> Vec<Finding>;
}

impl<F> Look for Check<F> {
    fn look(&self, root: Root<'_>, node: &Node) -> Vec<Finding> {
        self.find(&(self.gather)(root, node), node)
    }
}

impl<F> Check<F> {
    fn find(&self, gathered: &Known<F>, node: &Node) -> Vec<Finding> {
        named(
            self.name,
            match gathered {
                Ok(facts) => (self.judge)(facts, node),
                Err(trouble) => vec![failed(trouble, self.otherwise)],
            },
        )
    }
}

impl Look for Told {
    fn look(&self, _: Root<'_>, node: &Node) -> Vec<Finding> {
        named(self.name, (self.judge)(node))
    }
}

/// Every check, in the order of the report: what the others rest on comes first.
pub(super) const CHECKS: &[&dyn Look] = &[
    &settings::ROOT,
    &settings::CONFIG,
    &kernel::KERNEL,
    &kernel::PIDFD,
    &kernel::CGROUP,
    &files::CLOCK,
    &kernel::SECURITY,
    &driver::MODULE,
    &driver::NVML,
    &cards::CARD,
    &driver::MEMORY_LIMITS,
    &driver::DEVICE_NODES,
    &programs::RUNTIME,
    &programs::OWN,
    &engines::ENGINE,
    &engines::KUBELET,
    &mpsgated::DAEMON,
    &mpsgated::METRICS,
    &files::SOCKET_PATHS,
    &files::LEDGER,
    &settings::ENABLED,
    &files::TOKENS,
    &mpsgated::DEVICE_PLUGIN,
    &mpsgated::CLAIMS,
    &mpsgated::SLURM,
    &mpsgated::API_SERVER,
    &files::SNAPSHOT,
    &programs::RUNTIME_LINK,
    &kernel::IPC,
    &kernel::OPEN_FILES,
    &mps::CONTROL,
    &mps::STATE,
    &mps::GATE,
    &cards::QUALIFIED,
    &cards::COMPUTE_MODE,
    &cards::LEASE,
    &mps::DEFAULT,
];

/// Runs every check.
pub(super) fn all(root: Root<'_>, node: &Node) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check.look(root, node)).collect()
}

fn named(name: &'static str, findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().map(|finding| Finding { name, ..finding }).collect()
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

#[cfg(test)]
mod tests;
