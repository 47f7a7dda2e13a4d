//! Where this node's kubelet is, whether pods ask through it, and how its services are logged.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use mpsgate_config::{Manage, Switch};
use mpsgate_deviceplugin::Level;

use crate::Paths;
use crate::around::served::Served;
use crate::daemon::Daemon;

/// Whether a kubelet runs, or has run, on this node.
pub(crate) fn has_kubelet(paths: &Paths) -> bool {
    paths.kubelets.iter().any(|directory| {
        std::fs::symlink_metadata(directory.join("kubelet.sock"))
            .is_ok_and(|found| found.file_type().is_socket())
    })
}

/// Where these kubelets keep a directory for each pod that they have.
pub(crate) fn kubelet_pods(paths: &Paths) -> Vec<PathBuf> {
    let directories = paths.kubelets.iter();
    directories.filter_map(|plugins| Some(plugins.parent()?.join("pods"))).collect()
}

/// The directory in which the plugin serves, or will as soon as the cards are known; `None` where
/// the settings or the node say that it does not. Without NVML, because who has asked by
/// annotations must not depend on it.
pub(crate) fn directory(daemon: &Daemon) -> Option<PathBuf> {
    let settings = daemon.settings.now();
    let kubelets = &daemon.paths.kubelets;
    let there = kubelets.iter().find(|directory| directory.is_dir());
    match settings.kubernetes.device_plugin {
        Switch::Off => None,
        Switch::On => there.or_else(|| kubelets.first()).cloned(),
        Switch::Auto => {
            let configured =
                !matches!(&settings.gpus.manage, Manage::Uuids(uuids) if uuids.is_empty());
            // Another plugin may have kubelet's resource where no card is ours.
            there.filter(|_| configured || !daemon.node().handed_over.is_empty()).cloned()
        }
    }
}

/// Whether pods of this node ask by their limits alone.
pub(crate) fn is_in_charge(daemon: &Daemon) -> bool {
    directory(daemon).is_some() && !daemon.around().served.values().any(Served::cannot_work)
}

/// For what a service tells of itself.
pub(crate) fn log_level(level: Level) -> log::Level {
    match level {
        Level::Error => log::Level::Error,
        Level::Warn => log::Level::Warn,
        Level::Info => log::Level::Info,
        Level::Debug => log::Level::Debug,
    }
}
