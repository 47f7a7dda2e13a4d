//! For whom the ledger is looked at: of what is kept for others nothing is his.

use mpsgate_model::{Handed, ShareKey};

/// For whom a card is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asker<'a> {
    /// A container that Kubernetes does not know.
    Local,
    /// A container of a pod.
    Pod {
        /// The pod's uid.
        uid: &'a str,
        /// The share of a claim that it brings.
        share: Option<&'a ShareKey>,
    },
}

impl<'a> Asker<'a> {
    /// Whoever was handed that out.
    pub(super) fn of(handed: Option<&'a Handed>) -> Self {
        handed.map_or(Self::Local, |handed| Self::Pod {
            uid: &handed.pod.uid,
            share: handed.share.as_ref(),
        })
    }

    pub(super) fn share(self) -> Option<&'a ShareKey> {
        match self {
            Self::Local => None,
            Self::Pod { share, .. } => share,
        }
    }
}
