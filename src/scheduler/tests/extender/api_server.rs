//! An API server of pods, one list of nodes and one Lease, in memory, that fails as it is told.
//! `tests/k8s` has a real one; what this can and that cannot is to answer wrongly at one chosen
//! request.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What becomes of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// It is done, and the connection cut before the answer.
    DoneAndCut,
    /// It is not done, and the connection cut.
    Cut,
    /// It is not done, and this is answered.
    Status(u16),
}

#[derive(Default)]
pub(crate) struct World {
    /// By `/api/v1/pods/NAME`, `/api/v1/nodes/NAME`, `lease`.
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Version, plural, line.
    log: Vec<(u64, &'static str, String)>,
    /// `METHOD path-suffix`, each for one request.
    pub(crate) faults: VecDeque<(&'static str, Fault)>,
    /// `METHOD path`.
    pub(crate) asked: Vec<String>,
    changed: watch::Sender<u64>,
    /// While it is, connections are accepted and stay open, and nothing is said on them, nor ever
    /// again.
    pub(crate) mute: watch::Sender<bool>,
}

impl World {
    fn put(&mut self, plural: &'static str, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let line = json!({"type": "MODIFIED", "object": object}).to_string();
        self.objects.insert(format!("{plural}/{name}"), object);
        self.log.push((self.version, plural, line));
        self.changed.send_replace(self.version);
    }

    pub(crate) fn get(&self, key: &str) -> Value {
        self.objects.get(key).cloned().unwrap_or_default()
    }

    pub(crate) fn add_pod(&mut self, name: &str, gib: u64, annotations: Value) {
        self.add_pod_of(name, json!({"aliyun.com/gpu-mem": gib.to_string()}), annotations);
    }

    pub(crate) fn add_pod_of(&mut self, name: &str, limits: Value, annotations: Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        });
        self.put("pods", name, pod);
    }

    /// A pod that runs on the first card of a node.
    pub(crate) fn add_bound(&mut self, name: &str, node: &str, gib: u64) {
        self.add_pod(name, gib, json!({"ALIYUN_COM_GPU_MEM_IDX": "0"}));
        let mut pod = self.get(&format!("pods/{name}"));
        pod["spec"]["nodeName"] = node.into();
        self.put("pods", name, pod);
    }

    /// What mpsgated writes when it has cards of the node; a pod holds memory.
    pub(crate) fn share(&mut self, name: &str, holder: &str) {
        let mut node = self.get(&format!("nodes/{name}"));
        let card = json!({"uuid": "GPU-0", "index": 0, "memory_mib": 1024, "local_mib": 0, "healthy": true, "held": {holder: 1024}});
        node["metadata"]["annotations"]["mpsgate.io/cards"] =
            json!({"version": 1, "cards": [card]}).to_string().into();
        node["metadata"]["labels"]["mpsgate.io/shared"] = "true".into();
        node["status"]["conditions"] = json!([{"type": "GPUMemorySharingReady", "status": "True"}]);
        self.put("nodes", name, node);
    }

    /// What it writes, in two requests, when it has given the cards back.
    pub(crate) fn give_back(&mut self, name: &str, status: bool) {
        let mut node = self.get(&format!("nodes/{name}"));
        if status {
            node["status"] = json!({});
        } else {
            node["metadata"]["labels"] = json!({"ack.node.gpu.schedule": "mps"});
            if let Some(all) = node["metadata"]["annotations"].as_object_mut() {
                all.remove("mpsgate.io/cards");
            }
        }
        self.put("nodes", name, node);
    }

    pub(crate) fn tell(&mut self, name: &str) {
        let mut node = self.get(&format!("nodes/{name}"));
        node["metadata"]["annotations"]["mpsgate.io/removal"] = "true".into();
        self.put("nodes", name, node);
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.objects.remove(key);
    }

    /// A node under MPS with cards of so many GiB.
    pub(crate) fn add_node(&mut self, name: &str, cards: &[u64]) {
        let card = |(index, gib): (usize, &u64)| json!({"uuid": format!("GPU-{index}"), "index": index, "memory_mib": gib * 1024, "local_mib": 0, "healthy": true});
        let cards: Vec<_> = cards.iter().enumerate().map(card).collect();
        let annotation = json!({"version": 1, "cards": cards}).to_string();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"ack.node.gpu.schedule": "mps"}, "annotations": {"mpsgate.io/cards": annotation}},
        });
        self.put("nodes", name, node);
    }

    pub(crate) fn set_lease(&mut self, holder: &str) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "mpsgate-scheduler", "namespace": "kube-system"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
        });
        self.put("leases", "mpsgate-scheduler", lease);
    }

    /// A request other than a watch: status and body.
    fn answer(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        match (method, parts.as_slice()) {
            ("GET", ["api", "v1", plural @ ("pods" | "nodes")] | [.., _, _, plural @ "pods"]) => {
                let items: Vec<_> = self
                    .objects
                    .iter()
                    .filter_map(|(key, object)| key.starts_with(plural).then_some(object))
                    .collect();
                (
                    200,
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": self.version.to_string()}, "items": items}),
                )
            }
            ("GET", [.., plural @ ("pods" | "leases"), name]) => self
                .objects
                .get(&format!("{plural}/{name}"))
                .map_or((404, json!({})), |object| (200, object.clone())),
            ("DELETE", [.., "leases", name]) => {
                match self.objects.remove(&format!("leases/{name}")) {
                    Some(lease) => (200, lease),
                    None => (404, json!({})),
                }
            }
            ("PATCH", [.., plural @ ("pods" | "nodes"), name]) => {
                let plural = if *plural == "pods" { "pods" } else { "nodes" };
                let mut pod = self.get(&format!("{plural}/{name}"));
                let metadata = &body["metadata"];
                if pod.is_null() {
                    return (404, json!({}));
                }
                let differs = |key: &str| {
                    metadata.get(key).is_some_and(|value| *value != pod["metadata"][key])
                };
                if differs("resourceVersion") || differs("uid") {
                    return (409, json!({}));
                }
                for part in ["annotations", "labels"] {
                    for (key, value) in metadata[part].as_object().into_iter().flatten() {
                        pod["metadata"][part][key] = value.clone();
                        if let (Value::Null, Some(all)) =
                            (value, pod["metadata"][part].as_object_mut())
                        {
                            all.remove(key);
                        }
                    }
                }
                self.put(plural, name, pod.clone());
                (200, pod)
            }
            ("POST", [.., "pods", name, "binding"]) => {
                let mut pod = self.get(&format!("pods/{name}"));
                if pod.is_null() {
                    return (404, json!({}));
                }
                let differs = |key: &str| body["metadata"][key] != pod["metadata"][key];
                if !pod["spec"]["nodeName"].is_null()
                    || differs("uid")
                    || differs("resourceVersion")
                {
                    return (409, json!({}));
                }
                pod["spec"]["nodeName"] = body["target"]["name"].clone();
                for (key, value) in
                    body["metadata"]["annotations"].as_object().into_iter().flatten()
                {
                    pod["metadata"]["annotations"][key] = value.clone();
                }
                self.put("pods", name, pod);
                (201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
            }
            ("POST" | "PUT", [.., "leases"] | [.., "leases", _]) => {
                let held =
                    self.get("leases/mpsgate-scheduler")["metadata"]["resourceVersion"].clone();
                if method == "PUT" && held != body["metadata"]["resourceVersion"] {
                    return (409, json!({}));
                }
                self.put("leases", "mpsgate-scheduler", body.clone());
                (200, self.get("leases/mpsgate-scheduler"))
            }
            _ => (500, json!({})),
        }
    }
}

pub(crate) struct ApiServer {
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) kubeconfig: tempfile::NamedTempFile,
}

impl ApiServer {
    pub(crate) async fn start(world: World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut kubeconfig = tempfile::NamedTempFile::new().expect("a file");
        write!(
            kubeconfig,
            "{{apiVersion: v1, kind: Config, current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: \"http://{}\"}}}}], users: [{{name: u, user: {{token: t}}}}]}}",
            listener.local_addr().expect("bound")
        )
        .expect("written");
        let world = Arc::new(Mutex::new(world));
        let shared = Arc::clone(&world);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self { world, kubeconfig }
    }
}

async fn serve(mut stream: TcpStream, world: Arc<Mutex<World>>) -> Option<()> {
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut held).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&held[..end]).into_owned();
        let length = head.lines().find_map(|line| {
            line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned)
        });
        let length: usize = length.map_or(0, |text| text.trim().parse().expect("a number"));
        while held.len() < end + length {
            stream.read_buf(&mut held).await.ok()?;
        }
        let body: Value = serde_json::from_slice(&held[end..end + length]).unwrap_or_default();
        held.drain(..end + length);
        let mut words = head.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mute = world.lock().expect("no test panicked").mute.subscribe();
        if *mute.borrow() {
            std::future::pending::<()>().await;
        }
        if query.contains("watch=true") {
            if watch(&mut stream, &world, path, query, mute).await? {
                continue;
            }
            std::future::pending::<()>().await;
        }
        let asked = format!("{method} {path}");
        let (answer, cut) = {
            let mut world = world.lock().expect("no test panicked");
            let fault = match world.faults.front() {
                Some((at, fault))
                    if asked.starts_with(at.split(' ').next()?)
                        && asked.ends_with(at.split(' ').nth(1)?) =>
                {
                    Some(*fault)
                }
                _ => None,
            };
            if fault.is_some() {
                world.faults.pop_front();
            }
            world.asked.push(asked);
            match fault {
                Some(Fault::Status(code)) => ((code, json!({})), false),
                Some(Fault::Cut) => ((500, json!({})), true),
                Some(Fault::DoneAndCut) => (world.answer(method, path, &body), true),
                None => (world.answer(method, path, &body), false),
            }
        };
        if cut {
            return None;
        }
        let reason = match answer.0 {
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            _ => "ServiceUnavailable",
        };
        let (code, body) = match answer {
            (code @ 400.., _) => (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "as told", "reason": reason, "code": code}),
            ),
            answer => answer,
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.ok()?;
    }
}

/// Whether it was ended in time, and not made silent.
async fn watch(
    stream: &mut TcpStream,
    world: &Mutex<World>,
    path: &str,
    query: &str,
    mut mute: watch::Receiver<bool>,
) -> Option<bool> {
    let asked = |key: &str| {
        let value = query.split('&').find_map(|one| one.strip_prefix(key));
        value.and_then(|value| value.parse::<u64>().ok())
    };
    let plural = path.rsplit('/').next()?.to_owned();
    let mut sent = asked("resourceVersion=")?;
    let end = tokio::time::sleep(std::time::Duration::from_secs(asked("timeoutSeconds=")?));
    let mut end = std::pin::pin!(end);
    let mut changed = world.lock().expect("no test panicked").changed.subscribe();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await.ok()?;
    loop {
        changed.borrow_and_update();
        let lines: Vec<_> = {
            let world = world.lock().expect("no test panicked");
            let new = world.log.iter().filter(|(version, of, _)| *version > sent && *of == plural);
            new.map(|(version, _, line)| (*version, line.clone())).collect()
        };
        for (version, line) in lines {
            sent = version;
            stream
                .write_all(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes())
                .await
                .ok()?;
        }
        tokio::select! {
            biased;
            muted = async { mute.wait_for(|mute| *mute).await.is_ok() } => return muted.then_some(false),
            changed = changed.changed() => changed.ok()?,
            () = end.as_mut() => {
                stream.write_all(b"0\r\n\r\n").await.ok()?;
                return Some(true);
            }
        }
    }
}
