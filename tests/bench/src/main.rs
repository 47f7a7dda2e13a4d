//! `mpsgate-bench`: what mpsgate costs, as ratios to a static program that only execs.
//!
//! Started by `tests/bench/run` inside `tests/env/sandbox.sh`, because mpsgate's paths are fixed.
//! What the shim hands over to is a program that does nothing, so that only our own part is
//! measured; everything lies on a tmpfs. Each case runs in turns with the floor, in one run, so
//! that whatever else the machine does hits both.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cases::{Bench, idle_percent};
use crate::count::Instructions;
use crate::node::{Node, wait_until_left};
use crate::report::Report;

mod cases;
mod count;
mod fixture;
mod gate;
mod hostile;
mod machine;
mod measure;
mod node;
mod report;
mod reserve;
mod start;
mod watchdog;

/// Ends the program with its text; nothing here is handled.
type Failure = Box<dyn Error>;

const USAGE: &str =
    "usage: tests/bench/run [--runs N] [--json FILE] [--check] [--dynamic] [--starts] [--idle] [--hostile]
                       [--granted] [--gate]
  --runs N     runs of each case and of its floor (2000); half as many attaches, in rounds of 100
  --json FILE  write the figures there, too
  --check      exit status 1 where a budget is not met
  --starts     only mpsgated's start and its memory without grants
  --idle       only the daemon beside grants that do nothing
  --hostile    only the documents that are meant to cost much
  --granted    only a container with a grant, created and killed
  --gate       only what the gate adds to an attach
  --dynamic    what is exec'd in runc's place is linked dynamically, as Debian's runc and crun are
MPSGATE_BENCH_NVIDIA_RUNTIME=FILE  nvidia-container-runtime, measured beside";

/// What stands in for the peer where it is not given.
const PEER_RECORDED: &str = "nvidia-container-runtime: not measured; it is not in Debian's packages, so its binary has to be \
     given in MPSGATE_BENCH_NVIDIA_RUNTIME.
  Recorded: version 1.20, 9 KB config.json, 6.0 ms against a floor of 1.0 ms: 6.2 times.";

/// Where things lie.
struct Workplace {
    /// On a tmpfs, at a short path.
    scratch: PathBuf,
    /// What `make build` made.
    products: PathBuf,
}

impl Workplace {
    /// Copies the programs onto the tmpfs, so that all start from the same place.
    fn prepare(dynamic: bool) -> Result<Self, Failure> {
        let variable = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .ok_or_else(|| format!("{name} is not set: use tests/bench/run"))
        };
        let at = Self { scratch: variable("MG")?, products: variable("MG_OUT")? };
        let yardsticks = variable("MG_YARDSTICKS")?;
        let stand_ins = if dynamic { variable("MG_DYNAMIC")? } else { yardsticks.clone() };
        std::fs::create_dir_all(at.scratch.join("bin"))?;
        for (from, name) in [
            (&at.products, "mpsgate-runtime"),
            (&at.products, "mpsgate-hook"),
            (&yardsticks, "exec-floor"),
            (&stand_ins, "stand-in-runtime"),
        ] {
            let from = from.join(name);
            std::fs::copy(&from, at.program(name))
                .map_err(|e| format!("{}: {e}", from.display()))?;
        }
        Ok(at)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.scratch.join("bin").join(name)
    }

    fn floor(&self) -> PathBuf {
        self.program("exec-floor")
    }

    fn runtime(&self) -> PathBuf {
        self.program("stand-in-runtime")
    }
}

struct Options {
    runs: usize,
    json: Option<PathBuf>,
    check: bool,
    dynamic: bool,
    starts: bool,
    idle: bool,
    hostile: bool,
    granted: bool,
    gate: bool,
}

impl Options {
    fn parse(args: &[String]) -> Option<Self> {
        let mut options = Self {
            runs: 2000,
            json: None,
            check: false,
            dynamic: false,
            starts: false,
            idle: false,
            hostile: false,
            granted: false,
            gate: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--runs" => options.runs = args.next()?.parse().ok().filter(|runs| *runs > 0)?,
                "--json" => options.json = Some(args.next()?.into()),
                "--check" => options.check = true,
                "--starts" => options.starts = true,
                "--idle" => options.idle = true,
                "--hostile" => options.hostile = true,
                "--granted" => options.granted = true,
                "--gate" => options.gate = true,
                "--dynamic" => options.dynamic = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, number] = args.as_slice()
        && first == reserve::CLIENT
    {
        return finish(reserve::client(number).map(|()| true));
    }
    if let [first] = args.as_slice()
        && first == start::FLOOR
    {
        return finish(start::ready_at_once().map(|()| true));
    }
    let Some(options) = Options::parse(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    finish(bench(&options).map(|met| met || !options.check))
}

fn finish(done: Result<bool, Failure>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn bench(options: &Options) -> Result<bool, Failure> {
    let at = Workplace::prepare(options.dynamic)?;
    let how = Instructions::of_this_machine();
    let bench = Bench { at: &at, rounds: options.runs, how };
    if options.idle {
        let node = Node::start(&at)?;
        let _live = bench.live_grants()?;
        println!("idle, {} % of a core; {:?}", idle_percent(&node)?, node.memory()?);
        return Ok(true);
    }
    if options.gate {
        return Ok(gate::measure(&at, options.runs)?.print());
    }
    if options.granted {
        let node = Node::start(&at)?;
        let neighbours = bench.neighbours()?;
        report::print_rows(&[bench.granted()?, bench.kill_granted()?]);
        drop((neighbours, node));
        return Ok(true);
    }
    let hostile = hostile::measure(&at)?;
    if options.hostile {
        report::print_hostile(&hostile);
        return Ok(hostile.iter().all(hostile::Row::is_within));
    }
    let starts = start::measure(&at)?;
    let node = Node::start(&at)?;
    let memory_empty = node.memory()?;
    if options.starts {
        report::print_starts(&starts);
        println!("\n8 cards, no grants: {memory_empty:?}");
        return Ok(true);
    }

    let mut rows = bench.pass_through()?;
    let neighbours = bench.neighbours()?;
    rows.push(bench.granted()?);
    rows.push(bench.kill_granted()?);
    rows.extend(bench.hook()?);
    drop(neighbours);
    let peer = std::env::var_os("MPSGATE_BENCH_NVIDIA_RUNTIME");
    if let Some(binary) = &peer {
        rows.push(bench.peer(Path::new(binary))?);
    }
    wait_until_left(0)?;
    eprintln!("measuring: reservations");
    let rate_empty = reserve::measure()?;
    wait_until_left(0)?;
    let live = bench.live_grants()?;
    let memory_full = node.memory()?;
    let idle_percent = idle_percent(&node)?;
    eprintln!("measuring: reservations beside the grants");
    let rate_full = reserve::measure()?;
    let watchdog = watchdog::measure(&at, &node, &live)?;
    drop(live);
    wait_until_left(0)?;
    drop(node);
    let gate = gate::measure(&at, options.runs)?;

    let programs = ["mpsgate-runtime", "mpsgate-hook"]
        .into_iter()
        .map(|name| Ok((name, std::fs::metadata(at.program(name))?.len())))
        .collect::<Result<Vec<_>, Failure>>()?;
    let machine = machine::machine();
    let dynamic = options.dynamic;
    let report = Report {
        machine,
        dynamic,
        how,
        rows,
        hostile,
        programs,
        rate_empty,
        rate_full,
        starts,
        memory_empty,
        memory_full,
        idle_percent,
        watchdog,
    };
    let met = report.print() & gate.print();
    if peer.is_none() {
        println!("\n{PEER_RECORDED}");
    }
    if let Some(file) = &options.json {
        std::fs::write(file, format!("{:#}\n", report.json()))?;
    }
    Ok(met)
}
