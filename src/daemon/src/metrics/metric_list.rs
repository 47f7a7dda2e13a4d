//! Every metric: its name, what it means, and where its value comes from. `docs/metrics.md` shows
//! this list.
//!
//! Words are those of `status`; units are Prometheus' base units. A value that is not known has no
//! sample: a zero would be a lie.

use std::fmt;

use mpsgate_api::{
    CardMemory, CardState, CardStatus, ControlState, GrantStatus, GrantUsage, UsageDay,
};
use mpsgate_policy::answered_on;
use mpsgate_policy::schedule::Word;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry;

use super::scrape::Scrape;
use crate::around::handler_status::Handlers;

/// One metric.
pub(super) struct Metric {
    /// As its samples are called; those of a histogram have `_bucket`, `_sum` or `_count` after it.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Unit,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the page, and held to the samples by a test")
    )]
    pub(super) labels: &'static [&'static str],
    pub(super) meaning: &'static str,
    pub(super) write: fn(&Scrape, MetricEncoder<'_>) -> fmt::Result,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    None,
    Bytes,
    Seconds,
}

impl Kind {
    pub(super) fn open_metrics(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Histogram => MetricType::Histogram,
            Self::Info => MetricType::Info,
        }
    }
}

impl Unit {
    pub(super) fn open_metrics(self) -> Option<registry::Unit> {
        match self {
            Self::None => None,
            Self::Bytes => Some(registry::Unit::Bytes),
            Self::Seconds => Some(registry::Unit::Seconds),
        }
    }
}

impl Metric {
    /// The name of its family in OpenMetrics: without what counters and infos have at the end.
    pub(super) fn family(&self) -> &'static str {
        let end = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name.strip_suffix(end).unwrap_or(self.name)
    }

    /// What the library appends the unit to.
    pub(super) fn stem(&self) -> &'static str {
        let end = match self.unit {
            Unit::None => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
        };
        self.family().strip_suffix(end).unwrap_or_else(|| self.family())
    }
}

const CARD: &[&str] = &["gpu", "uuid"];
const GRANT: &[&str] = &["gpu", "uuid", "container", "runtime_root"];

/// What `MpsStatus::state` is once it was looked at.
const MPS_STATES: [ControlState; 4] =
    [ControlState::Running, ControlState::Dead, ControlState::Wedged, ControlState::Fault];

macro_rules! metric {
    ($name:literal, $kind:ident, $unit:ident, $labels:expr, $meaning:literal, $write:expr) => {
        Metric {
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            labels: $labels,
            meaning: $meaning,
            write: $write,
        }
    };
}

/// In the order of a scrape.
#[rustfmt::skip]
pub(super) const METRICS: &[Metric] = &[
    metric!("mpsgate_build_info", Info, None, &["version"],
        "Version of mpsgated.",
        |s, to| info(to, &[("version", &s.status.version)])),
    metric!("mpsgate_driver_info", Info, None, &["version", "simulated"],
        "Version of the NVIDIA driver, and whether its cards are simulated.",
        |s, to| match &s.status.driver {
            Some(version) => info(to, &[("version", version), ("simulated", yes_no(s.status.simulated))]),
            None => Ok(()),
        }),
    metric!("mpsgate_driver_up", Gauge, None, &[],
        "Whether the driver's management library (NVML) answers.",
        |s, mut to| to.encode_gauge(&u64::from(s.status.nvml_error.is_none()))),
    metric!("mpsgate_schedule_info", Info, None, &["schedule", "wanted"],
        "How the node's cards are shared (mps, share), and what is wanted: the same, or what waits for containers \
         to end; off where the cards of the settings are another system's.",
        |s, to| {
            let wanted = s.status.schedule_wanted.as_ref().unwrap_or(&s.status.schedule);
            info(to, &[("schedule", s.status.schedule.as_str()), ("wanted", wanted.as_str())])
        }),
    metric!("mpsgate_ledger_failing", Gauge, None, &[],
        "Whether the last attempt to write the ledger failed, so that no grant is given.",
        |s, mut to| to.encode_gauge(&u64::from(s.ledger_failing))),
    metric!("mpsgate_card_info", Info, None, &["gpu", "uuid", "name"],
        "Product name of the card.",
        |s, mut to| s.status.cards.iter().try_for_each(|card| {
            let gpu = card.index.to_string();
            to.encode_info(&[("gpu", gpu.as_str()), ("uuid", &card.uuid), ("name", &card.name)])
        })),
    metric!("mpsgate_card_managed", Gauge, None, CARD,
        "Whether the card is handed to mpsgate.",
        |s, to| cards(s, to, |card| Some(card.managed.into()))),
    metric!("mpsgate_card_ready", Gauge, None, CARD,
        "Whether a managed card takes new grants.",
        |s, to| cards(s, to, |card| card.managed.then_some((card.state == CardState::Ready).into()))),
    metric!("mpsgate_card_memory_total_bytes", Gauge, Bytes, CARD,
        "Memory of the card.",
        |s, to| cards(s, to, |card| Some(bytes(card.total_mib)))),
    metric!("mpsgate_card_memory_grantable_bytes", Gauge, Bytes, CARD,
        "Memory of a managed card that may be granted: whole GiB after the reserve.",
        |s, to| cards(s, to, |card| card.managed.then_some(bytes(card.memory_mib)))),
    metric!("mpsgate_card_memory_granted_bytes", Gauge, Bytes, CARD,
        "Memory of a managed card that is granted or reserved, as the ledger records it.",
        |s, to| cards(s, to, |card| card.managed.then_some(bytes(card.granted_mib)))),
    metric!("mpsgate_card_memory_promised_bytes", Gauge, Bytes, CARD,
        "Memory of a managed card that is promised to pods that do not run now.",
        |s, to| cards(s, to, |card| card.managed.then_some(bytes(card.promised_mib)))),
    metric!("mpsgate_card_memory_used_bytes", Gauge, Bytes, CARD,
        "Memory in use on the card, as NVML counts it; no sample while NVML does not tell.",
        |s, to| cards(s, to, |card| card.used_mib.filter(|_| s.status.nvml_error.is_none()).map(bytes))),
    metric!("mpsgate_card_memory_part_bytes", Gauge, Bytes, &["gpu", "uuid", "whose"],
        "What the memory in use on a managed card is made of: of containers, the MPS servers, others (in no \
         container with a grant), and nobody (no process that can be named); no sample where NVML does not tell \
         all of it.",
        |s, to| memory_parts(s, to)),
    metric!("mpsgate_card_memory_counted_twice_bytes", Gauge, Bytes, CARD,
        "By how much the parts are more than the memory in use: what one process imports from another stands \
         with both.",
        |s, to| cards(s, to, |card| Some(card.memory?.counted_twice))),
    metric!("mpsgate_card_memory_byte_seconds_total", Counter, None, &["gpu", "uuid", "whose"],
        "The parts over time, in bytes times seconds, since midnight (UTC): mpsgate usage has the days before.",
        |s, to| memory_usage(s, to)),
    metric!("mpsgate_card_memory_seen", Gauge, None, CARD,
        "Whether NVML tells the memory of each process on a managed card, without which no container's sum \
         is held to its grant.",
        |s, to| cards(s, to, |card| {
            card.managed.then(|| (card.unwatched.is_none() && s.status.nvml_error.is_none()).into())
        })),
    metric!("mpsgate_card_clients", Gauge, None, CARD,
        "Grants and reservations on a managed card.",
        |s, to| cards(s, to, |card| card.managed.then_some(card.clients.into()))),
    metric!("mpsgate_card_clients_max", Gauge, None, CARD,
        "Grants and reservations that a managed card's MPS server takes at most; no sample without MPS.",
        |s, to| cards(s, to, |card| {
            (card.managed && s.status.schedule != Word::Share).then_some(card.max_clients.into())
        })),
    metric!("mpsgate_card_mps_state", Gauge, None, &["gpu", "uuid", "state"],
        "State of the card's MPS control daemon: 1 for the one that it is in of running, dead, wedged and \
         fault; no sample before it was first looked at.",
        |s, to| mps_states(s, to)),
    metric!("mpsgate_card_mps_servers", Gauge, None, CARD,
        "MPS servers of the card's control daemon, as it last named them.",
        |s, to| cards(s, to, |card| {
            card.mps.as_ref().and_then(|mps| u64::try_from(mps.servers.len()).ok())
        })),
    metric!("mpsgate_gate_clients_total", Counter, None, &["gpu", "uuid", "outcome"],
        "CUDA clients at the doors of the card's containers since its gate began: handed_over, or why they were \
         ended (docs/gate.md); no sample without a gate.",
        |s, to| gate_clients(s, to)),
    metric!("mpsgate_gate_clients_waiting", Gauge, None, CARD,
        "CUDA clients that wait at the doors of the card's containers.",
        |s, to| cards(s, to, |card| Some(card.gate.as_ref()?.waiting))),
    metric!("mpsgate_card_answer_info", Info, None,
        &["gpu", "uuid", "question", "answer", "driver", "date"],
        "What the card has answered to mpsgate qualify: yes, no or unanswered, with which driver and on which \
         day; no sample where it was never asked.",
        |s, to| answers(s, to)),
    metric!("mpsgate_grant_info", Info, None,
        &["gpu", "uuid", "container", "runtime_root", "state", "guarantee"],
        "State of the grant (reserved, active, broken) and how firmly its limit holds now (none, \
         mps, mps+watchdog, cgroup).",
        |s, mut to| s.status.grants.iter().try_for_each(|grant| {
            let gpu = grant.card_index.to_string();
            let [a, b, c, d] = grant_labels(grant, &gpu);
            let (state, guarantee) = (grant.state.as_str(), grant.guarantee.as_str());
            to.encode_info(&[a, b, c, d, ("state", state), ("guarantee", guarantee)])
        })),
    metric!("mpsgate_grant_memory_limit_bytes", Gauge, Bytes, GRANT,
        "Memory that the container was granted.",
        |s, to| grants(s, to, |grant| Some(bytes(grant.memory_mib)))),
    metric!("mpsgate_grant_memory_used_bytes", Gauge, Bytes, GRANT,
        "Memory that the container's processes use in sum, as NVML counts it; no sample while that is not \
         seen.",
        |s, to| grants(s, to, |grant| grant.used_mib.map(bytes))),
    metric!("mpsgate_grant_memory_granted_byte_seconds_total", Counter, None, GRANT,
        "Memory that the container was granted over time, in bytes times seconds, since midnight (UTC).",
        |s, to| usage(s, to, |row| row.granted)),
    metric!("mpsgate_grant_memory_used_byte_seconds_total", Counter, None, GRANT,
        "Memory that its processes used over time, in bytes times seconds, since midnight (UTC), as far as NVML \
         told it.",
        |s, to| usage(s, to, |row| row.used)),
    metric!("mpsgate_refusals_total", Counter, None, &["code"],
        "Containers that were refused, by the refusal's code.",
        |s, mut to| s.counts.refusal_series().iter().try_for_each(|(code, count)| {
            ConstCounter::new(*count).encode(to.encode_family(&[("code", *code)])?)
        })),
    metric!("mpsgate_notes_total", Counter, None, &["action", "code"],
        "Containers without a grant that were started although they show a way to a card: stripped of it, \
         warned of, or noted only. One container counts once for each.",
        |s, mut to| s.counts.note_series().iter().try_for_each(|((action, code), count)| {
            let labels = [("action", *action), ("code", *code)];
            ConstCounter::new(*count).encode(to.encode_family(&labels)?)
        })),
    metric!("mpsgate_actions_total", Counter, None, &["what"],
        "What was done about processes that took what is not theirs: killed (the container), \
         reported, or failed to.",
        |s, to| s.events.actions.encode(to)),
    metric!("mpsgate_clients_terminated_total", Counter, None, &[],
        "CUDA clients whose GPU work was ended before their container was killed.",
        |s, to| ConstCounter::new(s.status.clients_terminated).encode(to)),
    metric!("mpsgate_kills_unprepared_total", Counter, None, &[],
        "Containers with a grant that were killed while their GPU work could not be ended first.",
        |s, to| ConstCounter::new(s.status.kills_unprepared).encode(to)),
    metric!("mpsgate_device_plugin_registered", Gauge, None, &["resource"],
        "Whether kubelet reads the list of devices of a resource that is served to it.",
        |s, mut to| s.status.device_plugin.iter().try_for_each(|one| {
            let registered = u64::from(one.registered_ms.is_some());
            to.encode_family(&[("resource", one.resource.as_str())])?.encode_gauge(&registered)
        })),
    metric!("mpsgate_device_plugin_allocations_total", Counter, None, &["resource"],
        "Containers that were given memory of a resource by kubelet, since it was served.",
        |s, mut to| s.status.device_plugin.iter().try_for_each(|one| {
            let labels = [("resource", one.resource.as_str())];
            ConstCounter::new(one.allocations).encode(to.encode_family(&labels)?)
        })),
    metric!("mpsgate_handler_led", Gauge, None, &["handler"],
        "Whether containers of a runtime handler of containerd or CRI-O pass mpsgate; no sample where nobody knows, \
         and for handlers of another kind, before which mpsgate cannot stand.",
        |s, mut to| s.handlers.iter().flat_map(Handlers::known).try_for_each(|(handler, led)| {
            to.encode_family(&[("handler", handler)])?.encode_gauge(&u64::from(led))
        })),
    metric!("mpsgate_api_server_followed", Gauge, None, &[],
        "Whether the API server's list of this node's pods is up to date; absent where none is asked.",
        |s, mut to| match &s.status.api_server {
            Some(api_server) => to.encode_gauge(&u64::from(api_server.problem.is_none())),
            None => Ok(()),
        }),
    metric!("mpsgate_pods_left_out", Gauge, None, &[],
        "Pods of this node that cannot be read, so that no more than a part of them counts; absent where no API \
         server is asked.",
        |s, mut to| match &s.status.api_server {
            Some(api_server) => {
                to.encode_gauge(&u64::try_from(api_server.left_out.len()).unwrap_or(u64::MAX))
            }
            None => Ok(()),
        }),
    metric!("mpsgate_events_dropped_total", Counter, None, &[],
        "Events for Kubernetes that were not written, because too many waited for the API server.",
        |s, to| match &s.status.api_server {
            Some(api_server) => ConstCounter::new(api_server.events_dropped).encode(to),
            None => Ok(()),
        }),
    metric!("mpsgate_reserve_duration_seconds", Histogram, Seconds, &["outcome"],
        "Time until a container's request for memory was granted or refused, the start of its MPS server \
         included.",
        |s, to| s.events.reserve.encode(to)),
    metric!("mpsgate_activate_duration_seconds", Histogram, Seconds, &["outcome"],
        "Time until a created container's grant was made active or refused.",
        |s, to| s.events.activate.encode(to)),
];

fn cards(
    scrape: &Scrape,
    mut to: MetricEncoder<'_>,
    value: impl Fn(&CardStatus) -> Option<u64>,
) -> fmt::Result {
    scrape.status.cards.iter().try_for_each(|card| match value(card) {
        Some(value) => {
            let gpu = card.index.to_string();
            to.encode_family(&[("gpu", gpu.as_str()), ("uuid", &card.uuid)])?.encode_gauge(&value)
        }
        None => Ok(()),
    })
}

fn mps_states(scrape: &Scrape, mut to: MetricEncoder<'_>) -> fmt::Result {
    for card in &scrape.status.cards {
        let Some(mps) = &card.mps else { continue };
        let gpu = card.index.to_string();
        for state in MPS_STATES {
            let labels = [("gpu", gpu.as_str()), ("uuid", &card.uuid), ("state", state.as_str())];
            to.encode_family(&labels)?.encode_gauge(&u64::from(mps.state == state))?;
        }
    }
    Ok(())
}

fn memory_parts(scrape: &Scrape, mut to: MetricEncoder<'_>) -> fmt::Result {
    for card in &scrape.status.cards {
        for (whose, bytes) in card.memory.iter().flat_map(CardMemory::by_owner) {
            let gpu = card.index.to_string();
            to.encode_family(&owner_labels(card, &gpu, whose))?.encode_gauge(&bytes)?;
        }
    }
    Ok(())
}

fn memory_usage(scrape: &Scrape, mut to: MetricEncoder<'_>) -> fmt::Result {
    for card in &scrape.status.cards {
        let today = scrape.cards.get(&card.uuid);
        for (whose, kib_ms) in today.iter().flat_map(|today| today.memory.by_owner()) {
            let gpu = card.index.to_string();
            let labels = owner_labels(card, &gpu, whose);
            ConstCounter::new(byte_seconds(kib_ms)).encode(to.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn owner_labels<'a>(
    card: &'a CardStatus,
    gpu: &'a str,
    whose: &'a str,
) -> [(&'static str, &'a str); 3] {
    [("gpu", gpu), ("uuid", &card.uuid), ("whose", whose)]
}

fn usage(
    scrape: &Scrape,
    mut to: MetricEncoder<'_>,
    amount: impl Fn(&GrantUsage) -> u64,
) -> fmt::Result {
    for grant in &scrape.status.grants {
        let Some(row) = scrape.grants.get(&UsageDay::key(&grant.card, &grant.instance)) else {
            continue;
        };
        let gpu = grant.card_index.to_string();
        let amount = byte_seconds(amount(row));
        ConstCounter::new(amount).encode(to.encode_family(&grant_labels(grant, &gpu))?)?;
    }
    Ok(())
}

/// Of KiB times milliseconds.
#[expect(clippy::cast_precision_loss, reason = "a sample is a float in any case")]
fn byte_seconds(kib_ms: u64) -> f64 {
    kib_ms as f64 * 1.024
}

fn gate_clients(scrape: &Scrape, mut to: MetricEncoder<'_>) -> fmt::Result {
    for card in &scrape.status.cards {
        let Some(gate) = &card.gate else { continue };
        let gpu = card.index.to_string();
        let handed_over = ("handed_over", gate.handed_over);
        let ended = gate.ended.iter().map(|(why, count)| (why.as_str(), *count));
        for (outcome, count) in std::iter::once(handed_over).chain(ended) {
            let labels = [("gpu", gpu.as_str()), ("uuid", &card.uuid), ("outcome", outcome)];
            ConstCounter::new(count).encode(to.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn answers(scrape: &Scrape, mut to: MetricEncoder<'_>) -> fmt::Result {
    for card in &scrape.status.cards {
        let Some(found) = &card.qualification else { continue };
        let gpu = card.index.to_string();
        for answer in &found.answers {
            let day = answered_on(answer);
            to.encode_info(&[
                ("gpu", gpu.as_str()),
                ("uuid", &card.uuid),
                ("question", answer.question.as_str()),
                ("answer", answer.verdict.as_str()),
                ("driver", &found.subject.driver),
                ("date", &day),
            ])?;
        }
    }
    Ok(())
}

fn grants(
    scrape: &Scrape,
    mut to: MetricEncoder<'_>,
    value: impl Fn(&GrantStatus) -> Option<u64>,
) -> fmt::Result {
    scrape.status.grants.iter().try_for_each(|grant| match value(grant) {
        Some(value) => {
            let gpu = grant.card_index.to_string();
            to.encode_family(&grant_labels(grant, &gpu))?.encode_gauge(&value)
        }
        None => Ok(()),
    })
}

/// A container's name is its own only below its runtime's root.
fn grant_labels<'a>(grant: &'a GrantStatus, gpu: &'a str) -> [(&'static str, &'a str); 4] {
    [
        ("gpu", gpu),
        ("uuid", &grant.card),
        ("container", &grant.container_id),
        ("runtime_root", &grant.runtime_root),
    ]
}

fn info<const N: usize>(mut to: MetricEncoder<'_>, labels: &[(&str, &str); N]) -> fmt::Result {
    to.encode_info(labels)
}

fn bytes(mib: u64) -> u64 {
    mib.saturating_mul(1024 * 1024)
}

fn yes_no(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[cfg(test)]
mod tests;
