//! What can go wrong between kubelet and the driver, and how much of it kubelet gets to read.

use mpsgate_kubelet::SocketError;
use mpsgate_model::printable;

/// Why kubelet cannot find the driver. What may mend itself is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// A socket of ours cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The sockets would have no name. Never mends itself.
    #[error("{:?} cannot be part of a socket's name", printable::value(instance))]
    Instance {
        /// What was to tell this instance from others.
        instance: String,
    },
}

impl DriverError {
    /// What to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Socket(error) => error.hint(),
            Self::Instance { .. } => {
                "name it by the pod's uid (fieldPath metadata.uid), or node".to_owned()
            }
        }
    }
}

/// Characters that kubelet keeps of a device's message; more than a pod's event shows.
const MOST: usize = 1024;

/// One line that kubelet may keep: nothing in it that a terminal obeys, and cut.
pub(crate) fn cut(text: &str) -> String {
    printable::cut(&printable::line(text), MOST).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubelet_reads_is_one_line_of_1024_characters() {
        assert_eq!(cut("Xid 79\nall is well\u{1b}[2J"), "Xid 79\\nall is well\\u{1b}[2J");
        assert_eq!(cut(&"ü".repeat(1024)), "ü".repeat(1024));
        for long in ["ü".repeat(1025), "\u{1b}".repeat(1 << 20)] {
            let line = cut(&long);
            assert_eq!(line.chars().count(), 1024);
            assert!(line.ends_with('…') && !line.contains('\u{1b}'), "{line}");
        }
    }
}
