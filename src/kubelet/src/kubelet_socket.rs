//! A socket in kubelet's directory: made, served, removed. Only root may connect. A connection that
//! hangs or sends garbage does not delay the others.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mpsgate_host::bound_socket::bind;
use mpsgate_host::crash::Steps;
use mpsgate_host::file::beside;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use crate::SocketError;
use crate::kubelet_directory::{self, Stamp};
use crate::socket_event::SocketEvent;

/// The most bytes of one message: grpc-go's default, which kubelet uses.
pub const MESSAGE_LIMIT: usize = 4 << 20;
/// The most connections. Kubelet holds one; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// The most bytes of all headers of a request; kubelet's are some 300.
const HEADERS: u32 = 16 * 1024;
/// The most bytes that wait to be sent, for each call.
const UNSENT: usize = 64 * 1024;
/// A peer that does not answer a ping within this time has gone.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(10);

/// The service on a socket. All clones are the same service.
pub trait Talk: Clone + Send + 'static {
    /// Answers one connection until its end.
    ///
    /// # Errors
    /// If the connection broke.
    fn answer(self, stream: UnixStream) -> impl Future<Output = Result<(), hyper::Error>> + Send;
    /// Receives an event. Must not block.
    fn tell(&self, event: SocketEvent);
}

/// A socket that this process serves. Dropping it removes the file, if that is still the same
/// socket.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    stamp: Option<Stamp>,
    listener: UnixListener,
}

impl Socket {
    /// Replaces a socket that an earlier process left. Anything but a socket is left alone.
    ///
    /// # Errors
    /// If others than root may change the directory, or the socket cannot be made there.
    pub fn bind(directory: &Path, name: &str) -> Result<Self, SocketError> {
        kubelet_directory::check(directory)?;
        let path = directory.join(name);
        kubelet_directory::socket(&path)?;
        kubelet_directory::socket(&beside(&path))?;
        let listener = bind(&path, Steps::NONE)
            .and_then(UnixListener::from_std)
            .map_err(|source| SocketError::File { action: "bind", path: path.clone(), source })?;
        let stamp = kubelet_directory::socket(&path)?;
        Ok(Self { path, stamp, listener })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether kubelet can still find it.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.stamp.is_some()
            && matches!(kubelet_directory::socket(&self.path), Ok(found) if found == self.stamp)
    }

    /// Serves until `end`, which also ends every connection.
    pub async fn serve(&self, talk: &impl Talk, end: impl Future<Output = ()>) {
        talk.tell(SocketEvent::Listening(self.path.clone()));
        tokio::select! {
            () = self.accept(talk) => {}
            () = end => {}
        }
        if !self.is_there() {
            talk.tell(SocketEvent::Gone(self.path.clone()));
        }
    }

    async fn accept(&self, talk: &impl Talk) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let place = tokio::select! {
                place = Arc::clone(&places).acquire_owned() => place,
                Some(_) = connections.join_next() => continue,
            };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // Out of descriptors, or the caller has gone. Others wait in the queue.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let talk = talk.clone();
            connections.spawn(async move {
                let _place = place;
                match stream.peer_cred() {
                    Ok(peer) if kubelet_directory::is_root(peer.uid()) => {
                        if let Err(error) = talk.clone().answer(stream).await {
                            talk.tell(SocketEvent::Broken(error));
                        }
                    }
                    Ok(peer) => talk.tell(SocketEvent::Stranger { uid: peer.uid() }),
                    Err(_) => {}
                }
            });
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves one connection in gRPC's HTTP/2, with at most `streams` calls at a time. A caller that
/// needs something in between, as to look at each byte, wraps the stream.
///
/// # Errors
/// If the connection broke.
pub async fn converse<S, T>(stream: S, streams: u32, service: T) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    T: Service<http::Request<Incoming>, Response = http::Response<Body>, Error = Infallible>,
    T: Clone + Send + 'static,
    T::Future: Send + 'static,
{
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(HEADERS)
        .max_send_buf_size(UNSENT)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .serve_connection(TokioIo::new(stream), service_fn(move |call| service.clone().call(call)))
        .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
        dir
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_stale_socket_is_replaced_and_the_successors_is_not_removed() {
        let dir = directory();
        let first = Socket::bind(dir.path(), "a.sock").unwrap();
        let mode = std::fs::metadata(first.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let second = Socket::bind(dir.path(), "a.sock").unwrap();
        assert!(!first.is_there() && second.is_there());
        drop(first);
        assert!(second.is_there());
        drop(second);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_no_socket_is_left_alone() {
        let dir = directory();
        for name in ["a.sock", ".a.sock.new"] {
            std::os::unix::fs::symlink("/nowhere", dir.path().join(name)).unwrap();
            let error = Socket::bind(dir.path(), "a.sock").unwrap_err();
            assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}
