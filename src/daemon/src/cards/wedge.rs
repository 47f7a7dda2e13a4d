//! A control daemon that does not answer: who holds it up, for how long, and what is done.
//!
//! ```text
//!  busy at a look ──► command ──► no answer in 3 s: wedged ──► holder's container to blame for 5 s ──► act
//!        ▲                │                 │  each second: who holds it now?                            │
//!        └── at rest ◄────┴── answers ◄─────┴────────────────────────────────────────────────────────────┘
//! ```
//!
//! What holds the daemon up is cut at the daemon's own end after 5 s, whoever has the other one and
//! whether or not anybody can be named: the card goes on.
//!
//! Blame is kept per container and lasts until the channel has been well for a minute: a flood of
//! connections, or one that lets go for a moment now and then, adds up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_config::Enforce;
use mpsgate_model::GrantKey;
use mpsgate_mps::{ControlDaemon, Glance, MpsInstance};
use mpsgate_node::card::Trouble;
use tokio::time::Instant;

use super::CardTask;
use crate::DaemonError;
use crate::enforce::{enforce, report};
use crate::hardware::control::{View, Wedge, free, wedge};
use crate::owner::Culprit;

/// How long a container may hold the channel, so that nobody else can use it.
const LIMIT: Duration = Duration::from_secs(5);
/// For how long the channel must have been well for all blame to be forgotten.
const FORGET: Duration = Duration::from_secs(60);
/// While it is wedged and still busy: between two commands that may find it well again.
const ASK: Duration = Duration::from_secs(4);

/// What is known of a wedge.
#[derive(Debug, Default)]
pub(super) struct WedgeWatch {
    /// Why it does not answer, as last seen.
    cause: Option<Wedge>,
    /// Since when somebody is watched, and the last time that blame was given.
    last: Option<Instant>,
    blame: BTreeMap<GrantKey, Duration>,
    /// For how long the channel was held, by whomever.
    held: Duration,
    /// Who was reported in this episode: once is enough.
    reported: Vec<String>,
    /// When it answered last.
    well: Option<Instant>,
}

impl WedgeWatch {
    /// It answers.
    pub(super) fn is_well(&mut self) {
        self.cause = None;
        self.last = None;
        let well = *self.well.get_or_insert_with(Instant::now);
        if well.elapsed() >= FORGET {
            self.held = Duration::ZERO;
            self.blame.clear();
            self.reported.clear();
        }
    }

    /// What is wrong, for people.
    pub(super) fn trouble(&self, pid: Option<u32>, enforce: Enforce) -> Trouble {
        let pid = pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        let (why, hint) = match &self.cause {
            Some(Wedge::Stopped) => (
                format!(": somebody stopped it, pid {pid}"),
                format!("let it go on: kill -CONT {pid}"),
            ),
            Some(Wedge::Server(server)) => (
                format!(": its MPS server, pid {server}, does not answer it"),
                format!(
                    "where somebody stopped it (T in: ps -o stat= -p {server}): kill -CONT {server}; \
                     else, once its containers have ended: mpsgate mps restart GPU"
                ),
            ),
            Some(Wedge::LogBlocked) => (
                ": its log was full".to_owned(),
                "once its containers have ended: mpsgate mps restart GPU".to_owned(),
            ),
            Some(held @ Wedge::Held(culprits)) => match (held.makers().first(), &culprits[..]) {
                (Some(culprit), _) => (
                    format!(": its channel is held by {}", culprit.label()),
                    hint(culprit, enforce),
                ),
                (None, []) => (
                    ": its channel is held by a process that cannot be named".to_owned(),
                    format!("the connection is cut after {} s", LIMIT.as_secs()),
                ),
                (None, _) => {
                    let labels: Vec<String> = culprits.iter().map(Culprit::label).collect();
                    (
                        format!(": its channel is held by one of: {}", labels.join("; ")),
                        "end them one by one, until mpsgate status shows the card ready".to_owned(),
                    )
                }
            },
            Some(Wedge::Unknown) | None => {
                (String::new(), format!("look at what it does: cat /proc/{pid}/stack"))
            }
        };
        Trouble::new(format!("has an MPS control daemon that does not answer{why}"), hint)
    }
}

fn hint(culprit: &Culprit, enforce: Enforce) -> String {
    match (&culprit.entry, enforce) {
        (Some(_), Enforce::Kill) => {
            format!("that container is killed after {} s (policy.enforce)", LIMIT.as_secs())
        }
        (Some(entry), Enforce::Report) => format!(
            "end container {}: policy.enforce = \"report\" leaves that to you",
            entry.grant.key.container_id
        ),
        (None, _) => format!("end it: kill {}", culprit.process.pid),
    }
}

impl CardTask {
    pub(super) fn is_wedged(&self) -> bool {
        let node = self.daemon.node();
        let mps = node.card(&self.uuid).and_then(|card| card.mps.as_ref());
        mps.is_some_and(|mps| mps.state == "wedged")
    }

    /// Looks at a daemon that is busy, or known not to answer.
    pub(super) async fn look_at_wedge(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
        glance: Glance,
    ) -> Result<(), DaemonError> {
        let before = self.cause(mps, daemon).await?;
        let asks = !self.is_wedged()
            || self.unasked_for() >= ASK
            || match &before {
                // Still there: no command would be answered.
                Wedge::Stopped | Wedge::Server(_) | Wedge::Held(_) => false,
                Wedge::LogBlocked => true,
                Wedge::Unknown => glance != Glance::Busy,
            };
        let from = *self.watch.wedge.last.get_or_insert_with(Instant::now);
        self.watch.wedge.cause = Some(before.clone());
        let now = if asks {
            self.ask(mps, daemon).await?;
            if !self.is_wedged() {
                return Ok(());
            }
            self.cause(mps, daemon).await?
        } else {
            before.clone()
        };
        self.watch.wedge.well = None;
        self.watch.wedge.last = Some(Instant::now());
        self.watch.wedge.cause = Some(now.clone());
        self.set_view(View::wedged());
        let held = from.elapsed();
        if !self.blame(mps, daemon, &before, &now, held).await? && self.is_wedged() {
            self.watch.wedge.held += held;
            self.free(mps, daemon, &now).await?;
        }
        Ok(())
    }

    /// Ends the connections that hold the daemon up, once that has taken too long.
    async fn free(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
        now: &Wedge,
    ) -> Result<(), DaemonError> {
        // A container that is ended for it lets go by that; its turn comes a look later.
        let kills = self.daemon.settings.now().policy.enforce == Enforce::Kill;
        let is_ended = kills && now.makers().iter().any(|one| one.entry.is_some());
        let limit = if is_ended { LIMIT * 3 } else { LIMIT };
        // None of these is a connection that could be cut: a server's are its clients' lives.
        let is_no_holder = matches!(now, Wedge::Stopped | Wedge::Server(_) | Wedge::LogBlocked);
        if self.watch.wedge.held < limit || is_no_holder {
            return Ok(());
        }
        let (of, running) = (Arc::clone(mps), Arc::clone(daemon));
        let known = self.watch.known.clone();
        let cut = self
            .daemon
            .blocking("free a control daemon", move |_| free(&of, &running, &known))
            .await?;
        if cut == 0 {
            return Ok(());
        }
        log::warn!(uuid = self.uuid.as_str(), connections = cut; "cut what held up the control daemon");
        if matches!(now, Wedge::Held(culprits) if culprits.is_empty()) {
            let why = format!(
                "a connection whose maker has ended held the MPS channel of the card for {} s: it was cut",
                LIMIT.as_secs()
            );
            if !self.watch.wedge.reported.contains(&why) {
                self.daemon.note(&self.uuid, None, "reported", why.clone());
                self.watch.wedge.reported.push(why);
            }
        }
        self.ask(mps, daemon).await
    }

    async fn cause(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
    ) -> Result<Wedge, DaemonError> {
        let (mps, daemon) = (Arc::clone(mps), Arc::clone(daemon));
        let (entries, known) = (self.entries_of_card(), self.watch.known.clone());
        let mut makers = std::mem::take(&mut self.watch.makers);
        let work = move |_: &_| {
            let cause = wedge(&mps, &daemon, &entries, &known, &mut makers);
            (cause, makers)
        };
        let (cause, makers) = self.daemon.blocking("find out who holds a channel", work).await?;
        self.watch.makers = makers;
        Ok(cause)
    }

    /// Adds `held` to the blame of whoever held the channel at both ends of it. Whether somebody
    /// was ended.
    async fn blame(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
        before: &Wedge,
        now: &Wedge,
        held: Duration,
    ) -> Result<bool, DaemonError> {
        if let Wedge::Held(culprits) = now
            && now.makers().is_empty()
        {
            for culprit in culprits {
                let why = format!(
                    "{} is one of {} that may hold the MPS channel of the card",
                    culprit.words,
                    culprits.len()
                );
                self.report_once(culprit, why);
            }
        }
        let mut ended = false;
        for culprit in now.makers() {
            let Some(entry) = &culprit.entry else {
                self.report_once(culprit, sentence(culprit));
                continue;
            };
            let key = &entry.grant.key;
            let same =
                |other: &Culprit| other.entry.as_ref().is_some_and(|entry| entry.grant.key == *key);
            let blame = self.watch.wedge.blame.entry(key.clone()).or_default();
            if before.makers().iter().any(same) {
                *blame += held;
            }
            if *blame < LIMIT {
                continue;
            }
            *blame = Duration::ZERO;
            if self.daemon.settings.now().policy.enforce == Enforce::Report {
                self.report_once(culprit, sentence(culprit));
                continue;
            }
            ended |= enforce(&self.daemon, &self.uuid, culprit, sentence(culprit)).await?;
        }
        if ended {
            self.watch.wedge.held = Duration::ZERO;
            self.ask(mps, daemon).await?;
        }
        Ok(ended)
    }

    fn report_once(&mut self, culprit: &Culprit, why: String) {
        let label = culprit.label();
        if !self.watch.wedge.reported.contains(&label) {
            report(&self.daemon, &self.uuid, culprit, why);
            self.watch.wedge.reported.push(label);
        }
    }
}

fn sentence(culprit: &Culprit) -> String {
    let words = &culprit.words;
    match culprit.entry {
        Some(_) => format!(
            "its {words} held the MPS channel of the card for {} s, so that no other container \
             could use it",
            LIMIT.as_secs()
        ),
        None => {
            format!("{words} holds the MPS channel of the card; it is in no container with a grant")
        }
    }
}
