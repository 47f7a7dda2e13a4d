//! The effect of a changed settings file on a running daemon: which keys apply at once, and what
//! the others wait for. A test compares the list with `keys`, so that no key is silently ignored.

use crate::settings::Config;

/// When a changed key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// With the next container: the runtime and the hook read the file for each.
    NextContainer,
    /// At once, in the daemon.
    Now,
    /// After these commands.
    After(&'static str),
}

/// A key with another value than the one in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Its name in the file: `mps.control`.
    pub key: &'static str,
    /// When it takes effect.
    pub taken: Taken,
}

struct Rule {
    key: &'static str,
    taken: Taken,
    differs: fn(&Config, &Config) -> bool,
    copy: fn(&mut Config, &Config),
}

macro_rules! rule {
    ($table:ident . $name:ident, $taken:expr) => {
        Rule {
            key: concat!(stringify!($table), ".", stringify!($name)),
            taken: $taken,
            differs: |left, right| left.$table.$name != right.$table.$name,
            copy: |to, from| to.$table.$name.clone_from(&from.$table.$name),
        }
    };
}

const RESTART: Taken = Taken::After("systemctl restart mpsgated");
/// A running control daemon is adopted unchanged.
const RESTART_BOTH: Taken = Taken::After(
    "systemctl restart mpsgated; then, for each managed card: mpsgate mps restart GPU",
);
/// A control daemon of another program is not recognised, so none may run.
const BETWEEN_STOP_AND_START: Taken = Taken::After(
    "mpsgate mps stop GPU for each managed card; systemctl restart mpsgated; mpsgate mps restart GPU \
     for each",
);

const RULES: &[Rule] = &[
    rule!(runtime.path, Taken::Now),
    rule!(gpus.manage, Taken::Now),
    rule!(gpus.schedule, Taken::Now),
    rule!(gpus.reserve_mib, Taken::Now),
    rule!(requests.from_env, Taken::NextContainer),
    rule!(trust.local, Taken::Now),
    rule!(trust.kubernetes_roots, Taken::NextContainer),
    rule!(policy.unallocated, Taken::NextContainer),
    rule!(policy.visible_devices, Taken::NextContainer),
    rule!(policy.privileged, Taken::NextContainer),
    rule!(policy.ipc, Taken::NextContainer),
    rule!(policy.host_pid, Taken::NextContainer),
    rule!(policy.enforce, Taken::Now),
    rule!(policy.tolerance_mib, Taken::Now),
    rule!(policy.exempt, Taken::NextContainer),
    rule!(inject.mode, Taken::Now),
    rule!(mps.control, BETWEEN_STOP_AND_START),
    rule!(mps.processes, Taken::Now),
    rule!(mps.debug, Taken::Now),
    rule!(mps.start_timeout_s, Taken::Now),
    rule!(mps.multiuser, RESTART_BOTH),
    rule!(mps.max_clients, Taken::Now),
    rule!(mps.supervisor, RESTART_BOTH),
    rule!(mps.orphan, Taken::Now),
    rule!(nvml.library, RESTART),
    rule!(run.group, RESTART),
    rule!(run.max_mib, Taken::Now),
    rule!(run.max_grants, Taken::Now),
    rule!(slurm.jobs, RESTART),
    rule!(slurm.shard_mib, Taken::Now),
    rule!(slurm.prefix, Taken::Now),
    rule!(slurm.conf, Taken::Now),
    rule!(kubernetes.device_plugin, Taken::Now),
    rule!(kubernetes.memory_units_mib, Taken::Now),
    rule!(kubernetes.slices_gib, Taken::Now),
    rule!(kubernetes.slices_uid, Taken::Now),
    rule!(kubernetes.dra, RESTART),
    rule!(kubernetes.dra_extended_resources, Taken::Now),
    rule!(kubernetes.kubeconfig, RESTART),
    rule!(kubernetes.node_name, RESTART),
    rule!(metrics.listen, Taken::Now),
    rule!(log.level, Taken::Now),
];

impl Config {
    /// Takes from `new` the settings that can change while the daemon runs, and names every key
    /// that differs. A key that waits keeps its old value here, so that the next reload names it
    /// again.
    pub fn adopt(&mut self, new: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for rule in RULES {
            if !(rule.differs)(self, new) {
                continue;
            }
            changes.push(Change { key: rule.key, taken: rule.taken });
            if !matches!(rule.taken, Taken::After(_)) {
                (rule.copy)(self, new);
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::keys::KEYS;

    #[test]
    fn every_key_says_when_it_is_taken() {
        let known: Vec<String> = KEYS.iter().map(|k| format!("{}.{}", k.table, k.name)).collect();
        let ruled: Vec<&str> = RULES.iter().map(|rule| rule.key).collect();
        assert_eq!(ruled, known, "one rule for each key, in the same order");
    }

    /// One other value for each key.
    const OTHER: &str = r#"
        runtime.path = "crun"
        gpus = { manage = "all", schedule = "share", reserve_mib = 1 }
        requests.from_env = "on"
        trust = { local = "off", kubernetes_roots = [] }
        inject.mode = "cdi"
        nvml.library = "/lib/other.so"
        run = { group = "gpu", max_mib = 1, max_grants = 1 }
        slurm = { jobs = true, shard_mib = 1, prefix = "/opt/slurm", conf = "/opt/slurm.conf" }
        kubernetes = { device_plugin = "off", memory_units_mib = [256], slices_gib = [10], slices_uid = 1000, dra = "on", dra_extended_resources = true, kubeconfig = "off", node_name = "n" }
        metrics.listen = "off"
        log.level = "trace"
        [policy]
        unallocated = "warn"
        visible_devices = "strip"
        privileged = "close"
        ipc = "any"
        host_pid = "warn"
        enforce = "report"
        tolerance_mib = 1
        exempt = [{ namespace = "a", image = "b" }]
        [mps]
        control = "/usr/bin/other"
        processes = "split"
        debug = true
        start_timeout_s = 1
        multiuser = "on"
        max_clients = 1
        supervisor = "holder"
        orphan = "kill"
    "#;

    #[test]
    fn what_cannot_be_taken_now_keeps_its_value_and_is_named_each_time() {
        let other =
            Config::parse(OTHER, Path::new("config.toml")).unwrap_or_else(|e| panic!("{e}"));
        let mut config = Config::default();
        let all: Vec<&str> = config.adopt(&other).iter().map(|change| change.key).collect();
        assert_eq!(all, RULES.iter().map(|rule| rule.key).collect::<Vec<_>>());
        let waiting: Vec<&str> = config.adopt(&other).iter().map(|change| change.key).collect();
        assert_eq!(
            waiting,
            [
                "mps.control",
                "mps.multiuser",
                "mps.supervisor",
                "nvml.library",
                "run.group",
                "slurm.jobs",
                "kubernetes.dra",
                "kubernetes.kubeconfig",
                "kubernetes.node_name"
            ]
        );
        assert_eq!(config.mps.control, Config::default().mps.control);
        assert_eq!(config.log.level, other.log.level);
        assert_eq!(Config::default().adopt(&Config::default()), []);
    }
}
