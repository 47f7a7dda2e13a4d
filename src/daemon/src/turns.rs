//! Turns at something of the node that may hang, such as its user database or Slurm's controller:
//! so many at a time, and so few of one user that the others have theirs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At a time: each can cost a thread, which lives for as long as what was asked hangs.
const ALL: usize = 32;
/// Of these, those of one user.
const EACH: usize = 2;

/// Who waits is first in, first out, by user and then among all.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    each: usize,
    /// Of the users who have a turn or wait for one.
    users: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
}

/// To be kept until what was begun has really ended, also where nobody waits for it any more.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(ALL, EACH)
    }
}

impl Turns {
    fn new(all: usize, each: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), each, users: Mutex::default() }
    }

    /// The user's next turn. `None` never: nobody closes them.
    pub(crate) async fn next(&self, user: u32) -> Option<Turn> {
        let own = self.own(user);
        // Before one of all, so that who waits for the own ones holds none of those.
        let own = own.acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn { _own: own, _all: all })
    }

    fn own(&self, user: u32) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        // Who has a turn or waits for one holds it, too.
        users.retain(|_, own| Arc::strong_count(own) > 1);
        Arc::clone(users.entry(user).or_insert_with(|| Arc::new(Semaphore::new(self.each))))
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
        let turns = Turns::new(3, 2);
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
    async fn who_has_no_turn_any_more_is_forgotten() {
        let turns = Turns::new(100, 1);
        for user in 0..50 {
            drop(at_once(&turns, user).await.unwrap());
        }
        let _turn = at_once(&turns, 50).await.unwrap();
        assert_eq!(turns.users.lock().unwrap().len(), 1);
    }
}
