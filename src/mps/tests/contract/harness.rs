//! Finds the programs, gives each test its own copy and directories, and ends the test's processes.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use std::{env, fs};

use mpsgate_mps::{ControlDaemon, HoldSpawner, MpsDirectories, MpsInstance, Origin};
use mpsgate_testing::programs::{Holder, cache, fake_mps_control, mpsgate_gate};
pub(crate) use mpsgate_testing::{LIMIT, need, root, wait_for};

/// Any uid other than root's and this process's.
pub(crate) const NOBODY: u32 = 65_534;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Real,
    Fake,
}

/// One program under test, in a directory that ends with it.
pub(crate) struct Bench {
    pub(crate) kind: Kind,
    pub(crate) version: u32,
    pub(crate) binary: PathBuf,
    children: Mutex<Vec<Child>>,
    /// It ends before its directory.
    holder: Mutex<Option<Holder>>,
    pub(crate) dir: tempfile::TempDir,
}

/// Fails, with the reason, if this machine has no such program.
pub(crate) fn bench(kind: Kind, version: u32) -> Result<Bench, String> {
    let program = match kind {
        Kind::Real => real(version)?,
        Kind::Fake => fake_mps_control(),
    };
    let dir = tempfile::Builder::new().prefix("mpsgate").tempdir().unwrap();
    // Servers and clients of another uid must get through.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let binary = dir.path().join("bin/nvidia-cuda-mps-control");
    fs::create_dir(dir.path().join("bin")).unwrap();
    copy(&program, &binary);
    if kind == Kind::Fake {
        let server = "nvidia-cuda-mps-server";
        copy(&program.with_file_name(server), &binary.with_file_name(server));
        // The fake learns its version from the environment, which the crate clears. A wrapper would
        // be another program, so a file beside the fake has the version.
        fs::write(dir.path().join("bin/fake-mps-version"), version.to_string()).unwrap();
    }
    Ok(Bench { kind, version, binary, children: Mutex::default(), holder: Mutex::default(), dir })
}

/// Copies by another process: a descriptor of this one, open for writing, could be inherited by a
/// process that another test forks just then, and the copy could not be executed (ETXTBSY).
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Writes an executable shell script.
pub(crate) fn script(path: &Path, body: &str) {
    let text = path.with_extension("txt");
    fs::write(&text, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    copy(&text, path);
}

/// A real program that behaves as that version: the one named by `MPSGATE_TEST_MPS_CONTROL`, or one
/// unpacked by tests/env/nvidia-cuda-mps.sh.
fn real(version: u32) -> Result<PathBuf, String> {
    let cached = fs::read_dir(cache()).into_iter().flatten().flatten();
    let cached = cached.map(|entry| entry.path().join("usr/bin/nvidia-cuda-mps-control"));
    env::var_os("MPSGATE_TEST_MPS_CONTROL")
        .map(PathBuf::from)
        .into_iter()
        .chain(cached)
        .find(|path| path.is_file() && behaves_as(path) == version)
        .ok_or_else(|| needs("nvidia-cuda-mps-control", "nvidia-cuda-mps.sh", version))
}

/// 550 brought the command and everything else that these tests distinguish.
fn behaves_as(program: &Path) -> u32 {
    let bytes = fs::read(program).unwrap();
    let knows_status = bytes.windows(17).any(|window| window == b"get_server_status");
    if knows_status { 550 } else { 535 }
}

/// NVIDIA's libcuda of that branch, unpacked by tests/env/nvidia-libcuda.sh.
pub(crate) fn libcuda(version: u32) -> Result<PathBuf, String> {
    let cached = fs::read_dir(cache()).into_iter().flatten().flatten();
    cached
        .filter(|entry| {
            entry.file_name().to_string_lossy().starts_with(&format!("libcuda1-{version}."))
        })
        .flat_map(|entry| {
            fs::read_dir(entry.path().join("usr/lib")).into_iter().flatten().flatten()
        })
        .map(|entry| entry.path().join("nvidia/current/libcuda.so.1"))
        .find(|path| path.is_file())
        .ok_or_else(|| needs("libcuda", "nvidia-libcuda.sh", version))
}

/// Whether the real program is the driver's own, on a machine with a GPU: `MPSGATE_TEST_GPU`.
pub(crate) fn on_a_gpu() -> bool {
    env::var_os("MPSGATE_TEST_GPU").is_some()
}

/// The card's UUID. From 580 on a real daemon ends at once if there is no such card, so
/// `MPSGATE_TEST_GPU` names an existing one.
pub(crate) fn uuid() -> String {
    env::var("MPSGATE_TEST_GPU").unwrap_or_else(|_| "GPU-00000000-test".into())
}

fn needs(program: &str, script: &str, version: u32) -> String {
    format!("needs NVIDIA's {program} {version}; tests/env/{script} {version} fetches it")
}

impl Bench {
    /// Gives NVIDIA's daemon the fake's server too: its own needs a GPU. From 580 on the two speak
    /// another protocol, which the fake's server does not know.
    pub(crate) fn with_server(&self) -> Result<(), String> {
        if self.kind == Kind::Real {
            if on_a_gpu() {
                return Err("needs a server of the fake's, and this is a machine with a GPU".into());
            }
            let server = "nvidia-cuda-mps-server";
            copy(&fake_mps_control().with_file_name(server), &self.binary.with_file_name(server));
        }
        Ok(())
    }

    /// Whether it takes `-multiuser-server`, as drivers from 580 on do.
    pub(crate) fn is_multiuser(&self) -> bool {
        self.version >= 580 || self.kind == Kind::Real && on_a_gpu()
    }

    /// A readable copy of a file of the installation.
    pub(crate) fn readable(&self, file: &Path) -> PathBuf {
        let here = self.dir.path().join(file.file_name().unwrap());
        copy(file, &here);
        fs::set_permissions(&here, fs::Permissions::from_mode(0o755)).unwrap();
        here
    }

    /// The client that loads a libcuda.
    pub(crate) fn cuda_client(&self) -> PathBuf {
        self.readable(&fake_mps_control().with_file_name("cuda-client"))
    }

    pub(crate) fn dirs(&self, card: u32) -> MpsDirectories {
        MpsDirectories::new(&self.dir.path().join("mps"), card).unwrap()
    }

    fn hold_dir(&self) -> PathBuf {
        self.dir.path().join("hold")
    }

    /// The holder of this bench, which is started if it is missing.
    pub(crate) fn holder(&self) -> MutexGuard<'_, Option<Holder>> {
        let mut holder = self.holder.lock().unwrap();
        holder.get_or_insert_with(|| {
            let (mps, gate) = (self.dir.path().join("mps"), mpsgate_gate());
            Holder::start(&self.hold_dir(), &mps, &self.binary, Some(&gate))
        });
        holder
    }

    /// A spawner that asks that holder.
    pub(crate) fn spawner(&self) -> HoldSpawner {
        drop(self.holder());
        HoldSpawner::new(self.hold_dir(), self.dir.path().join("mps/gates"))
    }

    /// The directory in which root finds the sockets of that daemon.
    pub(crate) fn pipe_of(&self, daemon: &ControlDaemon) -> PathBuf {
        let pipe = self.dirs(0).pipe_dir();
        let root = format!("/proc/{}/root", daemon.process.pid());
        Path::new(&root).join(pipe.strip_prefix("/").unwrap())
    }

    /// A directory with only the running daemon's `control`, as a client has one. The way there is
    /// a descriptor that every client inherits: another user, or another user namespace, cannot
    /// pass the daemon's `/proc/PID/root`.
    pub(crate) fn control_alone(&self) -> PathBuf {
        let pipe = self.card().pipe().unwrap().unwrap();
        let inherited = nix::unistd::dup(&pipe).unwrap();
        let control = format!("/proc/self/fd/{}/control", inherited.as_raw_fd());
        // Open as long as this process: its clients come and go.
        std::mem::forget(inherited);
        self.alone(Path::new(&control))
    }

    /// A directory with nothing but a link to that socket.
    pub(crate) fn alone(&self, socket: &Path) -> PathBuf {
        let dir = self.dir.path().join("alone");
        fs::create_dir_all(&dir).unwrap();
        let control = dir.join("control");
        let _ = fs::remove_file(&control);
        symlink(socket, control).unwrap();
        dir
    }

    /// The content of the directory above the cards' directories, without the holder's socket.
    pub(crate) fn left(&self) -> Vec<String> {
        let names = listing(&self.dir.path().join("mps")).into_keys();
        names.filter(|name| name != "store.sock").collect()
    }

    pub(crate) fn card(&self) -> MpsInstance {
        MpsInstance::new(0, uuid(), &self.binary, self.dirs(0)).with_holder(self.hold_dir())
    }

    /// A card with a short time limit, so that a wedge shows soon.
    pub(crate) fn impatient_card(&self) -> MpsInstance {
        self.card().with_channel_timeout(Duration::from_millis(400))
    }

    pub(crate) fn started(&self) -> (MpsInstance, ControlDaemon) {
        let card = self.card();
        let (daemon, origin) = card.ensure_running(&self.spawner(), LIMIT).unwrap();
        assert_eq!(origin, Origin::Started);
        (card, daemon)
    }

    /// Runs the front-end as any user: returns exit status and stdout.
    pub(crate) fn ask(
        &self,
        pipe_dir: &Path,
        uid: Option<u32>,
        commands: &str,
    ) -> (Option<i32>, String) {
        let mut command = self.command(pipe_dir);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let output = feed(command, commands);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    pub(crate) fn command(&self, pipe_dir: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("CUDA_MPS_PIPE_DIRECTORY", pipe_dir);
        command.env("CUDA_MPS_LOG_DIRECTORY", self.dirs(0).log_dir());
        command
    }

    /// The fake's CUDA client. Its control daemon may be NVIDIA's.
    pub(crate) fn client(&self, pipe_dir: &Path) -> Command {
        let program = self.dir.path().join("bin/fake-client");
        if !program.exists() {
            copy(&fake_mps_control(), &program);
        }
        let mut command = Command::new(program);
        command.env_clear().env("CUDA_MPS_PIPE_DIRECTORY", pipe_dir).arg("client");
        command
    }

    /// Runs a child that ends with the test at the latest.
    pub(crate) fn keep(&self, mut command: Command) -> u32 {
        let child = command.spawn().unwrap();
        let pid = child.id();
        self.children.lock().unwrap().push(child);
        pid
    }

    /// Waits for a kept child's end and gives its exit status.
    pub(crate) fn status_of(&self, pid: u32) -> Option<i32> {
        let mut children = self.children.lock().unwrap();
        let position = children.iter().position(|child| child.id() == pid).unwrap();
        let mut child = children.remove(position);
        drop(children);
        child.wait().unwrap().code()
    }
}

pub(crate) fn feed(mut command: Command, stdin: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A front-end without a daemon ends before it reads.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in self.children.get_mut().unwrap() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Whatever runs out of our directory was started by this test.
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if fs::read_link(entry.path().join("exe"))
                .is_ok_and(|exe| exe.starts_with(self.dir.path()))
            {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
    }
}

/// File name to type and mode, as `ls -l` shows them.
pub(crate) fn listing(dir: &Path) -> BTreeMap<String, String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.path().symlink_metadata().unwrap();
            let mode = meta.permissions().mode();
            let kind = match mode & 0o170_000 {
                0o140_000 => 's',
                0o010_000 => 'p',
                0o100_000 => '-',
                0o040_000 => 'd',
                _ => '?',
            };
            (entry.file_name().into_string().unwrap(), format!("{kind}{:04o}", mode & 0o7777))
        })
        .collect()
}
