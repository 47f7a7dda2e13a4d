//! Which processes are container engines of the node, and which program each of them runs.
//!
//! What a process calls itself proves nothing: any user can choose name and arguments, and a
//! set-user-ID program is root by its effective user alone. An engine is a process of root's by all
//! four user ids, in the mount, PID and user namespaces of the node's first process. Only root can
//! change the file of its program. The program is opened once, between two looks at the process
//! that have to agree, and started by that descriptor: so a reused pid leads nowhere.
//!
//! After these checks the process's name decides which engine it is. Callers interpret its
//! arguments.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use crate::exchange::{Exchange, is_roots};
use crate::process::{ProcessId, Stat, parse_uids};
use crate::procfs;

const SET_ID: u32 = 0o6000;
/// The kernel's suffix for the path of a file that was replaced or removed.
const DELETED: &str = " (deleted)";

/// An engine that has a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// containerd.
    Containerd,
    /// CRI-O.
    Crio,
    /// Docker's daemon.
    Dockerd,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Containerd, Self::Crio, Self::Dockerd];

    /// The name of its program. k3s and others are several programs in one, by this name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Crio => "crio",
            Self::Dockerd => "dockerd",
        }
    }
}

/// A running engine.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Which one.
    pub kind: Kind,
    /// Its process.
    pub process: ProcessId,
    /// The words that it was started with.
    pub command_line: Vec<String>,
    /// Its variables, as `NAME=VALUE`.
    pub environment: Vec<String>,
    /// Its program.
    pub program: Program,
}

impl Engine {
    /// The process, its program and its arguments, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let (pid, path) = (self.process.pid, self.program.path.display());
        format!("pid {pid}, {path}: {}", self.command_line.join(" "))
    }
}

/// The program of an engine, held open.
#[derive(Debug, Clone)]
pub struct Program {
    file: Arc<OwnedFd>,
    path: PathBuf,
}

impl Program {
    /// The path that starts the opened file, wherever its own path leads now. Valid for children of
    /// this process, while this value lives.
    #[must_use]
    pub fn start_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// The path where it was found, for people. Do not start this path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the program of a process, if only root can change it.
    ///
    /// # Errors
    /// Why root is not the only one, or why that cannot be seen.
    pub fn of(root: &Path, pid: u32) -> Result<Self, Stranger> {
        let exe = directory(root, pid).join("exe");
        let file = openat(CWD, &exe, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| hidden(pid, errno.into()))?;
        let found = fstat(&file).map_err(|errno| hidden(pid, errno.into()))?;
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|error| hidden(pid, error))?;
        let wrong = |why| Stranger::Program { pid, path: path.clone(), why };
        evaluate_program(found.st_uid, found.st_mode).map_err(wrong)?;
        // An engine that was updated and not restarted has a program without a path. Under another
        // root the links would be followed in this one.
        if root == Path::new("/") && !path.to_string_lossy().ends_with(DELETED) {
            Exchange::default().roots_alone(&path).map_err(wrong)?;
        }
        Ok(Self { file: Arc::new(file), path })
    }
}

/// Why a process is not an engine of the node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stranger {
    /// It has ended, or the kernel does not show it to this process.
    #[error("cannot look at pid {pid}")]
    Hidden {
        /// The process.
        pid: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// It has another name.
    #[error("pid {pid} is called {name:?}, and no engine is")]
    Name {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// Not all of its user ids are root's.
    #[error(
        "pid {pid} belongs to the users {uids:?} (real, effective, saved, of the file system), not to root alone"
    )]
    Users {
        /// The process.
        pid: u32,
        /// Its user ids.
        uids: [u32; 4],
    },
    /// It is in a container, or in another namespace of its own.
    #[error("pid {pid} has another {namespace} namespace than the node's first process")]
    Elsewhere {
        /// The process.
        pid: u32,
        /// The first one that differs.
        namespace: &'static str,
    },
    /// Others than root can change its program.
    #[error("pid {pid} runs {}, and is not taken for an engine: {why}", path.display())]
    Program {
        /// The process.
        pid: u32,
        /// What it runs.
        path: PathBuf,
        /// Who can, or why that cannot be seen.
        why: String,
    },
    /// Another process has its pid since the first look, or its user has changed.
    #[error("pid {pid} was another process a moment ago")]
    Changed {
        /// The process.
        pid: u32,
    },
    /// Another engine started it for its own use, as dockerd does its containerd.
    #[error("pid {pid} was started by the engine with pid {parent} for itself")]
    Child {
        /// The process.
        pid: u32,
        /// The engine.
        parent: u32,
    },
}

/// The engines of a node.
#[derive(Debug, Default)]
pub struct Running {
    /// Its engines, by kind and pid.
    pub engines: Vec<Engine>,
    /// Processes of root on the node itself that would be engines, but for their programs.
    pub doubted: Vec<Stranger>,
}

/// The engines of the node whose root, with its `/proc`, is `root`.
///
/// # Errors
/// If the node's first process cannot be read: then nothing is known of any other process.
pub fn running(root: &Path) -> Result<Running, Stranger> {
    Ok(running_in(root, &Namespaces::of(root, 1)?))
}

fn running_in(root: &Path, node: &Namespaces) -> Running {
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found = Running::default();
    for pid in pids {
        match look(root, node, pid) {
            Ok(engine) => found.engines.push(engine),
            Err(stranger @ Stranger::Program { .. }) => found.doubted.push(stranger),
            Err(_) => {}
        }
    }
    found.engines.sort_by_key(|engine| (engine.kind, engine.process));
    found
}

/// The engine that process `pid` of the node is.
///
/// # Errors
/// Why the process is not an engine.
pub fn of(root: &Path, pid: u32) -> Result<Engine, Stranger> {
    look(root, &Namespaces::of(root, 1)?, pid)
}

fn look(root: &Path, node: &Namespaces, pid: u32) -> Result<Engine, Stranger> {
    let (engine, parent) = prove(root, node, pid, || ())?;
    match prove(root, node, parent, || ()) {
        Ok(_) => Err(Stranger::Child { pid, parent }),
        Err(_) => Ok(engine),
    }
}

/// Checks that a process is an engine by its own facts; returns the engine and its parent.
/// `between` runs between the two looks at the process; only tests do something there.
fn prove(
    root: &Path,
    node: &Namespaces,
    pid: u32,
    between: impl FnOnce(),
) -> Result<(Engine, u32), Stranger> {
    let kind = kind_of(root, pid)?;
    let (facts, parent) = Facts::of(root, pid)?;
    facts.evaluate(pid, node)?;
    let words = |file: &str| words(&directory(root, pid).join(file));
    between();
    let program = Program::of(root, pid)?;
    let command_line = words("cmdline").map_err(|error| hidden(pid, error))?;
    let environment = words("environ").map_err(|error| hidden(pid, error))?;
    if Facts::of(root, pid)?.0 != facts {
        return Err(Stranger::Changed { pid });
    }
    let process = ProcessId { pid, start_time: facts.start_time };
    Ok((Engine { kind, process, command_line, environment, program }, parent))
}

/// The engine that a process would be.
fn kind_of(root: &Path, pid: u32) -> Result<Kind, Stranger> {
    let name = read(root, pid, "comm")?.trim_end().to_owned();
    let kind = Kind::ALL.into_iter().find(|kind| kind.program() == name);
    kind.ok_or(Stranger::Name { pid, name })
}

/// The user ids and namespaces of a process. It cannot choose them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    start_time: u64,
    uids: [u32; 4],
    namespaces: Namespaces,
}

impl Facts {
    /// These facts of a process, and its parent.
    fn of(root: &Path, pid: u32) -> Result<(Self, u32), Stranger> {
        let gone = || hidden(pid, io::Error::from(io::ErrorKind::NotFound));
        let stat = Stat::parse(&read(root, pid, "stat")?).filter(|stat| !stat.has_ended());
        let Stat { start_time, parent, .. } = stat.ok_or_else(gone)?;
        let uids = parse_uids(&read(root, pid, "status")?).ok_or_else(gone)?;
        Ok((Self { start_time, uids, namespaces: Namespaces::of(root, pid)? }, parent))
    }

    fn evaluate(&self, pid: u32, node: &Namespaces) -> Result<(), Stranger> {
        if self.uids != [0; 4] {
            return Err(Stranger::Users { pid, uids: self.uids });
        }
        let pairs = Namespaces::KINDS.iter().zip(self.namespaces.0.iter().zip(&node.0));
        match { pairs }.find(|(_, (own, nodes))| own != nodes) {
            Some(((_, namespace), _)) => Err(Stranger::Elsewhere { pid, namespace }),
            None => Ok(()),
        }
    }
}

/// A process's namespaces, as `mnt:[4026531841]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Namespaces([PathBuf; 3]);

impl Namespaces {
    /// Their links, and their words for people.
    const KINDS: [(&str, &str); 3] = [("mnt", "mount"), ("pid", "PID"), ("user", "user")];

    fn of(root: &Path, pid: u32) -> Result<Self, Stranger> {
        let link = |name: &str| {
            let found = fs::read_link(directory(root, pid).join("ns").join(name));
            found.map_err(|error| hidden(pid, error))
        };
        let [(mount, _), (ids, _), (user, _)] = Self::KINDS;
        Ok(Self([link(mount)?, link(ids)?, link(user)?]))
    }
}

/// Whether only root can change a program of this owner and mode; if not, why.
fn evaluate_program(uid: u32, mode: u32) -> Result<(), String> {
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return Err("it is no file".to_owned());
    }
    is_roots(uid, mode).map_err(|why| format!("it {why}"))?;
    if mode & SET_ID != 0 {
        return Err("every user can start it as root: it is set-user-ID or set-group-ID".to_owned());
    }
    Ok(())
}

fn directory(root: &Path, pid: u32) -> PathBuf {
    root.join("proc").join(pid.to_string())
}

fn hidden(pid: u32, source: io::Error) -> Stranger {
    Stranger::Hidden { pid, source }
}

fn read(root: &Path, pid: u32, file: &str) -> Result<String, Stranger> {
    procfs::text(directory(root, pid).join(file)).map_err(|error| hidden(pid, error))
}

/// Reads a file of a process with words that each end in a NUL.
fn words(file: &Path) -> io::Result<Vec<String>> {
    let bytes = fs::read(file)?;
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|byte| *byte == 0);
    Ok(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

#[cfg(test)]
mod tests;
