//! What becomes an event of Kubernetes: each is handed to the recorder, where there is one.

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_kubernetes::{Event, Pods, Reason, Recorder, Severity, Subject};
use mpsgate_model::{Code, GpuUuid, PodContainer, Refusal};
use mpsgate_node::sharing::Event as Change;
use mpsgate_node::{Node, Why};

/// A container of a pod was not let in.
pub(crate) fn refused(
    recorder: Option<&Recorder>,
    pod: PodContainer,
    code: &str,
    sentence: &str,
    hint: Option<&str>,
) {
    let reason = match Code::parse(code) {
        Some(code) if is_bypass(code) => Reason::GpuBypassAttempt,
        _ => Reason::GpuMemoryRefused,
    };
    let hint = hint.map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    of_container(recorder, pod, reason, &format!("{sentence} [{code}]{hint}"));
}

/// A container of a pod was let in, and its author should know something.
pub(crate) fn warned(recorder: Option<&Recorder>, pod: PodContainer, code: &str, sentence: &str) {
    of_container(recorder, pod, Reason::GpuMemoryWarned, &format!("{sentence} [{code}]"));
}

/// What was done to a container of a pod, or what it lost.
pub(crate) fn acted(recorder: Option<&Recorder>, pod: PodContainer, why: Why, sentence: &str) {
    let reason = match why {
        Why::Watchdog => Reason::GpuWatchdog,
        Why::MpsFault => Reason::MpsFault,
    };
    of_container(recorder, pod, reason, sentence);
}

fn of_container(recorder: Option<&Recorder>, pod: PodContainer, reason: Reason, what: &str) {
    let Some(recorder) = recorder else { return };
    let PodContainer { uid, namespace, pod, container } = pod;
    let subject = Subject::Pod { namespace, name: pod, uid };
    let message = format!("container {container}: {what}");
    recorder.report(Event { subject, reason, severity: Severity::Warning, message });
}

/// The sentence of a refusal, with what to do.
fn sentence(refusal: &Refusal) -> String {
    format!("{}; hint: {}", refusal.sentence, refusal.hint)
}

/// Whether a container was not let in because it would have reached a GPU past mpsgate.
fn is_bypass(code: Code) -> bool {
    matches!(
        code,
        Code::VisibleDevices
            | Code::NvidiaHook
            | Code::DeviceNode
            | Code::DeviceRule
            | Code::VolumeDevices
            | Code::CdiAnnotation
            | Code::SwarmResource
            | Code::MigCaps
            | Code::ImexChannel
            | Code::MpsMount
            | Code::Annotation
            | Code::DeviceOpen
    )
}

/// Managed cards that take grants no more, or again; `seen` is how it stood with them last.
pub(crate) fn health(
    recorder: &Recorder,
    node: &Node,
    seen: &mut BTreeMap<GpuUuid, Option<String>>,
) {
    for card in node.cards().iter().filter(|card| card.is_managed()) {
        let trouble = node.trouble(card);
        let known = seen.insert(card.uuid.clone(), trouble.clone());
        let (reason, severity, what) = match (known, trouble) {
            // What is so from the start is the node's condition.
            (None, _) => continue,
            (Some(before), now) if before.is_some() == now.is_some() => continue,
            (Some(_), Some(why)) => (Reason::MpsFault, Severity::Warning, why),
            (Some(_), None) => {
                (Reason::MpsRecovered, Severity::Normal, "takes GPU memory requests".to_owned())
            }
        };
        let message = format!("{} {what}", card.label());
        recorder.report(Event { subject: Subject::Node, reason, severity, message });
    }
    seen.retain(|uuid, _| node.card(uuid).is_some_and(|card| card.is_managed()));
}

/// Pods that kubelet failed for good because it had no devices for them, as after a reboot; `told`
/// are those of before.
pub(crate) fn lost(recorder: &Recorder, pods: &Pods, told: &mut BTreeSet<String>) {
    told.retain(|uid| pods.get(uid).is_some());
    for pod in pods.iter().filter(|pod| pod.is_lost()) {
        if !told.insert(pod.uid.clone()) {
            continue;
        }
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        let message = format!(
            "kubelet had no GPU memory to give when it admitted this pod, as after a reboot, and does not try again. A Deployment, \
             StatefulSet or Job makes another; one that nothing made has to be made again: kubectl delete pod -n {namespace} {name}"
        );
        log::warn!(pod = format!("{namespace}/{name}").as_str(); "kubelet had no devices for a pod, and failed it for good");
        let subject = Subject::Pod { namespace, name, uid: pod.uid.clone() };
        let reason = Reason::GpuPodNotAdmitted;
        recorder.report(Event { subject, reason, severity: Severity::Warning, message });
    }
}

/// What becomes of the node's schedule, where somebody has to know or to drain.
pub(crate) fn schedule(recorder: Option<&Recorder>, change: &Change) {
    use Change::{Stuck, Switched, Waits, Yields};
    let Some(recorder) = recorder else { return };
    let deferred = |message| (Reason::GpuModeSwitchDeferred, Severity::Warning, message);
    let (reason, severity, message) = match change {
        Waits { refusal, .. } | Stuck { refusal, .. } => deferred(sentence(refusal)),
        Yields { containers } if !containers.is_empty() => deferred(format!(
            "the cards are another system's once these containers have ended: {}; drain the node",
            containers.join(", ")
        )),
        Switched { from, to, .. } => {
            let message = format!("the cards' schedule is {to}, it was {from}");
            (Reason::GpuModeSwitched, Severity::Normal, message)
        }
        _ => return,
    };
    recorder.report(Event { subject: Subject::Node, reason, severity, message });
}
