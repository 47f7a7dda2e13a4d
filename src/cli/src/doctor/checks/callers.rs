//! Who calls mpsgate: the engines by their own settings, and kubelet.

use std::collections::BTreeSet;
use std::path::Path;

use mpsgate_edge::Remedy as _;

use super::{Finding, Found, fail, failed, ok, or, skip, warn};
use crate::args::Engine;
use crate::configure::engine_checks;
use crate::doctor::doctor_node::Node;
use crate::doctor::trouble::{Known, Trouble, read};

/// kubelet's checkpoint of its CPU manager.
const CPU_MANAGER: &str = "/var/lib/kubelet/cpu_manager_state";

#[derive(Default)]
struct Engines {
    installed: Vec<EngineFacts>,
    /// Why engines may run that are not among these.
    doubts: BTreeSet<String>,
}

struct EngineFacts {
    name: &'static str,
    version: Option<String>,
    in_use: bool,
    ways: Known<Ways>,
}

/// Handlers of an engine, a sentence each.
struct Ways {
    round: Vec<String>,
    through: Vec<String>,
    /// A daemon that runs since before these settings were written.
    stale: Option<u32>,
}

/// Whether the engines really call mpsgate, by their own settings.
pub(super) fn engine(node: &Node) -> Found {
    // A process that is not known may be any of them, and is told of once.
    let mut engines = Engines::default();
    let runtime = node.settings().runtime.path;
    for engine in [Engine::Containerd, Engine::Docker, Engine::Podman, Engine::Crio] {
        let (found, doubted) = engine_checks::of(engine, &node.root, &runtime);
        engines.doubts.extend(doubted);
        engines.installed.extend(found.into_iter().map(|standing| {
            EngineFacts {
                name: engine.name(),
                version: standing.version,
                in_use: standing.in_use,
                ways: standing
                    .said
                    .map(|said| Ways {
                        round: said.round,
                        through: said.through,
                        stale: said.stale,
                    })
                    .map_err(|error| Trouble::of(&error, error.hint())),
            }
        }));
    }
    judge_engines(engines, node)
}

fn judge_engines(engines: Engines, node: &Node) -> Found {
    const TRUST: &str = "what runs as an engine has to be root's alone, with the directories above \
                         it: chown root: PROGRAM; chmod go-w PROGRAM; sudo mpsgate doctor";
    if engines.installed.is_empty() && engines.doubts.is_empty() {
        return Err(skip("no containerd, Docker, Podman or CRI-O is installed"));
    }
    let managed = !node.managed().is_empty();
    let known = engines.installed.iter().map(|engine| evaluate(engine, managed).about(engine.name));
    let doubt = |why: &String| warn(format!("{why}; its settings were not evaluated"), TRUST);
    Ok(known.chain(engines.doubts.iter().map(doubt)).collect())
}

fn evaluate(engine: &EngineFacts, managed: bool) -> Finding {
    let name = engine.name;
    if !engine.in_use && matches!(name, "containerd" | "crio") {
        return skip("no kubelet uses it here; Docker's own is evaluated as docker");
    }
    let ways = match &engine.ways {
        Ok(ways) => ways,
        Err(trouble) => return failed(trouble, &format!("mpsgate configure {name} --check")),
    };
    let version = engine.version.as_ref().map(|v| format!("{v}; ")).unwrap_or_default();
    // A card that nobody manages is protected from nobody; an engine that does not run starts
    // nothing.
    let say = if managed && engine.in_use { fail } else { warn };
    if let Some(pid) = ways.stale {
        return say(
            format!("{version}its daemon (pid {pid}) runs since before its settings were changed"),
            format!("systemctl restart {name}"),
        );
    }
    if !ways.round.is_empty() || ways.through.is_empty() {
        let round = if ways.round.is_empty() {
            "nothing in it leads to mpsgate".to_owned()
        } else {
            ways.round.join("; ")
        };
        return say(
            format!("{version}{round}"),
            format!("mpsgate configure {name} shows the change, --write makes it"),
        );
    }
    ok(format!("{version}{}", ways.through.join("; ")))
}

/// kubelet's CPU manager: with `static` it has the runtime update containers that run.
pub(super) fn kubelet(node: &Node) -> Found {
    judge_kubelet(cpu_manager(&node.below(CPU_MANAGER)))
}

/// `None`: no kubelet wrote its policy.
fn cpu_manager(path: &Path) -> Known<Option<String>> {
    #[derive(serde::Deserialize)]
    struct State {
        #[serde(rename = "policyName")]
        policy: String,
    }
    let Some(text) = read(path)? else { return Ok(None) };
    let state: Result<State, _> = serde_json::from_str(&text);
    state
        .map(|state| Some(state.policy))
        .map_err(|error| Trouble::new(format!("{} names no policy: {error}", path.display())))
}

fn judge_kubelet(policy: Known<Option<String>>) -> Found {
    Ok(vec![match or(policy, "journalctl -u kubelet -n 50")?.as_deref() {
        None => ok("no kubelet keeps CPUs apart here"),
        Some("static") => warn(
            "CPU manager policy static: kubelet updates running containers, which takes devices away that are not in \
             their spec (mpsgate's are; an NVIDIA hook's are not)",
            "cpuManagerPolicy: none in kubelet's configuration; then drain the node, rm \
             /var/lib/kubelet/cpu_manager_state, systemctl restart kubelet",
        ),
        Some(policy) => ok(format!("CPU manager policy {policy}")),
    }])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::Outcome;
    use crate::doctor::checks::tests::{FAIL, WARN, node, trouble, turns_red};

    fn of(name: &'static str, through: &[&str], round: &[&str]) -> EngineFacts {
        let sentences = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let ways = Ways { through: sentences(through), round: sentences(round), stale: None };
        EngineFacts { name, version: None, in_use: true, ways: Ok(ways) }
    }

    fn docker() -> Engines {
        let docker = of("docker", &["default runtime mpsgate: through mpsgate"], &[]);
        Engines { installed: vec![docker], doubts: BTreeSet::new() }
    }

    fn first(engines: &mut Engines) -> &mut EngineFacts {
        engines.installed.get_mut(0).unwrap()
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("engine", judge_engines, docker, &[
            (|f, _| *first(f) = of("docker", &[], &["default runtime runc: bypasses mpsgate"]), FAIL, "bypasses mpsgate", "mpsgate configure docker"),
            (|f, _| *first(f) = EngineFacts { in_use: false, ..of("podman", &["x"], &["y bypasses mpsgate"]) }, WARN, "y bypasses mpsgate", "mpsgate configure podman"),
            (|f, _| *first(f) = of("crio", &[], &[]), FAIL, "nothing in it leads", "mpsgate configure crio"),
            (|f, _| first(f).ways = trouble("/etc/docker/daemon.json: not JSON"), FAIL, "not JSON", "mpsgate configure docker --check"),
            (|f, _| first(f).ways.as_mut().unwrap().stale = Some(9), FAIL, "pid 9", "systemctl restart docker"),
            (|f, _| f.doubts = ["pid 9 runs /srv/dockerd, and is not taken for an engine".to_owned()].into(), WARN, "pid 9 runs /srv/dockerd", "chmod go-w"),
            (|f, _| { f.installed.clear(); f.doubts = ["whether crio runs is not known".to_owned()].into(); }, WARN, "whether crio runs", "sudo mpsgate doctor"),
        ]);
        turns_red("kubelet", |f, _| judge_kubelet(f), || Ok(Some("none".to_owned())), &[
            (|f, _| *f = Ok(Some("static".into())), WARN, "policy static", "cpuManagerPolicy: none"),
            (|f, _| *f = trouble("names no policy"), FAIL, "names no policy", "journalctl -u kubelet"),
        ]);
    }

    #[test]
    fn a_containerd_that_only_docker_uses_is_not_evaluated_and_no_engine_at_all_is_said() {
        let unused = of("containerd", &[], &["runc bypasses mpsgate"]);
        let mut engines = docker();
        *first(&mut engines) = EngineFacts { in_use: false, ..unused };
        assert_eq!(judge_engines(engines, &node()).unwrap()[0].result, Outcome::Skip);
        let none = judge_engines(Engines::default(), &node());
        assert_eq!(none.unwrap_err().result, Outcome::Skip);
    }
}
