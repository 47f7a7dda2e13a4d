//! What callers want: reserve, activate, release, report, status, enable, disable.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_allocation::ledger::{Entry, ProcessId};
use mpsgate_allocation::{Cdi, GpuUuid, Grant, GrantKey};
use mpsgate_api::{Activate, Call, Release, Reply, Report, Reserve};
use mpsgate_config::InjectMode;
use mpsgate_policy::{Code, Refusal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::daemon::{Daemon, now_ms};
use crate::keeper::Order;
use crate::socket::{Caller, Line};
use crate::{DaemonError, cgroup, devices, operator, process, status, watch};

/// Beyond `mps.start_timeout` for orders that were there before ours.
const SERVER_SLACK: Duration = Duration::from_secs(10);
/// For one limit: some commands of at most 3 s, after those of others.
const CAP_LIMIT: Duration = Duration::from_secs(20);

/// Answers one call. `Err` ends the process: it means that a task of ours broke.
pub(crate) async fn handle(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: Caller,
    call: Call,
) -> Result<Reply, DaemonError> {
    let answer = match call {
        Call::Reserve(call) => reserve(daemon, line, &caller, &call).await?,
        Call::Activate(call) => activate(daemon, line, caller, &call).await,
        Call::Release(call) => release(daemon, &call),
        Call::Report(call) => Ok(report(daemon, &call)),
        Call::Status => Ok(Reply::Status(Box::new(status::now(daemon).await?))),
        Call::Enable { gpu } => operator::enable(daemon, line, &gpu).await?,
        Call::Disable { gpu } => operator::disable(daemon, line, &gpu).await?,
    };
    Ok(answer.unwrap_or_else(|refusal| Reply::Refused(refusal.into())))
}

type Answer = Result<Reply, Refusal>;

async fn reserve(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: &Caller,
    call: &Reserve,
) -> Result<Answer, DaemonError> {
    let holder = caller.pid.and_then(process::identify).filter(|_| line.is_open());
    let Some(holder) = holder else {
        return Ok(Err(Refusal::new(
            Code::Unconfirmed,
            "mpsgated cannot see the process that asks: it is in another pid namespace, or has ended",
            "let the container engine and mpsgated run in the host's pid namespace",
        )));
    };
    let reserved = {
        let majors = devices::majors();
        let mut node = daemon.node();
        let reserved = node.reserve(call, holder, &majors, &process::is_alive, now_ms());
        if let Ok(reserved) = &reserved
            && let Some(entry) = node.ledger().get(&reserved.grant.key)
        {
            watch::start(daemon, entry);
        }
        reserved
    };
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(refusal) => {
            refused(daemon, &call.key, &refusal);
            return Ok(Err(refusal));
        }
    };
    if let Err(refusal) = daemon.recorded().await {
        give_up(daemon, &call.key);
        refused(daemon, &call.key, &refusal);
        return Ok(Err(refusal));
    }
    let grant = reserved.grant;
    let card = grant.cards.first().map(|card| card.uuid.clone());
    log::info!(
        container = call.key.container_id.as_str(), instance = call.key.instance.as_str(),
        uuid = card.as_ref().map(GpuUuid::as_str), memory_mib = grant.memory.0, uid = grant.uid,
        pid = holder.pid; "reserved"
    );
    if let Some(card) = &card {
        daemon.order(card, Order::Cap { reply: None });
    }
    if let (true, Some(card)) = (reserved.needs_server, card) {
        let doing = format!("the MPS server of {card} for uid {} is being started", call.uid);
        if let Err(refusal) = line.wait(&doing, server(daemon, &card, call.uid)).await {
            give_up(daemon, &call.key);
            refused(daemon, &call.key, &refusal);
            return Ok(Err(refusal));
        }
    }
    let cdi = Box::new(cdi_edits(daemon, &grant));
    Ok(Ok(Reply::Reserved { grant: Box::new(grant), cdi }))
}

/// What the node's CDI specifications say of the card, where the settings let the shim use it.
fn cdi_edits(daemon: &Daemon, grant: &Grant) -> Cdi {
    if !matches!(daemon.config.inject.mode, InjectMode::Auto | InjectMode::Cdi) {
        return Cdi::Absent;
    }
    let Some(card) = grant.cards.first() else { return Cdi::Absent };
    let mut specifications = daemon.cdi();
    let mut problem = None;
    // Their generator names devices by index, by UUID or by both, as its user wished.
    for name in [card.uuid.to_string(), card.index.to_string()] {
        match specifications.resolve(&name) {
            Ok(Some(edits)) => return Cdi::Edits(edits),
            Ok(None) => {}
            Err(error) => {
                problem.get_or_insert_with(|| crate::error::chain(&error));
            }
        }
    }
    problem.map_or(Cdi::Absent, Cdi::Problem)
}

fn give_up(daemon: &Daemon, key: &GrantKey) {
    let expired = daemon.node().expire(key);
    if let Some(entry) = expired {
        daemon.ended(&entry, "reservation given up");
    }
}

/// Waits until the card's server takes clients of `uid`.
async fn server(daemon: &Daemon, card: &GpuUuid, uid: u32) -> Result<(), Refusal> {
    let limit = Duration::from_secs(daemon.config.mps.start_timeout_s.into()) + SERVER_SLACK;
    ask_keeper(daemon, card, limit, |reply| Order::Server { uid, reply }).await.unwrap_or_else(
        || {
            Err(Refusal::new(
                Code::MpsServer,
                format!(
                    "the MPS server of {card} for uid {uid} was not ready after {} s",
                    limit.as_secs()
                ),
                "mpsgate status; journalctl -u mpsgated -n 50",
            ))
        },
    )
}

/// Waits until MPS allows the card's clients as much as its largest grant: a client can lower that
/// limit, never raise it.
async fn limit(daemon: &Daemon, card: &GpuUuid) -> Result<(), Refusal> {
    let asked = ask_keeper(daemon, card, CAP_LIMIT, |reply| Order::Cap { reply: Some(reply) });
    asked.await.unwrap_or_else(|| {
        Err(Refusal::new(
            Code::GpuUnhealthy,
            format!(
                "the MPS control daemon of {card} did not take the limit in {} s",
                CAP_LIMIT.as_secs()
            ),
            "mpsgate status; journalctl -u mpsgated -n 50",
        ))
    })
}

/// `None` where the answer does not come in time.
async fn ask_keeper(
    daemon: &Daemon,
    card: &GpuUuid,
    limit: Duration,
    order: impl FnOnce(oneshot::Sender<Result<(), Refusal>>) -> Order,
) -> Option<Result<(), Refusal>> {
    let gone = || {
        Refusal::new(Code::GpuUnhealthy, format!("{card} is being taken back"), "mpsgate status")
    };
    let (reply, answer) = oneshot::channel();
    if !daemon.order(card, order(reply)) {
        return Some(Err(gone()));
    }
    let answer = timeout(limit, answer).await.ok()?;
    Some(answer.unwrap_or_else(|_| Err(gone())))
}

async fn activate(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: Caller,
    call: &Activate,
) -> Answer {
    let entry = container_init(&caller, call).and_then(|init| {
        check_cgroup(call, init)?;
        let mut node = daemon.node();
        let entry = node.activate(call, init, &process::is_alive, now_ms())?;
        watch::start(daemon, &entry);
        Ok(entry)
    });
    let entry = match entry {
        // Where this fails the hook ends the container, and the grant ends with it.
        Ok(entry) => daemon.recorded().await.map(|()| entry),
        Err(refusal) => Err(refusal),
    };
    let answer = match entry {
        Ok(entry) => {
            log::info!(
                container = call.key.container_id.as_str(), instance = call.key.instance.as_str(),
                uuid = entry.grant.cards.first().map(|card| card.uuid.as_str()),
                memory_mib = entry.grant.memory.0,
                cgroup = call.cgroup.as_ref().map(|cgroup| cgroup.path.as_str());
                "grant active"
            );
            // The container's program starts when this is answered. Reserve has asked for the limit,
            // so mostly it is there.
            match capped_card(daemon, &entry) {
                Some(card) => {
                    line.wait("the card's memory limit is being set", limit(daemon, &card)).await
                }
                None => Ok(()),
            }
        }
        Err(refusal) => Err(refusal),
    };
    match answer {
        Ok(()) => Ok(Reply::Done { text: String::new() }),
        Err(refusal) => {
            refused(daemon, &call.key, &refusal);
            Err(refusal)
        }
    }
}

/// The entry's card, where MPS allows its clients less than this grant.
fn capped_card(daemon: &Daemon, entry: &Entry) -> Option<GpuUuid> {
    let node = daemon.node();
    let card = node.card(&entry.grant.cards.first()?.uuid)?;
    (card.cap < entry.grant.memory).then(|| card.uuid.clone())
}

/// The container's init in our pid namespace: what the pidfd refers to, whatever the hook's own
/// namespace calls it; without a pidfd (before kernel 5.3) the pid itself.
fn container_init(caller: &Caller, call: &Activate) -> Result<ProcessId, Refusal> {
    let wrong = |sentence: String| {
        Refusal::new(
            Code::HookState,
            sentence,
            "create the container again; if it happens again, look at: journalctl -u mpsgated -n 50",
        )
    };
    let pid = match &caller.fd {
        None => call.pid,
        Some(fd) => {
            let referred = process::refers_to(fd).ok_or_else(|| {
                wrong(format!(
                    "the descriptor that its hook sent for pid {} is no pidfd of a process that lives in \
                     mpsgated's pid namespace",
                    call.pid
                ))
            })?;
            if referred.pid != call.pid && !referred.nested.contains(&call.pid) {
                return Err(wrong(format!(
                    "its hook named pid {}, but sent a descriptor of pid {}",
                    call.pid, referred.pid
                )));
            }
            referred.pid
        }
    };
    process::identify(pid).ok_or_else(|| wrong(format!("its init, pid {pid}, has ended")))
}

fn check_cgroup(call: &Activate, init: ProcessId) -> Result<(), Refusal> {
    let Some(cgroup) = &call.cgroup else { return Ok(()) };
    let wrong = |why: String| {
        Refusal::new(
            Code::HookState,
            format!("its hook named the cgroup {}, but {why}", cgroup.path),
            "create the container again; if it happens again, look at: journalctl -u mpsgated -n 50",
        )
    };
    match cgroup::contains(cgroup, init.pid) {
        Ok(true) => Ok(()),
        Ok(false) => Err(wrong(format!("its init, pid {}, is not in it", init.pid))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn release(daemon: &Daemon, call: &Release) -> Answer {
    let released = daemon.node().release(&call.key);
    let text = match released {
        Some(entry) => {
            daemon.ended(&entry, "released");
            format!("{} released", entry.grant.memory)
        }
        None => String::new(),
    };
    Ok(Reply::Done { text })
}

fn report(daemon: &Daemon, call: &Report) -> Reply {
    count(daemon, &call.container_id, &call.code, &call.action, &call.sentence);
    Reply::Done { text: String::new() }
}

fn refused(daemon: &Daemon, key: &GrantKey, refusal: &Refusal) {
    count(daemon, key.container_id.as_str(), refusal.code.as_str(), "refused", &refusal.sentence);
}

/// One line, and one more in `status`.
fn count(daemon: &Daemon, container: &str, code: &str, action: &str, sentence: &str) {
    log::warn!(container, code, action, reason = sentence; "container not started as asked");
    // Codes come from root's own programs, maybe of another version; what is no code is not kept.
    let is_code = code.len() <= 40 && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let code = if is_code { code } else { "OTHER" };
    *daemon.node().reports.entry(code.to_owned()).or_default() += 1;
}
