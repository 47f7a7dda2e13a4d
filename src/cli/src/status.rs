//! `mpsgate status`: what the daemon knows, as a table or as JSON.
//!
//! In the wide table whose view a column is stands below its title. `recorded` is the ledger,
//! `device` is NVML, `server` is the MPS control daemon.

pub(crate) mod columns;
mod ready;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use mpsgate_api::{Action, ApiServerStatus, CardStatus, ClaimsStatus, GrantStatus, Status};
use mpsgate_edge::{EdgeError, ExitCode, print};
use mpsgate_host::clock::now_ms;
use mpsgate_model::{Guarantee, Mib, OneOf};
use mpsgate_policy::schedule::Word;
use serde::Serialize;

use self::columns::Columns;
use crate::args::{StatusArgs, StatusOutput};
use crate::{CliError, daemon_call};

/// Version of the JSON document. Raised when a field goes or changes its meaning, not when one
/// comes.
const SCHEMA: u32 = 1;
/// Actions that the table shows.
const ACTIONS_SHOWN: usize = 10;
/// Title of the column that only a Kubernetes node has.
const PROMISED: &str = ">PROMISED";

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode, CliError> {
    let status = daemon_call::status(&args.daemon.socket)?;
    if args.ready {
        let problem = ready::problem(&status);
        print::answer(&match &problem {
            None => "ready\n".to_owned(),
            Some(problem) => format!("not ready: {problem}\nhint: mpsgate doctor\n"),
        })?;
        return Ok(if problem.is_none() { ExitCode::Done } else { ExitCode::No });
    }
    let text = match args.output {
        StatusOutput::Json => render_json(&status)?,
        StatusOutput::Table => render_table(&status, now_ms(), false),
        StatusOutput::Wide => render_table(&status, now_ms(), true),
    };
    print::answer(&text)?;
    Ok(ExitCode::Done)
}

fn render_json(status: &Status) -> Result<String, EdgeError> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        #[serde(flatten)]
        status: &'a Status,
    }
    print::json(&Document { schema: SCHEMA, status })
}

/// `is_wide`: with what its words and figures mean.
fn render_table(status: &Status, now_ms: u64, is_wide: bool) -> String {
    let mut text = String::new();
    if status.simulated {
        text.push_str("SIMULATED: no GPU is behind these numbers\n\n");
    }
    text.push_str(&head(status));
    text.push_str(&switch(status));
    if let Some(error) = &status.nvml_error {
        let _ = write!(text, "NVML does not answer: {error}\nhint: mpsgate doctor\n");
    }
    if let (Some(at), Some(error)) = (&status.metrics_listen, &status.metrics_error) {
        let _ = write!(text, "metrics are not served at {at}: {error}\nhint: mpsgate doctor\n");
    }
    for one in &status.device_plugin {
        if let Some(problem) = &one.problem {
            let _ =
                write!(text, "pods have no {}: {problem}\nhint: mpsgate doctor\n", one.resource);
        }
    }
    if let Some(ClaimsStatus { problem: Some(problem), .. }) = &status.claims {
        let _ = write!(text, "pods have no claims: {problem}\nhint: mpsgate doctor\n");
    }
    if let Some(ApiServerStatus { node, problem: Some(problem), .. }) = &status.api_server {
        let _ = write!(
            text,
            "the API server does not answer for node {node}: {problem}\nhint: mpsgate doctor\n"
        );
    }
    if let Some(ApiServerStatus { node, left_out, .. }) = &status.api_server
        && !left_out.is_empty()
    {
        let count = left_out.len();
        let _ = write!(
            text,
            "{count} of the pods of node {node} cannot be read as a whole\nhint: mpsgate doctor\n"
        );
    }
    text.push('\n');
    text.push_str(&cards(&status.cards, status.kubelet, is_wide));
    text.push_str(&mps(&status.cards));
    text.push_str(&gates(&status.cards));
    text.push_str(&grants(&status.grants, now_ms, is_wide));
    text.push_str(&proofs(status));
    for line in &status.overrides {
        let _ = writeln!(text, "set by the operator: {line}");
    }
    text.push_str(&of_nobody(&status.cards));
    text.push_str(&unwatched(&status.cards));
    if is_wide {
        text.push_str(&unlimited(&status.cards));
    }
    text.push_str(&actions(&status.actions, now_ms));
    for (title, counts) in
        [("REFUSALS", &status.refusals), ("STRIPPED or let through, and started,", &status.notes)]
    {
        if !counts.is_empty() {
            let counts: Vec<_> = counts.iter().map(|(code, n)| format!("{code} {n}")).collect();
            let _ = write!(text, "\n{title} since mpsgated started: {}\n", counts.join(", "));
        }
    }
    text
}

fn head(status: &Status) -> String {
    let mut parts = vec![format!("mpsgated {}", status.version)];
    if let Some(driver) = &status.driver {
        let note = if status.simulated { " (simulated)" } else { "" };
        parts.push(format!("driver {driver}{note}"));
    }
    if status.schedule == Word::Share {
        parts.push("cards shared without MPS (schedule share)".to_owned());
    }
    if status.kubelet {
        parts.push("a kubelet runs here".to_owned());
    }
    parts.join(", ") + "\n"
}

/// What else is wanted of the node, and whom that waits for.
fn switch(status: &Status) -> String {
    let Some(wanted) = &status.schedule_wanted else { return String::new() };
    let waits = &status.schedule_waits_for;
    let names: Vec<&str> = waits.iter().map(|id| short_id(id)).collect();
    if *wanted == Word::Off {
        return "the cards of the settings are another system's (node label ack.node.gpu.schedule): each is given back \
                when its last grant has ended\n"
            .to_owned();
    }
    format!(
        "schedule {wanted} is wanted, and no GPU memory is given until these have ended: {}\n\
         hint: drain the node, or set the schedule back to {}\n",
        names.join(", "),
        status.schedule
    )
}

/// Promises are Kubernetes' alone: elsewhere the column would be all zeros.
fn cards(cards: &[CardStatus], promises: bool, is_wide: bool) -> String {
    if cards.is_empty() {
        return "no card was found: mpsgate doctor\n".to_owned();
    }
    let mut columns = vec![
        (">GPU", "device"),
        ("NAME", "device"),
        (">GRANTED", "recorded"),
        (PROMISED, "recorded"),
        (">FREE", "recorded"),
        (">CLIENTS", "recorded"),
        (">USED", "device"),
        (">TOTAL", "device"),
        ("COMPUTE MODE", "device"),
        ("UUID", "device"),
        ("STATE", "mpsgated"),
    ];
    columns.retain(|(title, _)| promises || *title != PROMISED);
    if !is_wide {
        columns.iter_mut().for_each(|(_, view)| *view = "");
    }
    let mut table = Columns::new(&columns);
    let mut hints = String::new();
    for card in cards {
        let recorded = |text: String| if card.managed { text } else { "-".to_owned() };
        let mut cells =
            vec![card.index.to_string(), card.name.clone(), recorded(memory(card.granted_mib))];
        if promises {
            cells.push(recorded(memory(card.promised_mib)));
        }
        cells.extend([
            recorded(memory(card.free_mib)),
            recorded(clients(card)),
            card.used_mib.map_or_else(unknown, memory),
            memory(card.total_mib),
            card.compute_mode.to_string(),
            card.uuid.clone(),
            card.state.to_string(),
        ]);
        table.row(cells);
        if let Some(hint) = &card.hint {
            let _ = writeln!(hints, "hint: GPU {}: {hint}", card.index);
        }
    }
    let mut text = table.render() + &hints;
    if !cards.iter().any(|card| card.managed) {
        text.push_str("no card is managed: mpsgate enable GPU\n");
    }
    text
}

/// Without MPS, as before it has been brought up, there is no most.
fn clients(card: &CardStatus) -> String {
    match (&card.mps, card.max_clients) {
        (None, 0) => card.clients.to_string(),
        (_, most) => format!("{}/{most}", card.clients),
    }
}

fn mps(cards: &[CardStatus]) -> String {
    let mut table = Columns::new(&[
        (">GPU", ""),
        ("MPS", ""),
        (">PID", ""),
        (">DEFAULT LIMIT", ""),
        ("SERVERS", ""),
    ]);
    for card in cards {
        let Some(mps) = &card.mps else { continue };
        let servers: Vec<_> = mps
            .servers
            .iter()
            .map(|server| {
                let uid = server.uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
                let status = server.status.as_ref().map_or("status unknown", OneOf::as_str);
                format!("{} (uid {uid}, {status})", server.pid)
            })
            .collect();
        table.row(vec![
            card.index.to_string(),
            mps.state.to_string(),
            mps.pid.map_or_else(unknown, |pid| pid.to_string()),
            mps.default_limit_mib.map_or_else(|| "none".to_owned(), memory),
            if servers.is_empty() { "none".to_owned() } else { servers.join(", ") },
        ]);
    }
    if table.is_empty() {
        String::new()
    } else {
        format!("\nMPS, as the control daemons answer\n{}", table.render())
    }
}

/// What became of clients at the containers' doors.
fn gates(cards: &[CardStatus]) -> String {
    let mut text = String::new();
    for card in cards {
        let Some(gate) = &card.gate else { continue };
        let _ = writeln!(text, "GPU {}: gate: {gate}", card.index);
        if !gate.ended.is_empty() {
            let _ = writeln!(
                text,
                "hint: journalctl -u mpsgate-gate@{} -g 'client ended' names their containers",
                card.minor
            );
        }
    }
    text
}

fn grants(grants: &[GrantStatus], now_ms: u64, is_wide: bool) -> String {
    if grants.is_empty() {
        return "\nno container has a grant\n".to_owned();
    }
    let mut table = Columns::new(&[
        ("CONTAINER", ""),
        (">GPU", ""),
        (">MEMORY", ""),
        (">USED", ""),
        (">CAP", ""),
        (">COMPUTE", ""),
        (">UID", ""),
        (">PID", ""),
        ("STATE", ""),
        (">AGE", ""),
        ("GUARANTEE", ""),
        ("RUNTIME ROOT", ""),
    ]);
    for grant in grants {
        table.row(vec![
            short_id(&grant.container_id).to_owned(),
            grant.card_index.to_string(),
            memory(grant.memory_mib),
            grant.used_mib.map_or_else(unknown, memory),
            grant.cap_mib.map_or_else(unknown, memory),
            grant.compute_percent.map_or_else(unknown, |percent| format!("{percent}%")),
            grant.uid.to_string(),
            grant.pid.to_string(),
            grant.state.to_string(),
            age(now_ms.saturating_sub(grant.since_ms)),
            grant.guarantee.to_string(),
            grant.runtime_root.clone(),
        ]);
    }
    format!(
        "\nGRANTS, as the ledger records them; USED, as the device counts it\n{}{}{}",
        table.render(),
        hints(grants),
        if is_wide { meanings(grants) } else { String::new() }
    )
}

/// What each level of `guarantee` holds.
const GUARANTEES: [(Guarantee, &str); 4] = [
    (
        Guarantee::None,
        "memory is shared by agreement; nothing holds a container to its grant, more is reported",
    ),
    (
        Guarantee::Mps,
        "each process's own CUDA library keeps to the limit, unless the process drops it; several may take \
         more in sum",
    ),
    (
        Guarantee::MpsWatchdog,
        "each process's own CUDA library keeps to the limit; a container that has taken more in sum is ended",
    ),
    (
        Guarantee::Cgroup,
        "the driver limits the container's cgroup, all its processes in sum, beforehand",
    ),
];

fn hints(grants: &[GrantStatus]) -> String {
    let mut text = String::new();
    for grant in grants {
        if let Some(hint) = &grant.hint {
            let _ = writeln!(text, "hint: {}: {hint}", short_id(&grant.container_id));
        }
    }
    text
}

/// What the words of the table mean, as far as they are in it.
fn meanings(grants: &[GrantStatus]) -> String {
    let mut text = String::new();
    if grants.iter().any(|grant| grant.cap_mib > Some(grant.memory_mib)) {
        text.push_str(
            "CAP: at worst a process that unsets its own limit gets so much, the card's largest grant, until the watchdog looks\n",
        );
    }
    for (guarantee, meaning) in GUARANTEES {
        if grants.iter().any(|grant| grant.guarantee == guarantee) {
            let _ = writeln!(text, "guarantee {guarantee}: {meaning}");
        }
    }
    text
}

/// What shows that the levels hold, by card; and what does not.
fn proofs(status: &Status) -> String {
    let mut text = String::new();
    let shown: BTreeSet<_> = status
        .grants
        .iter()
        .filter(|grant| !grant.proof.is_empty())
        .map(|grant| (grant.card_index, grant.guarantee.as_str(), &grant.proof))
        .collect();
    for (gpu, guarantee, proof) in shown {
        let _ = writeln!(text, "GPU {gpu}: guarantee {guarantee}: {proof}");
    }
    for card in status.cards.iter().filter(|card| card.managed) {
        for failure in &card.failures {
            let _ = writeln!(text, "GPU {}: {failure}\nhint: mpsgate doctor", card.index);
        }
        if let Some(why) = card.qualify.as_ref().filter(|_| !status.simulated) {
            let _ = writeln!(
                text,
                "GPU {0}: what holds on it is not proven: {why}\nhint: while it has no grants: mpsgate qualify {0}",
                card.index
            );
        }
    }
    text
}

/// Memory of nobody that is worth a line: less is a driver's own.
const NOTABLE: u64 = 512 << 20;

/// Memory in use that is no process's, where it is worth a line.
pub(crate) fn nobodys(card: &CardStatus) -> Option<Mib> {
    Some(card.memory?.nobody).filter(|bytes| *bytes >= NOTABLE).map(|bytes| Mib(bytes >> 20))
}

fn of_nobody(cards: &[CardStatus]) -> String {
    let mut text = String::new();
    for card in cards {
        if let Some(memory) = nobodys(card) {
            let gpu = card.index;
            let _ = writeln!(
                text,
                "GPU {gpu}: {memory} in use are of no process that can be named: managed memory, or what a process left \
                 that has ended\n\
                 hint: end the containers on it one by one and look again; for what stays with none left: mpsgate mps \
                 stop {gpu}, then nvidia-smi --gpu-reset -i {gpu}, or a reboot"
            );
        }
    }
    text
}

/// Why a guarantee is no more than `mps`.
fn unwatched(cards: &[CardStatus]) -> String {
    let mut text = String::new();
    for card in cards {
        if let Some(why) = &card.unwatched {
            let _ = writeln!(text, "GPU {}: what containers use is not seen: {why}", card.index);
        }
    }
    text
}

/// Why a guarantee is not `cgroup`.
fn unlimited(cards: &[CardStatus]) -> String {
    let mut text = String::new();
    for card in cards {
        if let Some(why) = &card.unlimited {
            let _ = writeln!(text, "GPU {}: no guarantee cgroup: {why}", card.index);
        }
    }
    text
}

/// The latest ones; the document has all that are kept.
fn actions(actions: &[Action], now_ms: u64) -> String {
    if actions.is_empty() {
        return String::new();
    }
    let mut table =
        Columns::new(&[(">AGO", ""), ("CONTAINER", ""), (">GPU", ""), ("ACTION", ""), ("WHY", "")]);
    let shown = actions.len().saturating_sub(ACTIONS_SHOWN);
    for action in actions.iter().skip(shown) {
        table.row(vec![
            age(now_ms.saturating_sub(action.at_ms)),
            action.container_id.as_deref().map_or_else(unknown, |id| short_id(id).to_owned()),
            action.card_index.to_string(),
            action.what.to_string(),
            action.why.clone(),
        ]);
    }
    format!("\nACTIONS of mpsgated since it started\n{}", table.render())
}

pub(crate) fn memory(mib: u64) -> String {
    if mib == 0 { "0".to_owned() } else { Mib(mib).to_string() }
}

fn unknown() -> String {
    "-".to_owned()
}

/// The first twelve digits of an engine's random id, as docker and crictl print it; any other name
/// whole.
pub(crate) fn short_id(id: &str) -> &str {
    let random = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    if random { id.get(..12).unwrap_or(id) } else { id }
}

/// The largest unit that is not zero: what people look for is "just now" or "long ago".
pub(crate) fn age(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86400),
    }
}

#[cfg(test)]
pub(crate) mod tests;
