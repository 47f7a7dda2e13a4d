//! `reserve`: memory for a container that is being created.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::{Reply, Reserve};
use mpsgate_config::InjectMode;
use mpsgate_host::crash_point;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Cdi, CdiEdits, Code, Grant, GrantKey, GrantedCard, Refusal};
use mpsgate_node::Confirmed;
use mpsgate_node::{Effect, Reserved};
use tokio::time::timeout;

use super::{open_door, refused};
use crate::card_orders::server;
use crate::daemon::{Daemon, card_names};
use crate::files::FileKind;
use crate::line::{Caller, Line};
use crate::orders::Order;
use crate::real_machine::ThisMachine;
use crate::{ends, node_cdi, process_end, tokens};
use mpsgate_host::clock::now_ms;

/// How long a container waits for the last processes of its previous instance, and a process for
/// the one before of its name, and how often they are looked at: an engine that creates it again
/// has killed them just before.
const REMAINS_LIMIT: Duration = Duration::from_secs(2);
/// How long it waits for those of its pod's earlier containers. Kubelet gives a container two
/// minutes in all.
const POD_LIMIT: Duration = Duration::from_secs(4);
const REMAINS_LOOK: Duration = Duration::from_millis(20);

/// What a request that was refused may wait for, each once and in this order.
#[derive(Debug, Clone, Copy)]
enum Cause {
    /// Its own previous instance may have been the last that a switch of the schedule waited for.
    Switch,
    /// Nobody is refused because mpsgated has just been restarted.
    Start,
    /// A card is being asked what holds on it.
    Asking,
    /// The last processes of the container's previous instance, or an earlier process of its name.
    PreviousInstance,
    /// Those of containers of its pod whose init has ended. Kubelet gives the devices of an init
    /// container to the next one, and a container's to its restart, as soon as the runtime has told
    /// it of the end.
    Pod,
}

impl Cause {
    const ALL: [Self; 5] =
        [Self::Switch, Self::Start, Self::Asking, Self::PreviousInstance, Self::Pod];

    /// Whether a refusal with this code can be its doing.
    fn can_be(self, code: Code) -> bool {
        match self {
            Self::Asking => matches!(
                code,
                Code::GpuNotReady | Code::GpuUnhealthy | Code::NoCapacity | Code::Uid
            ),
            _ => true,
        }
    }

    /// Whether it stands in the way now.
    fn stands(self, daemon: &Daemon, key: &GrantKey, pod: Option<&str>) -> bool {
        match self {
            Self::Switch => daemon.advance_schedule(),
            Self::Start => daemon.is_starting(),
            Self::Asking => daemon.node().is_asked_by_others(key),
            Self::PreviousInstance => daemon.node().is_ending(key, &ThisMachine),
            Self::Pod => pod.is_some_and(|pod| daemon.node().pod_is_ending(pod, &ThisMachine)),
        }
    }

    /// Waits until it stands there no longer, as long as it may take.
    async fn pass(self, daemon: &Daemon, line: &mut Line, key: &GrantKey, pod: Option<&str>) {
        let (doing, limit) = match self {
            // It has been made.
            Self::Switch => return,
            Self::Start => {
                let doing = "mpsgated has just started and prepares the GPUs";
                return line.wait(doing, daemon.started()).await;
            }
            Self::Asking => {
                let doing = "a GPU is being asked what holds on it (mpsgate qualify)";
                return line.wait(doing, daemon.asked(key)).await;
            }
            Self::PreviousInstance if key.is_run() => {
                ("an earlier process of its name is ending", REMAINS_LIMIT)
            }
            Self::PreviousInstance => {
                ("the container's previous instance is ending", REMAINS_LIMIT)
            }
            Self::Pod => ("an earlier container of its pod is ending", POD_LIMIT),
        };
        let over = async {
            while self.stands(daemon, key, pod) {
                tokio::time::sleep(REMAINS_LOOK).await;
            }
        };
        // Who is still refused then is told why.
        let _ = line.wait(doing, timeout(limit, over)).await;
    }
}

/// A reservation that is given up where its caller does not keep it.
pub(super) struct Reservation<'a> {
    pub(super) grant: Box<Grant>,
    cdi: Box<Cdi>,
    end: GiveUp<'a>,
}

impl Reservation<'_> {
    /// Leaves it to who waits for the answer.
    pub(super) fn keep(mut self) -> Reply {
        self.end.key = None;
        Reply::Reserved { grant: self.grant, cdi: self.cdi }
    }
}

struct GiveUp<'a> {
    daemon: &'a Daemon,
    key: Option<GrantKey>,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            give_up(self.daemon, &key);
        }
    }
}

pub(super) async fn reserve<'a>(
    daemon: &'a Arc<Daemon>,
    line: &mut Line,
    caller: &Caller,
    call: &Reserve,
) -> Result<Reservation<'a>, Refusal> {
    let pid = if call.for_parent { caller.pid.and_then(process_end::parent) } else { caller.pid };
    let holder = pid.and_then(process_end::identify).filter(|_| line.is_open());
    let Some(holder) = holder else {
        return Err(Refusal::new(
            Code::Unconfirmed,
            "mpsgated cannot see the process that asks: it is in another pid namespace, or has ended",
            "let the container engine and mpsgated run in the host's pid namespace",
        ));
    };
    let confirmed = line.wait("its pod is being confirmed", tokens::confirm(daemon, call)).await;
    let answer = match confirmed {
        Ok(confirmed) => grant(daemon, line, call, holder, confirmed.as_ref()).await,
        Err(refusal) => Err(refusal),
    };
    if let Err(refusal) = &answer {
        refused(daemon, &call.name(), call.pod.as_ref(), refusal);
    }
    answer
}

/// Takes the memory, after what has to be waited for.
async fn take(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    call: &Reserve,
    holder: ProcessId,
    confirmed: Option<&Confirmed>,
) -> Result<Reserved, Refusal> {
    let mut removes = false;
    let mut try_it = || {
        daemon.change(|node, effects| {
            let reserved = node.reserve(call, confirmed, holder, &ThisMachine, now_ms(), effects);
            removes |= effects.iter().any(|effect| matches!(effect, Effect::RemoveRecord(_)));
            let reserved = reserved?;
            if let Some(entry) = node.ledger().get(&reserved.grant.key) {
                ends::start(daemon, entry);
                if call.for_parent {
                    ends::limit(daemon, entry);
                }
            }
            Ok(reserved)
        })
    };
    let pod = confirmed.map(|confirmed| confirmed.handed.pod.uid.as_str());
    let mut reserved: Result<Reserved, Refusal> = try_it();
    for cause in Cause::ALL {
        let Err(refusal) = &reserved else { break };
        if cause.can_be(refusal.code) && cause.stands(daemon, &call.key, pod) {
            cause.pass(daemon, line, &call.key, pod).await;
            reserved = try_it();
        }
    }
    if removes {
        // The record of the instance before lies where the shim writes this one's.
        let gone = daemon.files.settled(FileKind::Records);
        line.wait("the record of the instance before is being removed", gone).await;
    }
    reserved
}

async fn grant<'a>(
    daemon: &'a Arc<Daemon>,
    line: &mut Line,
    call: &Reserve,
    holder: ProcessId,
    confirmed: Option<&Confirmed>,
) -> Result<Reservation<'a>, Refusal> {
    let reserved = take(daemon, line, call, holder, confirmed).await?;
    crash_point!("daemon.reserve.changed");
    daemon.tell_ledger_change();
    if let Err(refusal) = made_ready(daemon, line, &reserved, call, holder).await {
        // Who waits no more has asked again and has this reservation, or has ended, which ends it.
        if line.is_open() {
            give_up(daemon, &call.key);
        }
        let _ = open_door::close_if_ended(daemon, &reserved.grant).await;
        return Err(refusal);
    }
    let grant = Box::new(reserved.grant);
    open_door::close_if_ended(daemon, &grant).await?;
    let cdi = Box::new(cdi_edits(daemon, &grant));
    crash_point!("daemon.reserve.stored");
    let end = GiveUp { daemon, key: Some(grant.key.clone()) };
    Ok(Reservation { grant, cdi, end })
}

/// Records the reservation; its server runs and its door is open afterwards.
async fn made_ready(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    reserved: &Reserved,
    call: &Reserve,
    holder: ProcessId,
) -> Result<(), Refusal> {
    line.wait("the grant is being recorded", daemon.recorded()).await?;
    let grant = &reserved.grant;
    let card = grant.cards.first().filter(|_| grant.uses_mps()).map(|card| card.uuid.clone());
    log::info!(
        container = call.name().as_str(), instance = call.key.instance.as_str(),
        uuid = card_names(grant).as_str(), memory_mib = grant.memory.0, uid = grant.uid,
        pid = holder.pid; "reserved"
    );
    if let Some(card) = &card {
        daemon.order(card, Order::Cap);
    }
    if let (true, Some(card)) = (reserved.needs_server, card) {
        let doing = format!("the MPS server of {card} for uid {} is being started", call.uid);
        line.wait(&doing, server(daemon, &card, call.uid)).await?;
    }
    line.wait("the container's door to MPS is being opened", open_door::open(daemon, grant)).await
}

fn give_up(daemon: &Daemon, key: &GrantKey) {
    daemon.change(|node, effects| node.expire(key, "reservation given up", effects));
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

fn cdi_of_card(specifications: &mut node_cdi::Cache, card: &GrantedCard) -> Cdi {
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
