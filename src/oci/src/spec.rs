//! `config.json`: reading what decides, editing without losing anything.
//!
//! [`parse`] turns the bytes into a [`Document`], [`View`] names the parts that a decision needs, [`Edit`]
//! and [`apply`] change them. The document stays JSON throughout: fields that we do not know survive with their order, and an enum value of a newer runtime-spec is no error.
//!
//! Numbers keep their 64-bit value; OCI has no others. Text is written anew, so white space and the
//! spelling of escapes may change; a document that needs no edit is never written.

mod edit;
mod glance;
mod parse;
mod view;

pub use edit::{Edit, EditError, HookStage, apply};
pub use glance::{Seen, glance};
pub use parse::{Document, SpecError, parse};
pub use view::{Device, DeviceRule, Hook, IdRange, Mount, Namespace, View};
