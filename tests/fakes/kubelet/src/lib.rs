//! A kubelet, as far as a device plugin can tell: it empties its directory of sockets when it
//! starts, takes registrations, reads lists, hands out devices by the plugin's preference and keeps
//! a checkpoint of its answers. It can also be what a real one cannot be made to be. Its module
//! [`dra`] is a kubelet as far as a DRA driver can tell.

#![allow(missing_docs, missing_debug_implementations, reason = "a part of tests")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a part of tests")]

pub mod dra;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mpsgate_deviceplugin::api::device_plugin_client::DevicePluginClient;
use mpsgate_deviceplugin::api::registration_server::{Registration, RegistrationServer};
use mpsgate_deviceplugin::api::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, Empty, PreferredAllocationRequest,
    RegisterRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codegen::{Service, async_trait, http};
use tonic::{Request, Response, Status};

/// Waits until it holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(tokio::time::Instant::now() < limit, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A directory as kubelet makes it.
pub fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
    dir
}

/// What kubelet does with a registration.
#[derive(Clone)]
pub enum Manner {
    /// As it should.
    Reads,
    /// Says yes and never connects.
    Ignores,
    /// Asks for the list, takes one, and hangs up.
    HangsUp,
    /// No, in these words.
    Refuses(String),
    /// Takes the connection and says nothing.
    IsSilent,
    /// Speaks something else.
    Babbles,
}

/// What lies on disk and outlives a kubelet.
pub type Checkpoint = Arc<Mutex<BTreeMap<String, (BTreeSet<String>, ContainerAllocateResponse)>>>;

#[derive(Default)]
struct Seen {
    registrations: Vec<RegisterRequest>,
    lists: BTreeMap<String, Vec<Device>>,
    readers: BTreeMap<String, JoinHandle<()>>,
}

/// One that runs; ends when it is dropped, and leaves its socket behind as a killed one does.
pub struct Kubelet {
    directory: PathBuf,
    manner: Arc<Mutex<Manner>>,
    seen: Arc<Mutex<Seen>>,
    checkpoint: Checkpoint,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Registrar {
    directory: PathBuf,
    manner: Arc<Mutex<Manner>>,
    seen: Arc<Mutex<Seen>>,
}

#[async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let manner = self.manner.lock().unwrap().clone();
        let mut seen = self.seen.lock().unwrap();
        seen.registrations.push(request.clone());
        if request.version != "v1beta1" {
            return Err(Status::unknown("requested API version is not supported by kubelet"));
        }
        let name = request.resource_name.clone();
        let reader = match manner {
            Manner::Refuses(words) => return Err(Status::unknown(words)),
            Manner::Ignores | Manner::IsSilent | Manner::Babbles => return Ok(Empty {}.into()),
            Manner::HangsUp => read(self.clone(), request, 1),
            Manner::Reads => read(self.clone(), request, usize::MAX),
        };
        // The later registration counts, and its list alone.
        if let Some(earlier) = seen.readers.insert(name, tokio::spawn(reader)) {
            earlier.abort();
        }
        Ok(Empty {}.into())
    }
}

async fn read(registrar: Registrar, request: RegisterRequest, most: usize) {
    let mut plugin = connect(&registrar.directory.join(&request.endpoint)).await;
    let options = plugin.get_device_plugin_options(Empty {}).await.unwrap().into_inner();
    assert_eq!(Some(options), request.options);
    let mut lists = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    for _ in 0..most {
        let Ok(Some(list)) = lists.message().await else { break };
        let mut seen = registrar.seen.lock().unwrap();
        seen.lists.insert(request.resource_name.clone(), list.devices);
    }
    // As kubelet: the devices of a plugin that is gone are unhealthy.
    registrar.seen.lock().unwrap().lists.remove(&request.resource_name);
}

impl Kubelet {
    pub fn start(directory: &Path, manner: Manner, checkpoint: Checkpoint) -> Self {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_socket() {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let listener = UnixListener::bind(directory.join("kubelet.sock")).unwrap();
        let manner = Arc::new(Mutex::new(manner));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let directory = directory.to_owned();
        let registrar =
            Registrar { directory: directory.clone(), manner: manner.clone(), seen: seen.clone() };
        let task = tokio::spawn(listen(listener, registrar));
        Self { directory, manner, seen, checkpoint, task }
    }

    pub fn behave(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    pub fn registrations(&self) -> Vec<RegisterRequest> {
        self.seen.lock().unwrap().registrations.clone()
    }

    /// `(healthy, all)` of what was listed last.
    pub fn devices(&self, resource: &str) -> (usize, usize) {
        let seen = self.seen.lock().unwrap();
        let devices = seen.lists.get(resource).map(Vec::as_slice).unwrap_or_default();
        (devices.iter().filter(|device| device.health == "Healthy").count(), devices.len())
    }

    pub async fn plugin(&self, resource: &str) -> Plugin {
        let mut registrations = self.registrations().into_iter().rev();
        let found = registrations.find(|one| one.resource_name == resource).unwrap();
        connect(&self.directory.join(found.endpoint)).await
    }

    /// As at the admission of a pod with one container.
    pub async fn admit(
        &self,
        container: &str,
        resource: &str,
        size: usize,
    ) -> Result<ContainerAllocateResponse, Status> {
        let mut plugin = self.plugin(resource).await;
        let free: BTreeSet<String> = {
            let seen = self.seen.lock().unwrap();
            let used = self.checkpoint.lock().unwrap();
            let used: BTreeSet<&String> = used.values().flat_map(|(ids, _)| ids).collect();
            let healthy = seen.lists[resource].iter().filter(|one| one.health == "Healthy");
            healthy.map(|one| one.id.clone()).filter(|id| !used.contains(id)).collect()
        };
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_ids: free.iter().cloned().collect(),
                must_include_device_ids: Vec::new(),
                allocation_size: i32::try_from(size).unwrap(),
            }],
        };
        let preferred = plugin.get_preferred_allocation(request).await?.into_inner();
        let device_ids = preferred.container_responses[0].device_ids.clone();
        assert!(device_ids.len() == size && device_ids.iter().all(|id| free.contains(id)));
        let request = allocate_request([device_ids.clone()]);
        let answer = plugin.allocate(request).await?.into_inner().container_responses.remove(0);
        let kept = (device_ids.into_iter().collect(), answer.clone());
        self.checkpoint.lock().unwrap().insert(container.to_owned(), kept);
        Ok(answer)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        for reader in self.seen.lock().unwrap().readers.values() {
            reader.abort();
        }
    }
}

/// What `Allocate` is asked, for so many containers.
pub fn allocate_request<const N: usize>(containers: [Vec<String>; N]) -> AllocateRequest {
    let container_requests = containers.map(|device_ids| ContainerAllocateRequest { device_ids });
    AllocateRequest { container_requests: container_requests.into() }
}

async fn listen(listener: UnixListener, registrar: Registrar) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let manner = registrar.manner.lock().unwrap().clone();
        let service = RegistrationServer::new(registrar.clone());
        tokio::spawn(async move {
            match manner {
                Manner::IsSilent => {
                    let mut all = Vec::new();
                    let _ = stream.read_to_end(&mut all).await;
                }
                Manner::Babbles => {
                    let _ = stream.write_all(&b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(9)).await;
                    let _ = stream.read(&mut [0; 64]).await;
                }
                _ => {
                    let served = service_fn(move |call| service.clone().call(call));
                    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), served)
                        .await;
                }
            }
        });
    }
}

pub type Plugin = DevicePluginClient<Sender>;

/// A client of the plugin on that socket.
pub async fn connect(path: &Path) -> Plugin {
    let sender = dial(path).await.unwrap();
    DevicePluginClient::with_origin(sender, http::Uri::from_static(ORIGIN))
        .max_decoding_message_size(mpsgate_deviceplugin::MESSAGE_LIMIT)
}

/// What kubelet names as the authority of a unix socket.
const ORIGIN: &str = "http://localhost";

/// A connection, as grpc-go makes it.
async fn dial(path: &Path) -> Result<Sender, Box<dyn std::error::Error + Send + Sync>> {
    let stream = UnixStream::connect(path).await?;
    // grpc-go's windows.
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let (sender, connection) = client.handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(async {
        let _ = connection.await;
    });
    Ok(Sender { sender, _driver: Arc::new(Driver(driver)) })
}

/// The connection ends with its last caller, at once.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Clone)]
pub struct Sender {
    sender: SendRequest<Body>,
    _driver: Arc<Driver>,
}

impl Service<http::Request<Body>> for Sender {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
