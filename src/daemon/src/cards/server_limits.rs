//! What a card task changes on a ready card: its server, its limits, its compute mode.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mpsgate_model::door_file::Prepared;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Code, ComputeMode, Instance, Mib, Refusal};
use mpsgate_mps::{MpsError, MpsInstance};
use mpsgate_node::AtDoor;
use mpsgate_node::card::{Card, CardEvent, Trouble};

use super::CardTask;
use crate::hardware::control::{InForce, ensure_server, limit_default, limit_servers, mps_trouble};
use crate::hardware::{Hardware, Ready};
use crate::orders::HandedOver;
use crate::{owner, process_end};

/// Clients that wait for the watchdog's next look: more than come to all doors in a minute.
const MOST_CLIENTS: usize = 16_384;

impl CardTask {
    pub(super) async fn server(&mut self, ready: &Ready, uid: u32) -> Result<(), Refusal> {
        if self.daemon.node().card(&self.uuid).is_none_or(|card| card.has_server_for(uid)) {
            return Ok(());
        }
        self.happened(CardEvent::ServerWanted);
        // The server takes the default that it finds when it starts.
        self.cap(&ready.mps).await?;
        // An idle one of another uid makes room: nobody loses anything by its end.
        self.watch.servers.forget();
        let asked = Arc::clone(&ready.mps);
        let limit = Duration::from_secs(self.daemon.settings.now().mps.start_timeout_s.into());
        let started = self.daemon.blocking(move |_| ensure_server(&asked, uid, limit)).await;
        match started {
            Ok(()) => {}
            Err(MpsError::ServerDied { .. }) if ready.simulated => {
                log::info!(uuid = self.uuid.as_str(); "no MPS server: the card is simulated");
                self.happened(CardEvent::Serverless);
            }
            Err(error) => {
                let Trouble { why, hint } = mps_trouble(&error);
                log::error!(uuid = self.uuid.as_str(), uid, reason = why.as_str(); "server not ready");
                self.refresh_after(&ready.mps, &error).await;
                return Err(Refusal::new(Code::MpsServer, why, hint));
            }
        }
        self.refresh(&ready.mps).await;
        // Known from its first moment: it may crash before the next look.
        self.evaluate_servers().await;
        Ok(())
    }

    /// Brings the default limit, which the next server takes, in line with the card's grants.
    pub(super) async fn cap(&mut self, mps: &Arc<MpsInstance>) -> Result<(), Refusal> {
        let default = {
            let node = self.daemon.node();
            let default = node.default_limit(&self.uuid);
            if node.card(&self.uuid).is_none_or(|card| card.cap() == default) {
                return Ok(());
            }
            default
        };
        let asked = Arc::clone(mps);
        let work = move |_: &Hardware| limit_default(&asked, default);
        if let Err(error) = self.daemon.blocking(work).await {
            let Trouble { why, hint } = self.limit_not_set(mps, default, &error).await;
            return Err(Refusal::new(Code::GpuUnhealthy, why, hint));
        }
        log::debug!(uuid = self.uuid.as_str(), limit_mib = default.0; "limit set");
        self.happened(CardEvent::LimitSet(default));
        Ok(())
    }

    /// Prepares the server for the next client of this container: from the answer on its limit is
    /// the container's, until something else is asked.
    pub(super) async fn prepare(
        &mut self,
        ready: &Ready,
        instance: &Instance,
        client: Option<ProcessId>,
    ) -> Prepared {
        let (limit, uid) = match self.at_door(instance) {
            // The end of a grant is told to the gate, too.
            AtDoor::NoGrant | AtDoor::Unseen => return Prepared::Later,
            AtDoor::Full => return Prepared::Full,
            AtDoor::Open { limit, uid } => (limit, uid),
        };
        if self.server(ready, uid).await.is_err() || !self.has_limit(ready, limit).await {
            return Prepared::Later;
        }
        if let Some(client) = client
            && !self.note_client(instance, client).await
        {
            return Prepared::Later;
        }
        self.note_hand_over(instance);
        Prepared::Ready
    }

    /// For the watchdog: it may have ended before the next look. The gate names it, and the kernel
    /// says whose it is. Whether that could be read.
    async fn note_client(&self, instance: &Instance, client: ProcessId) -> bool {
        /// How often in a row none could be read, on all cards: what is short for one, such as
        /// descriptors, is short for all. Each that waits is asked for ten times a second.
        static UNREAD: AtomicU64 = AtomicU64::new(0);
        let entries = self.daemon.node().entries();
        let find = move |_: &Hardware| owner::find(client, &entries).map(|found| found.cloned());
        let found = match self.daemon.blocking(find).await {
            Ok(found) => {
                UNREAD.store(0, Ordering::Relaxed);
                found
            }
            // Handed over, its memory would be nobody's once it has ended.
            Err(error) => {
                let count = UNREAD.fetch_add(1, Ordering::Relaxed) + 1;
                if count.is_power_of_two() {
                    log::warn!(
                        uuid = self.uuid.as_str(), pid = client.pid, reason:% = error, count;
                        "client waits: it cannot be read"
                    );
                }
                return false;
            }
        };
        let grant = found.map(|entry| entry.grant.key).filter(|key| key.instance == *instance);
        let mut handed_over = self.daemon.handed_over();
        // The watchdog takes them each second, but where NVML hangs.
        if let Some(grant) = grant.filter(|_| handed_over.len() < MOST_CLIENTS) {
            handed_over.push(HandedOver { card: self.uuid.clone(), client, grant });
        }
        true
    }

    /// What is left for the next client at this container's door.
    fn at_door(&self, instance: &Instance) -> AtDoor {
        let since = self.handed_over.get(instance).copied().unwrap_or_default();
        let processes = self.daemon.settings.now().mps.processes;
        self.daemon.node().at_door(&self.uuid, instance, processes, since)
    }

    fn note_hand_over(&mut self, instance: &Instance) {
        let node = self.daemon.node();
        let live = |other: &Instance| {
            node.ledger().on_card(&self.uuid).any(|entry| entry.grant.key.instance == *other)
        };
        self.handed_over.retain(|other, _| live(other));
        let looks = node.card(&self.uuid).map(|card| card.watched().looks).unwrap_or_default();
        self.handed_over.insert(instance.clone(), looks);
    }

    /// Sets this limit on the server, unless it is in force; whether it is now.
    async fn has_limit(&mut self, ready: &Ready, limit: Mib) -> bool {
        if self.daemon.node().card(&self.uuid).is_some_and(Card::is_serverless) {
            return true;
        }
        if self.is_in_force(limit) {
            return true;
        }
        let (asked, has) = (Arc::clone(&ready.mps), self.in_force.clone());
        let work = move |_: &Hardware| limit_servers(&asked, limit, &has);
        match self.daemon.blocking(work).await {
            Ok(set) => self.in_force.update(set),
            Err(error) => {
                self.limit_not_set(&ready.mps, limit, &error).await;
                return false;
            }
        }
        // The server that was known has ended, or there is another one.
        if !self.is_in_force(limit) {
            self.refresh(&ready.mps).await;
            return false;
        }
        true
    }

    async fn limit_not_set(
        &mut self,
        mps: &Arc<MpsInstance>,
        limit: Mib,
        error: &MpsError,
    ) -> Trouble {
        // It may have been set all the same, or be later.
        self.in_force = InForce::default();
        let trouble = mps_trouble(error);
        log::error!(uuid = self.uuid.as_str(), limit_mib = limit.0, reason = trouble.why.as_str(); "limit not set");
        self.refresh_after(mps, error).await;
        trouble
    }

    /// Whether there is a server, and each that the control daemon named last and that has not
    /// ended is known to have this limit.
    fn is_in_force(&self, limit: Mib) -> bool {
        let pids = self.server_pids().into_iter();
        let servers: io::Result<Vec<ProcessId>> =
            pids.filter_map(|pid| process_end::find(pid).transpose()).collect();
        servers.is_ok_and(|servers| {
            !servers.is_empty() && servers.iter().all(|one| self.in_force.of(one) == Some(limit))
        })
    }

    pub(super) async fn retake_compute_mode(&self, mps: &Arc<MpsInstance>) {
        let uuid = self.uuid.to_string();
        let set = self.daemon.blocking(move |h| h.retake_compute_mode(&uuid)).await;
        match set {
            Ok(changed) => {
                if changed {
                    log::warn!(
                        uuid = self.uuid.as_str(), mode = ComputeMode::ExclusiveProcess.as_str();
                        "somebody changed the compute mode of a managed card; changed back"
                    );
                }
                self.happened(CardEvent::ModeRetaken(changed));
                self.refresh(mps).await;
            }
            Err(trouble) => self.happened(CardEvent::ModeForeign(trouble)),
        }
    }
}
