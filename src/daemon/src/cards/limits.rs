//! What a card task changes on a ready card: its server, its limits, its compute mode.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_model::{Code, Refusal};
use mpsgate_mps::{MpsError, MpsInstance};
use mpsgate_node::card::{Health, Trouble};

use super::CardTask;
use super::health::{EXCLUSIVE, drop_and_tell, log_health};
use crate::DaemonError;
use crate::hardware::Ready;
use crate::hardware::control::{cap, ensure_server, mps_trouble};

impl CardTask {
    pub(super) async fn server(
        &mut self,
        ready: &Ready,
        uid: u32,
    ) -> Result<Result<(), Refusal>, DaemonError> {
        {
            let mut node = self.daemon.node();
            let Some(card) = node.card_mut(&self.uuid) else { return Ok(Ok(())) };
            if card.has_server_for(uid) {
                return Ok(Ok(()));
            }
            // Until the new one takes clients no other order may count on it.
            card.server_uid = None;
        }
        // The server takes the default that it finds when it starts.
        if let Err(refusal) = self.cap(&ready.mps).await? {
            return Ok(Err(refusal));
        }
        // An idle one of another uid makes room: nobody loses anything by its end.
        self.watch.servers.forget();
        let asked = Arc::clone(&ready.mps);
        let limit = Duration::from_secs(self.daemon.settings.now().mps.start_timeout_s.into());
        let started = self
            .daemon
            .blocking("start a server", move |_| ensure_server(&asked, uid, limit))
            .await?;
        let result = match started {
            Ok(()) => Ok(()),
            Err(MpsError::ServerDied { .. }) if ready.simulated => {
                log::info!(uuid = self.uuid.as_str(); "no MPS server: the card is simulated");
                if let Some(card) = self.daemon.node().card_mut(&self.uuid) {
                    card.serverless = true;
                }
                Ok(())
            }
            Err(error) => {
                let Trouble { why, hint } = mps_trouble(&error);
                log::error!(uuid = self.uuid.as_str(), uid, reason = why.as_str(); "server not ready");
                self.refresh_after(&ready.mps, &error).await?;
                return Ok(Err(Refusal::new(Code::MpsServer, why, hint)));
            }
        };
        self.refresh(&ready.mps).await?;
        // Known from its first moment: it may crash before the next look.
        self.evaluate_servers().await;
        Ok(result)
    }

    /// Brings the limit of clients without one of their own in line with the largest grant.
    pub(super) async fn cap(
        &self,
        mps: &Arc<MpsInstance>,
    ) -> Result<Result<(), Refusal>, DaemonError> {
        let wanted = {
            let node = self.daemon.node();
            let wanted = node.wanted_cap(&self.uuid);
            if node.card(&self.uuid).is_none_or(|card| card.cap == wanted) {
                return Ok(Ok(()));
            }
            wanted
        };
        let asked = Arc::clone(mps);
        let set = self.daemon.blocking("set a limit", move |_| cap(&asked, wanted)).await?;
        if let Err(error) = set {
            let Trouble { why, hint } = mps_trouble(&error);
            log::error!(uuid = self.uuid.as_str(), limit_mib = wanted.0, reason = why.as_str(); "limit not set");
            self.refresh_after(mps, &error).await?;
            return Ok(Err(Refusal::new(Code::GpuUnhealthy, why, hint)));
        }
        log::debug!(uuid = self.uuid.as_str(), limit_mib = wanted.0; "limit set");
        if let Some(card) = self.daemon.node().card_mut(&self.uuid) {
            card.cap = wanted;
            if let Some(mps) = &mut card.mps {
                mps.default_limit_mib = Some(wanted.0);
            }
        }
        Ok(Ok(()))
    }

    pub(super) async fn retake_compute_mode(
        &self,
        mps: &Arc<MpsInstance>,
    ) -> Result<(), DaemonError> {
        let uuid = self.uuid.to_string();
        let set = self
            .daemon
            .blocking("set a compute mode", move |h| h.retake_compute_mode(&uuid))
            .await?;
        match set {
            Ok(changed) => {
                if changed {
                    log::warn!(
                        uuid = self.uuid.as_str(), mode = EXCLUSIVE;
                        "somebody changed the compute mode of a managed card; changed back"
                    );
                }
                if let Some(card) = self.daemon.node().card_mut(&self.uuid) {
                    EXCLUSIVE.clone_into(&mut card.compute_mode);
                }
                self.refresh(mps).await
            }
            Err(trouble) => {
                let why = format!("can be used without MPS: {}", trouble.why);
                let mut node = self.daemon.node();
                if let Some(card) = node.card_mut(&self.uuid) {
                    let health = Health::Unhealthy(Trouble::new(why, trouble.hint));
                    log_health(card, &health);
                    card.health = health;
                }
                drop_and_tell(node, &self.daemon);
                Ok(())
            }
        }
    }
}
