//! mpsgate's own parts: settings, programs, daemon, and the files between them.

use std::collections::BTreeSet;

use mpsgate_api::{ApiServerStatus, ClaimsStatus, NodeSnapshot, ResourceStatus};
use mpsgate_config::{Manage, Switch};

use super::{Finding, fail, failed, ok, skip, warn};
use crate::doctor::facts::{Facts, Linking, Program, ProgramFile};

/// `sockaddr_un.sun_path` without its final zero (unix(7)).
const SUN_PATH_MAX: usize = 107;
const VERSION: &str = env!("CARGO_PKG_VERSION");

const LOGS: &str = "journalctl -u mpsgated -n 50";
const RESTART: &str = "systemctl restart mpsgated";
const REINSTALL: &str = "reinstall the mpsgate package";

pub(super) fn root(facts: &Facts) -> Vec<Finding> {
    vec![if facts.euid == 0 {
        ok("run as root")
    } else {
        warn(
            format!("run as uid {}: what only root may see looks broken", facts.euid),
            "sudo mpsgate doctor",
        )
    }]
}

pub(super) fn config(facts: &Facts) -> Vec<Finding> {
    let settings = match &facts.config {
        Ok(settings) => settings,
        Err(trouble) => return vec![failed(trouble, "compare it with the shipped file")],
    };
    let manage = match &settings.config.gpus.manage {
        Manage::All => "all".to_owned(),
        Manage::Uuids(uuids) => uuids.len().to_string(),
    };
    let file = settings
        .file
        .as_ref()
        .map_or_else(|| "no file, all defaults".to_owned(), |file| file.display().to_string());
    vec![ok(format!("{file}; cards in gpus.manage: {manage}"))]
}

pub(super) fn runtime(facts: &Facts) -> Vec<Finding> {
    let runtime = &facts.runtime;
    let Some(path) = &runtime.path else {
        return vec![fail(
            format!("no program {:?} was found", runtime.name.display().to_string()),
            "install runc or crun, or set runtime.path in /etc/mpsgate/config.toml to the runtime's \
             absolute path",
        )];
    };
    vec![match &runtime.version {
        Some(Ok(version)) => ok(format!("{}: {version}", path.display())),
        Some(Err(trouble)) => failed(trouble, "run it by hand with --version"),
        None => skip(format!("{}: its version was not asked", path.display())),
    }]
}

pub(super) fn programs(facts: &Facts) -> Vec<Finding> {
    let one = |program: &Program| {
        let finding = match &program.file {
            Err(trouble) => failed(trouble, REINSTALL),
            Ok(None) => fail(format!("{} is missing", program.path.display()), REINSTALL),
            Ok(Some(file)) => program_file(program, *file),
        };
        let name = program.path.file_name().unwrap_or(program.path.as_os_str());
        finding.about(name.display())
    };
    facts.own_programs.iter().map(one).collect()
}

fn program_file(program: &Program, file: ProgramFile) -> Finding {
    let path = program.path.display();
    if file.uid != 0 {
        return fail(
            format!("{path} belongs to uid {}, who could replace it", file.uid),
            format!("{REINSTALL}, or, after looking at it: chown root: {path}"),
        );
    }
    if file.mode & 0o022 != 0 {
        return fail(
            format!("{path} has mode {:04o}: others than root can write it", file.mode),
            format!("{REINSTALL}, or, after looking at it: chmod 755 {path}"),
        );
    }
    if file.mode & 0o111 == 0 {
        return fail(
            format!("{path} has mode {:04o}: it cannot be run", file.mode),
            format!("chmod 755 {path}"),
        );
    }
    match file.linking {
        Linking::Static => ok(format!("{path}, root's, static")),
        Linking::StaticGlibc => ok(format!(
            "{path}, root's, static with glibc: it starts more slowly than the shipped one, which has musl"
        )),
        Linking::Dynamic => warn(
            format!("{path} is linked dynamically: slow, and LD_PRELOAD reaches it"),
            format!("{REINSTALL}: the shipped program is static"),
        ),
        Linking::NotElf64 => fail(format!("{path} is no 64-bit ELF program"), REINSTALL),
    }
}

pub(super) fn daemon(facts: &Facts) -> Vec<Finding> {
    let status = match &facts.daemon {
        Ok(status) => status,
        Err(trouble) => return vec![failed(trouble, LOGS)],
    };
    if status.version != VERSION {
        return vec![warn(
            format!("it answers; it is version {}, this program {VERSION}", status.version),
            format!("an upgrade was not finished: {RESTART}"),
        )];
    }
    vec![match &status.nvml_error {
        Some(error) => fail(
            format!("version {VERSION}; NVML does not answer it: {error}"),
            format!("see the check nvml; when that is well: {RESTART}"),
        ),
        None => ok(format!(
            "version {VERSION}, {} cards, {} grants",
            status.cards.len(),
            status.grants.len()
        )),
    }]
}

pub(super) fn metrics(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.daemon else { return vec![skip("mpsgated cannot be asked")] };
    let Some(at) = &status.metrics_listen else {
        return vec![ok("off (metrics.listen)")];
    };
    let port = at.rsplit(':').next().unwrap_or_default();
    vec![match &status.metrics_error {
        Some(error) => warn(
            format!("not served at {at}: {error}"),
            format!(
                "find out who has the port: ss -ltnp 'sport = :{port}'; or set another metrics.listen in \
                 /etc/mpsgate/config.toml and run: mpsgate reload"
            ),
        ),
        None => ok(format!("http://{at}/metrics")),
    }]
}

pub(super) fn slurm(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.daemon else { return vec![skip("mpsgated cannot be asked")] };
    match status.slurm.as_deref() {
        None => vec![ok("off (slurm.jobs)")],
        Some([]) => vec![ok("Slurm's counts are those of the cards")],
        Some(found) => {
            let hint = "docs/slurm.md says how slurm.conf, gres.conf and slurm.shard_mib should be; then: systemctl restart slurmd mpsgated";
            found.iter().map(|what| warn(what.clone(), hint)).collect()
        }
    }
}

pub(super) fn socket_paths(facts: &Facts) -> Vec<Finding> {
    let length = |path: &std::path::PathBuf| path.as_os_str().len();
    let Some(longest) = facts.sockets.iter().max_by_key(|path| length(path)) else {
        return vec![skip("no socket is bound")];
    };
    let evidence = format!("the longest, {}, has {} bytes", longest.display(), length(longest));
    vec![if length(longest) > SUN_PATH_MAX {
        fail(
            format!("{evidence}, a socket's path at most {SUN_PATH_MAX}"),
            "the MPS control daemon exits without a word there: use a shorter directory",
        )
    } else {
        ok(format!("{evidence} of at most {SUN_PATH_MAX}"))
    }]
}

pub(super) fn ledger(facts: &Facts) -> Vec<Finding> {
    vec![match &facts.ledger {
        Ok(Some(entries)) => ok(format!("{entries} entries")),
        Ok(None) => ok("none yet: nothing was granted since boot"),
        Err(trouble) => failed(trouble, LOGS),
    }]
}

/// The list that `mpsgate enable` keeps across reboots.
pub(super) fn enabled(facts: &Facts) -> Vec<Finding> {
    vec![match &facts.enabled {
        Ok(cards) if cards.is_empty() => ok("no card was handed over by mpsgate enable"),
        Ok(cards) => {
            let cards: Vec<&str> = cards.iter().map(String::as_str).collect();
            ok(format!("handed over by mpsgate enable: {}", cards.join(", ")))
        }
        Err(trouble) => failed(trouble, LOGS),
    }]
}

/// Who may read the keys may give himself GPU memory.
pub(super) fn tokens(facts: &Facts) -> Vec<Finding> {
    let files = match &facts.tokens {
        Ok(files) if files.is_empty() => return vec![ok("no keys yet: mpsgated makes them")],
        Ok(files) => files,
        Err(trouble) => return vec![failed(trouble, LOGS)],
    };
    let open = files.iter().find(|file| file.uid != 0 || file.mode & !file.allowed != 0);
    vec![match open {
        Some(file) => {
            let path = file.path.display();
            fail(
                format!(
                    "{path} (uid {}, mode {:04o}): others than root may read the keys, and give themselves GPU memory",
                    file.uid, file.mode
                ),
                format!(
                    "chown root: {path}; chmod {:o} {path}; if somebody may have read them, drain the node, remove \
                     the directory tokens and run: {RESTART}",
                    file.allowed
                ),
            )
        }
        None => ok("only root may read the keys"),
    }]
}

/// What kubelet has of each resource. By these alone pods ask for memory.
pub(super) fn device_plugin(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.daemon else { return vec![skip("mpsgated cannot be asked")] };
    if status.device_plugin.is_empty() {
        let settings =
            facts.config.as_ref().map(|settings| settings.config.kubernetes.device_plugin);
        return vec![match settings {
            Ok(Switch::Off) => ok("off (kubernetes.device_plugin)"),
            _ if !status.kubelet => ok("no kubelet runs here"),
            _ if status.cards.iter().all(|card| !card.managed) => {
                ok("nothing is served to kubelet, as no card is handed to mpsgate")
            }
            _ => warn("a kubelet runs here, and nothing is served to it", LOGS),
        }];
    }
    let told = status.device_plugin.iter().map(|one| {
        let ResourceStatus { healthy, devices, allocations, .. } = one;
        let evidence =
            format!("{healthy} of {devices} devices can be had, {allocations} allocations");
        let found = match (&one.problem, &one.hint) {
            (Some(problem), hint) => {
                warn(problem.clone(), hint.clone().unwrap_or_else(|| LOGS.to_owned()))
            }
            (None, _) => ok(evidence),
        };
        found.about(&one.resource)
    });
    told.collect()
}

/// Whether pods can have claims, where they are served.
pub(super) fn claims(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.daemon else { return vec![skip("mpsgated cannot be asked")] };
    let Some(ClaimsStatus { prepared, problem, hint, .. }) = &status.claims else {
        return vec![ok("off (kubernetes.dra)")];
    };
    vec![match problem {
        Some(problem) => warn(problem.clone(), hint.clone().unwrap_or_else(|| LOGS.to_owned())),
        None => ok(format!("kubelet knows the driver, {prepared} claims are prepared")),
    }]
}

/// What is known of the pods' limits. Without it their tokens are all that counts.
pub(super) fn api_server(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.daemon else { return vec![skip("mpsgated cannot be asked")] };
    let Some(ApiServerStatus { node, pods, problem, hint, events_dropped, left_out }) =
        &status.api_server
    else {
        return vec![ok("not asked (kubernetes.kubeconfig)")];
    };
    let found = match problem {
        Some(problem) => warn(problem.clone(), hint.clone().unwrap_or_else(|| LOGS.to_owned())),
        None if !left_out.is_empty() => warn(
            format!(
                "{pods} pods are known; {} cannot be read as a whole: {}",
                left_out.len(),
                left_out.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ")
            ),
            "kubectl get KIND -n NAMESPACE NAME -o json shows one; have it corrected or deleted",
        ),
        None if *events_dropped > 0 => warn(
            format!("{pods} pods are known; {events_dropped} events were not written"),
            "the API server takes them too slowly; what they said is in the log: journalctl -u mpsgated",
        ),
        None => ok(format!("{pods} pods are known")),
    };
    vec![found.about(format!("node {node}"))]
}

/// Whether a card was enabled or configured, or might have been.
fn handed_over(facts: &Facts) -> bool {
    let enabled = facts.enabled.as_ref().map_or(true, |cards| !cards.is_empty());
    let configured = facts.config.as_ref().is_ok_and(|settings| {
        !matches!(&settings.config.gpus.manage, Manage::Uuids(uuids) if uuids.is_empty())
    });
    enabled || configured
}

pub(super) fn snapshot(facts: &Facts) -> Vec<Finding> {
    let snapshot = match &facts.snapshot {
        Ok(Some(snapshot)) => snapshot,
        Ok(None) if facts.daemon.is_ok() => {
            return vec![fail("mpsgated runs and has written none", format!("{RESTART}; {LOGS}"))];
        }
        // As the shim's `facts::without_daemon` has it.
        Ok(None) if !handed_over(facts) => {
            return vec![skip("none yet; no card was ever handed over, so nothing is refused")];
        }
        Ok(None) => {
            return vec![warn(
                "none: mpsgate-runtime takes every card for managed",
                "systemctl start mpsgated",
            )];
        }
        Err(trouble) => return vec![failed(trouble, RESTART)],
    };
    let noted: CardSet =
        snapshot.cards.iter().map(|c| (c.uuid.to_string(), c.minor, c.managed)).collect();
    let now = cards_now(facts, snapshot);
    vec![match now {
        Some((whose, cards)) if cards != noted => fail(
            format!("it differs from {whose}: mpsgate-runtime decides by it"),
            format!("{RESTART}; {LOGS}"),
        ),
        Some((whose, _)) => ok(format!("{} cards, as {whose}", noted.len())),
        None => skip(format!("{} cards; nobody to compare with", noted.len())),
    }]
}

/// UUID, minor, and whether it is managed.
type CardSet = BTreeSet<(String, u32, bool)>;

/// The cards as the daemon, or else NVML, has them now. NVML does not know which are managed.
fn cards_now(facts: &Facts, snapshot: &NodeSnapshot) -> Option<(&'static str, CardSet)> {
    if let Ok(status) = &facts.daemon {
        let cards = status.cards.iter().map(|c| (c.uuid.clone(), c.minor, c.managed));
        return Some(("mpsgated says", cards.collect()));
    }
    facts.nvml.as_ref().ok()?.cards.as_ref().ok()?;
    let noted = |uuid: &str| {
        snapshot.cards.iter().find(|c| c.uuid.as_str() == uuid).is_some_and(|c| c.managed)
    };
    let cards = facts.cards().map(|c| (c.uuid.clone(), c.minor, noted(&c.uuid)));
    Some(("NVML says", cards.collect()))
}

pub(super) fn runtime_link(facts: &Facts) -> Vec<Finding> {
    let target = match &facts.runtime_link {
        Ok(Some(target)) => target,
        Ok(None) if facts.daemon.is_ok() => {
            return vec![fail("mpsgated runs and has made none", format!("{RESTART}; {LOGS}"))];
        }
        Ok(None) => {
            return vec![warn(
                "none: mpsgate-runtime reads the configuration for every verb",
                "systemctl start mpsgated",
            )];
        }
        Err(trouble) => return vec![failed(trouble, RESTART)],
    };
    vec![match &facts.runtime.path {
        Some(path) if path == target => ok(format!("leads to {}", target.display())),
        Some(path) => fail(
            format!("leads to {}, the configuration says {}", target.display(), path.display()),
            RESTART,
        ),
        None => skip(format!("leads to {}; the runtime was not found", target.display())),
    }]
}
