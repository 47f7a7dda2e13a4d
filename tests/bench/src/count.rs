//! What a program does, counted: instructions, and system calls.
//!
//! Where the machine has hardware counters, instructions of user and kernel. Where it has none
//! (most virtual machines), user instructions by single steps: exact, slow, blind in the kernel;
//! the number of system calls tells of that part.
//!
//! JUSTIFICATION for unsafe code: nothing else gives `perf_event_open(2)`, or a traced child from
//! its first instruction on.
#![allow(unsafe_code, reason = "see above")]

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stdin, fork};

use crate::Failure;
use crate::measure::Program;

/// `struct perf_event_attr`, its first version (`PERF_ATTR_SIZE_VER0`), which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<PerfEventAttr>() == 64);

/// `PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_INSTRUCTIONS`.
const INSTRUCTIONS: (u32, u64) = (0, 1);
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const ENABLE_ON_EXEC: u64 = 1 << 12;

/// A counter that stands still here and runs in each child from its exec on; a child's count is
/// added when it ends.
fn counter((kind, config): (u32, u64)) -> Result<std::fs::File, Errno> {
    let attr = PerfEventAttr {
        kind,
        size: 64,
        config,
        flags: DISABLED | INHERIT | EXCLUDE_HYPERVISOR | ENABLE_ON_EXEC,
        ..PerfEventAttr::default()
    };
    // SAFETY: the kernel reads `size` bytes of `attr`, and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, 0) };
    let fd = Errno::result(fd)?;
    let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

fn read(counter: &mut std::fs::File) -> Result<u64, Failure> {
    let mut value = [0; 8];
    counter.read_exact(&mut value)?;
    Ok(u64::from_ne_bytes(value))
}

/// How instructions are counted on this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// By the hardware, in user space and kernel.
    Hardware,
    /// By single steps, in user space, because of this error.
    Steps(Errno),
}

impl Instructions {
    /// Looks for hardware counters.
    pub(crate) fn of_this_machine() -> Self {
        counter(INSTRUCTIONS).map_or_else(Self::Steps, |_| Self::Hardware)
    }
}

/// What one run of a program did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) instructions: u64,
    pub(crate) syscalls: u64,
}

/// Counts a program in two runs; `prepare` comes before each and says what to run.
pub(crate) fn count(
    how: Instructions,
    mut prepare: impl FnMut() -> Result<Program, Failure>,
) -> Result<Counts, Failure> {
    let program = prepare()?;
    let instructions = match how {
        Instructions::Hardware => counted(&program, INSTRUCTIONS)?,
        Instructions::Steps(_) => traced(&program, Step::Instruction)?,
    };
    // Each call stops the program twice; of the last, exit_group, it does not come back.
    let syscalls = traced(&prepare()?, Step::Syscall)?.div_ceil(2);
    Ok(Counts { instructions, syscalls })
}

fn counted(program: &Program, event: (u32, u64)) -> Result<u64, Failure> {
    let mut counter = counter(event)?;
    program.run()?;
    read(&mut counter)
}

#[derive(Clone, Copy)]
enum Step {
    Instruction,
    Syscall,
}

/// Runs a program, its forks and what it execs, and counts its stops.
fn traced(program: &Program, step: Step) -> Result<u64, Failure> {
    let stdin = std::fs::File::open(&program.stdin)?;
    // SAFETY: this program has one thread here, and the child does nothing but the next lines.
    let child = match unsafe { fork() }? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let _ = ptrace::traceme();
            let _ = dup2_stdin(&stdin);
            let _ = nix::unistd::execve(&program.path, &program.argv, &program.env);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(127) }
        }
    };
    waitpid(child, None)?;
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_TRACEFORK
        | ptrace::Options::PTRACE_O_TRACEVFORK
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(child, options)?;
    let resume = |pid: Pid, signal: Option<Signal>| {
        let resumed = match step {
            Step::Instruction => ptrace::step(pid, signal),
            Step::Syscall => ptrace::syscall(pid, signal),
        };
        // A process that was killed meanwhile has nothing to resume.
        if resumed == Err(Errno::ESRCH) { Ok(()) } else { resumed }
    };
    resume(child, None)?;
    let (mut stops, mut living) = (0, BTreeSet::from([child]));
    // Not the children of other threads, which tests have.
    let which = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    while !living.is_empty() {
        match waitpid(None, Some(which))? {
            WaitStatus::Exited(pid, status) => {
                if pid == child && status != 0 {
                    return Err(format!("traced {:?} ended with {status}", program.argv).into());
                }
                living.remove(&pid);
            }
            WaitStatus::Signaled(pid, ..) => {
                living.remove(&pid);
            }
            WaitStatus::PtraceEvent(pid, _, event) => {
                if event != libc::PTRACE_EVENT_EXEC {
                    let forked = i32::try_from(ptrace::getevent(pid)?)?;
                    living.insert(Pid::from_raw(forked));
                }
                resume(pid, None)?;
            }
            WaitStatus::PtraceSyscall(pid) | WaitStatus::Stopped(pid, Signal::SIGTRAP) => {
                stops += 1;
                resume(pid, None)?;
            }
            // A forked child's first stop.
            WaitStatus::Stopped(pid, Signal::SIGSTOP) => resume(pid, None)?,
            WaitStatus::Stopped(pid, signal) => resume(pid, Some(signal))?,
            _ => {}
        }
    }
    Ok(stops)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::path::Path;

    use super::*;

    #[test]
    fn more_work_is_counted_as_more() {
        let short = Program::new(Path::new("/bin/sh"), ["-c", ":"]);
        let long = Program::new(Path::new("/bin/sh"), ["-c", ": >/dev/null; : >/dev/null"]);
        let forking = Program::new(Path::new("/bin/sh"), ["-c", "(:); (:)"]);
        let syscalls = |program| traced(program, Step::Syscall).unwrap();
        assert!(syscalls(&short) > 10);
        assert!(syscalls(&long) > syscalls(&short));
        assert!(syscalls(&forking) > syscalls(&short));
        // One only: a step costs 20 µs where the machine is virtual.
        let nothing = Program::new(Path::new("/bin/true"), [""; 0]);
        assert!(traced(&nothing, Step::Instruction).unwrap() > 1000);
        // A software event stands in for the hardware's: same descriptor, same inheritance.
        const PAGE_FAULTS: (u32, u64) = (1, 2);
        if let Ok(faults) = counted(&short, PAGE_FAULTS) {
            assert!(faults > 10, "{faults}");
        }
    }
}
