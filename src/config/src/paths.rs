//! Every absolute path that mpsgate itself chooses, in one place.
//!
//! Units, packages and manual pages name the same paths; nothing else in the workspace spells one
//! out. Paths of the driver (`/dev/nvidia*`, `/proc/devices`) belong to the crates that read them.

/// The operator's settings. Without the file all settings are the defaults.
pub const CONFIG_FILE: &str = "/etc/mpsgate/config.toml";

/// Everything that may be lost in a reboot; root-owned, mode 0711 so that client directories below
/// it can be reached.
pub const RUN_DIR: &str = "/run/mpsgate";

/// The daemon's socket, for root only; the daemon also checks the peer with `SO_PEERCRED`.
pub const SOCKET: &str = "/run/mpsgate/mpsgated.sock";

/// The daemon's second socket, for users of the group `run.group`. They get grants for their own
/// processes there, and nothing else.
pub const RUN_SOCKET: &str = "/run/mpsgate/run.sock";

/// The daemon's third socket, for processes of Slurm jobs. They get their job's grant there, and
/// nothing else.
pub const SLURM_SOCKET: &str = "/run/mpsgate/slurm.sock";

/// The managed cards as the daemon last saw them. The shim reads it only if a spec shows a signal.
pub const NODE_SNAPSHOT: &str = "/run/mpsgate/node.json";

/// This file exists while the NVIDIA toolkit's settings name variables or annotations that the shim
/// does not know by itself. Only then the shim reads [`NODE_SNAPSHOT`] for a spec that shows
/// nothing.
pub const TOOLKIT_NAMES: &str = "/run/mpsgate/toolkit-names";

/// Symbolic link to the real runtime that the daemon resolved from the settings, so that verbs
/// that need no decision are passed on without opening [`CONFIG_FILE`].
pub const RUNTIME_LINK: &str = "/run/mpsgate/runtime";

/// Applied grants, one file each, from which `exec` restores the environment.
pub const GRANTS_DIR: &str = "/run/mpsgate/grants";

/// The daemon's ledger of grants and promises.
pub const LEDGER_DIR: &str = "/run/mpsgate/ledger";

/// The owners of the pids that NVML lists, as the daemon's watchdog has seen them.
pub const HOLDERS: &str = "/run/mpsgate/holders.json";

/// One directory per managed card below it: pipe and log of MPS, and the doors (`containers`,
/// `clients`). Short, because the sockets' full paths must fit `sun_path` (107 bytes).
pub const MPS_DIR: &str = "/run/mpsgate/mps";

/// The socket and the lock of `mpsgated hold`, which keeps control daemons where no systemd does;
/// root's alone.
pub const HOLD_DIR: &str = "/run/mpsgate/hold";

/// The runtime root of the containers of `mpsgate qualify`, and of no others.
pub const QUALIFY_ROOT: &str = "/run/mpsgate/qualify";

/// In [`MPS_DIR`]: a file for each card with a gate, by the card's number, for `mpsgate-gate
/// --every-card`.
pub const GATE_ORDERS: &str = "gates";

/// Data that must survive a reboot.
pub const STATE_DIR: &str = "/var/lib/mpsgate";

/// The answers of each card.
pub const QUALIFICATION_DIR: &str = "/var/lib/mpsgate/qualification";

/// Granted and used memory, a file for each day.
pub const USAGE_DIR: &str = "/var/lib/mpsgate/usage";

/// The program that serves the containers' doors of a card, where mpsgated starts it itself.
pub const GATE: &str = "/usr/bin/mpsgate-gate";

/// The program that engines call in place of the real runtime.
pub const RUNTIME: &str = "/usr/bin/mpsgate-runtime";

/// The data with which `mpsgate configure` undoes its changes: a folder for each engine.
pub const CONFIGURE_DIR: &str = "/var/lib/mpsgate/configure";

/// The settings that running engines have loaded, as far as known: a file for each engine.
pub const ENGINES_DIR: &str = "/run/mpsgate/engines";

/// The OCI hook. In `/usr/bin` because hook files and packages of the engines name it, and an
/// operator who reads a bundle wants to run it by hand.
pub const HOOK: &str = "/usr/bin/mpsgate-hook";

/// Where a runtime given by name is searched, in this order. Never `$PATH`: the engine's
/// environment is not trusted, and BuildKit, for one, passes on its caller's.
pub const RUNTIME_SEARCH: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
