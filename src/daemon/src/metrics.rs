//! What Prometheus reads: the state that `status` shows, and what has been counted since the start.
//!
//! ```text
//!  settings: metrics.listen ─► serve ─► http (GET /metrics) ─► text ◄─ list ◄─ Node::status, Events
//! ```
//!
//! A scrape asks neither NVML nor a control daemon: it shows what whoever watches them saw last.
//! Without its port the daemon goes on, tries again, and says so.

mod metric_list;
mod metrics_http;
mod openmetrics;
mod scrape;

use std::sync::Arc;
use std::time::Duration;

use mpsgate_config::Listen;
use tokio::net::TcpListener;

use crate::DaemonError;
use crate::around::Endpoint;
use crate::daemon::Daemon;

/// Between two attempts to get the port.
const RETRY: Duration = Duration::from_secs(5);

/// Serves for as long as the process lives, where the settings say.
pub(crate) async fn serve(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    loop {
        let Listen::At(wanted) = daemon.settings.now().metrics.listen else {
            daemon.around().endpoint = Endpoint::default();
            daemon.metrics_moved.notified().await;
            continue;
        };
        match TcpListener::bind(wanted).await {
            Ok(listener) => {
                let at = listener.local_addr().unwrap_or(wanted);
                daemon.around().endpoint = Endpoint { at: Some(at), error: None };
                log::info!(address:% = at; "metrics are served");
                tokio::select! {
                    ended = metrics_http::listen(&daemon, &listener) => return ended,
                    () = daemon.metrics_moved.notified() => {}
                }
            }
            Err(error) => {
                let endpoint = Endpoint { at: Some(wanted), error: Some(error.to_string()) };
                let before = std::mem::replace(&mut daemon.around().endpoint, endpoint.clone());
                // One line for each episode.
                if before != endpoint {
                    log::error!(
                        address:% = wanted, reason:% = error,
                        hint = "free the port, or set another metrics.listen and run: mpsgate reload";
                        "metrics are not served; mpsgated goes on and tries again"
                    );
                }
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    () = daemon.metrics_moved.notified() => {}
                }
            }
        }
    }
}
