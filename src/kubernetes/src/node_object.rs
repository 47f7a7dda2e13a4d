//! This node's object: the labels that switch it, and what mpsgate writes into it. Pure;
//! `node_task` does it.

use std::collections::BTreeMap;

use mpsgate_model::{CardReport, GPU_COUNT, Guarantee, HandlerReport, Placement, parse_count};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::State;
use crate::handler_annotation::{self, BYPASS, HANDLERS};
use crate::wire::{NodeCondition, Quantity, WireNode};

/// What the node is switched by (ACK).
const SCHEDULE: &str = "ack.node.gpu.schedule";
/// Pack or spread (ACK).
pub(crate) const PLACEMENT: &str = "ack.node.gpu.placement";
/// What the node is switched by (nos).
const PARTITIONING: &str = "nos.nebuly.com/gpu-partitioning";
/// The annotation with the cards: [`CardReport`]s as JSON.
pub const CARDS: &str = "mpsgate.io/cards";
/// How it is laid out.
const CARDS_VERSION: u64 = 1;
/// While this annotation stands on a node, mpsgate is being removed from the cluster: the node
/// gives its cards back as if nobody had labelled it, and its labels, which may be its node pool's,
/// stay as they are.
pub const REMOVAL: &str = "mpsgate.io/removal";
/// The condition of the node that says whether it takes GPU memory requests.
pub const CONDITION: &str = "GPUMemorySharingReady";
/// The annotations that are written.
pub(crate) const ANNOTATIONS: [&str; 2] = [CARDS, HANDLERS];
/// The conditions that are written.
pub(crate) const CONDITIONS: [&str; 2] = [CONDITION, BYPASS];
/// Stands on the node while mpsgate has cards of it. The chart's DaemonSets are chosen by it too:
/// Kubernetes deletes a DaemonSet's pod when its node's labels fit no more, and with the holder's
/// pod all CUDA work dies.
pub const SHARED: &str = "mpsgate.io/shared";
/// The guarantee level that a grant on each card has at least, as a label can say it:
/// `mps-watchdog`.
const GUARANTEE: &str = "mpsgate.io/guarantee";
/// Whether each card of this node has shown that level: `true` or `false`.
const PROVEN: &str = "mpsgate.io/proven";
/// These, and the card labels (ACK): how many, their name, memory of one.
const LABELS: [&str; 6] = [
    SHARED,
    GUARANTEE,
    PROVEN,
    "aliyun.accelerator/nvidia_count",
    "aliyun.accelerator/nvidia_name",
    "aliyun.accelerator/nvidia_mem",
];

/// The node as the API server has it.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Whether this is what the API server has now.
    pub state: State,
    /// What its labels ask for.
    pub labels: Labels,
    /// All its labels, which pods choose nodes by.
    pub all_labels: BTreeMap<String, String>,
    /// Why the last write failed, if it did. It is tried again.
    pub write_error: Option<String>,
    pub(crate) ours: Ours,
}

/// What the node's labels ask for, where nothing says that mpsgate is being removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// `ack.node.gpu.schedule`, as written.
    pub schedule: Option<String>,
    /// `ack.node.gpu.placement`, where it is a word that is known.
    pub placement: Option<Placement>,
    /// `nos.nebuly.com/gpu-partitioning` is `mps` or `hybrid`: `nvidia.com/gpu-<N>gb` is served.
    pub slices: bool,
    /// The annotation [`REMOVAL`] is there: the two labels that switch the node count as absent.
    pub removal: bool,
}

impl Labels {
    pub(crate) fn of(
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Self {
        let removal = annotations.contains_key(REMOVAL);
        let switch = |label: &str| labels.get(label).filter(|_| !removal);
        Self {
            schedule: switch(SCHEDULE).cloned(),
            placement: labels.get(PLACEMENT).and_then(|word| Placement::parse(word)),
            slices: matches!(switch(PARTITIONING).map(String::as_str), Some("mps" | "hybrid")),
            removal,
        }
    }
}

/// What shall be written into the node's object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// The cards that are shared. None: annotation, labels and `aliyun.com/gpu-count` are taken
    /// away. `None` leaves them as they are: nobody knows yet, or now.
    pub cards: Option<Vec<CardReport>>,
    /// The weakest level of these cards, and whether each has shown its level.
    pub level: Option<(Guarantee, bool)>,
    /// Which handlers lead through mpsgate. Without cards it is taken away; `None` leaves it as it
    /// is.
    pub handlers: Option<HandlerReport>,
    /// The condition [`CONDITION`]. `None` takes it away.
    pub ready: Option<ConditionReport>,
    /// The condition [`BYPASS`]. Without cards it is taken away; `None` leaves it as it is.
    pub bypass: Option<ConditionReport>,
}

/// The cards in the annotation [`CARDS`].
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_cards(text: &str) -> Result<Vec<CardReport>, String> {
    #[derive(Deserialize)]
    struct Annotation {
        version: u64,
        cards: Vec<CardReport>,
    }
    match serde_json::from_str(text) {
        Ok(Annotation { version: CARDS_VERSION, cards }) => Ok(cards),
        Ok(Annotation { version, .. }) => {
            Err(format!("its version is {version}, and not {CARDS_VERSION}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A condition of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionReport {
    /// Whether it holds; `None`: nobody knows.
    pub holds: Option<bool>,
    /// One word in CamelCase.
    pub reason: String,
    /// A sentence, with what to do.
    pub message: String,
}

impl ConditionReport {
    /// Kubernetes' word for it.
    fn status(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// What of ours is, or shall be, in the node's object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ours {
    annotations: [Option<String>; 2],
    labels: [Option<String>; 6],
    gpu_count: Option<u64>,
    conditions: [Option<ConditionReport>; 2],
}

impl Node {
    /// What the node's object says of [`CONDITION`]; `None` where it says nothing.
    #[must_use]
    pub fn shows_ready(&self) -> Option<bool> {
        self.ours.conditions[0].as_ref().and_then(|condition| condition.holds)
    }

    /// Whether the node's object says that this card takes grants, so that a scheduler may send
    /// pods to it.
    #[must_use]
    pub fn shows_healthy(&self, card: &str) -> bool {
        let cards = self.ours.annotations[0].as_deref().map(parse_cards);
        let cards = cards.and_then(Result::ok).unwrap_or_default();
        cards.iter().any(|one| one.uuid == card && one.healthy)
    }

    pub(crate) fn reduce(&mut self, node: WireNode) {
        let (mut labels, mut annotations) = (
            node.metadata.labels.unwrap_or_default(),
            node.metadata.annotations.unwrap_or_default(),
        );
        self.labels = Labels::of(&labels, &annotations);
        self.all_labels.clone_from(&labels);
        self.ours = Ours {
            annotations: ANNOTATIONS.map(|annotation| annotations.remove(annotation)),
            labels: LABELS.map(|label| labels.remove(label)),
            gpu_count: node.status.capacity.get(GPU_COUNT).and_then(|count| match count {
                Quantity::Text(text) => parse_count(text).ok(),
                Quantity::Number(number) => number.as_u64(),
            }),
            conditions: CONDITIONS.map(|kind| {
                let found = node.status.conditions.iter().find(|one| one.kind == kind)?;
                let NodeCondition { status, reason, message, .. } = found.clone();
                let holds = match status.as_str() {
                    "True" => Some(true),
                    "False" => Some(false),
                    _ => None,
                };
                Some(ConditionReport { holds, reason, message })
            }),
        };
    }
}

impl NodeReport {
    /// `have` is what stands there now.
    pub(crate) fn wanted(&self, have: &Ours) -> Ours {
        let [have_cards, have_handlers] = have.annotations.clone();
        let [_, have_bypass] = have.conditions.clone();
        let bypass = self.bypass.clone().or(have_bypass);
        let handlers = self.handlers.as_ref().map(handler_annotation::render).or(have_handlers);
        let Some(cards) = &self.cards else {
            return Ours {
                annotations: [have_cards, handlers],
                conditions: [self.ready.clone(), bypass],
                ..have.clone()
            };
        };
        let first = cards.first();
        // The seed's label has one size: of unequal cards the smallest, which is true of each.
        let memory = cards.iter().map(|card| card.memory.0).min();
        Ours {
            annotations: [
                first.map(|_| json!({"version": CARDS_VERSION, "cards": cards}).to_string()),
                first.and(handlers),
            ],
            labels: [
                first.map(|_| "true".to_owned()),
                first.and(self.level).map(|(level, _)| label_value(level.as_str())),
                first.and(self.level).map(|(_, is_proven)| is_proven.to_string()),
                first.map(|_| cards.len().to_string()),
                first.map(|card| label_value(&card.name)),
                memory.map(|mib| format!("{mib}MiB")),
            ],
            gpu_count: first.map(|_| cards.len() as u64),
            conditions: [self.ready.clone(), first.and(bypass)],
        }
    }
}

impl Ours {
    /// What leads from `self` to `wanted`: patches of the node and of its status, each only where
    /// something differs. Merge patches: nobody else's field is named. `now` is RFC 3339.
    pub(crate) fn patches(&self, wanted: &Self, now: &str) -> (Option<Value>, Option<Value>) {
        let mut metadata = json!({});
        for (name, (have, want)) in
            ANNOTATIONS.iter().zip(self.annotations.iter().zip(&wanted.annotations))
        {
            if have != want {
                metadata["annotations"][*name] = json!(want);
            }
        }
        for (label, (have, want)) in LABELS.iter().zip(self.labels.iter().zip(&wanted.labels)) {
            if have != want {
                metadata["labels"][*label] = json!(want);
            }
        }
        let mut status = json!({});
        if self.gpu_count != wanted.gpu_count {
            status["capacity"] =
                json!({GPU_COUNT: wanted.gpu_count.map(|count| count.to_string())});
        }
        // Strategic: conditions are merged by their type.
        let conditions: Vec<Value> = CONDITIONS
            .into_iter()
            .zip(self.conditions.iter().zip(&wanted.conditions))
            .filter(|(_, (have, want))| have != want)
            .map(|(kind, (have, want))| condition(kind, have.as_ref(), want.as_ref(), now))
            .collect();
        if !conditions.is_empty() {
            status["conditions"] = Value::Array(conditions);
        }
        let unless_empty =
            |key: &str, value: Value| (value != json!({})).then(|| json!({ key: value }));
        (unless_empty("metadata", metadata), unless_empty("status", status))
    }
}

/// What makes `wanted` of the condition of that type.
fn condition(
    kind: &str,
    have: Option<&ConditionReport>,
    wanted: Option<&ConditionReport>,
    now: &str,
) -> Value {
    let Some(wanted) = wanted else { return json!({"type": kind, "$patch": "delete"}) };
    let mut condition = json!({
        "type": kind,
        "status": wanted.status(),
        "reason": wanted.reason,
        "message": wanted.message,
        "lastHeartbeatTime": now,
    });
    if have.is_none_or(|have| have.holds != wanted.holds) {
        condition["lastTransitionTime"] = json!(now);
    }
    condition
}

/// `Tesla T4` as `Tesla-T4`: at most 63 of letters, digits, `-_.`, the first and last of them no
/// sign.
fn label_value(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let value: String = text.chars().map(allowed).collect();
    let value = value.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let value = value.get(..63).unwrap_or(value);
    value.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests;
