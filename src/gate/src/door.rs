//! One container's door: who waits at it, and how many may.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use mpsgate_model::door_file::Container;
use mpsgate_model::{Bucket, Rate};

use crate::handshake::Reason;

/// A client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub u64);

/// How much one container may ask of the gate at a time. What is over is answered late, or ended
/// after its word.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections of its own whose word has not come. Beyond it nobody is accepted: they wait in
    /// the socket's backlog.
    pub greeted: usize,
    /// The same of processes that the kernel does not show. Beyond it the oldest is ended: nobody
    /// waits for them.
    pub unreadable: usize,
    /// Clients that wait for their turn. MPS serves 60 of a card (NVIDIA's documentation, Volta and
    /// later).
    pub waiting: usize,
    /// Clients that have their descriptor and have not acknowledged it. Beyond it the oldest
    /// connection is closed.
    pub handed: usize,
    /// Connections of its own. A client connects twice.
    pub connections: Rate,
    /// From the hello to the word.
    pub words: Duration,
    /// From the word to the descriptor.
    pub wait: Duration,
    /// From the descriptor to the acknowledgement, which is nobody's concern.
    pub linger: Duration,
}

impl Bounds {
    /// The product's.
    pub const DEFAULT: Self = Self {
        greeted: 64,
        unreadable: 16,
        waiting: 64,
        handed: 64,
        connections: Rate { burst: 256, every: Duration::from_millis(5) },
        words: Duration::from_secs(2),
        wait: Duration::from_secs(30),
        linger: Duration::from_secs(60),
    };
}

/// One container's door.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) container: Container,
    /// How many of its own connections have not said their word.
    pub(crate) greeted: usize,
    /// Those of unreadable processes that have not, in their order.
    pub(crate) unreadable: VecDeque<ClientId>,
    /// In the order in which their words came.
    pub(crate) waiting: VecDeque<ClientId>,
    /// In the order in which they got their descriptor.
    pub(crate) handed: VecDeque<ClientId>,
    /// Not before this one of its clients is handed over.
    pub(crate) rest: Option<Instant>,
    /// Whether its listening socket is left alone for now.
    pub(crate) is_paused: bool,
    /// How many of its clients were handed over.
    pub(crate) handed_over: u64,
    /// What was done to others, by reason.
    pub(crate) ended: BTreeMap<Reason, u64>,
    /// What its connections have spent.
    accepted: Bucket,
}

impl Door {
    pub(crate) fn new(container: Container) -> Self {
        Self {
            container,
            greeted: 0,
            unreadable: VecDeque::new(),
            waiting: VecDeque::new(),
            handed: VecDeque::new(),
            rest: None,
            is_paused: false,
            handed_over: 0,
            ended: BTreeMap::new(),
            accepted: Bucket::default(),
        }
    }

    /// One connection of its own more.
    pub(crate) fn accept(&mut self, bounds: &Bounds, now: Instant) {
        self.greeted += 1;
        self.accepted.spend(bounds.connections, now);
    }

    /// When another one may be accepted; `None`: when one of those that are there has said its word
    /// or has gone.
    pub(crate) fn accepts_from(&self, bounds: &Bounds, now: Instant) -> Option<Instant> {
        let is_free = self.greeted < bounds.greeted;
        is_free.then(|| self.accepted.free_at(bounds.connections, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> Door {
        let container =
            Container { id: "c".into(), uid: 0, any_uid: false, debug: false, cgroup: None };
        Door::new(container)
    }

    #[test]
    fn after_a_burst_connections_are_accepted_one_by_one() {
        let every = Bounds::DEFAULT.connections.every;
        let connections = Rate { burst: 3, every };
        let bounds = Bounds { connections, greeted: 100, ..Bounds::DEFAULT };
        let start = Instant::now();
        let mut door = door();
        for _ in 0..3 {
            assert_eq!(door.accepts_from(&bounds, start), Some(start));
            door.accept(&bounds, start);
        }
        let next = start + every;
        assert_eq!(door.accepts_from(&bounds, start), Some(next));
        door.accept(&bounds, next);
        assert_eq!(door.accepts_from(&bounds, next), Some(next + every));
        let later = next + every * 100;
        for _ in 0..3 {
            assert_eq!(door.accepts_from(&bounds, later), Some(later));
            door.accept(&bounds, later);
        }
        assert_ne!(door.accepts_from(&bounds, later), Some(later));
    }

    #[test]
    fn nobody_more_is_accepted_beside_too_many_that_say_nothing() {
        let bounds = Bounds { greeted: 2, ..Bounds::DEFAULT };
        let now = Instant::now();
        let mut door = door();
        door.accept(&bounds, now);
        door.accept(&bounds, now);
        assert_eq!(door.accepts_from(&bounds, now), None);
        door.greeted -= 1;
        assert_eq!(door.accepts_from(&bounds, now), Some(now));
    }
}
