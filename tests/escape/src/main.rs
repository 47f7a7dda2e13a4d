//! `escape-try VERB ARG...`: one attempt to get out of a container, made with the system calls that
//! no shell has. Run by `tests/e2e/escape`, which knows what should come out.
//!
//! Prints one line: `open: WHAT` where the attempt succeeded, `blocked: WHY` where it did not. It
//! undoes what it made. Static, so that it runs in any container.

mod channel;
mod devices;
mod ipc;
mod processes;
mod sockets;

use std::path::Path;
use std::process::ExitCode;

use nix::errno::Errno;

/// What came of an attempt: `Ok` is a way out, `Err` says what stood in it.
type Outcome = Result<String, String>;

const USAGE: &str = "usage: escape-try open r|w|rw PATH | device DIR MAJOR MINOR | connect PATH | bind PATH
       | hold PATH SECONDS | record FIFO COMPONENT PID TEXT | words PATH WORD TIMES [each] | abstract | kill PID
       | ptrace PID | pidfd PID | descriptors | roots | procfs | exe SECONDS | overwrite-self | sysv KEY | queue NAME
       | handle PATH | module | remount PATH [FILE] | mount TYPE TARGET [DATA]
       | userns VERB ARG...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match attempt(&words) {
        None => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
        Some(Ok(what)) => println!("open: {what}"),
        Some(Err(why)) => println!("blocked: {why}"),
    }
    ExitCode::SUCCESS
}

fn attempt(words: &[&str]) -> Option<Outcome> {
    Some(match words {
        ["open", how, path] => devices::open(Path::new(path), how),
        ["device", dir, major, minor] => {
            devices::make_and_open(Path::new(dir), major.parse().ok()?, minor.parse().ok()?)
        }
        ["connect", path] => sockets::connect_any(path),
        ["bind", path] => sockets::bind_at(Path::new(path)),
        ["hold", path, seconds] => sockets::hold(path, seconds.parse().ok()?),
        ["record", fifo, component, pid, text] => {
            channel::record(Path::new(fifo), component.parse().ok()?, pid.parse().ok()?, text)
        }
        ["words", path, word, times] => {
            channel::words(path, word.parse().ok()?, times.parse().ok()?)
        }
        ["words", path, word, times, "each"] => {
            channel::words_each(path, word.parse().ok()?, times.parse().ok()?)
        }
        ["abstract"] => sockets::abstract_names(),
        ["kill", pid] => processes::signal(pid.parse().ok()?),
        ["ptrace", pid] => processes::attach(pid.parse().ok()?),
        ["pidfd", pid] => processes::pidfd(pid.parse().ok()?),
        ["descriptors"] => processes::descriptors(),
        ["roots"] => processes::roots(),
        ["procfs"] => processes::procfs(),
        ["exe", seconds] => processes::foreign_programs(seconds.parse().ok()?),
        ["overwrite-self"] => processes::overwrite_own_parents(),
        ["sysv", key] => ipc::shared_memory(key.parse().ok()?),
        ["queue", name] => ipc::queue(name),
        ["handle", path] => devices::by_handle(Path::new(path)),
        ["module"] => devices::module(),
        ["remount", path, file @ ..] => devices::remount(Path::new(path), file.first().copied()),
        ["mount", kind, target, data @ ..] => {
            devices::mount_at(kind, Path::new(target), data.first().copied())
        }
        ["userns", rest @ ..] => match processes::own_user_namespace() {
            Ok(()) => attempt(rest)?,
            Err(why) => Err(why),
        },
        _ => return None,
    })
}

/// An errno as text, with the call that gave it.
fn failed(call: &str) -> impl FnOnce(Errno) -> String {
    move |errno| format!("{call}: {} ({errno:?})", errno.desc())
}

/// The same for errors of the standard library.
fn io_failed(call: &str, error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => failed(call)(Errno::from_raw(errno)),
        None => format!("{call}: {error}"),
    }
}
