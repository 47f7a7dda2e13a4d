//! A grant as the environment of a process without a container (`mpsgate run`, a job of Slurm's).

use mpsgate_model::Grant;

use crate::grant_edits::{Injector, env_within};
use crate::toolkit::VISIBLE;

/// Names that a process with a grant must not have, and variables that it must: those of a
/// container ([`grant_env`](crate::grant_env)), but for what only a container's runtime reads. Its
/// door is where it lies on the node.
#[must_use]
pub fn run_env(grant: &Grant) -> (Vec<String>, Vec<(String, String)>) {
    // The node has the driver's files.
    let (drop, mut set) = env_within(grant, None, None, &Injector::Present);
    set.retain(|(name, _)| name != VISIBLE);
    for (name, value) in &mut set {
        if name == "CUDA_MPS_PIPE_DIRECTORY" {
            value.clone_from(&grant.client_dir);
        }
    }
    (drop, set)
}
