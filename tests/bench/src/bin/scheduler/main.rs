//! `make bench-scheduler`: what mpsgate-scheduler and its ledger cost with 5,000 nodes of 8 cards
//! and 100,000 pods, what one hostile question costs the next, and how well it packs.
//!
//! Needs no root, no node and no API server: the ledger is pure, and the program reads lists that
//! are made here.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

mod api;
mod hostile;
mod http;
#[path = "../../../../../src/scheduler/tests/webhook/long.rs"]
mod long;
#[path = "../../machine.rs"]
mod machine;
mod objects;
mod packing;
mod random;
mod scale;
mod workload;

/// Ends the program with its text; nothing here is handled.
type Failure = Box<dyn Error>;

const USAGE: &str = "usage: mpsgate-bench-scheduler [--seeds N] [--nodes N] [--check] [--program FILE] [--scale | --packing] [--trace NODES.csv PODS.csv]
  --seeds N   runs of each packing (5)
  --nodes N   nodes of the generated cluster for packing (200)
  --check     exit status 1 where a budget is not met
  --program   mpsgate-scheduler (the one beside this program)
  --scale     only latency, hostile questions, memory and rebuild
  --packing   only packing
  --trace     also packing of a public trace, in the format of cluster-trace-gpu-v2023 of github.com/alibaba/clusterdata";

struct Options {
    seeds: u64,
    nodes: usize,
    check: bool,
    scale: bool,
    packing: bool,
    program: Option<PathBuf>,
    trace: Option<(PathBuf, PathBuf)>,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self {
            seeds: 5,
            nodes: 200,
            check: false,
            scale: true,
            packing: true,
            program: None,
            trace: None,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seeds" => options.seeds = args.next()?.parse().ok().filter(|n| *n > 0)?,
                "--nodes" => options.nodes = args.next()?.parse().ok().filter(|n| *n > 0)?,
                "--check" => options.check = true,
                "--program" => options.program = Some(args.next()?.into()),
                "--scale" => options.packing = false,
                "--packing" => options.scale = false,
                "--trace" => options.trace = Some((args.next()?.into(), args.next()?.into())),
                _ => return None,
            }
        }
        (options.scale || options.packing).then_some(options)
    }
}

fn main() -> ExitCode {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    match bench(&options) {
        Ok(met) if met || !options.check => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn bench(options: &Options) -> Result<bool, Failure> {
    println!("{}", machine::machine());
    let mut met = true;
    if options.scale {
        eprintln!("making nodes and pods");
        let (nodes, pods) = scale::lists()?;
        scale::table(&nodes, &pods)?;
        let beside = || std::env::current_exe().map(|own| own.with_file_name("mpsgate-scheduler"));
        let program = options.program.clone().map_or_else(beside, Ok)?;
        met = http::table(&program, nodes, pods)?;
    }
    if options.packing {
        println!("\ngenerated workload: {}", workload::HOW);
        packing::table(&workload::generated(options.nodes, 1), options.seeds);
    }
    if let Some((nodes, pods)) = &options.trace {
        packing::table(&workload::trace(nodes, pods)?, options.seeds);
    }
    Ok(met)
}
