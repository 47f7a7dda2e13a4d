//! Seats at a socket that strangers may connect to: how many there are, their owners, and which
//! connection gives way. A connection that has not sent all of a request gives way to a newer one,
//! so a silent client keeps nobody out. No clock and no I/O: the listener accepts, and ends the
//! connection that gives way.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ends a connection that gives way.
pub type Ends = Box<dyn FnOnce() + Send>;

/// The seats of one socket. `K` is the owner of a connection: a user, an address.
pub struct Seats<K> {
    most: usize,
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    /// Counts events: the connection that has waited longest has the lowest number.
    count: u64,
    seats: BTreeMap<u64, Sitter<K>>,
}

struct Sitter<K> {
    owner: K,
    /// Since when it waits for a whole request; `None` while it is served.
    since: Option<u64>,
    ends: Ends,
}

/// Why there is no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The owner has all seats that one owner may have, and all of them are served.
    Own,
    /// All seats are served.
    All,
}

/// The seat of one connection. Dropping it frees the seat.
pub struct Seat<K: Copy + Ord> {
    seats: Arc<Seats<K>>,
    number: u64,
}

impl<K: Copy + Ord> Seats<K> {
    /// Makes so many seats.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        let taken = Mutex::new(Taken { count: 0, seats: BTreeMap::new() });
        Arc::new(Self { most, taken })
    }

    /// Whether a connection would have to give way to a new one.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.taken().seats.len() >= self.most
    }

    /// Returns a seat for a new connection of `owner`, who may have at most `each`. If there is
    /// none, a waiting connection gives way: one of the same owner if that one has `each`, else one
    /// of the owner with the most; of these the one that has waited longest.
    ///
    /// # Errors
    /// If all seats are served.
    pub fn take(self: &Arc<Self>, owner: K, each: usize, ends: Ends) -> Result<Seat<K>, Full> {
        let mut taken = self.taken();
        let own = taken.seats.values().filter(|sitter| sitter.owner == owner).count();
        let gone = if own >= each {
            Some(taken.waiting_longest(owner).ok_or(Full::Own)?)
        } else if taken.seats.len() >= self.most {
            let most = taken.has_most_waiting().and_then(|most| taken.waiting_longest(most));
            Some(most.ok_or(Full::All)?)
        } else {
            None
        };
        let gone = gone.and_then(|number| taken.seats.remove(&number));
        taken.count += 1;
        let number = taken.count;
        taken.seats.insert(number, Sitter { owner, since: Some(number), ends });
        drop(taken);
        if let Some(sitter) = gone {
            (sitter.ends)();
        }
        Ok(Seat { seats: Arc::clone(self), number })
    }

    fn taken(&self) -> MutexGuard<'_, Taken<K>> {
        // Each change is one insertion or removal: a panic elsewhere leaves nothing half done.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Ord> Taken<K> {
    fn waiting_longest(&self, owner: K) -> Option<u64> {
        let own = self.seats.iter().filter(|(_, sitter)| sitter.owner == owner);
        own.filter_map(|(number, sitter)| Some((sitter.since?, *number))).min().map(|(_, n)| n)
    }

    /// Among equals the owner of the connection that has waited longest.
    fn has_most_waiting(&self) -> Option<K> {
        let mut waiting: BTreeMap<K, (usize, u64)> = BTreeMap::new();
        for sitter in self.seats.values() {
            let Some(since) = sitter.since else { continue };
            let (count, longest) = waiting.entry(sitter.owner).or_insert((0, since));
            *count += 1;
            *longest = since.min(*longest);
        }
        let most = waiting
            .into_iter()
            .max_by_key(|(_, (count, longest))| (*count, std::cmp::Reverse(*longest)));
        most.map(|(owner, _)| owner)
    }
}

impl<K: Copy + Ord> Seat<K> {
    /// The request is whole: the connection gives way to none until it [`waits`](Self::waits)
    /// again. `false` if it has given way already, and the request must not be served.
    #[must_use]
    pub fn serve(&self) -> bool {
        let mut taken = self.seats.taken();
        let sitter = taken.seats.get_mut(&self.number);
        sitter.map(|sitter| sitter.since = None).is_some()
    }

    /// The request was answered, and the connection may send another one.
    pub fn waits(&self) {
        let mut taken = self.seats.taken();
        taken.count += 1;
        let now = taken.count;
        if let Some(sitter) = taken.seats.get_mut(&self.number) {
            sitter.since = Some(now);
        }
    }
}

impl<K: Copy + Ord> Drop for Seat<K> {
    fn drop(&mut self) {
        self.seats.taken().seats.remove(&self.number);
    }
}

impl<K> fmt::Debug for Seats<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seats").field("most", &self.most).finish_non_exhaustive()
    }
}

impl<K: Copy + Ord> fmt::Debug for Seat<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    /// Seats, and the names of those that gave way.
    struct Room {
        seats: Arc<Seats<char>>,
        gone: Arc<Mutex<Vec<String>>>,
    }

    impl Room {
        fn new(most: usize) -> Self {
            Self { seats: Seats::new(most), gone: Arc::default() }
        }

        fn take(&self, name: &str, each: usize) -> Result<Seat<char>, Full> {
            let (gone, of) = (Arc::clone(&self.gone), name.to_owned());
            let ends = Box::new(move || gone.lock().unwrap().push(of));
            self.seats.take(name.chars().next().unwrap(), each, ends)
        }

        fn gone(&self) -> String {
            std::mem::take(&mut *self.gone.lock().unwrap()).join(" ")
        }
    }

    #[test]
    fn who_waits_longest_of_who_has_most_gives_way_and_who_is_served_does_not() {
        let room = Room::new(4);
        let carols: Vec<_> = (1..=3).map(|n| room.take(&format!("c{n}"), 9).unwrap()).collect();
        assert!(!room.seats.is_full());
        let bob = room.take("b1", 9).unwrap();
        assert!(room.seats.is_full());
        assert_eq!(room.gone(), "");
        // Carol has most, and her first connection has waited longest.
        let alice = room.take("a1", 9).unwrap();
        assert_eq!(room.gone(), "c1");
        assert!(!carols[0].serve(), "it has given way");
        // The second is served and passed over; an answered connection waits anew.
        assert!(carols[1].serve());
        let second = room.take("a2", 9).unwrap();
        assert_eq!(room.gone(), "c3");
        carols[1].waits();
        assert!(bob.serve() && second.serve() && alice.serve());
        let third = room.take("a3", 9).unwrap();
        assert_eq!(room.gone(), "c2");
        // No connection waits: there is no seat, and none is ended.
        assert!(third.serve());
        assert_eq!(room.take("d1", 9).unwrap_err(), Full::All);
        assert_eq!(room.gone(), "");
        drop(bob);
        assert!(room.take("d1", 9).is_ok(), "one is free");
    }

    #[test]
    fn an_owner_with_the_own_number_gives_way_to_the_own_and_to_nobody_elses_cost() {
        let room = Room::new(9);
        let bob = room.take("b1", 2).unwrap();
        let carols = [room.take("c1", 2).unwrap(), room.take("c2", 2).unwrap()];
        let third = room.take("c3", 2).unwrap();
        assert_eq!(room.gone(), "c1");
        assert!(carols[1].serve() && third.serve());
        assert_eq!(room.take("c4", 2).unwrap_err(), Full::Own);
        assert_eq!(room.gone(), "");
        drop((bob, third));
        assert!(room.take("c4", 2).is_ok());
        drop(carols);
        assert!(room.seats.taken().seats.is_empty());
    }

    #[test]
    fn many_owners_of_one_each_give_way_in_the_order_in_which_they_came() {
        let room = Room::new(3);
        let mut all = Vec::new();
        for name in ["a", "b", "c", "d", "e"] {
            all.push(room.take(name, 9).unwrap());
        }
        assert_eq!(room.gone(), "a b");
        assert!(all[4].serve() && all[2].serve());
        all[2].waits();
        all.push(room.take("f", 9).unwrap());
        assert_eq!(room.gone(), "d");
        // A seat that both its connection and a newer one gave up is one seat.
        drop(all);
        assert!(room.seats.taken().seats.is_empty());
    }
}
