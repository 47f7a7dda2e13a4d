//! What serves the containers of a card, and what is wrong with it.

use std::time::{Duration, Instant};

use mpsgate_api::{ControlState, MpsStatus, ServerState, ServerStatus};
use mpsgate_model::{Mib, WedgeCause};

use super::{GateSeen, Health, Trouble, View, where_to_look};

/// Looks that may find no gate, one after the other: one that was just started has not begun yet.
const GATE_STARTS: u32 = 3;
/// A gate that cannot serve says so every 5 s.
const UNSERVED: Duration = Duration::from_secs(15);

/// What serves the containers of a card.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Nothing: it is not handed over, not tried yet, or stopped by the operator.
    Idle,
    /// No control daemon runs, and one is to.
    Down(Health),
    /// A control daemon runs.
    Mps(Box<Mps>),
    /// The driver alone: containers share it without MPS, or could not be prepared for that.
    Shared(Health),
}

impl State {
    pub(super) fn health(&self) -> &Health {
        match self {
            Self::Idle => &Health::Starting,
            Self::Down(health) | Self::Shared(health) => health,
            Self::Mps(mps) => &mps.health,
        }
    }

    /// The same, for a change; an idle card has no other.
    pub(super) fn health_mut(&mut self) -> Option<&mut Health> {
        match self {
            Self::Idle => None,
            Self::Down(health) | Self::Shared(health) => Some(health),
            Self::Mps(mps) => Some(&mut mps.health),
        }
    }

    pub(super) fn mps(&self) -> Option<&Mps> {
        match self {
            Self::Mps(mps) => Some(mps),
            Self::Idle | Self::Down(_) | Self::Shared(_) => None,
        }
    }

    pub(super) fn mps_mut(&mut self) -> Option<&mut Mps> {
        match self {
            Self::Mps(mps) => Some(mps),
            Self::Idle | Self::Down(_) | Self::Shared(_) => None,
        }
    }

    pub(super) fn status(&self) -> Option<MpsStatus> {
        let without = |state: ControlState| MpsStatus {
            state: state.into(),
            pid: None,
            default_limit_mib: None,
            servers: Vec::new(),
        };
        match self {
            Self::Idle | Self::Shared(_) => None,
            Self::Down(Health::Starting) => Some(without(ControlState::Starting)),
            Self::Down(_) => Some(without(ControlState::Dead)),
            Self::Mps(mps) => Some(MpsStatus {
                pid: Some(mps.pid),
                default_limit_mib: mps.default_limit.map(|limit| limit.0),
                servers: mps.servers.clone(),
                ..without(mps.control)
            }),
        }
    }
}

/// A control daemon that runs, and what is known of it since.
#[derive(Debug, Clone)]
pub(super) struct Mps {
    pub(super) pid: u32,
    control: ControlState,
    pub(super) health: Health,
    /// What a client of the next server gets that has no limit of its own.
    pub(super) default_limit: Option<Mib>,
    /// As it named them last.
    pub(super) servers: Vec<ServerStatus>,
    /// Whose server is known to take clients.
    pub(super) server_uid: Option<u32>,
    /// What is wrong with its files.
    files: Option<Trouble>,
    /// What is wrong with its gate.
    gate: Option<Trouble>,
    /// Looks, one after the other, that found no gate and started one.
    gate_starts: u32,
    /// Why the gate said that it cannot serve, and when it said so last.
    unserved: Option<(String, Instant)>,
    /// Why it does not answer, as last seen.
    wedge: Option<WedgeCause>,
    /// The client that the log names as the one that caused a fatal fault.
    pub(super) blamed: Option<String>,
}

impl Mps {
    /// Of this pid, with the card as healthy as it was.
    pub(super) fn new(
        pid: u32,
        control: ControlState,
        limit: Option<Mib>,
        health: Health,
    ) -> Box<Self> {
        Box::new(Self {
            pid,
            control,
            health,
            default_limit: limit,
            servers: Vec::new(),
            server_uid: None,
            files: None,
            gate: None,
            gate_starts: 0,
            unserved: None,
            wedge: None,
            blamed: None,
        })
    }

    pub(super) fn is_wedged(&self) -> bool {
        self.control == ControlState::Wedged
    }

    /// Takes how it is. Why it could not be asked is for the conclusion alone.
    pub(super) fn view(&mut self, view: View) {
        // A driver that cannot tell (535) has none that is known not to take clients.
        let takes = |server: &&ServerStatus| {
            server.status.as_ref().is_none_or(|state| *state == ServerState::Active)
        };
        self.server_uid = view.servers.iter().find(takes).and_then(|server| server.uid);
        self.control = view.state;
        if self.is_wedged() {
            // Its servers are as they were, and so is the cause where nobody looked for it.
            self.wedge = view.cause.or_else(|| self.wedge.take());
        } else {
            (self.servers, self.wedge) = (view.servers, None);
        }
    }

    /// Takes a look at its files and its gate.
    pub(super) fn look(
        &mut self,
        files: Option<Trouble>,
        gate: GateSeen,
        minor: u32,
        now: Instant,
    ) {
        self.files = files;
        self.gate = match gate {
            GateSeen::Missing(Trouble { why, hint }) => {
                Some(Trouble::new(format!("has no gate: {why}"), hint))
            }
            GateSeen::Serves => {
                self.gate_starts = 0;
                self.unserved(now)
            }
            GateSeen::Started => {
                self.gate_starts = self.gate_starts.saturating_add(1);
                let hint = where_to_look(minor);
                let trouble = Trouble::new("has a gate that ends again and again", hint);
                (self.gate_starts >= GATE_STARTS).then_some(trouble)
            }
        };
    }

    /// Takes that its gate cannot serve: no container gets a door that leads nowhere.
    pub(super) fn serves_nobody(&mut self, why: String, now: Instant) {
        self.unserved = Some((why, now));
        self.gate = self.unserved(now);
    }

    fn unserved(&self, now: Instant) -> Option<Trouble> {
        let (why, since) = self.unserved.as_ref()?;
        let hint = "install a driver whose MPS this version of mpsgate knows (docs/gate.md)";
        let why = format!("has a gate that cannot serve its MPS control daemon: {why}");
        (now.saturating_duration_since(*since) < UNSERVED).then(|| Trouble::new(why, hint))
    }

    /// What is wrong, by what was seen so far. `unasked`: why it could not be asked just now.
    pub(super) fn trouble(&self, unasked: Option<Trouble>) -> Option<Trouble> {
        let of_daemon = match self.control {
            ControlState::Wedged => Some(unasked.map_or_else(
                || self.wedge_trouble(),
                |Trouble { why, hint }| Trouble::new(format!("cannot be asked: {why}"), hint),
            )),
            ControlState::Fault => Some(self.fault()),
            // `Dead`: the end of its process decides.
            ControlState::Starting | ControlState::Running | ControlState::Dead => None,
        };
        let files = self.files.as_ref().map(|Trouble { why, hint }| {
            Trouble::new(format!("is not safe to use: {why}"), hint.clone())
        });
        // Who cannot be asked or ended may have lost its files: they say why.
        files.or(of_daemon).or_else(|| self.gate.clone())
    }

    fn wedge_trouble(&self) -> Trouble {
        let (why, hint) = self.wedge.as_ref().unwrap_or(&WedgeCause::Unknown).explain(self.pid);
        Trouble::new(format!("has an MPS control daemon that does not answer{why}"), hint)
    }

    fn fault(&self) -> Trouble {
        // A container may be able to write to that log.
        let by = self.blamed.as_ref();
        let by = by.map(|by| format!(", for which its log, which proves nothing, names {by}"));
        Trouble::new(
            format!("has an MPS server in FAULT after a fatal GPU error{}", by.unwrap_or_default()),
            "stop the containers on this card: the server recovers when the last one has ended",
        )
    }
}
