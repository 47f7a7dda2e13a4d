//! The node's keys and tokens: opened when they are first needed, tended once an hour where a
//! kubelet runs.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::{Engine, Reserve};
use mpsgate_config::SlicesUid;
use mpsgate_model::{
    CLAIM, Code, ComputeShare, GPU_MEMORY, GpuUuid, Handed, Mib, PodContainer, Refusal, Resource,
    ShareKey,
};
use mpsgate_node::{Confirmed, not_prepared};
use mpsgate_policy::{ListedLimits, schedule};
use mpsgate_token::{Bearer, Claims, Share};

use crate::api_server::InApi;
use crate::daemon::Daemon;
use crate::error::chain;
use crate::files::FileKind;
use crate::token_store::refusal;
use crate::{DaemonError, kubelet};
use mpsgate_host::clock::now_ms;

/// Between two looks at age and use of the keys, and at whether there is a kubelet yet.
const TEND: Duration = Duration::from_secs(60 * 60);
const KUBELET_LOOK: Duration = Duration::from_secs(10);

/// What a token says: resource, memory, and the card of its devices.
fn read(claims: Claims) -> ((String, Mib), Option<GpuUuid>) {
    // The first tokens do not say it, and were of this one.
    let resource = claims.resource.unwrap_or_else(|| GPU_MEMORY.to_owned());
    let card = claims.card.and_then(|card| GpuUuid::parse(&card).ok());
    ((resource, Mib(claims.memory_mib)), card)
}

/// What kubelet (a token) and the API server confirm of a request. `None` where nobody does.
pub(crate) async fn confirm(
    daemon: &Arc<Daemon>,
    call: &Reserve,
) -> Result<Option<Confirmed>, Refusal> {
    if call.engine != Engine::Kubernetes {
        return Ok(None);
    }
    let token = call.request.token.clone();
    let Some(pod) = bearer(call)? else { return Ok(None) };
    let claims = match token {
        None => None,
        Some(token) => match claims(daemon, token, &pod).await? {
            Claims { share: Some(share), .. } => {
                return of_claim(daemon, call, pod, share).map(Some);
            }
            claims => Some(read(claims)),
        },
    };
    let InApi { listed, chosen, cards, core_percentage } = match daemon.api_server.get() {
        Some(api_server) => api_server.listed(&pod).await,
        None => InApi::only(ListedLimits::Unknown),
    };
    let cards = cards.as_deref().map(schedule::gpu_count).transpose()?.unwrap_or(NonZeroU32::MIN);
    let (token, card) = claims.unzip();
    let with_token = token.is_some();
    let Some((resource, memory)) = mpsgate_policy::confirmed(token, &listed)? else {
        return Ok(None);
    };
    if let Some(refusal) = wrong_uid(daemon, &resource, call.uid) {
        return Err(refusal);
    }
    if let Some(refusal) = mpsgate_policy::core_refusal(core_percentage, true) {
        return Err(refusal);
    }
    log::info!(
        container = call.key.container_id.as_str(), pod:% = pod, memory_mib = memory.0, token = with_token,
        listed = listed != ListedLimits::Unknown; "request confirmed"
    );
    let (hints, placed) = hints(daemon, &chosen, card.flatten());
    let compute = u8::try_from(core_percentage).ok().filter(|share| *share > 0).map(ComputeShare);
    Ok(Some(Confirmed {
        memory,
        cards,
        compute,
        hints,
        placed,
        handed: Handed { pod, resource, share: None },
    }))
}

/// What a share of a claim gives, as the ledger has it: kubelet may have taken it back since its
/// token was signed.
fn of_claim(
    daemon: &Daemon,
    call: &Reserve,
    pod: PodContainer,
    share: Share,
) -> Result<Confirmed, Refusal> {
    let key = ShareKey { claim_uid: share.claim, request: share.request };
    let node = daemon.node();
    let found = node.ledger().share(&key).filter(|(claim, _)| claim.pod_uid == pod.uid);
    let Some((claim, given)) = found else { return Err(not_prepared()) };
    log::info!(
        container = call.key.container_id.as_str(), pod:% = pod, memory_mib = given.memory.0,
        claim:% = claim.claim; "request confirmed"
    );
    Ok(Confirmed {
        memory: given.memory,
        cards: NonZeroU32::MIN,
        compute: given.compute,
        hints: vec![given.card.clone()],
        placed: true,
        handed: Handed { pod, resource: CLAIM.to_owned(), share: Some(key) },
    })
}

/// The cards to prefer: those that a scheduler chose, else the one whose devices the token is of.
/// And whether a scheduler chose.
fn hints(daemon: &Daemon, chosen: &[u32], card: Option<GpuUuid>) -> (Vec<GpuUuid>, bool) {
    let node = daemon.node();
    let chosen = node.cards().iter().filter(|card| chosen.contains(&card.index));
    let hints: Vec<GpuUuid> = chosen.map(|card| card.uuid.clone()).collect();
    if hints.is_empty() { (card.into_iter().collect(), false) } else { (hints, true) }
}

/// The container whose request it is. `None` where nothing says that it is a pod's.
fn bearer(call: &Reserve) -> Result<Option<PodContainer>, Refusal> {
    if call.pod.is_none() && call.request.token.is_some() {
        return Err(Refusal::new(
            Code::Unconfirmed,
            "it brings a token (mpsgate.io/grant), but its engine does not say to which container of which pod it \
             belongs, or its cgroup is another pod's",
            "start it as a pod, through kubelet; mpsgate knows containerd 1.6 and newer, and CRI-O",
        ));
    }
    Ok(call.pod.clone())
}

/// Why a slice is not for processes of this uid, where the settings say for whose slices are.
fn wrong_uid(daemon: &Daemon, resource: &str, asks: u32) -> Option<Refusal> {
    let SlicesUid::Only(uid) = daemon.settings.now().kubernetes.slices_uid else { return None };
    let is_slice = matches!(Resource::parse(resource), Some(Resource::Slice(_)));
    (is_slice && asks != uid).then(|| {
        Refusal::new(
            Code::Uid,
            format!("its CUDA processes run as uid {asks}, and {resource} is for uid {uid} alone"),
            format!(
                "set securityContext.runAsUser: {uid} in the pod, or kubernetes.slices_uid = \"any\" in \
                 /etc/mpsgate/config.toml and run: mpsgate reload"
            ),
        )
    })
}

/// The claims of a token that counts for this container.
async fn claims(
    daemon: &Arc<Daemon>,
    token: String,
    pod: &PodContainer,
) -> Result<Claims, Refusal> {
    let tokens = Arc::clone(&daemon.tokens);
    let bearer = Bearer { pod: pod.uid.clone(), container: pod.container.clone() };
    let work = move || tokens.confirm(&token, &bearer);
    daemon.files.run(FileKind::Tokens, work).await.map_err(|error| refusal(&error))
}

/// Tends the keys for as long as the process lives, where a kubelet runs.
pub(crate) async fn keep(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    loop {
        if !daemon.node().kubelet {
            tokio::time::sleep(KUBELET_LOOK).await;
            continue;
        }
        let (tokens, pods) = (Arc::clone(&daemon.tokens), kubelet::kubelet_pods(&daemon.paths));
        let tend = move || tokens.tend(|| living_pods(&pods), now_ms());
        if let Err(error) = daemon.files.run(FileKind::Tokens, tend).await {
            let (reason, hint) = (chain(&error), error.hint());
            log::error!(reason = reason.as_str(), hint = hint.as_str(); "tokens of pods cannot be checked");
        }
        tokio::time::sleep(TEND).await;
    }
}

/// The uids of the pods that kubelet has directories of. `None` where it has none that can be read.
fn living_pods(directories: &[PathBuf]) -> Option<BTreeSet<String>> {
    let mut pods: Option<BTreeSet<String>> = None;
    for directory in directories {
        match names(directory) {
            Ok(found) => pods.get_or_insert_default().extend(found),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // Half a list would take a living pod for gone.
            Err(_) => return None,
        }
    }
    pods
}

fn names(directory: &Path) -> std::io::Result<Vec<String>> {
    let entries = std::fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn pods_are_kubelets_directories_and_half_a_list_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (one, absent, file) =
            (dir.path().join("one"), dir.path().join("absent"), dir.path().join("file"));
        std::fs::create_dir_all(one.join("uid-1")).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(living_pods(&[absent.clone(), one.clone()]), Some(["uid-1".to_owned()].into()));
        assert_eq!(living_pods(&[absent]), None);
        assert_eq!(living_pods(&[one, file]), None);
    }
}
