//! `resource.k8s.io/v1`: ResourceClaims and ResourceSlices in memory, with the node that owns them,
//! as kubernetes `pkg/registry/resource` keeps them. What differs between servers is a switch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::selected;
use crate::{Answer, ApiServer, Fault, Request, Said, status};

const GROUP: &str = "/apis/resource.k8s.io/v1/";

/// What an account may do, as a rule of RBAC has it.
#[derive(Debug, Clone)]
pub struct Right {
    pub resource: String,
    pub verb: String,
    /// Of all of them where there are none.
    pub names: Vec<String>,
}

pub struct Store {
    /// By `resourceslices/NAME`, `resourceclaims/NAMESPACE/NAME`, `nodes/NAME`.
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Version, type, object.
    log: Vec<(u64, &'static str, Value)>,
    /// Whose entry in which claim's `status.devices`.
    applied: BTreeMap<(String, String), Vec<Value>>,
    /// `METHOD path-suffix`, each for one request; the method of a watch is `WATCH`.
    pub faults: VecDeque<(&'static str, Fault)>,
    /// `METHOD path`, with ` dry` where nothing was to be kept.
    pub asked: Vec<String>,
    /// The group is served.
    pub served: bool,
    /// The feature gate DRAConsumableCapacity is on.
    pub shares: bool,
    /// The feature gate DRADeviceTaints is on.
    pub taints: bool,
    /// As a newer server, it adds fields.
    pub defaults: bool,
    /// What the caller may do; all where nothing is said.
    pub rights: Option<Vec<Right>>,
    /// A watch from before that version has expired.
    pub compacted: u64,
    /// Done before the next PUT that is kept: somebody was faster.
    pub before_put: Option<fn(&mut Store)>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 1,
            log: Vec::new(),
            applied: BTreeMap::new(),
            faults: VecDeque::new(),
            asked: Vec::new(),
            served: true,
            shares: true,
            taints: true,
            defaults: false,
            rights: None,
            compacted: 0,
            before_put: None,
        }
    }
}

/// Code and body.
type Refusal = (u16, Value);

fn refusal(code: u16, message: &str, key: &str) -> Refusal {
    let mut body = status(code, message);
    body["details"] = json!({"name": key.rsplit('/').next().unwrap(), "group": "resource.k8s.io"});
    (code, body)
}

fn invalid(field: &str, key: &str) -> Refusal {
    let (code, mut body) =
        refusal(422, &format!("{field}: Invalid value: field is immutable"), key);
    body["details"]["causes"] = json!([{"reason": "FieldValueInvalid", "field": field}]);
    (code, body)
}

impl Store {
    /// By `resourceslices/NAME` and so on; null where there is none.
    pub fn get(&self, key: &str) -> Value {
        self.objects.get(key).cloned().unwrap_or_default()
    }

    /// The names of a plural.
    pub fn names(&self, plural: &str) -> Vec<String> {
        let parts = self.objects.keys().map(|key| key.split_once('/').unwrap());
        parts.filter(|(of, _)| *of == plural).map(|(_, name)| name.to_owned()).collect()
    }

    pub fn put(&mut self, key: &str, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = self.version.to_string().into();
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-{}", self.version).into();
        }
        let before = self.objects.insert(key.to_owned(), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.log.push((self.version, kind, object.clone()));
        object
    }

    /// By hand.
    pub fn edit(&mut self, key: &str, with: impl FnOnce(&mut Value)) {
        let mut object = self.get(key);
        with(&mut object);
        self.put(key, object);
    }

    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log.push((self.version, "DELETED", object.clone()));
        Some(object)
    }

    pub fn add_node(&mut self, name: &str) {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
        self.put(&format!("nodes/{name}"), node);
    }

    /// A slice of a node and driver that somebody left.
    pub fn add_slice(&mut self, name: &str, node: &str, driver: &str, generation: u64) {
        let slice = json!({
            "kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": name},
            "spec": {
                "driver": driver, "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            },
        });
        self.put(&format!("resourceslices/{name}"), slice);
    }

    /// A claim with a status that the scheduler wrote.
    pub fn add_claim(&mut self, namespace: &str, name: &str, uid: &str, status: Value) {
        let claim = json!({
            "kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "shared-gpu.mpsgate.io"}}]}},
            "status": status,
        });
        self.put(&format!("resourceclaims/{namespace}/{name}"), claim);
    }

    /// So many requests other than a GET or a watch.
    pub fn writes(&self) -> usize {
        let reads = |asked: &&String| asked.starts_with("GET ") || asked.starts_with("WATCH ");
        self.asked.iter().filter(|asked| !reads(asked) && !asked.ends_with(" dry")).count()
    }

    fn may(&self, resource: &str, verb: &str, name: &str) -> Result<(), Refusal> {
        let Some(rights) = &self.rights else { return Ok(()) };
        let gives = |right: &Right| {
            right.resource == resource
                && right.verb == verb
                && (right.names.is_empty() || right.names.iter().any(|one| one == name))
        };
        if rights.iter().any(gives) {
            return Ok(());
        }
        let message = format!("User \"mpsgated\" cannot {verb} resource \"{resource}\": forbidden");
        Err(refusal(403, &message, name))
    }

    /// As the server would keep it.
    fn kept(&self, mut slice: Value, before: Option<&Value>) -> Value {
        let uses = |slice: &Value| {
            let devices = slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
            devices.iter().any(|device| !device["allowMultipleAllocations"].is_null())
        };
        // What is in use stays, also when the gate was switched off.
        let shares = self.shares || before.is_some_and(uses);
        for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten() {
            let device = device.as_object_mut().unwrap();
            if !shares {
                device.remove("allowMultipleAllocations");
            }
            if !self.taints {
                device.remove("taints");
            }
            for (_, capacity) in
                device.get_mut("capacity").and_then(Value::as_object_mut).into_iter().flatten()
            {
                let capacity = capacity.as_object_mut().unwrap();
                if !shares {
                    capacity.remove("requestPolicy");
                }
                capacity.values_mut().for_each(canonical);
            }
            for taint in
                device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten()
            {
                if taint["timeAdded"].is_null() {
                    taint["timeAdded"] = "2026-01-31T12:00:00Z".into();
                }
            }
            if device.get("taints").is_some_and(|taints| *taints == json!([])) {
                device.remove("taints");
            }
            if self.defaults {
                device.insert("bindsToNode".to_owned(), false.into());
                device.insert("ofAYoungerRelease".to_owned(), json!({"mode": "Auto"}));
                for (_, capacity) in
                    device.get_mut("capacity").and_then(Value::as_object_mut).into_iter().flatten()
                {
                    capacity["requestPolicy"]["rounding"] = "Up".into();
                }
            }
        }
        slice
    }

    fn answer(&mut self, request: &Request, method: &str) -> Result<(u16, Value), Refusal> {
        let path = request.target().0;
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let dry = request.parameter("dryRun").is_some();
        // A list as it is now. One from the server's cache begins a watch, and nodes are not
        // watched in this double.
        let is_now = request.parameter("resourceVersion").is_none();
        if (method, path) == ("GET", "/api/v1/nodes") && is_now {
            self.may("nodes", "list", "")?;
            return Ok((200, self.list("nodes/", "NodeList", "v1", request)));
        }
        let Some(rest) = path.strip_prefix(GROUP).filter(|_| self.served) else {
            // As the server has it: no Status.
            return Err((404, Value::Null));
        };
        let parts: Vec<&str> = rest.split('/').collect();
        match (method, parts.as_slice()) {
            ("GET", ["namespaces", namespace, "resourceclaims", name]) => {
                self.may("resourceclaims", "get", name)?;
                Ok((200, self.there(&format!("resourceclaims/{namespace}/{name}"))?))
            }
            ("PATCH", ["namespaces", namespace, "resourceclaims", name, "status"]) => {
                self.may("resourceclaims/status", "patch", name)?;
                let key = format!("resourceclaims/{namespace}/{name}");
                let manager = request.parameter("fieldManager").unwrap();
                assert_eq!(request.parameter("force").as_deref(), Some("true"));
                Ok((200, self.apply_status(&key, &manager, &body)?))
            }
            ("GET", ["resourceslices"]) => {
                self.may("resourceslices", "list", "")?;
                let api = "resource.k8s.io/v1";
                Ok((200, self.list("resourceslices/", "ResourceSliceList", api, request)))
            }
            ("POST", ["resourceslices"]) => {
                self.may("resourceslices", "create", "")?;
                let key = format!("resourceslices/{}", body["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&key) {
                    return Err(refusal(409, "already exists", &key));
                }
                let mut slice = self.kept(body, None);
                slice["metadata"]["generation"] = 1.into();
                if dry {
                    return Ok((201, slice));
                }
                Ok((201, self.put(&key, slice)))
            }
            ("PUT", ["resourceslices", name]) => {
                self.may("resourceslices", "update", name)?;
                if let Some(meddle) = self.before_put.take_if(|_| !dry) {
                    meddle(self);
                }
                let key = format!("resourceslices/{name}");
                let before = self.there(&key)?;
                for field in ["uid", "resourceVersion"] {
                    if body["metadata"][field] != before["metadata"][field] {
                        return Err(refusal(409, &format!("{field} differs"), &key));
                    }
                }
                for field in ["/spec/driver", "/spec/nodeName", "/spec/pool/name"] {
                    if body.pointer(field) != before.pointer(field) {
                        return Err(invalid(&field[1..].replace('/', "."), &key));
                    }
                }
                let mut slice = self.kept(body, Some(&before));
                let changed = u64::from(slice["spec"] != before["spec"]);
                let generation = before["metadata"]["generation"].as_u64().unwrap_or(1) + changed;
                slice["metadata"]["generation"] = generation.into();
                if dry {
                    return Ok((200, slice));
                }
                Ok((200, self.put(&key, slice)))
            }
            ("DELETE", ["resourceslices", name]) => {
                self.may("resourceslices", "delete", name)?;
                let key = format!("resourceslices/{name}");
                let before = self.there(&key)?;
                let uid = &body["preconditions"]["uid"];
                if !uid.is_null() && *uid != before["metadata"]["uid"] {
                    return Err(refusal(409, "the UID in the precondition does not match", &key));
                }
                Ok((200, self.remove(&key).unwrap()))
            }
            _ => Err(refusal(405, "not in this double", path)),
        }
    }

    fn list(&self, prefix: &str, kind: &str, api: &str, request: &Request) -> Value {
        let selector = request.parameter("fieldSelector").unwrap_or_default();
        let of = |(key, one): &(&String, &Value)| {
            key.starts_with(prefix) && all_selected(one, &selector)
        };
        let items: Vec<_> = self.objects.iter().filter(of).map(|(_, one)| one).collect();
        let metadata = json!({"resourceVersion": self.version.to_string()});
        json!({"kind": kind, "apiVersion": api, "metadata": metadata, "items": items})
    }

    fn there(&self, key: &str) -> Result<Value, Refusal> {
        match self.get(key) {
            Value::Null => Err(refusal(404, &format!("{key} not found"), key)),
            object => Ok(object),
        }
    }

    /// `status.devices` is a map by four fields, of which a manager owns what it applied last.
    fn apply_status(&mut self, key: &str, manager: &str, body: &Value) -> Result<Value, Refusal> {
        let mut claim = self.there(key)?;
        if !body["metadata"]["uid"].is_null() && body["metadata"]["uid"] != claim["metadata"]["uid"]
        {
            return Err(invalid("metadata.uid", key));
        }
        let id = |one: &Value| json!([one["driver"], one["pool"], one["device"], one["shareID"]]);
        let list = |of: &Value| of["status"]["devices"].as_array().cloned().unwrap_or_default();
        let (before, applied) = (list(&claim), list(body));
        let ids: Vec<_> = applied.iter().map(id).collect();
        let owner = (key.to_owned(), manager.to_owned());
        let owned = self.applied.get(&owner).cloned().unwrap_or_default();
        let others =
            before.iter().filter(|one| !owned.contains(&id(one)) && !ids.contains(&id(one)));
        let after: Vec<Value> = others.chain(&applied).cloned().collect();
        let changed = before.iter().filter(|one| !after.contains(one));
        for one in changed.chain(after.iter().filter(|one| !before.contains(one))) {
            self.may(
                "resourceclaims/driver",
                "associated-node:patch",
                one["driver"].as_str().unwrap(),
            )?;
        }
        self.applied.insert(owner, ids);
        claim["status"]["devices"] = after.into();
        Ok(self.put(key, claim))
    }
}

fn all_selected(object: &Value, selector: &str) -> bool {
    selector.split_terminator(',').all(|one| selected(object, one))
}

/// 1024Mi is written as 1Gi.
fn canonical(value: &mut Value) {
    match value {
        Value::String(text) => {
            let mib = text.strip_suffix("Mi").and_then(|number| number.parse::<u64>().ok());
            if let Some(gib) = mib.filter(|mib| mib % 1024 == 0) {
                *text = format!("{}Gi", gib / 1024);
            }
        }
        Value::Object(all) => all.values_mut().for_each(canonical),
        Value::Array(all) => all.iter_mut().for_each(canonical),
        _ => {}
    }
}

/// A store that is served, and whom its changes wake.
pub struct Resources {
    pub server: ApiServer,
    shared: Arc<(Mutex<Store>, Condvar)>,
}

impl Resources {
    pub fn start(store: Store) -> Self {
        let shared = Arc::new((Mutex::new(store), Condvar::new()));
        let served = Arc::clone(&shared);
        Self { server: ApiServer::start(move |request| answer(&served, request)), shared }
    }

    pub fn store<T>(&self, with: impl FnOnce(&mut Store) -> T) -> T {
        let done = with(&mut self.shared.0.lock().unwrap());
        self.shared.1.notify_all();
        done
    }
}

fn answer(shared: &Arc<(Mutex<Store>, Condvar)>, request: &Request) -> Answer {
    let mut store = shared.0.lock().unwrap();
    let is_watch = request.parameter("watch").is_some();
    let method = if is_watch { "WATCH" } else { request.line.split(' ').next().unwrap() };
    let dry = if request.parameter("dryRun").is_some() { " dry" } else { "" };
    let asked = format!("{method} {}", request.target().0);
    let fault = store.faults.pop_front_if(|(at, _)| {
        let (method, end) = at.split_once(' ').unwrap();
        asked.starts_with(method) && asked.ends_with(end)
    });
    store.asked.push(asked + dry);
    match fault.map(|(_, fault)| fault) {
        Some(Fault::Status(code)) => return Answer::refusal(code, "as told"),
        Some(Fault::Cut) => return Answer::Cut,
        Some(Fault::Silence) => return Answer::Silence,
        Some(Fault::Garbage) => return Answer::garbage(),
        Some(Fault::DoneAndCut) => {
            let _done = store.answer(request, method);
            shared.1.notify_all();
            return Answer::Cut;
        }
        None => {}
    }
    if is_watch && store.served {
        if let Err((code, body)) = store.may("resourceslices", "watch", "") {
            return Answer::Whole(code, body.to_string());
        }
        drop(store);
        return Answer::Watch(Box::new(watch(Arc::clone(shared), request)));
    }
    let done = store.answer(request, method);
    shared.1.notify_all();
    match done {
        Err((code, Value::Null)) => Answer::Whole(code, "404 page not found\n".to_owned()),
        Ok((code, body)) | Err((code, body)) => Answer::Whole(code, body.to_string()),
    }
}

fn watch(
    shared: Arc<(Mutex<Store>, Condvar)>,
    request: &Request,
) -> impl Iterator<Item = Said> + use<> {
    let number = |key| request.parameter(key).unwrap().parse::<u64>().unwrap();
    let selector = request.parameter("fieldSelector").unwrap_or_default();
    let mut sent = number("resourceVersion");
    let end = Instant::now() + Duration::from_secs(number("timeoutSeconds"));
    std::iter::from_fn(move || {
        let mut store = shared.0.lock().unwrap();
        loop {
            if sent < store.compacted {
                sent = u64::MAX;
                let gone =
                    json!({"type": "ERROR", "object": status(410, "too old resource version")});
                return Some(Said::Line(gone.to_string()));
            }
            let new = |(version, _, object): &&(u64, &str, Value)| {
                *version > sent
                    && object["kind"] == "ResourceSlice"
                    && all_selected(object, &selector)
            };
            if let Some((version, kind, object)) = store.log.iter().find(new) {
                sent = *version;
                return Some(Said::Line(json!({"type": kind, "object": object}).to_string()));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || sent == u64::MAX {
                return Some(Said::End);
            }
            store = shared.1.wait_timeout(store, left).unwrap().0;
        }
    })
}
