//! Claims of Kubernetes that are prepared on this node: memory that only a container of one pod may
//! take, at any moment.
//!
//! ```text
//!            prepare                 reserve, with the share
//!   (none) ─────────► PreparedClaim ───────────────────────► its container's entry holds it
//!      ▲                  │ unprepare                              │
//!      └──────────────────┴── the entry lives on alone ◄───────────┘
//! ```
//!
//! A claim binds all containers, unlike a promise: kube-scheduler counts claims and kubelet counts
//! devices, and neither sees the other.

use serde::{Deserialize, Serialize};

use super::{Capacity, Entry, Ledger, LedgerError};
use crate::{ClaimName, ClaimShare, GpuUuid, Mib, PreparedClaim, ShareKey};

/// How many unprepared claims are remembered. A call that was on its way when its claim was
/// unprepared is some seconds old; a node has at most some hundred pods.
const REMEMBERED: usize = 1024;

/// A claim that was unprepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unprepared {
    /// The claim's uid.
    pub claim_uid: String,
    /// The pod that it was prepared for.
    pub pod_uid: String,
}

/// Why a claim is not prepared. The ledger is then as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The claim was unprepared for this pod: the call came late.
    #[error("claim {claim} was unprepared for this pod already")]
    Over {
        /// The claim.
        claim: ClaimName,
    },
    /// The claim is prepared for another pod, or with other shares.
    #[error("claim {claim} is prepared already, for another pod or with another allocation")]
    Differs {
        /// The claim.
        claim: ClaimName,
    },
    /// The claim does not fit.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Ledger {
    /// All prepared claims.
    #[must_use]
    pub fn claims(&self) -> &[PreparedClaim] {
        &self.claims
    }

    /// Whether this claim is prepared already, for the same pod and with the same shares.
    ///
    /// # Errors
    /// Where it is prepared otherwise, or was unprepared for this pod.
    pub fn is_prepared(&self, claim: &PreparedClaim) -> Result<bool, PrepareError> {
        let uid = &claim.claim.uid;
        if let Some(known) = self.claims.iter().find(|known| known.claim.uid == *uid) {
            let same = known == claim;
            let differs = || PrepareError::Differs { claim: claim.claim.clone() };
            return same.then_some(true).ok_or_else(differs);
        }
        let is_it = |one: &Unprepared| one.claim_uid == *uid && one.pod_uid == claim.pod_uid;
        if self.unprepared.iter().any(is_it) {
            return Err(PrepareError::Over { claim: claim.claim.clone() });
        }
        Ok(false)
    }

    /// Sets the shares of a claim aside, all of them or none. `capacity` is a card's, without what
    /// is promised to others. Returns whether anything changed: doing so again for the same claim
    /// changes nothing.
    ///
    /// # Errors
    /// See [`PrepareError`].
    pub fn prepare(
        &mut self,
        claim: PreparedClaim,
        capacity: impl Fn(&GpuUuid) -> Capacity,
    ) -> Result<bool, PrepareError> {
        if self.is_prepared(&claim)? {
            return Ok(false);
        }
        for (at, share) in claim.shares.iter().enumerate() {
            // Each share of a card comes on top of the claim's earlier shares there.
            let before = claim.shares.iter().take(at).filter(|other| other.card == share.card);
            let (memory, clients) = before.fold((0_u64, 0_u32), |(memory, clients), other| {
                (memory.saturating_add(other.memory.0), clients.saturating_add(1))
            });
            self.fits(share, &capacity(&share.card), Mib(memory), clients)?;
        }
        self.claims.push(claim);
        Ok(true)
    }

    fn fits(
        &self,
        share: &ClaimShare,
        capacity: &Capacity,
        more: Mib,
        more_clients: u32,
    ) -> Result<(), LedgerError> {
        let card = &share.card;
        let taken = [self.granted(card), self.claimed(card), more];
        let taken = taken.iter().fold(0_u64, |sum, one| sum.saturating_add(one.0));
        let free = capacity.memory.saturating_sub(Mib(taken));
        if share.memory > free {
            return Err(LedgerError::NoMemory { card: card.clone(), free, asked: share.memory });
        }
        let entries = u32::try_from(self.on_card(card).count()).unwrap_or(u32::MAX);
        let clients =
            entries.saturating_add(self.claimed_clients(card, None)).saturating_add(more_clients);
        if clients >= capacity.max_clients {
            return Err(LedgerError::NoClient { card: card.clone(), clients });
        }
        Ok(())
    }

    /// Unprepares a claim, and remembers that. Grants of it stay until their processes have ended.
    /// `None` where it is not prepared.
    pub fn unprepare(&mut self, claim_uid: &str) -> Option<PreparedClaim> {
        let at = self.claims.iter().position(|one| one.claim.uid == claim_uid)?;
        let claim = self.claims.remove(at);
        let (claim_uid, pod_uid) = (claim.claim.uid.clone(), claim.pod_uid.clone());
        self.unprepared.push(Unprepared { claim_uid, pod_uid });
        let over = self.unprepared.len().saturating_sub(REMEMBERED);
        self.unprepared.drain(..over);
        Some(claim)
    }

    /// The prepared claim and share of a key.
    #[must_use]
    pub fn share(&self, key: &ShareKey) -> Option<(&PreparedClaim, &ClaimShare)> {
        let claim = self.claims.iter().find(|one| one.claim.uid == key.claim_uid)?;
        let share = claim.shares.iter().find(|share| share.request == key.request)?;
        Some((claim, share))
    }

    /// The container's entry that holds a share.
    #[must_use]
    pub fn holder(&self, key: &ShareKey) -> Option<&Entry> {
        let holds = |entry: &&Entry| {
            entry.handed.as_ref().is_some_and(|handed| handed.share.as_ref() == Some(key))
        };
        self.entries.iter().find(holds)
    }

    /// Memory on one card of prepared shares that no container holds now.
    #[must_use]
    pub fn claimed(&self, card: &GpuUuid) -> Mib {
        self.claimed_beside(card, None)
    }

    /// The same without one share. A container that was resized holds a part of its share; its next
    /// instance has all of it again.
    #[must_use]
    pub fn claimed_beside(&self, card: &GpuUuid, share: Option<&ShareKey>) -> Mib {
        let left = self.shares_on(card, share).map(|(memory, holder)| {
            memory.saturating_sub(holder.map(|entry| entry.grant.memory).unwrap_or_default())
        });
        Mib(left.fold(0, |sum: u64, left| sum.saturating_add(left.0)))
    }

    /// How many shares on one card no container holds now, without one share. Each will be a
    /// client.
    #[must_use]
    pub fn claimed_clients(&self, card: &GpuUuid, share: Option<&ShareKey>) -> u32 {
        let waiting = self.shares_on(card, share).filter(|(_, holder)| holder.is_none());
        u32::try_from(waiting.count()).unwrap_or(u32::MAX)
    }

    /// Memory on one card that no container holds and that is kept for one, by a promise or a
    /// claim.
    #[must_use]
    pub fn held_back(&self, card: &GpuUuid) -> Mib {
        Mib(self.promised(card).0.saturating_add(self.claimed(card).0))
    }

    /// The memory of each share on a card but one, and the entry that holds it.
    fn shares_on<'a>(
        &'a self,
        card: &'a GpuUuid,
        beside: Option<&'a ShareKey>,
    ) -> impl Iterator<Item = (Mib, Option<&'a Entry>)> {
        self.claims.iter().flat_map(move |claim| {
            let on_card = claim.shares.iter().filter(move |share| share.card == *card);
            on_card.filter_map(move |share| {
                let key = claim.key(share);
                (beside != Some(&key)).then(|| (share.memory, self.holder(&key)))
            })
        })
    }
}

#[cfg(test)]
mod tests;
