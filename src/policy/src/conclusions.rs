//! What follows from a card's answers: which level a grant may show and on what proof, whether
//! containers get memory of it, what they need at `/dev/shm`, how much is tolerated.
//!
//! Unanswered is the careful choice. An answer of another driver stays in force with its date,
//! until it is asked again; only a refusal does not outlive the driver that caused it.

use std::time::{Duration, UNIX_EPOCH};

use mpsgate_model::{Answer, Guarantee, Mib, Qualification, Question, Subject, Verdict};
use mpsgate_oci::runtime_log::rfc3339;

use crate::SharedMemory;

/// Over what NVML says of an idle client: what its processes have in common with no other.
const MARGIN: Mib = Mib(256);
/// What is tolerated where nobody has measured an idle client.
pub const TOLERANCE: Mib = Mib(512);
/// Of a card that nobody asked.
const UNTRIED: &str = "not tried on this card";
const NEVER: &str = "it was never asked";

/// What follows from a card's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// Why no container gets memory of it, as the end of a sentence that begins with the card.
    pub refusal: Option<String>,
    /// Why its clients have to be of one uid, although its control daemon serves several.
    pub one_uid: Option<String>,
    /// Why no client's GPU work is ended before its container is killed.
    pub no_terminate: Option<String>,
    /// What a client needs at `/dev/shm`; `None` where it was not answered.
    pub shared_memory: Option<SharedMemory>,
    /// What a container may use above its grant, in sum.
    pub tolerance: Mib,
    /// What does not hold here, in whole sentences, for who looks after the node.
    pub failures: Vec<String>,
    /// Why it should be asked (again).
    pub due: Option<String>,
    limit: Trial,
    sum: Trial,
    cgroup: Trial,
    is_simulated: bool,
}

/// A guarantee level, and what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuaranteeLevel {
    /// The level.
    pub guarantee: Guarantee,
    /// What showed it here, or that nothing did.
    pub proof: String,
    /// Whether a GPU of this node has shown it, and no simulated one.
    pub is_proven: bool,
}

/// What stands behind a part of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trial {
    Untried,
    /// With what it was shown by.
    Held(String),
    /// With what was seen.
    NotHeld(String),
}

/// Concludes from a card's answers; `now` is what it would be asked of today.
#[must_use]
pub fn conclude(found: Option<&Qualification>, now: &Subject) -> Conclusion {
    let answer = |question| found.and_then(|found| Some((found, found.answer(question)?)));
    let trial = |question| match answer(question) {
        Some((of, answer)) if answer.verdict == Verdict::Yes => Trial::Held(by(of, answer)),
        Some((of, answer)) if answer.verdict == Verdict::No => {
            Trial::NotHeld(format!("{}, {}", answer.seen, by(of, answer)))
        }
        _ => Trial::Untried,
    };
    let no = |question| match trial(question) {
        Trial::NotHeld(seen) => Some(seen),
        _ => None,
    };
    let idle = answer(Question::Processes)
        .filter(|(_, answer)| answer.verdict == Verdict::Yes)
        .and_then(|(_, answer)| answer.mib);
    let is_same_driver = found.is_some_and(|found| found.subject.driver == now.driver);
    let shared_memory = match answer(Question::OwnShm).map(|(_, answer)| answer.verdict) {
        // Another driver does it another way.
        Some(Verdict::Yes) if is_same_driver => Some(SharedMemory::Anonymous),
        Some(Verdict::No) if is_same_driver => Some(SharedMemory::Required),
        _ => None,
    };
    let refusal = no(Question::Attach).filter(|_| is_same_driver);
    let one_uid = no(Question::Users).filter(|_| is_same_driver);
    let no_terminate = no(Question::Terminate).filter(|_| is_same_driver);
    let failures = [
        (Question::Commands, "A container's door takes commands of the control daemon"),
        (Question::Limit, "The memory limit does not hold on this card"),
        (Question::Processes, "NVML does not tell what a container uses of this card"),
        (Question::Detour, "A process past MPS gets this card, although it is EXCLUSIVE_PROCESS"),
        (Question::Users, "Clients of two users cannot use this card at once"),
        (Question::Terminate, "The GPU work of one client cannot be ended alone on this card"),
        (Question::Cgroup, "The driver does not hold a container's cgroup to its limit"),
        (Question::Throughput, "Clients take turns on this card, as without MPS"),
    ];
    let failures = failures
        .into_iter()
        .filter_map(|(question, what)| no(question).map(|seen| format!("{what}: {seen}")));
    Conclusion {
        refusal: refusal.map(|seen| format!("let no CUDA client attach: {seen}")),
        one_uid,
        no_terminate,
        shared_memory,
        tolerance: idle.map_or(TOLERANCE, |idle| Mib(idle.saturating_add(MARGIN.0))),
        failures: failures.collect(),
        due: due(found, now),
        limit: trial(Question::Limit),
        sum: trial(Question::Processes),
        cgroup: trial(Question::Cgroup),
        is_simulated: found.is_some_and(|found| found.subject.simulated),
    }
}

impl Default for Conclusion {
    /// Of a card that nobody asked.
    fn default() -> Self {
        Self {
            refusal: None,
            one_uid: None,
            no_terminate: None,
            shared_memory: None,
            tolerance: TOLERANCE,
            failures: Vec::new(),
            due: Some(NEVER.to_owned()),
            limit: Trial::Untried,
            sum: Trial::Untried,
            cgroup: Trial::Untried,
            is_simulated: false,
        }
    }
}

impl Conclusion {
    /// Whether it was seen that NVML tells a client's memory as its own.
    #[must_use]
    pub fn counts_clients(&self) -> bool {
        matches!(self.sum, Trial::Held(_))
    }

    /// Whether the driver may be trusted that holds a cgroup to a limit: nobody has seen that it
    /// does not.
    #[must_use]
    pub fn holds_cgroups(&self) -> bool {
        !matches!(self.cgroup, Trial::NotHeld(_))
    }

    /// The level that a grant shows, and its proof, of what holds at the moment without any. What
    /// `bypass` answers gives none and takes none: a client that drops its own limit is the
    /// watchdog's.
    #[must_use]
    pub fn level(&self, moment: Guarantee) -> GuaranteeLevel {
        let held = |trials: &[&Trial]| {
            let proofs = trials.iter().map(|trial| match trial {
                Trial::Held(by) => Some(by.as_str()),
                _ => None,
            });
            // The oldest of them: the proof is no younger.
            let proofs: Option<Vec<&str>> = proofs.collect();
            proofs.and_then(|proofs| proofs.into_iter().min().map(str::to_owned))
        };
        let unproven =
            |guarantee, proof: String| GuaranteeLevel { guarantee, proof, is_proven: false };
        let real = !self.is_simulated;
        let shown = |guarantee, by: Option<String>| match by {
            Some(by) => {
                GuaranteeLevel { guarantee, proof: format!("proven here {by}"), is_proven: real }
            }
            None => unproven(guarantee, UNTRIED.to_owned()),
        };
        match (moment, &self.limit, &self.sum) {
            (Guarantee::None, _, _) => unproven(moment, String::new()),
            // Who asks for it has heard that it does not hold: the next level below.
            (Guarantee::Cgroup, _, _) if !self.holds_cgroups() => self.level(Guarantee::Mps),
            (Guarantee::Cgroup, _, _) => match held(&[&self.cgroup]) {
                Some(by) => shown(moment, Some(by)),
                None => unproven(moment, format!("read back from the driver, {UNTRIED}")),
            },
            (_, Trial::NotHeld(seen), _) => {
                unproven(Guarantee::Mps, format!("limit not held on this card: {seen}"))
            }
            (Guarantee::MpsWatchdog, _, Trial::NotHeld(seen)) => {
                unproven(Guarantee::Mps, format!("what it uses is not told on this card: {seen}"))
            }
            (Guarantee::MpsWatchdog, _, _) => shown(moment, held(&[&self.limit, &self.sum])),
            _ => shown(Guarantee::Mps, held(&[&self.limit])),
        }
    }
}

/// The day of an answer (UTC), `2026-11-22`.
#[must_use]
pub fn answered_on(answer: &Answer) -> String {
    let when = UNIX_EPOCH + Duration::from_millis(answer.at_ms);
    rfc3339(when).chars().take("2026-11-22".len()).collect()
}

/// When an answer was given and with which driver.
fn by(found: &Qualification, answer: &Answer) -> String {
    let day = answered_on(answer);
    let simulated = if found.subject.simulated { ", simulated" } else { "" };
    format!("{day} ({}{simulated})", found.subject.driver)
}

fn due(found: Option<&Qualification>, now: &Subject) -> Option<String> {
    let Some(found) = found else { return Some(NEVER.to_owned()) };
    let Subject { card, driver, control, questions, simulated } = &found.subject;
    if card != &now.card || *simulated != now.simulated {
        return Some("it was asked of another card".to_owned());
    }
    if *driver != now.driver {
        return Some(format!("it was asked with driver {driver}, now it is {}", now.driver));
    }
    if *control != now.control {
        return Some("nvidia-cuda-mps-control is another program since".to_owned());
    }
    if *questions != now.questions {
        return Some("the questions are others since".to_owned());
    }
    let disturbed: Vec<&Answer> =
        found.answers.iter().filter(|answer| !answer.meanwhile.is_empty()).collect();
    if let Some(last) = disturbed.last() {
        let names: Vec<&str> = disturbed.iter().map(|answer| answer.question.as_str()).collect();
        return Some(format!(
            "no answer counts to {}: meanwhile {}",
            names.join(", "),
            last.meanwhile
        ));
    }
    let open = |question: &Question| found.answer(*question).is_none();
    let open: Vec<&str> =
        Question::ALL.iter().filter(|question| open(question)).map(|one| one.as_str()).collect();
    (!open.is_empty()).then(|| format!("not asked were: {}", open.join(", ")))
}
