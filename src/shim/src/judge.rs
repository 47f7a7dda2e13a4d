//! What a decision about a document needs of the node and of the settings, gathered for it: by the
//! runtime, by Podman's `precreate`, and by the hook where it is alone.

use std::path::{Path, PathBuf};

use mpsgate_config::{Config, ConfigError, paths};
use mpsgate_oci::spec::{self, Document, Mount, Seen, View};
use mpsgate_policy::{
    Action, Caller, Decision, Input, MountFact, Node, Refusal, decide, decide_rootless,
    is_nvidia_runtime, may_matter,
};

use crate::bundle::Bundle;
use crate::report::chain;
use crate::{exec, facts};

/// The node and the settings as one container meets them.
pub(crate) struct Judge {
    pub(crate) settings: Config,
    /// Why `settings` are the defaults.
    pub(crate) broken: Option<ConfigError>,
    pub(crate) node: Node,
    pub(crate) kubelet: bool,
    pub(crate) runtime: Option<PathBuf>,
    pub(crate) runtime_is_nvidia: bool,
    mounts: Vec<MountFact>,
}

impl Judge {
    pub(crate) fn of(view: View<'_>) -> Self {
        let mounts = facts::mounts(view.mounts());
        let (settings, broken) = settings();
        let (node, kubelet) = facts::node(&settings);
        let runtime = exec::runtime_path();
        let runtime_is_nvidia = runtime.as_deref().is_some_and(is_nvidia_runtime);
        Self { settings, broken, node, kubelet, runtime, runtime_is_nvidia, mounts }
    }

    /// Whether `MPSGATE_…` variables are requests.
    pub(crate) fn env_may_ask(&self) -> bool {
        from_env(&self.settings, self.kubelet)
    }

    pub(crate) fn decide(&self, view: View<'_>, caller: Caller, action: Action) -> Decision {
        decide(&Input {
            view,
            node: &self.node,
            policy: &self.settings.policy,
            requests_from_env: self.env_may_ask(),
            mounts: &self.mounts,
            ipc: facts::ipc(view),
            users: facts::users(view),
            host_pids: facts::host_pids(view),
            caller,
            action,
            runtime_is_nvidia: self.runtime_is_nvidia,
        })
    }
}

fn settings() -> (Config, Option<ConfigError>) {
    match Config::load(Path::new(paths::CONFIG_FILE)) {
        Ok(settings) => (settings, None),
        Err(error) => (Config::default(), Some(error)),
    }
}

fn from_env(settings: &Config, kubelet: bool) -> bool {
    settings.requests.from_env.is_on(!kubelet)
}

/// A rootless engine's container: as it is, or refused.
pub(crate) fn rootless(bytes: Option<&[u8]>) -> Result<(), Refusal> {
    // What cannot be read is the runtime's to judge.
    match bytes.map(spec::parse) {
        Some(Ok(document)) => decide_rootless(document.view(), from_env(&settings().0, false)),
        _ => Ok(()),
    }
}

/// Whether a document asks for nothing of ours and shows no signal, which is the case of nearly every
/// container. Builds no tree: that alone would take as long as all the rest of a pass-through.
pub(crate) fn is_none_of_ours(bytes: &[u8]) -> bool {
    let mut matters = false;
    let mut binds = Vec::new();
    let read = spec::glance(bytes, |seen| {
        matters |= may_matter(&seen);
        if let Seen::Mount(mount) = seen
            && mount.is_bind
        {
            binds.push((mount.source.to_owned(), mount.destination.to_owned()));
        }
    });
    let mounts =
        binds.iter().map(|(source, destination)| Mount { source, destination, is_bind: true });
    read.is_ok() && !matters && facts::mounts(mounts).is_empty()
}

/// The document; `None` where it cannot be parsed but names nothing of ours: the runtime shall judge it.
pub(crate) fn readable(bundle: &Bundle) -> Result<Option<Document>, Refusal> {
    let why = match &bundle.bytes {
        None => bundle.too_large(),
        Some(bytes) => match spec::parse(bytes) {
            Ok(document) => return Ok(Some(document)),
            Err(error) if error.is_hopeless() => return Err(bundle.unreadable(&chain(&error))),
            Err(error) => chain(&error),
        },
    };
    match bundle.mentions_gpus() {
        Ok(false) => Ok(None),
        Ok(true) => Err(bundle.unreadable(&why)),
        Err(error) => Err(bundle.unreadable(&format!("{why}, and {error}"))),
    }
}
