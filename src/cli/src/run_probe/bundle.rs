//! The bundle of a container that runs `mpsgate probe` on this node's own files.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Directories that hold what a program of this node needs, as far as it has them.
const OF_THE_NODE: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt"];
/// The program and the library inside.
const PROGRAM: &str = "/mpsgate";
const LIBRARY: &str = "/libcuda.so";

/// What to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'a> {
    /// `mpsgate` itself.
    pub(super) program: &'a Path,
    /// As the annotation has it.
    pub(super) memory: &'a str,
    /// Index or UUID.
    pub(super) gpu: Option<&'a str>,
    /// A name for the loader, or a file.
    pub(super) library: &'a OsStr,
    pub(super) json: bool,
}

/// Goes with this value.
#[derive(Debug)]
pub(super) struct Bundle {
    directory: TempDir,
}

impl Bundle {
    /// Below /run, where nobody but root may look into it and a reboot would take it away.
    pub(super) fn write(probe: &Probe<'_>) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("mpsgate-probe.").tempdir_in("/run")?;
        std::fs::create_dir(directory.path().join("rootfs"))?;
        let present: Vec<_> =
            OF_THE_NODE.iter().copied().filter(|path| Path::new(path).is_dir()).collect();
        let mut file = std::fs::File::create_new(directory.path().join("config.json"))?;
        file.write_all(spec(probe, &present).to_string().as_bytes())?;
        Ok(Self { directory })
    }

    pub(super) fn path(&self) -> String {
        self.directory.path().to_string_lossy().into_owned()
    }
}

/// The host's IPC namespace and its /dev/shm, as `docker --ipc=host` gives them, no capability, no
/// network.
fn spec(probe: &Probe<'_>, present: &[&str]) -> Value {
    let read_only = |source: &str, destination: &str| {
        json!({"destination": destination, "source": source, "type": "bind",
               "options": ["rbind", "ro", "nosuid", "nodev"]})
    };
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc",
               "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
               "options": ["nosuid", "mode=755", "size=65536k"]}),
        json!({"destination": "/dev/shm", "type": "bind", "source": "/dev/shm",
               "options": ["rbind", "nosuid", "noexec", "nodev"]}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
               "options": ["nosuid", "nodev"]}),
    ];
    mounts.extend(present.iter().map(|path| read_only(path, path)));
    mounts.push(read_only(&probe.program.to_string_lossy(), PROGRAM));
    let library = probe.library.to_string_lossy();
    let mut args = vec![PROGRAM, "probe", "--library"];
    if Path::new(&*library).is_absolute() {
        mounts.push(read_only(&library, LIBRARY));
        args.push(LIBRARY);
    } else {
        args.push(&library);
    }
    if probe.json {
        args.extend(["-o", "json"]);
    }
    let mut annotations = json!({"mpsgate.io/gpu-mem": probe.memory});
    if let (Some(gpu), Some(annotations)) = (probe.gpu, annotations.as_object_mut()) {
        annotations.insert("mpsgate.io/gpu".to_owned(), gpu.into());
    }
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "noNewPrivileges": true
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "mpsgate-probe",
        "mounts": mounts,
        "annotations": annotations,
        "linux": {
            "namespaces": [
                {"type": "pid"}, {"type": "mount"}, {"type": "uts"}, {"type": "network"}
            ],
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"]
        }
    })
}
