//! The driver over every restart of kubelet, of its sockets and of the driver's.
//!
//! ```text
//!   bind where it calls ─► bind where it looks ─► kubelet asks who is there, and calls
//!    ▲                       ▲  │ no, or gone                  │
//!    │                       └──┴── back off                   │
//!    └─────── back off ◄── the socket where it calls has gone ◄┘
//! ```
//!
//! Kubelet looks for sockets itself, when it starts and whenever one appears, so the driver never
//! registers again. Instances with other names, as in a rolling update, have sockets of their own,
//! and kubelet calls the one that came last.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mpsgate_kubelet::{Changes, Retries, Retry, Socket, SocketError, check};
use mpsgate_model::DRIVER;
use mpsgate_model::names::is_uid;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::device_health::Watch;
use crate::driver_server::Server;
use crate::registration::Registrar;
use crate::{DeviceHealth, DriverError, Event, Host};

/// Kubelet's directories, and this driver's name there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where kubelet looks for plugins.
    pub registry: PathBuf,
    /// Where kubelet's plugins have directories of their own.
    pub plugins: PathBuf,
    /// What distinguishes this instance from others on the node: the pod's uid, or `node`.
    pub instance: String,
    /// How long things may take.
    pub pace: Pace,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            registry: PathBuf::from("/var/lib/kubelet/plugins_registry"),
            plugins: PathBuf::from("/var/lib/kubelet/plugins"),
            instance: "node".to_owned(),
            pace: Pace::default(),
        }
    }
}

impl Place {
    /// The directory of the socket that kubelet calls, in the name of the driver.
    fn home(&self) -> PathBuf {
        self.plugins.join(DRIVER)
    }

    fn socket(&self) -> String {
        format!("dra-{}.sock", self.instance)
    }

    /// Kubelet ignores names that begin with a dot, and takes all others for plugins.
    ///
    /// The `@` is for kubelet's `:authority`. Its registration client dials the bare path, so that
    /// grpc-go writes the path there, with each `/` as `%2F` (kubernetes
    /// `pkg/kubelet/pluginmanager/operationexecutor`, grpc-go's `encodeAuthority`; seen with
    /// kubelet 1.36.2). A `%` is malformed in a host, for which h2 resets the request, and is
    /// well-formed in the user before an `@`. grpc-go leaves that one as it is.
    fn registration(&self) -> String {
        format!("{DRIVER}@{}-reg.sock", self.instance)
    }
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Before a failed step is tried again.
    pub retry: Retry,
    /// How long kubelet may take to ask for the driver's name, before that is reported.
    pub asked: Duration,
    /// How long the daemon may take for an answer about a claim. Kubelet gives up a call after 45
    /// s, and then no reason is shown.
    pub claim: Duration,
    /// The time between two lists of the devices' health. Kubelet takes a device's health for
    /// unknown after 30 s without a list.
    pub health: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            retry: Retry::default(),
            asked: Duration::from_secs(60),
            claim: Duration::from_secs(20),
            health: Duration::from_secs(10),
        }
    }
}

/// Keeps the driver registered with kubelet until `stop`. Failures are reported to the host and
/// tried again; at the end the sockets are removed, and kubelet forgets the driver.
pub async fn serve(
    place: Place,
    health: watch::Receiver<Vec<DeviceHealth>>,
    host: Arc<dyn Host>,
    stop: impl Future<Output = ()>,
) {
    if !is_uid(&place.instance) {
        let error = DriverError::Instance { instance: place.instance };
        host.tell(Event::Failed(error));
        return stop.await;
    }
    let pace = place.pace;
    let directories = [place.registry.clone(), place.home()];
    let changes = Changes::new(directories, [place.registration(), place.socket()]);
    let registrar = Registrar::new(&place.home().join(place.socket()), Arc::clone(&host));
    let watch = Watch::new(health, Arc::clone(&host), pace.health);
    let server = Server::new(Arc::clone(&host), watch, pace.claim);
    let retries = Retries::new(changes, pace.retry);
    tokio::select! {
        () = Driver { place, host, server, registrar, retries }.run() => {}
        () = stop => {}
    }
}

struct Driver {
    place: Place,
    host: Arc<dyn Host>,
    server: Server,
    registrar: Registrar,
    retries: Retries,
}

impl Driver {
    async fn run(mut self) {
        loop {
            match self.bind() {
                Ok(socket) => {
                    let (server, since) = (self.server.clone(), Instant::now());
                    socket.serve(&server, self.be_found(&socket)).await;
                    drop(socket);
                    self.went(since).await;
                }
                Err(error) => self.failed(error).await,
            }
        }
    }

    /// Makes the socket that kubelet calls.
    fn bind(&self) -> Result<Socket, DriverError> {
        let home = self.place.home();
        make(&self.place.plugins, &home)?;
        // Only now the directories surely exist.
        self.retries.follow();
        Ok(Socket::bind(&home, &self.place.socket())?)
    }

    /// Keeps the other socket, by which kubelet finds `socket`. Returns when kubelet can no longer
    /// find it.
    async fn be_found(&mut self, socket: &Socket) {
        while socket.is_there() {
            // Forgets what kubelet asked at an earlier socket.
            self.registrar.was_asked();
            match Socket::bind(&self.place.registry, &self.place.registration()) {
                Ok(registration) => {
                    let (registrar, since) = (self.registrar.clone(), Instant::now());
                    let end = self.one_goes([&registration, socket]);
                    registration.serve(&registrar, end).await;
                    if !registration.is_there() {
                        drop(registration);
                        self.went(since).await;
                    }
                }
                Err(error) => self.failed(error.into()).await,
            }
        }
    }

    /// Returns when kubelet can no longer find one of the two.
    async fn one_goes(&mut self, sockets: [&Socket; 2]) {
        let Pace { retry: Retry { poll, .. }, asked, .. } = self.place.pace;
        let since = Instant::now();
        let mut awaited = true;
        while sockets.iter().all(|socket| socket.is_there()) {
            awaited = awaited && !self.registrar.was_asked();
            let left = asked.saturating_sub(since.elapsed());
            if awaited && left.is_zero() {
                awaited = false;
                self.host.tell(Event::NotAsked { seconds: asked.as_secs() });
            }
            self.retries.wait(if awaited { poll.min(left) } else { poll }).await;
        }
    }

    /// Waits, so that two drivers that replace each other's sockets do not do so at full speed.
    async fn went(&mut self, since: Instant) {
        tokio::time::sleep(self.retries.pause_after(since)).await;
    }

    async fn failed(&mut self, error: DriverError) {
        let event = Event::Failed(error);
        if self.retries.is_news(event.to_string()) {
            self.host.tell(event);
        }
        self.retries.back_off().await;
    }
}

/// Makes the driver's directory if it is missing, in one that belongs to root alone.
fn make(plugins: &Path, home: &Path) -> Result<(), SocketError> {
    check(plugins)?;
    match std::fs::DirBuilder::new().mode(0o750).create(home) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(SocketError::File { action: "make", path: home.to_owned(), source })
        }
        _ => Ok(()),
    }
}
