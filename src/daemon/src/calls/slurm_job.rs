//! `job`: a job of Slurm's gets the grant for what Slurm has given it; and its end.
//!
//! The first task of a job asks before its program starts (TaskProlog). Who asks is the user, so
//! nothing of what it says counts: the job is told by the cgroup that Slurm has put the caller
//! into, and how much it was given by Slurm's controller. The job's cgroup stays Slurm's.
//!
//! A job's tasks wait for each other, and for no other job's: a controller that hangs, or a user
//! who asks without end, costs nobody else.

use std::num::NonZeroU32;
use std::sync::Arc;

use mpsgate_api::{Activate, Engine, Reply, Reserve};
use mpsgate_model::ledger::{Entry, State};
use mpsgate_model::{
    Cdi, Code, ContainerId, GpuSelector, GrantKey, Instance, Mib, Priority, Refusal, Request,
};
use mpsgate_policy::slurm_request::{self as policy, Asked, Named};

use super::activate::activate;
use super::caller_process;
use super::reserve::reserve;
use super::{Answer, refused};
use crate::container_cgroup::kill::{self, Meant};
use crate::daemon::Daemon;
use crate::line::{Caller, Line};
use crate::real_machine::ThisMachine;
use crate::scontrol::job_cache::{Given, Said};
use crate::scontrol::job_cgroup::{self, Job};
use crate::{jobs, process_end};

/// The grant of the caller's job. The first of its tasks brings it about.
pub(super) async fn job(daemon: &Arc<Daemon>, line: &mut Line, caller: Caller) -> Answer {
    let process = caller_process::of(&caller)?;
    let uid = process_end::uid(process.pid).ok_or_else(caller_process::gone)?;
    let cgroups = daemon.paths.cgroups.clone();
    let find = move |_: &_| job_cgroup::of(&cgroups, process.pid);
    let Some(job) = daemon.blocking(find).await else {
        return Err(Refusal::new(
            Code::Unconfirmed,
            "the process that asks is in no cgroup of a Slurm job's devices",
            "slurm.conf: ProctrackType=proctrack/cgroup, TaskPlugin=task/cgroup; cgroup.conf: \
             ConstrainDevices=yes (docs/slurm.md)",
        ));
    };
    // The caller may have gone while its pid was looked at, and somebody else have it.
    if !caller_process::waits(line, &caller, process) {
        return Err(caller_process::gone());
    }
    if let Some(reply) = granted(daemon, &job) {
        return Ok(reply);
    }
    let lock = daemon.slurm.jobs.of(&job);
    let mut answer = line.wait("another task of the job is being answered", lock.lock()).await;
    if let Some(reply) = granted(daemon, &job) {
        return Ok(reply);
    }
    // It may have ended in the queue: what is said of it then is no answer for the others.
    if !caller_process::waits(line, &caller, process) {
        return Err(caller_process::gone());
    }
    let said = if let Some(said) = answer.now().cloned() {
        said
    } else {
        let said = asked(daemon, line, &job, uid).await;
        if let Said::Refused(refusal) = &said {
            refused(daemon, &job_cgroup::name(&job.named), None, refusal);
        }
        answer.keep(said.clone());
        said
    };
    match said {
        Said::Given(given) => grant(daemon, line, caller, job, uid, given).await,
        Said::Nothing => Ok(nothing()),
        Said::Refused(refusal) => Err(refusal),
    }
}

/// Gives a job what Slurm has given it. The cgroup stays Slurm's.
async fn grant(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: Caller,
    job: Job,
    uid: u32,
    given: Given,
) -> Answer {
    let key = name(given.id)?;
    let wanted = Reserve {
        key: key.clone(),
        request: given.request,
        uid,
        engine: Engine::Slurm,
        pod: None,
        for_parent: false,
        user: None,
    };
    let reserved = reserve(daemon, line, &caller, &wanted).await;
    let reserved = reserved.map_err(|refusal| advised(refusal, given.hint))?;
    let init = job_cgroup::oldest(&job.cgroup).ok_or_else(caller_process::gone)?;
    let call = Activate { key, pid: init.pid, cgroup: Some(job.cgroup), grant: None };
    // Whom a descriptor of the user's refers to does not matter: the job's cgroup does.
    activate(daemon, line, Caller { fd: None, ..caller }, &call).await?;
    Ok(reserved.keep())
}

/// With what helps where Slurm counts more than the card has.
fn advised(refusal: Refusal, hint: Option<String>) -> Refusal {
    match hint {
        Some(hint) if refusal.code == Code::TooLarge => Refusal { hint, ..refusal },
        _ => refusal,
    }
}

/// To a task of a job to which Slurm has given none of our memory.
fn nothing() -> Reply {
    Reply::Done { text: String::new() }
}

/// The grant that the job has.
fn granted(daemon: &Daemon, job: &Job) -> Option<Reply> {
    let node = daemon.node();
    let is_jobs = |entry: &&Entry| match &entry.state {
        State::Active { cgroup: Some(cgroup), .. } => {
            entry.grant.key.is_job() && *cgroup == job.cgroup
        }
        _ => false,
    };
    let entry = node.ledger().entries().iter().find(is_jobs)?;
    let grant = Box::new(entry.grant.clone());
    Some(Reply::Reserved { grant, cdi: Box::new(Cdi::Absent) })
}

fn name(job: u32) -> Result<GrantKey, Refusal> {
    let failed = |why: String| {
        let sentence = format!("a name for job {job} cannot be made: {why}");
        Refusal::new(Code::Unconfirmed, sentence, "journalctl -u mpsgated -n 50")
    };
    let bytes = mpsgate_host::random::bytes().map_err(|error| failed(error.to_string()))?;
    Ok(GrantKey {
        runtime_root: GrantKey::jobs(),
        container_id: ContainerId::parse(&job_cgroup::name(&Named::Id(job)))
            .map_err(|error| failed(error.to_string()))?,
        instance: Instance::from_bytes(bytes),
    })
}

/// What Slurm has given the job of a user.
async fn asked(daemon: &Arc<Daemon>, line: &mut Line, job: &Job, uid: u32) -> Said {
    if daemon.is_starting() {
        line.wait("mpsgated has just started and prepares the GPUs", daemon.started()).await;
    }
    let known = match line.wait("slurmd tells what this node has", daemon.slurm.known()).await {
        Ok(known) => known,
        Err(refusal) => return Said::Refused(refusal),
    };
    let waits = "other questions to Slurm's controller are answered first";
    let turn = line.wait(waits, daemon.slurm.turns.next(uid)).await;
    let doing = format!("Slurm's controller tells what job {} was given", job.named);
    let (id, given) = match line.wait(&doing, jobs::given(daemon, &known, &job.named, turn)).await {
        Ok((id, Some(given))) => (id, given),
        Ok((_, None)) => return Said::Nothing,
        Err(refusal) => return Said::Refused(refusal),
    };
    let memory_of = |minor| card_of(daemon, minor).map(|(_, memory)| memory);
    let shard = Mib(daemon.settings.now().slurm.shard_mib);
    match policy::ask(&given, &known.devices, memory_of, shard) {
        Ok(asked) => {
            let request = request(daemon, &asked);
            Said::Given(Given { id, request, hint: asked.hint })
        }
        Err(refusal) => Said::Refused(refusal),
    }
}

/// A managed card and what of it may be granted.
fn card_of(daemon: &Daemon, minor: u32) -> Option<(GpuSelector, Mib)> {
    let node = daemon.node();
    let card = node.cards().iter().find(|card| card.minor == minor && card.is_managed())?;
    Some((GpuSelector::Uuid(card.uuid.clone()), card.memory))
}

fn request(daemon: &Daemon, asked: &Asked) -> Request {
    Request {
        memory: Some(asked.memory),
        cards: NonZeroU32::MIN,
        gpu: card_of(daemon, asked.minor).map(|(gpu, _)| gpu),
        compute: asked.compute,
        priority: Priority::Normal,
        uid: None,
        token: None,
    }
}

/// Ends what is left of a job when Slurm thinks that it has ended (Epilog): its user can hide a
/// process from Slurm in a cgroup below the task's.
pub(super) async fn end(daemon: &Arc<Daemon>, line: &mut Line, job: u32) -> Answer {
    let entry = {
        let node = daemon.node();
        let name = job_cgroup::name(&Named::Id(job));
        let mut entries = node.ledger().entries().iter();
        let found = entries.find(|entry| {
            entry.grant.key.is_job() && entry.grant.key.container_id.as_str() == name
        });
        found.map(|entry| (entry.clone(), Meant::of(&entry.grant, node.nested(entry))))
    };
    let Some((entry, meant)) = entry else { return Ok(nothing()) };
    let key = entry.grant.key.clone();
    if let State::Active { init, cgroup: Some(cgroup) } = entry.state {
        let work = move |_: &_| kill::kill(&cgroup, &init, &meant);
        let killed = daemon.blocking(work);
        if let Err(error) = line.wait("what is left of the job is ended", killed).await {
            return Err(Refusal::new(
                Code::Ledger,
                format!("what is left of job {job} lives: {error}"),
                "mpsgate status; its memory is free when its last process has ended",
            ));
        }
    }
    daemon.change(|node, effects| {
        // The memory is free as soon as none of the user's processes is there.
        if node.remains(&key, &ThisMachine).is_none() {
            node.release(&key, "job ended", effects);
        }
    });
    Ok(Reply::Done { text: format!("{} released", entry.grant.memory) })
}
