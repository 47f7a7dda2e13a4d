//! `mpsgate explain`: the decision about a `config.json`, without daemon, GPU or root.
//!
//! The same pure function decides as in the shim. What only the node knows is taken from `--node`;
//! what is missing is assumed to the container's disadvantage, and every assumption is printed.

mod facts;
mod input;
mod report;

use mpsgate_config::Config;
use mpsgate_oci::spec;
use mpsgate_policy::{Action, Caller, Code, Input, Users, Verdict, decide, is_nvidia_runtime};

use crate::args::{ExplainArgs, Output};
use crate::{CliError, print, snapshot};
use mpsgate_config::ExitCode;

pub use self::input::InputError;

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    if let Some(text) = args.file.to_str().filter(|text| text.starts_with("E_")) {
        let code = Code::parse(text).ok_or_else(|| InputError::Code { text: text.to_owned() })?;
        print::answer(&format!("{code}: {}\n", code.meaning()))?;
        return Ok(ExitCode::Done);
    }
    let config = Config::load(&args.config)?;
    let snapshot = args.node.as_deref().map(snapshot::load).transpose()?;
    let bytes = input::read(&args.file)?;
    let document = spec::parse(&bytes)
        .map_err(|source| InputError::Content { file: args.file.clone(), source })?;
    let view = document.view();

    let mut assumed = Vec::new();
    let node = facts::node(snapshot.as_ref(), &mut assumed);
    let kubelet = snapshot.as_ref().is_some_and(|snapshot| snapshot.kubelet);
    let mounts = facts::mounts(view, snapshot.as_ref());
    let decision = decide(&Input {
        view,
        node: &node,
        policy: &config.policy,
        requests_from_env: config.requests.from_env.is_on(!kubelet),
        mounts: &mounts,
        ipc: facts::ipc(view, &node, &mut assumed),
        users: Users::OfSpec,
        host_pids: facts::host_pids(view, &mut assumed),
        caller: Caller::Unknown,
        action: Action::Create,
        runtime_is_nvidia: is_nvidia_runtime(&config.runtime.path),
    });
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

#[cfg(test)]
mod tests;
