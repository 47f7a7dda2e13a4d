//! Slurm on this node: its programs, which are asked as root, and its jobs. What follows is
//! [`jobs`](crate::jobs)'.

pub(crate) mod job_cache;
pub(crate) mod job_cgroup;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mpsgate_config::{self as config, SlurmConf};
use mpsgate_model::{Code, Refusal};
use mpsgate_policy::slurm_request::{self, Device};
use tokio::time::timeout;

use self::job_cache::Jobs;
use crate::node_programs::{self, Said};
use crate::user_turns::Turns;

/// For Slurm's programs. Its controller may be busy; Slurm itself gives it 10 s (MessageTimeout).
const LIMIT: Duration = Duration::from_secs(15);
/// How long a job waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(20);

/// What is known of Slurm.
#[derive(Default)]
pub(crate) struct Slurm {
    known: Mutex<Option<Result<Arc<Known>, String>>>,
    looked: tokio::sync::Notify,
    /// The tasks of a job take turns: the first of them brings its grant about.
    pub(crate) jobs: Jobs,
    /// To ask the controller.
    pub(crate) turns: Turns,
}

/// What Slurm thinks this node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// Slurm's name of it.
    pub(crate) node: String,
    pub(crate) devices: Vec<Device>,
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
        node_programs::ask_aloud(program, &arguments, conf.as_slice(), LIMIT)
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
        Ok(Known {
            node: node.to_owned(),
            devices: slurm_request::devices(&(gres.out + &gres.err)),
        })
    }

    /// What the controller says of a job, by a name that `scontrol` knows.
    pub(crate) fn job(&self, name: &str) -> std::io::Result<Said> {
        self.ask(&self.scontrol, &["show", "job", "-d", "-o", name])
    }

    pub(crate) fn comment(&self, id: u32, text: &str) -> std::io::Result<Said> {
        let (id, text) = (format!("JobId={id}"), format!("AdminComment={text}"));
        self.ask(&self.scontrol, &["update", &id, &text])
    }
}
