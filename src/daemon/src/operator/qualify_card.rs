//! `mpsgate qualify`: keeps a card free for the containers that ask it, and keeps what it answered.
//!
//! ```text
//!   begin: ready, no grants ─► others wait ─► no pod is sent, nobody else's processes
//!                              ├─ answer: no yes? ─► look anew ─► counts, or what was seen meanwhile
//!                              ─► end: answers written ─► open
//!                              └─ nobody came in time ──► open
//! ```
//!
//! Nothing of it is on disk before the end: an mpsgated that is killed meanwhile knows nothing of
//! it, and the answers are refused.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mpsgate_api::{Asking, Json, Qualify, Reply};
use mpsgate_model::{Answer, Code, GpuUuid, Qualification, Refusal};
use mpsgate_node::card::{Asking as Asked, CardEvent};
use mpsgate_oci::runtime_log::rfc3339;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Answer as ToCaller, done};
use crate::daemon::Daemon;
use crate::files::FileKind;
use crate::handover::{PUBLISHING, Told, in_use, not_written};
use crate::line::Line;
use crate::orders::Order;
use crate::{answer_files, snapshot};

/// For how long a card is kept: up to 11 s until no pod is sent to it, 100 s for all questions, and
/// [`FRESH`] after the last.
const KEPT: Duration = Duration::from_secs(125);
/// For everybody to tell once more of a card: a gate does every 5 s, and the watchdog each second.
const FRESH: Duration = Duration::from_secs(8);
/// Between two looks for that.
const POLL: Duration = Duration::from_millis(100);

/// Begins or ends asking a card.
pub(crate) async fn qualify(daemon: &Arc<Daemon>, line: &mut Line, call: &Qualify) -> ToCaller {
    let mut told = Told::Caller(line);
    match call {
        Qualify::Begin { gpu } => {
            let _turn = told.turn(daemon).await;
            begin(daemon, &mut told, gpu).await
        }
        // Without a turn: the card is kept, and no other command could meet what this changes.
        Qualify::Answer { id, answer } => self::answer(daemon, &mut told, id, answer).await,
        Qualify::End { id, keep } => {
            let _turn = told.turn(daemon).await;
            end(daemon, &mut told, id, *keep).await
        }
    }
}

async fn begin(daemon: &Arc<Daemon>, told: &mut Told<'_>, gpu: &str) -> ToCaller {
    let random = mpsgate_host::random::bytes().map(u64::from_ne_bytes).map_err(|error| {
        let why = format!("the kernel gives no random bytes: {error}");
        Refusal::new(Code::GpuUnhealthy, why, "ask again when the node has booted")
    })?;
    let id = format!("mpsgate-qualify-{random:016x}");
    let until = rfc3339(SystemTime::now() + KEPT);
    // From here on nobody else is let in: what is looked at now stays so.
    let (subject, card, card_index) = {
        let mut node = daemon.node();
        let subject = node.begin_asking(gpu, &id, &until)?;
        let card = node.find_card(gpu)?;
        (subject, node.card_id(card), card.index)
    };
    daemon.tell_change();
    told.wait(PUBLISHING, snapshot::publish(daemon)).await;
    let refusal = match told.wait("closing the card", close(daemon, &card.uuid)).await {
        None => in_use(daemon, told, &card).await,
        refusal => refusal,
    };
    if let Some(refusal) = refusal {
        over(daemon, &id);
        return Err(refusal);
    }
    let expiring = (Arc::clone(daemon), id.clone());
    daemon.spawn(format!("end of {id}"), async move {
        let (daemon, id) = expiring;
        tokio::time::sleep(KEPT).await;
        if over(&daemon, &id).is_some() {
            log::error!(id = id.as_str(); "a card was asked, and nobody said what it answered");
        }
        Ok(())
    });
    log::info!(uuid = card.uuid.as_str(), id = id.as_str(); "card is being asked");
    let control = daemon.settings.now().mps.control.clone();
    let asking = Asking { id, subject, card_index, control };
    Ok(Reply::Asking { asking: Json::of(&asking) })
}

/// Has no scheduler send pods to a card that kubelet knows. Why it is not asked, where one came all
/// the same, or may come.
async fn close(daemon: &Daemon, card: &GpuUuid) -> Option<Refusal> {
    let api_server = daemon.api_server.get()?;
    if daemon.node().card(card)?.qualified().is_awaited {
        return None;
    }
    if !api_server.shows_closed(card).await {
        let why = format!("the API server does not show that GPU {card} takes no pods");
        let hint = "mpsgate status shows how it stands with the API server; ask again then";
        return Some(Refusal::new(Code::GpuNotReady, why, hint));
    }
    let promised = daemon.node().ledger().held_back(card);
    (promised.0 > 0).then(|| {
        let why = format!("{promised} of GPU {card} were promised to pods meanwhile");
        Refusal::new(Code::GpuInUse, why, "ask again when it is free; mpsgate status")
    })
}

/// To whoever comes with an id that is no card's.
fn not_asked() -> Refusal {
    Refusal::new(
        Code::GpuNotReady,
        "no card is being asked by that name any more: mpsgated was restarted, or it took too long",
        "mpsgate qualify asks again",
    )
}

/// Takes an answer, and says what of it counts.
async fn answer(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    id: &str,
    answer: &Json<Answer>,
) -> ToCaller {
    let answer = answer.read().map_err(|error| {
        let why = format!("the answer cannot be read or written: {error}");
        Refusal::new(Code::DaemonVersion, why, "use the mpsgate of the same package as mpsgated")
    })?;
    let card = daemon.node().asked_card(id).map(|card| card.uuid.clone()).ok_or_else(not_asked)?;
    if answer.may_be_chance() {
        told.wait("looking for what else may be the cause", look_anew(daemon, &card)).await;
    }
    let answer = daemon.node().take_answer(id, answer).ok_or_else(not_asked)?;
    if !answer.meanwhile.is_empty() {
        log::warn!(
            uuid = card.as_str(), question = answer.question.as_str(), seen = answer.seen.as_str(),
            meanwhile = answer.meanwhile.as_str(); "an answer does not count"
        );
    }
    Ok(Reply::Answered { answer: Json::of(&answer) })
}

/// Returns once control daemon, gate and NVML have told of a card after this moment, so that what
/// has happened before is known. Who is silent for long disturbs it, too.
async fn look_anew(daemon: &Daemon, card: &GpuUuid) {
    let known = || {
        let node = daemon.node();
        let card = node.card(card)?;
        Some((card.qualified().asking.as_ref()?.told, card.watched().looks))
    };
    let over = async {
        let (reply, viewed) = oneshot::channel();
        if daemon.order(card, Order::View { reply }) {
            let _ = viewed.await;
        }
        // What the gate said before has arrived now. A look may be on its way, and what nobody can
        // name counts at its second one.
        let Some((told, looks)) = known() else { return };
        while known().is_some_and(|now| now.0 <= told || now.1 <= looks + 2) {
            tokio::time::sleep(POLL).await;
        }
    };
    if timeout(FRESH, over).await.is_err() {
        daemon.happened(card, CardEvent::Untold(FRESH));
    }
}

async fn end(daemon: &Arc<Daemon>, told: &mut Told<'_>, id: &str, keep: bool) -> ToCaller {
    let Asked { subject, answers, .. } = over(daemon, id).ok_or_else(not_asked)?;
    if !keep || answers.is_empty() {
        return done(String::new());
    }
    let now = {
        let node = daemon.node();
        node.card(&subject.card).map(|card| node.subject(card))
    };
    if now.as_ref() != Some(&subject) {
        return Err(Refusal::new(
            Code::GpuNotReady,
            "the driver, its control program or the card is another one than at the beginning",
            "mpsgate qualify asks again",
        ));
    }
    let older = daemon.node().card(&subject.card).and_then(|card| card.qualified().found.clone());
    let asked = Qualification::new(subject, answers);
    let Some(found) = asked.beside(older.as_ref()) else {
        return done("nothing could be asked; the answers of before stay in force".to_owned());
    };
    let (kept, directory) = (found.clone(), daemon.paths.qualification());
    let store = move || answer_files::store(&directory, &kept);
    let stored = daemon.files.run(FileKind::Answers, store);
    let stored = told.wait("the answers are being written down", stored).await;
    stored.map_err(|error| not_written(daemon, &daemon.paths.qualification(), &error))?;
    let card = found.subject.card.clone();
    {
        let mut node = daemon.node();
        node.set_answers(&card, Ok(Some(found)));
        node.conclude();
    }
    told.wait(PUBLISHING, snapshot::publish(daemon)).await;
    daemon.tell_change();
    log::info!(uuid = card.as_str(); "card was asked, and its answers count");
    done(format!("the answers of {card} count from now on"))
}

/// Opens the card again; what it was asked and has answered, where it still was.
fn over(daemon: &Arc<Daemon>, id: &str) -> Option<Asked> {
    let asked = daemon.node().end_asking(id);
    if asked.is_some() {
        drop(snapshot::publish(daemon));
        daemon.tell_change();
    }
    asked
}
