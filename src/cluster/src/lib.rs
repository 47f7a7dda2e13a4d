//! The cluster's cards: what each holds, which node and card a pod gets, and why a node does not
//! do.
//!
//! A scheduler feeds the [`Ledger`] with what the API server says of nodes and pods, and asks it.
//! What a pod counts for:
//!
//! ```text
//!   pending ── reserve ─► reserved ── bound ─► running ── finished or gone ─► held ── the node lets go ─► free
//!                            ├ release: free
//!                            └ until its time is over, then free
//! ```
//! A pod that is not bound counts for what was reserved here, and for nothing that is written on
//! it.
//!
//! On each card a pod counts with the larger of what it was promised there and what the node says
//! that it holds. So memory is free only when the pod is gone and the node says so, too.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use mpsgate_model::{CardReport, Kind, Layout, Mib, Placement};

use mpsgate_policy::schedule::Word;

pub mod admission;
pub mod bypass;
pub mod cards;
mod cluster_ledger;
mod demand;
mod ledger_snapshot;
mod pod_cards;
mod reason;
mod sums;

pub use cluster_ledger::Ledger;
pub use ledger_snapshot::{PodUse, Snapshot, Usage};

/// A node as its labels and its report say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// How it shares its cards.
    pub schedule: Word,
    /// How its cards are filled, where its label says so.
    pub placement: Option<Placement>,
    /// Pods that each card takes; any number where it is `None`.
    pub max_pods: Option<u32>,
    /// Its cards.
    pub cards: Vec<CardReport>,
}

/// A container that asks for GPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name, which no other container of the pod has.
    pub name: String,
    /// When it runs.
    pub kind: Kind,
    /// What it asks for, over all its cards.
    pub memory: Mib,
    /// What its part on each of several cards is a multiple of.
    pub unit: Mib,
    /// The share of each of its cards' compute; 0 where it asks for none.
    pub core_percent: u32,
    /// Whom its processes run as; unknown counts as 0.
    pub uid: Option<u32>,
}

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRequest {
    /// Its containers that ask for GPU memory, as they stand in the pod: init containers and
    /// sidecars first.
    pub containers: Vec<Container>,
    /// Over how many cards each has its memory.
    pub cards: u32,
}

/// A pod as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its uid at the API server.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub request: PodRequest,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// Its cards there, where they are known.
    pub layout: Option<Layout>,
    /// Whether all its containers have ended for good.
    pub finished: bool,
}

/// Why a node does not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// A sentence without the node's name, so that equal reasons of several nodes are told once.
    pub text: String,
    /// Whether it stays so though all other pods leave the node.
    pub unresolvable: bool,
}
#[cfg(test)]
mod tests;
