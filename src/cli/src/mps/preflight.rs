//! `mpsgate mps preflight`: the processes that would be terminated with the MPS of the whole node.
//! Asks card by card what `mps restart` asks before it is confirmed, and never confirms.

use std::fmt::Write as _;

use mpsgate_api::{ApiError, Call, CardStatus, Mps, MpsAction, Reply, WouldEnd};
use mpsgate_edge::{EdgeError, ExitCode, print};
use serde::Serialize;

use super::{SCHEMA, clients, grants, parse};
use crate::args::{Output, PreflightArgs};
use crate::{CliError, daemon_call};

/// What the restart of one managed card would end.
struct Restart {
    list: WouldEnd,
    /// Whether it has a control daemon, as far as mpsgated knows.
    has_daemon: bool,
}

pub(crate) fn run(args: &PreflightArgs) -> Result<ExitCode, CliError> {
    let socket = &args.daemon.socket;
    let status = daemon_call::status(socket)?;
    let ask = |card: &CardStatus| {
        let call = Mps { gpu: card.uuid.clone(), action: MpsAction::Restart, confirmed: false };
        match daemon_call::ask(socket, Call::Mps(call))? {
            Reply::WouldEnd { list } => {
                Ok(Restart { list: parse(&list)?, has_daemon: card.mps.is_some() })
            }
            _ => Err(CliError::from(ApiError::Unexpected)),
        }
    };
    let managed = status.cards.iter().filter(|card| card.managed);
    let cards = managed.map(ask).collect::<Result<Vec<_>, _>>()?;
    print::answer(&match args.output {
        Output::Json => render_json(&cards)?,
        Output::Text => render(&cards),
    })?;
    Ok(if cards.iter().all(Restart::is_idle) { ExitCode::Done } else { ExitCode::No })
}

impl Restart {
    /// Nobody dies with its MPS. A control daemon that does not tell may have clients; none has
    /// none.
    fn is_idle(&self) -> bool {
        let Self { list, has_daemon } = self;
        let tells = list.unknown.is_none() || (!has_daemon && list.servers.is_empty());
        tells
            && list.grants.is_empty()
            && list.servers.iter().all(|server| server.clients.is_empty())
    }
}

fn render_json(cards: &[Restart]) -> Result<String, EdgeError> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        nobody: bool,
        cards: Vec<&'a WouldEnd>,
    }
    print::json(&Document {
        schema: SCHEMA,
        nobody: cards.iter().all(Restart::is_idle),
        cards: cards.iter().map(|card| &card.list).collect(),
    })
}

fn render(cards: &[Restart]) -> String {
    let mut text = String::new();
    for card in cards {
        let name = format!("GPU {} ({})", card.list.card_index, card.list.card);
        // Writing to a String does not fail.
        let _ = if card.is_idle() {
            writeln!(text, "{name}: nobody")
        } else {
            let (grants, clients) = (grants(&card.list), clients(&card.list));
            writeln!(text, "{name}: the end of its MPS would end\n\n{grants}\n{clients}")
        };
    }
    text.push_str(if cards.is_empty() {
        "No GPU is managed: no process would be terminated.\n"
    } else if cards.iter().all(Restart::is_idle) {
        "No process would be terminated now. So it stays while the node takes no new containers: kubectl cordon NODE\n"
    } else {
        "\nNothing was done. End these containers first; those of pods with:\n  \
         kubectl drain NODE --ignore-daemonsets --delete-emptydir-data\n"
    });
    text
}
