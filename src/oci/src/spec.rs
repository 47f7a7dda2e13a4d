//! `config.json`: reading what decides, editing without losing anything.
//!
//! [`glance()`] shows what any runtime would read of the bytes, without a tree and without limits.
//! [`parse()`] accepts only what every runtime reads alike. It turns the bytes into a [`Document`],
//! [`View`] names the parts that a decision needs, [`Edit`] and [`apply`] change them. The document
//! stays JSON throughout: unknown fields survive with their order, and an enum value of a newer
//! runtime-spec is no error.
//!
//! Numbers keep their 64-bit value; OCI has no others. Text is written anew, so white space and the
//! spelling of escapes may change. A document that needs no edit is never written.

mod capability;
mod device;
mod edit;
mod error;
mod glance;
mod json_stream;
mod layers;
mod mount_entry;
mod open;
mod parse;
mod places;
mod spec_view;

pub use capability::{CAPABILITIES, capability};
pub use device::{Device, DeviceRule};
pub use edit::{Edit, EditError, HookStage, REPLACED_MAX, apply};
pub use error::SpecError;
pub use glance::{Seen, glance};
pub use layers::Layers;
pub use mount_entry::{MountEntry, ReadOnly, Shows, is_overlay};
pub use open::OpenDevices;
pub use parse::{Document, parse, parse_process, parse_resources};
pub use spec_view::{Hook, IdRange, Mount, Namespace, View};
