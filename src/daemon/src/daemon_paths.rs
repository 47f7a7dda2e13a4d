//! Every path that the daemon makes, below two roots: tests move them, the product never does.

use std::path::{Path, PathBuf};

use mpsgate_config::paths;

/// Where every distribution mounts it; the hook names cgroups below it.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The file of this very process, even where it was replaced since.
pub const PROGRAM: &str = "/proc/self/exe";
/// Gone after a reboot, as what is prepared.
const CDI: &str = "/var/run/cdi";
/// Kubelets make their socket here wherever they run; k3s and RKE2 keep the first path.
const KUBELETS: [&str; 2] =
    ["/var/lib/kubelet/device-plugins", "/var/snap/microk8s/common/var/lib/kubelet/device-plugins"];

/// Where things lie.
#[derive(Debug, Clone)]
pub struct Paths {
    /// What a reboot may forget: [`paths::RUN_DIR`].
    pub run: PathBuf,
    /// What must survive it: [`paths::STATE_DIR`].
    pub state: PathBuf,
    /// The kernel's own tree of cgroups. Plain processes with a grant get one below it, where no
    /// systemd makes it.
    pub cgroups: PathBuf,
    /// Directories of device plugins that a kubelet may have, the usual one first. Kubelet's own,
    /// wherever the rest of it lies.
    pub kubelets: Vec<PathBuf>,
    /// The program of a card's gate, where no unit names it.
    pub gate: PathBuf,
    /// This program, as the holder that mpsgated starts.
    pub program: PathBuf,
    /// Where tools leave CDI specifications for the container engine.
    pub cdi: PathBuf,
}

/// Another program of ours: where this one is, it is installed together with this one.
fn beside_us(installed: &str) -> PathBuf {
    let installed = PathBuf::from(installed);
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(installed.file_name()?)));
    beside.filter(|path| path.is_file()).unwrap_or(installed)
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            run: paths::RUN_DIR.into(),
            state: paths::STATE_DIR.into(),
            cgroups: CGROUPS.into(),
            kubelets: KUBELETS.map(PathBuf::from).into(),
            gate: beside_us(paths::GATE),
            program: PROGRAM.into(),
            cdi: CDI.into(),
        }
    }
}

impl Paths {
    /// All below `root`, as `root/run`, `root/state` and `root/kubelet`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self {
            run: root.join("run"),
            state: root.join("state"),
            cgroups: CGROUPS.into(),
            kubelets: vec![root.join("kubelet/device-plugins")],
            gate: paths::GATE.into(),
            program: PROGRAM.into(),
            cdi: root.join("cdi"),
        }
    }

    fn in_run(&self, product: &str) -> PathBuf {
        // The constants are absolute; their last parts are the names below either root.
        self.run.join(Path::new(product).file_name().unwrap_or_default())
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.in_run(paths::SOCKET)
    }

    /// The socket for users.
    #[must_use]
    pub fn run_socket(&self) -> PathBuf {
        self.in_run(paths::RUN_SOCKET)
    }

    /// The socket for jobs of Slurm.
    #[must_use]
    pub fn slurm_socket(&self) -> PathBuf {
        self.in_run(paths::SLURM_SOCKET)
    }

    /// The node's facts for the shim.
    #[must_use]
    pub fn snapshot(&self) -> PathBuf {
        self.in_run(paths::NODE_SNAPSHOT)
    }

    /// Whether the toolkit's settings name more than the shim knows.
    #[must_use]
    pub fn toolkit_names(&self) -> PathBuf {
        self.in_run(paths::TOOLKIT_NAMES)
    }

    /// The link to the real runtime.
    #[must_use]
    pub fn runtime_link(&self) -> PathBuf {
        self.in_run(paths::RUNTIME_LINK)
    }

    /// The records of `exec`.
    #[must_use]
    pub fn grants(&self) -> PathBuf {
        self.in_run(paths::GRANTS_DIR)
    }

    /// The ledger's directory.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.in_run(paths::LEDGER_DIR)
    }

    /// Whose the pids on the cards are.
    #[must_use]
    pub fn holders(&self) -> PathBuf {
        self.in_run(paths::HOLDERS)
    }

    /// The control daemons' directories.
    #[must_use]
    pub fn mps(&self) -> PathBuf {
        self.in_run(paths::MPS_DIR)
    }

    /// The socket of `mpsgated hold`.
    #[must_use]
    pub fn hold(&self) -> PathBuf {
        self.in_run(paths::HOLD_DIR)
    }

    /// The cards that `mpsgate enable` handed over.
    #[must_use]
    pub fn managed(&self) -> PathBuf {
        self.state.join("managed.json")
    }

    /// The device plugin's keys, and who has used which token.
    #[must_use]
    pub fn tokens(&self) -> PathBuf {
        self.state.join("tokens")
    }

    /// What was granted and used, day by day.
    #[must_use]
    pub fn usage(&self) -> PathBuf {
        self.state.join("usage")
    }

    /// What each card has answered.
    #[must_use]
    pub fn qualification(&self) -> PathBuf {
        self.state.join("qualification")
    }

    /// The compute modes to go back to.
    #[must_use]
    pub fn leases(&self) -> PathBuf {
        self.state.join("compute-mode")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_places_are_the_products_paths() {
        let paths = Paths::default();
        for (ours, product) in [
            (paths.socket(), paths::SOCKET),
            (paths.snapshot(), paths::NODE_SNAPSHOT),
            (paths.toolkit_names(), paths::TOOLKIT_NAMES),
            (paths.runtime_link(), paths::RUNTIME_LINK),
            (paths.grants(), paths::GRANTS_DIR),
            (paths.ledger(), paths::LEDGER_DIR),
            (paths.holders(), paths::HOLDERS),
            (paths.mps(), paths::MPS_DIR),
            (paths.hold(), paths::HOLD_DIR),
            (paths.usage(), paths::USAGE_DIR),
            (paths.qualification(), paths::QUALIFICATION_DIR),
        ] {
            assert_eq!(ours, Path::new(product));
        }
    }
}
