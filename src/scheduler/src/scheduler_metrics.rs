//! What Prometheus reads: requests as they are counted, and the cluster as the ledger has it at the
//! moment.

use std::fmt;
use std::time::Duration;

use mpsgate_cluster::Snapshot;
use mpsgate_kubernetes::LeftOut;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Of a question that was answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Answered {
    verb: &'static str,
    outcome: &'static str,
}

/// Of a question, whatever the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Verb {
    verb: &'static str,
}

/// Counted since the start.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    requests: Family<Answered, Counter>,
    seconds: Family<Verb, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let buckets: fn() -> Histogram =
            || Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0]);
        Self { requests: Family::default(), seconds: Family::new_with_constructor(buckets) }
    }
}

impl Metrics {
    /// One question was answered.
    pub(crate) fn answered(&self, verb: &'static str, well: bool, took: Duration) {
        let outcome = if well { "ok" } else { "error" };
        self.requests.get_or_create(&Answered { verb, outcome }).inc();
        self.seconds.get_or_create(&Verb { verb }).observe(took.as_secs_f64());
    }

    /// All of it, as `OpenMetrics` 1.0: names are without the prefix, which the registry sets also
    /// before those of a collector.
    pub(crate) fn render(&self, now: Now) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("mpsgate_scheduler");
        registry.register("requests", "Questions of kube-scheduler", self.requests.clone());
        registry.register("request_seconds", "Time of an answer", self.seconds.clone());
        registry.register_collector(Box::new(now));
        let mut open = String::new();
        text::encode(&mut open, &registry)?;
        Ok(open)
    }
}

/// The cluster at the moment of a scrape.
#[derive(Debug)]
pub(crate) struct Now {
    pub(crate) active: bool,
    pub(crate) ready: bool,
    pub(crate) ledger: Snapshot,
    pub(crate) left_out: Vec<LeftOut>,
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        let (mut nodes, mut count, mut unhealthy, mut total, mut used) = (0, 0, 0, 0_u64, 0_u64);
        for cards in self.ledger.nodes().filter_map(|name| self.ledger.cards(name)) {
            nodes += u64::from(!cards.is_empty());
            for usage in cards {
                count += 1;
                unhealthy += u64::from(!usage.card.healthy);
                total = total.saturating_add(usage.card.memory.0);
                used = used.saturating_add(usage.used.0);
            }
        }
        let mut gauge = |name, help, value: u64| {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("active", "Whether this replica binds pods", self.active.into())?;
        gauge("ready", "Whether nodes and pods are as the API server has them", self.ready.into())?;
        gauge("nodes", "Nodes that report cards", nodes)?;
        gauge("cards", "Cards that nodes report", count)?;
        gauge("cards_unhealthy", "Cards that take no pods", unhealthy)?;
        gauge("memory_total_bytes", "GPU memory that can be given", total.saturating_mul(MIB))?;
        gauge("memory_used_bytes", "GPU memory that is given", used.saturating_mul(MIB))?;
        let help = "Objects of the API server that cannot be read";
        let mut family =
            encoder.encode_descriptor("objects_left_out", help, None, MetricType::Gauge)?;
        for kind in ["Node", "Pod", "RuntimeClass"] {
            let count = self.left_out.iter().filter(|one| one.kind == kind).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            family.encode_family(&[("kind", kind)])?.encode_gauge(&count)?;
        }
        Ok(())
    }
}
