//! This node's ResourceSlice (`resource.k8s.io/v1`): its cards as devices of Dynamic Resource
//! Allocation, kept as it is wanted.
//!
//! ```text
//!  list, watch ─► all slices of driver and node ─┐
//!                                                ├─► next(): delete a left-over, make, change, or nothing
//!  Wanted ───────────────────────────────────────┘     at most once a second, later after a failure
//! ```
//! What is compared is what the watch shows, so what somebody edits or deletes by hand is put back.
//! As kubelet's helper for drivers does it (`k8s.io/dynamic-resource-allocation/resourceslice`):
//! selectors, owner, left-overs first, and a field that the API server drops ends the writing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSliceSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::watcher::Event;
use mpsgate_model::DRIVER;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::follow::{Pause, Told, follow_at};
use crate::listen::Lists;
use crate::node_task::MANAGER;
use crate::objects::Objects;
use crate::read::Found;
use crate::requests::Requests;
use crate::slice_spec::{difference, keep_times, missing, name};
use crate::wire::{KeptMeta, WireNode, WireSlice};
use crate::{Error, Settings, State};

/// At most one write in this time, however often the cards change.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);
/// An API server without the group, or without the feature, is another one only after an upgrade.
const AGAIN: Duration = Duration::from_secs(60);

/// What shall be there of this node and driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Wanted {
    /// Nobody knows yet, or now: what is there stays.
    #[default]
    Unknown,
    /// No slice.
    None,
    /// One slice with this spec. Its driver, its node and its pool's generation are set here.
    Spec(Box<ResourceSliceSpec>),
}

/// How it stands with the slices of this node and driver.
#[derive(Debug, Clone, Default)]
pub struct Slices {
    /// Whether what is shown is what the API server has now.
    pub state: State,
    /// Why the slice is not as it is wanted, with what to do about it. It is tried again.
    pub write_error: Option<String>,
    /// Whether the API server serves `resource.k8s.io/v1`: from Kubernetes 1.34 on it does, unless
    /// that was switched off. `None` while nobody knows.
    pub served: Option<bool>,
    /// This node's slice as the API server has it, where it has one that can be read.
    pub shown: Option<ResourceSliceSpec>,
    /// All of this driver and node, by name.
    held: BTreeMap<String, WireSlice>,
    /// The highest generation that any of them ever had.
    highest: i64,
}

/// The slices of this node and driver, and the future that follows them and makes them what
/// `wanted` says. Dropping the future ends both, and leaves what is there.
///
/// An API server without the group is asked again each minute. One that drops the fields by which a
/// card is shared (the feature gate `DRAConsumableCapacity` is off) gets no slice: it would hand
/// out whole cards.
pub fn resource_slices(
    settings: Settings,
    wanted: watch::Receiver<Wanted>,
) -> (watch::Receiver<Arc<Slices>>, impl Future<Output = Infallible> + Send) {
    let (publish, receive) = watch::channel(Arc::<Slices>::default());
    let future = async move {
        let seen = publish.subscribe();
        let own = name(&settings.node, DRIVER);
        let watching = async {
            let what = format!("the ResourceSlices of node {}", settings.node);
            // The selectors that the API server knows (kubernetes
            // `pkg/registry/resource/resourceslice`), and which its node authorizer asks of a
            // kubelet.
            let fields = format!("spec.driver={DRIVER},spec.nodeName={}", settings.node);
            let mut listed = BTreeMap::new();
            let told = |told| tell(&publish, &own, &what, &mut listed, told);
            let all = Objects::<WireSlice>::all;
            follow_at(&settings, Lists::Cached, &what, &fields, all, told).await
        };
        let mut writer = Writer::new(&settings, &own);
        tokio::select! {
            never = watching => never,
            never = writer.write_for_ever(&publish, seen, wanted) => never,
        }
    };
    (receive, future)
}

/// The time until the next attempt, where it is not as after other failures.
fn tell(
    publish: &watch::Sender<Arc<Slices>>,
    own: &str,
    what: &str,
    listed: &mut BTreeMap<String, WireSlice>,
    told: Told<WireSlice>,
) -> Option<Duration> {
    let named = |slice: &WireSlice| slice.metadata.name.clone().unwrap_or_default();
    let mut again = None;
    publish.send_modify(|slices| {
        let slices = Arc::make_mut(slices);
        match told {
            Told::Kube(Event::Init) => listed.clear(),
            Told::Kube(Event::InitApply(Ok(slice))) => {
                listed.insert(named(&slice), slice);
            }
            // It is somebody's, who has to take it away.
            Told::Kube(Event::InitApply(Err(_))) | Told::LeftOut(_) => {}
            Told::Kube(Event::InitDone) => {
                slices.held = std::mem::take(listed);
                slices.heard();
            }
            Told::Kube(Event::Apply(Ok(slice))) => {
                slices.held.insert(named(&slice), slice);
                slices.heard();
            }
            Told::Kube(Event::Apply(Err(unread))) => {
                slices.held.remove(unread.meta.name.as_deref().unwrap_or_default());
                slices.heard();
            }
            Told::Kube(Event::Delete(found)) => {
                let gone = found.map_or_else(|one| one.meta.name, |slice| slice.metadata.name);
                slices.held.remove(&gone.unwrap_or_default());
                slices.heard();
            }
            // A list of none is no 404.
            Told::Lost(error) if error.status() == Some(404) => {
                let error = Error::NotServed { what: format!("watch {what}") };
                if slices.served != Some(false) {
                    let (error, hint) = (error.line(), error.hint());
                    log::warn!(error = error.as_str(), hint = hint.as_str(); "no ResourceSlice can be published");
                }
                slices.served = Some(false);
                slices.held.clear();
                slices.state.fail(&error);
                again = Some(AGAIN);
            }
            Told::Lost(error) => slices.state.fail(&error),
        }
        slices.show(own);
    });
    again
}

impl Slices {
    /// After anything that the API server said of them.
    fn heard(&mut self) {
        self.served = Some(true);
        self.state = State::Current;
        let generations = self.held.values().map(generation);
        self.highest = generations.fold(self.highest, i64::max);
    }

    fn show(&mut self, own: &str) {
        let slice = self.held.get(own);
        self.shown = slice.and_then(|slice| serde_json::from_value(slice.spec.clone()).ok());
    }
}

fn generation(slice: &WireSlice) -> i64 {
    slice.spec["pool"]["generation"].as_i64().unwrap_or_default()
}

/// What is written next.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Make(Value),
    /// Of the slice as it is held, what it shall be.
    Change(Box<KeptMeta>, Value),
    /// The name and the uid.
    Delete(String, Option<String>),
}

/// What became of it.
enum Done {
    Deleted,
    /// All that was written was kept.
    Kept,
    Otherwise(Otherwise),
}

/// An API server that does not keep what is written, or that adds to it: fields that a newer one
/// sets by itself. What somebody adds afterwards is not in its answer.
#[derive(Debug, Clone)]
struct Otherwise {
    /// What was written.
    written: Value,
    /// What was kept.
    kept: Value,
    /// It cannot say that a card is shared.
    whole_cards: bool,
    /// In words, where something was not kept.
    line: Option<String>,
}

impl Otherwise {
    /// How what was kept differs from `written`; `None` where it does not.
    fn find(kept: &Value, written: &Value) -> Option<Self> {
        difference(kept, written)?;
        let at = missing(kept, written);
        let devices = |spec: &Value| spec["devices"].as_array().cloned().unwrap_or_default();
        // Both fields are of that gate (`dropDisabledDRAConsumableCapacityFields`).
        let lacks = |(written, kept): &(Value, Value)| {
            let shares = |device: &Value| device["allowMultipleAllocations"] == true;
            let policies = |device: &Value| {
                let all = device["capacity"].as_object().into_iter().flatten();
                all.filter(|(_, one)| !one["requestPolicy"].is_null()).count()
            };
            (shares(written) && !shares(kept)) || policies(kept) < policies(written)
        };
        let whole_cards = devices(written).into_iter().zip(devices(kept)).any(|both| lacks(&both));
        let hint = if whole_cards {
            "the feature gate DRAConsumableCapacity is off: on by default from Kubernetes 1.36; no \
             ResourceSlice is published, as it would hand out whole cards"
        } else if at.as_ref().is_some_and(|at| at.contains(".taints")) {
            "the feature gate DRADeviceTaints is off: on by default from Kubernetes 1.36; until \
             then claims can be allocated on sick cards, and are refused on the node"
        } else {
            "look for an admission webhook that changes ResourceSlices, or a feature gate that is \
             off"
        };
        let line =
            at.map(|at| format!("the API server does not keep {at} of the ResourceSlice; {hint}"));
        Some(Self { written: written.clone(), kept: kept.clone(), whole_cards, line })
    }
}

struct Writer<'a> {
    node: &'a str,
    own: &'a str,
    requests: Requests,
    pause: Pause,
    otherwise: Option<Otherwise>,
    /// Until then nothing is made.
    not_before: Option<Instant>,
    /// The last write met a conflict.
    met: bool,
}

impl<'a> Writer<'a> {
    fn new(settings: &'a Settings, own: &'a str) -> Self {
        let requests = Requests::new(settings.clone(), settings.patience.answer);
        Self {
            node: &settings.node,
            own,
            requests,
            pause: Pause::default(),
            otherwise: None,
            not_before: None,
            met: false,
        }
    }

    async fn write_for_ever(
        &mut self,
        publish: &watch::Sender<Arc<Slices>>,
        mut seen: watch::Receiver<Arc<Slices>>,
        mut wanted: watch::Receiver<Wanted>,
    ) -> Infallible {
        loop {
            let slices = Arc::clone(&seen.borrow_and_update());
            let spec = {
                let wanted = wanted.borrow_and_update();
                self.spec(&wanted)
            };
            let step = match &spec {
                Some(spec) if slices.state.is_current() => self.next(&slices, spec.as_ref()),
                _ => None,
            };
            let Some(step) = step else {
                if slices.state.is_current() {
                    let line = spec.flatten().and_then(|wanted| self.settle(&slices, &wanted));
                    self.say(publish, line);
                }
                let later = async {
                    match self.not_before.filter(|at| *at > Instant::now()) {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = seen.changed() => {}
                    () = later => {}
                    changed = wanted.changed() => if changed.is_err() {
                        // Nobody will ever want anything else: only the watch goes on.
                        std::future::pending::<()>().await;
                    },
                }
                continue;
            };
            match self.write(step).await {
                Ok(done) => {
                    self.pause.worked();
                    self.met = false;
                    self.took(done);
                    self.say(publish, self.line());
                    // The watch shows it meanwhile.
                    tokio::time::sleep(BETWEEN_WRITES).await;
                }
                Err(error) => {
                    // Somebody wrote, and the watch has yet to show it: no word about the first.
                    let conflict = error.status() == Some(409);
                    if !conflict || self.met {
                        self.say(publish, Some(format!("{}; {}", error.line(), error.hint())));
                    }
                    self.met = conflict;
                    self.pause.wait().await;
                }
            }
        }
    }

    /// What the slice is to be; inner `None` where there is to be none, `None` where nobody knows.
    fn spec(&self, wanted: &Wanted) -> Option<Option<Value>> {
        match wanted {
            Wanted::Unknown => None,
            Wanted::None => Some(None),
            Wanted::Spec(spec) => {
                // Lists, texts and numbers: there is nothing that JSON cannot say.
                let mut spec = serde_json::to_value(spec).ok()?;
                spec["driver"] = DRIVER.into();
                spec["nodeName"] = self.node.into();
                Some(Some(spec))
            }
        }
    }

    fn next(&self, slices: &Slices, wanted: Option<&Value>) -> Option<Step> {
        let delete = |(name, slice): (&String, &WireSlice)| {
            Step::Delete(name.clone(), slice.metadata.uid.clone())
        };
        let Some(wanted) = wanted else { return slices.held.iter().next().map(delete) };
        // Left-overs first: what they offer may be gone, whatever becomes of the new one.
        if let Some(other) = slices.held.iter().find(|(name, _)| *name != self.own) {
            return Some(delete(other));
        }
        let mut spec = wanted.clone();
        spec["pool"]["generation"] = slices.highest.saturating_add(1).into();
        let waits = self.not_before.is_some_and(|at| at > Instant::now());
        let Some((name, held)) = slices.held.get_key_value(self.own) else {
            return (!waits).then_some(Step::Make(spec));
        };
        let is_settled = self.otherwise.as_ref().is_some_and(|one| {
            !one.whole_cards
                && difference(wanted, &one.written).is_none()
                && difference(&one.written, wanted).is_none()
                && difference(&held.spec, &one.kept).is_none()
        });
        let mut owners = held.metadata.owner_references.iter().flatten();
        let is_owned = owners.any(|owner| self.is_owner(owner));
        match difference(&held.spec, wanted) {
            Some(_) if is_settled && is_owned => None,
            None if is_owned => None,
            // A server that hands out whole cards is not asked to change that.
            Some(_) if waits => Some(delete((name, held))),
            // The name of a pool cannot change.
            Some(_) if held.spec["pool"]["name"] != spec["pool"]["name"] => {
                Some(delete((name, held)))
            }
            _ => {
                keep_times(&mut spec, &held.spec);
                Some(Step::Change(Box::new(held.metadata.clone()), spec))
            }
        }
    }

    async fn write(&self, step: Step) -> Result<Done, Error> {
        match step {
            Step::Delete(name, uid) => self.delete(&name, uid).await.map(|()| Done::Deleted),
            Step::Make(spec) => {
                let metadata = KeptMeta {
                    name: Some(self.own.to_owned()),
                    owner_references: Some(vec![self.owner().await?]),
                    ..KeptMeta::default()
                };
                let slice = whole(metadata, spec);
                // Asked first what would be kept: else a slice that says nothing of sharing would
                // be there, if only for a moment.
                let dry = self.make(&slice, true).await?;
                let otherwise = Otherwise::find(&dry.spec, &slice.spec);
                if let Some(otherwise) = otherwise.filter(|one| one.whole_cards) {
                    return Ok(Done::Otherwise(otherwise));
                }
                self.written(self.make(&slice, false).await?, &slice.spec).await
            }
            Step::Change(mut metadata, spec) => {
                let owners = metadata.owner_references.get_or_insert_default();
                if !owners.iter().any(|owner| self.is_owner(owner)) {
                    owners.retain(|owner| owner.kind != "Node" || owner.name != self.node);
                    // Only one owner controls.
                    owners.iter_mut().for_each(|owner| owner.controller = None);
                    owners.push(self.owner().await?);
                }
                let slice = whole(*metadata, spec);
                self.written(self.change(&slice).await?, &slice.spec).await
            }
        }
    }

    /// What is there, after a write.
    async fn written(&self, there: WireSlice, spec: &Value) -> Result<Done, Error> {
        let Some(otherwise) = Otherwise::find(&there.spec, spec) else { return Ok(Done::Kept) };
        if otherwise.whole_cards {
            self.delete(self.own, there.metadata.uid).await?;
        }
        Ok(Done::Otherwise(otherwise))
    }

    /// There is nothing to write: because it is as it was wanted, or because of what is said.
    fn settle(&mut self, slices: &Slices, wanted: &Value) -> Option<String> {
        let held = slices.held.get(self.own);
        if held.is_some_and(|held| difference(&held.spec, wanted).is_none()) {
            (self.otherwise, self.not_before) = (None, None);
        }
        self.line()
    }

    fn line(&self) -> Option<String> {
        self.otherwise.as_ref().and_then(|one| one.line.clone())
    }

    fn took(&mut self, done: Done) {
        match done {
            Done::Deleted => {}
            Done::Kept => (self.otherwise, self.not_before) = (None, None),
            Done::Otherwise(otherwise) => {
                self.not_before = otherwise.whole_cards.then(|| Instant::now() + AGAIN);
                self.otherwise = Some(otherwise);
            }
        }
    }

    /// Says it where it was not said yet.
    fn say(&self, publish: &watch::Sender<Arc<Slices>>, line: Option<String>) {
        publish.send_if_modified(|slices| {
            let news = slices.write_error != line;
            if news {
                if let Some(error) = &line {
                    log::warn!(error = error.as_str(); "the node's ResourceSlice is not up to date");
                }
                Arc::make_mut(slices).write_error = line;
            }
            news
        });
    }

    fn is_owner(&self, owner: &OwnerReference) -> bool {
        owner.kind == "Node" && owner.name == self.node && owner.controller == Some(true)
    }

    /// The node: the garbage collector deletes the slice with it. Its uid is asked for each time,
    /// as a node that is made anew has another one. It is a list of one, which is the right that
    /// the watch of the node needs in any case.
    async fn owner(&self) -> Result<OwnerReference, Error> {
        let params = ListParams::default().fields(&format!("metadata.name={}", self.node));
        let list = |client| async move { Objects::<WireNode>::all(client).page(&params).await };
        let list = self.requests.ask(format!("read node {}", self.node), list).await?;
        let Some(node) = list.items.into_iter().next() else {
            return Err(Error::NoNode { node: self.node.to_owned() });
        };
        let uid = node.map_or_else(|unread| unread.meta.uid, |node| node.metadata.uid);
        Ok(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.to_owned(),
            uid: uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        })
    }

    async fn make(&self, slice: &WireSlice, dry_run: bool) -> Result<WireSlice, Error> {
        let params = PostParams { dry_run, field_manager: Some(MANAGER.to_owned()) };
        let post =
            |client| async move { Objects::<WireSlice>::all(client).create(&params, slice).await };
        whole_one(self.requests.ask(format!("make ResourceSlice {}", self.own), post).await?)
    }

    /// Where nobody wrote since: its `resourceVersion` is part of it.
    async fn change(&self, slice: &WireSlice) -> Result<WireSlice, Error> {
        let params = PostParams { dry_run: false, field_manager: Some(MANAGER.to_owned()) };
        let put = |client| async move {
            Objects::<WireSlice>::all(client).replace(self.own, &params, slice).await
        };
        whole_one(self.requests.ask(format!("change ResourceSlice {}", self.own), put).await?)
    }

    /// That of the uid; one that is gone already is well.
    async fn delete(&self, name: &str, uid: Option<String>) -> Result<(), Error> {
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let delete =
            |client| async move { Objects::<WireSlice>::all(client).delete(name, &params).await };
        match self.requests.ask(format!("delete ResourceSlice {name}"), delete).await {
            Err(error) if error.status() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }
}

fn whole_one(found: Found<WireSlice>) -> Result<WireSlice, Error> {
    found.map_err(|unread| Error::from(&unread.left))
}

fn whole(metadata: KeptMeta, spec: Value) -> WireSlice {
    let api_version = "resource.k8s.io/v1".to_owned();
    WireSlice { api_version, kind: "ResourceSlice".to_owned(), metadata, spec }
}
