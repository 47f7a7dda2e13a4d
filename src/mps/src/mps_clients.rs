//! A card's clients: their pids, and the end of their GPU work.
//!
//! A client that is killed with work outstanding can leave the server and its other clients in an
//! undefined state; a client that was terminated first cannot (NVIDIA MPS documentation, r615).
//! `terminate_client` prints 0 when it succeeds, and else a number of CUDA's, as 201 for a client
//! that is not there (measured on 580.159.04, on an H200).

use std::time::Instant;

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::mps_state::Server;
use crate::protocol::{Answer, Command};

impl MpsInstance {
    /// The card's servers, each with the pids of its clients in the host's pid namespace.
    ///
    /// # Errors
    /// Errors of the channel.
    pub fn clients(&self) -> Result<Vec<(Server, Vec<i32>)>, MpsError> {
        let mut all = Vec::new();
        for server in self.servers()? {
            match self.channel().client_list(server.pid) {
                Ok(clients) => all.push((server, clients)),
                // The server ended between the two questions.
                Err(MpsError::ServerNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Ends the GPU work of each client that `doomed` selects; returns their pids. It ends at
    /// `deadline`: then the error names the command that had no answer, and the commands before it
    /// were carried out.
    ///
    /// # Errors
    /// Errors of the channel.
    pub fn terminate_clients(
        &self,
        doomed: impl Fn(i32) -> bool,
        deadline: Instant,
    ) -> Result<Vec<i32>, MpsError> {
        let ask = |command| self.channel().ask_until(&command, deadline);
        let pids = |answer| match answer {
            Ok(Answer::Pids(pids)) => Ok(pids),
            // The server and its clients ended between two questions.
            Ok(_) | Err(MpsError::ServerNotFound { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let mut terminated = Vec::new();
        for server in pids(ask(Command::GetServerList))? {
            let clients = pids(ask(Command::GetClientList(server)))?;
            for client in clients.into_iter().filter(|client| doomed(*client)) {
                match ask(Command::TerminateClient { server, client }) {
                    Ok(Answer::Lines(lines)) if is_refused(&lines) => log::info!(
                        server, client, answer = lines.join(" ").as_str();
                        "the MPS server terminated no such client"
                    ),
                    Ok(_) => terminated.push(client),
                    Err(MpsError::ServerNotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(terminated)
    }
}

/// Whether the last line is a number other than 0. Older drivers may print another text, which
/// means nothing.
fn is_refused(lines: &[String]) -> bool {
    lines.last().and_then(|line| line.parse::<u32>().ok()).is_some_and(|code| code != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_other_than_0_is_a_refusal() {
        let refused = |text: &str| is_refused(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        for (text, expected) in [
            ("", false),
            ("0", false),
            ("201", true),
            ("Invalid process 7!\n1", true),
            ("done", false),
        ] {
            assert_eq!(refused(text), expected, "{text:?}");
        }
    }
}
