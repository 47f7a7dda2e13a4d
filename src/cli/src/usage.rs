//! `mpsgate usage`: what was granted and used over days, added up.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use mpsgate_api::{CardMemory, CardUsage, UsageDay};
use mpsgate_edge::{ExitCode, print};
use mpsgate_model::printable::plain;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::CliError;
use crate::args::{UsageArgs, UsageBy, UsageOutput};
use crate::error::UsageError;
use crate::status::columns::Columns;
use crate::status::short_id;

/// Version of the JSON document, as in `mpsgate status`.
const SCHEMA: u32 = 1;
/// KiB times milliseconds in a GiB times a second.
const GIB_SECOND: f64 = 1_048_576_000.0;
const HOUR: f64 = 3600.0;

/// A number that is added up.
struct Sum {
    /// In JSON and CSV, where it counts seconds.
    name: &'static str,
    /// What makes one of it, and what its hours are called in a table.
    unit: (f64, &'static str),
    table: Table,
}

/// Where a table shows a sum, in hours.
enum Table {
    Column(&'static str),
    /// The sum of all rows, between these texts, unless it is 0.
    Below(&'static str, &'static str),
    Nowhere,
}

/// The columns: names, of which so many are before the sums in a table, and sums.
struct Form {
    names: &'static [&'static str],
    before: usize,
    sums: &'static [Sum],
}

/// Sums by the index of their card, which is 0 where the rows are no cards, and by their names.
type Rows = BTreeMap<(u32, Vec<String>), Vec<u128>>;

const GRANTS: &[Sum] = &[
    memory("granted_gib_seconds", Table::Column(">GRANTED")),
    // As far as NVML told it.
    memory("used_gib_seconds", Table::Column(">USED")),
    // How long it had a grant, in sum of its grants.
    time("seconds", Table::Column(">HOURS")),
    // How much of that NVML told nothing of.
    time(
        "untold_seconds",
        Table::Below("USED is without ", " hours in which NVML did not tell what was used"),
    ),
];

/// The parts are those of `CardMemory`.
const CARDS: &[Sum] = &[
    memory("used_gib_seconds", Table::Column(">USED")),
    memory("containers_gib_seconds", Table::Column(">CONTAINERS")),
    memory("servers_gib_seconds", Table::Column(">SERVERS")),
    memory("others_gib_seconds", Table::Column(">OTHERS")),
    memory("nobody_gib_seconds", Table::Column(">NOBODY")),
    memory(
        "counted_twice_gib_seconds",
        Table::Below(
            "",
            " GiB-hours stand with two processes each: one imported them from the other",
        ),
    ),
    time("seconds", Table::Column(">HOURS")),
    time("untold_seconds", Table::Nowhere),
];

const fn memory(name: &'static str, table: Table) -> Sum {
    Sum { name, unit: (GIB_SECOND, "GiB-hours"), table }
}

const fn time(name: &'static str, table: Table) -> Sum {
    Sum { name, unit: (1000.0, ""), table }
}

pub(crate) fn run(args: &UsageArgs) -> Result<ExitCode, CliError> {
    print::answer(&answer(&days(args)?, args.by, args.output)?)?;
    Ok(ExitCode::Done)
}

/// The days that were asked for, in order.
fn days(args: &UsageArgs) -> Result<Vec<UsageDay>, UsageError> {
    let read = |source| UsageError::Read { path: args.directory.clone(), source };
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for entry in std::fs::read_dir(&args.directory).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"));
        if let Some(day) = name.map(str::to_owned) {
            found.insert(day, path);
        }
    }
    let last = found.keys().next_back().cloned().unwrap_or_default();
    let to = args.to.clone().unwrap_or_else(|| last.clone());
    let from = args.from.clone().unwrap_or_else(|| last.min(to.clone()));
    let wanted = found.range(from.clone()..).take_while(|(day, _)| **day <= to);
    let days = wanted.map(|(_, path)| load(path)).collect::<Result<Vec<_>, _>>()?;
    if days.is_empty() {
        return Err(UsageError::None { days: format!("{from} to {to}") });
    }
    Ok(days)
}

fn load(path: &Path) -> Result<UsageDay, UsageError> {
    let bytes =
        std::fs::read(path).map_err(|source| UsageError::Read { path: path.to_owned(), source })?;
    UsageDay::parse(&bytes).map_err(|source| UsageError::Content { path: path.to_owned(), source })
}

fn answer(days: &[UsageDay], by: UsageBy, output: UsageOutput) -> Result<String, CliError> {
    let names: &[&str] = match by {
        UsageBy::Container => &["NAMESPACE", "POD", "CONTAINER"],
        UsageBy::Pod => &["NAMESPACE", "POD"],
        UsageBy::Namespace => &["NAMESPACE"],
        UsageBy::User => &["UID"],
        UsageBy::Gpu => &["GPU", "UUID"],
    };
    let (form, rows) = match by {
        UsageBy::Gpu => (Form { names, before: 1, sums: CARDS }, of_cards(days)),
        _ => (Form { names, before: names.len(), sums: GRANTS }, of_grants(days, by, names.len())),
    };
    match output {
        UsageOutput::Json => json(days, &form, rows),
        UsageOutput::Csv => Ok(csv(&form, &rows)),
        UsageOutput::Table => Ok(title(days) + &table(&form, &rows)),
    }
}

fn of_grants(days: &[UsageDay], by: UsageBy, names: usize) -> Rows {
    let grants = days.iter().flat_map(|day| day.grants.values());
    add_up(grants.map(|grant| {
        let pod = grant.pod.as_ref().map(|pod| (plain(&pod.namespace), plain(&pod.pod)));
        let (namespace, pod) = pod.unwrap_or_default();
        let all = match by {
            UsageBy::User => vec![grant.uid.to_string()],
            _ => vec![namespace, pod, plain(&grant.container_id)],
        };
        let untold = grant.looked_ms.saturating_sub(grant.told_ms);
        let parts = vec![grant.granted, grant.used, grant.looked_ms, untold];
        ((0, all.into_iter().take(names).collect()), parts)
    }))
}

fn of_cards(days: &[UsageDay]) -> Rows {
    let cards = days.iter().flat_map(|day| &day.cards);
    add_up(cards.map(|(uuid, card)| {
        let CardUsage { index, memory, looked_ms, told_ms } = *card;
        let CardMemory { used, containers, servers, others, nobody, counted_twice } = memory;
        let untold = looked_ms.saturating_sub(told_ms);
        let parts =
            vec![used, containers, servers, others, nobody, counted_twice, looked_ms, untold];
        ((index, vec![index.to_string(), plain(uuid)]), parts)
    }))
}

fn add_up(all: impl Iterator<Item = ((u32, Vec<String>), Vec<u64>)>) -> Rows {
    let mut rows = Rows::new();
    for (names, parts) in all {
        let sums = rows.entry(names).or_insert_with(|| vec![0; parts.len()]);
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += u128::from(part));
    }
    rows
}

impl Sum {
    /// Whole numbers are added up; only the sums become floats.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a day has 1.7e16 at most, a float 9e15 exactly"
    )]
    fn seconds(&self, sum: u128) -> f64 {
        sum as f64 / self.unit.0
    }

    fn hours(&self, sum: u128) -> String {
        format!("{:.2}", self.seconds(sum) / HOUR)
    }
}

fn json(days: &[UsageDay], form: &Form, rows: Rows) -> Result<String, CliError> {
    #[derive(Serialize)]
    struct Document {
        schema: u32,
        from: String,
        to: String,
        rows: Vec<Map<String, Value>>,
    }
    let row = |((index, names), sums): ((u32, Vec<String>), Vec<u128>)| {
        let names = form.names.iter().zip(names).map(|(name, value)| match *name {
            "GPU" => ("gpu".to_owned(), json!(index)),
            name => (name.to_lowercase(), json!(value)),
        });
        // In the order of the alphabet.
        let names: BTreeMap<_, _> = names.collect();
        let sums = form.sums.iter().zip(sums);
        let sums = sums.map(|(sum, value)| (sum.name.to_owned(), json!(sum.seconds(value))));
        names.into_iter().chain(sums).collect()
    };
    let rows = rows.into_iter().map(row).collect();
    Ok(print::json(&Document { schema: SCHEMA, from: first(days), to: last(days), rows })?)
}

fn csv(form: &Form, rows: &Rows) -> String {
    let names = form.names.iter().map(|name| name.to_lowercase());
    let head = names.chain(form.sums.iter().map(|sum| sum.name.to_owned()));
    let row = |((_, names), sums): (&(u32, Vec<String>), &Vec<u128>)| {
        let names = names.iter().map(|name| cell(name));
        let sums = form.sums.iter().zip(sums).map(|(sum, &value)| sum.seconds(value));
        names.chain(sums.map(|number| format!("{number:.3}"))).collect::<Vec<_>>().join(",") + "\n"
    };
    head.collect::<Vec<_>>().join(",") + "\n" + &rows.iter().map(row).collect::<String>()
}

fn table(form: &Form, rows: &Rows) -> String {
    let (before, after) = form.names.split_at(form.before);
    let shown = form.sums.iter().filter_map(|sum| match sum.table {
        Table::Column(title) => Some((title, sum.unit.1)),
        Table::Below(..) | Table::Nowhere => None,
    });
    let named = |names: &[&'static str]| names.iter().map(|name| (*name, "")).collect::<Vec<_>>();
    let heads: Vec<_> = named(before).into_iter().chain(shown).chain(named(after)).collect();
    let mut table = Columns::new(&heads);
    for ((_, names), sums) in rows {
        let sums = form.sums.iter().zip(sums);
        let sums = sums.filter(|(sum, _)| matches!(sum.table, Table::Column(_)));
        let (before, after) = names.split_at(form.before);
        let name = |name: &String| match name.as_str() {
            "" => "-".to_owned(),
            name => short_id(name).to_owned(),
        };
        let cells = before.iter().map(name).chain(sums.map(|(sum, &value)| sum.hours(value)));
        table.row(cells.chain(after.iter().map(name)).collect());
    }
    let mut text = table.render();
    for (at, sum) in form.sums.iter().enumerate() {
        let in_all: u128 = rows.values().filter_map(|sums| sums.get(at)).sum();
        if let Table::Below(before, after) = sum.table
            && in_all > 0
        {
            let _ = writeln!(text, "{before}{}{after}", sum.hours(in_all));
        }
    }
    text
}

fn title(days: &[UsageDay]) -> String {
    let (from, to) = (first(days), last(days));
    if from == to { format!("{from} (UTC)\n\n") } else { format!("{from} to {to} (UTC)\n\n") }
}

fn first(days: &[UsageDay]) -> String {
    days.first().map(|day| plain(&day.day)).unwrap_or_default()
}

fn last(days: &[UsageDay]) -> String {
    days.last().map(|day| plain(&day.day)).unwrap_or_default()
}

/// A cell of CSV (RFC 4180). One that a spreadsheet would take for a formula begins with a quote.
fn cell(text: &str) -> String {
    let text =
        if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests;
