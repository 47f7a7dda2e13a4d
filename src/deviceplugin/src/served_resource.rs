//! One resource over every restart of kubelet, of its socket and of the plugin's.
//!
//! ```text
//!   bind ─► wait for kubelet.sock ─► Register ─► kubelet reads the list
//!    ▲              ▲                   │ no, or not read       │
//!    │              └── back off ◄──────┴──── read no longer ◄──┤
//!    │              └───────────────── another kubelet.sock ◄───┤
//!    └──────────────────────────────── our socket has gone ◄────┘
//! ```
//!
//! Kubelet removes every socket of its directory when it starts, and never connects to a plugin
//! again by itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_kubelet::{Changes, Retries, Retry, Socket, Stamp};
use mpsgate_model::Resource;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::plugin_server::{Readers, Server};
use crate::register::register;
use crate::resource_kind::socket_name;
use crate::{Event, Host, Inventory, PluginError};

/// Kubelet's socket in its directory.
const KUBELET: &str = "kubelet.sock";

/// The paths and times of kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory of `kubelet.sock` and of the plugins' sockets.
    pub directory: PathBuf,
    /// How long things may take.
    pub pace: Pace,
}

impl Default for Place {
    fn default() -> Self {
        let directory = PathBuf::from("/var/lib/kubelet/device-plugins");
        Self { directory, pace: Pace::default() }
    }
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Before a failed step is tried again.
    pub retry: Retry,
    /// For kubelet's answer to a registration, and then for its request for the list. Kubelet gives
    /// itself 10 s to connect.
    pub answer: Duration,
    /// For the daemon's answer to `Allocate`. Kubelet waits for the plugin without a limit, and
    /// every other pod waits with it.
    pub grant: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            retry: Retry::default(),
            answer: Duration::from_secs(15),
            grant: Duration::from_secs(10),
        }
    }
}

/// Keeps `resource` registered with kubelet until `stop`, with the devices of `inventory`. Failures
/// are reported to the host and tried again; at the end the socket is removed, and kubelet takes
/// the devices for unhealthy.
pub async fn serve(
    place: Place,
    resource: Resource,
    inventory: watch::Receiver<Inventory>,
    host: Arc<dyn Host>,
    stop: impl Future<Output = ()>,
) {
    let names = [KUBELET.to_owned(), socket_name(resource)];
    let retries = Retries::new(Changes::new([place.directory.clone()], names), place.pace.retry);
    let server = Server::new(Arc::new(resource), inventory, host, place.pace.grant);
    tokio::select! {
        () = Plugin { place, server, retries }.run() => {}
        () = stop => {}
    }
}

/// Why a registration ends.
enum End {
    /// A socket came or went: the next look decides.
    Changed,
    NotWatched,
    Lost,
}

struct Plugin {
    place: Place,
    server: Server,
    retries: Retries,
}

impl Plugin {
    async fn run(mut self) {
        // Before the first look, so that no change is missed.
        self.retries.follow();
        loop {
            match Socket::bind(&self.place.directory, &socket_name(*self.server.resource())) {
                Ok(socket) => {
                    let server = self.server.clone();
                    socket.serve(&server, self.keep_registered(&socket)).await;
                }
                Err(error) => self.failed(error.into()).await,
            }
        }
    }

    fn tell_once(&mut self, event: Event) {
        if self.retries.is_news(event.to_string()) {
            self.server.host().tell(event);
        }
    }

    async fn failed(&mut self, error: PluginError) {
        self.tell_once(Event::Failed(error));
        self.retries.back_off().await;
    }

    /// Returns when kubelet can no longer find the plugin's socket.
    async fn keep_registered(&mut self, socket: &Socket) {
        let kubelet = self.place.directory.join(KUBELET);
        while socket.is_there() {
            let stamp = match mpsgate_kubelet::socket(&kubelet) {
                Ok(Some(stamp)) => stamp,
                Ok(None) => {
                    self.retries.restart();
                    self.tell_once(Event::NoKubelet(kubelet.clone()));
                    self.retries.look().await;
                    continue;
                }
                Err(error) => {
                    self.failed(error.into()).await;
                    continue;
                }
            };
            let readers = self.server.readers();
            let before = *readers.borrow();
            let answer = self.place.pace.answer;
            if let Err(error) = register(&kubelet, self.server.resource(), answer).await {
                self.failed(error).await;
                continue;
            }
            self.server.host().tell(Event::Registered);
            let since = Instant::now();
            match self.end_of(socket, stamp, readers, before).await {
                End::Changed => self.retries.reset(),
                End::Lost => {
                    let pause = self.retries.pause_after(since);
                    self.tell_once(Event::Lost);
                    self.retries.wait(pause).await;
                }
                End::NotWatched => {
                    self.tell_once(Event::NotWatched { seconds: answer.as_secs() });
                    self.retries.back_off().await;
                }
            }
        }
    }

    /// Waits for the end of a registration.
    async fn end_of(
        &mut self,
        socket: &Socket,
        stamp: Stamp,
        readers: watch::Receiver<Readers>,
        before: Readers,
    ) -> End {
        let kubelet = self.place.directory.join(KUBELET);
        let limit = self.place.pace.answer;
        let mut read = std::pin::pin!(read(readers, before, limit));
        loop {
            tokio::select! {
                end = &mut read => return end,
                () = self.retries.look() => {
                    // A missing kubelet.sock does not mean that kubelet has gone: somebody removed
                    // it. A reader continues to read.
                    let found = mpsgate_kubelet::socket(&kubelet).ok().flatten();
                    if !socket.is_there() || found.is_some_and(|found| found != stamp) {
                        return End::Changed;
                    }
                }
            }
        }
    }
}

/// Waits until kubelet has begun to read and then stops, or does not begin. After a new
/// registration kubelet begins a stream before it leaves the earlier one.
async fn read(mut readers: watch::Receiver<Readers>, before: Readers, limit: Duration) -> End {
    let begins =
        readers.wait_for(|now| now.begun > before.begun || now.malformed > before.malformed);
    match timeout(limit, begins).await {
        Ok(Ok(now)) if now.begun > before.begun => {}
        _ => return End::NotWatched,
    }
    let _ = readers.wait_for(|now| now.live == 0).await;
    End::Lost
}
