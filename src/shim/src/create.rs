//! `create`, `run` and `restore`: the life of a container up to the real runtime.

use std::mem::ManuallyDrop;

use mpsgate_config::{paths, runs_as_root};
use mpsgate_crashpoint::crash_point;
use mpsgate_oci::argv::{Invocation, Verb};
use mpsgate_oci::spec::{Document, Edit, View};
use mpsgate_policy::{Action, Code, Note, NoteAction, Refusal, Verdict};

use crate::bundle::Bundle;
use crate::grant::{Life, obtain};
use crate::hook::BY_PRECREATE;
use crate::judge::{Judge, is_none_of_ours, readable, rootless};
use crate::report::{Refused, Report, chain};
use crate::{facts, process};

/// Decides about the container and leaves its bundle as the real runtime shall find it.
pub(crate) fn prepare(invocation: &Invocation) -> Result<(), Refused> {
    process::ensure_standard_descriptors();
    let bundle = Bundle::load(&Bundle::path_of(invocation))?;
    if bundle.bytes.as_deref().is_some_and(is_none_of_ours) {
        return Ok(());
    }
    if !runs_as_root() {
        return Ok(rootless(bundle.bytes.as_deref())?);
    }
    let Some(document) = readable(&bundle)? else { return Ok(()) };
    // Its memory goes with this image; to give it back piece by piece takes as long as to write it.
    let mut document = ManuallyDrop::new(document);
    let view = document.view();
    if is_decided(view) {
        return Ok(());
    }
    let judge = Judge::of(view);
    let caller = facts::caller(invocation, &judge.settings.trust, judge.kubelet);
    let action = if invocation.verb == Verb::Restore { Action::Restore } else { Action::Create };
    let decision = judge.decide(view, caller, action);
    let report = Report::of(invocation);
    decision.notes.iter().for_each(|note| report.noted(note));
    if let Some(name) = caller.foreign_annotation(view) {
        let text = format!("its annotation {name} is not of the engine that calls, and is ignored");
        report.noted(&Note { action: NoteAction::Noted, code: Code::Annotation, text });
    }
    match decision.verdict {
        Verdict::Pass => Ok(()),
        Verdict::Refuse(refusal) => {
            Err(Refused { refusal, by_daemon: false, pod: caller.pod(view).map(Box::new) })
        }
        Verdict::Edit(edits) => Ok(edit(&bundle, &mut document, &edits)?),
        Verdict::Reserve(wanted) => {
            let id = invocation.container_id.as_deref().unwrap_or_default().to_string_lossy();
            let life = Life {
                container: &id,
                runtime_root: facts::runtime_root(invocation, judge.runtime.as_deref()),
                caller,
                for_parent: false,
            };
            let edits = obtain(life, &judge, view, &wanted)?;
            edit(&bundle, &mut document, &edits)?;
            crash_point!("shim.edited");
            Ok(())
        }
    }
}

/// Whether Podman's `precreate` hook has decided about this document a moment ago. Hooks are the engine's:
/// no container brings its own, and Podman makes its document anew for each life.
fn is_decided(view: View<'_>) -> bool {
    view.hooks().any(|hook| hook.path == paths::HOOK && hook.has_argument(BY_PRECREATE))
}

fn edit(bundle: &Bundle, document: &mut Document, edits: &[Edit]) -> Result<(), Refusal> {
    document.apply(edits).map_err(|error| bundle.unreadable(&chain(&error)))?;
    bundle.store(document)
}
