//! What the daemon does for the plugin. It implements the trait; `server` and `plugin` call it.

use std::pin::Pin;

use crate::{Allocation, Denied, Event};

/// An answer that is still to come.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the daemon does for the plugin.
pub trait Host: Send + Sync + 'static {
    /// The token of one container, by which the node knows it again. Kubelet holds its lock over
    /// all devices of the node while it waits.
    fn token(&self, allocation: Allocation) -> Pending<'_, Result<String, Denied>>;
    /// Takes note of what happened. Must not block.
    fn tell(&self, event: Event);
}
