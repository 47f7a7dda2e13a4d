//! `create`, `run` and `restore`: the lifecycle of a container up to the real runtime.

use std::mem::ManuallyDrop;

use mpsgate_config::runs_as_root;
use mpsgate_host::crash_point;
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::argv::{Invocation, Verb};
use mpsgate_oci::spec::View;
use mpsgate_policy::{
    Action, Caller, Decision, Note, NoteAction, Reading, Verdict, only_looks_again,
};

use crate::ask_grant::{Starting, obtain};
use crate::engine_log::{Refused, Report};
use crate::evaluate::{Evaluation, may_start, rootless};
use crate::marks::has_grant;
use crate::oci_bundle::Bundle;
use crate::{descriptors, facts};

/// Decides about the container and prepares its bundle for the real runtime.
pub(crate) fn prepare(invocation: &Invocation) -> Result<(), Refused> {
    descriptors::ensure_standard_descriptors();
    let mut bundle = Bundle::load(&Bundle::path_of(invocation))?;
    let directory = Bundle::directory_of(invocation);
    let read = bundle.read(&directory, invocation.no_cgroup);
    if !runs_as_root() {
        // The runtime evaluates what mpsgate cannot read.
        return Ok(read.as_ref().map_or(Ok(()), rootless)?);
    }
    let document = match read? {
        Reading::Nothing => return Ok(()),
        Reading::Clean(document) => document,
        Reading::Unclean(unclean) => return may_start(&unclean, &Report::of(invocation)),
    };
    // Its memory goes with this image; freeing it piece by piece takes as long as writing it.
    let mut document = ManuallyDrop::new(document);
    let view = document.view();
    let id = invocation.container_id.as_deref().unwrap_or_default().to_string_lossy();
    // Podman's `precreate` hook has already decided about this document.
    if has_grant(view, &id, true) {
        return Ok(());
    }
    let evaluation = Evaluation::of(view, &directory, invocation.no_cgroup);
    let caller = facts::caller(invocation, &evaluation.settings.trust, evaluation.kubelet);
    let action = if invocation.verb == Verb::Restore { Action::Restore } else { Action::Create };
    let Decision { verdict, notes, held, .. } =
        evaluation.decide(&document, &directory, caller, action);
    let report = Report::of(invocation);
    tell(&report, &notes, caller, view);
    match verdict {
        Verdict::Pass => Ok(()),
        Verdict::Refuse(refusal) => {
            Err(Refused { refusal, by_daemon: false, pod: caller.pod(view).map(Box::new) })
        }
        Verdict::Edit(edits) => {
            evaluation.settle(&mut document, &edits, held, |why| bundle.unreadable(why))?;
            match bundle.store(&document) {
                // The container itself is in order: a failed write does not stop it.
                Err(Refusal { sentence, .. }) if only_looks_again(&edits) => {
                    report.warned(&format!("is not looked at again when it is made: {sentence}"));
                    Ok(())
                }
                done => Ok(done?),
            }
        }
        Verdict::Reserve(wanted) => {
            let starting = Starting {
                container: &id,
                runtime_root: facts::runtime_root(invocation, evaluation.runtime.as_deref()),
                caller,
                for_parent: false,
            };
            let edits = obtain(starting, &evaluation, view, &wanted)?;
            evaluation.settle(&mut document, &edits, held, |why| bundle.unreadable(why))?;
            bundle.store(&document)?;
            crash_point!("shim.edited");
            Ok(())
        }
    }
}

/// Reports what was found to the operator, and to a pod's author what he can change although the
/// container starts.
fn tell(report: &Report, notes: &[Note], caller: Caller, view: View<'_>) {
    for note in notes {
        let is_authors = matches!(note.code, Code::Shm | Code::HostPid);
        let pod = is_authors.then(|| caller.pod(view)).flatten();
        report.noted(note, pod);
    }
    if let Some(name) = caller.foreign_annotation(view) {
        let text = format!("its annotation {name} is not of the engine that calls, and is ignored");
        report.noted(&Note { action: NoteAction::Noted, code: Code::Annotation, text }, None);
    }
}
