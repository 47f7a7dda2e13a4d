//! The daemon's part of the plugin. It implements the trait; `plugin_server` and `served_resource`
//! call it.

use std::pin::Pin;

use crate::{Allocation, Denied, Event};

/// An answer that is still to come.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The daemon's part of the plugin.
pub trait Host: Send + Sync + 'static {
    /// Signs the token of one container, by which the node recognises it. Kubelet holds its lock
    /// over all devices of the node while it waits.
    fn token(&self, allocation: Allocation) -> Pending<'_, Result<String, Denied>>;
    /// Receives an event. Must not block.
    fn tell(&self, event: Event);
}
