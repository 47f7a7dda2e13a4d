//! This node's ResourceSlice (`resource.k8s.io/v1`): its cards as devices of Dynamic Resource
//! Allocation, kept as it is wanted.
//!
//! ```text
//!  list, watch ─► all slices of driver and node ─┐
//!                                                ├─► next(): delete a left-over, make, change, or nothing
//!  Wanted ───────────────────────────────────────┘     at most once a second, later after a failure
//! ```
//! Whether a slice is as it is wanted, the API server says: it is asked what it would make of it (a
//! dry run), and that is compared with what the watch shows. Nothing is asked while the slice has
//! the version of that answer, so what somebody edits or deletes by hand is put back. A question
//! that fails is asked again, and nobody is told while the slice says what is wanted. As kubelet's
//! helper for drivers does it (`k8s.io/dynamic-resource-allocation/resourceslice`): selectors,
//! owner, left-overs first, and a field that the API server drops ends the writing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSliceSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use mpsgate_model::DRIVER;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster_watch::{named, relay};
use crate::follow::{Pause, follow_at};
use crate::listen::Lists;
use crate::node_task::MANAGER;
use crate::objects::Objects;
use crate::read::Found;
use crate::requests::{Requests, unless_gone};
use crate::slice_spec::{Lack, keep_times, name};
use crate::wire::{KeptMeta, WireNode, WireSlice};
use crate::{Change, Error, Settings, State};

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
            let of = |found: Found<WireSlice>| found.ok();
            let told = relay(of, named, |change| tell(&publish, &own, &what, change));
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

/// The time until the next attempt, where it is not as after other failures. One that cannot be
/// read is somebody's, who has to take it away.
fn tell(
    publish: &watch::Sender<Arc<Slices>>,
    own: &str,
    what: &str,
    change: Change<WireSlice>,
) -> Option<Duration> {
    let by_name = |slice: WireSlice| (slice.metadata.name.clone().unwrap_or_default(), slice);
    let mut again = None;
    publish.send_modify(|slices| {
        let slices = Arc::make_mut(slices);
        match change {
            Change::Listing | Change::LeftOut(_) => return,
            Change::Listed(all) => {
                slices.held = all.into_iter().map(by_name).collect();
                slices.heard();
            }
            Change::Put(slice) => {
                slices.held.extend([by_name(slice)]);
                slices.heard();
            }
            Change::Gone(name) => {
                slices.held.remove(&name);
                slices.heard();
            }
            // A list of none is no 404.
            Change::Lost(error) if error.status() == Some(404) => {
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
            Change::Lost(error) => slices.state.fail(&error),
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

/// What is done next.
enum Step {
    /// Make of the slice as it is held, if it is, one with this spec and this generation.
    Write { held: Option<Box<WireSlice>>, spec: Value, generation: i64 },
    /// The name and the uid.
    Delete(String, Option<String>),
}

/// What the API server has made of what was wanted.
struct Done {
    /// The version of its slice; none where there is no slice.
    version: Option<String>,
    lack: Option<Lack>,
}

struct Writer<'a> {
    node: &'a str,
    own: &'a str,
    requests: Requests,
    pause: Pause,
    /// What was wanted when the slice was written or found right, and what came of it.
    last: Option<(Value, Done)>,
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
            last: None,
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
                    self.say(publish, spec.flatten().and_then(|_| self.line()));
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
                    if let (Some(done), Some(wanted)) = (done, spec.flatten()) {
                        let whole_cards = done.lack.as_ref().is_some_and(|lack| lack.whole_cards);
                        self.not_before = whole_cards.then(|| Instant::now() + AGAIN);
                        self.last = Some((wanted, done));
                    }
                    self.say(publish, self.line());
                    // The watch shows it meanwhile.
                    tokio::time::sleep(BETWEEN_WRITES).await;
                }
                Err(error) => {
                    // Somebody wrote, and the watch has yet to show it: no word about the first.
                    let conflict = error.status() == Some(409);
                    if spec.flatten().is_some_and(|spec| self.is_right(&slices, spec)) {
                        self.say(publish, None);
                    } else if !conflict || self.met {
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
        let generation = slices.highest.saturating_add(1);
        let waits = self.not_before.is_some_and(|at| at > Instant::now());
        let Some((name, held)) = slices.held.get_key_value(self.own) else {
            return (!waits).then_some(Step::Write { held: None, spec, generation });
        };
        let version = held.metadata.resource_version.as_ref();
        let is_settled = |(asked, done): &(Value, Done)| {
            asked == wanted && version.is_some() && done.version.as_ref() == version
        };
        if self.last.as_ref().is_some_and(is_settled) {
            return None;
        }
        // A server that hands out whole cards is not asked to change that, and the name of a pool
        // cannot change.
        if waits || held.spec["pool"]["name"] != spec["pool"]["name"] {
            return Some(delete((name, held)));
        }
        keep_times(&mut spec, &held.spec);
        Some(Step::Write { held: Some(Box::new(held.clone())), spec, generation })
    }

    /// Whether what is held is what is wanted, no more and no less, by its text alone: a question
    /// that is refused then takes nothing from anybody. What an API server adds by itself counts as
    /// more.
    fn is_right(&self, slices: &Slices, mut wanted: Value) -> bool {
        let Some(held) = slices.held.get(self.own).filter(|_| slices.held.len() == 1) else {
            return false;
        };
        wanted["pool"]["generation"] = held.spec["pool"]["generation"].clone();
        keep_times(&mut wanted, &held.spec);
        self.is_owned(&held.metadata)
            && Lack::find(&held.spec, &wanted).is_none()
            && Lack::find(&wanted, &held.spec).is_none()
    }

    /// `None` where something was deleted.
    async fn write(&self, step: Step) -> Result<Option<Done>, Error> {
        let (held, spec, generation) = match step {
            Step::Delete(name, uid) => return self.delete(&name, uid).await.map(|()| None),
            Step::Write { held, spec, generation } => (held, spec, generation),
        };
        let mut slice = WireSlice {
            api_version: "resource.k8s.io/v1".to_owned(),
            kind: "ResourceSlice".to_owned(),
            metadata: held.as_ref().map_or_else(KeptMeta::default, |held| held.metadata.clone()),
            spec,
        };
        slice.metadata.name = Some(self.own.to_owned());
        let is_owned = self.is_owned(&slice.metadata);
        if !is_owned {
            let owners = slice.metadata.owner_references.get_or_insert_default();
            owners.retain(|owner| owner.kind != "Node" || owner.name != self.node);
            // Only one owner controls.
            owners.iter_mut().for_each(|owner| owner.controller = None);
            owners.push(self.owner().await?);
        }
        let before = held.as_ref().map(|held| held.spec["pool"]["generation"].clone());
        slice.spec["pool"]["generation"] = before.unwrap_or_else(|| generation.into());
        let mut is_there = held.is_some();
        let dry = self.send(is_there, &slice, true).await?;
        let mut lack = Lack::find(&dry.spec, &slice.spec);
        let hands_out_whole_cards =
            |lack: &Option<Lack>| lack.as_ref().is_some_and(|lack| lack.whole_cards);
        // Else a slice that says nothing of sharing would be there, if only for a moment.
        if !hands_out_whole_cards(&lack) {
            if held.is_some_and(|held| is_owned && held.spec == dry.spec) {
                return Ok(Some(Done { version: slice.metadata.resource_version, lack }));
            }
            slice.spec["pool"]["generation"] = generation.into();
            let there = self.send(is_there, &slice, false).await?;
            lack = Lack::find(&there.spec, &slice.spec);
            slice.metadata = there.metadata;
            if !hands_out_whole_cards(&lack) {
                return Ok(Some(Done { version: slice.metadata.resource_version, lack }));
            }
            // One of several API servers is older than the one that was asked before.
            is_there = true;
        }
        if is_there {
            self.delete(self.own, slice.metadata.uid).await?;
        }
        Ok(Some(Done { version: None, lack }))
    }

    fn line(&self) -> Option<String> {
        self.last.as_ref().and_then(|(_, done)| done.lack.as_ref()).map(|lack| lack.line.clone())
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

    fn is_owned(&self, slice: &KeptMeta) -> bool {
        slice.owner_references.iter().flatten().any(|owner| {
            owner.kind == "Node" && owner.name == self.node && owner.controller == Some(true)
        })
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

    /// Makes the slice, or changes it where nobody wrote since: its `resourceVersion` is part of
    /// it.
    async fn send(&self, is_there: bool, slice: &WireSlice, dry: bool) -> Result<WireSlice, Error> {
        let params = PostParams { dry_run: dry, field_manager: Some(MANAGER.to_owned()) };
        let verb = if is_there { "change" } else { "make" };
        let send = |client| async move {
            let all = Objects::<WireSlice>::all(client);
            if is_there {
                all.replace(self.own, &params, slice).await
            } else {
                all.create(&params, slice).await
            }
        };
        let found = self.requests.ask(format!("{verb} ResourceSlice {}", self.own), send).await?;
        found.map_err(|unread| Error::from(&unread.left))
    }

    /// That of the uid; one that is gone already is well.
    async fn delete(&self, name: &str, uid: Option<String>) -> Result<(), Error> {
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let delete =
            |client| async move { Objects::<WireSlice>::all(client).delete(name, &params).await };
        unless_gone(self.requests.ask(format!("delete ResourceSlice {name}"), delete).await)
    }
}
