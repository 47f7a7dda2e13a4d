//! From the lease to binding: fresh lists when it becomes ours, and the label of the own pod, by
//! which a Service finds the replica that binds.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_host::clock::now_ms;
use mpsgate_kubernetes::WriteError;
use tokio::sync::watch;

use crate::shared_state::Shared;

/// On the own pod while it binds.
const LABEL: &str = "mpsgate.io/active";
/// How soon a change is seen.
const LOOK: Duration = Duration::from_millis(200);
/// Between two attempts to write the label.
const RETRY: Duration = Duration::from_secs(2);

/// Watches over terms and times, for ever; tells `active` whether this replica binds.
pub(crate) async fn watch_over(shared: &Shared, active: &watch::Sender<bool>) {
    let mut led = false;
    loop {
        let leads = shared.leads();
        if leads && !led {
            log::info!(
                "this replica has the lease; nodes and pods are listed anew before it binds"
            );
            shared.term.send_modify(|term| *term += 1);
        }
        led = leads;
        shared.write().ledger.expire(now_ms());
        let now = shared.is_active();
        active.send_if_modified(|active| {
            if *active != now {
                log::info!(active = now; "whether this replica binds has changed");
            }
            std::mem::replace(active, now) != now
        });
        tokio::time::sleep(LOOK).await;
    }
}

/// Keeps the label true, for ever. At the start it is taken off: the process before this one may
/// have left it.
pub(crate) async fn label(
    shared: Arc<Shared>,
    namespace: String,
    pod: String,
    mut active: watch::Receiver<bool>,
) {
    let mut written = None;
    let mut told = false;
    loop {
        let wanted = *active.borrow_and_update();
        if written == Some(wanted) {
            if active.changed().await.is_err() {
                return;
            }
            continue;
        }
        match set(&shared, &namespace, &pod, wanted).await {
            Ok(()) => (written, told) = (Some(wanted), false),
            Err(error) => {
                if !told {
                    let (line, hint) =
                        (error.cause().line(), error.cause().hint_for("mpsgate-scheduler"));
                    log::warn!(error = line.as_str(), hint = hint.as_str();
                        "the own pod is not labelled; the Service may lead to another replica");
                }
                told = true;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Writes the label once.
pub(crate) async fn set(
    shared: &Shared,
    namespace: &str,
    pod: &str,
    active: bool,
) -> Result<(), WriteError> {
    shared.binder.label(namespace, pod, LABEL, active.then_some("true")).await
}
