//! Slurm on this node: its programs, which are asked as root, and which job a process is of. What
//! follows is [`jobs`](crate::jobs)'.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mpsgate_config::{self as config, SlurmConf};
use mpsgate_host::cgroup::{self, CgroupId};
use mpsgate_model::{Code, GrantKey, Refusal};
use mpsgate_policy::slurm::{self, Device};
use tokio::time::timeout;

use crate::process::{self, ProcessId};
use crate::program::{self, Said};

/// For Slurm's programs. Its controller may be busy; Slurm itself gives it 10 s (MessageTimeout).
const LIMIT: Duration = Duration::from_secs(15);
/// How long a job waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(20);

/// How the names of all jobs begin.
const NAME: &str = "job-";

/// What is known of Slurm.
#[derive(Default)]
pub(crate) struct Slurm {
    known: Mutex<Option<Result<Arc<Known>, String>>>,
    looked: tokio::sync::Notify,
    /// Tasks of jobs take turns: of a job's tasks the first brings its grant about.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

/// What Slurm thinks this node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// Slurm's name of it.
    pub(crate) node: String,
    pub(crate) devices: Vec<Device>,
}

/// A job's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: u32,
    pub(crate) cgroup: CgroupId,
}

impl Slurm {
    /// Takes what a look has found.
    pub(crate) fn set(&self, known: Result<Arc<Known>, String>) {
        // Replaced whole: a panic elsewhere has broken nothing.
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        self.looked.notify_waiters();
    }

    fn now(&self) -> Option<Result<Arc<Known>, String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// As the last look has seen it; the first one is waited for.
    pub(crate) async fn known(&self) -> Result<Arc<Known>, Refusal> {
        let first = async {
            loop {
                let looked = self.looked.notified();
                if let Some(known) = self.now() {
                    return known;
                }
                looked.await;
            }
        };
        let late = || Err("it has not answered yet".to_owned());
        timeout(FIRST_LOOK, first).await.unwrap_or_else(|_| late()).map_err(|why| {
            Refusal::new(
                Code::Unconfirmed,
                format!("Slurm does not say what this node has: {why}"),
                "slurmd -G; scontrol show aliases; slurm.prefix and slurm.conf in /etc/mpsgate/config.toml",
            )
        })
    }
}

/// Slurm's programs, and how to call them.
pub(crate) struct Programs {
    scontrol: PathBuf,
    slurmd: PathBuf,
    conf: SlurmConf,
}

impl Programs {
    pub(crate) fn of(settings: &config::Slurm) -> Self {
        let prefix = &settings.prefix;
        let (scontrol, slurmd) = (prefix.join("bin/scontrol"), prefix.join("sbin/slurmd"));
        Self { scontrol, slurmd, conf: settings.conf.clone() }
    }

    fn ask(&self, program: &Path, arguments: &[&str]) -> std::io::Result<Said> {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let conf = match &self.conf {
            SlurmConf::Auto => None,
            SlurmConf::File(path) => Some(("SLURM_CONF", path.as_path())),
        };
        program::ask_aloud(program, &arguments, conf.as_slice(), LIMIT)
    }

    pub(crate) fn known(&self) -> Result<Known, String> {
        let said = |program: &Path, arguments: &[&str]| {
            let told = self.ask(program, arguments);
            told.map_err(|error| format!("{} {}: {error}", program.display(), arguments.join(" ")))
        };
        let names = said(&self.scontrol, &["show", "aliases"])?.out;
        let node = names.split_ascii_whitespace().next().unwrap_or_default();
        if node.is_empty() {
            return Err("slurm.conf has no node with this machine's name".to_owned());
        }
        // What it prints is on stderr.
        let gres = said(&self.slurmd, &["-N", node, "-G"])?;
        Ok(Known { node: node.to_owned(), devices: slurm::devices(&(gres.out + &gres.err)) })
    }

    pub(crate) fn job(&self, id: u32) -> std::io::Result<Said> {
        self.ask(&self.scontrol, &["show", "job", "-d", "-o", &id.to_string()])
    }

    pub(crate) fn comment(&self, id: u32, text: &str) -> std::io::Result<Said> {
        let (id, text) = (format!("JobId={id}"), format!("AdminComment={text}"));
        self.ask(&self.scontrol, &["update", &id, &text])
    }
}

/// The job that a process is of, by the cgroup that Slurm has put it into.
pub(crate) fn job_of(cgroups: &Path, pid: u32) -> Option<Job> {
    let text = cgroup::text_of(pid)?;
    let path = cgroup::of_devices(&text, cgroup::is_unified())?;
    let is_roots =
        |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == 0);
    let (id, directory) = job_at(&cgroup::below(cgroups, &path), is_roots)?;
    Some(Job { id, cgroup: CgroupId::of(&directory)? })
}

/// The directory of a job above one of its tasks': `slurm/uid_U/job_J/step_S/task_T` (v1, 22.05),
/// `slurmstepd.scope/job_J/step_S/user/task_T` (v2). A task's directory is the user's, who makes
/// others below it; up to the job's all are root's.
fn job_at(path: &Path, is_roots: impl Fn(&Path) -> bool) -> Option<(u32, PathBuf)> {
    let mut above = PathBuf::new();
    let mut is_slurms = false;
    for part in path.iter() {
        above.push(part);
        if !is_roots(&above) {
            return None;
        }
        let name = OsStr::to_str(part)?;
        if let Some(id) = name.strip_prefix("job_").filter(|_| is_slurms) {
            return Some((id.parse().ok()?, above));
        }
        is_slurms |= name.starts_with("slurm") || name.ends_with("slurmstepd.scope");
    }
    None
}

/// A job's name among grants.
pub(crate) fn name_of(job: u32) -> String {
    format!("{NAME}{job}")
}

/// Which job a grant is of.
pub(crate) fn id_of(key: &GrantKey) -> Option<u32> {
    let id = key.container_id.as_str().strip_prefix(NAME).filter(|_| key.is_job());
    id?.parse().ok()
}

/// The process of a job that lives longest: the one that is there longest, which with
/// `PrologFlags=Contain` is Slurm's own.
pub(crate) fn oldest(cgroup: &CgroupId) -> Option<ProcessId> {
    let pids = crate::cgroup::processes(cgroup).unwrap_or_default();
    pids.into_iter().filter_map(process::identify).min_by_key(|process| process.start_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_told_by_directories_of_roots_alone() {
        let roots = |_: &Path| true;
        let found = |path: &str, is_roots: &dyn Fn(&Path) -> bool| {
            job_at(Path::new(path), is_roots).map(|(id, path)| format!("{id} {}", path.display()))
        };
        let v1 = "/sys/fs/cgroup/devices/slurm/uid_1000/job_7";
        let v2 = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7";
        for (path, below) in [(v1, "/step_batch/task_0/mine"), (v2, "/step_0/user/task_0")] {
            assert_eq!(found(&format!("{path}{below}"), &roots), Some(format!("7 {path}")));
            assert_eq!(found(path, &roots), Some(format!("7 {path}")));
            // Below a user's directory, or one itself.
            assert_eq!(found(path, &|at| !at.ends_with("job_7")), None);
        }
        let forged = "/sys/fs/cgroup/devices/slurm/uid_1000/job_7/step_0/task_0/slurm/job_9";
        assert_eq!(found(forged, &roots), Some(format!("7 {v1}")));
        for none in [
            "/sys/fs/cgroup/devices/user.slice",
            "/sys/fs/cgroup/devices/job_7",
            "/sys/fs/cgroup/devices/slurm/uid_1000",
            "/sys/fs/cgroup/devices/slurm/uid_1000/job_x",
        ] {
            assert_eq!(found(none, &roots), None, "{none}");
        }
    }
}
