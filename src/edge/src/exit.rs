//! The exit codes of every program of mpsgate.

/// An exit status. The shim returns the runtime's own once it has handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Done, or the answer is yes.
    Done = 0,
    /// The answer is no: a container that would be refused, a check that found something.
    No = 1,
    /// Tried and failed.
    Failed = 2,
    /// Wrong command line (`EX_USAGE` of `sysexits.h`).
    Usage = 64,
    /// The daemon or the driver does not answer (`EX_UNAVAILABLE`).
    Unavailable = 69,
    /// The settings cannot be used (`EX_CONFIG`).
    BadConfig = 78,
    /// A command was not started (`mpsgate run`, as `docker run` and env(1)).
    NotStarted = 125,
    /// A command cannot be executed.
    NotExecutable = 126,
    /// A command was not found.
    NotFound = 127,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}
