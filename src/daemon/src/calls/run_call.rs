//! `run`: a plain process gets a grant, and a cgroup of its own in which it goes on. It calls, is
//! put there, and becomes its command by itself: nothing that a user names is opened or executed
//! here.

use std::sync::Arc;

use mpsgate_api::{Activate, Engine, Reserve, Run};
use mpsgate_host::crash_point;
use mpsgate_model::{Code, ContainerId, Grant, GrantKey, Instance, Refusal, Request, user_shown};

use super::activate::activate;
use super::caller_process;
use super::reserve::reserve;
use super::{Answer, refused};
use crate::daemon::Daemon;
use crate::line::{Caller, Line};
use crate::{owner, process_end, runs};

pub(super) async fn run(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: Caller,
    call: &Run,
) -> Answer {
    if caller.user.is_some_and(|user| user != call.uid) {
        return Err(Refusal::new(
            Code::Unconfirmed,
            "a user asks for another user's process",
            "run it as that user, or as root with --user",
        ));
    }
    is_right(&call.request)?;
    may_be_called(&call.name)?;
    let user = caller.user.map(|uid| user_shown(uid, caller.name.as_deref()));
    let wanted = Reserve {
        key: GrantKey {
            runtime_root: GrantKey::run_of(caller.user),
            container_id: call.name.clone(),
            instance: instance()?,
        },
        request: call.request.clone(),
        uid: call.uid,
        engine: if caller.user.is_some() { Engine::User } else { Engine::Local },
        pod: None,
        for_parent: false,
        user,
    };
    let reserved = reserve(daemon, line, &caller, &wanted).await?;
    // A process gets one grant, however often it asks at once: in its turn it is seen in the cgroup
    // of its first.
    let doing = "another process gets a cgroup of its own";
    let _turn = line.wait(doing, daemon.confining.lock()).await;
    let call = confine(daemon, line, &caller, &reserved.grant)
        .await
        .inspect_err(|refusal| refused(daemon, &reserved.grant.name(), None, refusal))?;
    activate(daemon, line, caller, &call).await.inspect_err(|_| remove_after(daemon, &call))?;
    Ok(reserved.keep())
}

fn instance() -> Result<Instance, Refusal> {
    mpsgate_host::random::bytes().map(Instance::from_bytes).map_err(|error| {
        let why = format!("the kernel gives no random bytes: {error}");
        Refusal::new(Code::Unconfirmed, why, "run it again when the node has booted")
    })
}

/// A user's words need not come from our command, which sends nothing else.
fn is_right(request: &Request) -> Result<(), Refusal> {
    let Request { memory, cards, compute, uid, token, .. } = request;
    let has_memory = memory.is_some_and(|memory| memory.0 > 0);
    let is_share = compute.is_none_or(|share| (1..=100).contains(&share.0));
    if has_memory && cards.get() == 1 && is_share && uid.is_none() && token.is_none() {
        return Ok(());
    }
    Err(Refusal::new(
        Code::Request,
        "it asks for no memory, for several GPUs, or for more than 100 percent of one",
        "mpsgate run --gpu-mem 7Gi --compute 30 -- COMMAND",
    ))
}

/// What begins so is mpsgate's own, such as the containers that ask a card.
const OWN: &str = "mpsgate-";

fn may_be_called(name: &ContainerId) -> Result<(), Refusal> {
    let Some(rest) = name.as_str().strip_prefix(OWN) else { return Ok(()) };
    let other = if rest.is_empty() { "train" } else { rest };
    Err(Refusal::new(
        Code::Request,
        format!("the name {name} begins with {OWN}, as names of mpsgate's own do"),
        format!("choose another name: mpsgate run --name {other} …"),
    ))
}

/// Puts the caller into a cgroup of its own; what activates its reservation then.
async fn confine(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: &Caller,
    grant: &Grant,
) -> Result<Activate, Refusal> {
    let process = caller_process::of(caller)?;
    let entries = daemon.node().entries();
    let owner = move |_: &_| owner::of(process.pid, &entries).map(|entry| entry.grant.name());
    if let Some(other) = daemon.blocking(owner).await {
        return Err(Refusal::new(
            Code::Cgroup,
            format!("the process that asks is one of {other}, which has a grant"),
            "ask for all of it at once, or from a process beside it",
        ));
    }
    crash_point!("daemon.run.reserved");
    let (cgroups, wanted) = (daemon.paths.cgroups.clone(), grant.clone());
    let made = daemon.blocking(move |_| runs::confine(&cgroups, &wanted, process));
    let cgroup = line.wait("the process gets a cgroup of its own", made).await?;
    crash_point!("daemon.run.confined");
    // Its pid was its own until now, and so the one that was moved.
    if !caller_process::waits(line, caller, process) {
        runs::remove(&cgroup);
        return Err(caller_process::gone());
    }
    let key = grant.key.clone();
    Ok(Activate { key, pid: process.pid, cgroup: Some(cgroup), grant: None })
}

/// The caller is in its cgroup until it ends.
fn remove_after(daemon: &Arc<Daemon>, call: &Activate) {
    let (Some(process), Some(cgroup)) = (process_end::identify(call.pid), call.cgroup.clone())
    else {
        return;
    };
    daemon.spawn(format!("removes the cgroup of {}", call.key), async move {
        process_end::ended(&process).await;
        runs::remove(&cgroup);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::num::NonZeroU32;

    use mpsgate_model::{ComputeShare, Mib, Priority};

    use super::*;

    #[test]
    fn what_begins_as_mpsgates_own_is_nobodys_name() {
        let name = |text: &str| may_be_called(&ContainerId::parse(text).unwrap());
        for fine in ["train", "mpsgate", "my-mpsgate-1", "Mpsgate-1", "mpsgate_1"] {
            name(fine).unwrap();
        }
        for (own, other) in [
            ("mpsgate-", "--name train"),
            ("mpsgate-train", "--name train"),
            ("mpsgate-qualify-0897a975fd16f0d8x", "--name qualify-0897a975fd16f0d8x"),
        ] {
            let refusal = name(own).unwrap_err();
            assert_eq!(refusal.code, Code::Request);
            assert!(refusal.sentence.contains(own) && refusal.hint.contains(other), "{refusal:?}");
        }
    }

    #[test]
    fn a_user_asks_for_some_memory_of_one_card_and_no_more_than_all_of_its_compute() {
        let right = Request {
            memory: Some(Mib(1)),
            cards: NonZeroU32::MIN,
            gpu: None,
            compute: Some(ComputeShare(100)),
            priority: Priority::Low,
            uid: None,
            token: None,
        };
        is_right(&right).unwrap();
        for wrong in [
            Request { memory: None, ..right.clone() },
            Request { memory: Some(Mib(0)), ..right.clone() },
            Request { cards: NonZeroU32::new(2).unwrap(), ..right.clone() },
            Request { compute: Some(ComputeShare(0)), ..right.clone() },
            Request { compute: Some(ComputeShare(101)), ..right.clone() },
            Request { uid: Some(0), ..right.clone() },
            Request { token: Some(String::new()), ..right.clone() },
        ] {
            assert_eq!(is_right(&wrong).unwrap_err().code, Code::Request, "{wrong:?}");
        }
    }
}
