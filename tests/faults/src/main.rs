//! `mpsgate-faults`: what is left when the product is killed. Started by `tests/faults/run` inside
//! `tests/env/sandbox.sh`, with real runc, NVIDIA's control daemon where it can be had, and
//! simulated cards. Prints TAP; everything that varies comes from a seed, which is printed.
//!
//! - `points`: under churn a process is killed at each crash point; then the node must be whole.
//! - `restarts N`: mpsgated is restarted, killed and upgraded N times; nobody may notice.
//! - `soak N`: N lives of containers, with mpsgated, control daemons and the engine killed at
//!   random.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

mod check;
mod churn;
mod container;
mod daemon;
mod docker;
mod node;
mod points;
mod random;
mod restarts;
mod soak;
mod third;

/// Ends the program with its text; nothing here is handled.
type Failure = Box<dyn Error + Send + Sync>;

/// Where things lie.
#[derive(Debug, Clone)]
pub(crate) struct Workplace {
    /// The sandbox's scratch directory.
    pub(crate) scratch: PathBuf,
    /// The programs under test: what `make build` makes.
    pub(crate) products: PathBuf,
    /// The same programs built with crash points.
    pub(crate) crashing: PathBuf,
    /// The sandbox's cgroup, as runc takes it.
    pub(crate) cgroup: String,
    /// The MPS control daemon.
    pub(crate) control: PathBuf,
    /// The runtime below: runc, or crun.
    pub(crate) runtime: PathBuf,
    /// How much longer waiting may take than on a machine that is not emulated.
    pub(crate) patience: u32,
    /// Repeats a run.
    pub(crate) seed: u64,
}

impl Workplace {
    fn here() -> Result<Self, Failure> {
        let from = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let needed = |name: &str| {
            from(name).ok_or_else(|| format!("{name} is not set: start this with tests/faults/run"))
        };
        let products = PathBuf::from(needed("MG_OUT")?);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let seed = match from("MG_SEED") {
            Some(seed) => seed.parse().map_err(|_| format!("MG_SEED={seed} is no number"))?,
            None => u64::from(now.subsec_nanos()),
        };
        let patience = match from("MG_PATIENCE") {
            Some(times) => {
                times.parse().map_err(|_| format!("MG_PATIENCE={times} is no number"))?
            }
            None => 1,
        };
        Ok(Self {
            runtime: from("MG_REAL_RUNTIME").unwrap_or_else(|| "/usr/sbin/runc".to_owned()).into(),
            patience,
            scratch: needed("MG")?.into(),
            crashing: needed("MG_FAULTS_OUT")?.into(),
            cgroup: needed("MG_CGROUP")?,
            control: from("MG_MPS_CONTROL")
                .map_or_else(|| products.join("fakes/nvidia-cuda-mps-control"), PathBuf::from),
            products,
            seed,
        })
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = Workplace::here().and_then(|at| {
        println!("# {}: MG_SEED={} repeats this run", words.join(" "), at.seed);
        match words.as_slice() {
            ["points"] => points::run(&at),
            ["restarts", count] => restarts::run(&at, count.parse()?),
            ["soak", cycles] => soak::run(&at, cycles.parse()?),
            _ => Err("usage: tests/faults/run points|restarts N|soak N".into()),
        }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("Bail out! {error}");
            if let Ok(scratch) = std::env::var("MG") {
                println!(
                    "#   {}",
                    points::last_lines(&PathBuf::from(scratch).join("log/mpsgated.log"))
                );
            }
            ExitCode::FAILURE
        }
    }
}
