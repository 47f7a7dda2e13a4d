//! A grant as the environment of a plain process (`mpsgate run`).

use mpsgate_model::{Grant, Request};

use crate::decision::Wanted;
use crate::grant_edits::{Injector, grant_env};
use crate::toolkit::VISIBLE;

/// Names that a plain process with a grant must not have, and variables that it must: those of a
/// container ([`grant_env`]), but for what only a container's runtime reads. Its end of the MPS
/// channel is where it lies on the node.
#[must_use]
pub fn run_env(request: &Request, grant: &Grant) -> (Vec<String>, Vec<(String, String)>) {
    let wanted = Wanted {
        request: request.clone(),
        uid: grant.uid,
        own_limit: None,
        own_share: None,
        claim_variables: Vec::new(),
        edits: Vec::new(),
    };
    // The node has the driver's files.
    let (drop, mut set) = grant_env(&wanted, grant, &Injector::Present);
    set.retain(|(name, _)| name != VISIBLE);
    for (name, value) in &mut set {
        if name == "CUDA_MPS_PIPE_DIRECTORY" {
            value.clone_from(&grant.client_dir);
        }
    }
    (drop, set)
}
