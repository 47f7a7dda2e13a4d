//! Answers `mpsgate status`: looks again at cards and control daemons. What does not answer in time
//! is shown as it was last seen.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::Status;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::inventory;
use crate::orders::Order;

/// Callers wait 2 s for the first byte.
const LIMIT: Duration = Duration::from_millis(1500);

/// Looks again at cards and control daemons, as far as they answer, and tells.
pub(crate) async fn now(daemon: &Arc<Daemon>) -> Status {
    let card_tasks: Vec<_> = daemon.card_tasks().values().cloned().collect();
    let mut views = Vec::new();
    for card_task in card_tasks {
        let (reply, answer) = oneshot::channel();
        if card_task.send(Order::View { reply }).is_ok() {
            views.push(answer);
        }
    }
    let look = async {
        inventory::refresh(daemon).await;
        for view in views {
            // A card task that ended has nothing to tell.
            let _ = view.await;
        }
    };
    if timeout(LIMIT, look).await.is_err() {
        // Whoever watches the cards finds out whether it hangs.
        daemon.look.notify_one();
    }
    daemon.status()
}
