//! The doors of grants: mpsgated makes a container's directory and tells the gate of it by a file,
//! and the gate makes the socket.
//!
//! ```text
//!  reserve ──► directory, file ──► the gate's socket is waited for ──► answer
//!  activate ─► file, with the container's cgroup: now its clients are served
//!  end ──────► file, directory removed
//! ```

use std::time::Duration;

use mpsgate_host::cgroup::CgroupId;
use mpsgate_model::door::Container;
use mpsgate_model::ledger::Ledger;
use mpsgate_model::{Code, Grant, Refusal};
use mpsgate_mps::{ClientLinks, MpsDirectories, MpsError};

use crate::Paths;
use crate::daemon::Daemon;
use crate::error::chain;

/// How long a socket is waited for. The gate makes one within a millisecond of the file; one that
/// systemd is just starting again takes a tenth of a second.
const LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);

/// Opens a reservation's door, where it has one; returns once clients can connect.
pub(crate) async fn open(daemon: &Daemon, grant: &Grant) -> Result<(), Refusal> {
    let Some(dirs) = directories(&daemon.paths, grant) else { return Ok(()) };
    write(daemon, &dirs, grant, None)?;
    let name = grant.key.instance.as_str();
    let opened = async {
        while !dirs.is_open_door(name) {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LIMIT, opened).await.map_err(|_| {
        let (card, seconds) = (label(grant), LIMIT.as_secs());
        let why = format!(
            "the gate of GPU {card} has not opened the container's door to MPS within {seconds} s"
        );
        refusal(grant, why)
    })
}

/// Tells the gate whose processes are this grant's; from now on they are served.
pub(crate) fn admit(
    daemon: &Daemon,
    grant: &Grant,
    cgroup: Option<&CgroupId>,
) -> Result<(), Refusal> {
    let Some(dirs) = directories(&daemon.paths, grant) else { return Ok(()) };
    let cgroup = cgroup.ok_or_else(|| {
        Refusal::new(
            Code::Cgroup,
            "it has no cgroup of its own, by which the gate would know its processes",
            "let the engine give it one; or set mps.channel = \"control\" in \
             /etc/mpsgate/config.toml (docs/gate.md)",
        )
    })?;
    write(daemon, &dirs, grant, Some(cgroup))
}

/// Closes an ended grant's door. One that cannot be closed now is at the next start.
pub(crate) fn close(paths: &Paths, grant: &Grant) {
    let Some(dirs) = directories(paths, grant) else { return };
    match dirs.remove_door(grant.key.instance.as_str()) {
        Ok(()) => {}
        Err(error) => {
            let instance = grant.key.instance.as_str();
            log::warn!(instance, reason = chain(&error).as_str(); "a door cannot be removed");
        }
    }
}

/// Closes the doors of grants that ended while mpsgated was away.
pub(crate) fn remove_strays(paths: &Paths, ledger: &Ledger) {
    let Ok(cards) = std::fs::read_dir(paths.mps()) else { return };
    let cards = cards.flatten().filter_map(|card| card.file_name().to_str()?.parse().ok());
    for dirs in cards.filter_map(|card| of_card(paths, card)) {
        for name in dirs.doors().unwrap_or_default() {
            let is_its = |grant: &Grant| {
                grant.has_door() && dirs.door_dir(&name) == std::path::Path::new(&grant.client_dir)
            };
            if ledger.entries().iter().any(|entry| is_its(&entry.grant)) {
                continue;
            }
            match dirs.remove_door(&name) {
                Ok(()) => log::info!(instance = name.as_str(); "door without a grant removed"),
                Err(error) => {
                    let reason = chain(&error);
                    log::warn!(instance = name.as_str(), reason; "a door cannot be removed");
                }
            }
        }
    }
}

fn write(
    daemon: &Daemon,
    dirs: &MpsDirectories,
    grant: &Grant,
    cgroup: Option<&CgroupId>,
) -> Result<(), Refusal> {
    let any_uid = {
        let node = daemon.node();
        let card = grant.cards.first().and_then(|card| node.card(&card.uuid));
        card.is_some_and(|card| card.multiuser)
    };
    let container = Container {
        id: grant.key.container_id.to_string(),
        uid: grant.uid,
        any_uid,
        debug: daemon.settings.now().mps.debug,
        cgroup: cgroup.cloned(),
    };
    let name = grant.key.instance.as_str();
    let written = container
        .write()
        .map_err(|error| error.to_string())
        .and_then(|bytes| dirs.put_door(name, &bytes).map_err(|error: MpsError| chain(&error)));
    written.map_err(|why| {
        let why =
            format!("the gate of GPU {} cannot be told of the container: {why}", label(grant));
        refusal(grant, why)
    })
}

/// Of the card whose door the grant has; `None` where it has none.
fn directories(paths: &Paths, grant: &Grant) -> Option<MpsDirectories> {
    let card = grant.cards.first().filter(|_| grant.has_door())?;
    of_card(paths, card.minor)
}

fn of_card(paths: &Paths, minor: u32) -> Option<MpsDirectories> {
    MpsDirectories::new(&paths.mps(), minor, ClientLinks::ControlOnly).ok()
}

fn label(grant: &Grant) -> String {
    let card = grant.cards.first();
    card.map(|card| format!("{} ({})", card.index, card.uuid)).unwrap_or_default()
}

fn refusal(grant: &Grant, why: String) -> Refusal {
    let minor = grant.cards.first().map(|card| card.minor).unwrap_or_default();
    let hint = format!(
        "systemctl status mpsgate-gate@{minor}; journalctl -u mpsgate-gate@{minor} -n 50; without \
         systemd /run/mpsgate/mps/{minor}/log/gate.log"
    );
    Refusal::new(Code::GpuUnhealthy, why, hint)
}
