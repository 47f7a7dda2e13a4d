//! How much of an operator's attention something wants.

/// How much of an operator's attention an event wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Somebody must act.
    Error,
    /// Somebody may.
    Warn,
    /// A state changed.
    Info,
    /// Why.
    Debug,
}
