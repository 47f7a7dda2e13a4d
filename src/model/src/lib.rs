//! What a container asked for, what it was granted, and the record of both.
//!
//! Owns the words of the product: [`Mib`], [`GpuUuid`], [`GrantKey`], [`Request`], [`Grant`] and
//! the [`ledger::Ledger`]. Parsing here is strict because the MPS control daemon is not: it turns
//! `7.5G` into 7 MiB without a word (measured, nvidia-cuda-mps 550.163.01).
//!
//! Must never read the environment, a clock, or any file except below the ledger directory that the
//! caller names. Called by the shim (requests), the daemon (ledger), the CLI, and by crates that
//! talk to an API server or place pods (reports of nodes and pods).

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod backoff;
mod claim;
mod cluster_facts;
pub mod door_file;
mod grant;
mod ids;
pub mod ledger;
pub mod ledger_file;
mod likely;
pub mod names;
mod node_card;
mod number;
mod one_of;
mod pod_container;
pub mod printable;
mod qualification;
mod quantity;
mod rate;
mod refusal;
mod request;
mod resource;

pub use backoff::Backoff;
pub use claim::{CLAIM, ClaimName, ClaimShare, DRIVER, PreparedClaim, ShareKey};
pub use cluster_facts::{
    By, CardReport, GpuNode, HandlerReport, Kind, Layout, Placement, RuntimeClass,
};
pub use grant::{
    Cdi, CdiEdits, CdiHook, CdiMount, DeviceNode, Grant, GrantedCard, Guarantee, UVM_TOOLS,
};
#[cfg(any(test, feature = "testing"))]
pub use ids::example_gpu;
pub use ids::{ContainerId, GpuUuid, GrantKey, IdError, Instance, user_shown};
pub use likely::{ANY_CARD, quantity as likely_quantity};
pub use node_card::{ComputeMode, NodeCard, WedgeCause};
pub use number::{QuantityError, parse_count, parse_nanos};
pub use one_of::{OneOf, Words};
pub use pod_container::{Handed, PodContainer};
pub use qualification::{Answer, QUESTIONS, Qualification, Question, Subject, Verdict};
pub use quantity::Mib;
pub use rate::{Bucket, Lines, Rate};
pub use refusal::{Code, Refusal};
pub use request::{
    Author, CARDS_ANNOTATION, CLAIM_ENV_PREFIX, ComputeShare, GRANTED_CARDS, GRANTED_MEMORY,
    GpuSelector, MEMORY_ANNOTATIONS, Priority, REQUEST_ENV_PREFIX, Request, RequestError,
    TOKEN_ANNOTATION, is_claim_env, is_request_annotation, is_request_env, parse_request,
};
pub use resource::{GPU_CORE, GPU_COUNT, GPU_MEMORY, Resource};
