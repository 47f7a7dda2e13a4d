//! How the card task asks a control daemon how it is.

use std::sync::Arc;

use mpsgate_mps::{MpsError, MpsInstance};
use mpsgate_node::card::{CardEvent, View};

use super::CardTask;
use crate::hardware::control::view;

impl CardTask {
    pub(super) fn happened(&self, event: CardEvent) {
        self.daemon.happened(&self.uuid, event);
    }

    pub(super) async fn refresh(&self, mps: &Arc<MpsInstance>) {
        let asked = Arc::clone(mps);
        let view = self.daemon.blocking(move |_| view(&asked)).await;
        self.happened(CardEvent::Viewed(view));
    }

    /// After a command that failed. One that was not answered is not followed by another: why is
    /// for the next look.
    pub(super) async fn refresh_after(&self, mps: &Arc<MpsInstance>, error: &MpsError) {
        if matches!(error, MpsError::Wedged { .. }) {
            return self.happened(CardEvent::Viewed(View::wedged(None)));
        }
        self.refresh(mps).await;
    }
}
