//! What kubelet asks of the driver: to prepare a claim, and to take that back.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_dra::{AllocatedDeviceStatus, Event, Here, Host, Pending, PreparedDevice};
use mpsgate_kubernetes as kubernetes;
use mpsgate_model::{ClaimName, ClaimShare, Code, PreparedClaim, Refusal, printable};
use mpsgate_node::Node;

use super::claim_files;
use crate::daemon::Daemon;
use crate::kubelet::log_level;
use mpsgate_host::clock::now_ms;

/// For each request to the API server: kubelet gives a call 45 s, and the driver a claim 20 s.
const PATIENCE: Duration = Duration::from_secs(8);

/// The daemon, as kubelet's calls see it.
pub(super) struct Driver {
    daemon: Arc<Daemon>,
    claims: Arc<kubernetes::Claims>,
    /// The pool of this node's slice.
    pool: String,
}

impl Driver {
    /// `None` where no API server is followed.
    pub(super) fn new(daemon: &Arc<Daemon>) -> Option<Self> {
        let settings = daemon.api_server.get()?.settings.clone();
        let pool = settings.node.clone();
        let claims = Arc::new(kubernetes::Claims::new(settings, PATIENCE));
        Some(Self { daemon: Arc::clone(daemon), claims, pool })
    }

    async fn prepare_claim(&self, asked: ClaimName) -> Result<Vec<PreparedDevice>, String> {
        let (claim, shown) = self.read(&asked).await.map_err(|refusal| said(&refusal))?;
        let kept = self.keep(&claim).await;
        self.tell(&claim, &shown, kept.clone().err());
        kept.map_err(|refusal| said(&refusal))?;
        let devices = claim.shares.iter().map(|share| PreparedDevice {
            request: share.request.clone(),
            pool: share.pool.clone(),
            device: share.device.clone(),
            share_id: share.share_id.clone(),
            cdi_ids: vec![mpsgate_dra::device_id(&asked.uid, &share.request)],
        });
        Ok(devices.collect())
    }

    /// What the API server has of the claim, and what its status shows of its devices.
    async fn read(
        &self,
        asked: &ClaimName,
    ) -> Result<(PreparedClaim, Vec<AllocatedDeviceStatus>), Refusal> {
        let found = self.claims.get(&asked.namespace, &asked.name).await.map_err(|error| {
            let sentence =
                format!("claim {asked} cannot be read from the API server: {}", error.line());
            Refusal::new(Code::Claim, sentence, error.hint())
        })?;
        let Some(found) = found else {
            return Err(Refusal::new(
                Code::Claim,
                format!("the API server has no claim {asked}"),
                "create the claim and its pod anew",
            ));
        };
        let extended_resources = self.daemon.settings.now().kubernetes.dra_extended_resources;
        let claim = {
            let node = self.daemon.node();
            let mut claims = node.ledger().claims().iter();
            let here = Here {
                pool: &self.pool,
                card_of: &|device| card_of(&node, device),
                prepared: claims.find(|claim| claim.claim.uid == asked.uid),
                extended_resources,
            };
            mpsgate_dra::read(&found, asked, &here)?
        };
        Ok((claim, found.status.and_then(|status| status.devices).unwrap_or_default()))
    }

    /// Has it in the ledger, and its tokens where the engine finds them.
    async fn keep(&self, claim: &PreparedClaim) -> Result<(), Refusal> {
        self.daemon.change(|node, effects| node.prepare(claim.clone(), effects))?;
        self.daemon.recorded().await?;
        claim_files::write(&self.daemon, claim.clone()).await
    }

    /// Writes the claim's status, where it does not show the same. Nobody waits for it, and a claim
    /// that is gone has none.
    fn tell(
        &self,
        claim: &PreparedClaim,
        shown: &[AllocatedDeviceStatus],
        refusal: Option<Refusal>,
    ) {
        let devices = {
            let (node, now) = (self.daemon.node(), kubernetes::now());
            let status = |share: &ClaimShare| {
                let level = node.card(&share.card).map(|card| node.level_of_card(card));
                let outcome = match (&refusal, &level) {
                    (Some(refusal), _) => Err(refusal),
                    (None, Some(level)) => {
                        Ok((level.guarantee.as_str(), level.proof.as_str(), level.is_proven))
                    }
                    (None, None) => Ok(("none", "", false)),
                };
                mpsgate_dra::status(share, outcome, &now)
            };
            mpsgate_dra::news(claim.shares.iter().map(status).collect(), shown)
        };
        if devices.is_empty() {
            return;
        }
        let (claims, name) = (Arc::clone(&self.claims), claim.claim.clone());
        self.daemon.spawn("writes a claim's status", async move {
            if let Err(error) = claims.write_status(&name, &devices).await {
                let claim = printable::plain(&name.to_string());
                log::warn!(
                    claim = claim.as_str(), reason = error.line().as_str(),
                    hint = error.hint().as_str(); "the status of a claim is not written"
                );
            }
            Ok(())
        });
    }
}

/// As kubelet puts it into the pod's events.
fn said(refusal: &Refusal) -> String {
    format!("{refusal} hint: {}", refusal.hint)
}

/// The managed card of a device's name.
fn card_of(node: &Node, device: &str) -> Option<mpsgate_model::GpuUuid> {
    let managed = node.cards().iter().filter(|card| card.is_managed());
    let mut names = managed.map(|card| &card.uuid);
    names.find(|uuid| mpsgate_dra::device_name(uuid) == device).cloned()
}

/// Takes a claim's preparation back. Needs neither API server nor GPU: a pod that cannot be
/// unprepared stays for ever.
pub(super) async fn take_back(daemon: &Arc<Daemon>, claim_uid: &str) -> Result<(), Refusal> {
    let known = daemon.change(|node, effects| node.unprepare(claim_uid, effects));
    // Also of one that is not known: its file may be from before a restart.
    claim_files::remove(daemon, claim_uid.to_owned()).await?;
    if known.is_some() {
        // It is in memory, and is tried again until it is on disk.
        let _ = daemon.recorded().await;
    }
    Ok(())
}

impl Host for Driver {
    fn prepare(&self, claim: ClaimName) -> Pending<'_, Result<Vec<PreparedDevice>, String>> {
        Box::pin(self.prepare_claim(claim))
    }

    fn unprepare(&self, claim: ClaimName) -> Pending<'_, Result<(), String>> {
        Box::pin(async move {
            take_back(&self.daemon, &claim.uid).await.map_err(|refusal| said(&refusal))
        })
    }

    fn tell(&self, event: Event) {
        let level = log_level(event.level());
        match event.hint().as_deref() {
            Some(hint) => log::log!(level, hint; "claims: {event}"),
            None => log::log!(level, "claims: {event}"),
        }
        let changed = {
            let mut around = self.daemon.around();
            around.claims.as_mut().is_some_and(|claims| claims.take(&event, now_ms()))
        };
        if changed {
            self.daemon.tell_change();
        }
    }
}
