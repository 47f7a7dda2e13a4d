//! One call to kubelet: it names a resource, and the socket that serves it.

use std::path::Path;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mpsgate_kubelet::{SocketError, is_root};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use crate::api::registration_client::RegistrationClient;
use crate::api::{DevicePluginOptions, RegisterRequest};
use mpsgate_model::Resource;

use crate::PluginError;
use crate::resource_kind::socket_name;

const VERSION: &str = "v1beta1";
/// gRPC wants an authority; a unix socket has none.
const ORIGIN: &str = "http://localhost";

/// The plugin's options, at registration and when kubelet asks.
pub(crate) const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };

/// Registers within `limit`.
pub(crate) async fn register(
    kubelet: &Path,
    resource: &Resource,
    limit: Duration,
) -> Result<(), PluginError> {
    let silent = || PluginError::Silent { path: kubelet.to_owned(), seconds: limit.as_secs() };
    tokio::time::timeout(limit, call(kubelet, resource)).await.unwrap_or_else(|_| Err(silent()))
}

async fn call(kubelet: &Path, resource: &Resource) -> Result<(), PluginError> {
    let failed =
        |action| move |source| SocketError::File { action, path: kubelet.to_owned(), source };
    let http = |source| PluginError::Http { path: kubelet.to_owned(), source };
    let stream = UnixStream::connect(kubelet).await.map_err(failed("connect to"))?;
    let peer = stream.peer_cred().map_err(failed("see who listens on"))?;
    if !is_root(peer.uid()) {
        return Err(PluginError::Stranger { path: kubelet.to_owned(), uid: peer.uid() });
    }
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|error| http(error.into()))?;
    let mut client = RegistrationClient::with_origin(Sender(sender), Uri::from_static(ORIGIN));
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: socket_name(*resource),
        resource_name: resource.to_string(),
        options: Some(OPTIONS),
    };
    let mut answer = pin!(client.register(request));
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection may end before the answer, if kubelet breaks off; the call then has its
        // answer, or fails by itself.
        _ = connection => answer.await,
    };
    match answer {
        Ok(_) => Ok(()),
        // A status without a cause came from kubelet; one with a cause is a failure of the call
        // itself.
        Err(status) if std::error::Error::source(&status).is_none() => Err(PluginError::Refused {
            resource: resource.to_string(),
            reason: status.message().to_owned(),
        }),
        Err(status) => Err(http(status.into())),
    }
}

/// hyper's connection in the form that tonic calls.
#[derive(Debug, Clone)]
struct Sender(SendRequest<Body>);

impl Service<http::Request<Body>> for Sender {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
