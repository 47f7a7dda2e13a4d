//! Gathers the facts of the node and the settings for a decision about a document: for the runtime,
//! for Podman's `precreate`, and for the hook where it is alone.

use std::path::{Path, PathBuf};

use mpsgate_config::{Config, ConfigError, paths};
use mpsgate_model::Refusal;
use mpsgate_oci::spec::{Document, Edit, SpecError, View};
use mpsgate_policy::{
    Action, Bytes, Caller, Decision, Facts, Held, Input, MountFact, Node, Reading, Shm, Unclean,
    Unruled, Unsettled, Verdict, decide, decide_rootless, is_nvidia_runtime, settle,
};

use crate::engine_log::{Refused, Report, chain};
use crate::mounts::info::Own;
use crate::{card_mounts, exec, facts, mounts};

/// The node and the settings for one container.
pub(crate) struct Evaluation {
    pub(crate) settings: Config,
    /// Why `settings` are the defaults.
    pub(crate) broken: Option<ConfigError>,
    pub(crate) node: Node,
    pub(crate) kubelet: bool,
    pub(crate) runtime: Option<PathBuf>,
    pub(crate) runtime_is_nvidia: bool,
    mounts: Vec<MountFact>,
    unruled: Unruled,
    shm: Shm,
}

impl Evaluation {
    /// Relative sources of mounts begin at `bundle`. `no_cgroup`: the runtime was called to make no
    /// cgroup.
    pub(crate) fn of(view: View<'_>, bundle: &Path, no_cgroup: bool) -> Self {
        let (settings, broken) = settings();
        let (node, kubelet) = facts::node(&settings);
        let runtime = exec::runtime_path();
        let runtime_is_nvidia = runtime.as_deref().is_some_and(is_nvidia_runtime);
        let unruled = match no_cgroup {
            true => Unruled::NoCgroup,
            false => unruled(runtime.as_deref()),
        };
        // Read after the files that a lease may block, because mounts change meanwhile.
        let own = Own::default();
        let mut mounts = mounts::facts(view, bundle, &own);
        mounts.extend(mounts::info::sysfs_mounts::facts(view, bundle, &node, &own));
        if no_cgroup {
            mounts.extend(card_mounts::of(view, bundle, &node));
        }
        let shm = facts::shm(view, bundle, node.shm);
        Self { settings, broken, node, kubelet, runtime, runtime_is_nvidia, mounts, unruled, shm }
    }

    /// With a node that is known already.
    pub(crate) fn on(node: Node, settings: Config) -> Self {
        let runtime_is_nvidia = is_nvidia_runtime(&settings.runtime.path);
        let unruled = unruled(Some(&settings.runtime.path));
        Self {
            settings,
            broken: None,
            node,
            kubelet: false,
            runtime: None,
            runtime_is_nvidia,
            mounts: Vec::new(),
            unruled,
            shm: Shm::Unknown,
        }
    }

    /// Whether `MPSGATE_…` variables are requests.
    pub(crate) fn env_may_ask(&self) -> bool {
        from_env(&self.settings, self.kubelet)
    }

    pub(crate) fn decide_unclean(&self, unclean: &Unclean) -> Decision {
        mpsgate_policy::decide_unclean(
            unclean,
            &self.node,
            &self.settings.policy,
            self.env_may_ask(),
        )
    }

    /// Makes the edits of a decision, and refuses the document if they leave a card within reach.
    pub(crate) fn settle(
        &self,
        document: &mut Document,
        edits: &[Edit],
        held: Held,
        unreadable: impl FnOnce(&str) -> Refusal,
    ) -> Result<(), Refusal> {
        settle(document, edits, held, &self.node, self.unruled).map_err(|unsettled| match unsettled
        {
            Unsettled::Open(refusal) => refusal,
            Unsettled::Edit(error) => unreadable(&chain(&error)),
        })
    }

    /// Decides. If the decision changes the PID namespace or its procfs, decides again about the
    /// changed document, and whether the kernel will accept the change. Relative sources of mounts
    /// begin at `bundle`.
    pub(crate) fn decide(
        &self,
        document: &Document,
        bundle: &Path,
        caller: Caller,
        action: Action,
    ) -> Decision {
        let decision = self.decide_as_it_is(document.view(), &self.mounts, caller, action);
        let decision = decision.confirmed(document, |edited| {
            // Mounts of a card's files or node are left out: the decision before included those,
            // and the edits add no mount but a fresh procfs.
            let mounts = mounts::facts(edited, bundle, &Own::default());
            self.decide_as_it_is(edited, &mounts, caller, action)
        });
        decision.with_procfs(|| mounts::info::procfs_mounts::may_be_mounted(document.view()))
    }

    fn decide_as_it_is(
        &self,
        view: View<'_>,
        mounts: &[MountFact],
        caller: Caller,
        action: Action,
    ) -> Decision {
        decide(&Input {
            view,
            node: &self.node,
            policy: &self.settings.policy,
            requests_from_env: self.env_may_ask(),
            mounts,
            ipc: facts::ipc(view),
            shm: self.shm.clone(),
            users: facts::users(view),
            pids: facts::pids(view, caller),
            unruled: self.unruled,
            caller,
            action,
            runtime_is_nvidia: self.runtime_is_nvidia,
        })
    }
}

/// The devices that the runtime below leaves open without a rule; no runtime starts nothing.
pub(crate) fn unruled(runtime: Option<&Path>) -> Unruled {
    runtime.map_or(Unruled::Closed, |runtime| {
        Unruled::under(runtime, Path::new("/sys/fs/cgroup/cgroup.controllers").exists())
    })
}

pub(crate) fn settings() -> (Config, Option<ConfigError>) {
    match Config::load(Path::new(paths::CONFIG_FILE)) {
        Ok(settings) => (settings, None),
        Err(error) => (Config::default(), Some(error)),
    }
}

fn from_env(settings: &Config, kubelet: bool) -> bool {
    settings.requests.from_env.is_on(!kubelet)
}

/// Passes a rootless engine's container unchanged, or refuses it.
pub(crate) fn rootless(reading: &Reading) -> Result<(), Refusal> {
    match reading {
        Reading::Nothing => Ok(()),
        Reading::Clean(document) => {
            decide_rootless(document.view(), from_env(&settings().0, false))
        }
        Reading::Unclean(unclean) => unclean.asked(from_env(&settings().0, false)),
    }
}

/// Reads a document. For nearly every container this is all: it has no request and shows no signal.
/// No tree is built for that; building one would take as long as the rest of a pass-through.
/// Relative sources of mounts begin at `bundle`. `no_cgroup`: the runtime was called to make no
/// cgroup, so that nodes without a rule are open.
pub(crate) fn read(bytes: Bytes<'_>, bundle: &Path, no_cgroup: bool) -> Result<Reading, SpecError> {
    // Engines deny every device first. Without that rule the runtime decides.
    let is_unruled = || unruled(exec::runtime_path().as_deref()) != Unruled::Closed;
    mpsgate_policy::read(bytes, &facts::toolkit_names(), |glimpse| Facts {
        mounts: mounts::seen(glimpse.binds(), bundle),
        is_open: no_cgroup || (!glimpse.denies_all() && is_unruled()),
    })
}

/// Whether a container starts with a document that runtimes read differently.
pub(crate) fn may_start(unclean: &Unclean, report: &Report) -> Result<(), Refused> {
    let decision = decide_unclean(unclean);
    decision.notes.iter().for_each(|note| report.noted(note, None));
    match decision.verdict {
        Verdict::Refuse(refusal) => Err(refusal.into()),
        _ => Ok(()),
    }
}

/// The decision about a document that runtimes read differently.
pub(crate) fn decide_unclean(unclean: &Unclean) -> Decision {
    let settings = settings().0;
    let (node, kubelet) = facts::node(&settings);
    Evaluation { kubelet, ..Evaluation::on(node, settings) }.decide_unclean(unclean)
}
