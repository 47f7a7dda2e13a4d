//! Of systemd's units, what must not leave the node: all that is not known to hold no secret.

use super::GONE;

/// A unit or what was added to one: settings that hold no secret by their meaning stay, of all
/// others the name alone.
pub(in crate::doctor::doctor_bundle) fn unit(text: &str) -> String {
    let mut goes_on = false;
    let mut kept = false;
    by_line(text, |body| {
        let line = body.trim();
        if goes_on && line.starts_with(['#', ';']) {
            // A comment within a value ends nothing (systemd.syntax(7)).
            return GONE.to_owned();
        }
        let value = if goes_on {
            line
        } else if line.is_empty() || (line.starts_with('[') && line.ends_with(']')) {
            return body.to_owned();
        } else {
            let Some((key, value)) = line.split_once('=') else { return GONE.to_owned() };
            let key = key.trim();
            kept = UNIT_KEYS.contains(&key);
            goes_on = value.ends_with('\\');
            let value = match key {
                // The program. What it is told is its own business.
                "ExecStart" | "ExecReload" => {
                    let value = value.trim();
                    kept = false;
                    let program = value.split_ascii_whitespace().next().unwrap_or_default();
                    let more = if program == value { "" } else { " [redacted]" };
                    format!("{program}{more}")
                }
                _ if kept => value.to_owned(),
                _ => GONE.to_owned(),
            };
            let key: String = key.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
            return format!("{key}={value}");
        };
        goes_on = value.ends_with('\\');
        if kept { body.to_owned() } else { GONE.to_owned() }
    })
}

fn by_line(text: &str, mut each: impl FnMut(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        let (body, end) = body.strip_suffix('\r').map_or((body, end), |body| (body, "\r\n"));
        out.push_str(&each(body));
        out.push_str(end);
    }
    out
}

/// Settings of units that say how a service is run, and nothing else: those of ours, and what
/// operators add to them.
const UNIT_KEYS: [&str; 62] = [
    "After",
    "AssertPathExists",
    "Before",
    "BindsTo",
    "CapabilityBoundingSet",
    "ConditionPathExists",
    "Conflicts",
    "CPUAffinity",
    "CPUQuota",
    "CPUWeight",
    "Delegate",
    "Description",
    "Documentation",
    "DynamicUser",
    "ExecReload",
    "ExecStart",
    "Group",
    "KeyringMode",
    "KillMode",
    "LimitCORE",
    "LimitMEMLOCK",
    "LimitNOFILE",
    "LimitNPROC",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "MemoryMax",
    "Nice",
    "NoNewPrivileges",
    "NotifyAccess",
    "OOMPolicy",
    "OOMScoreAdjust",
    "PartOf",
    "PrivateDevices",
    "PrivateTmp",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadWritePaths",
    "Requires",
    "Restart",
    "RestartPreventExitStatus",
    "RestartSec",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "Slice",
    "StandardError",
    "StandardOutput",
    "StartLimitBurst",
    "StartLimitIntervalSec",
    "SystemCallFilter",
    "TasksMax",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "Type",
    "User",
    "WantedBy",
    "Wants",
    "WatchdogSec",
];
