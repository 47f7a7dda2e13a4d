//! `mpsgate probe --steps`: the CUDA client of `mpsgate qualify`. It does what a line on its
//! standard input says, and answers with a line of JSON.
//!
//! ```text
//! (start) ─► {"step":"start"}     attach ─► cuInit     context ─► the primary context
//! fill ─► allocates until it is refused     take MIB ─► so much     second ─► a second context
//! ```

use std::ffi::OsStr;
use std::io::{self, BufRead, Write as _};

use mpsgate_edge::ExitCode;
use serde::{Deserialize, Serialize};

use super::allocate_all;
use super::cuda::Cuda;
use crate::error::CudaError;

/// What a step came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Which.
    pub(crate) step: String,
    /// What was allocated in all so far.
    pub(crate) allocated_mib: u64,
    /// Whether CUDA says that it is a client of an MPS server, where it tells.
    pub(crate) mps_client: Option<bool>,
    /// What CUDA said no with.
    pub(crate) error: Option<String>,
    /// CUDA's number of it.
    pub(crate) code: Option<i32>,
    /// There is no CUDA here, so that it was not CUDA who said no.
    pub(crate) no_library: bool,
}

pub(super) fn run(library: &OsStr) -> ExitCode {
    let mut client = Client { library, cuda: None, allocated_mib: 0 };
    let _ = say(&Step { step: "start".to_owned(), ..Step::default() });
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if say(&client.step(&line)).is_err() {
            break;
        }
    }
    ExitCode::Done
}

fn say(step: &Step) -> io::Result<()> {
    let mut line = serde_json::to_vec(step)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

struct Client<'a> {
    library: &'a OsStr,
    cuda: Option<Cuda>,
    allocated_mib: u64,
}

impl Client<'_> {
    fn step(&mut self, line: &str) -> Step {
        let error = self.take(line).err();
        Step {
            step: line.to_owned(),
            allocated_mib: self.allocated_mib,
            mps_client: self.cuda.as_ref().and_then(Cuda::is_mps_client),
            code: error.as_ref().and_then(|error| match error {
                CudaError::Call { code, .. } => Some(*code),
                CudaError::Library { .. } => None,
            }),
            no_library: matches!(error, Some(CudaError::Library { .. })),
            error: error.as_ref().map(in_words),
        }
    }

    fn take(&mut self, line: &str) -> Result<(), CudaError> {
        if line == "attach" {
            self.cuda = Some(Cuda::attach(self.library)?);
            return Ok(());
        }
        let Some(cuda) = &mut self.cuda else { return Ok(()) };
        match line.split_once(' ').unwrap_or((line, "")) {
            ("context", _) => cuda.retain(),
            ("second", _) => cuda.second(),
            ("take", mib) => {
                self.allocated_mib += allocate_all(cuda, Some(mib.parse().unwrap_or_default()))?;
                Ok(())
            }
            ("fill", _) => {
                self.allocated_mib += allocate_all(cuda, None)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// With what the loader said.
fn in_words(error: &CudaError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_cuda_each_step_says_so() {
        let library = OsStr::new("/nonexistent/libcuda.so.1");
        let mut client = Client { library, cuda: None, allocated_mib: 0 };
        let attach = client.step("attach");
        assert!(attach.no_library && attach.error.is_some(), "{attach:?}");
        assert_eq!(attach.code, None);
        let fill = client.step("fill");
        assert_eq!((fill.step.as_str(), fill.allocated_mib, fill.error), ("fill", 0, None));
    }
}
