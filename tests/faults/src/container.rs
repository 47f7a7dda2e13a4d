//! A container as an engine makes it: a bundle, and calls of `mpsgate-runtime`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Failure, Workplace};

const RUNTIME: &str = "/usr/bin/mpsgate-runtime";
const HOOK: &str = "/usr/bin/mpsgate-hook";
/// No call of a runtime takes this long; one that does hangs.
const CALL_LIMIT: Duration = Duration::from_secs(100);

/// What a container is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has nothing to do with GPUs.
    Ordinary,
    /// Asks for memory of a card, and runs.
    Granted,
    /// The same, and its program ends by itself.
    Short,
    /// The same, and allocates until its memory cgroup kills it.
    Greedy,
    /// Asks for memory; runc finds no root file system: the reservation has to expire.
    NoRoot,
    /// Asks for memory; its program does not exist: the grant has to end.
    NoProgram,
    /// Asks for more than a card has.
    TooLarge,
}

/// A bundle and what it asks for.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    /// MiB that it asks for; 0 for an ordinary one.
    pub(crate) mib: u64,
    pub(crate) directory: PathBuf,
    log: PathBuf,
    root: PathBuf,
    original: Vec<u8>,
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) ok: bool,
    /// Its exit status and what it said.
    pub(crate) text: String,
}

impl Container {
    /// Writes the bundle. `card` is asked for by index.
    pub(crate) fn new(
        at: &Workplace,
        id: String,
        kind: Kind,
        mib: u64,
        card: u64,
    ) -> Result<Self, Failure> {
        let directory = at.scratch.join("b").join(&id);
        std::fs::create_dir_all(&directory)?;
        let mib = if kind == Kind::Ordinary { 0 } else { mib };
        let original = serde_json::to_vec_pretty(&spec(at, &id, kind, mib, card)?)?;
        let container = Self {
            log: at.scratch.join("log").join(&id),
            root: at.scratch.join("runc"),
            id,
            kind,
            mib,
            directory,
            original,
        };
        container.restore()?;
        Ok(container)
    }

    fn config(&self) -> PathBuf {
        self.directory.join("config.json")
    }

    /// Writes config.json anew, as an engine does for each instance.
    pub(crate) fn restore(&self) -> Result<(), Failure> {
        Ok(std::fs::write(self.config(), &self.original)?)
    }

    pub(crate) fn text(&self) -> Result<Vec<u8>, Failure> {
        Ok(std::fs::read(self.config())?)
    }

    /// Whether config.json is what it was before a call, or a complete one with our edits.
    pub(crate) fn evaluate(&self, before: &[u8]) -> Result<(), Failure> {
        let now = self.text()?;
        if now == before {
            return Ok(());
        }
        let spec: Value = serde_json::from_slice(&now).map_err(|error| {
            format!("config.json of {} is neither old nor whole: {error}", self.id)
        })?;
        self.evaluate_edits(&spec)
            .map_err(|what| format!("config.json of {}: {what}", self.id).into())
    }

    fn evaluate_edits(&self, spec: &Value) -> Result<(), String> {
        if self.mib == 0 {
            return Err("was changed, and the container asked for nothing".to_owned());
        }
        if spec["futureField"] != json!({"kept": [null, 1]}) {
            return Err("has lost a field that nobody knows".to_owned());
        }
        let hooks = spec["hooks"]["createRuntime"].as_array().cloned().unwrap_or_default();
        let ours = hooks.iter().filter(|hook| hook["path"] == HOOK).count();
        if ours != 1 {
            return Err(format!("has {ours} of our hooks"));
        }
        let env = spec["process"]["env"].as_array().cloned().unwrap_or_default();
        let limit = format!("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={}M", self.mib);
        let limits = env.iter().filter(|variable| *variable == limit.as_str()).count();
        if limits != 1 {
            return Err(format!("has the limit {limits} times in its env"));
        }
        Ok(())
    }

    /// Temporary files of ours in the bundle.
    pub(crate) fn leftovers(&self) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') {
                found.push(format!("{}/{name}", self.directory.display()));
            }
        }
        Ok(found)
    }

    pub(crate) fn create(&self) -> Result<Called, Failure> {
        let pid_file = self.directory.join("pid");
        let _ = std::fs::remove_file(&pid_file);
        let bundle = self.directory.to_string_lossy();
        self.call(&[
            "create",
            "--bundle",
            &bundle,
            "--pid-file",
            &pid_file.to_string_lossy(),
            &self.id,
        ])
    }

    /// The pid of its init, after `create`.
    pub(crate) fn pid(&self) -> Result<u32, Failure> {
        Ok(std::fs::read_to_string(self.directory.join("pid"))?.trim().parse()?)
    }

    pub(crate) fn start(&self) -> Result<Called, Failure> {
        self.call(&["start", &self.id])
    }

    pub(crate) fn exec(&self) -> Result<Called, Failure> {
        // With PATH, because a --env replaces all of the container's environment for crun before
        // 1.29.
        self.call(&["exec", "--env", "A=1", "--env", "PATH=/bin", &self.id, "true"])
    }

    /// `exec` with a process document, as containerd does it.
    pub(crate) fn exec_document(&self) -> Result<Called, Failure> {
        let document = self.directory.join("process.json");
        let process = json!({
            "user": {"uid": 0, "gid": 0}, "args": ["true"], "env": ["PATH=/bin", "A=1"], "cwd": "/"
        });
        std::fs::write(&document, process.to_string())?;
        self.call(&["exec", "--process", &document.to_string_lossy(), &self.id])
    }

    pub(crate) fn kill(&self) -> Result<Called, Failure> {
        self.call(&["kill", &self.id, "KILL"])
    }

    /// Removes the container, whatever state it is in.
    pub(crate) fn delete(&self) -> Result<Called, Failure> {
        self.call(&["delete", "--force", &self.id])
    }

    /// Runs the hook that ends the grant, as a runtime does when a container has stopped.
    pub(crate) fn poststop(&self) -> Result<(), Failure> {
        let spec: Value = serde_json::from_slice(&self.text()?)?;
        let hooks = spec["hooks"]["poststop"].as_array().cloned().unwrap_or_default();
        let ours =
            hooks.iter().find(|hook| hook["path"] == HOOK).ok_or("no poststop hook of ours")?;
        let words = ours["args"].as_array().cloned().unwrap_or_default();
        let state = json!({
            "ociVersion": "1.0.2", "id": self.id, "status": "stopped", "bundle": self.directory
        });
        let mut hook = Command::new(HOOK)
            .args(words.iter().skip(1).filter_map(Value::as_str))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut input) = hook.stdin.take() {
            input.write_all(state.to_string().as_bytes())?;
        }
        hook.wait()?;
        Ok(())
    }

    /// Removes what a test keeps of it.
    pub(crate) fn forget(&self) {
        let _ = std::fs::remove_dir_all(&self.directory);
        let _ = std::fs::remove_file(&self.log);
        let _ = std::fs::remove_file(self.log.with_extension("json"));
    }

    fn call(&self, arguments: &[&str]) -> Result<Called, Failure> {
        let log = self.log.with_extension("json");
        let _ = std::fs::remove_file(&self.log);
        // Appended, because a hook that speaks past its runtime writes, too.
        let output = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut child = Command::new(RUNTIME)
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(&log)
            .args(["--log-format", "json"])
            .args(arguments)
            .stdin(Stdio::null())
            // A file, because a container that lives on keeps its end of a pipe open.
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let deadline = Instant::now() + CALL_LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                return Err(format!("{} of {} hangs", arguments[0], self.id).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).trim().replace('\n', " | ");
        Ok(Called { ok: status.success(), text: format!("{}: {status}: {said}", arguments[0]) })
    }
}

/// The pid of a process is still the one of this container.
pub(crate) fn is_alive(at: &Workplace, id: &str, pid: u32) -> bool {
    cgroup_of(pid).is_some_and(|path| path == format!("{}/{id}", at.cgroup))
}

/// The path of a process in the hierarchy that names containers; `None` when it has ended.
pub(crate) fn cgroup_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    if rest.trim_start().starts_with('Z') {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let line = text.lines().find(|line| line.contains(":devices:") || line.starts_with("0::/"))?;
    Some(line.splitn(3, ':').nth(2)?.to_owned())
}

fn spec(at: &Workplace, id: &str, kind: Kind, mib: u64, card: u64) -> Result<Value, Failure> {
    let mut spec = base(at)?;
    let program: &[&str] = match kind {
        Kind::Short => &["true"],
        Kind::NoProgram => &["/no/such/program"],
        Kind::Greedy => &["sh", "-c", "x=0123456789abcdef; while :; do x=$x$x; done"],
        _ => &["sleep", "3600"],
    };
    spec["process"]["args"] = json!(program);
    spec["process"]["terminal"] = json!(false);
    spec["hostname"] = json!(id);
    spec["futureField"] = json!({"kept": [null, 1]});
    let root = if kind == Kind::NoRoot { "no/such/root".into() } else { at.scratch.join("rootfs") };
    spec["root"] = json!({"path": root, "readonly": true});
    spec["linux"]["cgroupsPath"] = json!(format!("{}/{id}", at.cgroup));
    if kind == Kind::Greedy {
        spec["linux"]["resources"]["memory"] = json!({"limit": 24 << 20, "swap": 24 << 20});
    }
    if let Some(namespaces) = spec["linux"]["namespaces"].as_array_mut() {
        namespaces.retain(|namespace| namespace["type"] != "network" && namespace["type"] != "ipc");
    }
    if kind != Kind::Ordinary {
        let wanted = if kind == Kind::TooLarge { 100 << 10 } else { mib };
        spec["annotations"] = json!({
            "mpsgate.io/gpu-mem": format!("{wanted}Mi"), "mpsgate.io/gpu": card.to_string()
        });
    }
    Ok(spec)
}

/// What the runtime's `spec` wrote.
fn base(at: &Workplace) -> Result<Value, Failure> {
    Ok(serde_json::from_slice(&std::fs::read(at.scratch.join("spec/config.json"))?)?)
}
