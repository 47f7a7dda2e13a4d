//! `mpsgate probe --steps`: the CUDA client of `mpsgate qualify`. It does what a line on its
//! standard input says, and answers with a line of JSON.
//!
//! ```text
//! (start) ─► {"step":"start"}     attach ─► cuInit     context ─► the primary context
//! fill ─► allocates until it is refused     take MIB ─► so much     second ─► a second context
//! beside ─► a second client in a process of its own, which fills and stays
//! work MS ─► launches a kernel over and over
//! ```

use std::ffi::OsStr;
use std::io::{self, BufRead as _, Write as _};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use mpsgate_edge::ExitCode;

use super::allocate_all;
use super::cuda::Cuda;
use crate::cuda_client::{self, Client, Silent, Step};
use crate::error::CudaError;

/// What a client beside may take for all its steps; then its asker has given up, too.
const BESIDE: Duration = Duration::from_secs(15);
/// A signal ends the container with all that is in it.
static NEVER: AtomicBool = AtomicBool::new(false);

pub(super) fn run(library: &OsStr) -> ExitCode {
    let mut client = Steps::new(library);
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

struct Steps<'a> {
    library: &'a OsStr,
    cuda: Option<Cuda>,
    allocated_mib: u64,
    /// A second client, which ends with this one.
    beside: Option<Client<'static>>,
}

impl<'a> Steps<'a> {
    fn new(library: &'a OsStr) -> Self {
        Self { library, cuda: None, allocated_mib: 0, beside: None }
    }

    fn step(&mut self, line: &str) -> Step {
        if line == "beside" {
            return match beside(self.library) {
                Ok((beside, step)) => {
                    self.beside = Some(beside);
                    Step { step: line.to_owned(), beside_mib: step.allocated_mib, ..step }
                }
                Err(silent) => {
                    let error = Some(silent.to_string());
                    Step { step: line.to_owned(), error, ..Step::default() }
                }
            };
        }
        let (error, launches) = match self.take(line) {
            Ok(launches) => (None, launches),
            Err(error) => (Some(error), 0),
        };
        Step {
            step: line.to_owned(),
            allocated_mib: self.allocated_mib,
            beside_mib: 0,
            launches,
            mps_client: self.cuda.as_ref().and_then(Cuda::is_mps_client),
            code: error.as_ref().and_then(|error| match error {
                CudaError::Call { code, .. } => Some(*code),
                CudaError::Library { .. } => None,
            }),
            no_library: matches!(error, Some(CudaError::Library { .. })),
            error: error.as_ref().map(in_words),
        }
    }

    /// How many kernels it launched.
    fn take(&mut self, line: &str) -> Result<u64, CudaError> {
        if line == "attach" {
            self.cuda = Some(Cuda::attach(self.library)?);
            return Ok(0);
        }
        let Some(cuda) = &mut self.cuda else { return Ok(0) };
        match line.split_once(' ').unwrap_or((line, "")) {
            ("context", _) => cuda.retain()?,
            ("second", _) => cuda.second()?,
            ("take", mib) => {
                self.allocated_mib += allocate_all(cuda, Some(mib.parse().unwrap_or_default()))?;
            }
            ("fill", _) => self.allocated_mib += allocate_all(cuda, None)?,
            ("work", ms) => {
                return cuda.work(Duration::from_millis(ms.parse().unwrap_or_default()));
            }
            _ => {}
        }
        Ok(0)
    }
}

/// Has a client with the same environment take all that it gets; what came of that.
fn beside(library: &OsStr) -> Result<(Client<'static>, Step), Silent> {
    let own = std::env::current_exe().map_err(|error| Silent::NotStarted(error.to_string()))?;
    let mut client =
        Client::beside(cuda_client::steps(&own, library), &NEVER, Instant::now() + BESIDE)?;
    let step = client.steps(&["attach", "context", "fill"])?;
    Ok((client, step))
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
        let mut client = Steps::new(library);
        let attach = client.step("attach");
        assert!(attach.no_library && attach.error.is_some(), "{attach:?}");
        assert_eq!(attach.code, None);
        let fill = client.step("fill");
        assert_eq!((fill.step.as_str(), fill.allocated_mib, fill.error), ("fill", 0, None));
    }
}
