//! The text of a scrape: OpenMetrics as the library writes it, and the older format made of that.

use std::fmt::{self, Write};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

use super::metric_list::METRICS;
use super::scrape::Scrape;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in METRICS {
            let (unit, kind) = (metric.unit.open_metrics(), metric.kind.open_metrics());
            let to =
                encoder.encode_descriptor(metric.stem(), metric.meaning, unit.as_ref(), kind)?;
            (metric.write)(self, to)?;
        }
        Ok(())
    }
}

/// In OpenMetrics 1.0.
pub(super) fn render(scrape: Scrape) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut open = String::new();
    text::encode(&mut open, &registry)?;
    Ok(open)
}

/// The same in Prometheus' text format 0.0.4: its families have the names of their samples, it has
/// no type `info`, no units and no end.
pub(super) fn classic(open: &str) -> String {
    let mut classic = String::with_capacity(open.len());
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(family), Some(rest)) => {
                let metric = METRICS.iter().find(|metric| metric.family() == family);
                let name = metric.map_or(family, |metric| metric.name);
                let rest = if (what, rest) == ("TYPE", "info") { "gauge" } else { rest };
                let _ = writeln!(classic, "# {what} {name} {rest}");
            }
            (Some("#"), ..) => {}
            _ => {
                let _ = writeln!(classic, "{line}");
            }
        }
    }
    classic
}
