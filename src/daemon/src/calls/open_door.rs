//! A container's door, on its way from a reservation to a grant.

use std::time::Duration;

use mpsgate_host::cgroup::CgroupId;
use mpsgate_model::door_file::Container;
use mpsgate_model::{Code, Grant, Refusal};
use mpsgate_node::card::{Card, where_to_look};

use crate::daemon::Daemon;
use crate::files::FileKind;
use crate::grant_doors::Door;

/// How long a socket is waited for. The gate makes one within a millisecond of the file; one that
/// systemd is just starting again takes a tenth of a second.
const LIMIT: Duration = Duration::from_secs(5);

/// Opens a reservation's door, where it has one; returns once clients can connect.
pub(super) async fn open(daemon: &Daemon, grant: &Grant) -> Result<(), Refusal> {
    let Some(door) = Door::of(&daemon.paths, grant) else { return Ok(()) };
    tell(daemon, grant, door.clone(), None).await?;
    tokio::time::timeout(LIMIT, door.opened(&daemon.sockets)).await.map_err(|_| {
        let (card, seconds) = (label(grant), LIMIT.as_secs());
        let why = format!(
            "the gate of GPU {card} has not opened the container's door to MPS within {seconds} s"
        );
        refusal(grant, why)
    })
}

/// Closes it again where its grant has ended meanwhile: nobody else would, before the next start.
pub(super) async fn close_if_ended(daemon: &Daemon, grant: &Grant) -> Result<(), Refusal> {
    if daemon.node().ledger().get(&grant.key).is_some() {
        return Ok(());
    }
    daemon.close_door(grant).await;
    Err(Refusal::new(
        Code::NoReservation,
        "it has ended while its door to MPS was opened",
        "create the container again",
    ))
}

/// Tells the gate whose processes are this grant's; from now on they are served, unless it has
/// ended meanwhile.
pub(super) async fn admit(
    daemon: &Daemon,
    grant: &Grant,
    cgroup: Option<&CgroupId>,
) -> Result<(), Refusal> {
    if let Some(door) = Door::of(&daemon.paths, grant) {
        let cgroup = cgroup.ok_or_else(|| {
            Refusal::new(
                Code::Cgroup,
                "it has no cgroup of its own, by which the gate would know its processes",
                "let the engine give it one: --cgroups=disabled and the like leave it none (docs/gate.md)",
            )
        })?;
        tell(daemon, grant, door, Some(cgroup)).await?;
    }
    close_if_ended(daemon, grant).await
}

async fn tell(
    daemon: &Daemon,
    grant: &Grant,
    door: Door,
    cgroup: Option<&CgroupId>,
) -> Result<(), Refusal> {
    let any_uid = {
        let node = daemon.node();
        let card = grant.cards.first().and_then(|card| node.card(&card.uuid));
        card.is_some_and(Card::serves_any_uid)
    };
    let container = Container {
        id: grant.name(),
        uid: grant.uid,
        any_uid,
        debug: daemon.settings.now().mps.debug,
        cgroup: cgroup.cloned(),
    };
    let told = daemon.files.run(FileKind::Doors, move || door.tell(&container)).await;
    told.map_err(|why| {
        let card = label(grant);
        refusal(grant, format!("the gate of GPU {card} cannot be told of the container: {why}"))
    })
}

fn label(grant: &Grant) -> String {
    let card = grant.cards.first();
    card.map(|card| format!("{} ({})", card.index, card.uuid)).unwrap_or_default()
}

fn refusal(grant: &Grant, why: String) -> Refusal {
    let minor = grant.cards.first().map(|card| card.minor).unwrap_or_default();
    Refusal::new(Code::GpuUnhealthy, why, where_to_look(minor))
}
