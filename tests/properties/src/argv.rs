//! Command lines: those that an engine gives a runtime, and the hook's own.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use mpsgate_oci::argv::{Invocation, Signal, Verb, parse, verb_of, with_exec_env, with_value};

/// One argument a line; no argument holds a zero byte, and neither does execve's.
fn arguments(data: &[u8]) -> Vec<OsString> {
    let lines = data.split(|byte| *byte == b'\n');
    lines
        .map(|line| OsString::from_vec(line.split(|byte| *byte == 0).next().unwrap().to_vec()))
        .collect()
}

/// The quick look at the verb and the full one agree, everything found is an argument's, and a
/// rewritten command line reads as the old one but for what was rewritten.
pub(crate) fn argv(data: &[u8]) {
    let args = arguments(data);
    let found = parse(&args);
    let quick = verb_of(&args);
    assert!(
        found.verb == quick || found.verb == Verb::None,
        "the quick look sees {quick:?}, the full one {:?}",
        found.verb
    );
    assert!(found.verb_at.is_none_or(|at| at < args.len()));
    if found.verb != Verb::None {
        assert!(found.verb_at.is_some());
    }
    if let Some(id) = &found.container_id {
        assert!(args.contains(id), "the container {id:?} is no argument");
    }
    if found.verb != Verb::Kill {
        assert_eq!(found.signal, Signal::TERM);
    }
    resources(&args, &found);
    exec_env(&args, &found);
}

fn resources(args: &[OsString], found: &Invocation) {
    let path = Path::new("/run/mpsgate/elsewhere");
    let Some(at) = found.resources_at else { return };
    let changed = with_value(args, at, path).expect("it is one of the arguments");
    let again = parse(&changed);
    assert_eq!(again.resources.as_deref(), Some(path));
    let same = Invocation {
        resources: found.resources.clone(),
        resources_at: found.resources_at,
        ..again
    };
    assert_eq!(same, *found, "another part of the command line changed");
}

fn exec_env(args: &[OsString], found: &Invocation) {
    let env = [("A".to_owned(), "1=2".to_owned()), ("B".to_owned(), String::new())];
    let Some(changed) = with_exec_env(args, found, &env) else { return };
    assert_eq!(found.verb, Verb::Exec);
    assert_eq!(changed.len(), args.len() + 2 * env.len());
    // Without a container the runtime refuses the line in any case, and the shim never changes it.
    if found.container_id.is_none() {
        return;
    }
    let again = parse(&changed);
    assert_eq!((again.verb, &again.container_id), (found.verb, &found.container_id));
    assert_eq!((&again.root, &again.log), (&found.root, &found.log));
    let kept = changed.iter().filter(|arg| args.contains(arg)).count();
    assert!(kept >= args.len(), "an argument was lost");
}

/// The hook takes a whole command line or none, and takes root and instance as they stand in it.
pub(crate) fn hook_args(data: &[u8]) {
    let args = arguments(data);
    let Some((root, instance)) = mpsgate_shim::fuzz::hook_arguments(&args) else { return };
    assert!(args.contains(&OsString::from(format!("--root={root}"))));
    assert!(args.contains(&OsString::from(format!("--instance={instance}"))));
    assert!(matches!(args[1].to_str(), Some("createRuntime" | "poststop")));
    assert!(args[2..].iter().all(|arg| {
        arg.to_str().is_some_and(|arg| arg.starts_with("--root=") || arg.starts_with("--instance="))
    }));
}
