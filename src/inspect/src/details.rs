//! Each node with its pods (`-d`).

use std::collections::HashSet;

use crate::node_rows::{NodeView, PENDING, PodView, Source, View};
use crate::summary::{percent, together, wide_cells};
use crate::table::{Cell, Table};

/// A block for each node, and the total of the whole cluster.
pub(crate) fn render(view: &View, wide: bool, coloured: bool) -> String {
    let view = view.in_units();
    let mut table = Table::default();
    let mut rule = 0;
    let (mut used_in_cluster, mut total_in_cluster) = (0_i64, 0_i64);
    for node in view.nodes.iter().filter(|node| node.total > 0) {
        table.line([""]);
        table.line(["NAME:", &node.name]);
        table.line(["IPADDRESS:", node.address()]);
        if wide {
            let titles = ["SCHEDULE:", "LOCAL:", "UNHEALTHY:", "EXACT:"];
            for (title, cell) in titles.into_iter().zip(wide_cells(node, view.unit)) {
                table.line([title.into(), cell]);
            }
        }
        table.line([""]);
        table.line(header(node, wide));
        let rows = rows(node, wide);
        if rule == 0 {
            rule = rows.iter().map(|row| Table::bytes(row)).sum::<usize>() + 10;
        }
        rows.into_iter().for_each(|row| table.line(row));
        let used = node.devices.values().map(|device| device.used).fold(0, i64::saturating_add);
        table.line(["Allocated :", &format!("{used} ({}%)", percent(used, node.total)), ""]);
        table.line(["Total :", &format!("{} ", node.total), ""]);
        table.line(["-".repeat(rule)]);
        used_in_cluster = used_in_cluster.saturating_add(used);
        total_in_cluster = total_in_cluster.saturating_add(node.total);
    }
    table.line([""]);
    table.line([""]);
    let together = together(used_in_cluster, total_in_cluster);
    table.line(["Allocated/Total GPU Memory In Cluster:", &together, ""]);
    table.render(coloured)
}

fn header(node: &NodeView, wide: bool) -> Vec<Cell> {
    let mut header: Vec<Cell> = vec!["NAME".into(), "NAMESPACE".into()];
    header.extend((0..node.columns).map(|index| format!("GPU{index}(Allocated)").into()));
    if node.has_pending() {
        header.push("Pending(Allocated)".into());
    }
    if wide {
        header.push("SOURCE".into());
    }
    header.push("".into());
    header
}

/// Each pod once, in the place of its first card.
fn rows(node: &NodeView, wide: bool) -> Vec<Vec<Cell>> {
    let mut seen = HashSet::new();
    let places = node.devices().flat_map(|(_, device)| &device.pods);
    let pods = places.filter_map(|place| node.pods.get(*place));
    let once = pods.filter(|pod| seen.insert(pod.uid.as_str()));
    once.map(|pod| row(node, pod, wide)).collect()
}

fn row(node: &NodeView, pod: &PodView, wide: bool) -> Vec<Cell> {
    let mut row: Vec<Cell> = vec![pod.name.as_str().into(), pod.namespace.as_str().into()];
    let columns = node.columns + usize::from(node.has_pending());
    for (index, column) in (0_i64..).zip(0..columns) {
        let beyond = column == node.columns && pod.source == Source::Unknown;
        let amount = pod.amounts.get(if beyond { &PENDING } else { &index });
        row.push(amount.copied().unwrap_or(0).to_string().into());
    }
    if wide {
        row.push(pod.source.word().into());
    }
    row.push("".into());
    row
}
