//! Which containers are served, and at whose sockets somebody is accepted.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Instant;

use mpsgate_model::Instance;
use mpsgate_model::door_file::SOCKET;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::{AtFlags, statat};

use super::{Gate, LISTENER};
use crate::error::GateError;
use crate::sockets;

impl Gate {
    /// Looks at the files of these containers, or of all.
    pub(super) fn look(&mut self, names: Option<BTreeSet<Instance>>) {
        let names = match names {
            Some(names) => names,
            None => {
                self.looked = Instant::now();
                match self.directory.names() {
                    Ok(names) => names.into_iter().chain(self.doors.names().cloned()).collect(),
                    Err(error) => return complain(&error),
                }
            }
        };
        for name in names {
            match self.directory.read(&name) {
                Ok(Some(container)) => {
                    if !self.listeners.contains_key(&name)
                        && let Err(error) = self.open(&name)
                    {
                        complain(&error);
                        continue;
                    }
                    self.doors.set(&name, container);
                }
                Ok(None) => self.close(&name),
                Err(error) => complain(&error),
            }
        }
    }

    /// Serves a container from now on: at the socket that an earlier gate had, else at a new one.
    fn open(&mut self, name: &Instance) -> Result<(), GateError> {
        let (directory, path) = self.directory.of(name)?;
        let there = statat(&directory, SOCKET, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let listener = match self.kept.remove(name.as_str()) {
            Some(kept) if there => kept,
            _ => {
                let path = path.join(SOCKET);
                self.store.remove(name);
                let listener =
                    sockets::prepare(directory.as_fd()).map_err(GateError::fs("bind", &path))?;
                // Kept before a client can see it: one that connects is never refused.
                self.store.keep(name, listener.as_fd());
                sockets::show(directory.as_fd()).map_err(GateError::fs("bind", path))?;
                listener
            }
        };
        self.last += 1;
        let token = LISTENER | self.last;
        self.watch(&listener, token, self.listening(name))?;
        self.names.insert(token, name.clone());
        self.listeners.insert(name.clone(), (token, listener));
        Ok(())
    }

    /// Has all sockets kept again where nobody keeps them.
    pub(super) fn keep_all(&mut self) {
        if self.store.is_another() {
            for (name, (_, listener)) in &self.listeners {
                self.store.keep(name, listener.as_fd());
            }
        }
    }

    /// Gives up the sockets of containers that ended while no gate ran.
    pub(super) fn forget_kept(&mut self) {
        let Self { kept, directory, store, .. } = self;
        kept.retain(|name, _| {
            let Ok(name) = Instance::parse(name) else { return false };
            // A file that cannot be read now may be later.
            let has_ended = matches!(directory.read(&name), Ok(None));
            if has_ended {
                store.remove(&name);
            }
            !has_ended
        });
    }

    fn close(&mut self, name: &Instance) {
        let mut effects = Vec::new();
        self.doors.remove(name, &mut effects);
        self.perform(effects);
        self.paused.remove(name);
        if let Some((token, listener)) = self.listeners.remove(name) {
            // The store has it still: closing it here takes it out of nothing.
            let _ = epoll::delete(&self.epoll, &listener);
            self.names.remove(&token);
            self.store.remove(name);
        }
    }

    fn listening(&self, name: &Instance) -> EventFlags {
        let may_answer = self.hello.is_some() && self.rest.is_none() && !self.is_ending;
        let listens = may_answer && !self.paused.contains(name);
        if listens { EventFlags::IN } else { EventFlags::empty() }
    }

    /// After a change of what [`Self::listening`] looks at.
    pub(super) fn listen(&self, name: &Instance) {
        let Some((token, listener)) = self.listeners.get(name) else { return };
        let data = EventData::new_u64(*token);
        if let Err(errno) = epoll::modify(&self.epoll, listener, data, self.listening(name)) {
            log::error!(errno:%; "cannot wait for a container's clients");
        }
    }

    pub(super) fn listen_everywhere(&self) {
        for name in self.listeners.keys() {
            self.listen(name);
        }
    }
}

fn complain(error: &GateError) {
    let cause = std::error::Error::source(error).map(|source| format!(": {source}"));
    log::error!("{error}{}", cause.unwrap_or_default());
}
