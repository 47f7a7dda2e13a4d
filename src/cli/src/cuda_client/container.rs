//! The bundle of a container of ours: it runs `mpsgate probe` on this node's own files.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;

use oci_spec::runtime::Spec;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::PATH;

/// What holds all that a program of this node needs, as far as the node has it. Of /etc only how
/// the loader finds a library (Debian's libcuda is one of its alternatives).
const OF_THE_NODE: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/etc/alternatives",
    "/etc/ld.so.cache",
];
/// The program and the library inside.
const PROGRAM: &str = "/mpsgate";
const LIBRARY: &str = "/libcuda.so";

/// A container that asks for GPU memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Container<'a> {
    /// `mpsgate` itself.
    pub(crate) program: &'a Path,
    /// As the annotation has it.
    pub(crate) memory: &'a str,
    /// Index or UUID.
    pub(crate) gpu: Option<&'a str>,
    /// A name for the loader, or a file.
    pub(crate) library: &'a OsStr,
    /// Of its process.
    pub(crate) uid: u32,
    /// What its process is.
    pub(crate) runs: Runs<'a>,
}

/// The process of a container of ours.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Runs<'a> {
    /// `mpsgate probe` with these arguments, by a command that runs what follows it.
    Probe { by: &'a [&'a str], args: &'a [&'a str] },
    /// The same with a `/dev/shm` of its own.
    OwnShm { args: &'a [&'a str] },
    /// A shell's words, with a file of the node at its own path beside.
    Shell { words: &'a str, file: &'a Path },
}

/// Goes with this value.
#[derive(Debug)]
pub(crate) struct Bundle {
    directory: TempDir,
}

impl Bundle {
    /// Below /run, where nobody but root may look into it and a reboot would take it away.
    pub(crate) fn write(container: &Container<'_>) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("mpsgate-probe.").tempdir_in("/run")?;
        std::fs::create_dir(directory.path().join("rootfs"))?;
        let present: Vec<_> =
            OF_THE_NODE.iter().copied().filter(|path| Path::new(path).exists()).collect();
        let mut file = std::fs::File::create_new(directory.path().join("config.json"))?;
        file.write_all(&serde_json::to_vec(&spec(container, &present)?)?)?;
        Ok(Self { directory })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// The host's IPC namespace and its /dev/shm, as `docker --ipc=host` gives them, no capability, no
/// network.
fn spec(container: &Container<'_>, present: &[&str]) -> serde_json::Result<Spec> {
    let read_only =
        |source: &str, to: &str| mount("bind", source, to, &["rbind", "ro", "nosuid", "nodev"]);
    let tmpfs = |to: &str, options: &[&str]| mount("tmpfs", "tmpfs", to, options);
    let mut mounts = vec![
        mount("proc", "proc", "/proc", &["nosuid", "noexec", "nodev"]),
        tmpfs("/dev", &["nosuid", "mode=755", "size=65536k"]),
        match container.runs {
            Runs::OwnShm { .. } => tmpfs("/dev/shm", &["nosuid", "noexec", "nodev", "size=65536k"]),
            _ => mount("bind", "/dev/shm", "/dev/shm", &["rbind", "nosuid", "noexec", "nodev"]),
        },
        tmpfs("/tmp", &["nosuid", "nodev"]),
    ];
    mounts.extend(present.iter().map(|path| read_only(path, path)));
    mounts.push(read_only(&container.program.to_string_lossy(), PROGRAM));
    let mut library = container.library.to_string_lossy();
    if Path::new(&*library).is_absolute() {
        mounts.push(read_only(&library, LIBRARY));
        library = LIBRARY.into();
    }
    let probe = [PROGRAM, "probe", "--library", &library];
    let args = match container.runs {
        Runs::Probe { by, args } => [by, &probe, args].concat(),
        Runs::OwnShm { args } => [&probe, args].concat(),
        Runs::Shell { words, file } => {
            let path = file.to_string_lossy();
            if !present.iter().any(|above| file.starts_with(above)) {
                mounts.push(read_only(&path, &path));
            }
            vec!["sh", "-c", words]
        }
    };
    let mut request = json!({ "mpsgate.io/gpu-mem": container.memory });
    if let Some(gpu) = container.gpu {
        request["mpsgate.io/gpu"] = gpu.into();
    }
    serde_json::from_value(json!({
        "ociVersion": "1.0.2",
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "mpsgate-probe",
        "mounts": mounts,
        "annotations": request,
        "process": {
            "terminal": false,
            "user": { "uid": container.uid, "gid": container.uid },
            "args": args,
            "env": [format!("PATH={PATH}")],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "namespaces": [
                { "type": "pid" }, { "type": "mount" }, { "type": "uts" }, { "type": "network" },
            ],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }))
}

fn mount(kind: &str, source: &str, destination: &str, options: &[&str]) -> Value {
    json!({ "type": kind, "source": source, "destination": destination, "options": options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_nothing_of_the_crates_defaults() {
        let (program, library) = (Path::new("/usr/bin/mpsgate"), OsStr::new("/x/libcuda.so"));
        let runs = Runs::Probe { by: &[], args: &["-o", "json"] };
        let probe = Container { program, memory: "1Gi", gpu: None, library, uid: 0, runs };
        let document = |probe| {
            let spec = spec(&probe, &["/usr"]).expect("it is a document");
            serde_json::to_value(spec).expect("it is a document")
        };
        let spec = document(probe);
        let keys = |part: &str| -> Vec<String> {
            spec[part].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
        };
        assert_eq!(keys("annotations"), ["mpsgate.io/gpu-mem"]);
        assert_eq!(keys("linux"), ["resources", "namespaces", "maskedPaths", "readonlyPaths"]);
        assert_eq!(keys("process"), ["terminal", "user", "args", "env", "cwd", "noNewPrivileges"]);
        assert_eq!(spec["mounts"].as_array().map(Vec::len), Some(7));
        assert_eq!(spec["linux"]["namespaces"].as_array().map(Vec::len), Some(4));
        let args =
            serde_json::json!(["/mpsgate", "probe", "--library", "/libcuda.so", "-o", "json"]);
        assert_eq!(spec["process"]["args"], args);
        let own_shm = document(Container { runs: Runs::OwnShm { args: &["--steps"] }, ..probe });
        let shm = |spec: &Value| {
            let mounts = spec["mounts"].as_array().into_iter().flatten();
            let there = mounts.filter(|mount| mount["destination"] == "/dev/shm");
            there.map(|mount| mount["type"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((shm(&spec), shm(&own_shm)), (vec!["bind".into()], vec!["tmpfs".into()]));
        let file = Path::new("/elsewhere/control");
        let shell = document(Container { runs: Runs::Shell { words: "true", file }, ..probe });
        assert_eq!(shell["mounts"].as_array().map(Vec::len), Some(8));
    }
}
