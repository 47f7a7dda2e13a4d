//! Writes the daemon's files. Each kind of file has a writer, a thread of its own, because whoever
//! is in an `fsync` of a slow disk can do nothing else: it holds up what needs that very kind, and
//! nobody else. No lock of the node is held over a write.
//!
//! ```text
//!  task ── run(kind, work) ──► the kind's queue ──► its writer does the work ──► whoever awaits it
//! ```
//!
//! A queue keeps the order of its calls. Where only the newest state counts (ledger, snapshot) the
//! work itself reads it when its turn comes, and work that finds it written returns at once: one
//! write serves all who have come meanwhile.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};

use mpsgate_host::crash_steps;
use mpsgate_host::file::{self, Durability, New};
use tokio::sync::oneshot;

/// What is written in order with itself, and waits for nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// The ledger.
    Ledger,
    /// What the shim reads: the node's facts, the toolkit's mark, the link to the runtime.
    Snapshot,
    /// The records from which `exec` restores an environment.
    Records,
    /// The doors of grants.
    Doors,
    /// What operators and the node's label have set.
    Managed,
    /// What cards have answered.
    Answers,
    /// What was granted and used.
    Usage,
    /// Whose the pids on the cards are.
    Holders,
    /// The keys of tokens, and who has brought them.
    Tokens,
    /// The CDI files of claims.
    Claims,
}

impl FileKind {
    /// All kinds, with the names of their threads.
    pub const ALL: [(Self, &str); 10] = [
        (Self::Ledger, "ledger"),
        (Self::Snapshot, "snapshot"),
        (Self::Records, "records"),
        (Self::Doors, "doors"),
        (Self::Managed, "managed"),
        (Self::Answers, "answers"),
        (Self::Usage, "usage"),
        (Self::Holders, "holders"),
        (Self::Tokens, "tokens"),
        (Self::Claims, "claims"),
    ];
}

type Job = Box<dyn FnOnce() + Send>;

/// The writers. They end with the value, once they have done what is queued.
#[derive(Debug)]
pub struct Files {
    queues: BTreeMap<FileKind, mpsc::Sender<Job>>,
}

impl Files {
    /// Starts them. `before` is called by a writer before each write of its kind: there a test
    /// makes a disk slow.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    #[expect(clippy::disallowed_methods, reason = "the writers, see the module's comment")]
    pub fn start(before: impl Fn(FileKind) + Send + Sync + 'static) -> io::Result<Self> {
        let before = Arc::new(before);
        let start = |(kind, name): (FileKind, &str)| {
            let (queue, jobs) = mpsc::channel::<Job>();
            let before = Arc::clone(&before);
            let write = move || {
                for job in jobs {
                    before(kind);
                    job();
                }
            };
            std::thread::Builder::new().name(name.to_owned()).spawn(write)?;
            Ok((kind, queue))
        };
        let queues = FileKind::ALL.into_iter().map(start).collect::<io::Result<_>>()?;
        Ok(Self { queues })
    }

    /// Has `work` done after all that was asked for of its kind. It is queued by the call itself;
    /// whoever must know that it is on the disk awaits what comes of it.
    pub(crate) fn run<T, W>(&self, kind: FileKind, work: W) -> impl Future<Output = T> + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (tell, done) = oneshot::channel();
        let job = move || {
            // Whoever asked may have gone.
            let _ = tell.send(work());
        };
        // A writer ends with the queue alone, or by a panic, which is the process's end.
        let _ = self.queues[&kind].send(Box::new(job));
        async { done.await.expect("a writer does all that is in its queue") }
    }

    /// The same, where nobody waits.
    pub(crate) fn post(&self, kind: FileKind, work: impl FnOnce() + Send + 'static) {
        drop(self.run(kind, work));
    }

    /// Returns once all that was asked for of a kind is done.
    pub(crate) fn settled(&self, kind: FileKind) -> impl Future<Output = ()> + use<> {
        self.run(kind, || ())
    }

    /// The same of all kinds.
    pub(crate) async fn flush(&self) {
        for settled in FileKind::ALL.map(|(kind, _)| self.settled(kind)) {
            settled.await;
        }
    }
}

/// Replaces a small file of the daemon's.
pub(crate) fn write_file(
    path: &Path,
    text: &[u8],
    mode: u32,
    durability: Durability,
) -> io::Result<()> {
    let steps = crash_steps!("daemon.file": "created", "written", "renamed");
    file::replace(path, text, &New { steps, ..New::of(mode, durability) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::sync::Mutex;

    use super::*;

    /// Writers of which those of `held` wait for a word before each write.
    fn held(held: FileKind) -> (Files, mpsc::Sender<()>) {
        let (let_go, wait) = mpsc::channel();
        let wait = Mutex::new(wait);
        let before = move |kind| {
            if kind == held {
                let _ = wait.lock().unwrap().recv();
            }
        };
        (Files::start(before).unwrap(), let_go)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_hangs_holds_up_its_own_kind_and_no_other() {
        for (slow, _) in FileKind::ALL {
            let (files, let_go) = held(slow);
            let mut hangs = Box::pin(files.run(slow, || "slow"));
            for (other, _) in FileKind::ALL.into_iter().filter(|(kind, _)| *kind != slow) {
                assert_eq!(files.run(other, || "quick").await, "quick", "{slow:?} {other:?}");
            }
            tokio::select! {
                biased;
                done = &mut hangs => panic!("{slow:?} was to wait for its disk: {done}"),
                () = std::future::ready(()) => {}
            }
            let_go.send(()).unwrap();
            assert_eq!(hangs.await, "slow");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_kind_keeps_its_order_and_what_nobody_awaits_is_done_all_the_same() {
        let (files, let_go) = held(FileKind::Doors);
        let done = Arc::new(Mutex::new(Vec::new()));
        for n in 0..3 {
            let done = Arc::clone(&done);
            files.post(FileKind::Doors, move || done.lock().unwrap().push(n));
        }
        assert!(done.lock().unwrap().is_empty());
        drop(let_go);
        files.flush().await;
        assert_eq!(*done.lock().unwrap(), [0, 1, 2]);
    }
}
