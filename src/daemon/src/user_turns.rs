//! Turns at something of the node that may hang, such as its user database or Slurm's controller:
//! so many at a time, and so few of one user that the others have theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At a time: each can cost a thread, which lives for as long as what was asked hangs.
const ALL: usize = 32;
/// Of these, those of one user.
const EACH: usize = 2;
/// Of all, those of uids that have not yet been known: a user has 65,536 subordinate ones, and who
/// is known has turns beside them.
const STRANGERS: usize = ALL / 2;

/// Who waits is first in, first out, by user and then among all.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    each: usize,
    /// Where a uid may be nobody's.
    strangers: Option<Strangers>,
    /// Of the users who have a turn or wait for one.
    users: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
}

#[derive(Debug)]
struct Strangers {
    /// Their part of all turns.
    turns: Arc<Semaphore>,
    /// Who is none of them. No more than there are users.
    known: Mutex<BTreeSet<u32>>,
}

/// To be kept until what was begun has really ended, also where nobody waits for it any more.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _strangers: Option<OwnedSemaphorePermit>,
    _all: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(ALL, EACH, None)
    }
}

impl Turns {
    /// Where a uid may be nobody's.
    pub(crate) fn of_uids() -> Self {
        Self::new(ALL, EACH, Some(STRANGERS))
    }

    fn new(all: usize, each: usize, strangers: Option<usize>) -> Self {
        let of =
            |count| Strangers { turns: Arc::new(Semaphore::new(count)), known: Mutex::default() };
        Self {
            all: Arc::new(Semaphore::new(all)),
            each,
            strangers: strangers.map(of),
            users: Mutex::default(),
        }
    }

    /// That a uid is a user's.
    pub(crate) fn know(&self, user: u32) {
        if let Some(strangers) = &self.strangers {
            strangers.known.lock().unwrap_or_else(PoisonError::into_inner).insert(user);
        }
    }

    /// Whether that was seen since mpsgated started.
    pub(crate) fn knows(&self, user: u32) -> bool {
        self.strangers.as_ref().is_some_and(|strangers| strangers.knows(user))
    }

    /// The user's next turn. `None` never: nobody closes them.
    pub(crate) async fn next(&self, user: u32) -> Option<Turn> {
        let own = self.own(user);
        // Before one of all, so that who waits for the own ones holds none of those.
        let own = own.acquire_owned().await.ok()?;
        let strangers = match &self.strangers {
            Some(strangers) if !strangers.knows(user) => {
                Some(Arc::clone(&strangers.turns).acquire_owned().await.ok()?)
            }
            _ => None,
        };
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn { _own: own, _strangers: strangers, _all: all })
    }

    fn own(&self, user: u32) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        // Who has a turn or waits for one holds it, too.
        users.retain(|_, own| Arc::strong_count(own) > 1);
        Arc::clone(users.entry(user).or_insert_with(|| Arc::new(Semaphore::new(self.each))))
    }
}

impl Strangers {
    /// Whether somebody is none of them.
    fn knows(&self, user: u32) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(&user)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// Whether there is one at once.
    async fn at_once(turns: &Turns, user: u32) -> Option<Turn> {
        let mut next = pin!(turns.next(user));
        poll_fn(|context| match next.as_mut().poll(context) {
            Poll::Ready(turn) => Poll::Ready(turn),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_user_has_so_many_at_a_time_and_others_have_theirs() {
        let turns = Turns::new(3, 2, None);
        let first = at_once(&turns, 1).await.unwrap();
        let _second = at_once(&turns, 1).await.unwrap();
        // A third one of alice's waits for her own, and takes none of his.
        let mut third = pin!(turns.next(1));
        assert!(poll_fn(|context| Poll::Ready(third.as_mut().poll(context).is_pending())).await);
        let bobs = at_once(&turns, 2).await.unwrap();
        assert!(at_once(&turns, 2).await.is_none(), "three are all");
        drop((first, bobs));
        assert!(third.await.is_some());
        assert!(at_once(&turns, 2).await.is_some());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn uids_that_were_never_known_leave_turns_to_who_was() {
        let turns = Turns::new(3, 1, Some(2));
        let first = at_once(&turns, 100_000).await.unwrap();
        let _second = at_once(&turns, 100_001).await.unwrap();
        assert!(at_once(&turns, 100_002).await.is_none(), "two are all of the strangers'");
        assert!(at_once(&turns, 1).await.is_none(), "a user is one until known");
        turns.know(1);
        let _users = at_once(&turns, 1).await.unwrap();
        drop(first);
        assert!(at_once(&turns, 100_002).await.is_some());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_has_no_turn_any_more_is_forgotten() {
        let turns = Turns::new(100, 1, None);
        // Few enough for the budget of one poll (tokio::task::coop).
        for user in 0..30 {
            drop(at_once(&turns, user).await.unwrap());
        }
        let _turn = at_once(&turns, 30).await.unwrap();
        assert_eq!(turns.users.lock().unwrap().len(), 1);
    }
}
