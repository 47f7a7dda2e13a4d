//! Slurm's jobs: what Slurm has given them, and what it thinks this node has. Nothing that a job's
//! owner writes counts.
//!
//! ```text
//!  every 5 min: scontrol show aliases, slurmd -G ─► Known ─► compared with the cards, in the log
//!  a task:      its cgroup ─► job_of ─► scontrol show job ─► policy::slurm
//! ```

use std::sync::Arc;
use std::time::Duration;

use mpsgate_model::{Code, Mib, Refusal};
use mpsgate_policy::slurm_request::{self, Device, Given, Named, Told};

use crate::DaemonError;
use crate::daemon::Daemon;
use crate::scontrol::{Known, Programs};
use crate::user_turns::Turn;

/// Between two looks at what Slurm thinks this node has, and between two that failed.
const LOOK: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(30);

/// Looks what Slurm thinks this node has, and says what does not fit, for as long as the process
/// lives.
pub(crate) async fn keep(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    if !daemon.settings.now().slurm.jobs {
        return Ok(());
    }
    daemon.started().await;
    let mut told = None;
    loop {
        let programs = Programs::of(&daemon.settings.now().slurm);
        let known = daemon.blocking(move |_| programs.known()).await;
        let known = known.map(Arc::new);
        let found = match &known {
            Ok(known) => differences(&daemon, &known.devices),
            Err(why) => vec![format!("Slurm does not say what this node has: {why}")],
        };
        if told.as_ref() != Some(&found) {
            for what in &found {
                log::error!(what = what.as_str(), hint = "docs/slurm.md"; "Slurm and mpsgate differ");
            }
            if found.is_empty() {
                log::info!("Slurm and mpsgate agree on this node's GPU memory");
            }
            told = Some(found.clone());
        }
        daemon.around().slurm = Some(found);
        let pause = if known.is_ok() { LOOK } else { RETRY };
        daemon.slurm.set(known);
        tokio::time::sleep(pause).await;
    }
}

fn differences(daemon: &Daemon, devices: &[Device]) -> Vec<String> {
    let node = daemon.node();
    let managed = node.cards().iter().filter(|card| card.is_managed() && !card.is_lost());
    let cards: Vec<(u32, Mib)> = managed.map(|card| (card.minor, card.memory)).collect();
    slurm_request::differences(devices, &cards, Mib(daemon.settings.now().slurm.shard_mib))
}

/// The number of a job, and what Slurm has given it on this node. The turn is over when its
/// controller has answered, or is not waited for any more.
pub(crate) async fn given(
    daemon: &Daemon,
    known: &Known,
    job: &Named,
    turn: Option<Turn>,
) -> Result<(u32, Option<Given>), Refusal> {
    let programs = Programs::of(&daemon.settings.now().slurm);
    let (job, node) = (job.clone(), known.node.clone());
    let ask = move |_: &_| {
        let _turn = turn;
        told(&programs, &job, &node)
    };
    daemon.blocking(ask).await
}

/// The first job of an array is told of with the others, and asked for once more alone.
fn told(programs: &Programs, job: &Named, node: &str) -> Result<(u32, Option<Given>), Refusal> {
    let mut name = job.to_string();
    for _ in 0..2 {
        let said = programs.job(&name).map_err(|error| silent(job, &error))?;
        match slurm_request::given(&said.out, job, node)? {
            Told::Job { id, given } => return Ok((id, given)),
            Told::Several(alone) => name = alone,
        }
    }
    Err(slurm_request::unclear("it tells of several jobs where one is asked for"))
}

fn silent(job: &Named, error: &std::io::Error) -> Refusal {
    let or = match job {
        Named::Id(_) => "",
        Named::Sluid(_) => {
            "; cgroup.conf: CgroupJobIdPaths=yes names the cgroups by the jobs' numbers"
        }
    };
    Refusal::new(
        Code::Unconfirmed,
        format!("Slurm does not say what job {job} was given: {error}"),
        format!(
            "scontrol show job -d {job}; slurm.prefix and slurm.conf in /etc/mpsgate/config.toml{or}"
        ),
    )
}

/// Leaves a sentence where the job's owner finds it: `scontrol show job`, `sacct -o admincomment`.
pub(crate) async fn comment(daemon: &Daemon, id: u32, text: &str) {
    let (programs, text) = (Programs::of(&daemon.settings.now().slurm), text.to_owned());
    let said = daemon.blocking(move |_| programs.comment(id, &text)).await;
    if let Err(reason) = said {
        log::warn!(job = id, reason:% = reason; "Slurm was not told why a job was ended");
    }
}
