//! Docker with mpsgate-runtime as its default runtime, live restore on, and its own directories:
//! the engine that a soak kills.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::node::{run, wait_for};
use crate::{Failure, Workplace};

const DOCKER: &str = "/usr/bin/docker";

/// A dockerd and its containerd.
pub(crate) struct Docker {
    at: Workplace,
    daemon: Child,
}

fn socket(at: &Workplace) -> String {
    format!("unix://{}", at.scratch.join("docker.sock").display())
}

/// `docker ARGUMENTS`; safe to call while the engine is away.
pub(crate) fn docker(at: &Workplace, arguments: &[&str]) -> Result<String, Failure> {
    let socket = socket(at);
    let all: Vec<&str> = ["--host", &socket].into_iter().chain(arguments.iter().copied()).collect();
    run(DOCKER, &all)
}

impl Docker {
    pub(crate) fn start(at: &Workplace) -> Result<Self, Failure> {
        let docker_at = Self { at: at.clone(), daemon: spawn(at)? };
        docker_at.wait_answers()?;
        let archive = at.scratch.join("rootfs.tar");
        let rootfs = at.scratch.join("rootfs");
        run("tar", &["-C", &rootfs.to_string_lossy(), "-cf", &archive.to_string_lossy(), "."])?;
        docker(at, &["import", &archive.to_string_lossy(), "bb"])?;
        Ok(docker_at)
    }

    fn wait_answers(&self) -> Result<(), Failure> {
        wait_for("dockerd to answer", || Ok(docker(&self.at, &["version"]).is_ok()))
    }

    /// SIGKILL to dockerd, or to its containerd; then it is started again, as systemd would.
    pub(crate) fn kill(&mut self, containerd: bool) -> Result<(), Failure> {
        if containerd {
            if let Some(pid) = self.containerd() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            // dockerd starts its own again by itself.
            return self.wait_answers();
        }
        self.daemon.kill()?;
        self.daemon.wait()?;
        // It dies with its parent, but not at once; two on one directory do not go.
        if let Some(pid) = self.containerd() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            wait_for("containerd to end", || Ok(self.containerd().is_none()))?;
        }
        for file in ["docker.pid", "docker.exec/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(self.at.scratch.join(file));
        }
        self.daemon = spawn(&self.at)?;
        self.wait_answers()
    }

    /// Ends containers that Docker has made and does not know: it was killed between `runc create`
    /// and its own note of it (seen with dockerd 20.10, `--live-restore`). Their init waits for a
    /// start that never comes, and holds what was granted to it. Returns how many there were.
    pub(crate) fn end_forgotten(&self) -> Result<u32, Failure> {
        let first = self.forgotten()?;
        if first.is_empty() {
            return Ok(0);
        }
        // One that is just being removed is known to containerd a little longer.
        std::thread::sleep(Duration::from_secs(1));
        let mut ended = 0;
        for shim in self.forgotten()?.into_iter().filter(|shim| first.contains(shim)) {
            for pid in children(shim).into_iter().chain([shim]) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            ended += 1;
        }
        Ok(ended)
    }

    /// containerd's shims of containers that Docker does not list.
    fn forgotten(&self) -> Result<Vec<i32>, Failure> {
        let known = docker(&self.at, &["ps", "-aq", "--no-trunc"])?;
        let known: Vec<&str> = known.split_whitespace().collect();
        let ours = self.at.scratch.join("docker.exec").to_string_lossy().into_owned();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).into_owned();
            let mut words = command.split('\0');
            let is_shim = words.next().is_some_and(|program| program.contains("containerd-shim"));
            let id = words.skip_while(|word| *word != "-id").nth(1).unwrap_or_default();
            if is_shim && command.contains(&ours) && !known.contains(&id) {
                found.push(pid);
            }
        }
        Ok(found)
    }

    fn containerd(&self) -> Option<i32> {
        let ours = self.at.scratch.join("docker.exec").to_string_lossy().into_owned();
        std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let command = std::fs::read(entry.path().join("cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).into_owned();
            let program = command.split('\0').next().unwrap_or_default();
            (program.ends_with("containerd") && command.contains(&ours)).then_some(pid)
        })
    }

    /// Removes all containers and ends it.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        self.remove_all()?;
        kill(Pid::from_raw(self.daemon.id().try_into()?), Signal::SIGTERM)?;
        self.daemon.wait()?;
        Ok(())
    }

    pub(crate) fn remove_all(&self) -> Result<(), Failure> {
        wait_for("docker to remove its containers", || {
            let ids = docker(&self.at, &["ps", "-aq"])?;
            for id in ids.split_whitespace() {
                let _ = docker(&self.at, &["rm", "-f", id]);
            }
            Ok(ids.trim().is_empty())
        })
    }
}

fn children(parent: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    text.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn spawn(at: &Workplace) -> Result<Child, Failure> {
    let log =
        OpenOptions::new().create(true).append(true).open(at.scratch.join("log/dockerd.log"))?;
    let path = |name: &str| -> PathBuf { at.scratch.join(name) };
    let child = Command::new("dockerd")
        .arg("--host")
        .arg(socket(at))
        .arg("--data-root")
        .arg(path("docker"))
        .arg("--exec-root")
        .arg(path("docker.exec"))
        .arg("--pidfile")
        .arg(path("docker.pid"))
        .args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver", "vfs"])
        .args(["--userland-proxy=false", "--oom-score-adjust", "0", "--live-restore"])
        .args(["--add-runtime", "mpsgate=/usr/bin/mpsgate-runtime", "--default-runtime", "mpsgate"])
        .args(["--cgroup-parent", &at.cgroup])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(child)
}
