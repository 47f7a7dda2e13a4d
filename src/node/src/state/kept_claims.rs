//! Claims of Kubernetes: what is kept for the containers of a pod, and which of them has it.

use std::collections::BTreeMap;

use mpsgate_model::ledger::{Capacity, PrepareError};
use mpsgate_model::{Code, GpuSelector, GpuUuid, PreparedClaim, Refusal, ShareKey, printable};
use mpsgate_policy::{Need, choose};

use super::Node;
use super::asker::Asker;
use super::grants::ledger_refusal;
use crate::Effect;
use crate::card::Card;

impl Node {
    /// Keeps a claim's shares for the containers of its pod. Whether that is news.
    ///
    /// # Errors
    /// A refusal for what kube-scheduler could not know: a card that takes no grant now, memory
    /// that is not there any more.
    pub fn prepare(
        &mut self,
        claim: PreparedClaim,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, Refusal> {
        // kubelet asks again for pods that run, also while a card or NVML has trouble.
        if self.ledger.is_prepared(&claim).map_err(|error| prepare_refusal(&error))? {
            return Ok(false);
        }
        self.driver_answers()?;
        if !self.under_mps() {
            return Err(Refusal::new(
                Code::Schedule,
                format!(
                    "claim {} is for GPU memory that MPS holds, and this node shares its cards without \
                     MPS",
                    claim.claim
                ),
                "gpus.schedule = \"mps\" in /etc/mpsgate/config.toml, or the label \
                 ack.node.gpu.schedule=mps on the node",
            ));
        }
        let mut candidates = self.candidates(Asker::Local, None);
        // For which user it is, its containers say.
        candidates.iter_mut().for_each(|card| card.multiuser = true);
        for share in &claim.shares {
            let gpu = GpuSelector::Uuid(share.card.clone());
            let (memory, gpu) = (share.memory, Some(&gpu));
            choose(&candidates, &Need { memory, uid: 0, gpu, hints: &[], spread: false })?;
        }
        // Of other claims the ledger itself knows.
        let capacity = |card: &Card| {
            let memory = card.memory.saturating_sub(self.room(card, Asker::Local).promised);
            (card.uuid.clone(), Capacity { memory, max_clients: card.max_clients() })
        };
        let room: BTreeMap<GpuUuid, Capacity> = self.cards.iter().map(capacity).collect();
        let of = |uuid: &GpuUuid| room.get(uuid).cloned().unwrap_or_default();
        let is_news = self.ledger.prepare(claim, of).map_err(|error| prepare_refusal(&error))?;
        self.changes += 1;
        effects.extend([Effect::WriteLedger, Effect::Publish, Effect::TellChange]);
        Ok(is_news)
    }

    /// Takes a claim's preparation back; its containers keep what they have. What it was, where it
    /// was prepared.
    pub fn unprepare(
        &mut self,
        claim_uid: &str,
        effects: &mut Vec<Effect>,
    ) -> Option<PreparedClaim> {
        let claim = self.ledger.unprepare(claim_uid)?;
        self.changes += 1;
        effects.extend([Effect::WriteLedger, Effect::Publish, Effect::TellChange]);
        Some(claim)
    }

    /// Whether a container may take a share of a claim now.
    pub(super) fn may_take(&self, key: &ShareKey) -> Result<(), Refusal> {
        let Some((claim, share)) = self.ledger.share(key) else {
            return Err(not_prepared());
        };
        let Some(entry) = self.ledger.holder(key) else { return Ok(()) };
        let holder = entry.handed.as_ref().map(|handed| handed.pod.to_string());
        Err(Refusal::new(
            Code::Claim,
            format!(
                "request {} of claim {} is held by another container already ({}), and its {} are \
                 one container's at a time",
                printable::value(&share.request),
                claim.claim,
                printable::value(&holder.unwrap_or_default()),
                share.memory
            ),
            "give each container that runs at the same time a request of its own in the claim, or a \
             claim of its own",
        ))
    }
}

/// A claim of which nothing is kept here.
pub fn not_prepared() -> Refusal {
    Refusal::new(
        Code::Claim,
        "its claim is not prepared on this node, or not any more",
        "create the pod anew; what became of its claim: kubectl describe pod, and mpsgate status on \
         the node",
    )
}

/// Why a claim is not prepared.
fn prepare_refusal(error: &PrepareError) -> Refusal {
    match error {
        PrepareError::Ledger(error) => ledger_refusal(error),
        error => Refusal::new(
            Code::Claim,
            error.to_string(),
            "if its pod waits for it, create the pod anew",
        ),
    }
}
