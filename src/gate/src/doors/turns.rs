//! Whose turn it is.

use std::time::Instant;

use mpsgate_host::process::ProcessId;
use mpsgate_model::Instance;

use super::{Doors, Kernel, Stage};
use crate::door::Door;
use crate::door_effect::{Effect, Known};
use crate::handshake::{Reason, Words};

impl Doors {
    /// Gives an active door its turn where somebody waits there.
    pub(super) fn queue_up(&mut self, name: &Instance) {
        let waits = |door: &Door| {
            door.container.cgroup.is_some() && !door.waiting.is_empty() && door.rest.is_none()
        };
        if self.doors.get(name).is_some_and(waits) && !self.turns.contains(name) {
            self.turns.push_back(name.clone());
        }
    }

    /// Has the server prepared for the next client, where nobody is being handed over.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        kernel: &impl Kernel,
        effects: &mut Vec<Effect>,
    ) {
        if self.rest.is_some_and(|rest| rest > now) {
            return;
        }
        self.rest = None;
        while self.handing.is_none()
            && let Some(name) = self.turns.pop_front()
        {
            let Some(door) = self.doors.get_mut(&name) else { continue };
            if door.container.cgroup.is_none() {
                continue;
            }
            let Some(id) = door.waiting.pop_front() else { continue };
            self.queue_up(&name);
            let known = self.known(id, kernel);
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.stage = Stage::Handing;
            if let Some(Known { pid, start_time, .. }) = known {
                self.handing = Some(id);
                effects.push(Effect::Prepare(name, ProcessId { pid, start_time }));
            } else {
                self.end(id, Reason::Elsewhere, effects);
            }
        }
    }

    /// The client that is being handed over gets nothing: its container has no memory left.
    pub(crate) fn refused(
        &mut self,
        now: Instant,
        kernel: &impl Kernel,
        effects: &mut Vec<Effect>,
    ) {
        match self.handing {
            Some(id) => self.end(id, Reason::Full, effects),
            None => effects.push(Effect::HangUp),
        }
        self.advance(now, kernel, effects);
    }

    /// The server has the limit of the client that is being handed over: the control daemon is
    /// called at once, before anything else is prepared.
    pub(crate) fn prepared(&mut self, effects: &mut Vec<Effect>) {
        let client = self.handing.and_then(|id| Some((id, self.clients.get(&id)?)));
        match client.map(|(id, client)| (id, client.words)) {
            Some((id, Words::Said(sender, word))) => effects.push(Effect::Call(id, sender, word)),
            _ => effects.push(Effect::HangUp),
        }
    }
}
