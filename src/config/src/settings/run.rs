//! `[run]`.

/// `[run]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Run {
    /// Whose users may give their own processes GPU memory.
    pub group: RunGroup,
    /// MiB that each of them may have at a time; 0: what the cards have.
    pub max_mib: u64,
    /// Grants that each of them may have at a time; 0: any number.
    pub max_grants: u32,
}

/// `run.group`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RunGroup {
    /// Nobody's: only root may.
    #[default]
    Off,
    /// Those of this group.
    Named(String),
}
