//! Programs that a test needs: built from this workspace, or found on this machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The fake `nvidia-cuda-mps-control`. Its server and the client that loads a libcuda,
/// `cuda-client`, lie beside it.
///
/// # Panics
/// Where it does not build.
#[must_use]
pub fn fake_mps_control() -> PathBuf {
    built().join("nvidia-cuda-mps-control")
}

/// mpsgate's own `mpsgate-gate`.
///
/// # Panics
/// Where it does not build.
#[must_use]
pub fn mpsgate_gate() -> PathBuf {
    built().join("mpsgate-gate")
}

/// Where they are, built once for each process of tests where `MPSGATE_TEST_FAKES` does not name
/// the directory that has them.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(built) = env::var_os("MPSGATE_TEST_FAKES") {
            return built.into();
        }
        let test = env::current_exe().expect("a running program has a path");
        // <target>/<profile>/deps/<test>-<hash>
        let target = test.ancestors().nth(3).expect("cargo's directories");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--locked", "-p", "fake-mps-control", "-p", "cuda-client"])
            .args(["-p", "mpsgate-gate"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the programs of the tests do not build");
        target.join("debug")
    })
}

/// Where the scripts of `tests/env` keep what they download and build.
#[must_use]
pub fn cache() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    cache
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
        .unwrap_or_default()
        .join("mpsgate")
}
