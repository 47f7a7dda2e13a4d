//! One program against another: posix_spawn and wait, in turns, in one run.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::stat::Mode;
use nix::sys::time::TimeValLike;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Failure;

/// A program with its arguments and its standard input.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) path: CString,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) stdin: PathBuf,
}

/// What an engine has in its environment.
const ENV: [&str; 3] = [
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "XDG_RUNTIME_DIR=/run/user/0",
    "NOTIFY_SOCKET=",
];

impl Program {
    /// A program that finds nothing on its standard input.
    pub(crate) fn new<S: AsRef<OsStr>>(path: &Path, args: impl IntoIterator<Item = S>) -> Self {
        let c = |text: &OsStr| CString::new(text.as_bytes()).expect("no argument here holds a NUL");
        let mut argv = vec![c(path.as_os_str())];
        argv.extend(args.into_iter().map(|arg| c(arg.as_ref())));
        let env = ENV.iter().map(|pair| c(OsStr::new(pair))).collect();
        Self { path: c(path.as_os_str()), argv, env, stdin: "/dev/null".into() }
    }

    /// The same with another standard input.
    pub(crate) fn reading(mut self, stdin: &Path) -> Self {
        self.stdin = stdin.to_owned();
        self
    }

    /// The same with one more variable.
    pub(crate) fn with_env(mut self, pair: &str) -> Self {
        self.env.push(CString::new(pair).expect("no variable here holds a NUL"));
        self
    }

    /// Another program with the same arguments.
    pub(crate) fn instead(&self, path: &Path) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).expect("no path here holds a NUL");
        Self { path, argv: self.argv.clone(), env: self.env.clone(), stdin: self.stdin.clone() }
    }

    /// Starts it.
    pub(crate) fn spawn(&self) -> Result<Pid, Failure> {
        let mut actions = PosixSpawnFileActions::init()?;
        actions.add_open(0, self.stdin.as_path(), OFlag::O_RDONLY, Mode::empty())?;
        let attributes = PosixSpawnAttr::init()?;
        Ok(posix_spawn(self.path.as_c_str(), &actions, &attributes, &self.argv, &self.env)?)
    }

    /// Runs it to its successful end; how long that took.
    pub(crate) fn run(&self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let pid = self.spawn()?;
        let status = waitpid(pid, None)?;
        let took = start.elapsed();
        match status {
            WaitStatus::Exited(_, 0) => Ok(took),
            status => Err(format!("{:?} {:?} ended with {status:?}", self.path, self.argv).into()),
        }
    }
}

/// The times of one program.
#[derive(Default)]
pub(crate) struct Times {
    wall: Vec<Duration>,
    cpu: Duration,
}

impl Times {
    fn add(&mut self, program: &Program) -> Result<(), Failure> {
        let before = children_cpu()?;
        self.wall.push(program.run()?);
        self.cpu += children_cpu()?.saturating_sub(before);
        Ok(())
    }

    /// The time that `percent` of the runs did not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.wall.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    /// User and system time of a run, on average.
    pub(crate) fn cpu_per_run(&self) -> Duration {
        self.cpu / u32::try_from(self.wall.len().max(1)).unwrap_or(u32::MAX)
    }

    /// How many runs.
    pub(crate) fn runs(&self) -> usize {
        self.wall.len()
    }
}

/// What the kernel has accounted to children that were waited for.
fn children_cpu() -> Result<Duration, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros.try_into().unwrap_or_default()))
}

/// Runs `N` programs in turns, `rounds` times. `prepare` says which, before each round, and is not
/// timed.
pub(crate) fn in_turns<const N: usize>(
    rounds: usize,
    mut prepare: impl FnMut() -> Result<[Program; N], Failure>,
) -> Result<[Times; N], Failure> {
    let mut times = std::array::from_fn(|_| Times::default());
    for _ in 0..rounds {
        let programs = prepare()?;
        for (times, program) in times.iter_mut().zip(&programs) {
            times.add(program)?;
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let wall = (1..=100).rev().map(Duration::from_millis).collect();
        let times = Times { wall, cpu: Duration::from_millis(200) };
        assert_eq!(times.percentile(50), Duration::from_millis(51));
        assert_eq!(times.percentile(90), Duration::from_millis(91));
        assert_eq!(times.cpu_per_run(), Duration::from_millis(2));
    }

    #[test]
    fn a_program_that_fails_is_no_measurement() {
        assert!(Program::new(Path::new("/bin/true"), [""; 0]).run().is_ok());
        assert!(Program::new(Path::new("/bin/false"), [""; 0]).run().is_err());
        assert!(Program::new(Path::new("/nonexistent"), [""; 0]).run().is_err());
    }
}
