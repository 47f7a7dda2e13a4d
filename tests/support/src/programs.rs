//! Programs that a test needs: built from this workspace, or found on this machine.

use std::env;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The fake `nvidia-cuda-mps-control`. Its server lies beside it.
///
/// # Panics
/// Where it does not build.
#[must_use]
pub fn fake_mps_control() -> PathBuf {
    built().join("nvidia-cuda-mps-control")
}

/// The client that loads a libcuda, and without one is any process that a test needs.
///
/// # Panics
/// Where it does not build.
#[must_use]
pub fn cuda_client() -> PathBuf {
    built().join("cuda-client")
}

/// mpsgate's own `mpsgate-gate`.
///
/// # Panics
/// Where it does not build.
#[must_use]
pub fn mpsgate_gate() -> PathBuf {
    built().join("mpsgate-gate")
}

/// mpsgate's own `mpsgated`: as the holder of control daemons, and as the launcher that becomes
/// one.
///
/// # Panics
/// Where it does not build.
#[must_use]
pub fn mpsgated() -> PathBuf {
    built().join("mpsgated")
}

/// A holder of control daemons, `mpsgated hold`. Dropping it ends it, with all that it has started.
#[derive(Debug)]
pub struct Holder(Child);

impl Holder {
    /// One that answers in `dir`, for the cards' directories below `mps`.
    ///
    /// # Panics
    /// Where it does not answer.
    #[must_use]
    pub fn start(dir: &Path, mps: &Path, control: &Path, gate: Option<&Path>) -> Self {
        let mut command = Command::new(mpsgated());
        command.arg("hold").arg("--dir").arg(dir).arg("--mps").arg(mps);
        command.arg("--control").arg(control);
        if let Some(gate) = gate {
            command.arg("--gate").arg(gate);
        }
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let holder = Self(child);
        crate::wait_for("the holder answers", || {
            UnixStream::connect(dir.join("hold.sock")).is_ok()
        });
        holder
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap_or_default());
        // It ends what it holds, and within 12 s itself.
        let _ = kill(pid, Signal::SIGTERM);
        let _ = self.0.wait();
    }
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
            .args(["-p", "mpsgate-gate", "-p", "mpsgate-daemon"])
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
