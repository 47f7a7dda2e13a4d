//! What a card's task is asked for before a container's program may run: a server.

use std::time::Duration;

use mpsgate_model::{Code, GpuUuid, Refusal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::orders::Order;

/// Beyond `mps.start_timeout` for orders that were there before ours.
const SERVER_SLACK: Duration = Duration::from_secs(10);

/// Waits until the card's server takes clients of `uid`.
pub(crate) async fn server(daemon: &Daemon, card: &GpuUuid, uid: u32) -> Result<(), Refusal> {
    let limit =
        Duration::from_secs(daemon.settings.now().mps.start_timeout_s.into()) + SERVER_SLACK;
    ask_card_task(daemon, card, limit, |reply| Order::Server { uid, reply }).await.unwrap_or_else(
        || {
            Err(Refusal::new(
                Code::MpsServer,
                format!(
                    "the MPS server of {card} for uid {uid} was not ready after {} s",
                    limit.as_secs()
                ),
                "mpsgate status; journalctl -u mpsgated -n 50",
            ))
        },
    )
}

/// `None` where the answer does not come in time.
async fn ask_card_task(
    daemon: &Daemon,
    card: &GpuUuid,
    limit: Duration,
    order: impl FnOnce(oneshot::Sender<Result<(), Refusal>>) -> Order,
) -> Option<Result<(), Refusal>> {
    let gone = || {
        Refusal::new(Code::GpuUnhealthy, format!("{card} is being taken back"), "mpsgate status")
    };
    let (reply, answer) = oneshot::channel();
    if !daemon.order(card, order(reply)) {
        return Some(Err(gone()));
    }
    let answer = timeout(limit, answer).await.ok()?;
    Some(answer.unwrap_or_else(|_| Err(gone())))
}
