//! What callers want: reserve, activate, release, report, status, enable, disable.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::{Activate, Call, Release, Reply, Report, Reserve};
use mpsgate_config::InjectMode;
use mpsgate_crashpoint::crash_point;
use mpsgate_model::ledger::{Entry, ProcessId};
use mpsgate_model::{Cdi, CdiEdits, GpuUuid, Grant, GrantKey, GrantedCard, PodContainer};
use mpsgate_model::{Code, Refusal};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::card::Card;
use crate::daemon::{Daemon, card_names, now_ms};
use crate::judged::Telling;
use crate::keeper::Order;
use crate::socket::{Caller, Line};
use crate::{
    DaemonError, api_server, cgroup, devices, limits, operator, process, reload, schedule, status,
    terminate, tokens, watch,
};

const WARNED: &str = mpsgate_policy::NoteAction::Warned.as_str();
/// What a container is let do and an operator should be able to find: logged, and no warning.
const NOTED: &str = mpsgate_policy::NoteAction::Noted.as_str();
const REFUSED: &str = "refused";
/// Of a sentence, what goes into the log: characters.
const LONGEST_REASON: usize = 1024;
/// Beyond `mps.start_timeout` for orders that were there before ours.
const SERVER_SLACK: Duration = Duration::from_secs(10);
/// For one limit: some commands of at most 3 s, after those of others.
const CAP_LIMIT: Duration = Duration::from_secs(20);

/// How long a container waits for the last processes of its earlier life, and how often they are looked
/// at: an engine that creates it again has killed them just before.
const REMAINS_LIMIT: Duration = Duration::from_secs(2);
/// How long it waits for those of its pod's earlier containers. Kubelet gives a container two minutes in all.
const POD_LIMIT: Duration = Duration::from_secs(4);
const REMAINS_LOOK: Duration = Duration::from_millis(20);

/// Answers one call. `Err` ends the process: it means that a task of ours broke.
pub(crate) async fn handle(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: Caller,
    call: Call,
) -> Result<Reply, DaemonError> {
    let since = Instant::now();
    let answer = match call {
        Call::Reserve(call) => {
            let answer = reserve(daemon, line, &caller, &call).await?;
            daemon.node().events.reserved(since.elapsed(), answer.is_ok());
            answer
        }
        Call::Activate(call) => {
            let answer = activate(daemon, line, caller, &call).await;
            daemon.node().events.activated(since.elapsed(), answer.is_ok());
            answer
        }
        Call::Release(call) => release(daemon, &call),
        Call::Terminate(call) => terminate::clients(daemon, &call).await,
        Call::Report(call) => Ok(report(daemon, &call)),
        Call::Status => Ok(Reply::Status(Box::new(status::now(daemon).await?))),
        Call::Enable { gpu } => operator::enable(daemon, line, &gpu).await?,
        Call::Disable { gpu } => operator::disable(daemon, line, &gpu).await?,
        Call::Mps(call) => operator::mps(daemon, line, &call).await?,
        Call::Reload => reload::now(daemon, line).await?,
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
    let pid = if call.for_parent { caller.pid.and_then(process::parent) } else { caller.pid };
    let holder = pid.and_then(process::identify).filter(|_| line.is_open());
    let Some(holder) = holder else {
        return Ok(Err(Refusal::new(
            Code::Unconfirmed,
            "mpsgated cannot see the process that asks: it is in another pid namespace, or has ended",
            "let the container engine and mpsgated run in the host's pid namespace",
        )));
    };
    let confirmed = match tokens::confirm(daemon, call).await? {
        Ok(confirmed) => confirmed,
        Err(refusal) => {
            refused(daemon, &call.key, call.pod.as_ref(), &refusal);
            return Ok(Err(refusal));
        }
    };
    let majors = devices::majors();
    let try_it = || {
        let mut node = daemon.node();
        let reserved =
            node.reserve(call, confirmed.as_ref(), holder, &majors, &process::is_alive, now_ms());
        if let Ok(reserved) = &reserved
            && let Some(entry) = node.ledger().get(&reserved.grant.key)
        {
            watch::start(daemon, entry);
            if call.for_parent {
                watch::limit(daemon, entry);
            }
        }
        reserved
    };
    let mut reserved = try_it();
    // Its own earlier life may have been the last that a switch of the schedule waited for.
    if reserved.is_err() && schedule::advance(daemon) {
        reserved = try_it();
    }
    // Nobody is refused because mpsgated has just been restarted.
    if reserved.is_err() && daemon.is_starting() {
        line.wait("mpsgated has just started and prepares the GPUs", daemon.started()).await;
        reserved = try_it();
    }
    if reserved.is_err() && remains(daemon, &call.key) {
        line.wait("the container's earlier life is ending", earlier_life_over(daemon, call)).await;
        reserved = try_it();
    }
    // Kubelet gives the devices of an init container to the next one, and a container's to its restart, as soon as
    // the runtime has told it of the end.
    if let (Err(_), Some(confirmed)) = (&reserved, &confirmed) {
        let pod = confirmed.handed.pod.uid.as_str();
        if pod_is_ending(daemon, pod) {
            line.wait("an earlier container of its pod is ending", pod_over(daemon, pod)).await;
            reserved = try_it();
        }
    }
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(refusal) => {
            refused(daemon, &call.key, call.pod.as_ref(), &refusal);
            return Ok(Err(refusal));
        }
    };
    crash_point!("daemon.reserve.changed");
    daemon.tell_ledger_change();
    if let Err(refusal) = daemon.recorded().await {
        give_up(daemon, &call.key);
        refused(daemon, &call.key, call.pod.as_ref(), &refusal);
        return Ok(Err(refusal));
    }
    let grant = reserved.grant;
    let card = grant.cards.first().filter(|_| grant.uses_mps()).map(|card| card.uuid.clone());
    log::info!(
        container = call.key.container_id.as_str(), instance = call.key.instance.as_str(),
        uuid = card_names(&grant).as_str(), memory_mib = grant.memory.0, uid = grant.uid,
        pid = holder.pid; "reserved"
    );
    if let Some(card) = &card {
        daemon.order(card, Order::Cap { reply: None });
    }
    if let (true, Some(card)) = (reserved.needs_server, card) {
        let doing = format!("the MPS server of {card} for uid {} is being started", call.uid);
        if let Err(refusal) = line.wait(&doing, server(daemon, &card, call.uid)).await {
            give_up(daemon, &call.key);
            refused(daemon, &call.key, call.pod.as_ref(), &refusal);
            return Ok(Err(refusal));
        }
    }
    let cdi = Box::new(cdi_edits(daemon, &grant));
    crash_point!("daemon.reserve.stored");
    Ok(Ok(Reply::Reserved { grant: Box::new(grant), cdi }))
}

fn remains(daemon: &Daemon, key: &GrantKey) -> bool {
    daemon.node().remains(key, &process::is_alive).is_some()
}

/// Waits for the last processes of the container's earlier life.
async fn earlier_life_over(daemon: &Daemon, call: &Reserve) {
    let over = async {
        while remains(daemon, &call.key) {
            tokio::time::sleep(REMAINS_LOOK).await;
        }
    };
    let _ = timeout(REMAINS_LIMIT, over).await;
}

fn pod_is_ending(daemon: &Daemon, pod: &str) -> bool {
    daemon.node().pod_is_ending(pod, &process::is_alive)
}

/// Waits for the last processes of containers of a pod whose init has ended.
async fn pod_over(daemon: &Daemon, pod: &str) {
    let over = async {
        while pod_is_ending(daemon, pod) {
            tokio::time::sleep(REMAINS_LOOK).await;
        }
    };
    let _ = timeout(POD_LIMIT, over).await;
}

/// What the node's CDI specifications say of the cards, where the settings let the shim use it.
fn cdi_edits(daemon: &Daemon, grant: &Grant) -> Cdi {
    if !matches!(daemon.settings.now().inject.mode, InjectMode::Auto | InjectMode::Cdi) {
        return Cdi::Absent;
    }
    let mut specifications = daemon.cdi();
    let mut all: Option<CdiEdits> = None;
    for card in &grant.cards {
        match (cdi_of_card(&mut specifications, card), &mut all) {
            (Cdi::Edits(edits), Some(all)) => all.merge(edits),
            (Cdi::Edits(edits), None) => all = Some(edits),
            // One card without what it needs is none that works.
            (other, _) => return other,
        }
    }
    all.map_or(Cdi::Absent, Cdi::Edits)
}

fn cdi_of_card(specifications: &mut mpsgate_cdi::Cache, card: &GrantedCard) -> Cdi {
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
    let limit =
        Duration::from_secs(daemon.settings.now().mps.start_timeout_s.into()) + SERVER_SLACK;
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
        crash_point!("daemon.activate.changed");
        Ok(entry)
    });
    let entry = match entry {
        // Where this fails the hook ends the container, and the grant ends with it.
        Ok(entry) => daemon.recorded().await.map(|()| entry),
        Err(refusal) => Err(refusal),
    };
    let answer = match entry {
        Ok(entry) => {
            crash_point!("daemon.activate.stored");
            daemon.tell_ledger_change();
            log::info!(
                container = call.key.container_id.as_str(), instance = call.key.instance.as_str(),
                uuid = card_names(&entry.grant).as_str(),
                memory_mib = entry.grant.memory.0,
                cgroup = call.cgroup.as_ref().map(|cgroup| cgroup.path.as_str());
                "grant active"
            );
            // The container's program starts when this is answered. Reserve has asked for the limit,
            // so mostly it is there.
            if daemon.is_starting() {
                line.wait("mpsgated has just started and prepares the GPUs", daemon.started())
                    .await;
            }
            let prepared = prepared(daemon, line, &entry).await;
            if prepared.is_ok() && entry.grant.uses_mps() {
                limits::hold(daemon, &entry).await;
            }
            prepared
        }
        Err(refusal) => Err(refusal),
    };
    match answer {
        Ok(()) => Ok(Reply::Done { text: String::new() }),
        Err(refusal) => {
            let handed =
                daemon.node().ledger().get(&call.key).and_then(|entry| entry.handed.clone());
            refused(daemon, &call.key, handed.as_ref().map(|handed| &handed.pod), &refusal);
            Err(refusal)
        }
    }
}

/// What reserve found may be gone when the container's program starts: a control daemon that died in
/// between was started anew in the same directory, without a server.
async fn prepared(daemon: &Daemon, line: &mut Line, entry: &Entry) -> Result<(), Refusal> {
    let needs_server = {
        let node = daemon.node();
        let cards = || entry.grant.cards.iter().filter_map(|granted| node.card(&granted.uuid));
        for card in cards() {
            if let Some(trouble) = card.trouble() {
                let sentence = format!("{} {}", card.label(), trouble.why);
                return Err(Refusal::new(Code::GpuUnhealthy, sentence, trouble.hint.clone()));
            }
        }
        let unserved = |card: &&Card| !card.has_server_for(entry.grant.uid);
        let mut of_mps = cards().filter(|_| entry.grant.uses_mps());
        of_mps.find(unserved).map(|card| card.uuid.clone())
    };
    if let Some(granted) = needs_server {
        let doing = format!("the MPS server of {granted} is being started");
        line.wait(&doing, server(daemon, &granted, entry.grant.uid)).await?;
    }
    match capped_card(daemon, entry) {
        Some(card) => line.wait("the card's memory limit is being set", limit(daemon, &card)).await,
        None => Ok(()),
    }
}

/// The entry's card, where MPS allows its clients less than this grant.
fn capped_card(daemon: &Daemon, entry: &Entry) -> Option<GpuUuid> {
    let node = daemon.node();
    let card = node.card(&entry.grant.cards.first()?.uuid)?;
    (entry.grant.uses_mps() && card.cap < entry.grant.memory).then(|| card.uuid.clone())
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
        // Without a descriptor a pid means something in the hook's own pid namespace alone.
        None if !caller.pid.is_some_and(process::counts_as_we_do) => {
            return Err(wrong(
                "this kernel has no pidfds, and its hook is not in mpsgated's pid namespace"
                    .to_owned(),
            ));
        }
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
    let released = {
        let mut node = daemon.node();
        // A runtime tells of the end although it could not remove the cgroup: the watch waits for that.
        let ended = node.remains(&call.key, &process::is_alive).is_none();
        if ended { node.release(&call.key) } else { None }
    };
    let text = match released {
        Some(entry) => {
            crash_point!("daemon.release.changed");
            daemon.ended(&entry, "released");
            format!("{} released", entry.grant.memory)
        }
        None => String::new(),
    };
    Ok(Reply::Done { text })
}

fn report(daemon: &Daemon, call: &Report) -> Reply {
    let Report { container_id, code, action, sentence, hint, pod } = call;
    judged(daemon, container_id, action, code, sentence);
    match (action.as_str(), pod) {
        (REFUSED, Some(pod)) => {
            api_server::tell::refused(daemon, pod, code, sentence, hint.as_deref());
        }
        (WARNED, Some(pod)) => api_server::tell::warned(daemon, pod, code, sentence),
        _ => {}
    }
    Reply::Done { text: String::new() }
}

fn refused(daemon: &Daemon, key: &GrantKey, pod: Option<&PodContainer>, refusal: &Refusal) {
    let (container, code) = (key.container_id.as_str(), refusal.code.as_str());
    judged(daemon, container, REFUSED, code, &refusal.sentence);
    if let Some(pod) = pod {
        api_server::tell::refused(daemon, pod, code, &refusal.sentence, Some(&refusal.hint));
    }
}

/// Counts a container and tells of it, both once for each of its codes. What is found in a specification may be as long
/// as the specification.
fn judged(daemon: &Daemon, container: &str, action: &str, code: &str, sentence: &str) {
    let telling = {
        let mut node = daemon.node();
        let telling = node.heard.take(container, action, code, sentence, std::time::Instant::now());
        if telling != Telling::Known {
            node.judged.count(action, code);
        }
        telling
    };
    let Telling::Told { untold } = telling else { return };
    if untold > 0 {
        log::warn!(containers = untold; "more containers were judged than are logged");
    }
    let reason: String = sentence.chars().take(LONGEST_REASON).collect();
    let reason = reason.as_str();
    if action == NOTED {
        log::info!(container, code, reason; "container noted");
    } else {
        log::warn!(container, code, action, reason; "container judged");
    }
}
