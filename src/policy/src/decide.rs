//! The table: a spec, the node and the settings in, a verdict out.

use std::collections::HashSet;
use std::mem::take;

use mpsgate_config::{Policy, Privileged, Schedule, Unallocated, VisibleDevices};
use mpsgate_model::{
    Author, Code, ComputeShare, Mib, Refusal, Request, RequestError, TOKEN_ANNOTATION,
    parse_request, printable,
};
use mpsgate_oci::spec::{DeviceRule, Edit, View, capability};

use crate::decision::{Decision, Held, Verdict, Wanted};
use crate::exempt::exempt_as;
use crate::found::{Few, Findings, Note, NoteAction, Signal, one_of_each};
use crate::input::{Action, Input};
use crate::node_facts::{NVIDIA_MAJOR, Node};
use crate::reach::{is_card, is_privileged, nodes_away};
use crate::{
    Caller, claim_env, container_uid, ipc, mount_rules, notes, processes, reach, refusal_texts,
    schedule, signals, sysctls, toolkit,
};

/// Decides about one container.
#[must_use]
pub fn decide(input: &Input<'_>) -> Decision {
    let mut signals =
        signals::find(input.view, input.node, input.mounts, input.runtime_is_nvidia, input.unruled);
    let mut notes = notes::of(input);
    let verdict = match request(input.view, input.caller, input.requests_from_env, input.node) {
        Err(refusal) => Verdict::Refuse(refusal),
        Ok(Some(request)) => {
            notes.extend(notes::late_hooks(input.view));
            signals.extend(signals::without_cgroup(input, true));
            signals.extend(signals::delegated(input.view));
            with_request(input, request, &mut signals, &mut notes)
        }
        Ok(None) => {
            notes.extend(notes::not_its_own(input));
            signals.extend(signals::without_cgroup(input, false));
            without_request(input, &mut signals, &mut notes)
        }
    };
    let held = Held::of(input, &verdict);
    Decision { verdict, signals, notes: one_of_each(notes), held }
}

/// Decides about a container of an engine that is not root's: such an engine gives its containers
/// nothing that its user has not himself, so there is nothing to take away, and mpsgated answers
/// root alone.
///
/// # Errors
/// A refusal for a request.
pub fn decide_rootless(view: View<'_>, requests_from_env: bool) -> Result<(), Refusal> {
    match request(view, Caller::Unknown, requests_from_env, &Node::unknown())? {
        None => Ok(()),
        Some(_) => Err(Refusal::new(
            Code::Rootless,
            "it asks for GPU memory through a rootless engine, and mpsgated grants it to root's engines alone",
            "run it with the rootful engine (sudo podman run, sudo docker run), or remove the request",
        )),
    }
}

/// Whether a container asks for GPU memory, however badly.
#[must_use]
pub fn asks(view: View<'_>, caller: Caller, from_env: bool, node: &Node) -> bool {
    !matches!(request(view, caller, from_env, node), Ok(None))
}

fn request(
    view: View<'_>,
    caller: Caller,
    from_env: bool,
    node: &Node,
) -> Result<Option<Request>, Refusal> {
    if caller.is_sandbox(view) {
        return Ok(None);
    }
    // Kubelet gives every container that has devices of ours a token. A pod's annotations reach its
    // other containers as well, and whatever else is in them is its author's wish.
    let claim = claim_env::token(view)?;
    let has_token = view.annotation(TOKEN_ANNOTATION).is_some() || claim.is_some();
    if node.device_plugin && caller.is_kubernetes() && !has_token {
        return Ok(None);
    }
    let env = view.env().filter(|_| from_env);
    let author = if caller.is_kubernetes() { Author::Pod } else { Author::Operator };
    let claim = claim.map(|token| (TOKEN_ANNOTATION, token));
    parse_request(author, view.annotations().chain(claim), env).map_err(|error| match error {
        // How they would be spread matters to nobody where there is one.
        RequestError::Indivisible { cards, .. } | RequestError::NamedCard { cards, .. }
            if node.schedule == Schedule::Mps =>
        {
            schedule::several_cards(cards)
        }
        error => {
            let sentence = format!("its request for GPU memory cannot be read: {error}");
            Refusal::new(Code::Request, sentence, error.hint())
        }
    })
}

fn with_request(
    input: &Input<'_>,
    request: Request,
    signals: &mut [Signal],
    notes: &mut Vec<Note>,
) -> Verdict {
    let view = input.view;
    if input.action == Action::Restore {
        return Verdict::Refuse(Refusal::new(
            Code::Restore,
            "it asks for GPU memory but is restored from a checkpoint, whose environment cannot be changed",
            "create the container anew instead of restoring it",
        ));
    }
    if is_privileged(view) {
        return Verdict::Refuse(refusal_texts::privileged());
    }
    let pids = processes::namespace(&input.pids, input.policy.host_pid);
    let procfs = processes::mounted(input);
    let shared = ipc::evaluate(input);
    if let Ok(Some(note)) = &shared {
        notes.push(note.clone());
    }
    let refused = (procfs.as_ref().and_then(|found| found.as_ref().err()).cloned())
        .or_else(|| capability_refusal(input))
        .or_else(|| sysctls::refuses_request(input))
        .or_else(|| pids.as_ref()?.as_ref().err().cloned())
        .or_else(|| schedule::refuses(input.node.schedule, &request, request.cards))
        .or_else(|| shared.err())
        .or_else(|| mount_rules::refuses_request(input));
    if let Some(refusal) = refused {
        return Verdict::Refuse(refusal);
    }
    let unremovable = signals.iter().find(|s| !s.removable || s.code == Code::Annotation);
    if let Some(signal) = unremovable {
        return Verdict::Refuse(refusal_of(signal, true, ask(input)));
    }
    let inside = request.uid.unwrap_or_else(|| view.uid());
    let uid = match container_uid::host_uid(view, &input.users, inside) {
        Ok(uid) => uid,
        Err(refusal) => return Verdict::Refuse(refusal),
    };
    let mut edits: Vec<Edit> = signals.iter_mut().flat_map(|s| take(&mut s.remove)).collect();
    edits.extend(only_granted(view));
    edits.extend(processes::edits(input));
    notes.extend([pids, procfs].into_iter().flatten().filter_map(Result::ok));
    Verdict::Reserve(Box::new(Wanted {
        own_limit: own_limit(view),
        own_share: own_share(view),
        claim_variables: claim_env::variables(view),
        request,
        uid,
        edits,
    }))
}

/// Takes every card node away, managed or not: a granted container gets its own card and no other.
fn only_granted(view: View<'_>) -> Vec<Edit> {
    let others = view.devices().filter(|d| d.is_character() && is_card(d.major, d.minor));
    let mut edits = nodes_away(others);
    if view
        .device_rules()
        .any(|r| r.allow && r.major == Some(NVIDIA_MAJOR) && r.covers(NVIDIA_MAJOR, None))
    {
        edits.push(Edit::RemoveRules { major: NVIDIA_MAJOR, minor: None });
    }
    edits
}

fn capability_refusal(input: &Input<'_>) -> Option<Refusal> {
    let view = input.view;
    // In a user namespace in which nobody is the host's root, none of them reaches the host.
    if !container_uid::may_be_root(view, &input.users) {
        return None;
    }
    let unknown = view.capabilities().find(|text| capability(text).is_none());
    refusal_texts::capability(|name| view.may_gain(name), unknown, processes::sees_others(input))
}

fn without_request(input: &Input<'_>, signals: &mut [Signal], notes: &mut Vec<Note>) -> Verdict {
    let view = input.view;
    if input.node.manages_nothing() {
        return Verdict::Pass;
    }
    if let Some(who) = exempt_as(input.policy, input.caller, view) {
        notes.extend(signals.iter().map(|signal| {
            let text = format!("{}; let through by policy.exempt ({who})", signal.text());
            Note::new(NoteAction::Warned, signal.code, text)
        }));
        return Verdict::Pass;
    }
    let mut found = Findings::default();
    for signal in &mut *signals {
        let code = signal.code;
        if strips(input.policy, code) && signal.removable {
            let text = format!("{}; taken away", signal.text());
            found.extend([Findings::stripped(code, text, take(&mut signal.remove))]);
        } else if input.policy.unallocated == Unallocated::Warn {
            found.extend([Findings::warned(code, &signal.text())]);
        } else {
            return Verdict::Refuse(refusal_of(signal, false, ask(input)));
        }
    }
    found.extend(privileged(input));
    found.extend(old_image(input, signals));
    found.extend(mps_variables(view));
    match mount_rules::without_request(input) {
        Ok(looked) => found.extend([looked]),
        Err(refusal) => return Verdict::Refuse(refusal),
    }
    found.notes.extend(sysctls::note(input));
    let Findings { edits, notes: said } = found.in_order();
    notes.extend(said);
    if edits.is_empty() { Verdict::Pass } else { Verdict::Edit(edits) }
}

/// Never refused, as nobody asked for it; with "warn" it is let through with the rest.
fn old_image(input: &Input<'_>, signals: &[Signal]) -> Option<Findings> {
    let (view, code) = (input.view, Code::VisibleDevices);
    if !toolkit::is_legacy_image(view)
        || !(input.runtime_is_nvidia || toolkit::has_nvidia_hook(view))
    {
        return None;
    }
    let found = "its image is from before NVIDIA_REQUIRE_CUDA and would get every GPU";
    if input.policy.unallocated != Unallocated::Warn || strips(input.policy, code) {
        let text = format!("{found}; NVIDIA_VISIBLE_DEVICES=void is set");
        let void = vec![toolkit::set(toolkit::VISIBLE, "void")];
        return Some(Findings::stripped(code, text, void));
    }
    let is_said = signals.iter().any(|signal| signal.code == Code::NvidiaHook);
    (!is_said).then(|| Findings::warned(code, found))
}

/// Variables of CUDA MPS, which mean something else without a grant.
fn mps_variables(view: View<'_>) -> Option<Findings> {
    let (mut found, mut names) = (Few::default(), HashSet::new());
    for (name, _) in view.env().filter(|(name, _)| name.starts_with("CUDA_MPS_")) {
        if names.insert(name) {
            found.add(|| printable::value(name).into_owned());
        }
    }
    let text = format!("{} without a grant; taken away", found.text()?);
    // In the order of the text, so that the same document gives the same edit.
    let drop = view.env().map(|(name, _)| name).filter(|name| names.remove(name));
    let drop = Edit::Env { drop: drop.map(str::to_owned).collect(), set: Vec::new() };
    Some(Findings::stripped(Code::MpsVariables, text, vec![drop]))
}

/// Whether the settings have it taken away rather than refused.
fn strips(policy: &Policy, code: Code) -> bool {
    policy.unallocated == Unallocated::Strip
        || (matches!(code, Code::VisibleDevices | Code::NvidiaHook)
            && policy.visible_devices == VisibleDevices::Strip)
}

/// A privileged container is never refused for being privileged: node agents are.
fn privileged(input: &Input<'_>) -> Vec<Findings> {
    let (node, view) = (input.node, input.view);
    let mut found = Vec::new();
    if !is_privileged(view) {
        return found;
    }
    let nodes = nodes_away(view.devices().filter(|device| reach::managed(node, device).is_some()));
    if !nodes.is_empty() {
        let text = "it is privileged; the nodes of managed GPUs are taken away";
        found.push(Findings::stripped(Code::Privileged, text, nodes));
    }
    if input.policy.privileged == Privileged::Close {
        let text = "it is privileged; every device but the GPUs stays open";
        let except = node.closed_majors();
        // Rules beside it, as CDI adds one for each device, would open what is not among the
        // others.
        let explicit = except.iter().filter(|major| {
            let of_major = |rule: DeviceRule<'_>| rule.allow && rule.major == Some(**major);
            view.device_rules().any(of_major)
        });
        let explicit = explicit.map(|major| Edit::RemoveRules { major: *major, minor: None });
        let mut edits: Vec<Edit> = explicit.collect();
        if input.unruled.is_open(view) {
            edits.push(Edit::OpenAllBut { except: except.clone() });
        }
        edits.push(Edit::CloseAllowAll { except });
        found.push(Findings::stripped(Code::Privileged, text, edits));
    }
    found
}

/// How a container of a pod asks.
pub const ASK_LIMITS: &str =
    "ask for GPU memory in the container's resources.limits (aliyun.com/gpu-mem: 7, in GiB)";

/// How such a container asks.
fn ask(input: &Input<'_>) -> &'static str {
    if input.caller.is_kubernetes() && input.node.device_plugin {
        ASK_LIMITS
    } else {
        "ask for GPU memory with the annotation aliyun.com/gpu-mem: 7 (GiB; docker run -e MPSGATE_GPU_MEM=7Gi)"
    }
}

/// The refusal that a signal is.
#[must_use]
pub fn refusal_of(signal: &Signal, with_request: bool, ask: &str) -> Refusal {
    let sentence = match signal.code {
        Code::MpsMount | Code::Annotation => signal.found().to_owned(),
        _ => format!("{}, but no GPU memory was granted to it", signal.found()),
    };
    let hint = match signal.code {
        Code::VisibleDevices | Code::NvidiaHook => format!(
            "{ask}, or set NVIDIA_VISIBLE_DEVICES=void; on a node where CPU jobs use CUDA images, set \
             policy.visible_devices = \"strip\" in /etc/mpsgate/config.toml"
        ),
        Code::MpsMount => {
            "remove the mount: a container with a grant gets its MPS directory by itself".to_owned()
        }
        Code::Annotation => "remove the annotation".to_owned(),
        // Nothing takes it away that no device cgroup keeps a GPU shut.
        Code::DeviceRule if !signal.removable => {
            "run it with a cgroup of its own (podman run without --cgroups=disabled)".to_owned()
        }
        Code::DeviceRule => format!(
            "{ask}, or name only the devices that it needs (docker run --device-cgroup-rule)"
        ),
        Code::MigCaps | Code::ImexChannel => {
            format!("remove it; {ask}")
        }
        _ => format!("{ask}, or remove it"),
    };
    let sentence = if with_request { signal.found().to_owned() } else { sentence };
    Refusal::new(signal.code, sentence, hint)
}

/// The container's own limit of device 0 as a number; anything else in the text is dropped: an
/// entry for a GPU that the process cannot see makes CUDA drop every limit (measured by NVIDIA's
/// Dynamo project, driver 615.71).
fn own_limit(view: View<'_>) -> Option<Mib> {
    let text = view.env_value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")?;
    let value = text.split(',').find_map(|entry| entry.trim().strip_prefix("0="))?;
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok().filter(|n| *n > 0)?;
    match value.get(digits.len()..)? {
        "M" | "MB" => Some(Mib(number)),
        "G" | "GB" => number.checked_mul(1024).map(Mib),
        _ => None,
    }
}

fn own_share(view: View<'_>) -> Option<ComputeShare> {
    let share: u8 = view.env_value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")?.parse().ok()?;
    (1..=100).contains(&share).then_some(ComputeShare(share))
}
