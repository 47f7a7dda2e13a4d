//! What the log says of a card.

use mpsgate_model::GpuUuid;
use mpsgate_node::card::{CardNews, Trouble};

/// Logs what happened to a card.
pub(crate) fn tell(uuid: &GpuUuid, gpu: u32, news: CardNews) {
    let uuid = uuid.as_str();
    match news {
        CardNews::Ready(memory) => log::info!(uuid, gpu, memory_mib = memory.0; "card ready"),
        CardNews::NotReady(Trouble { why, hint }) => {
            log::error!(uuid, gpu, reason = why.as_str(), hint = hint.as_str(); "card not ready");
        }
        CardNews::Answers(control_pid, adopted, memory) => log::info!(
            uuid, gpu, control_pid, adopted, memory_mib = memory.0; "control daemon answers"
        ),
        CardNews::SharedMemory(seen) => {
            log::info!(uuid, shared_memory = seen.as_str(); "MPS server looked at");
        }
        CardNews::Back => log::info!(uuid; "card is back"),
        CardNews::Lost(Trouble { why, hint }) => {
            log::error!(uuid, reason = why.as_str(), hint = hint.as_str(); "card lost");
        }
        CardNews::Kept => log::warn!(
            uuid, hint = "when they have ended: mpsgate disable GPU";
            "card was taken out of the settings while it has grants and stays managed"
        ),
        CardNews::Broken(names) => log::error!(
            uuid, containers = names.join(","),
            hint = "restart these containers"; "grants broken: their MPS died"
        ),
        CardNews::Unlimited(Trouble { why, hint }) => log::info!(
            uuid, reason = why.as_str(), hint = hint.as_str();
            "the driver does not limit containers of the card by cgroup: the guarantee is the next lower one"
        ),
    }
}
