//! One caller of the socket, and the way back to it.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::Duration;

use mpsgate_api::{Reply, encode};
use mpsgate_model::{Code, Refusal};
use rustix::net::RecvFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval_at, timeout};

/// For a whole frame, in either direction.
pub(crate) const FRAME_LIMIT: Duration = Duration::from_secs(2);
/// Before the first progress frame and between two others. Callers wait 2 s for the first, counted
/// from before they were accepted: on a node that starts 200 containers at once that time is short.
const FIRST_PROGRESS: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(1);

/// Who speaks on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    /// Root: engines' runtimes, hooks, operators.
    Root,
    /// Users of `run.group`: the kernel lets nobody else connect.
    User,
    /// Processes of Slurm's jobs, and whoever else connects.
    Job,
}

/// Who called.
#[derive(Debug)]
pub(crate) struct Caller {
    /// On which socket.
    pub(crate) speaker: Speaker,
    /// Its pid in our pid namespace; `None` where it is in one that we cannot see.
    pub(crate) pid: Option<u32>,
    /// The descriptor that came with the call.
    pub(crate) fd: Option<OwnedFd>,
    /// Who it is, where it did not call on root's socket.
    pub(crate) user: Option<u32>,
    /// Its name in the user database, where it did not call on root's socket and the database has
    /// said it.
    pub(crate) name: Option<String>,
}

/// The way back to a caller.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) stream: UnixStream,
}

impl Line {
    /// Sends one frame. A caller that has gone is no error of ours.
    pub(crate) async fn send(&mut self, reply: &Reply) {
        let bytes = encode(reply).or_else(|error| {
            let refusal = Refusal::new(
                Code::DaemonVersion,
                format!("the answer does not fit: {error}"),
                "journalctl -u mpsgated -n 50",
            );
            encode::<Reply>(&Reply::Refused(refusal.into()))
        });
        let Ok(bytes) = bytes else { return };
        if let Ok(Err(error)) = timeout(FRAME_LIMIT, self.stream.write_all(&bytes)).await {
            log::debug!(reason:% = error; "caller has gone");
        }
    }

    /// Whether the caller still holds its end. Its pid is then its own: it was taken when it
    /// connected, and another process can have it only after its death, which closes the end.
    pub(crate) fn is_open(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(&self.stream, &mut [0_u8; 1][..], flags);
        !matches!(peeked, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
    }

    /// Waits for `work`, telling the caller soon and then every second what is waited for.
    pub(crate) async fn wait<T>(&mut self, doing: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut tick = interval_at(tokio::time::Instant::now() + FIRST_PROGRESS, PROGRESS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _ = tick.tick() => self.send(&Reply::Progress { doing: doing.to_owned() }).await,
            }
        }
    }
}
