//! `mpsgate explain`: the decision about a `config.json`, without daemon, GPU or root.
//!
//! The same pure functions read and decide as in the shim. What only the node knows is taken from
//! `--node`; what is missing is assumed to the container's disadvantage, and every assumption is
//! printed.

mod facts;
mod input;
mod report;

use std::path::Path;

use mpsgate_api::NodeSnapshot;
use mpsgate_config::Config;
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::spec::{Document, SpecError, View};
use mpsgate_policy::{
    Action, Bytes, Caller, Decision, Facts, Input, Node, Reading, ToolkitNames, Unruled, Unsettled,
    Users, Verdict, decide, decide_unclean, edits_of_any_grant, is_nvidia_runtime, settle,
};

use crate::args::{ExplainArgs, Output};
use crate::error::InputError;
use crate::{CliError, node_snapshot};
use mpsgate_edge::{ExitCode, print};

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    if let Some(text) =
        args.file.to_str().filter(|text| text.starts_with("E_") || text.starts_with("W_"))
    {
        let code = Code::parse(text).ok_or_else(|| InputError::Code { text: text.to_owned() })?;
        print::answer(&format!("{code}: {}\n", code.meaning()))?;
        return Ok(ExitCode::Done);
    }
    let config = Config::load(&args.config)?;
    let snapshot = args.node.as_deref().map(node_snapshot::load).transpose()?;
    let mut content = input::read(&args.file)?;
    let (decision, mut assumed) =
        explained(content.bytes(), args.file.parent(), snapshot.as_ref(), &config)
            .map_err(|source| InputError::Content { file: args.file.clone(), source })?;
    let kubelet = snapshot.as_ref().is_some_and(|snapshot| snapshot.kubelet);
    if matches!(decision.verdict, Verdict::Reserve(_)) {
        let root = args.runtime_root.as_deref();
        assumed.push(facts::trust(root, &args.file, &config.trust, kubelet).to_owned());
    }
    let refused = matches!(decision.verdict, Verdict::Refuse(_));
    let text = match args.output {
        Output::Text => report::render_text(&decision, &assumed),
        Output::Json => report::render_json(&decision, &assumed)?,
    };
    print::answer(&text)?;
    Ok(if refused { ExitCode::No } else { ExitCode::Done })
}

/// The decision about a document, and what was assumed for it.
pub(crate) fn explained(
    bytes: Bytes<'_>,
    bundle: Option<&Path>,
    snapshot: Option<&NodeSnapshot>,
    config: &Config,
) -> Result<(Decision, Vec<String>), SpecError> {
    let mut assumed = Vec::new();
    let node = facts::node(snapshot, &mut assumed);
    let kubelet = snapshot.is_some_and(|snapshot| snapshot.kubelet);
    let requests_from_env = config.requests.from_env.is_on(!kubelet);
    let unruled = facts::unruled(&config.runtime.path);
    let reading = mpsgate_policy::read(bytes, &ToolkitNames::of(&node), |glimpse| Facts {
        mounts: facts::seen(glimpse.binds(), bundle),
        is_open: !glimpse.denies_all() && unruled != Unruled::Closed,
    })?;
    let decision = match reading {
        Reading::Nothing => Decision::pass(),
        Reading::Unclean(unclean) => {
            decide_unclean(&unclean, &node, &config.policy, requests_from_env)
        }
        Reading::Clean(document) => {
            let view = document.view();
            let as_it_is = |view: View<'_>, assumed: &mut Vec<String>| {
                decide(&Input {
                    view,
                    node: &node,
                    policy: &config.policy,
                    requests_from_env,
                    mounts: &facts::mounts(view, bundle),
                    ipc: facts::ipc(view, &node, assumed),
                    shm: facts::shm(view, &node, bundle),
                    users: Users::OfSpec,
                    pids: facts::pids(view, assumed),
                    unruled,
                    caller: Caller::Unknown,
                    action: Action::Create,
                    runtime_is_nvidia: is_nvidia_runtime(&config.runtime.path),
                })
            };
            // What is assumed of the changed one was said already.
            let mut decision = as_it_is(view, &mut assumed)
                .confirmed(&document, |edited| as_it_is(edited, &mut Vec::new()));
            if view.hooks().any(|hook| hook.path == mpsgate_config::paths::HOOK) {
                assumed
                    .push("mpsgate's hooks in it are of no grant that counts any more".to_owned());
            }
            if let Err(refusal) = settled(*document, &decision, &node, unruled, config) {
                decision.verdict = Verdict::Refuse(refusal);
            }
            decision
        }
    };
    Ok((decision, assumed))
}

/// Makes the edits as the shim does; of a grant's those that are the same for every card.
fn settled(
    mut document: Document,
    decision: &Decision,
    node: &Node,
    unruled: Unruled,
    config: &Config,
) -> Result<(), Refusal> {
    let runtime_is_nvidia = is_nvidia_runtime(&config.runtime.path);
    let edits = match &decision.verdict {
        Verdict::Edit(edits) => edits.clone(),
        Verdict::Reserve(wanted) => {
            edits_of_any_grant(document.view(), wanted, config.inject.mode, runtime_is_nvidia)
        }
        Verdict::Pass | Verdict::Refuse(_) => return Ok(()),
    };
    settle(&mut document, &edits, decision.held, node, unruled).map_err(|unsettled| match unsettled
    {
        Unsettled::Open(refusal) => refusal,
        Unsettled::Edit(error) => Refusal::new(
            Code::Bundle,
            format!("its config.json cannot be changed: {error}"),
            "is it the right file? a fresh one to compare with: runc spec",
        ),
    })
}

#[cfg(test)]
mod tests;
