//! `[run]`.

/// `[run]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Run {
    /// The group of users who may get GPU memory for their own processes.
    pub group: RunGroup,
    /// The most MiB of one user at a time; 0: what the cards have.
    pub max_mib: u64,
    /// The most grants of one user at a time; 0: any number.
    pub max_grants: u32,
}

/// `run.group`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RunGroup {
    /// No group: only root may.
    #[default]
    Off,
    /// The group of this name.
    Named(String),
}
