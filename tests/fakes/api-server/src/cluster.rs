//! Pods, nodes and leases in memory, and requests that fail as they are told.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Answer, ApiServer, NO_TEXT, Request, Said};

/// What becomes of one request.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// It is done, and the connection cut before the answer.
    DoneAndCut,
    /// It is not done, and the connection cut.
    Cut,
    /// It is not done, and this is answered.
    Status(u16),
    /// It is not done, and nothing is answered.
    Silence,
    /// It is not done, and the answer is no JSON.
    Garbage,
}

#[derive(Default)]
pub struct World {
    /// Plural, object.
    objects: Vec<(&'static str, Value)>,
    version: u64,
    /// Version, plural, line.
    log: Vec<(u64, &'static str, String)>,
    /// `METHOD path-suffix`, each for one request.
    pub faults: VecDeque<(&'static str, Fault)>,
    /// `METHOD path`, but watches.
    pub asked: Vec<String>,
    /// While it is, connections are accepted and stay open, and nothing is said on them, nor ever
    /// again.
    pub mute: bool,
}

impl World {
    /// The nodes and pods of a document, in its order.
    pub fn of(document: &Value) -> Self {
        let of = |plural: &'static str| {
            document[plural].as_array().unwrap().iter().map(move |one| (plural, one.clone()))
        };
        Self { objects: of("nodes").chain(of("pods")).collect(), ..Self::default() }
    }

    fn index(&self, plural: &str, name: &str) -> Option<usize> {
        self.objects.iter().position(|(of, one)| *of == plural && one["metadata"]["name"] == name)
    }

    fn put(&mut self, plural: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let line = json!({"type": "MODIFIED", "object": object}).to_string();
        self.log.push((self.version, plural, line));
        match self.index(plural, object["metadata"]["name"].as_str().unwrap()) {
            Some(index) => self.objects[index].1 = object,
            None => self.objects.push((plural, object)),
        }
    }

    /// By PLURAL/NAME; null where there is none.
    pub fn get(&self, key: &str) -> Value {
        let (plural, name) = key.split_once('/').unwrap();
        self.index(plural, name).map_or(Value::Null, |index| self.objects[index].1.clone())
    }

    /// Writes into an object, whatever an API server would say of it.
    pub fn edit(&mut self, plural: &'static str, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut object = self.get(&format!("{plural}/{name}"));
        edit(&mut object);
        self.put(plural, object);
    }

    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let (plural, name) = key.split_once('/').unwrap();
        self.index(plural, name).map(|index| self.objects.remove(index).1)
    }

    pub fn add_pod(&mut self, name: &str, gib: u64, annotations: Value) {
        self.add_pod_of(name, json!({"aliyun.com/gpu-mem": gib.to_string()}), annotations);
    }

    pub fn add_pod_of(&mut self, name: &str, limits: Value, annotations: Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        });
        self.put("pods", pod);
    }

    /// A pod that runs on the first card of a node.
    pub fn add_bound(&mut self, name: &str, node: &str, gib: u64) {
        self.add_pod(name, gib, json!({"ALIYUN_COM_GPU_MEM_IDX": "0"}));
        let mut pod = self.get(&format!("pods/{name}"));
        pod["spec"]["nodeName"] = node.into();
        self.put("pods", pod);
    }

    /// A node under MPS with cards of so many GiB.
    pub fn add_node(&mut self, name: &str, cards: &[u64]) {
        let card = |(index, gib): (usize, &u64)| json!({"uuid": format!("GPU-{index}"), "index": index, "memory_mib": gib * 1024, "local_mib": 0, "healthy": true});
        let cards: Vec<_> = cards.iter().enumerate().map(card).collect();
        let annotation = json!({"version": 1, "cards": cards}).to_string();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"ack.node.gpu.schedule": "mps"}, "annotations": {"mpsgate.io/cards": annotation}},
        });
        self.put("nodes", node);
    }

    /// What a node says of its handlers: those that bypass mpsgate.
    pub fn set_round(&mut self, name: &str, round: &[&str]) {
        let report =
            json!({"version": 1, "default": "mpsgate", "led": ["mpsgate"], "round": round});
        self.edit("nodes", name, |node| {
            node["metadata"]["annotations"]["mpsgate.io/handlers"] = report.to_string().into();
        });
    }

    /// A RuntimeClass of its handler's name.
    pub fn add_class(&mut self, name: &str) {
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": name}, "handler": name,
        });
        self.put("runtimeclasses", class);
    }

    pub fn set_class(&mut self, pod: &str, class: &str) {
        self.edit("pods", pod, |pod| pod["spec"]["runtimeClassName"] = class.into());
    }

    /// What mpsgated writes when it has cards of the node; a pod holds memory.
    pub fn share(&mut self, name: &str, holder: &str) {
        let mut node = self.get(&format!("nodes/{name}"));
        let card = json!({"uuid": "GPU-0", "index": 0, "memory_mib": 1024, "local_mib": 0, "healthy": true, "held": {holder: 1024}});
        node["metadata"]["annotations"]["mpsgate.io/cards"] =
            json!({"version": 1, "cards": [card]}).to_string().into();
        node["metadata"]["labels"]["mpsgate.io/shared"] = "true".into();
        node["status"]["conditions"] = json!([{"type": "GPUMemorySharingReady", "status": "True"}]);
        self.put("nodes", node);
    }

    /// What it writes, in two requests, when it has given the cards back.
    pub fn give_back(&mut self, name: &str, status: bool) {
        let mut node = self.get(&format!("nodes/{name}"));
        if status {
            node["status"] = json!({});
        } else {
            node["metadata"]["labels"] = json!({"ack.node.gpu.schedule": "mps"});
            if let Some(all) = node["metadata"]["annotations"].as_object_mut() {
                all.remove("mpsgate.io/cards");
            }
        }
        self.put("nodes", node);
    }

    pub fn tell(&mut self, name: &str) {
        let mut node = self.get(&format!("nodes/{name}"));
        node["metadata"]["annotations"]["mpsgate.io/removal"] = "true".into();
        self.put("nodes", node);
    }

    /// A pod's claim of a template, which asks for so many GiB.
    pub fn add_claim(&mut self, pod: &str, gib: u64) {
        let name = format!("{pod}-gpu");
        let exactly = json!({"deviceClassName": "shared-gpu.mpsgate.io", "capacity": {"requests": {"memory": format!("{gib}Gi")}}});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        });
        self.put("resourceclaims", claim);
        let mut owner = self.get(&format!("pods/{pod}"));
        owner["spec"]["resourceClaims"] =
            json!([{"name": "gpu", "resourceClaimTemplateName": "gpu"}]);
        owner["status"] =
            json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}]});
        self.put("pods", owner);
    }

    pub fn set_lease(&mut self, holder: &str) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "mpsgate-scheduler", "namespace": "kube-system"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
        });
        self.put("leases", lease);
    }

    /// With a limit in pages, as the real one, of at most 3 here.
    fn list(&self, plural: &str, request: &Request) -> Value {
        let selector = request.parameter("fieldSelector").unwrap_or_default();
        let wanted = |(of, one): &&(&str, Value)| {
            *of == plural && selector.split_terminator(',').all(|field| selected(one, field))
        };
        let items: Vec<_> = self.objects.iter().filter(wanted).map(|(_, one)| one).collect();
        let from = request.parameter("continue").map_or(0, |token| token.parse().unwrap());
        let until = request.parameter("limit").map_or(usize::MAX, |_| from + 3).min(items.len());
        let more = (until < items.len()).then(|| until.to_string());
        let metadata = json!({"resourceVersion": self.version.to_string(), "continue": more});
        json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items[from..until]})
    }

    /// A request other than a watch: what it is answered with, or refused.
    fn apply(&mut self, request: &Request) -> Result<(u16, Value), u16> {
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let parts: Vec<&str> = request.target().0.split('/').skip(1).collect();
        let method = request.line.split(' ').next().unwrap();
        let there = |object: Value| if object.is_null() { Err(404_u16) } else { Ok(object) };
        match (method, parts.as_slice()) {
            (
                "GET",
                ["api", "v1", plural @ ("pods" | "nodes")]
                | [.., "namespaces", _, plural @ "pods"]
                | [.., "v1", plural @ "runtimeclasses"],
            ) => Ok((200, self.list(plural, request))),
            ("GET", [.., plural @ ("pods" | "nodes" | "leases" | "resourceclaims"), name]) => {
                Ok((200, there(self.get(&format!("{plural}/{name}")))?))
            }
            ("DELETE", [.., "leases", name]) => {
                Ok((200, self.remove(&format!("leases/{name}")).ok_or(404_u16)?))
            }
            ("PATCH", [.., plural @ ("pods" | "nodes"), name]) => {
                let plural = if *plural == "pods" { "pods" } else { "nodes" };
                let mut object = there(self.get(&format!("{plural}/{name}")))?;
                let metadata = &body["metadata"];
                let differs = |key: &str| {
                    metadata.get(key).is_some_and(|value| *value != object["metadata"][key])
                };
                if differs("resourceVersion") || differs("uid") {
                    return Err(409);
                }
                for part in ["annotations", "labels"] {
                    for (key, value) in metadata[part].as_object().into_iter().flatten() {
                        object["metadata"][part][key] = value.clone();
                        if let (Value::Null, Some(all)) =
                            (value, object["metadata"][part].as_object_mut())
                        {
                            all.remove(key);
                        }
                    }
                }
                self.put(plural, object.clone());
                Ok((200, object))
            }
            ("POST", [.., "pods", name, "binding"]) => {
                let mut pod = there(self.get(&format!("pods/{name}")))?;
                let differs = |key: &str| body["metadata"][key] != pod["metadata"][key];
                if !pod["spec"]["nodeName"].is_null()
                    || differs("uid")
                    || differs("resourceVersion")
                {
                    return Err(409);
                }
                pod["spec"]["nodeName"] = body["target"]["name"].clone();
                for (key, value) in
                    body["metadata"]["annotations"].as_object().into_iter().flatten()
                {
                    pod["metadata"]["annotations"][key] = value.clone();
                }
                self.put("pods", pod);
                Ok((201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
            }
            ("POST" | "PUT", [.., "leases"] | [.., "leases", _]) => {
                let key = format!("leases/{}", body["metadata"]["name"].as_str().unwrap());
                let held = self.get(&key)["metadata"]["resourceVersion"].clone();
                if method == "PUT" && held != body["metadata"]["resourceVersion"] {
                    return Err(409);
                }
                self.put("leases", body);
                Ok((200, self.get(&key)))
            }
            ("GET", _) => Err(404),
            _ => Err(500),
        }
    }
}

/// `managedFields` as whoever may write an object can have them: deep, of times that are none, and
/// with bytes that are no text.
#[must_use]
pub fn managed_fields(levels: usize) -> Value {
    let odd = json!({(format!("f:{NO_TEXT}")): {}});
    let deep = (0..levels).fold(odd, |inner, _| json!({"f:x": inner}));
    json!([{"manager": "x", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": deep,
        "time": "10000-01-01T23:58:59Z"}])
}

pub(crate) fn selected(item: &Value, one: &str) -> bool {
    let (field, wanted) = one.split_once('=').unwrap();
    let pointer = format!("/{}", field.trim_end_matches('!').replace('.', "/"));
    let equal = item.pointer(&pointer).and_then(Value::as_str).unwrap_or("") == wanted;
    equal != field.ends_with('!')
}

/// A world that is served, and whom its changes wake.
pub struct Cluster {
    pub server: ApiServer,
    shared: Arc<(Mutex<World>, Condvar)>,
}

impl Cluster {
    pub fn start(world: World) -> Self {
        let shared = Arc::new((Mutex::new(world), Condvar::new()));
        let served = Arc::clone(&shared);
        Self { server: ApiServer::start(move |request| answer(&served, request)), shared }
    }

    pub fn world<T>(&self, with: impl FnOnce(&mut World) -> T) -> T {
        let done = with(&mut self.shared.0.lock().unwrap());
        self.shared.1.notify_all();
        done
    }
}

fn answer(shared: &Arc<(Mutex<World>, Condvar)>, request: &Request) -> Answer {
    let mut world = shared.0.lock().unwrap();
    if world.mute {
        return Answer::Silence;
    }
    if request.parameter("watch").is_some() {
        return Answer::Watch(Box::new(watch(Arc::clone(shared), request)));
    }
    let asked = format!("{} {}", request.line.split(' ').next().unwrap(), request.target().0);
    let fault = world.faults.pop_front_if(|(at, _)| {
        let (method, end) = at.split_once(' ').unwrap();
        asked.starts_with(method) && asked.ends_with(end)
    });
    world.asked.push(asked);
    let done = match fault {
        Some((_, Fault::Status(code))) => Err(code),
        Some((_, Fault::Cut)) => return Answer::Cut,
        Some((_, Fault::Silence)) => return Answer::Silence,
        Some((_, Fault::Garbage)) => return Answer::garbage(),
        _ => world.apply(request),
    };
    shared.1.notify_all();
    match (fault, done) {
        (Some((_, Fault::DoneAndCut)), _) => Answer::Cut,
        (_, Ok((code, body))) => Answer::Whole(code, body.to_string()),
        (_, Err(code)) => Answer::refusal(code, "as told"),
    }
}

fn watch(
    shared: Arc<(Mutex<World>, Condvar)>,
    request: &Request,
) -> impl Iterator<Item = Said> + use<> {
    let number = |key| request.parameter(key).unwrap().parse::<u64>().unwrap();
    let plural = request.target().0.rsplit('/').next().unwrap().to_owned();
    let mut sent = number("resourceVersion");
    let end = Instant::now() + Duration::from_secs(number("timeoutSeconds"));
    std::iter::from_fn(move || {
        let mut world = shared.0.lock().unwrap();
        while !world.mute {
            let new = |(version, of, _): &&(u64, &str, String)| *version > sent && *of == plural;
            if let Some((version, _, line)) = world.log.iter().find(new) {
                sent = *version;
                return Some(Said::Line(line.clone()));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(Said::End);
            }
            world = shared.1.wait_timeout(world, left).unwrap().0;
        }
        None
    })
}
