//! The figures as a table for people and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cases::{LIVE_GRANTS, Row};
use crate::count::Instructions;
use crate::hostile;
use crate::node::Memory;
use crate::reserve::{CLIENTS, Outcome};
use crate::start::{Start, median};
use crate::watchdog::Watchdog;

/// Largest programs, in bytes.
const PROGRAM_BYTES: u64 = 1_000_000;
/// Fewest reservations in a second.
const RATE: f64 = 500.0;
/// Most resident memory of the daemon, in KiB.
const RESIDENT_KIB: u64 = 30 * 1024;
/// Most CPU time of the idle daemon, in percent of a core.
const IDLE_PERCENT: f64 = 1.0;
/// Most CPU time of the watchdog with a GPU process for each grant, beside NVML's own, in percent
/// of a core.
const WATCHDOG_PERCENT: f64 = 2.0;
/// Longest time from the first look that shows an overrun to the container's end: a look comes each
/// second, two have to agree, and what is written just after a look waits for the next.
const OVERRUN: Duration = Duration::from_secs(3);

/// All that was measured.
pub(crate) struct Report {
    pub(crate) machine: String,
    /// How the program in runc's place is linked.
    pub(crate) dynamic: bool,
    pub(crate) how: Instructions,
    pub(crate) rows: Vec<Row>,
    pub(crate) hostile: Vec<hostile::Row>,
    /// Names and bytes.
    pub(crate) programs: Vec<(&'static str, u64)>,
    pub(crate) rate_empty: Outcome,
    pub(crate) rate_full: Outcome,
    pub(crate) starts: Vec<Start>,
    pub(crate) memory_empty: Memory,
    pub(crate) memory_full: Memory,
    pub(crate) idle_percent: f64,
    pub(crate) watchdog: Watchdog,
}

/// Cases beside their floors.
pub(crate) fn print_rows(rows: &[Row]) {
    println!(
        "\neach case in turns with a static program that only execs (the floor); µs, means of CPU\n"
    );
    println!(
        "{:32} {:>5} {:>8} {:>8} {:>8} {:>8} {:>6}   {:>13} {:>17} {:>9}",
        "case",
        "runs",
        "floor50",
        "p50",
        "floor90",
        "p90",
        "ratio",
        "cpu floor/it",
        "instr. floor/it",
        "calls"
    );
    for row in rows {
        println!(
            "{:32} {:>5} {:>8} {:>8} {:>8} {:>8} {:>6.2}   {:>13} {:>17} {:>9}",
            row.name,
            row.times.runs(),
            row.floor.percentile(50).as_micros(),
            row.times.percentile(50).as_micros(),
            row.floor.percentile(90).as_micros(),
            row.times.percentile(90).as_micros(),
            row.ratio(),
            format!(
                "{}/{}",
                row.floor.cpu_per_run().as_micros(),
                row.times.cpu_per_run().as_micros()
            ),
            format!("{}/{}", row.floor_counts.instructions, row.counts.instructions),
            format!("{}/{}", row.floor_counts.syscalls, row.counts.syscalls),
        );
    }
}

/// The table of starts.
pub(crate) fn print_starts(starts: &[Start]) {
    println!("\nmpsgated, from exec to READY=1; the floor only says READY=1; ms\n");
    println!("{:>5} {:>8} {:>8} {:>8} {:>8}", "cards", "floor50", "first", "again50", "worst");
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    for Start { cards, first, again, floor } in starts {
        let worst = again.last().copied().unwrap_or_default();
        let [floor, first, again, worst] = [median(floor), *first, median(again), worst].map(ms);
        println!("{cards:>5} {floor:>8} {first:>8} {again:>8} {worst:>8}");
    }
}

/// The table of hostile documents.
pub(crate) fn print_hostile(rows: &[hostile::Row]) {
    println!(
        "\nhostile documents, decided without a daemon and stripped; the peak is the largest so far\n"
    );
    println!("{:32} {:>10} {:>8} {:>10}", "document", "bytes", "ms", "peak KiB");
    for hostile::Row { name, bytes, time, peak_kib } in rows {
        println!("{name:32} {bytes:>10} {:>8} {peak_kib:>10}", time.as_millis());
    }
}

struct Verdict {
    what: String,
    figure: String,
    budget: String,
    met: bool,
}

impl Report {
    /// Prints everything; whether all budgets are met.
    pub(crate) fn print(&self) -> bool {
        println!("{}", self.machine);
        println!("in runc's place: a {} program that does nothing", self.linking());
        match self.how {
            Instructions::Hardware => println!("instructions: user and kernel, hardware counter"),
            Instructions::Steps(error) => println!(
                "instructions: user space by single steps (no hardware counter here: {error}); \
                 CPU time and system calls stand for the kernel's part"
            ),
        }
        print_rows(&self.rows);
        print_hostile(&self.hostile);
        print_starts(&self.starts);
        println!("\nmpsgated, memory with 8 cards; KiB\n");
        for (grants, memory) in [(0, self.memory_empty), (LIVE_GRANTS, self.memory_full)] {
            let Memory { resident_kib, private_kib } = memory;
            println!("{grants:>5} grants: {resident_kib} resident, {private_kib} of them its own");
        }
        println!("\nbudgets");
        let verdicts = self.verdicts();
        for v in &verdicts {
            let word = if v.met { "PASS" } else { "FAIL" };
            println!("  {word}  {:44} {:>12}   budget {}", v.what, v.figure, v.budget);
        }
        verdicts.iter().all(|v| v.met)
    }

    fn linking(&self) -> &'static str {
        if self.dynamic { "dynamic" } else { "static" }
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let mut all = Vec::new();
        for row in &self.rows {
            let Some(budget) = row.budget else { continue };
            all.push(Verdict {
                what: format!("{}: times the floor at p50", row.name),
                figure: format!("{:.2}", row.ratio()),
                budget: format!("{budget:.1}"),
                met: row.ratio() <= budget,
            });
        }
        for row in &self.hostile {
            all.push(Verdict {
                what: format!("{}: ms, KiB", row.name),
                figure: format!("{}, {}", row.time.as_millis(), row.peak_kib),
                budget: format!("{}, {}", hostile::TIME.as_millis(), hostile::MEMORY_KIB),
                met: row.is_within(),
            });
        }
        for (name, bytes) in &self.programs {
            all.push(Verdict {
                what: format!("{name}: bytes"),
                figure: bytes.to_string(),
                budget: PROGRAM_BYTES.to_string(),
                met: *bytes <= PROGRAM_BYTES,
            });
        }
        let empty = "reservations/s, no grants".to_owned();
        let full = format!("reservations/s, {LIVE_GRANTS} grants");
        for (what, outcome) in [(empty, self.rate_empty), (full, self.rate_full)] {
            let lost = outcome.refused + outcome.failed;
            let lost = if lost == 0 { String::new() } else { format!(" ({lost} lost)") };
            all.push(Verdict {
                what: format!("{what}, {CLIENTS} at once"),
                figure: format!("{:.0}{lost}", outcome.rate()),
                budget: format!("{RATE:.0}, none lost"),
                met: outcome.rate() >= RATE && lost.is_empty(),
            });
        }
        all.push(Verdict {
            what: format!("mpsgated resident, 8 cards, {LIVE_GRANTS} grants: KiB"),
            figure: self.memory_full.resident_kib.to_string(),
            budget: RESIDENT_KIB.to_string(),
            met: self.memory_full.resident_kib <= RESIDENT_KIB,
        });
        all.push(Verdict {
            what: format!("mpsgated idle, {LIVE_GRANTS} grants: % of a core"),
            figure: format!("{:.2}", self.idle_percent),
            budget: format!("{IDLE_PERCENT:.0}"),
            met: self.idle_percent < IDLE_PERCENT,
        });
        let Watchdog { listed_percent, watched_percent, actions } = &self.watchdog;
        let own = watched_percent - listed_percent;
        all.push(Verdict {
            what: format!("watchdog, {LIVE_GRANTS} processes: % of a core"),
            figure: format!("{own:.2}"),
            budget: format!("{WATCHDOG_PERCENT:.0} (simulated NVML besides: {listed_percent:.2})"),
            met: own < WATCHDOG_PERCENT,
        });
        all.push(Verdict {
            what: format!("overrun to the container's end, worst of {}: ms", actions.len()),
            figure: self.watchdog.worst().as_millis().to_string(),
            budget: OVERRUN.as_millis().to_string(),
            met: self.watchdog.worst() <= OVERRUN,
        });
        all
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let rows = self.rows.iter().map(|row| {
            json!({
                "case": row.name, "runs": row.times.runs(), "budget": row.budget, "ratio": row.ratio(),
                "floor_p50_us": us(row.floor.percentile(50)), "floor_p90_us": us(row.floor.percentile(90)),
                "p50_us": us(row.times.percentile(50)), "p90_us": us(row.times.percentile(90)),
                "floor_cpu_us": us(row.floor.cpu_per_run()), "cpu_us": us(row.times.cpu_per_run()),
                "floor_instructions": row.floor_counts.instructions,
                "instructions": row.counts.instructions,
                "floor_syscalls": row.floor_counts.syscalls, "syscalls": row.counts.syscalls,
            })
        });
        let rate = |outcome: Outcome| {
            json!({
                "per_second": outcome.rate(), "clients": CLIENTS,
                "granted": outcome.granted, "refused": outcome.refused, "failed": outcome.failed
            })
        };
        let verdicts = self.verdicts();
        json!({
            "format": 1,
            "machine": self.machine,
            "runtime": self.linking(),
            "instructions_include_kernel": self.how == Instructions::Hardware,
            "cases": rows.collect::<Vec<_>>(),
            "hostile": self.hostile.iter().map(|row| json!({
                "document": row.name, "bytes": row.bytes, "us": us(row.time), "peak_kib": row.peak_kib,
            })).collect::<Vec<_>>(),
            "program_bytes": self.programs.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
            "reservations": {"no_grants": rate(self.rate_empty), "live_grants": rate(self.rate_full)},
            "live_grants": LIVE_GRANTS,
            "mpsgated_starts": self.starts.iter().map(|start| json!({
                "cards": start.cards, "first_us": us(start.first), "floor_p50_us": us(median(&start.floor)),
                "again_us": start.again.iter().map(|time| us(*time)).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "mpsgated_resident_kib": self.memory_full.resident_kib,
            "mpsgated_private_kib": self.memory_full.private_kib,
            "mpsgated_resident_empty_kib": self.memory_empty.resident_kib,
            "mpsgated_private_empty_kib": self.memory_empty.private_kib,
            "mpsgated_idle_percent": self.idle_percent,
            "watchdog_listed_percent": self.watchdog.listed_percent,
            "watchdog_watched_percent": self.watchdog.watched_percent,
            "watchdog_overrun_to_end_ms":
                self.watchdog.actions.iter().map(|time| us(*time) / 1e3).collect::<Vec<_>>(),
            "budgets_met": verdicts.iter().all(|v| v.met),
        })
    }
}
