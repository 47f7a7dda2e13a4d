//! The memory limits of a card's MPS, as values. What they should be is said in `state/limits.rs`.

use mpsgate_model::Mib;

/// What a card's MPS should be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpsLimits {
    /// For the next server.
    pub default: Mib,
    /// For those that run.
    pub servers: ServerLimit,
}

/// What a running server's limit should be while nobody is being handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerLimit {
    /// What it is: the next hand-over sets it.
    Any,
    /// No less than this.
    AtLeast(Mib),
    /// This.
    Exactly(Mib),
}

impl ServerLimit {
    /// What has to be set on a server that `has` this; none: not known.
    #[must_use]
    pub fn change(self, has: Option<Mib>) -> Option<Mib> {
        match self {
            Self::Any => None,
            Self::AtLeast(least) => (has < Some(least)).then_some(least),
            Self::Exactly(limit) => (has != Some(limit)).then_some(limit),
        }
    }
}
