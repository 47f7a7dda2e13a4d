//! `mpsgate probe`: how much GPU memory this process can really have, against what it was granted.
//!
//! Meant to be run inside a container. Allocates through libcuda in steps until it is refused,
//! prints both numbers, frees everything. Whatever CUDA answers is said in words, with its name.

mod cuda;
mod steps;

use std::ffi::OsString;

use mpsgate_edge::{ExitCode, print};
use serde::Serialize;

use crate::args::{Output, ProbeArgs};
use crate::error::{CliError, CudaError};
use crate::probe::cuda::Cuda;

/// Allocations are made in steps of this many MiB, and the last ones smaller.
const STEP_MIB: u64 = 256;
const LIMIT_VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// What allocating needs of CUDA.
pub(crate) trait Device {
    /// Allocates MiB; `false` where there is no more.
    fn allocate(&mut self, mib: u64) -> Result<bool, CudaError>;
    /// Free and total MiB, as CUDA tells them.
    fn memory(&self) -> Result<(u64, u64), CudaError>;
}

#[derive(Debug, Serialize)]
struct Answer {
    schema: u32,
    /// The variable's limit, where it is set.
    limit_mib: Option<u64>,
    /// What could be allocated; the CUDA context takes some of the limit.
    allocated_mib: u64,
    /// What CUDA said was free before.
    free_mib: u64,
    /// What CUDA says the device has.
    total_mib: u64,
    pipe_directory: Option<String>,
    /// Whether CUDA says that it is a client of an MPS server; absent where the driver does not
    /// tell.
    mps_client: Option<bool>,
    /// Whether no more than the limit could be had.
    holds: Option<bool>,
}

pub(crate) fn run(args: &ProbeArgs) -> Result<ExitCode, CliError> {
    if args.steps {
        return Ok(steps::run(&args.library));
    }
    let variable =
        |name: &str| std::env::var_os(name).map(OsString::into_string).and_then(Result::ok);
    let limit_mib = variable(LIMIT_VARIABLE).as_deref().and_then(limit);
    let mut cuda = Cuda::open(&args.library).map_err(CliError::Cuda)?;
    let (free_mib, total_mib) = cuda.memory().map_err(CliError::Cuda)?;
    let allocated_mib = allocate_all(&mut cuda, args.max_mib).map_err(CliError::Cuda)?;
    let mps_client = cuda.is_mps_client();
    drop(cuda);
    let answer = Answer {
        schema: 1,
        limit_mib,
        allocated_mib,
        free_mib,
        total_mib,
        pipe_directory: variable(PIPE_VARIABLE),
        mps_client,
        holds: limit_mib.map(|limit| allocated_mib <= limit),
    };
    print::answer(&match args.output {
        Output::Json => print::json(&answer)?,
        Output::Text => text(&answer),
    })?;
    Ok(if answer.holds == Some(false) { ExitCode::No } else { ExitCode::Done })
}

/// Allocates until it is refused, in halving steps, and returns the sum.
fn allocate_all(device: &mut impl Device, max_mib: Option<u64>) -> Result<u64, CudaError> {
    let mut sum = 0;
    let mut step = STEP_MIB;
    while step > 0 {
        let left = max_mib.map_or(step, |max| max.saturating_sub(sum).min(step));
        if left == 0 {
            break;
        }
        if device.allocate(left)? {
            sum += left;
        } else {
            step = left / 2;
        }
    }
    Ok(sum)
}

/// The number of `0=<n>M`, the form that a grant writes.
pub(crate) fn limit(text: &str) -> Option<u64> {
    text.split(',').find_map(|entry| entry.strip_prefix("0=")?.strip_suffix('M')?.parse().ok())
}

fn text(answer: &Answer) -> String {
    let verdict = match (answer.holds, answer.limit_mib) {
        (Some(true), _) => "the limit holds for this process".to_owned(),
        (Some(false), Some(limit)) => format!(
            "the limit does NOT hold: {} MiB more than {limit} MiB were allocated",
            answer.allocated_mib - limit
        ),
        _ => format!("{LIMIT_VARIABLE} is not set: this process has no limit of its own"),
    };
    format!(
        "limit      {}\nallocated  {} MiB\nfree       {} MiB (as CUDA told before)\ndevice     {} MiB (as the program sees it)\nchannel    {}\nMPS client {}\n\n{verdict}\n",
        answer.limit_mib.map_or_else(|| "none".to_owned(), |mib| format!("{mib} MiB")),
        answer.allocated_mib,
        answer.free_mib,
        answer.total_mib,
        answer.pipe_directory.as_deref().unwrap_or("none: not an MPS client by its environment"),
        match answer.mps_client {
            Some(true) => "yes",
            Some(false) => "NO: it uses the card past MPS, and no limit of MPS holds it",
            None => "this driver does not tell",
        },
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    struct FakeDevice {
        left: u64,
    }

    impl Device for FakeDevice {
        fn allocate(&mut self, mib: u64) -> Result<bool, CudaError> {
            let fits = mib <= self.left;
            if fits {
                self.left -= mib;
            }
            Ok(fits)
        }
        fn memory(&self) -> Result<(u64, u64), CudaError> {
            Ok((self.left, 16384))
        }
    }

    #[test]
    fn finds_the_last_mib() {
        for mib in [0, 1, 255, 256, 257, 7168, 7075] {
            assert_eq!(allocate_all(&mut FakeDevice { left: mib }, None).unwrap(), mib);
        }
        assert_eq!(allocate_all(&mut FakeDevice { left: 7168 }, Some(300)).unwrap(), 300);
    }

    #[test]
    fn reads_the_limit_that_a_grant_writes() {
        assert_eq!(limit("0=7168M"), Some(7168));
        assert_eq!(limit("1=1M,0=2M"), Some(2));
        assert_eq!(limit("0=7G"), None);
        assert_eq!(limit(""), None);
    }
}
