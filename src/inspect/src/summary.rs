//! One line for each node: the allocated memory of each card.

use crate::node_rows::{Device, NodeView, PENDING, View};
use crate::table::{Cell, Paint, Table};

/// The percentage from which a card is nearly full.
const NEARLY: i64 = 90;

/// The table, and the total of the whole cluster.
pub(crate) fn render(view: &View, wide: bool, coloured: bool) -> String {
    let view = view.in_units();
    let columns = view.nodes.iter().map(|node| node.columns).max().unwrap_or(0);
    let pending = view.has_pending();
    let mut table = Table::default();
    let mut header: Vec<Cell> = vec!["NAME".into(), "IPADDRESS".into()];
    header.extend((0..columns).map(|index| format!("GPU{index}(Allocated/Total)").into()));
    if pending {
        header.push("PENDING(Allocated)".into());
    }
    header.push(format!("GPU Memory({})", view.unit).into());
    if wide {
        let local = format!("LOCAL({})", view.unit);
        header.extend(["SCHEDULE".into(), local.into(), "UNHEALTHY".into(), "EXACT".into()]);
    }
    table.line(header);

    let mut rule = 0;
    let (mut used_in_cluster, mut total_in_cluster) = (0_i64, 0_i64);
    for node in view.nodes.iter().filter(|node| node.total > 0) {
        let mut line: Vec<Cell> = vec![node.name.as_str().into(), node.address().into()];
        let mut used = 0_i64;
        for index in (0_i64..).take(columns) {
            let device = node.devices.get(&index);
            used = used.saturating_add(device.map_or(0, |device| device.used));
            line.push(device.map_or_else(|| "0/0".into(), card));
        }
        let waiting = node.devices.get(&PENDING).map(|device| device.used);
        used = used.saturating_add(waiting.unwrap_or(0));
        if pending {
            line.push(waiting.map(|used| used.to_string()).unwrap_or_default().into());
        }
        line.push(format!("{used}/{}", node.total).into());
        if wide {
            line.extend(wide_cells(node, view.unit));
        }
        if rule == 0 {
            rule = Table::bytes(&line) + 20;
        }
        table.line(line);
        used_in_cluster = used_in_cluster.saturating_add(used);
        total_in_cluster = total_in_cluster.saturating_add(node.total);
    }
    table.line(["-".repeat(rule)]);
    table.line(["Allocated/Total GPU Memory In Cluster:"]);
    table.line([together(used_in_cluster, total_in_cluster), String::new()]);
    table.render(coloured)
}

fn card(device: &Device) -> Cell {
    let paint = match device.used.saturating_mul(100).checked_div(device.total) {
        Some(100..) => Paint::Full,
        Some(NEARLY..) => Paint::High,
        _ => Paint::Plain,
    };
    Cell { text: format!("{}/{}", device.used, device.total), paint }
}

/// The node's sharing mode, the memory of local containers, the cards that take nothing, and
/// whether mpsgated reported them.
pub(crate) fn wide_cells(node: &NodeView, unit: &str) -> [Cell; 4] {
    let cards = || node.devices.values().filter_map(|device| device.card.as_ref());
    let local: u64 = cards().map(|card| card.local.0).fold(0, u64::saturating_add);
    // Rounded up: no memory that is there is shown as 0.
    let local = if unit == "GiB" { local.div_ceil(1024) } else { local };
    let unhealthy: Vec<String> =
        cards().filter(|card| !card.healthy).map(|card| card.index.to_string()).collect();
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    [
        or_none(node.schedule.clone().unwrap_or_default()).into(),
        if node.exact { local.to_string() } else { "-".to_owned() }.into(),
        or_none(unhealthy.join(",")).into(),
        if node.exact { "yes" } else { "no" }.into(),
    ]
}

/// `7/30 (23%)`
pub(crate) fn together(used: i64, total: i64) -> String {
    format!("{used}/{total} ({}%)", percent(used, total))
}

/// Truncated, and with the published tool's floating point: 29 of 100 are 28 %.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "its very rounding is wanted"
)]
pub(crate) fn percent(used: i64, total: i64) -> i64 {
    if total > 0 { (used as f64 / total as f64 * 100.0) as i64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_those_of_the_published_tool() {
        for (used, total, shown) in [
            (0, 30, 0),
            (7, 30, 23),
            (30, 30, 100),
            (29, 100, 28),
            (31, 30, 103),
            (-1, 2, -50),
            (1, 0, 0),
        ] {
            assert_eq!(percent(used, total), shown, "{used}/{total}");
        }
    }

    #[test]
    fn cards_are_coloured_from_ninety_percent_on() {
        for (used, total, paint) in [
            (0, 0, Paint::Plain),
            (13, 15, Paint::Plain),
            (14, 15, Paint::High),
            (15, 15, Paint::Full),
            (16, 15, Paint::Full),
        ] {
            let cell = card(&Device { total, used, ..Device::default() });
            assert_eq!((cell.paint, cell.text), (paint, format!("{used}/{total}")));
        }
    }
}
