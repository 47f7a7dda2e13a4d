//! The connections of a control daemon, as the kernel shows them. A connection that stays is a
//! reason to ask the daemon for its state: while a front-end is connected the daemon turns all
//! others away, and looks at rest (measured on 535 and 550).

use std::collections::BTreeSet;
use std::fs;

use crate::instance::{ControlDaemon, MpsInstance};

/// Sockets of a control daemon, by inode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Connections(BTreeSet<u64>);

impl Connections {
    /// The sockets in both.
    #[must_use]
    pub fn in_both(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Whether some of these are not in `known`.
    #[must_use]
    pub fn has_more_than(&self, known: &Self) -> bool {
        !self.0.is_subset(&known.0)
    }
}

impl MpsInstance {
    /// The daemon's open sockets now.
    #[must_use]
    pub fn connections(&self, daemon: &ControlDaemon) -> Connections {
        let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", daemon.process.pid())) else {
            return Connections::default();
        };
        let socket = |entry: fs::DirEntry| {
            let link = fs::read_link(entry.path()).ok()?;
            link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        Connections(entries.flatten().filter_map(socket).collect())
    }
}
