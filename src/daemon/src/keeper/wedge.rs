//! A control daemon that does not answer: who holds it up, for how long, and what is done.
//!
//! ```text
//!  busy at a look ──► command ──► no answer in 3 s: wedged ──► holder's container to blame for 5 s ──► act
//!        ▲                │                 │  each second: who holds it now?                            │
//!        └── at rest ◄────┴── answers ◄─────┴────────────────────────────────────────────────────────────┘
//! ```
//!
//! Blame is kept per container and lasts until the channel has been well for a minute: a flood of
//! connections, or one that lets go for a moment now and then, adds up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_allocation::GrantKey;
use mpsgate_config::Enforce;
use mpsgate_mps::{CardMps, ControlDaemon, Glance};
use tokio::time::Instant;

use super::Keeper;
use crate::DaemonError;
use crate::card::Trouble;
use crate::control::{View, Wedge, wedge};
use crate::enforce::{Culprit, Measure, enforce, report};

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
            Some(Wedge::LogBlocked) => (
                ": its log was full".to_owned(),
                "once its containers have ended: mpsgate mps restart GPU".to_owned(),
            ),
            Some(Wedge::Held(culprits)) => match culprits.first() {
                Some(culprit) => (
                    format!(": its channel is held by {}", culprit.label()),
                    hint(culprit, enforce),
                ),
                None => (
                    ": its channel is held by a process that cannot be named".to_owned(),
                    "look for it: ss -xp | grep mpsgate".to_owned(),
                ),
            },
            Some(Wedge::OneOf(culprits)) => {
                let labels: Vec<String> = culprits.iter().map(Culprit::label).collect();
                (
                    format!(": its channel is held by one of: {}", labels.join("; ")),
                    "end them one by one, until mpsgate status shows the card ready".to_owned(),
                )
            }
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

impl Keeper {
    pub(super) fn is_wedged(&self) -> bool {
        let node = self.daemon.node();
        let mps = node.card(&self.uuid).and_then(|card| card.mps.as_ref());
        mps.is_some_and(|mps| mps.state == "wedged")
    }

    /// Looks at a daemon that is busy, or known not to answer.
    pub(super) async fn look_at_wedge(
        &mut self,
        mps: &Arc<CardMps>,
        daemon: &Arc<ControlDaemon>,
        glance: Glance,
    ) -> Result<(), DaemonError> {
        let before = self.cause(mps, daemon).await?;
        let asks = !self.is_wedged()
            || self.unasked_for() >= ASK
            || match &before {
                // Still there: no command would be answered.
                Wedge::Stopped | Wedge::Held(_) | Wedge::OneOf(_) => false,
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
        self.blame(mps, daemon, &before, &now, from.elapsed()).await
    }

    async fn cause(
        &self,
        mps: &Arc<CardMps>,
        daemon: &Arc<ControlDaemon>,
    ) -> Result<Wedge, DaemonError> {
        let (mps, daemon) = (Arc::clone(mps), Arc::clone(daemon));
        let entries = self.daemon.node().entries();
        let known = self.watch.known.clone();
        let work = move |_: &_| wedge(&mps, &daemon, &entries, &known);
        self.daemon.blocking("find out who holds a channel", work).await
    }

    /// Adds `held` to the blame of whoever held the channel at both ends of it.
    async fn blame(
        &mut self,
        mps: &Arc<CardMps>,
        daemon: &Arc<ControlDaemon>,
        before: &Wedge,
        now: &Wedge,
        held: Duration,
    ) -> Result<(), DaemonError> {
        if let Wedge::OneOf(culprits) = now {
            for culprit in culprits {
                let why = format!(
                    "{} is one of {} that may hold the MPS channel of the card",
                    culprit.words,
                    culprits.len()
                );
                self.report_once(culprit, why);
            }
        }
        let (Wedge::Held(before), Wedge::Held(now)) = (before, now) else { return Ok(()) };
        let mut ended = false;
        for culprit in now {
            let Some(entry) = &culprit.entry else {
                self.report_once(culprit, sentence(culprit));
                continue;
            };
            let key = &entry.grant.key;
            let same =
                |other: &Culprit| other.entry.as_ref().is_some_and(|entry| entry.grant.key == *key);
            let blame = self.watch.wedge.blame.entry(key.clone()).or_default();
            if before.iter().any(same) {
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
            ended |=
                enforce(&self.daemon, &self.uuid, culprit, Measure::Container, sentence(culprit))
                    .await?;
        }
        if ended {
            self.ask(mps, daemon).await?;
        }
        Ok(())
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
