//! How the cgroups of grants lie to each other, by their names.

use std::collections::BTreeSet;
use std::path::Path;

use mpsgate_model::ledger::{CgroupId, Entry, State};

use super::Node;

/// How two cgroups have to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlap {
    /// One directory.
    Is,
    /// The first is below the second.
    LiesIn,
    /// The second is below the first.
    Holds,
}

/// Whether a cgroup is, holds, or lies in another.
pub(super) fn overlap(one: &CgroupId, other: &CgroupId) -> Option<Overlap> {
    let (one, other) = (Path::new(&one.path), Path::new(&other.path));
    match (one.starts_with(other), other.starts_with(one)) {
        (true, true) => Some(Overlap::Is),
        (true, false) => Some(Overlap::LiesIn),
        (false, true) => Some(Overlap::Holds),
        (false, false) => None,
    }
}

impl Node {
    /// Inodes of the cgroups of other grants that lie in this one's: what is in them is not its
    /// own. New grants are refused there; an older mpsgated has recorded them.
    pub fn nested(&self, entry: &Entry) -> BTreeSet<u64> {
        let State::Active { cgroup: Some(own), .. } = &entry.state else { return BTreeSet::new() };
        let inner = |other: &Entry| match &other.state {
            State::Active { cgroup: Some(cgroup), .. }
                if overlap(own, cgroup) == Some(Overlap::Holds) =>
            {
                Some(cgroup.inode)
            }
            _ => None,
        };
        self.ledger.entries().iter().filter_map(inner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_overlap_by_whole_names() {
        let of = |one: &str, other: &str| {
            let id = |path: &str| CgroupId { path: path.to_owned(), inode: 1 };
            overlap(&id(one), &id(other))
        };
        assert_eq!(of("/c/v", "/c/v/"), Some(Overlap::Is));
        assert_eq!(of("/c/v/w/x", "/c/v"), Some(Overlap::LiesIn));
        assert_eq!(of("/c", "/c/v"), Some(Overlap::Holds));
        assert_eq!(of("/c/v", "/c/vw"), None);
    }
}
