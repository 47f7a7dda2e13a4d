//! What the figures were measured on.

/// One line about the machine.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let virtual_machine = cpuinfo.contains(" hypervisor");
    format!(
        "{model}, {cores} cores{}, Linux {}",
        if virtual_machine { ", virtual machine" } else { "" },
        read("/proc/sys/kernel/osrelease").trim()
    )
}
