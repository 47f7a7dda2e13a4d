//! What comes out of a decision: a verdict, and everything that led to it.

use mpsgate_config::{Privileged, Unallocated};
use mpsgate_model::{ComputeShare, Mib, Refusal, Request};
use mpsgate_oci::spec::Edit;

use crate::found::{Note, Signal};
use crate::input::Input;
use crate::reach::is_privileged;

/// What to do with a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Start it as it is.
    Pass,
    /// Change its spec, then start it.
    Edit(Vec<Edit>),
    /// Ask the daemon for a grant; its edits come with [`crate::grant_edits()`].
    Reserve(Box<Wanted>),
    /// Do not start it.
    Refuse(Refusal),
}

/// A request that the spec itself does not forbid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What is asked for.
    pub request: Request,
    /// Host uid of the container's CUDA processes.
    pub uid: u32,
    /// The container's own, lower limit per process.
    pub own_limit: Option<Mib>,
    /// The container's own, lower share of the SMs.
    pub own_share: Option<ComputeShare>,
    /// Names of the variables with a claim's token, which no process of it is to have.
    pub claim_variables: Vec<String>,
    /// What takes every other way to a GPU away.
    pub edits: Vec<Edit>,
}

/// A verdict, and everything that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub verdict: Verdict,
    /// Every signal, those too that a request or a setting answers.
    pub signals: Vec<Signal>,
    /// What an operator should know besides: to be logged, one line each, and one of each code and
    /// action.
    pub notes: Vec<Note>,
    /// What must hold when the edits are made: for [`crate::settle()`].
    pub held: Held,
}

/// What must hold of a document when its edits are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Nothing: the settings let it through, or it is privileged, and nobody is stopped for that.
    Nothing,
    /// Nothing of a managed card is within reach, but for devices that the edits add: those of its
    /// grant.
    Closed,
}

impl Held {
    /// What must hold of the document that a verdict's edits leave.
    pub(crate) fn of(input: &Input<'_>, verdict: &Verdict) -> Self {
        let policy = input.policy;
        match verdict {
            Verdict::Pass | Verdict::Refuse(_) => Self::Nothing,
            Verdict::Reserve(_) => Self::Closed,
            Verdict::Edit(_) if is_privileged(input.view) => match policy.privileged {
                Privileged::Close => Self::Closed,
                Privileged::RemoveNodes => Self::Nothing,
            },
            Verdict::Edit(_) if policy.unallocated == Unallocated::Warn => Self::Nothing,
            Verdict::Edit(_) => Self::Closed,
        }
    }
}
