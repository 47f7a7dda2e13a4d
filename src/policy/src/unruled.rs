//! What is open to a container before the rules of its spec are read. runc closes every device that
//! no rule opens; others leave what they found.

use std::path::Path;

use mpsgate_oci::spec::View;

/// Devices that no rule of a spec speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unruled {
    /// Closed.
    Closed,
    /// Open where there is no rule at all: crun on cgroup v2 then installs no filter
    /// (`update_cgroup_v2_resources`).
    OpenWithoutRules,
    /// Open, as in the parent cgroup: crun on cgroup v1 writes what the rules say and nothing else
    /// (`write_devices_resources_v1`).
    Open,
    /// Every device is open, whatever the rules say: there is no device cgroup (crun's
    /// `--cgroup-manager=disabled`).
    NoCgroup,
}

impl Unruled {
    /// Under a runtime, by the name of its program: what is not known to be runc counts as crun.
    #[must_use]
    pub fn under(runtime: &Path, unified: bool) -> Self {
        let name = runtime.file_name().unwrap_or_default().to_string_lossy();
        match (name.contains("runc"), unified) {
            (true, _) => Self::Closed,
            (false, true) => Self::OpenWithoutRules,
            (false, false) => Self::Open,
        }
    }

    /// Whether a device is open to this container that its rules say nothing of.
    #[must_use]
    pub fn is_open(self, view: View<'_>) -> bool {
        match self {
            Self::Closed => false,
            Self::OpenWithoutRules => view.device_rules().next().is_none(),
            Self::Open | Self::NoCgroup => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_runc_closes_what_no_rule_opens() {
        let under = |runtime: &str, unified| Unruled::under(Path::new(runtime), unified);
        for runc in ["/usr/sbin/runc", "runc", "/opt/docker-runc", "/opt/runc.real"] {
            assert_eq!(under(runc, true), Unruled::Closed, "{runc}");
            assert_eq!(under(runc, false), Unruled::Closed, "{runc}");
        }
        for other in ["/usr/bin/crun", "youki", "/runc/crun", "nvidia-container-runtime", "/"] {
            assert_eq!(under(other, true), Unruled::OpenWithoutRules, "{other}");
            assert_eq!(under(other, false), Unruled::Open, "{other}");
        }
    }

    #[test]
    fn without_a_rule_crun_installs_no_filter() {
        let open = |rules| {
            let spec = json!({ "linux": { "resources": { "devices": rules } } });
            Unruled::OpenWithoutRules.is_open(View::new(&spec))
        };
        assert!(open(json!([])) && open(json!(null)));
        assert!(!open(json!([{ "allow": false }])));
        assert!(Unruled::OpenWithoutRules.is_open(View::new(&json!({}))));
        assert!(!Unruled::Closed.is_open(View::new(&json!({}))));
    }
}
