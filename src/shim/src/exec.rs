//! The step that becomes the real runtime.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use mpsgate_config::{Config, find_runtime, paths, runtime_for_pass_through};
use nix::errno::Errno;
use nix::unistd::execv;

/// Why the real runtime did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    /// No program of that name.
    #[error("the runtime {} is in none of {}", name.display(), paths::RUNTIME_SEARCH.join(", "))]
    NotFound {
        /// `runtime.path`.
        name: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot run the runtime {}", path.display())]
    Exec {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
}

impl ExecError {
    pub(crate) fn hint(&self) -> String {
        format!(
            "install it, or set runtime.path in {} to the runtime of this node",
            paths::CONFIG_FILE
        )
    }
}

/// Runs the real runtime in place of this process, with argv, environment, descriptors and working
/// directory as they came. Returns only where that failed.
///
/// The daemon keeps a link to the runtime that `runtime.path` names, so this needs no settings.
/// Without a daemon the settings are read; a broken file still yields its runtime or the default.
pub(crate) fn exec_runtime(argv: &[OsString]) -> ExecError {
    let link = Path::new(paths::RUNTIME_LINK);
    match exec(link, argv) {
        // There is no daemon yet, or the link's target has moved.
        Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => {}
        source => return ExecError::Exec { path: link.to_owned(), source },
    }
    let name = configured();
    match look_up(&name) {
        None => ExecError::NotFound { name },
        Some(path) => {
            let source = exec(&path, argv);
            ExecError::Exec { path, source }
        }
    }
}

/// `runtime.path` as configured, or its default.
fn configured() -> PathBuf {
    let config = Path::new(paths::CONFIG_FILE);
    match Config::load(config) {
        Ok(config) => config.runtime.path,
        Err(_) => runtime_for_pass_through(config),
    }
}

/// The runtime that [`exec_runtime`] would run; `None` where there is none.
pub(crate) fn runtime_path() -> Option<PathBuf> {
    std::fs::canonicalize(paths::RUNTIME_LINK).ok().or_else(|| look_up(&configured()))
}

fn look_up(name: &Path) -> Option<PathBuf> {
    let own = std::fs::metadata("/proc/self/exe").ok();
    find_runtime(name, own.as_ref())
}

fn exec(path: &Path, argv: &[OsString]) -> Errno {
    let c = |bytes: &[u8]| CString::new(bytes);
    let argv: Result<Vec<_>, _> = argv.iter().map(|a| c(a.as_bytes())).collect();
    let (Ok(path), Ok(argv)) = (c(path.as_os_str().as_bytes()), argv) else {
        return Errno::EINVAL;
    };
    match execv(&path, &argv) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}
