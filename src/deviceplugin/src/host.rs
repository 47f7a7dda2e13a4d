//! What the daemon does for the plugin. It implements the trait; `server` and `plugin` call it.

use std::pin::Pin;

use crate::{Ask, Denied, Event, Granted};

/// An answer that is still to come.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the daemon does for the plugin.
pub trait Host: Send + Sync + 'static {
    /// Answers for one container. Kubelet holds its lock over all devices of the node while it
    /// waits.
    fn grant(&self, ask: Ask) -> Pending<'_, Result<Granted, Denied>>;
    /// Takes note of what happened. Must not block.
    fn tell(&self, event: Event);
}
