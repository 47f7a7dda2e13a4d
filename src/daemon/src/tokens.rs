//! The node's keys and tokens: opened when they are first needed, tended once an hour where a kubelet runs.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mpsgate_api::{Engine, Reserve};
use mpsgate_config::SlicesUid;
use mpsgate_deviceplugin::Unit;
use mpsgate_model::{Code, Refusal};
use mpsgate_model::{ComputeShare, GpuUuid, Handed, Mib, PodContainer};
use mpsgate_policy::{Listed, schedule};
use mpsgate_token::{Bearer, Claims, News, Store, StoreError};

use crate::api_server::InApi;
use crate::daemon::{Daemon, now_ms};
use crate::error::chain;
use crate::{DaemonError, api_server, snapshot};

/// Between two looks at age and use of the keys, and at whether there is a kubelet yet.
const TEND: Duration = Duration::from_secs(60 * 60);
const KUBELET_LOOK: Duration = Duration::from_secs(10);

/// The store, once it could be opened. A file that was repaired is read with the next call.
#[derive(Debug)]
pub(crate) struct Tokens {
    directory: PathBuf,
    store: Mutex<Option<Store>>,
}

impl Tokens {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, store: Mutex::default() }
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A panic ends the process (`panic = "abort"`), so nobody can have left it half changed.
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match store.take() {
            Some(open) => open,
            None => Store::open(&self.directory, now_ms())?,
        };
        let open = store.insert(open);
        let done = work(open);
        // Else one record would grow for a month.
        if open.is_full()
            && let Ok(Some(key)) = open.rotate(now_ms())
        {
            log::info!(key:% = key; "new key for tokens: the record of the last one is large");
        }
        open.news().iter().for_each(tell);
        done
    }

    /// A token for so much memory, given out as `resource`, of devices of `card`.
    pub(crate) fn sign(
        &self,
        memory: Mib,
        resource: String,
        card: Option<String>,
    ) -> Result<String, StoreError> {
        self.with(|store| store.sign(memory.0, Some(resource), card))
    }

    /// Makes a key where the present one is old, and forgets those of which no pod is left. Which pods there are
    /// is told by kubelet's own directory; where that cannot be read, all keys stay. It is asked while no token is
    /// confirmed: else a pod that came in between would be taken for gone.
    fn tend(
        &self,
        pods: impl FnOnce() -> Option<BTreeSet<String>>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        self.with(|store| {
            let pods = pods();
            if let Some(key) = store.rotate(now_ms)? {
                log::info!(key:% = key; "new key for tokens");
            }
            if let Some(pods) = &pods {
                for key in store.retire(|uid| pods.contains(uid), now_ms)? {
                    log::info!(key:% = key; "key for tokens forgotten: no pod is left that used it");
                }
                store.tidy(|uid| pods.contains(uid));
            }
            Ok(())
        })
    }
}

fn tell(news: &News) {
    match news {
        News::Damaged { path, line } => log::error!(
            path:% = path.display(), line;
            "a line of a record of tokens is damaged: tokens that are not in it count no more, pods that wait with one \
             have to be created anew; a copy is kept beside it"
        ),
        News::Closed { key } => log::warn!(
            key:% = key;
            "the records of tokens are too large: tokens of the oldest key that nobody has used count no more"
        ),
        News::Unwritten { error } => log::error!(
            reason = error.as_str(); "a record of tokens cannot be made short; it is tried again"
        ),
        _ => {}
    }
}

/// What nos' resources begin with.
const SLICE: &str = "nvidia.com/gpu-";

/// What kubelet or the API server has confirmed of a container's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirmed {
    /// GPU memory.
    pub(crate) memory: Mib,
    /// Cards over which it is spread, in equal parts: the pod's label, where the API server has told it.
    pub(crate) cards: NonZeroU32,
    /// Its share of each card's compute, where its limits name one.
    pub(crate) compute: Option<ComputeShare>,
    /// The cards that were chosen for it: taken where they serve.
    pub(crate) hints: Vec<GpuUuid>,
    /// It was a scheduler that chose them, and not kubelet's ids.
    pub(crate) placed: bool,
    /// To whom, and as which resource.
    pub(crate) handed: Handed,
}

impl Confirmed {
    /// What one of its resource is worth, of which each card has a whole number. GiB where the name does not say it.
    pub(crate) fn unit(&self) -> Mib {
        schedule::unit_of(&self.handed.resource)
    }
}

/// What a token says: resource, memory, and the card of its devices.
fn read(claims: Claims) -> ((String, Mib), Option<GpuUuid>) {
    // The first tokens do not say it, and were of this one.
    let resource = claims
        .resource
        .unwrap_or_else(|| mpsgate_deviceplugin::Resource::gpu_mem(Unit::GIB).name().to_owned());
    let card = claims.card.and_then(|card| GpuUuid::parse(&card).ok());
    ((resource, Mib(claims.memory_mib)), card)
}

/// What kubelet (a token) and the API server confirm of a request. `None` where nobody does.
pub(crate) async fn confirm(
    daemon: &Arc<Daemon>,
    call: &Reserve,
) -> Result<Result<Option<Confirmed>, Refusal>, DaemonError> {
    if call.engine != Engine::Kubernetes {
        return Ok(Ok(None));
    }
    let token = call.request.token.clone();
    let pod = match (call.pod.clone(), &token) {
        (Some(pod), _) => pod,
        (None, None) => return Ok(Ok(None)),
        (None, Some(_)) => {
            return Ok(Err(Refusal::new(
                Code::Unconfirmed,
                "it brings a token (mpsgate.io/grant), but its engine does not say to which container of which pod it \
             belongs, or its cgroup is another pod's",
                "start it as a pod, through kubelet; mpsgate knows containerd 1.6 and newer, and CRI-O",
            )));
        }
    };
    let claims = match token {
        None => None,
        Some(token) => match claims(daemon, token, &pod).await? {
            Ok(claims) => Some(read(claims)),
            Err(refusal) => return Ok(Err(refusal)),
        },
    };
    let InApi { listed, chosen, cards, core_percentage } = api_server::listed(daemon, &pod).await;
    let cards = match cards.as_deref().map(schedule::gpu_count).transpose() {
        Ok(cards) => cards.unwrap_or(NonZeroU32::MIN),
        Err(refusal) => return Ok(Err(refusal)),
    };
    let (token, card) = claims.unzip();
    let with_token = token.is_some();
    let (resource, memory) = match mpsgate_policy::confirmed(token, &listed) {
        Ok(Some(confirmed)) => confirmed,
        Ok(None) => return Ok(Ok(None)),
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let SlicesUid::Only(uid) = daemon.settings.now().kubernetes.slices_uid
        && resource.starts_with(SLICE)
        && call.uid != uid
    {
        return Ok(Err(Refusal::new(
            Code::Uid,
            format!(
                "its CUDA processes run as uid {}, and {resource} is for uid {uid} alone",
                call.uid
            ),
            format!(
                "set securityContext.runAsUser: {uid} in the pod, or kubernetes.slices_uid = \"any\" in \
                 /etc/mpsgate/config.toml and run: mpsgate reload"
            ),
        )));
    }
    if let Some(refusal) = mpsgate_policy::core_refusal(core_percentage, true) {
        return Ok(Err(refusal));
    }
    log::info!(
        container = call.key.container_id.as_str(), pod:% = pod, memory_mib = memory.0, token = with_token,
        listed = listed != Listed::Unknown; "request confirmed"
    );
    let mut hints: Vec<GpuUuid> = {
        let node = daemon.node();
        let chosen = node.cards.iter().filter(|card| chosen.contains(&card.index));
        chosen.map(|card| card.uuid.clone()).collect()
    };
    let placed = !hints.is_empty();
    if !placed {
        hints.extend(card.flatten());
    }
    let compute = u8::try_from(core_percentage).ok().filter(|share| *share > 0).map(ComputeShare);
    Ok(Ok(Some(Confirmed {
        memory,
        cards,
        compute,
        hints,
        placed,
        handed: Handed { pod, resource },
    })))
}

/// The claims of a token that counts for this container.
async fn claims(
    daemon: &Arc<Daemon>,
    token: String,
    pod: &PodContainer,
) -> Result<Result<Claims, Refusal>, DaemonError> {
    let tokens = Arc::clone(&daemon.tokens);
    let bearer = Bearer { pod: pod.uid.clone(), container: pod.container.clone() };
    let work = move |_: &_| tokens.with(|store| store.confirm(&token, &bearer));
    let confirmed = daemon.blocking("confirm a token", work).await?;
    Ok(confirmed.map_err(|error| refusal(&error)))
}

fn refusal(error: &StoreError) -> Refusal {
    let sentence = match error {
        StoreError::Token(_)
        | StoreError::Bound { .. }
        | StoreError::Spent
        | StoreError::Closed { .. } => {
            format!("its token (mpsgate.io/grant) does not count: {error}")
        }
        _ => format!("its token (mpsgate.io/grant) cannot be checked: {}", chain(error)),
    };
    Refusal::new(Code::Unconfirmed, sentence, error.hint())
}

/// Tends the keys for as long as the process lives, where a kubelet runs.
pub(crate) async fn keep(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    loop {
        if !daemon.node().kubelet {
            tokio::time::sleep(KUBELET_LOOK).await;
            continue;
        }
        let (tokens, pods) = (Arc::clone(&daemon.tokens), snapshot::kubelet_pods(&daemon.places));
        let tend = move |_: &_| tokens.tend(|| living_pods(&pods), now_ms());
        if let Err(error) = daemon.blocking("tend the keys", tend).await? {
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
    use std::os::unix::fs::PermissionsExt;

    use mpsgate_token::{ROTATE_AFTER_MS, UNUSED_AFTER_MS};

    use super::*;

    fn tokens() -> (tempfile::TempDir, Tokens) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let tokens = Tokens::new(dir.path().to_owned());
        (dir, tokens)
    }

    #[test]
    fn keys_are_forgotten_with_their_pods_and_never_without_kubelets_word() {
        let (_dir, tokens) = tokens();
        let token = tokens.with(|store| store.sign(1024, None, None)).unwrap();
        let bearer = Bearer { pod: "p".to_owned(), container: "c".to_owned() };
        let counts = || tokens.with(|store| store.confirm(&token, &bearer)).is_ok();
        assert!(counts());
        let later = now_ms() + 2 * ROTATE_AFTER_MS;
        tokens.tend(|| None, later).unwrap();
        let much_later = later + 2 * UNUSED_AFTER_MS;
        tokens.tend(|| None, much_later).unwrap();
        assert!(counts());
        tokens.tend(|| Some(["p".to_owned()].into()), much_later).unwrap();
        assert!(counts());
        tokens.tend(|| Some(BTreeSet::new()), much_later).unwrap();
        assert!(!counts());
    }

    #[test]
    fn a_record_of_uses_that_is_large_or_damaged_ends_nothing() {
        let (dir, tokens) = tokens();
        let token = tokens.with(|store| store.sign(1024, None, None)).unwrap();
        let bearer = |pod: &str| Bearer { pod: pod.to_owned(), container: "c".to_owned() };
        let confirmed =
            |token: &str, pod: &str| tokens.with(|store| store.confirm(token, &bearer(pod)));
        confirmed(&token, "p").unwrap();
        let is_record = |path: &PathBuf| path.extension().is_some_and(|word| word == "uses");
        let mut files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let path = files.find(is_record).unwrap();
        let mut text = std::fs::read(&path).unwrap();
        text.extend(vec![b'x'; 70 << 20]);
        text.push(b'\n');
        std::fs::write(&path, text).unwrap();
        // As after a restart.
        *tokens.store.lock().unwrap() = None;
        let fresh = tokens.sign(Mib(1024), "aliyun.com/gpu-mem".to_owned(), None).unwrap();
        confirmed(&fresh, "q").unwrap();
        confirmed(&token, "p").unwrap();
        let error = refusal(&confirmed(&token, "q").unwrap_err());
        assert!(error.sentence.contains("does not count"), "{error}");
        assert!(path.metadata().unwrap().len() < 1000, "{:?}", path.metadata());
    }

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

    #[test]
    fn a_store_that_was_repaired_is_read_again() {
        let (dir, tokens) = tokens();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let error = tokens.with(|store| store.sign(1, None, None)).unwrap_err();
        let told = refusal(&error);
        assert_eq!(told.code, Code::Unconfirmed);
        assert!(
            told.sentence.contains("cannot be checked: ") && told.hint.contains("chmod go="),
            "{told}"
        );
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        tokens.with(|store| store.sign(1, None, None)).unwrap();
    }
}
