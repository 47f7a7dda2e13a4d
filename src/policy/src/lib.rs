//! Pure decisions: who gets in, on which card, with which edits.
//!
//! Every function here takes values and returns values: no file, clock, environment, process or
//! socket (`clippy.toml` bans them). The shim gathers facts and applies edits, the daemon holds the
//! ledger; both ask here. Also used by `mpsgate explain`.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod refusal;

pub use refusal::{Code, Refusal};
