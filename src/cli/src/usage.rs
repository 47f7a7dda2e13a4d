//! `mpsgate usage`: what was granted and used over days, added up.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use mpsgate_api::{CardUsage, GrantUsage, UsageDay};
use mpsgate_edge::{ExitCode, print};
use mpsgate_model::printable::plain;
use serde::Serialize;

use crate::CliError;
use crate::args::{UsageArgs, UsageBy, UsageOutput};
use crate::error::UsageError;
use crate::status::columns::Columns;
use crate::status::short_id;

/// Version of the JSON document, as in `mpsgate status`.
const SCHEMA: u32 = 1;
/// KiB times milliseconds in a GiB times a second, and times an hour.
const GIB_SECOND: f64 = 1_048_576_000.0;
const GIB_HOUR: f64 = GIB_SECOND * 3600.0;

/// Some of a node's grants, added up.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Sum {
    granted_gib_seconds: f64,
    /// As far as NVML told it.
    used_gib_seconds: f64,
    /// How long it had a grant, in sum of its grants.
    seconds: f64,
    /// How much of that NVML told nothing of.
    untold_seconds: f64,
}

/// A card's memory, added up; the parts are those of `CardMemory`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct CardSum {
    used_gib_seconds: f64,
    containers_gib_seconds: f64,
    servers_gib_seconds: f64,
    others_gib_seconds: f64,
    nobody_gib_seconds: f64,
    counted_twice_gib_seconds: f64,
    seconds: f64,
    untold_seconds: f64,
}

pub(crate) fn run(args: &UsageArgs) -> Result<ExitCode, CliError> {
    let days = days(args)?;
    let text = match args.by {
        UsageBy::Gpu => by_card(&days, args.output)?,
        by => by_grant(&days, by, args.output)?,
    };
    print::answer(&text)?;
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

/// Whole numbers are added up; only the sums become floats.
#[expect(clippy::cast_precision_loss, reason = "a day has 1.7e16 at most, a float 9e15 exactly")]
fn scaled(kib_ms: u128, unit: f64) -> f64 {
    kib_ms as f64 / unit
}

fn seconds(ms: u128) -> f64 {
    scaled(ms, 1000.0)
}

fn by_grant(days: &[UsageDay], by: UsageBy, output: UsageOutput) -> Result<String, CliError> {
    let key = |grant: &GrantUsage| -> [String; 3] {
        let pod = |of: fn(&mpsgate_model::PodContainer) -> &String| {
            grant.pod.as_ref().map(|pod| plain(of(pod))).unwrap_or_default()
        };
        let (namespace, name) = (pod(|pod| &pod.namespace), pod(|pod| &pod.pod));
        match by {
            UsageBy::Container => [namespace, name, plain(&grant.container_id)],
            UsageBy::Pod => [namespace, name, String::new()],
            UsageBy::Namespace => [namespace, String::new(), String::new()],
            UsageBy::User => [grant.uid.to_string(), String::new(), String::new()],
            UsageBy::Gpu => [plain(&grant.card), String::new(), String::new()],
        }
    };
    let mut sums: BTreeMap<[String; 3], [u128; 4]> = BTreeMap::new();
    for grant in days.iter().flat_map(|day| day.grants.values()) {
        let sum = sums.entry(key(grant)).or_default();
        let untold = grant.looked_ms.saturating_sub(grant.told_ms);
        for (sum, part) in sum.iter_mut().zip([grant.granted, grant.used, grant.looked_ms, untold])
        {
            *sum += u128::from(part);
        }
    }
    let names: &[&'static str] = match by {
        UsageBy::Container => &["NAMESPACE", "POD", "CONTAINER"],
        UsageBy::Pod => &["NAMESPACE", "POD"],
        UsageBy::Namespace => &["NAMESPACE"],
        UsageBy::User => &["UID"],
        UsageBy::Gpu => &["GPU"],
    };
    let sum = |[granted, used, looked, untold]: [u128; 4]| Sum {
        granted_gib_seconds: scaled(granted, GIB_SECOND),
        used_gib_seconds: scaled(used, GIB_SECOND),
        seconds: seconds(looked),
        untold_seconds: seconds(untold),
    };
    match output {
        UsageOutput::Json => {
            #[derive(Serialize)]
            struct Row {
                #[serde(flatten)]
                name: BTreeMap<String, String>,
                #[serde(flatten)]
                sum: Sum,
            }
            let rows: Vec<Row> = sums
                .into_iter()
                .map(|(key, parts)| {
                    let name = names.iter().zip(key);
                    let name = name.map(|(name, value)| (name.to_lowercase(), value)).collect();
                    Row { name, sum: sum(parts) }
                })
                .collect();
            document(days, rows)
        }
        UsageOutput::Csv => {
            let mut text = csv_head(
                names,
                &["granted_gib_seconds", "used_gib_seconds", "seconds", "untold_seconds"],
            );
            for (key, parts) in sums {
                let Sum { granted_gib_seconds, used_gib_seconds, seconds, untold_seconds } =
                    sum(parts);
                let names = key.iter().take(names.len()).map(|name| csv(name)).collect::<Vec<_>>();
                let _ = writeln!(
                    text,
                    "{},{granted_gib_seconds:.3},{used_gib_seconds:.3},{seconds:.3},{untold_seconds:.3}",
                    names.join(",")
                );
            }
            Ok(text)
        }
        UsageOutput::Table => {
            let numbers = [(">GRANTED", "GiB-hours"), (">USED", "GiB-hours"), (">HOURS", "")];
            let columns: Vec<_> = names.iter().map(|name| (*name, "")).chain(numbers).collect();
            let mut table = Columns::new(&columns);
            let mut untold_in_all = 0;
            for (key, [granted, used, looked, untold]) in sums {
                untold_in_all += untold;
                let names = key.iter().take(names.len()).map(|name| match name.as_str() {
                    "" => "-".to_owned(),
                    name => short_id(name).to_owned(),
                });
                let numbers =
                    [scaled(granted, GIB_HOUR), scaled(used, GIB_HOUR), seconds(looked) / 3600.0];
                table.row(names.chain(numbers.map(|number| format!("{number:.2}"))).collect());
            }
            let mut text = title(days) + &table.render();
            if untold_in_all > 0 {
                let hours = seconds(untold_in_all) / 3600.0;
                let _ = writeln!(
                    text,
                    "USED is without {hours:.2} hours in which NVML did not tell what was used"
                );
            }
            Ok(text)
        }
    }
}

fn by_card(days: &[UsageDay], output: UsageOutput) -> Result<String, CliError> {
    let parts = |card: &CardUsage| {
        let memory = &card.memory;
        let untold = card.looked_ms.saturating_sub(card.told_ms);
        [
            memory.used,
            memory.containers,
            memory.servers,
            memory.others,
            memory.nobody,
            memory.counted_twice,
            card.looked_ms,
            untold,
        ]
    };
    let mut sums: BTreeMap<(u32, &str), [u128; 8]> = BTreeMap::new();
    for (uuid, card) in days.iter().flat_map(|day| &day.cards) {
        let sum = sums.entry((card.index, uuid.as_str())).or_default();
        sum.iter_mut().zip(parts(card)).for_each(|(sum, part)| *sum += u128::from(part));
    }
    let sum =
        |[used, containers, servers, others, nobody, twice, looked, untold]: [u128; 8]| CardSum {
            used_gib_seconds: scaled(used, GIB_SECOND),
            containers_gib_seconds: scaled(containers, GIB_SECOND),
            servers_gib_seconds: scaled(servers, GIB_SECOND),
            others_gib_seconds: scaled(others, GIB_SECOND),
            nobody_gib_seconds: scaled(nobody, GIB_SECOND),
            counted_twice_gib_seconds: scaled(twice, GIB_SECOND),
            seconds: seconds(looked),
            untold_seconds: seconds(untold),
        };
    match output {
        UsageOutput::Json => {
            #[derive(Serialize)]
            struct Row {
                gpu: u32,
                uuid: String,
                #[serde(flatten)]
                sum: CardSum,
            }
            let rows = sums.into_iter().map(|((gpu, uuid), parts)| Row {
                gpu,
                uuid: plain(uuid),
                sum: sum(parts),
            });
            document(days, rows.collect())
        }
        UsageOutput::Csv => {
            let parts = [
                "used_gib_seconds",
                "containers_gib_seconds",
                "servers_gib_seconds",
                "others_gib_seconds",
                "nobody_gib_seconds",
                "counted_twice_gib_seconds",
                "seconds",
                "untold_seconds",
            ];
            let mut text = csv_head(&["GPU", "UUID"], &parts);
            for ((gpu, uuid), parts) in sums {
                let mut cells = vec![gpu.to_string(), csv(&plain(uuid))];
                let (memory, time) = parts.split_at(6);
                cells.extend(memory.iter().map(|part| format!("{:.3}", scaled(*part, GIB_SECOND))));
                cells.extend(time.iter().map(|ms| format!("{:.3}", seconds(*ms))));
                let _ = writeln!(text, "{}", cells.join(","));
            }
            Ok(text)
        }
        UsageOutput::Table => {
            let mut table = Columns::new(&[
                ("GPU", ""),
                (">USED", "GiB-hours"),
                (">CONTAINERS", "GiB-hours"),
                (">SERVERS", "GiB-hours"),
                (">OTHERS", "GiB-hours"),
                (">NOBODY", "GiB-hours"),
                (">HOURS", ""),
                ("UUID", ""),
            ]);
            let mut twice_in_all = 0;
            for ((gpu, uuid), parts) in sums {
                let [used, containers, servers, others, nobody, twice, looked, _] = parts;
                twice_in_all += twice;
                let mut cells = vec![gpu.to_string()];
                cells.extend(
                    [used, containers, servers, others, nobody]
                        .map(|part| format!("{:.2}", scaled(part, GIB_HOUR))),
                );
                cells.extend([format!("{:.2}", seconds(looked) / 3600.0), plain(uuid)]);
                table.row(cells);
            }
            let mut text = title(days) + &table.render();
            if twice_in_all > 0 {
                let hours = scaled(twice_in_all, GIB_HOUR);
                let _ = writeln!(
                    text,
                    "{hours:.2} GiB-hours stand with two processes each: one imported them from the other"
                );
            }
            Ok(text)
        }
    }
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

fn document<R: Serialize>(days: &[UsageDay], rows: Vec<R>) -> Result<String, CliError> {
    #[derive(Serialize)]
    struct Document<R> {
        schema: u32,
        from: String,
        to: String,
        rows: Vec<R>,
    }
    Ok(print::json(&Document { schema: SCHEMA, from: first(days), to: last(days), rows })?)
}

fn csv_head(names: &[&str], numbers: &[&str]) -> String {
    let names = names.iter().map(|name| name.to_lowercase());
    names.chain(numbers.iter().map(|&number| number.to_owned())).collect::<Vec<_>>().join(",")
        + "\n"
}

/// A cell of CSV (RFC 4180). One that a spreadsheet would take for a formula begins with a quote.
fn csv(text: &str) -> String {
    let text =
        if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests;
