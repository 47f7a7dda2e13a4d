//! `mpsgate mps stop` and `mpsgate mps restart`: lists the processes that would be terminated, and
//! acts with `--yes` alone. `preflight` is the first for all cards. `ask` reads.

mod mps_ask;
mod preflight;

use std::fmt::Write as _;

use mpsgate_api::{ApiError, Call, FrameError, Json, Mps, MpsAction, Reply, WouldEnd};
use mpsgate_edge::{EdgeError, ExitCode, print};
use serde::Serialize;

use crate::args::{MpsCommand, Output};
use crate::status::columns::Columns;
use crate::status::{memory, short_id};
use crate::{CliError, daemon_call};

/// Version of the JSON document. Raised when a field goes or changes its meaning, not when one
/// comes.
const SCHEMA: u32 = 1;

pub(crate) fn run(command: &MpsCommand) -> Result<ExitCode, CliError> {
    let (action, args) = match command {
        MpsCommand::Stop(args) => (MpsAction::Stop, args),
        MpsCommand::Restart(args) => (MpsAction::Restart, args),
        MpsCommand::Preflight(args) => return preflight::run(args),
        MpsCommand::Ask(args) => return mps_ask::run(args),
    };
    if args.yes {
        let doing = if action == MpsAction::Stop { "stopping" } else { "restarting" };
        print::progress(&format!("{doing} the MPS of GPU {}; this may take a minute", args.gpu));
    }
    let call = Call::Mps(Mps { gpu: args.gpu.clone(), action, confirmed: args.yes });
    match daemon_call::ask(&args.daemon.socket, call)? {
        Reply::Done { text } => {
            print::answer(&format!("{text}\n"))?;
            Ok(ExitCode::Done)
        }
        Reply::WouldEnd { list } => {
            let list = parse(&list)?;
            print::answer(&match args.output {
                Output::Json => render_json(&list)?,
                Output::Text => render(&list, &args.gpu),
            })?;
            Ok(ExitCode::No)
        }
        _ => Err(ApiError::Unexpected.into()),
    }
}

fn parse(list: &Json<WouldEnd>) -> Result<WouldEnd, CliError> {
    list.read().map_err(|error| ApiError::Garbage(FrameError::Content(error)).into())
}

fn render_json(list: &WouldEnd) -> Result<String, EdgeError> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        #[serde(flatten)]
        list: &'a WouldEnd,
    }
    print::json(&Document { schema: SCHEMA, list })
}

/// Which processes would be terminated, and the command that does it. `gpu` as it was typed.
fn render(list: &WouldEnd, gpu: &str) -> String {
    let action = list.action.as_str();
    let mut text = format!(
        "mps {action} of GPU {} ({}) ends its MPS control daemon and all that uses it:\n\n",
        list.card_index, list.card
    );
    text.push_str(&grants(list));
    text.push('\n');
    text.push_str(&clients(list));
    // Writing to a String does not fail.
    let _ = write!(text, "\nNothing was done. To do it:\n  mpsgate mps {action} {gpu} --yes\n");
    text
}

fn grants(list: &WouldEnd) -> String {
    if list.grants.is_empty() {
        return "GRANTS: none\n".to_owned();
    }
    let mut table =
        Columns::new(&[("CONTAINER", ""), (">MEMORY", ""), ("STATE", ""), (">PID", "")]);
    for grant in &list.grants {
        table.row(vec![
            short_id(&grant.container_id).to_owned(),
            memory(grant.memory_mib),
            grant.state.to_string(),
            grant.pid.to_string(),
        ]);
    }
    format!("GRANTS, as the ledger records them\n{}", table.render())
}

fn clients(list: &WouldEnd) -> String {
    let mut table =
        Columns::new(&[(">SERVER", ""), (">CLIENT", ""), ("CONTAINER", ""), ("COMMAND", "")]);
    for server in &list.servers {
        let pid = server.pid.to_string();
        for client in &server.clients {
            table.row(vec![
                pid.clone(),
                client.pid.to_string(),
                client.container_id.as_deref().map_or("none with a grant", short_id).to_owned(),
                client.command.clone(),
            ]);
        }
        if server.clients.is_empty() {
            let clients = if list.unknown.is_some() { "unknown" } else { "none" };
            table.row(vec![pid, clients.to_owned(), "-".to_owned(), "-".to_owned()]);
        }
    }
    let tables = if table.is_empty() {
        "MPS SERVERS: none\n".to_owned()
    } else {
        format!("MPS SERVERS and their clients\n{}", table.render())
    };
    match &list.unknown {
        None => tables,
        Some(why) => {
            format!("{tables}There may be more: the control daemon does not tell: {why}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use mpsgate_api::{ClientProcess, GrantState, GrantStatus, ServerClients};

    use super::*;

    fn list() -> WouldEnd {
        let client = |pid, container: Option<&str>, command: &str| ClientProcess {
            pid,
            container_id: container.map(str::to_owned),
            command: command.to_owned(),
        };
        WouldEnd {
            action: MpsAction::Restart,
            card: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
            card_index: 0,
            grants: Vec::new(),
            servers: vec![
                ServerClients {
                    pid: 200,
                    uid: Some(0),
                    clients: vec![
                        client(3011, Some("web"), "python train.py"),
                        client(77, None, "./a.out"),
                    ],
                },
                ServerClients { pid: 201, uid: None, clients: Vec::new() },
            ],
            unknown: None,
        }
    }

    #[test]
    fn who_dies_is_listed_with_container_or_command_and_the_way_on() {
        let text = render(&list(), "0");
        assert_eq!(
            text,
            "\
mps restart of GPU 0 (GPU-00000000-0000-0000-0000-000000000000) ends its MPS control daemon and all that uses it:

GRANTS: none

MPS SERVERS and their clients
SERVER  CLIENT  CONTAINER          COMMAND
   200    3011  web                python train.py
   200      77  none with a grant  ./a.out
   201    none  -                  -

Nothing was done. To do it:
  mpsgate mps restart 0 --yes
"
        );
    }

    #[test]
    fn what_could_not_be_listed_is_not_passed_over() {
        let mut list = list();
        list.action = MpsAction::Stop;
        list.servers = vec![ServerClients { pid: 5, uid: None, clients: Vec::new() }];
        list.unknown = Some("it did not answer in 8 s".to_owned());
        list.grants = vec![GrantStatus {
            container_id: "web".to_owned(),
            state: GrantState::Active.into(),
            memory_mib: 7168,
            pid: 3000,
            ..grant()
        }];
        let text = render(&list, "GPU-0");
        assert!(
            text.contains("CONTAINER  MEMORY  STATE    PID\nweb         7 GiB  active  3000\n"),
            "{text}"
        );
        assert!(text.contains("     5  unknown"), "{text}");
        assert!(
            text.contains("There may be more: the control daemon does not tell: it did not"),
            "{text}"
        );
        assert!(text.ends_with("  mpsgate mps stop GPU-0 --yes\n"), "{text}");
    }

    fn grant() -> GrantStatus {
        serde_json::from_value(serde_json::json!({
            "container_id": "", "runtime_root": "/run/runc", "instance": "0", "state": "", "card": "GPU-0",
            "card_index": 0, "memory_mib": 0, "compute_percent": null, "uid": 0, "pid": 0, "cgroup": null,
            "guarantee": "mps", "since_ms": 0
        }))
        .unwrap_or_else(|error| panic!("{error}"))
    }
}
