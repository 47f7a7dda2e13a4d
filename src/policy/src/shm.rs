//! Shared memory of the MPS servers and their clients: what the servers of a node do, and what a
//! container has at `/dev/shm`.
//!
//! The server of a driver up to 555 makes a region with a name in its `/dev/shm`, and its clients
//! look for that name in theirs (libcuda 535 and 550, measured without a card: another mount there
//! is error 205 of `cuInit`, another IPC namespace is nothing). From 580 on the region has no name
//! and is handed over (bottlerocket-kernel-kit pull request 415; a client with a `/dev/shm` of its
//! own attaches: 580.159.04, on an H200). Which of the two a node's driver does, its servers say;
//! see [`SharedMemory`].

use mpsgate_model::printable;
use mpsgate_oci::spec::{MountEntry, ReadOnly, View};

use crate::path::inside;

/// The directory of POSIX shared memory (shm_overview(7)).
pub(crate) const PLACE: &str = "/dev/shm";

/// How the MPS servers of a node share memory with their clients, as it was seen there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SharedMemory {
    /// It was not seen.
    #[default]
    Unknown,
    /// By a region without a name: a client needs neither their `/dev/shm` nor their IPC namespace.
    Anonymous,
    /// By a region with a name in their `/dev/shm`.
    Named,
    /// By a region with a name, and the node was shown that a client with another `/dev/shm` does
    /// not attach.
    Required,
}

mpsgate_model::words!(SharedMemory:
    Unknown = "unknown", Anonymous = "anonymous", Named = "named", Required = "required",
);

impl SharedMemory {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Anonymous, Self::Named, Self::Required];

    /// What a word says; one that is not known says nothing.
    #[must_use]
    pub fn of_word(word: &str) -> Self {
        Self::parse(word).unwrap_or_default()
    }

    /// How a server does, by what its log says of it (`true`: a region with a name) and whether the
    /// kernel shows that it has mapped one; `None` where neither says anything. A line can be
    /// another's: what is said twice, or of which the kernel shows the contrary, says nothing.
    #[must_use]
    pub fn of_server(said: impl IntoIterator<Item = bool>, has_named: bool) -> Option<Self> {
        let mut said = said.into_iter();
        match (said.next(), said.next(), has_named) {
            (None, _, false) => None,
            (None | Some(true), None, true) => Some(Self::Named),
            (Some(false), None, false) => Some(Self::Anonymous),
            _ => Some(Self::Unknown),
        }
    }

    /// What holds for a node of whose cards' servers these were seen: one driver has them all. What
    /// says nothing makes the rest doubtful, and where they differ the larger need counts.
    #[must_use]
    pub fn of_all(cards: impl IntoIterator<Item = Self>) -> Self {
        let seen: Vec<Self> = cards.into_iter().collect();
        match seen.iter().max() {
            Some(Self::Anonymous) if seen.contains(&Self::Unknown) => Self::Unknown,
            Some(most) => *most,
            None => Self::Unknown,
        }
    }
}

/// What a container has at `/dev/shm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shm {
    /// What the MPS servers have there.
    Servers,
    /// Something else, in words: what its last mount there is.
    Other(String),
    /// Not looked at, or the servers' is not known.
    Unknown,
}

/// What a spec mounts last at `/dev/shm`, or over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShmMount<'a> {
    /// A path of the host, `below` which its `/dev/shm` begins where it is mounted above it.
    Bind {
        /// The source.
        source: &'a str,
        /// `shm` where it stands at `/dev`.
        below: &'static str,
        /// A client opens the server's region to write (libcuda 535 and 550: 205 where it cannot;
        /// measured).
        is_read_only: bool,
    },
    /// A file system of its own, of this type.
    Own(&'a str),
    /// Nothing.
    Nothing,
}

impl<'a> ShmMount<'a> {
    /// Of several mounts the last counts. By text alone: links of an image are not followed here,
    /// and what came out is looked at by the hook.
    #[must_use]
    pub fn of(view: View<'a>) -> Self {
        let found = |mount: &MountEntry<'a>| match inside(mount.destination).as_ref() {
            PLACE => Some(""),
            "/dev" => Some("shm"),
            "/" => Some("dev/shm"),
            _ => None,
        };
        let last = view.mount_entries().filter_map(|m| found(&m).map(|below| (m, below))).last();
        match last {
            Some((mount, below)) if mount.is_bind() => Self::Bind {
                source: mount.source,
                below,
                is_read_only: match mount.read_only() {
                    ReadOnly::No => false,
                    // A mount below it came along as it was.
                    ReadOnly::Top => below.is_empty(),
                    ReadOnly::All => true,
                },
            },
            // A file system of its own has no such directory.
            Some((_, "shm" | "dev/shm")) | None => Self::Nothing,
            Some((mount, _)) => Self::Own(mount.kind),
        }
    }

    /// What it is to the MPS servers, where `is_theirs` says so of a path of the host.
    #[must_use]
    pub fn seen(&self, is_theirs: impl FnOnce(&str) -> bool) -> Shm {
        match self {
            Self::Bind { source, below, is_read_only } => {
                let path = match *below {
                    "" => (*source).to_owned(),
                    below => format!("{}/{below}", source.trim_end_matches('/')),
                };
                let kind = match (is_theirs(&path), is_read_only) {
                    (true, false) => return Shm::Servers,
                    (true, true) => "a read-only mount",
                    (false, _) => "a mount",
                };
                Shm::Other(format!("{kind} of {}", printable::value(&path)))
            }
            Self::Own("") => Shm::Other("a file system of its own".to_owned()),
            Self::Own(kind) => Shm::Other(format!("a {} of its own", printable::value(kind))),
            Self::Nothing => Shm::Other("no mount".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_servers_word_counts_once_and_where_the_kernel_shows_the_same() {
        for (said, has_named, seen) in [
            (&[][..], false, None),
            (&[], true, Some(SharedMemory::Named)),
            (&[true], true, Some(SharedMemory::Named)),
            (&[false], false, Some(SharedMemory::Anonymous)),
            (&[true], false, Some(SharedMemory::Unknown)),
            (&[false], true, Some(SharedMemory::Unknown)),
            (&[false, false], false, Some(SharedMemory::Unknown)),
            (&[true, true], true, Some(SharedMemory::Unknown)),
            (&[true, false], true, Some(SharedMemory::Unknown)),
            (&[false, true], false, Some(SharedMemory::Unknown)),
        ] {
            let found = SharedMemory::of_server(said.iter().copied(), has_named);
            assert_eq!(found, seen, "{said:?} {has_named}");
        }
    }

    #[test]
    fn a_node_is_as_its_most_demanding_card_and_unknown_while_one_is() {
        use SharedMemory::{Anonymous, Named, Required, Unknown};
        for (cards, node) in [
            (&[][..], Unknown),
            (&[Anonymous, Anonymous], Anonymous),
            (&[Anonymous, Unknown], Unknown),
            (&[Named, Unknown], Named),
            (&[Anonymous, Named], Named),
            (&[Named, Required], Required),
        ] {
            assert_eq!(SharedMemory::of_all(cards.iter().copied()), node, "{cards:?}");
        }
        for word in SharedMemory::ALL {
            assert_eq!(SharedMemory::of_word(word.as_str()), word);
        }
        assert_eq!(SharedMemory::of_word("of a newer version"), Unknown);
    }

    #[test]
    fn the_last_mount_at_dev_shm_or_over_it_counts() {
        let tmpfs = |at: &str| json!({"destination": at, "type": "tmpfs", "source": "shm"});
        let bind = |at: &str, of: &str| json!({"destination": at, "type": "bind", "source": of, "options": ["rbind"]});
        let other = |text: &str| Shm::Other(text.to_owned());
        for (mounts, seen) in [
            (json!([]), other("no mount")),
            (json!([tmpfs("/dev")]), other("no mount")),
            (json!([tmpfs("/dev"), tmpfs("/dev/shm")]), other("a tmpfs of its own")),
            (json!([tmpfs("/dev/shm"), bind("/dev/shm", "/dev/shm")]), Shm::Servers),
            (json!([bind("/dev/shm", "/dev/shm"), tmpfs("/dev/shm")]), other("a tmpfs of its own")),
            (json!([bind("/dev/shm/", "/dev/shm")]), Shm::Servers),
            (json!([bind("dev//shm", "/dev/shm")]), Shm::Servers),
            (
                json!([{"destination": "/dev/shm", "source": "/dev/shm", "options": ["rbind", "ro"]}]),
                other("a read-only mount of /dev/shm"),
            ),
            (json!([bind("/dev/shm", "/x")]), other("a mount of /x")),
            (json!([bind("/dev", "/dev/")]), Shm::Servers),
            (
                json!([{"destination": "/dev", "source": "/dev", "options": ["rbind", "ro"]}]),
                Shm::Servers,
            ),
            (
                json!([{"destination": "/dev", "source": "/dev", "options": ["rbind", "rro"]}]),
                other("a read-only mount of /dev/shm"),
            ),
            (json!([bind("/dev/shm", "/dev/shm"), bind("/dev", "/x")]), other("a mount of /x/shm")),
            (json!([bind("/", "/")]), Shm::Servers),
            (json!([tmpfs("/dev/shm/x")]), other("no mount")),
            (json!([{"destination": "/dev/shm"}]), other("a file system of its own")),
            (json!([{"destination": 7}, "x", null]), other("no mount")),
        ] {
            let document = json!({ "mounts": mounts });
            let found = ShmMount::of(View::new(&document)).seen(|path| path == "/dev/shm");
            assert_eq!(found, seen, "{mounts}");
        }
    }
}
