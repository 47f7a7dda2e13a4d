//! A card's clients: who they are, and the end of their GPU work.
//!
//! A client that is killed with work outstanding can leave the server and its other clients in an
//! undefined state; one that was terminated first cannot (NVIDIA MPS documentation, r615). What
//! `terminate_client` prints when it succeeds is unverified without a GPU, so what it prints
//! decides nothing here beyond a refusal.

use std::time::Instant;

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::protocol::{Answer, Command};
use crate::state::Server;

impl MpsInstance {
    /// The card's servers, each with the pids of its clients as the host counts.
    ///
    /// # Errors
    /// What the channel says.
    pub fn clients(&self) -> Result<Vec<(Server, Vec<i32>)>, MpsError> {
        let mut all = Vec::new();
        for server in self.servers()? {
            match self.channel().client_list(server.pid) {
                Ok(clients) => all.push((server, clients)),
                // Ended between the two questions.
                Err(MpsError::ServerNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Ends the GPU work of each client that `doomed` names; returns their pids. Over at
    /// `deadline`: then the error says which command had no answer, and those before it were
    /// carried out.
    ///
    /// # Errors
    /// What the channel says.
    pub fn terminate_clients(
        &self,
        doomed: impl Fn(i32) -> bool,
        deadline: Instant,
    ) -> Result<Vec<i32>, MpsError> {
        let ask = |command| self.channel().ask_until(&command, deadline);
        let pids = |answer| match answer {
            Ok(Answer::Pids(pids)) => Ok(pids),
            // Ended between two questions, and its clients with it.
            Ok(_) | Err(MpsError::ServerNotFound { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let mut terminated = Vec::new();
        for server in pids(ask(Command::GetServerList))? {
            let clients = pids(ask(Command::GetClientList(server)))?;
            for client in clients.into_iter().filter(|client| doomed(*client)) {
                match ask(Command::TerminateClient { server, client }) {
                    Ok(_) => terminated.push(client),
                    Err(MpsError::ServerNotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(terminated)
    }
}
