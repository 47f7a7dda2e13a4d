//! The command line of OCI runtimes, as engines write it.
//!
//! ```text
//! runc  [global flags]  verb  [flags of the verb]  ID  [signal | command and its arguments]
//! ```
//!
//! Two grammars are read at once: Go's `flag` package (runc: one dash or two, `-name value`,
//! `-name=value`) and glibc's argp (crun: short clusters, `-bDIR`, abbreviations that fit no other
//! flag of crun's). Where they differ, a whole name comes first, then crun's abbreviation, then
//! Go's letter; `argv/flag_table.rs` has the tables. Parsing never fails and never changes argv:
//! the real runtime evaluates what is not known here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

mod flag_table;
mod scan;
mod signal;
#[cfg(test)]
mod tests;

use flag_table::Meaning;
use scan::{Item, scan};
pub use signal::Signal;

/// What the runtime is asked to do. Only the verbs that mpsgate acts on have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Makes a container and stops before its program starts.
    Create,
    /// Makes a container and starts it.
    Run,
    /// Makes a container from a checkpoint.
    Restore,
    /// Starts a further process in a container.
    Exec,
    /// Sends a signal to a container.
    Kill,
    /// Removes a container.
    Delete,
    /// Changes the resources of a container.
    Update,
    /// Any other verb, known to the runtime or not. [`Invocation::verb_at`] is its index.
    Other,
    /// There is no verb, or only help or the version is asked for.
    None,
}

impl Verb {
    fn from_arg(arg: &OsStr) -> Self {
        match arg.as_bytes() {
            b"create" => Self::Create,
            b"run" => Self::Run,
            b"restore" => Self::Restore,
            b"exec" => Self::Exec,
            b"kill" => Self::Kill,
            b"delete" => Self::Delete,
            b"update" => Self::Update,
            _ => Self::Other,
        }
    }
}

/// The form of the runtime's log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// logrus text, `time="…" level=error msg="…"`: the default of runtimes.
    #[default]
    Text,
    /// One JSON object a line: what containerd, dockerd and conmon ask for and read back.
    Json,
}

/// The place of a flag's value: in `args[index]`, after its first `prefix` bytes.
///
/// `--resources F` gives prefix 0 at the index of `F`; `--resources=F` gives prefix 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueAt {
    /// Index into the args that were parsed.
    pub index: usize,
    /// Bytes of that argument before the value.
    pub prefix: usize,
}

impl ValueAt {
    fn get(self, args: &[OsString]) -> &OsStr {
        let bytes = args.get(self.index).and_then(|arg| arg.as_bytes().get(self.prefix..));
        OsStr::from_bytes(bytes.unwrap_or_default())
    }
}

/// What an argv asks for, as far as mpsgate needs to know.
///
/// If a flag is given more than once, the last one counts, as in runc and crun.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Invocation {
    /// The verb.
    pub verb: Verb,
    /// Index of the verb in the args.
    pub verb_at: Option<usize>,
    /// `--root`: the state directory, which also tells engines apart.
    pub root: Option<PathBuf>,
    /// `--log`, where it names a file. crun's `journald:` and `syslog:` targets are `None`.
    pub log: Option<PathBuf>,
    /// `--log-format`.
    pub log_format: LogFormat,
    /// `--systemd-cgroup`, or crun's `--cgroup-manager=systemd`.
    pub systemd_cgroup: bool,
    /// crun's `--cgroup-manager=disabled`: the container has the caller's cgroup, and no device
    /// rules.
    pub no_cgroup: bool,
    /// `--bundle`; `None` means the working directory.
    pub bundle: Option<PathBuf>,
    /// crun's `--config`: a file to use in place of the bundle's `config.json`.
    pub config: Option<PathBuf>,
    /// `--pid-file`.
    pub pid_file: Option<PathBuf>,
    /// `exec --process`: the file that describes the process.
    pub process_file: Option<PathBuf>,
    /// The container. `None` also where crun's `--regex` names many.
    pub container_id: Option<OsString>,
    /// `update --resources`: a file, or `-` for standard input.
    pub resources: Option<PathBuf>,
    /// The place of that file's name; see [`with_value`].
    pub resources_at: Option<ValueAt>,
    /// Where [`with_exec_env`] inserts, if it has to, and the flag that the caller used: `-e` or
    /// `--env`. runc 1.1.5 refuses an argv with both.
    pub exec_env_at: Option<(usize, &'static str)>,
    /// The signal of `kill`; `SIGTERM` unless given.
    pub signal: Signal,
    /// `kill --all`.
    pub kill_all: bool,
    /// `delete --force`: ends the container with SIGKILL where it still runs.
    pub force: bool,
}

impl Invocation {
    /// Whether the runtime will send SIGKILL: `kill ID KILL`, however the signal is spelled, and
    /// `delete --force`. Neither runc (to 1.5) nor crun (to 1.29) has a flag for the signal.
    #[must_use]
    pub fn sends_sigkill(&self) -> bool {
        match self.verb {
            Verb::Kill => self.signal == Signal::KILL,
            Verb::Delete => self.force,
            _ => false,
        }
    }
}

/// Reads the verb alone, without allocating: a pass-through needs nothing else.
///
/// `args` is argv without the program's own name. A `--help` after the verb is not seen.
#[must_use]
pub fn verb_of(args: &[OsString]) -> Verb {
    let mut verb = Verb::None;
    let mut asks_help = false;
    scan(args, 0, flag_table::GLOBAL, |item| match item {
        Item::Flag { meaning: Meaning::Help, on, .. } => asks_help |= on,
        Item::Flag { .. } => {}
        Item::Positional(index) => {
            verb = args.get(index).map_or(Verb::None, |arg| Verb::from_arg(arg));
        }
    });
    if asks_help { Verb::None } else { verb }
}

/// Reads an argv. `args` is argv without the program's own name.
#[must_use]
pub fn parse(args: &[OsString]) -> Invocation {
    let mut reading = Reading::default();
    let mut verb_at = None;
    scan(args, 0, flag_table::GLOBAL, |item| match item {
        Item::Flag { meaning, value, on } => reading.flag(args, meaning, value, on),
        Item::Positional(index) => verb_at = Some(index),
    });
    let mut verb = verb_at.and_then(|at| args.get(at)).map_or(Verb::None, |v| Verb::from_arg(v));
    let mut positionals = Vec::new();
    let mut flags_end = args.len();
    if let (Some(at), Some(table)) = (verb_at, flag_table::of(verb)) {
        flags_end = scan(args, at + 1, table, |item| match item {
            Item::Flag { meaning, value, on } => reading.flag(args, meaning, value, on),
            Item::Positional(index) => positionals.push(index),
        });
    }
    if reading.asks_help {
        verb = Verb::None;
    }
    // These verbs take exactly one argument. So the value of an unknown flag, which looks like an
    // argument too, can only come before it.
    let id_at = match verb {
        Verb::Create | Verb::Run | Verb::Restore | Verb::Delete => positionals.last(),
        _ => positionals.first(),
    };
    let container_id = id_at.filter(|_| !reading.regex).and_then(|at| args.get(*at)).cloned();
    let signal = match (verb, positionals.get(1).and_then(|at| args.get(*at))) {
        (Verb::Kill, Some(text)) => Signal::parse(text),
        _ => Signal::TERM,
    };
    // Without a container the runtime refuses the argv, and there is no place to insert at.
    let env_flag = reading
        .env_flag
        .filter(|_| verb == Verb::Exec && reading.process_at.is_none() && container_id.is_some());
    let path = |at: Option<ValueAt>| at.map(|at| PathBuf::from(at.get(args)));
    Invocation {
        verb,
        verb_at,
        root: path(reading.root),
        log: reading.log.and_then(|at| log_file(at.get(args))),
        log_format: reading.log_format,
        systemd_cgroup: reading.systemd_cgroup,
        no_cgroup: reading.no_cgroup && !reading.systemd_cgroup,
        bundle: path(reading.bundle),
        config: path(reading.config),
        pid_file: path(reading.pid_file),
        process_file: path(reading.process_at),
        resources: path(reading.resources),
        resources_at: reading.resources,
        container_id,
        exec_env_at: env_flag.map(|flag| (flags_end, flag)),
        signal,
        kill_all: reading.kill_all,
        force: reading.force,
    }
}

/// A copy of `args` with another value of a flag.
#[must_use]
pub fn with_value(args: &[OsString], at: ValueAt, path: &Path) -> Option<Vec<OsString>> {
    let mut changed = args.to_vec();
    let slot = changed.get_mut(at.index)?;
    let mut bytes = slot.as_bytes().get(..at.prefix)?.to_vec();
    bytes.extend_from_slice(path.as_os_str().as_bytes());
    *slot = OsString::from_vec(bytes);
    Some(changed)
}

/// A copy of `args` with `NAME=VALUE` for each pair, by the caller's own flag and after the
/// caller's own values, so that mpsgate's win.
///
/// `None` means that argv needs no change: it is not an `exec`, or has `--process`, or has no
/// `--env`. Without `--env`, runc 1.1.5 and crun 1.8.1 take the environment of `config.json`, which
/// has mpsgate's already. Adding to it would do harm: up to crun 1.28 a single `--env` replaces the
/// container's whole environment, `PATH` included (fixed by crun commit d914b7d8).
#[must_use]
pub fn with_exec_env(
    args: &[OsString],
    found: &Invocation,
    env: &[(String, String)],
) -> Option<Vec<OsString>> {
    let (at, flag) = found.exec_env_at?;
    let (flags, rest) = args.split_at_checked(at)?;
    let mut changed = flags.to_vec();
    for (name, value) in env {
        changed.push(flag.into());
        changed.push(format!("{name}={value}").into());
    }
    changed.extend_from_slice(rest);
    Some(changed)
}

/// crun names its log `[file:]PATH`, `journald:ID` or `syslog:ID`; only files can be appended to.
fn log_file(value: &OsStr) -> Option<PathBuf> {
    let bytes = value.as_bytes();
    if bytes.starts_with(b"journald:") || bytes.starts_with(b"syslog:") {
        return None;
    }
    let path = bytes.strip_prefix(b"file:").unwrap_or(bytes);
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// The flag before a value of `--env`: in the argument before it, or at the beginning of the same
/// argument.
fn env_flag(args: &[OsString], value: Option<ValueAt>) -> &'static str {
    let text = value.and_then(|at| match at.prefix {
        0 => args.get(at.index.checked_sub(1)?).map(|arg| arg.as_bytes()),
        prefix => args.get(at.index)?.as_bytes().get(..prefix),
    });
    if text.is_some_and(|text| text.windows(3).any(|part| part == b"env")) { "--env" } else { "-e" }
}

/// What the flags have set so far.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Reading {
    root: Option<ValueAt>,
    log: Option<ValueAt>,
    log_format: LogFormat,
    systemd_cgroup: bool,
    no_cgroup: bool,
    asks_help: bool,
    bundle: Option<ValueAt>,
    config: Option<ValueAt>,
    pid_file: Option<ValueAt>,
    process_at: Option<ValueAt>,
    resources: Option<ValueAt>,
    env_flag: Option<&'static str>,
    regex: bool,
    kill_all: bool,
    force: bool,
}

impl Reading {
    fn flag(&mut self, args: &[OsString], meaning: Meaning, value: Option<ValueAt>, on: bool) {
        // runc treats an empty value of most flags as if the flag were absent. A value that is
        // missing after the last argument is treated the same here.
        let non_empty = value.filter(|at| !at.get(args).is_empty());
        let is = |word: &str| value.is_some_and(|at| at.get(args) == word);
        match meaning {
            Meaning::Root => self.root = non_empty,
            Meaning::Log => self.log = non_empty,
            Meaning::LogFormat => {
                self.log_format = if is("json") { LogFormat::Json } else { LogFormat::Text };
            }
            Meaning::SystemdCgroup => self.systemd_cgroup = on,
            // The last one counts, and `--systemd-cgroup` before `disabled` (crun's
            // `setup_cgroup_manager`).
            Meaning::CgroupManager => {
                self.systemd_cgroup = is("systemd");
                self.no_cgroup = is("disabled");
            }
            Meaning::Help => self.asks_help |= on,
            Meaning::Bundle => self.bundle = non_empty,
            Meaning::Config => self.config = non_empty,
            Meaning::PidFile => self.pid_file = non_empty,
            Meaning::Process => self.process_at = non_empty,
            Meaning::Resources => self.resources = non_empty,
            Meaning::Env => self.env_flag = Some(env_flag(args, value)),
            Meaning::Regex => self.regex = on,
            Meaning::KillAll => self.kill_all = on,
            Meaning::Force => self.force = on,
            Meaning::Nothing => {}
        }
    }
}
