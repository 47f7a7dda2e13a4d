//! Servers of a card that ended without our asking: their clients have lost the card while the
//! control daemon goes on (seen by sgl-project/sglang-omni, pull request 2101).

use std::collections::BTreeSet;

use mpsgate_model::ledger::ProcessId;
use mpsgate_node::card::Card;

use super::CardTask;
use crate::process_end;

/// What is known of a card's servers.
#[derive(Debug, Default)]
pub(super) struct Servers {
    alive: Vec<ProcessId>,
    /// Seen to have ended at the last look: the log says how a moment later.
    ended: Vec<ProcessId>,
    /// Pids that the log says ended with status 0, as one does that has no clients any more.
    graceful: BTreeSet<u32>,
    /// Pids that some front-end ended in spite of their clients, says the log, where a container
    /// may be able to write: it counts for a server that was last seen with clients.
    forced: BTreeSet<u32>,
    /// The clients that the control daemon named last, by server.
    clients: Vec<(u32, ProcessId)>,
    /// Servers some of whose clients lived at the last look.
    serving: BTreeSet<u32>,
}

impl Servers {
    /// What is there now may be ended, and that breaks nothing.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(super) fn exited(&mut self, server: i32, status: i32) {
        if let (Ok(pid), 0) = (u32::try_from(server), status) {
            self.graceful.insert(pid);
        }
    }

    /// Takes whom the control daemon says that its servers serve.
    pub(super) fn serve(&mut self, clients: Vec<(u32, ProcessId)>) {
        self.serving.extend(clients.iter().map(|(server, _)| *server));
        self.clients = clients;
    }

    /// Its exit status says nothing then.
    pub(super) fn forced(&mut self, server: i32) {
        self.forced.extend(u32::try_from(server).ok());
    }

    /// Takes the pids that the control daemon named last; gives those that crashed since.
    fn evaluate(&mut self, named: &[u32], alive: impl Fn(&ProcessId) -> bool) -> Vec<u32> {
        let crashed: Vec<u32> = std::mem::take(&mut self.ended)
            .into_iter()
            .map(|server| server.pid)
            .filter(|pid| {
                let forced = self.forced.contains(pid) && self.serving.contains(pid);
                !self.graceful.remove(pid) || forced
            })
            .collect();
        let (living, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.alive).into_iter().partition(&alive);
        // Of one that has ended it stays known whether it had clients, until that end is handled.
        self.serving.retain(|pid| ended.iter().any(|server| server.pid == *pid));
        self.clients.retain(|(_, client)| alive(client));
        let living_pids = living.iter().map(|server| server.pid);
        let serves = |pid: &u32| self.clients.iter().any(|(server, _)| server == pid);
        self.serving.extend(living_pids.filter(serves).collect::<Vec<_>>());
        (self.alive, self.ended) = (living, ended);
        for pid in named {
            if !self.alive.iter().any(|known| known.pid == *pid) {
                self.alive.extend(process_end::identify(*pid));
            }
        }
        crashed
    }
}

impl CardTask {
    /// Breaks the card's grants where a server of theirs crashed.
    pub(super) async fn evaluate_servers(&mut self) {
        let named = self.server_pids();
        let crashed = self.watch.servers.evaluate(&named, process_end::is_alive);
        if !crashed.is_empty() {
            log::error!(uuid = self.uuid.as_str(), servers:? = crashed; "MPS server crashed");
            self.break_grants().await;
        }
    }

    /// As the control daemon named them last.
    pub(super) fn server_pids(&self) -> Vec<u32> {
        let node = self.daemon.node();
        let servers = node.card(&self.uuid).map(Card::servers).unwrap_or_default();
        servers.iter().map(|server| server.pid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_vanished_is_evaluated_a_look_later_by_what_the_log_says() {
        let own = std::process::id();
        for (status, crashed) in [(Some(0), vec![]), (Some(1), vec![own]), (None, vec![own])] {
            let mut servers = Servers::default();
            assert!(servers.evaluate(&[own], |_| true).is_empty());
            assert!(servers.evaluate(&[], |_| false).is_empty(), "the log may say more");
            if let Some(status) = status {
                servers.exited(own.cast_signed(), status);
            }
            assert_eq!(servers.evaluate(&[], |_| false), crashed, "{status:?}");
            assert!(servers.evaluate(&[], |_| false).is_empty(), "told once");
        }
    }

    fn forced_down(clients: Vec<(u32, ProcessId)>) -> Vec<u32> {
        let own = std::process::id();
        let mut servers = Servers::default();
        servers.evaluate(&[own], |_| true);
        servers.serve(clients);
        servers.evaluate(&[own], |_| true);
        servers.forced(own.cast_signed());
        servers.exited(own.cast_signed(), 0);
        servers.evaluate(&[], |_| false);
        servers.evaluate(&[], |_| false)
    }

    #[test]
    fn one_that_was_forced_down_ends_with_0_and_took_its_clients_along() {
        let own = std::process::id();
        let client = process_end::identify(own).map(|client| (own, client));
        assert_eq!(forced_down(client.into_iter().collect()), [own]);
    }

    #[test]
    fn one_that_served_nobody_broke_nothing_whatever_the_log_says_of_its_end() {
        let own = std::process::id();
        assert!(forced_down(Vec::new()).is_empty());
        let others = process_end::identify(own).map(|client| (own + 1, client));
        assert!(forced_down(others.into_iter().collect()).is_empty());
    }

    #[test]
    fn one_that_we_ended_is_no_crash() {
        let mut servers = Servers::default();
        servers.evaluate(&[std::process::id()], |_| true);
        servers.forget();
        assert!(servers.evaluate(&[], |_| false).is_empty());
        assert!(servers.evaluate(&[], |_| false).is_empty());
    }
}
