//! Whether containers can have GPU memory of this node now: what a pod's readiness means.

use mpsgate_api::{CardState, Status};

/// Why no container can have GPU memory here; `None` where one can, or where no card is wanted of
/// this node: its cards are another system's.
pub(super) fn problem(status: &Status) -> Option<String> {
    if let Some(error) = &status.nvml_error {
        return Some(format!("NVML does not answer: {error}"));
    }
    if status.cards.is_empty() {
        return Some("no card was found".to_owned());
    }
    let managed: Vec<_> = status.cards.iter().filter(|card| card.managed).collect();
    let first = managed.first()?;
    if managed.iter().all(|card| card.state != CardState::Ready) {
        return Some(format!("no card can be granted; GPU {}: {}", first.index, first.state));
    }
    status.device_plugin.iter().find_map(|one| match (&one.problem, one.registered_ms) {
        (Some(problem), _) => Some(format!("pods have no {}: {problem}", one.resource)),
        (None, None) => Some(format!("kubelet does not have {} yet", one.resource)),
        (None, Some(_)) => None,
    })
}
