//! `differential run BASE DIR COUNT POLICY`: makes documents from BASE, a bundle's `config.json`,
//! and gives each to the real runtime and to mpsgate-runtime. The program of the containers is
//! `differential probe`, which tells what it can open.
//!
//! Three things must hold for each document: through mpsgate no node of a managed card opens but a
//! granted one; `mpsgate explain` says what mpsgate-runtime does; a document in which nothing is
//! about devices or GPUs starts as it does without mpsgate. Prints TAP. Everything that varies
//! comes from a seed, which is printed; MG_SEED repeats it.

mod document;
mod json;
mod mutate;
mod probe;
#[path = "../../faults/src/random.rs"]
mod random;
mod trial;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::document::Document;
use crate::random::Random;
use crate::trial::{Place, Tally};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: differential probe | differential run BASE DIR COUNT refuse|strip
       | MG_SEED=N differential show BASE NUMBER refuse|strip";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["probe"] => {
            probe::run();
            Ok(true)
        }
        ["run", base, dir, count, policy @ ("refuse" | "strip")] => {
            run(Path::new(base), Path::new(dir), count, policy)
        }
        ["show", base, number, policy @ ("refuse" | "strip")] => {
            show(Path::new(base), number, policy)
        }
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("differential: {failure}");
            ExitCode::from(64)
        }
    }
}

fn run(base: &Path, dir: &Path, count: &str, policy: &str) -> Result<bool, Failure> {
    let count: u64 = count.parse()?;
    let seed = seed()?;
    let base = json::parse(&std::fs::read_to_string(base)?)?;
    let place = Place::new(dir)?;
    println!("# {count} documents, policy.unallocated = \"{policy}\": MG_SEED={seed} repeats them");
    let mut tally = Tally::default();
    for number in 0..count {
        let mut random = Random::new(seed, number);
        let document = Document::new(&base, &mut random, policy);
        tally.add(number, &document, &place.try_out(number, &document)?);
    }
    tally.print(count);
    Ok(tally.holds())
}

/// Prints one document of a run, to look at.
fn show(base: &Path, number: &str, policy: &str) -> Result<bool, Failure> {
    let base = json::parse(&std::fs::read_to_string(base)?)?;
    let document = Document::new(&base, &mut Random::new(seed()?, number.parse()?), policy);
    std::io::stdout().write_all(&document.bytes)?;
    Ok(true)
}

fn seed() -> Result<u64, Failure> {
    match std::env::var("MG_SEED").ok().filter(|text| !text.is_empty()) {
        Some(text) => Ok(text.parse().map_err(|_| format!("MG_SEED={text} is no number"))?),
        None => Ok(u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos())),
    }
}

/// A variable of the tests' environment.
fn variable(name: &str) -> Result<PathBuf, Failure> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
        .ok_or_else(|| format!("{name} is not set: start this with tests/e2e/run").into())
}
