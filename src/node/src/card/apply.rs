//! What follows from each event of a card's own: the one place where a card changes.

use std::time::Instant;

use mpsgate_api::ControlState;
use mpsgate_config::Schedule;
use mpsgate_model::ComputeMode;
use mpsgate_policy::{Condition, Disturbance};

use super::card_state::{Mps, State};
use super::{
    Card, CardEvent, CardNews, Control, Ends, GateSeen, Health, ManagedBy, Seen, Trouble, View,
    Watched,
};
use crate::effect::Effect;

impl Card {
    /// It is handed over, or taken back: whatever was known of it counts no more.
    pub(crate) fn hand(&mut self, managed: Option<ManagedBy>) {
        (self.managed, self.closed, self.state) = (managed, None, State::Idle);
    }

    /// A command has closed it, and this is why, or it is open.
    pub(crate) fn close(&mut self, closed: Option<Trouble>) {
        self.closed = closed;
    }

    /// NVML does not show it.
    pub(crate) fn lose(&mut self, trouble: Trouble, effects: &mut Vec<Effect>) {
        if self.lost.as_ref() != Some(&trouble) {
            effects.push(self.news(CardNews::Lost(trouble.clone())));
            self.lost = Some(trouble);
        }
    }

    /// What the node's schedule has in force now decides what an event of the card's MPS means.
    pub(crate) fn apply(
        &mut self,
        event: CardEvent,
        schedule: Schedule,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        match event {
            CardEvent::Kept(by) => self.managed = Some(by),
            CardEvent::Stopped => {
                self.state = State::Idle;
                // The compute mode has changed.
                effects.extend([Effect::TellChange, Effect::Look]);
            }
            // One without MPS has none, and one that comes up asks.
            CardEvent::MostClients(most) => {
                self.max_clients = if self.max_clients == 0 { 0 } else { most };
            }
            CardEvent::Serverless => self.serverless = true,
            CardEvent::GateCounts(counts, gate) => self.count_clients(counts, gate),
            CardEvent::Watched(watched, at_once) => self.watch(*watched, at_once),
            CardEvent::NotWatched(why, at_once) => {
                self.saw(Disturbance::NotReady, format!("it was not looked at: {why}"));
                self.watch(Watched { blind: Some(why), ..Watched::default() }, at_once);
            }
            CardEvent::Others(outsiders, others) => self.note_others(&outsiders, others),
            CardEvent::Untold(time) => {
                let words = format!("its gate or NVML told nothing of it for {} s", time.as_secs());
                self.saw(Disturbance::Gate, words);
            }
            // Nobody prepares it; who began to has not heard yet.
            _ if self.managed.is_none() => {}
            CardEvent::Unfit(of, trouble) if of == schedule => {
                self.fail(schedule, Health::Unfit(trouble), effects);
            }
            CardEvent::Failed(of, Trouble { why, hint }) if of == schedule => {
                let trouble = Trouble::new(format!("is not ready: {why}"), hint);
                self.fail(schedule, Health::Unhealthy(trouble), effects);
            }
            CardEvent::Shared(mode) if schedule == Schedule::Share => self.share(mode, effects),
            CardEvent::Died(wait) => {
                let wait = wait.as_secs();
                let why =
                    format!("lost its MPS control daemon, which is started again in {wait} s");
                let hint =
                    "mpsgate status names the containers that lost the card; try again in a moment";
                self.lose_control(Trouble::new(why, hint), effects);
            }
            CardEvent::Ended => self.enter(State::Down(Health::Starting), effects),
            // From then on it is being prepared for something else.
            event if schedule == Schedule::Mps => self.apply_to_mps(event, now, effects),
            _ => {}
        }
    }

    /// Of a control daemon, under MPS.
    fn apply_to_mps(&mut self, event: CardEvent, now: Instant, effects: &mut Vec<Effect>) {
        match event {
            CardEvent::Answers(control) => return self.answer(*control, effects),
            CardEvent::Silent(pid) => {
                let health = self.health().clone();
                self.state = State::Mps(Mps::new(pid, ControlState::Wedged, None, health));
                return self.view(View::wedged(None), effects);
            }
            CardEvent::Viewed(view) => return self.view(view, effects),
            _ => {}
        }
        let minor = self.minor;
        let Some(mps) = self.state.mps_mut() else { return };
        match event {
            CardEvent::Looked(files, gate) => {
                let serves = gate == GateSeen::Serves;
                mps.look(files, gate, minor, now);
                if !serves {
                    // What an earlier one counted is not the next one's.
                    self.gate = None;
                    self.saw(Disturbance::Gate, "its gate had ended");
                }
            }
            CardEvent::GateUnserved(why) => mps.serves_nobody(why, now),
            CardEvent::Blamed(client) => mps.blamed = Some(client),
            CardEvent::ServerBegan => return mps.blamed = None,
            // Until the new one takes clients nobody may count on it.
            CardEvent::ServerWanted => return mps.server_uid = None,
            CardEvent::LimitSet(limit) => return mps.default_limit = Some(limit),
            CardEvent::ModeRetaken(changed) => {
                self.compute_mode = Some(ComputeMode::ExclusiveProcess);
                if changed {
                    self.saw(Disturbance::NotReady, "somebody changed its compute mode");
                }
                return;
            }
            CardEvent::ModeForeign(Trouble { why, hint }) => {
                let trouble = Trouble::new(format!("can be used without MPS: {why}"), hint);
                self.set_health(Health::Unhealthy(trouble), effects);
                return effects.push(Effect::TellChange);
            }
            _ => return,
        }
        let before = self.health().clone();
        self.assess(None, effects);
        if *self.health() != before {
            effects.push(Effect::TellChange);
        }
    }

    /// The node shares its cards in another way from now on: it is to be prepared for that, and
    /// nobody can place a grant on it as it was.
    pub(crate) fn switch(&mut self, to: Schedule) {
        if to == Schedule::Share && matches!(self.state, State::Down(_)) {
            // None is to be started any more.
            self.state = State::Idle;
        } else if let Some(health) = self.state.health_mut() {
            *health = Health::Starting;
        }
    }

    pub(crate) fn see(&mut self, seen: Seen, schedule: Schedule, effects: &mut Vec<Effect>) {
        let Seen { index, minor, name, total, memory, used, compute_mode, is_named: _ } = seen;
        (self.index, self.minor, self.name) = (index, minor, name);
        (self.total, self.memory, self.used) = (total, memory, used);
        let changed = self.compute_mode.replace(compute_mode) != Some(compute_mode);
        let bypasses = self.state.mps().is_some() && compute_mode != ComputeMode::ExclusiveProcess;
        if bypasses || (schedule == Schedule::Share && changed) {
            effects.push(Effect::CheckComputeMode(self.uuid.clone()));
        }
        if self.lost.take().is_some() {
            effects.extend([self.news(CardNews::Back), Effect::TellChange]);
            self.saw(Disturbance::NotReady, "NVML did not show it for a moment");
        }
    }

    fn answer(&mut self, control: Control, effects: &mut Vec<Effect>) {
        let Control { pid, adopted, multiuser, max_clients, ends, limit, view } = control;
        (self.multiuser, self.max_clients, self.ends) = (multiuser, max_clients, ends);
        self.compute_mode = Some(ComputeMode::ExclusiveProcess);
        self.shared_memory = None;
        self.saw(Disturbance::Restarted, "its control daemon was started or found anew");
        effects.push(self.news(CardNews::Answers(pid, adopted, self.memory)));
        let health = self.health().clone();
        self.state = State::Mps(Mps::new(pid, view.state, Some(limit), health));
        self.view(view, effects);
    }

    fn view(&mut self, view: View, effects: &mut Vec<Effect>) {
        let Some(mps) = self.state.mps_mut() else { return };
        let (unasked, seen) = (view.trouble.clone(), view.shared_memory);
        mps.view(view);
        if let Some(seen) = seen.filter(|seen| Some(*seen) != self.shared_memory) {
            self.shared_memory = Some(seen);
            effects.extend([self.news(CardNews::SharedMemory(seen)), Effect::Look]);
        }
        self.assess(unasked, effects);
        effects.push(Effect::TellChange);
    }

    /// Draws the conclusion from what is known of its control daemon by now.
    fn assess(&mut self, unasked: Option<Trouble>, effects: &mut Vec<Effect>) {
        let Some(mps) = self.state.mps() else { return };
        let health = match mps.trouble(unasked) {
            Some(trouble) => Health::Unhealthy(trouble),
            // A container could bypass MPS: `ModeRetaken` decides, or `ModeForeign`.
            None if self.compute_mode != Some(ComputeMode::ExclusiveProcess) => mps.health.clone(),
            None => Health::Ready,
        };
        self.set_health(health, effects);
    }

    /// It was not prepared for this schedule.
    fn fail(&mut self, schedule: Schedule, health: Health, effects: &mut Vec<Effect>) {
        match schedule {
            Schedule::Mps => self.enter(State::Down(health), effects),
            Schedule::Share => self.leave_mps(health, effects),
        }
    }

    pub(crate) fn lose_control(&mut self, why: Trouble, effects: &mut Vec<Effect>) {
        if self.managed.is_some() {
            self.enter(State::Down(Health::Unhealthy(why)), effects);
        }
    }

    /// Somebody else may have set a mode in which containers cannot share the card. It is his, and
    /// not changed.
    fn share(&mut self, mode: ComputeMode, effects: &mut Vec<Effect>) {
        self.compute_mode = Some(mode);
        let trouble = || {
            Trouble::new(
                format!(
                    "is in compute mode {mode}, in which containers cannot share it without MPS"
                ),
                format!(
                    "end what has set it (another MPS control daemon), then: nvidia-smi -i {} -c \
                     DEFAULT",
                    self.uuid
                ),
            )
        };
        let health = match mode {
            ComputeMode::Default => Health::Ready,
            _ => Health::Unhealthy(trouble()),
        };
        self.leave_mps(health, effects);
    }

    /// Nothing of MPS is left on it.
    fn leave_mps(&mut self, health: Health, effects: &mut Vec<Effect>) {
        (self.ends, self.max_clients, self.multiuser) = (Ends::None, 0, false);
        self.unlimited = None;
        self.enter(State::Shared(health), effects);
    }

    /// Another state, which is told.
    fn enter(&mut self, state: State, effects: &mut Vec<Effect>) {
        self.note_health(state.health(), effects);
        self.state = state;
        effects.push(Effect::TellChange);
    }

    fn set_health(&mut self, health: Health, effects: &mut Vec<Effect>) {
        self.note_health(&health, effects);
        if let Some(own) = self.state.health_mut() {
            *own = health;
        }
    }

    /// One line per change; and whoever asks the card is to know that it was not ready.
    fn note_health(&mut self, now: &Health, effects: &mut Vec<Effect>) {
        let news = match now {
            Health::Ready => Some(CardNews::Ready(self.memory)),
            Health::Starting => None,
            Health::Unfit(trouble) | Health::Unhealthy(trouble) => {
                Some(CardNews::NotReady(trouble.clone()))
            }
        };
        effects.extend(news.filter(|_| *self.health() != *now).map(|news| self.news(news)));
        if let Condition::Unfit { why, .. } | Condition::Unhealthy { why, .. } = now.condition() {
            self.saw(Disturbance::NotReady, format!("it {why}"));
        }
    }

    fn watch(&mut self, watched: Watched, at_once: bool) {
        // For who waits for looks one that came at once is none: it counts for nobody but who is
        // over twice his grant.
        let looks = self.watched.looks.saturating_add(u64::from(!at_once));
        self.watched = Watched { looks, ..watched };
    }

    /// What another grant has does not take a reason away.
    pub(crate) fn limit_cgroup(
        &mut self,
        trouble: Option<Trouble>,
        all_held: bool,
        effects: &mut Vec<Effect>,
    ) {
        match trouble {
            None if all_held => self.unlimited = None,
            None => {}
            Some(trouble) => {
                if self.unlimited.is_none() {
                    effects.push(self.news(CardNews::Unlimited(trouble.clone())));
                }
                self.unlimited = Some(trouble);
            }
        }
    }

    pub(crate) fn news(&self, news: CardNews) -> Effect {
        Effect::TellCard(self.uuid.clone(), self.index, news)
    }
}
