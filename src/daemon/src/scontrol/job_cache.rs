//! What is kept of a job whose tasks ask: its lock, and for some seconds what the controller has
//! said of it. So a job's tasks wait for each other and for no other job's, and the controller is
//! asked for a job once in that time, however often and from however many tasks. What a card
//! refuses is not kept: it may have room for the next task.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mpsgate_model::{Refusal, Request};
use mpsgate_policy::slurm_request::Named;
use tokio::time::Instant;

use super::job_cgroup::Job;

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(5);
/// Jobs of which something is kept though none of their tasks asks.
const MOST: usize = 1024;

/// What Slurm has given a job.
#[derive(Debug, Clone)]
pub(crate) enum Said {
    Nothing,
    /// So much of a certain card.
    Given(Given),
    /// It is not to be known, or cannot be had of any card.
    Refused(Refusal),
}

/// What Slurm has given a job of a card.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    /// The job's number.
    pub(crate) id: u32,
    pub(crate) request: Request,
    /// What to do, where that is more than the card has.
    pub(crate) hint: Option<String>,
}

/// Locked by the task whose turn it is.
pub(crate) type Lock = Arc<tokio::sync::Mutex<Answer>>;

/// The last answer of a job.
#[derive(Debug, Default)]
pub(crate) struct Answer(Option<(Instant, Said)>);

impl Answer {
    /// As long as it counts.
    pub(crate) fn now(&self) -> Option<&Said> {
        let (since, said) = self.0.as_ref()?;
        (since.elapsed() < KEPT).then_some(said)
    }

    pub(crate) fn keep(&mut self, said: Said) {
        self.0 = Some((Instant::now(), said));
    }
}

/// By name and cgroup: a job that is requeued is another one.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<BTreeMap<(Named, u64), Lock>>);

impl Jobs {
    /// A job's lock.
    pub(crate) fn of(&self, job: &Job) -> Lock {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asked = |lock: &Lock| Arc::strong_count(lock) > 1;
        let counts = |lock: &Lock| lock.try_lock().is_ok_and(|answer| answer.now().is_some());
        jobs.retain(|_, lock| is_asked(lock) || counts(lock));
        if jobs.len() >= MOST {
            jobs.retain(|_, lock| is_asked(lock));
        }
        Arc::clone(jobs.entry((job.named.clone(), job.cgroup.inode)).or_default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_host::cgroup::CgroupId;

    use super::*;

    fn job(id: u32, inode: u64) -> Job {
        let named = Named::Id(id);
        Job { named, cgroup: CgroupId { path: format!("/slurm/job_{id}"), inode } }
    }

    #[test]
    fn tasks_of_a_job_have_one_lock_and_other_jobs_their_own() {
        let jobs = Jobs::default();
        let first = jobs.of(&job(7, 1));
        let held = first.try_lock().unwrap();
        assert!(jobs.of(&job(7, 1)).try_lock().is_err());
        for (id, inode) in [(8, 2), (7, 3)] {
            assert!(jobs.of(&job(id, inode)).try_lock().is_ok(), "{id} {inode}");
        }
        drop(held);
        assert!(jobs.of(&job(7, 1)).try_lock().is_ok());
    }

    #[test]
    fn an_answer_is_kept_for_its_job_alone_and_what_is_kept_is_bounded() {
        let jobs = Jobs::default();
        let said = |id: u32, inode: u64| {
            let lock = jobs.of(&job(id, inode));
            let answer = lock.try_lock().unwrap();
            answer.now().is_some()
        };
        jobs.of(&job(7, 1)).try_lock().unwrap().keep(Said::Nothing);
        assert!(said(7, 1));
        assert!(!said(7, 2), "another job of that number");
        // Of jobs without an answer nothing is kept.
        for id in 100..200 {
            jobs.of(&job(id, 9));
        }
        assert!(jobs.0.lock().unwrap().len() <= 2);
        for id in 0..=u32::try_from(MOST).unwrap() {
            jobs.of(&job(id, 9)).try_lock().unwrap().keep(Said::Nothing);
        }
        assert!(jobs.0.lock().unwrap().len() <= MOST);
    }

    #[test]
    fn an_answer_counts_for_some_seconds() {
        let mut answer = Answer::default();
        assert!(answer.now().is_none());
        answer.keep(Said::Nothing);
        assert!(answer.now().is_some());
        let Some((since, _)) = &mut answer.0 else { panic!("it is kept") };
        *since = since.checked_sub(KEPT).unwrap();
        assert!(answer.now().is_none());
    }
}
