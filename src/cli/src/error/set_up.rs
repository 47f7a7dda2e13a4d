//! Why an engine's settings cannot be written, put back or tried.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use mpsgate_host::engine::Stranger;

/// Why `configure` did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetUpError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A link where a file of ours, or its directory, is to be.
    #[error("{} is a link to {}, and is not followed", path.display(), target.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// What it says.
        target: PathBuf,
    },
    /// Something else where a file of ours, or its directory, is to be.
    #[error("{} is neither a file nor a directory that mpsgate could use", path.display())]
    Place {
        /// What is in the way.
        path: PathBuf,
    },
    /// Somebody made the file read-only.
    #[error("{} is read-only (mode {mode:04o}): somebody does not want it changed", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file is not what it was when the change was planned.
    #[error("{} was changed by somebody just now; nothing was written", path.display())]
    Raced {
        /// The file.
        path: PathBuf,
    },
    /// A file is not as `--write` left it.
    #[error("{} was changed after mpsgate wrote it, and undoing would lose that; nothing was put back", path.display())]
    ChangedSince {
        /// The file.
        path: PathBuf,
        /// As mpsgate wrote it.
        written: PathBuf,
        /// The folder with what undo knows.
        record: PathBuf,
    },
    /// What undo needs was written by another version.
    #[error("{} has format {found}, this mpsgate knows {known}", path.display())]
    RecordFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// What undo needs cannot be understood.
    #[error("{} is no record of mpsgate configure", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The program that the engine would call is not there.
    #[error("there is no program {}", path.display())]
    NoProgram {
        /// Where it should be.
        path: PathBuf,
    },
    /// The real runtime is not there.
    #[error("runtime.path names {}, and there is no such program", runtime.display())]
    NoRuntime {
        /// As the settings have it.
        runtime: PathBuf,
    },
    /// The engine does not take it.
    #[error("{program} does not take it; nothing was written: {said}")]
    Rejected {
        /// The engine's program and what it was asked.
        program: String,
        /// What it said.
        said: String,
    },
    /// The engine's program cannot be asked.
    #[error("cannot run {program}")]
    Run {
        /// The program and its arguments.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The process that was named is no engine.
    #[error("--engine-pid names no engine")]
    NoEngine {
        /// Why not.
        #[source]
        source: Stranger,
    },
    /// The process that was named is another engine.
    #[error("pid {pid} is {found}, and {engine} was named")]
    OtherEngine {
        /// The process.
        pid: u32,
        /// What it is.
        found: &'static str,
        /// The engine that was named.
        engine: &'static str,
    },
    /// The engine runs more than once.
    #[error("{} processes are {program}: {}", found.len(), found.join("; "))]
    Several {
        /// The engine's program.
        program: &'static str,
        /// Each with its pid, its program and its command line.
        found: Vec<String>,
    },
    /// The settings that a running engine reads are not root's alone.
    #[error("{program} (pid {pid}) reads what another user than root can change: {why}")]
    Distrusted {
        /// The engine's program.
        program: &'static str,
        /// The process.
        pid: u32,
        /// What, and how.
        why: String,
    },
    /// Only Podman can do with hooks.
    #[error("--hooks-only is for podman; {engine} needs the runtime")]
    HooksOnly {
        /// The engine that was named.
        engine: &'static str,
    },
}

impl SetUpError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Read { path, .. } => format!("ls -ld {}", path.display()),
            Self::Write { path, source } => match source.kind() {
                ErrorKind::ReadOnlyFilesystem => {
                    "this file system is read-only: make the change where the system's image is made; the diff without --write shows it".to_owned()
                }
                ErrorKind::PermissionDenied => format!("as root: sudo; where that is not it: lsattr {}", path.display()),
                ErrorKind::StorageFull => "df -h".to_owned(),
                _ => format!("ls -ld {}", path.display()),
            },
            Self::Link { path, .. } | Self::Place { path } => {
                format!("move it away, then this again: mv {0} {0}.before", path.display())
            }
            Self::ReadOnly { path, .. } => format!("chmod u+w {}, then this again", path.display()),
            Self::Raced { .. } => "this again".to_owned(),
            Self::ChangedSince { path, written, record } => format!(
                "take the edit out, then this again, then make the edit anew: cp {} {}; or take mpsgate's lines out by hand, then: rm -r {}",
                written.display(), path.display(), record.display()),
            Self::RecordFormat { path, .. } => format!(
                "install the mpsgate that wrote it, and run its mpsgate configure --undo; or by hand: ls -l {}",
                path.parent().unwrap_or(path).display()
            ),
            Self::Record { path, .. } => {
                format!("what --write found lies beside it: ls -l {}", path.parent().unwrap_or(path).display())
            }
            Self::NoProgram { .. } => "install mpsgate first, or name it: --program FILE. Without it no container would start".to_owned(),
            Self::NoRuntime { .. } => "name the one that is installed, crun for one, as path below [runtime] in /etc/mpsgate/config.toml".to_owned(),
            Self::Rejected { .. } => "does the engine start with its settings as they are? If it does: mpsgate configure ENGINE shows what would change".to_owned(),
            Self::Run { program, .. } => format!("run it by hand: {program}"),
            Self::NoEngine { .. } => "which run as root on the node itself: ps -eo pid,user,args | grep -E 'containerd|crio|dockerd'".to_owned(),
            Self::OtherEngine { .. } => "name the engine that the process is, or another pid".to_owned(),
            Self::Several { .. } => "say which: --engine-pid PID, or its settings: --config FILE".to_owned(),
            Self::Distrusted { .. } => {
                "make it and the directories above it root's alone (chown root, chmod go-w); or say what is to be changed: --config FILE".to_owned()
            }
            Self::HooksOnly { .. } => "leave --hooks-only out".to_owned(),
        })
    }
}
