//! A claim's token in a container's variables: whose it is, the daemon says.

use std::collections::BTreeSet;

use mpsgate_model::{CLAIM_ENV_PREFIX, Code, Refusal, TOKEN_ANNOTATION, is_claim_env, printable};
use mpsgate_oci::spec::View;

/// Claims that a refusal names.
const NAMED: usize = 4;

/// The token of the one claim that the container names.
///
/// # Errors
/// A refusal for a container with several: a CUDA process has one channel to one card, and only the
/// last of two grants would be in its variables.
pub(crate) fn token(view: View<'_>) -> Result<Option<&str>, Refusal> {
    let tokens: BTreeSet<&str> =
        view.env().filter(|(name, _)| is_claim_env(name)).map(|(_, token)| token).collect();
    let by_plugin = view.annotation(TOKEN_ANNOTATION).is_some();
    let more = match (tokens.len(), by_plugin) {
        (0, _) => return Ok(None),
        (1, false) => return Ok(tokens.into_iter().next()),
        (1, true) => " and GPU memory in its resources.limits",
        _ => "",
    };
    let names = variables(view);
    let all = names.iter().filter_map(|name| name.strip_prefix(CLAIM_ENV_PREFIX));
    let named: Vec<_> = all.take(NAMED).map(printable::value).collect();
    let word = if names.len() == 1 { "claim" } else { "claims" };
    let further = if names.len() > NAMED { " and others" } else { "" };
    Err(Refusal::new(
        Code::Claim,
        format!(
            "it has the {word} {} (CLAIM.REQUEST){further}{more}, and a CUDA process uses the GPU memory \
             of one",
            named.join(", ")
        ),
        "give each container one request of one claim (resources.claims with name and request), and \
         no GPU memory in resources.limits beside it",
    ))
}

/// The names of the variables with a claim's token, each once.
pub(crate) fn variables(view: View<'_>) -> Vec<String> {
    let names: BTreeSet<&str> =
        view.env().map(|(name, _)| name).filter(|name| is_claim_env(name)).collect();
    names.into_iter().map(str::to_owned).collect()
}
