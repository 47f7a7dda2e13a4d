//! Whose a client is, and whether it may have what it asks for.

use mpsgate_model::Instance;

use super::{Doors, Kernel, Place, Whose};
use crate::door::ClientId;
use crate::door_effect::Known;
use crate::handshake::{Reason, Words};
use crate::mps_wire::{Sender, Word};

impl Doors {
    /// Why a client that has said its word is not let wait.
    pub(super) fn refusal(
        &self,
        id: ClientId,
        sender: Sender,
        word: Word,
        kernel: &impl Kernel,
    ) -> Option<Reason> {
        let client = self.clients.get(&id)?;
        let door = self.doors.get(&client.door)?;
        let container = &door.container;
        match word {
            Word::Client => {}
            Word::Debuggee if container.debug => {}
            Word::Debuggee => return Some(Reason::Debugger),
            Word::Other(_) => return Some(Reason::Word),
        }
        if sender.uid != container.uid && !container.any_uid {
            return Some(Reason::Uid);
        }
        if container.cgroup.is_some() && self.known(id, kernel).is_none() {
            return Some(Reason::Elsewhere);
        }
        (door.waiting.len() >= self.bounds.waiting).then_some(Reason::Queue)
    }

    /// The client, where its process lives and is in its container.
    pub(super) fn known(&self, id: ClientId, kernel: &impl Kernel) -> Option<Known> {
        let client = self.clients.get(&id)?;
        let Words::Said(sender, _) = client.words else { return None };
        let start_time = client.start_time?;
        if kernel.start_time(client.peer.pid) != Some(start_time) {
            return None;
        }
        let is_its_own = self.place(client.peer.pid, kernel) == Place::In(&client.door);
        is_its_own.then(|| Known {
            door: client.door.clone(),
            pid: client.peer.pid,
            start_time,
            uid: sender.uid,
        })
    }

    /// Whose process it is that has connected at a door.
    pub(crate) fn whose(&self, name: &Instance, pid: u32, kernel: &impl Kernel) -> Whose {
        match self.place(pid, kernel) {
            Place::Unreadable => Whose::Unreadable,
            Place::In(door) if door == name => Whose::Ours,
            // Its own may be quicker than the file that says where they are.
            _ if self.container(name).is_none_or(|its| its.cgroup.is_none()) => Whose::Ours,
            Place::In(_) | Place::Elsewhere => Whose::Anothers,
        }
    }

    /// Whose a process is: not only below a container's cgroup, but below no other container's that
    /// is nearer.
    fn place(&self, pid: u32, kernel: &impl Kernel) -> Place<&Instance> {
        let mut names = Vec::new();
        let mut cgroups = Vec::new();
        for (name, door) in &self.doors {
            if let Some(cgroup) = &door.container.cgroup {
                names.push(name);
                cgroups.push(cgroup);
            }
        }
        match kernel.place(pid, &cgroups) {
            Place::In(at) => names.get(at).map_or(Place::Elsewhere, |name| Place::In(name)),
            Place::Elsewhere => Place::Elsewhere,
            Place::Unreadable => Place::Unreadable,
        }
    }
}
