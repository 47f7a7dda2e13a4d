//! What mpsgated says of itself, and of whom it serves.

use mpsgate_api::{ApiServerStatus, ClaimsStatus, ResourceStatus, Status};
use mpsgate_config::Switch;

use super::{Finding, Found, LOGS, RESTART, fail, ok, or, skip, warn};
use crate::doctor::doctor_node::Node;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn daemon(node: &Node) -> Found {
    let status = or(node.daemon.as_ref(), LOGS)?;
    Ok(vec![match &status.nvml_error {
        _ if status.version != VERSION => warn(
            format!("it answers; it is version {}, this program {VERSION}", status.version),
            format!("an upgrade was not finished: {RESTART}"),
        ),
        Some(error) => fail(
            format!("version {VERSION}; NVML does not answer it: {error}"),
            format!("see the check nvml; when that is well: {RESTART}"),
        ),
        None => ok(format!(
            "version {VERSION}, {} cards, {} grants",
            status.cards.len(),
            status.grants.len()
        )),
    }])
}

fn said(node: &Node) -> Result<&Status, Finding> {
    node.daemon.as_ref().map_err(|_| skip("mpsgated cannot be asked"))
}

/// Its own problem, with what it advises.
fn problem(problem: &str, hint: Option<&String>) -> Finding {
    warn(problem, hint.map_or(LOGS, String::as_str))
}

pub(super) fn metrics(node: &Node) -> Found {
    let status = said(node)?;
    let Some(at) = &status.metrics_listen else { return Err(ok("off (metrics.listen)")) };
    let port = at.rsplit(':').next().unwrap_or_default();
    Ok(vec![match &status.metrics_error {
        Some(error) => warn(
            format!("not served at {at}: {error}"),
            format!(
                "find out who has the port: ss -ltnp 'sport = :{port}'; or set another metrics.listen in \
                 /etc/mpsgate/config.toml and run: mpsgate reload"
            ),
        ),
        None => ok(format!("http://{at}/metrics")),
    }])
}

/// What kubelet has of each resource. By these alone pods ask for memory.
pub(super) fn device_plugin(node: &Node) -> Found {
    let status = said(node)?;
    if status.device_plugin.is_empty() {
        let settings = node.config.as_ref().map(|(config, _)| config.kubernetes.device_plugin);
        return Err(match settings {
            Ok(Switch::Off) => ok("off (kubernetes.device_plugin)"),
            _ if !status.kubelet => ok("no kubelet runs here"),
            _ if status.cards.iter().all(|card| !card.managed) => {
                ok("nothing is served to kubelet, as no card is handed to mpsgate")
            }
            _ => warn("a kubelet runs here, and nothing is served to it", LOGS),
        });
    }
    let told = status.device_plugin.iter().map(|one| {
        let ResourceStatus { healthy, devices, allocations, .. } = one;
        let found = match &one.problem {
            Some(what) => problem(what, one.hint.as_ref()),
            None => {
                ok(format!("{healthy} of {devices} devices can be had, {allocations} allocations"))
            }
        };
        found.about(&one.resource)
    });
    Ok(told.collect())
}

/// Whether pods can have claims, where they are served.
pub(super) fn claims(node: &Node) -> Found {
    Ok(vec![match &said(node)?.claims {
        None => ok("off (kubernetes.dra)"),
        Some(ClaimsStatus { problem: Some(what), hint, .. }) => problem(what, hint.as_ref()),
        Some(ClaimsStatus { prepared, .. }) => {
            ok(format!("kubelet knows the driver, {prepared} claims are prepared"))
        }
    }])
}

pub(super) fn slurm(node: &Node) -> Found {
    Ok(match said(node)?.slurm.as_deref() {
        None => vec![ok("off (slurm.jobs)")],
        Some([]) => vec![ok("Slurm's counts are those of the cards")],
        Some(found) => {
            let hint = "docs/slurm.md says how slurm.conf, gres.conf and slurm.shard_mib should be; then: systemctl restart slurmd mpsgated";
            found.iter().map(|what| warn(what.clone(), hint)).collect()
        }
    })
}

/// What is known of the pods' limits. Without it their tokens are all that counts.
pub(super) fn api_server(node: &Node) -> Found {
    let Some(ApiServerStatus { node, pods, problem: trouble, hint, events_dropped, left_out }) =
        &said(node)?.api_server
    else {
        return Err(ok("not asked (kubernetes.kubeconfig)"));
    };
    let found = match trouble {
        Some(what) => problem(what, hint.as_ref()),
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
    Ok(vec![found.about(format!("node {node}"))])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::tests::{FAIL, WARN, trouble, turns_red};

    fn followed(problem: Option<&str>, events_dropped: u64) -> ApiServerStatus {
        ApiServerStatus {
            node: "gpu-1".to_owned(),
            pods: 2,
            problem: problem.map(ToOwned::to_owned),
            hint: problem.map(|_| "look there".to_owned()),
            events_dropped,
            left_out: Vec::new(),
        }
    }

    /// As with a kubelet before 1.27.
    fn unread() -> ResourceStatus {
        ResourceStatus {
            resource: "aliyun.com/gpu-mem".to_owned(),
            registered_ms: None,
            devices: 0,
            healthy: 0,
            allocations: 0,
            problem: Some("kubelet's request was refused as malformed HTTP/2".to_owned()),
            hint: Some("upgrade kubelet to 1.27 or newer".to_owned()),
        }
    }

    /// As with a kubelet whose feature gate is off.
    fn unclaimed() -> ClaimsStatus {
        ClaimsStatus {
            registered_ms: None,
            prepared: 0,
            problem: Some("kubelet does not ask who serves claims".to_owned()),
            hint: Some("journalctl -u kubelet -n 50".to_owned()),
        }
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("daemon", |(), n| daemon(n), || (), &[
            (|(), n| n.daemon = trouble("mpsgated is not running"), FAIL, "not running", "journalctl -u mpsgated"),
            (|(), n| n.said().version = "0.0.9".into(), WARN, "version 0.0.9", "systemctl restart mpsgated"),
            (|(), n| n.said().nvml_error = Some("driver gone".into()), FAIL, "driver gone", "check nvml"),
        ]);
        turns_red("metrics", |(), n| metrics(n), || (), &[
            (|(), n| n.said().metrics_error = Some("Address already in use".into()), WARN, "not served at 127.0.0.1:19400: Address already in use", "ss -ltnp 'sport = :19400'"),
        ]);
        turns_red("device-plugin", |(), n| device_plugin(n), || (), &[
            (|(), n| n.said().device_plugin = vec![unread()], WARN, "malformed HTTP/2", "upgrade kubelet to 1.27"),
            (|(), n| n.said().kubelet = true, WARN, "nothing is served to it", "journalctl"),
        ]);
        turns_red("claims", |(), n| claims(n), || (), &[
            (|(), n| n.said().claims = Some(unclaimed()), WARN, "kubelet does not ask", "journalctl -u kubelet"),
        ]);
        turns_red("slurm", |(), n| slurm(n), || (), &[
            (|(), n| n.said().slurm = Some(vec!["Slurm has 20 shards".into()]), WARN, "Slurm has 20 shards", "gres.conf"),
        ]);
        turns_red("api-server", |(), n| api_server(n), || (), &[
            (|(), n| n.said().api_server = Some(followed(Some("connection refused"), 0)), WARN, "connection refused", "look there"),
            (|(), n| n.said().api_server = Some(followed(None, 3)), WARN, "2 pods are known; 3 events were not written", "journalctl"),
            (|(), n| n.said().api_server = Some(ApiServerStatus { left_out: vec!["Pod n/p: x".to_owned()], ..followed(None, 0) }), WARN, "2 pods are known; 1 cannot be read as a whole: Pod n/p: x", "kubectl get"),
        ]);
    }
}
