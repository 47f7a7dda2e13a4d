//! What a card task does with the clients of a ready card: lists them, and ends the GPU work of
//! some.

use std::sync::Arc;
use std::time::Instant;

use mpsgate_mps::MpsInstance;
use mpsgate_node::card::Trouble;
use tokio::sync::oneshot;

use super::CardTask;
use crate::hardware::control::mps_trouble;
use crate::orders::{Clients, Doomed};

impl CardTask {
    /// Terminates the clients that are in `doomed`, unless whoever asked has given up.
    pub(super) async fn terminate(
        &self,
        mps: &Arc<MpsInstance>,
        doomed: Doomed,
        deadline: Instant,
        reply: oneshot::Sender<Result<Vec<i32>, Trouble>>,
    ) {
        let asked = Arc::clone(mps);
        let work = move |_: &_| {
            let processes = doomed.processes().map_err(|error| {
                Trouble::new(format!("its cgroup cannot be read: {error}"), "mpsgate doctor")
            })?;
            let is_doomed = |pid: i32| u32::try_from(pid).is_ok_and(|pid| processes.contains(&pid));
            asked.terminate_clients(is_doomed, deadline).map_err(|error| mps_trouble(&error))
        };
        let result = self.daemon.blocking(work).await;
        // Who asked may have given up.
        let _ = reply.send(result);
    }

    pub(super) async fn clients(
        &self,
        mps: &Arc<MpsInstance>,
        reply: oneshot::Sender<Result<Clients, Trouble>>,
    ) {
        let asked = Arc::clone(mps);
        let work = move |_: &_| asked.clients().map_err(|error| mps_trouble(&error));
        let _ = reply.send(self.daemon.blocking(work).await);
    }
}
