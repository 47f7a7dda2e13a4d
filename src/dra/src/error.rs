//! Errors between kubelet and the driver, and the part of them that kubelet reads.

use mpsgate_kubelet::SocketError;
use mpsgate_model::printable;

/// Why kubelet cannot find the driver. An error that may pass is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// A socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The sockets would have no name. This error never passes.
    #[error("{:?} cannot be part of a socket's name", printable::value(instance))]
    Instance {
        /// The name of this instance.
        instance: String,
    },
}

impl DriverError {
    /// The remedy.
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

/// One line for kubelet: cut, and without characters that a terminal obeys.
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
