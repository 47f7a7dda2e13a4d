//! Every flag of the verbs that mpsgate acts on, and whether it takes a value.
//!
//! If a flag's value were not known to be one, it would be taken for the container or the verb. So
//! the tables have all flags of runc 1.0 to 1.5, crun 1.8 to 1.29 and youki, including those
//! without a meaning here. Sources: `--help` of runc 1.1.5 and crun 1.8.1 (compared by a test where
//! they are installed), runc's `*.go` at v1.5.1, crun's `src/*.c` at 1.29.1, youki's `liboci-cli`.

use super::Verb;

/// What a flag means to mpsgate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Root,
    Log,
    LogFormat,
    SystemdCgroup,
    CgroupManager,
    Help,
    Bundle,
    Config,
    PidFile,
    Process,
    Resources,
    Env,
    Regex,
    KillAll,
    Force,
    Nothing,
}

/// Whether a flag takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// None; `--flag=false` (Go) switches it off.
    Nothing,
    /// One, in the same argument or the next.
    Value,
    /// One, in the same argument only: argp's optional values (`crun exec -tfalse`).
    Attached,
}

/// One flag.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flag {
    pub(super) long: &'static str,
    /// Zero if it has none.
    pub(super) short: u8,
    pub(super) takes: Takes,
    pub(super) meaning: Meaning,
}

/// The flags at one place in argv.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) flags: &'static [Flag],
    /// Long names that crun has here besides [`ARGP`]. crun is the only runtime that takes
    /// abbreviations, and it ignores other runtimes' flags when it resolves one. Without
    /// `log-level`, which crun has from 1.17 on: an older one takes `--log-` for `--log-format`.
    pub(super) crun: &'static [&'static str],
    pub(super) arguments: Arguments,
}

/// The flags that argp itself adds in each place, two of them hidden from `--help`.
pub(super) const ARGP: [&str; 4] = ["help", "usage", "program-name", "HANG"];

/// What else is among and after the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    /// A verb, whose own flags follow.
    Verb,
    /// Arguments, and flags may still follow them: runc up to 1.4 moves flags to the front.
    AmongFlags,
    /// A command, with flags of its own from the first argument on.
    EndFlags,
}

const fn flag(long: &'static str, short: u8, meaning: Meaning) -> Flag {
    Flag { long, short, takes: Takes::Nothing, meaning }
}

const fn value(long: &'static str, short: u8, meaning: Meaning) -> Flag {
    Flag { long, short, takes: Takes::Value, meaning }
}

use Meaning::Nothing;

/// runc 1.5 takes the global flags behind the verb as well, so each table ends with them.
macro_rules! with_global_flags {
    ($($own:expr),* $(,)?) => { &[
        $($own,)*
        value("root", 0, Meaning::Root),
        value("log", 0, Meaning::Log),
        value("log-format", 0, Meaning::LogFormat),
        value("log-level", 0, Nothing),
        value("rootless", 0, Nothing),
        value("criu", 0, Nothing),
        value("cgroup-manager", 0, Meaning::CgroupManager),
        flag("systemd-cgroup", 0, Meaning::SystemdCgroup),
        flag("debug", 0, Nothing),
        flag("help", b'h', Meaning::Help),
        // argp's own.
        flag("usage", b'?', Meaning::Help),
        value("program-name", 0, Nothing),
        Flag { long: "HANG", short: 0, takes: Takes::Attached, meaning: Nothing },
    ] };
}

pub(super) const GLOBAL: Table = Table {
    flags: with_global_flags![
        flag("version", b'v', Meaning::Help),
        Flag { long: "", short: b'V', takes: Takes::Nothing, meaning: Meaning::Help },
        // youki's short forms.
        Flag { long: "", short: b'r', takes: Takes::Value, meaning: Meaning::Root },
        Flag { long: "", short: b'l', takes: Takes::Value, meaning: Meaning::Log },
        Flag { long: "", short: b's', takes: Takes::Nothing, meaning: Meaning::SystemdCgroup },
    ],
    crun: &[
        "cgroup-manager",
        "debug",
        "log",
        "log-format",
        "root",
        "rootless",
        "systemd-cgroup",
        "version",
    ],
    arguments: Arguments::Verb,
};

/// `create`, `run` and `restore` share these flags, with one meaning.
const START: &[Flag] = with_global_flags![
    value("bundle", b'b', Meaning::Bundle),
    value("config", b'f', Meaning::Config),
    value("pid-file", b'p', Meaning::PidFile),
    value("console-socket", b'c', Nothing),
    value("pidfd-socket", 0, Nothing),
    value("preserve-fds", 0, Nothing),
    flag("detach", b'd', Nothing),
    flag("keep", 0, Nothing),
    flag("no-pivot", 0, Nothing),
    flag("no-new-keyring", 0, Nothing),
    flag("no-subreaper", 0, Nothing),
    value("image-path", 0, Nothing),
    value("work-path", 0, Nothing),
    value("manage-cgroups-mode", 0, Nothing),
    value("empty-ns", 0, Nothing),
    value("lsm-profile", 0, Nothing),
    value("lsm-mount-context", 0, Nothing),
    flag("network-lock", 0, Nothing),
    flag("tcp-established", 0, Nothing),
    flag("tcp-close", 0, Nothing),
    flag("ext-unix-sk", 0, Nothing),
    flag("shell-job", 0, Nothing),
    flag("file-locks", 0, Nothing),
    flag("auto-dedup", 0, Nothing),
    flag("lazy-pages", 0, Nothing),
];

const CREATE: Table = Table {
    flags: START,
    crun: &[
        "bundle",
        "config",
        "console-socket",
        "no-new-keyring",
        "no-pivot",
        "no-subreaper",
        "pid-file",
        "preserve-fds",
    ],
    arguments: Arguments::AmongFlags,
};

const RUN: Table = Table {
    crun: &[
        "bundle",
        "config",
        "console-socket",
        "detach",
        "keep",
        "no-new-keyring",
        "no-pivot",
        "no-subreaper",
        "pid-file",
        "preserve-fds",
    ],
    ..CREATE
};

const RESTORE: Table = Table {
    crun: &[
        "bundle",
        "console-socket",
        "detach",
        "ext-unix-sk",
        "file-locks",
        "image-path",
        "lsm-mount-context",
        "lsm-profile",
        "manage-cgroups-mode",
        "network-lock",
        "pid-file",
        "shell-job",
        "tcp-close",
        "tcp-established",
        "work-path",
    ],
    ..CREATE
};

const EXEC: Table = Table {
    flags: with_global_flags![
        value("process", b'p', Meaning::Process),
        value("pid-file", 0, Meaning::PidFile),
        value("env", b'e', Meaning::Env),
        value("console-socket", 0, Nothing),
        value("pidfd-socket", 0, Nothing),
        value("cwd", 0, Nothing),
        value("user", b'u', Nothing),
        value("additional-gids", b'g', Nothing),
        value("process-label", 0, Nothing),
        value("apparmor", 0, Nothing),
        value("cap", b'c', Nothing),
        value("preserve-fds", 0, Nothing),
        value("cgroup", 0, Nothing),
        Flag { long: "tty", short: b't', takes: Takes::Attached, meaning: Nothing },
        flag("detach", b'd', Nothing),
        flag("no-new-privs", 0, Nothing),
        flag("ignore-paused", 0, Nothing),
    ],
    crun: &[
        "apparmor",
        "cap",
        "cgroup",
        "console-socket",
        "cwd",
        "detach",
        "env",
        "no-new-privs",
        "pid-file",
        "preserve-fds",
        "process",
        "process-label",
        "tty",
        "user",
    ],
    arguments: Arguments::EndFlags,
};

const KILL: Table = Table {
    flags: with_global_flags![
        flag("all", b'a', Meaning::KillAll),
        flag("regex", b'r', Meaning::Regex),
    ],
    crun: &["all", "regex"],
    arguments: Arguments::AmongFlags,
};

const DELETE: Table = Table {
    flags: with_global_flags![
        flag("force", b'f', Meaning::Force),
        flag("regex", b'r', Meaning::Regex),
    ],
    crun: &["force", "regex"],
    arguments: Arguments::AmongFlags,
};

const UPDATE: Table = Table {
    flags: with_global_flags![
        value("resources", b'r', Meaning::Resources),
        value("blkio-weight", 0, Nothing),
        value("cpu-period", 0, Nothing),
        value("cpu-quota", 0, Nothing),
        value("cpu-burst", 0, Nothing),
        value("cpu-share", 0, Nothing),
        value("cpu-rt-period", 0, Nothing),
        value("cpu-rt-runtime", 0, Nothing),
        value("cpu-idle", 0, Nothing),
        value("cpuset-cpus", 0, Nothing),
        value("cpuset-mems", 0, Nothing),
        value("kernel-memory", 0, Nothing),
        value("kernel-memory-tcp", 0, Nothing),
        value("memory", 0, Nothing),
        value("memory-reservation", 0, Nothing),
        value("memory-swap", 0, Nothing),
        value("pids-limit", 0, Nothing),
        value("l3-cache-schema", 0, Nothing),
        value("mem-bw-schema", 0, Nothing),
    ],
    crun: &[
        "blkio-weight",
        "cpu-period",
        "cpu-quota",
        "cpu-rt-period",
        "cpu-rt-runtime",
        "cpu-share",
        "cpuset-cpus",
        "cpuset-mems",
        "kernel-memory",
        "kernel-memory-tcp",
        "l3-cache-schema",
        "mem-bw-schema",
        "memory",
        "memory-reservation",
        "memory-swap",
        "pids-limit",
        "resources",
    ],
    arguments: Arguments::AmongFlags,
};

/// The table of a verb; `None` if nothing after the verb matters here.
pub(super) const fn of(verb: Verb) -> Option<Table> {
    match verb {
        Verb::Create => Some(CREATE),
        Verb::Run => Some(RUN),
        Verb::Restore => Some(RESTORE),
        Verb::Exec => Some(EXEC),
        Verb::Kill => Some(KILL),
        Verb::Delete => Some(DELETE),
        Verb::Update => Some(UPDATE),
        Verb::Other | Verb::None => None,
    }
}

/// Verbs of runc, crun and youki. Only used to tell the value of an unknown global flag from a
/// verb.
pub(super) const VERBS: &[&str] = &[
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "h",
    "help",
    "info",
    "init",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
    "version",
];
