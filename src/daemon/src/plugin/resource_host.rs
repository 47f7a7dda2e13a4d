//! What the daemon does for one resource: tokens for its containers, and a record of what happens.

use std::sync::Arc;

use mpsgate_deviceplugin::{Allocation, Denied, Event, Host, Pending};

use crate::daemon::Daemon;
use crate::error::chain;
use crate::files::FileKind;
use crate::kubelet::log_level;
use mpsgate_host::clock::now_ms;

/// The daemon, as a resource sees it.
pub(super) struct Plugin {
    pub(super) daemon: Arc<Daemon>,
    pub(super) resource: String,
}

impl Plugin {
    async fn sign(&self, ask: Allocation) -> Result<String, Denied> {
        let Some(memory) = ask.memory else {
            let sentence = format!("{} counts cards, and gives no memory of them", ask.resource);
            return Err(Denied::new(sentence));
        };
        let card = ask.card().map(ToString::to_string);
        let tokens = Arc::clone(&self.daemon.tokens);
        let work = move || tokens.sign(memory, ask.resource, card);
        self.daemon.files.run(FileKind::Tokens, work).await.map_err(|error| {
            let (why, hint) = (chain(&error), error.hint());
            Denied::new(format!("no token can be made for it: {why}; hint: {hint}"))
        })
    }
}

impl Host for Plugin {
    fn token(&self, ask: Allocation) -> Pending<'_, Result<String, Denied>> {
        Box::pin(self.sign(ask))
    }

    fn tell(&self, event: Event) {
        let level = log_level(event.level());
        let (resource, hint) = (self.resource.as_str(), event.hint());
        match hint.as_deref() {
            Some(hint) => log::log!(level, resource, hint; "device plugin: {event}"),
            None => log::log!(level, resource; "device plugin: {event}"),
        }
        let changed = {
            let mut around = self.daemon.around();
            let served = around.served.get_mut(&self.resource);
            served.is_some_and(|served| served.take(&event, now_ms()))
        };
        if changed {
            self.daemon.tell_change();
        }
    }
}
