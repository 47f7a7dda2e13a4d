//! What goes into a bundle, and from where.

use mpsgate_edge::print;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mpsgate_config::{Config, paths};
use mpsgate_model::printable;
use nix::fcntl::OFlag;

use super::{Collected, Part, redact};
use crate::configure::engine_programs;
use crate::daemon_call;
use crate::doctor::checks::{LEASES, LEDGER_FILE, MODULE_FILE};
use crate::doctor::doctor_node::ENABLED;
use crate::doctor::trouble::below;

/// The end of a log, in bytes.
const LOG_TAIL: u64 = 256 << 10;
/// Larger than any file of ours: what is larger is something else.
const FILE_LIMIT: u64 = 4 << 20;
/// Lines of the journal, and the bytes of them that are kept.
const JOURNAL_LINES: &str = "--lines=4000";
/// Why a broken document is left out: nobody knows what is in it.
const NO_JSON: &str = "it is no JSON document";
const UNITS: [&str; 4] =
    ["mpsgated.service", "mpsgate-mps@.service", "mpsgate-hold.service", "mpsgate-gate@.service"];
/// Where units and what operators add to them lie (systemd.unit(5)), the one that counts first.
const UNIT_DIRS: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Json,
    Settings,
    /// Text, of which the end is enough.
    Log,
    /// Of systemd's.
    Unit,
}

pub(super) fn collect(root: &Path, report: &str) -> Collected {
    let mut found = Collected::default();
    found.document("doctor.json", "mpsgate doctor -o json", report);
    status(&mut found, root);
    settings(&mut found, root);
    for (name, path, kind) in [
        ("node.json", paths::NODE_SNAPSHOT.to_owned(), Kind::Json),
        ("ledger.json", format!("{}/{LEDGER_FILE}", paths::LEDGER_DIR), Kind::Json),
        ("managed.json", format!("{}/{ENABLED}", paths::STATE_DIR), Kind::Json),
        ("system/driver", MODULE_FILE.to_owned(), Kind::Text),
        ("system/devices", "/proc/devices".to_owned(), Kind::Text),
        ("system/kernel", "/proc/version".to_owned(), Kind::Text),
        ("system/os-release", "/usr/lib/os-release".to_owned(), Kind::Text),
    ] {
        found.file(root, name, Path::new(&path), kind);
    }
    found.directory(root, "compute-mode", &format!("{}/{LEASES}", paths::STATE_DIR), Kind::Json);
    mps_logs(&mut found, root);
    units(&mut found, root);
    journal(&mut found, root);
    found
}

/// What mpsgated says, or why it says nothing.
fn status(found: &mut Collected, root: &Path) {
    match daemon_call::status(&below(root, paths::SOCKET))
        .and_then(|status| Ok(print::json(&status)?))
    {
        Ok(text) => found.document("status.json", "mpsgate status -o json", &text),
        Err(error) => found.leave_out("mpsgate status -o json", printable::chain(&error)),
    }
}

/// The settings, where nothing is in them that mpsgate does not know.
fn settings(found: &mut Collected, root: &Path) {
    match Config::load(&below(root, paths::CONFIG_FILE)) {
        Ok(_) => found.file(root, "config.toml", Path::new(paths::CONFIG_FILE), Kind::Settings),
        Err(error) => found.leave_out(paths::CONFIG_FILE, printable::chain(&error)),
    }
}

fn mps_logs(found: &mut Collected, root: &Path) {
    let cards = std::fs::read_dir(below(root, paths::MPS_DIR)).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        cards.filter_map(|card| card.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    for card in numbers {
        let directory = PathBuf::from(format!("{}/{card}/log", paths::MPS_DIR));
        if below(root, &directory).is_symlink() {
            found.leave_out(&directory, "it is a symbolic link, and none is followed");
            continue;
        }
        for log in ["control.log", "server.log"] {
            found.file(root, &format!("mps/{card}/{log}"), &directory.join(log), Kind::Log);
        }
    }
}

fn units(found: &mut Collected, root: &Path) {
    for directory in UNIT_DIRS {
        // Merged into /usr nearly everywhere: the same files twice.
        if directory == "/lib/systemd/system" && below(root, "/lib").is_symlink() {
            continue;
        }
        for unit in UNITS {
            let path = format!("{directory}/{unit}");
            if below(root, &path).symlink_metadata().is_ok() {
                found.file(root, &format!("units{path}"), Path::new(&path), Kind::Unit);
            }
            let dropins = format!("{path}.d");
            found.directory(root, &format!("units{dropins}"), &dropins, Kind::Unit);
        }
    }
}

/// This machine's journal, not that of a root somewhere else.
fn journal(found: &mut Collected, root: &Path) {
    const WHAT: &str =
        "journalctl -u mpsgated -u mpsgate-hold -u 'mpsgate-mps@*' -u 'mpsgate-gate@*'";
    if root != Path::new("/") {
        return found.leave_out(WHAT, "--root names another machine's files");
    }
    let Some(program) = engine_programs::find("journalctl") else {
        return found.leave_out(WHAT, "journalctl is not installed");
    };
    let arguments = [
        "--no-pager",
        "--quiet",
        "--output=short-iso-precise",
        JOURNAL_LINES,
        "--unit=mpsgated.service",
        "--unit=mpsgate-mps@*.service",
        "--unit=mpsgate-hold.service",
        "--unit=mpsgate-gate@*.service",
    ];
    match engine_programs::output(&program, &arguments) {
        Ok(text) => found.add("journal.txt", WHAT, &redact::text(&text)),
        Err(error) => found.leave_out(WHAT, format!("it cannot be run: {error}")),
    }
}

impl Collected {
    fn add(&mut self, name: &str, from: &str, text: &str) {
        let (name, from) = (name.to_owned(), from.to_owned());
        self.parts.push(Part { name, from, text: text.to_owned(), cut: false });
    }

    fn document(&mut self, name: &str, from: &str, text: &str) {
        match redact::json(text) {
            Some(text) => self.add(name, from, &text),
            None => self.leave_out(from, NO_JSON),
        }
    }

    /// The file `path` of the node whose root is `root`.
    fn file(&mut self, root: &Path, name: &str, path: &Path, kind: Kind) {
        let (text, cut) = match read(&below(root, path), kind) {
            Ok(found) => found,
            Err(why) => return self.leave_out(path, why),
        };
        let text = match kind {
            Kind::Json => redact::json(&text),
            Kind::Text | Kind::Log => Some(redact::text(&text)),
            Kind::Settings => Some(redact::settings(&text)),
            Kind::Unit => Some(redact::unit(&text)),
        };
        let from = path.display().to_string();
        match text {
            Some(text) => self.parts.push(Part { name: name.to_owned(), from, text, cut }),
            None => self.leave_out(path, NO_JSON),
        }
    }

    /// Every file in a directory; nothing is said of one that is not there.
    fn directory(&mut self, root: &Path, name: &str, path: &str, kind: Kind) {
        let real = below(root, path);
        if real.is_symlink() {
            return self.leave_out(path, "it is a symbolic link, and none is followed");
        }
        let entries = std::fs::read_dir(&real).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        for file in names {
            self.file(root, &format!("{name}/{file}"), &Path::new(path).join(&file), kind);
        }
    }
}

/// A regular file's text, or its end; else why it is left out.
fn read(path: &Path, kind: Kind) -> Result<(String, bool), String> {
    let said = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "it is not there".to_owned(),
        _ if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            "it is a symbolic link, and none is followed".to_owned()
        }
        _ => format!("it cannot be read: {error}"),
    };
    // A FIFO in a file's place must not hold this up.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(said)?;
    let metadata = file.metadata().map_err(said)?;
    if !metadata.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mut cut = false;
    match kind {
        Kind::Log if metadata.len() > LOG_TAIL => {
            cut = true;
            file.seek(SeekFrom::End(-i64::try_from(LOG_TAIL).unwrap_or_default())).map_err(said)?;
        }
        Kind::Text | Kind::Json | Kind::Settings | Kind::Unit if metadata.len() > FILE_LIMIT => {
            return Err(format!("it has {} bytes, at most {FILE_LIMIT} are taken", metadata.len()));
        }
        _ => {}
    }
    let text = lossy(file, if cut { LOG_TAIL } else { FILE_LIMIT }).map_err(said)?;
    // Half a line, which could be half a secret.
    let whole = if cut { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
    Ok((whole.to_owned(), cut))
}

fn lossy(file: File, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
