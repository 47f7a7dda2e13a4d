//! `mpsgate-hook createRuntime` without a grant: for an engine that runs only the hook, or runs it
//! for every container besides the runtime. It evaluates the bundle and the container that was
//! made, and can only veto.
//!
//! ```text
//! none of ours ──────────────► 0        request ──────────────► E_HOOK_ONLY
//! granted by the runtime ────► 0        a way to a card ──────► its own refusal
//! anything else: can it open a managed card? ──► E_DEVICE_OPEN │ 0
//! ```
//! A failed look stops no container: only what was seen leads to a veto.

use std::path::{Path, PathBuf};

use mpsgate_config::{Unallocated, runs_as_root};
use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::hook_state::HookState;
use mpsgate_policy::{Action, Caller, Reading, Verdict, asks, exempt_as, is_privileged};

use super::{cgroup_root, check_proc, device_proof, mount_checks, veto};
use crate::ask_grant::managed_nodes;
use crate::evaluate::{Evaluation, decide_unclean, rootless};
use crate::marks::has_grant;
use crate::oci_bundle::Bundle;

/// Evaluates the container of this state.
pub(super) fn check(state: &HookState) -> Result<(), Refusal> {
    let (directory, mut bundle) = match load(state) {
        Ok(found) => found,
        Err(refusal) => {
            veto::say(&format!(
                "mpsgate: container {:?} is not evaluated: {}",
                state.id,
                printable::line(&refusal.sentence)
            ));
            return Ok(());
        }
    };
    let read = bundle.read(&directory, false);
    if !runs_as_root() {
        return read.as_ref().map_or(Ok(()), rootless);
    }
    let document = match read? {
        Reading::Nothing => return Ok(()),
        Reading::Clean(document) => document,
        Reading::Unclean(unclean) => {
            return match decide_unclean(&unclean).verdict {
                Verdict::Refuse(refusal) => Err(refusal),
                _ => Ok(()),
            };
        }
    };
    let view = document.view();
    // The runtime, or Podman's `precreate`, has decided, and its own hook checks.
    if has_grant(view, &state.id, false) {
        return Ok(());
    }
    let evaluation = Evaluation::of(view, &directory, false);
    let roots = &evaluation.settings.trust.kubernetes_roots;
    let caller = Caller::of(None, &directory, roots, evaluation.kubelet);
    if asks(view, caller, evaluation.env_may_ask(), &evaluation.node) {
        return Err(Refusal::new(
            Code::HookOnly,
            "it asks for GPU memory, but of mpsgate only the hook runs for it, which can check a container \
             and not change it",
            "let the engine use mpsgate-runtime: mpsgate configure containerd|docker|podman|crio --write",
        ));
    }
    match evaluation.decide(&document, &directory, caller, Action::Create).verdict {
        Verdict::Refuse(refusal) => Err(refusal),
        _ if evaluation.settings.policy.unallocated == Unallocated::Warn
            || is_privileged(view)
            || exempt_as(&evaluation.settings.policy, caller, view).is_some() =>
        {
            Ok(())
        }
        _ => closed(state, &evaluation),
    }
}

/// The bundle of the state, or the hook's working directory, as crun before 1.27 names another.
fn load(state: &HookState) -> Result<(PathBuf, Bundle), Refusal> {
    let named = state.bundle.as_deref().unwrap_or_else(|| Path::new("."));
    let load = |directory: &Path| Bundle::load(&directory.join("config.json"));
    let (directory, bundle) = match load(named) {
        Ok(bundle) => (named, bundle),
        Err(refusal) => (Path::new("."), load(Path::new(".")).map_err(|_| refusal)?),
    };
    Ok((std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned()), bundle))
}

/// Checks that no directory of mpsgate is mounted and no managed card opens in the container,
/// whatever its spec: hooks may have run before this one.
fn closed(state: &HookState, evaluation: &Evaluation) -> Result<(), Refusal> {
    let Some(pid) = state.pid.and_then(|pid| u32::try_from(pid).ok()) else { return Ok(()) };
    let checked = check_proc().and_then(|()| mount_checks::check(pid)).and_then(|()| {
        device_proof::check(cgroup_root::of(pid).as_ref(), &[], &managed_nodes(&evaluation.node))
    });
    match checked {
        Err(refusal) if matches!(refusal.code, Code::DeviceOpen | Code::MpsMount) => Err(refusal),
        Err(refusal) => {
            let sentence = printable::line(&refusal.sentence);
            veto::say(&format!("mpsgate: container {:?}: {sentence}", state.id));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
