//! `activate`: a container was created, and its reservation becomes a grant.

use std::sync::Arc;

use mpsgate_api::{Activate, Reply};
use mpsgate_host::crash_point;
use mpsgate_model::ledger::{Entry, ProcessId};
use mpsgate_model::{Code, Refusal};
use mpsgate_node::card::Card;

use super::{Answer, open_door, refused};
use crate::card_orders::server;
use crate::daemon::{Daemon, card_names};
use crate::line::{Caller, Line};
use crate::real_machine::ThisMachine;
use crate::{container_cgroup, ends, process_end};
use mpsgate_host::clock::now_ms;

pub(super) async fn activate(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: Caller,
    call: &Activate,
) -> Answer {
    let entry = container_init(&caller, call).and_then(|init| {
        check_cgroup(call, init)?;
        let entry = daemon
            .change(|node, effects| node.activate(call, init, &ThisMachine, now_ms(), effects))?;
        ends::start(daemon, &entry);
        crash_point!("daemon.activate.changed");
        Ok(entry)
    });
    let entry = match entry {
        // Where this fails the hook ends the container, and the grant ends with it.
        Ok(entry) => {
            let recorded = line.wait("the grant is being recorded", daemon.recorded()).await;
            recorded.map(|()| entry)
        }
        Err(refusal) => Err(refusal),
    };
    let answer = match entry {
        Ok(entry) => {
            crash_point!("daemon.activate.stored");
            daemon.tell_ledger_change();
            log::info!(
                container = entry.grant.name().as_str(), instance = call.key.instance.as_str(),
                uuid = card_names(&entry.grant).as_str(),
                memory_mib = entry.grant.memory.0,
                cgroup = call.cgroup.as_ref().map(|cgroup| cgroup.path.as_str());
                "grant active"
            );
            // The container's program starts when this is answered.
            if daemon.is_starting() {
                line.wait("mpsgated has just started and prepares the GPUs", daemon.started())
                    .await;
            }
            let prepared = match prepared(daemon, line, &entry).await {
                Ok(()) => {
                    let admitted = open_door::admit(daemon, &entry.grant, call.cgroup.as_ref());
                    line.wait("the gate is being told of the container", admitted).await
                }
                Err(refusal) => Err(refusal),
            };
            if prepared.is_ok() {
                // The hook gives up a daemon that says nothing for two seconds.
                line.wait("the driver is to limit the container's cgroup", daemon.limit(&entry))
                    .await;
            }
            prepared
        }
        Err(refusal) => Err(refusal),
    };
    match answer {
        Ok(()) => Ok(Reply::Done { text: String::new() }),
        Err(refusal) => {
            let (name, handed) = {
                let node = daemon.node();
                let entry = node.ledger().get(&call.key);
                let name = entry.map_or_else(|| call.key.name(None), |entry| entry.grant.name());
                (name, entry.and_then(|entry| entry.handed.clone()))
            };
            refused(daemon, &name, handed.as_ref().map(|handed| &handed.pod), &refusal);
            Err(refusal)
        }
    }
}

/// What reserve found may be gone when the container's program starts: a control daemon that died
/// in between was started anew in the same directory, without a server.
async fn prepared(daemon: &Daemon, line: &mut Line, entry: &Entry) -> Result<(), Refusal> {
    let needs_server = {
        let node = daemon.node();
        let cards = || entry.grant.cards.iter().filter_map(|granted| node.card(&granted.uuid));
        cards().try_for_each(Card::serves)?;
        let unserved = |card: &&Card| !card.has_server_for(entry.grant.uid);
        let mut of_mps = cards().filter(|_| entry.grant.uses_mps());
        of_mps.find(unserved).map(|card| card.uuid.clone())
    };
    match needs_server {
        Some(granted) => {
            let doing = format!("the MPS server of {granted} is being started");
            line.wait(&doing, server(daemon, &granted, entry.grant.uid)).await
        }
        None => Ok(()),
    }
}

/// To a hook whose words are not true.
fn wrong(sentence: impl Into<String>) -> Refusal {
    let hint =
        "create the container again; if it happens again, look at: journalctl -u mpsgated -n 50";
    Refusal::new(Code::HookState, sentence, hint)
}

/// The container's init in our pid namespace: what the pidfd refers to, whatever the hook's own
/// namespace calls it; without a pidfd (before kernel 5.3) the pid itself.
fn container_init(caller: &Caller, call: &Activate) -> Result<ProcessId, Refusal> {
    let pid = match &caller.fd {
        // Without a descriptor a pid means something in the hook's own pid namespace alone.
        None if !caller.pid.is_some_and(process_end::counts_as_we_do) => {
            return Err(wrong(
                "this kernel has no pidfds, and its hook is not in mpsgated's pid namespace",
            ));
        }
        None => call.pid,
        Some(fd) => {
            let referred = process_end::refers_to(fd).ok_or_else(|| {
                wrong(format!(
                    "the descriptor that its hook sent for pid {} is no pidfd of a process that lives in \
                     mpsgated's pid namespace",
                    call.pid
                ))
            })?;
            if referred.pid != call.pid && !referred.nested.contains(&call.pid) {
                return Err(wrong(format!(
                    "its hook named pid {}, but sent a descriptor of pid {}",
                    call.pid, referred.pid
                )));
            }
            referred.pid
        }
    };
    process_end::identify(pid).ok_or_else(|| wrong(format!("its init, pid {pid}, has ended")))
}

fn check_cgroup(call: &Activate, init: ProcessId) -> Result<(), Refusal> {
    let Some(cgroup) = &call.cgroup else { return Ok(()) };
    let wrong =
        |why: String| wrong(format!("its hook named the cgroup {}, but {why}", cgroup.path));
    match container_cgroup::contains(cgroup, init.pid) {
        Ok(true) => Ok(()),
        Ok(false) => Err(wrong(format!("its init, pid {}, is not in it", init.pid))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::future::poll_fn;
    use std::path::Path;
    use std::pin::pin;
    use std::task::Poll;

    use mpsgate_config::{Config, Supervisor};
    use mpsgate_host::cgroup::{CgroupId, is_unified, of_devices, text_of};
    use mpsgate_model::ledger::State;
    use mpsgate_model::ledger_file::LedgerFile;
    use mpsgate_mps::MpsDirectories;
    use mpsgate_node::Node;
    use mpsgate_testing::need;
    use tokio::net::UnixStream;
    use tokio::sync::mpsc;

    use super::*;
    use mpsgate_node::card::CardEvent;

    use crate::files::Files;
    use crate::fixture::{ALL, HOLDER, call, happens, node};
    use crate::line::Speaker;
    use crate::settings_in_force::Settings;
    use crate::{Paths, directories};

    /// One that runs no task, and asks no driver.
    fn daemon(root: &Path, node: Node) -> Arc<Daemon> {
        let paths = Paths::below(root);
        directories::make(&paths).unwrap();
        let (file, _) = LedgerFile::open(&paths.ledger()).unwrap();
        let mut config = Config::default();
        config.mps.supervisor = Supervisor::Holder;
        let ((tasks, _), (limits, _)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (settings, files) = (Settings::new(config, None), Files::start(|_| ()).unwrap());
        Arc::new(Daemon::new(paths, settings, node, file, files, tasks, limits))
    }

    /// That of this very process, which is the container's init here.
    fn own_cgroup() -> Result<CgroupId, &'static str> {
        let text = text_of(std::process::id());
        let directory = text.and_then(|text| of_devices(&text, is_unified()));
        directory.and_then(|directory| CgroupId::of(&directory)).ok_or("needs a cgroup hierarchy")
    }

    /// Its grant's end has closed it by then, and the gate is told of it once more.
    #[tokio::test(flavor = "current_thread")]
    async fn the_door_of_a_container_that_ends_before_it_is_admitted_is_closed_again() {
        let cgroup = need!(own_cgroup());
        let root = tempfile::tempdir().unwrap();
        let mut node = node();
        happens(&mut node, 0, CardEvent::Serverless);
        let reserved = node.reserve(&call("web", 2), None, HOLDER, &ALL, 0, &mut Vec::new());
        let grant = reserved.unwrap().grant;
        assert!(grant.has_door());
        let daemon = daemon(root.path(), node);
        let dirs = MpsDirectories::new(&daemon.paths.mps(), grant.cards[0].minor).unwrap();
        dirs.create().unwrap();
        let pid = std::process::id();
        let call = Activate { key: grant.key, pid, cgroup: Some(cgroup), grant: None };
        let (pid, speaker) = (Some(pid), Speaker::Root);
        let caller = Caller { speaker, pid, fd: None, user: None, name: None };
        let (stream, _hook) = UnixStream::pair().unwrap();
        let mut line = Line { stream };
        let mut activating = pin!(activate(&daemon, &mut line, caller, &call));
        // It waits for the ledger's file: others have their turn.
        let waits = poll_fn(|context| Poll::Ready(activating.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        let ended = daemon.change(|node, effects| node.release(&call.key, "ended", effects));
        assert!(matches!(ended.unwrap().state, State::Active { .. }));
        let answer = activating.await;
        let left = dirs.doors().unwrap();
        assert!(left.is_empty(), "{left:?}");
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code, Code::NoReservation);
        assert!(refusal.sentence.contains("has ended while its door"), "{refusal:?}");
    }
}
