//! A kubelet, as far as a DRA driver can tell: it finds registration sockets, asks who is there,
//! connects to where it is sent, has claims prepared and unprepared, and reads health. It can also
//! be what a real one cannot be made to be.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mpsgate_dra::api::dra::dra_plugin_client::DraPluginClient;
use mpsgate_dra::api::dra::{
    Claim, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use mpsgate_dra::api::health_v1::dra_resource_health_client::DraResourceHealthClient;
use mpsgate_dra::api::registration::registration_client::RegistrationClient;
use mpsgate_dra::api::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use mpsgate_dra::api::{health_v1, health_v1alpha1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::codegen::http::Uri;

use crate::{ORIGIN, Sender, dial};

/// What kubelet does with a socket that it finds.
#[derive(Clone)]
pub enum Manner {
    /// As it should, with this version of the service for health.
    Registers { health: &'static str },
    /// As it should, and takes its time before each word.
    IsSlow(Duration),
    /// No, in these words.
    Refuses(String),
    /// Connects, asks who is there, and hangs up before it hears.
    HangsUp,
    /// Speaks something else.
    Babbles,
}

impl Manner {
    pub const NEW: Self = Self::Registers { health: "v1" };
    /// A kubelet that knows the older service alone.
    pub const OLD: Self = Self::Registers { health: "v1alpha1" };
}

/// What one plugin said of its devices, newest last, as v1 has it.
pub type Lists = Vec<Vec<health_v1::DeviceHealth>>;

/// A plugin that kubelet knows.
struct Known {
    info: PluginInfo,
    client: DraPluginClient<Sender>,
    lists: Arc<Mutex<Lists>>,
    reader: JoinHandle<()>,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

#[derive(Default)]
struct Seen {
    /// By the path of the registration socket.
    known: BTreeMap<PathBuf, (Stamp, Known)>,
    /// In the order in which they came.
    order: Vec<PathBuf>,
    asked: usize,
    /// Why a socket is no plugin, as often as it is not.
    failures: Vec<String>,
}

type Stamp = (u64, i64, i64);

/// One that runs; ends when it is dropped, and leaves all sockets where they are.
pub struct Kubelet {
    manner: Arc<Mutex<Manner>>,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Kubelet {
    pub fn start(registry: &Path, manner: Manner) -> Self {
        let manner = Arc::new(Mutex::new(manner));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let task = tokio::spawn(watch(registry.to_owned(), manner.clone(), seen.clone()));
        Self { manner, seen, task }
    }

    pub fn behave(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// The plugins that are registered now, newest last.
    pub fn registered(&self) -> Vec<PluginInfo> {
        let seen = self.seen.lock().unwrap();
        seen.order.iter().map(|path| seen.known[path].1.info.clone()).collect()
    }

    /// How often somebody was asked who he is.
    pub fn asked(&self) -> usize {
        self.seen.lock().unwrap().asked
    }

    /// Why sockets were no plugins.
    pub fn failures(&self) -> Vec<String> {
        self.seen.lock().unwrap().failures.clone()
    }

    /// What the newest plugin said of its devices.
    pub fn lists(&self) -> Lists {
        let seen = self.seen.lock().unwrap();
        let newest = seen.order.last().map(|path| &seen.known[path].1);
        newest.map(|known| known.lists.lock().unwrap().clone()).unwrap_or_default()
    }

    /// The newest plugin, which is the one that kubelet calls.
    pub fn plugin(&self) -> DraPluginClient<Sender> {
        let seen = self.seen.lock().unwrap();
        seen.known[seen.order.last().unwrap()].1.client.clone()
    }

    pub async fn prepare(
        &self,
        claims: impl IntoIterator<Item = Claim>,
    ) -> Result<NodePrepareResourcesResponse, Status> {
        let claims = claims.into_iter().collect();
        let request = NodePrepareResourcesRequest { claims };
        Ok(self.plugin().node_prepare_resources(request).await?.into_inner())
    }

    pub async fn unprepare(
        &self,
        claims: impl IntoIterator<Item = Claim>,
    ) -> Result<NodeUnprepareResourcesResponse, Status> {
        let claims = claims.into_iter().collect();
        let request = NodeUnprepareResourcesRequest { claims };
        Ok(self.plugin().node_unprepare_resources(request).await?.into_inner())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// As a real one names it.
pub fn claim(namespace: &str, name: &str, uid: &str) -> Claim {
    let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
    Claim { namespace, uid, name }
}

/// Uids that no API server made.
pub fn garbage_uids() -> Vec<String> {
    ["", "..", "../../etc/passwd", "a b", "a\0b", "\u{1b}[2J", "ü", "\u{202e}x"]
        .map(str::to_owned)
        .into_iter()
        .chain(["x".repeat(254), "y".repeat(4096)])
        .collect()
}

/// Kubelet's plugin watcher and its reconciler, which has a second for each round.
async fn watch(registry: PathBuf, manner: Arc<Mutex<Manner>>, seen: Arc<Mutex<Seen>>) {
    loop {
        let there = sockets(&registry);
        {
            let mut seen = seen.lock().unwrap();
            seen.known.retain(|path, (stamp, _)| there.get(path) == Some(stamp));
            let Seen { known, order, .. } = &mut *seen;
            order.retain(|path| known.contains_key(path));
        }
        for (path, stamp) in there {
            if seen.lock().unwrap().known.contains_key(&path) {
                continue;
            }
            seen.lock().unwrap().asked += 1;
            let manner = manner.lock().unwrap().clone();
            let found = register(&path, manner).await;
            let mut seen = seen.lock().unwrap();
            match found {
                Ok(known) => {
                    seen.order.push(path.clone());
                    seen.known.insert(path, (stamp, known));
                }
                Err(failure) => seen.failures.push(failure),
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn sockets(registry: &Path) -> BTreeMap<PathBuf, Stamp> {
    let mut sockets = BTreeMap::new();
    for entry in std::fs::read_dir(registry).into_iter().flatten().flatten() {
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let Ok(found) = entry.metadata() else { continue };
        if !hidden && found.file_type().is_socket() {
            sockets.insert(entry.path(), (found.ino(), found.ctime(), found.ctime_nsec()));
        }
    }
    sockets
}

async fn register(path: &Path, manner: Manner) -> Result<Known, String> {
    if matches!(manner, Manner::Babbles) {
        let mut stream = UnixStream::connect(path).await.map_err(|error| error.to_string())?;
        let _ = stream.write_all(&b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(9)).await;
        let _ = stream.read(&mut [0; 64]).await;
        return Err("babbled".to_owned());
    }
    let sender = dial(path).await.map_err(|error| error.to_string())?;
    // What no HTTP/2 server of Rust takes: the stream is reset.
    let origin = origin(path).map_err(|error| format!("PROTOCOL_ERROR: {error}"))?;
    let mut client = RegistrationClient::with_origin(sender, origin);
    if matches!(manner, Manner::HangsUp) {
        let asks = client.get_info(InfoRequest {});
        let _ = tokio::time::timeout(Duration::from_micros(1), asks).await;
        return Err("hung up".to_owned());
    }
    let pause = if let Manner::IsSlow(pause) = manner { pause } else { Duration::ZERO };
    tokio::time::sleep(pause).await;
    // Kubelet gives it a second.
    let info = tokio::time::timeout(Duration::from_secs(1), client.get_info(InfoRequest {}))
        .await
        .map_err(|_| "no answer for a second".to_owned())?
        .map_err(|status| status.to_string())?
        .into_inner();
    tokio::time::sleep(pause).await;
    let error = match &manner {
        Manner::Refuses(words) => words.clone(),
        _ => validate(&info).err().unwrap_or_default(),
    };
    let plugin_registered = error.is_empty();
    let known = if plugin_registered { known(info, &manner).await } else { Err(error.clone()) };
    let status = RegistrationStatus { plugin_registered, error };
    client.notify_registration_status(status).await.map_err(|status| status.to_string())?;
    known
}

/// As grpc-go makes an authority of a path that was dialled as it is (`encodeAuthority` of its
/// clientconn.go).
fn origin(path: &Path) -> Result<Uri, tonic::codegen::http::uri::InvalidUri> {
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
    let path = path.as_os_str().as_encoded_bytes();
    let written = path.iter().map(|byte| match byte {
        byte if is_kept(*byte) => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    format!("http://{}", written.collect::<String>()).parse()
}

/// In kubelet's words.
fn validate(info: &PluginInfo) -> Result<(), String> {
    if info.r#type != "DRAPlugin" {
        let kind = &info.r#type;
        return Err(format!("no handler registered for plugin type: {kind}"));
    }
    let supported = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];
    let found = info.supported_versions.iter().find(|one| supported.contains(&one.as_str()));
    // Only the first one is served here.
    if found.is_none_or(|found| found != supported[0]) {
        let offered = &info.supported_versions;
        return Err(format!(
            "none of services supported by the plugin ({offered:?}) are supported by the kubelet \
             ({supported:?})"
        ));
    }
    Ok(())
}

async fn known(info: PluginInfo, manner: &Manner) -> Result<Known, String> {
    let sender = dial(Path::new(&info.endpoint)).await.map_err(|error| error.to_string())?;
    let lists = Arc::new(Mutex::new(Lists::new()));
    let health = if let Manner::Registers { health } = manner { health } else { "v1" };
    let service = format!("{health}.DRAResourceHealth");
    if !info.supported_versions.contains(&service) {
        return Err(format!("{service} is not served"));
    }
    let reader = if health == "v1" {
        tokio::spawn(read_v1(sender.clone(), lists.clone()))
    } else {
        tokio::spawn(read_v1alpha1(sender.clone(), lists.clone()))
    };
    let client = DraPluginClient::with_origin(sender, Uri::from_static(ORIGIN));
    Ok(Known { info, client, lists, reader })
}

async fn read_v1(sender: Sender, lists: Arc<Mutex<Lists>>) {
    let mut client = DraResourceHealthClient::with_origin(sender, Uri::from_static(ORIGIN));
    let request = health_v1::NodeWatchResourcesRequest {};
    let Ok(stream) = client.node_watch_resources(request).await else { return };
    let mut stream = stream.into_inner();
    while let Ok(Some(list)) = stream.message().await {
        lists.lock().unwrap().push(list.devices);
    }
}

async fn read_v1alpha1(sender: Sender, lists: Arc<Mutex<Lists>>) {
    use health_v1alpha1::dra_resource_health_client::DraResourceHealthClient;
    let mut client = DraResourceHealthClient::with_origin(sender, Uri::from_static(ORIGIN));
    let request = health_v1alpha1::NodeWatchResourcesRequest {};
    let Ok(stream) = client.node_watch_resources(request).await else { return };
    let mut stream = stream.into_inner();
    while let Ok(Some(list)) = stream.message().await {
        let devices = list.devices.into_iter().map(|one| health_v1::DeviceHealth {
            device: one.device.map(|one| health_v1::DeviceIdentifier {
                pool_name: one.pool_name,
                device_name: one.device_name,
            }),
            health: one.health,
            last_updated_time: one.last_updated_time,
            health_check_timeout_seconds: one.health_check_timeout_seconds,
            message: one.message,
        });
        lists.lock().unwrap().push(devices.collect());
    }
}
