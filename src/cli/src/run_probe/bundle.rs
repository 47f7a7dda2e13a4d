//! The bundle of a container that runs `mpsgate probe` on this node's own files.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;

use oci_spec::runtime::{
    Linux, LinuxDeviceCgroup, LinuxNamespace, LinuxNamespaceType as Kind, LinuxResources, Mount,
    Process, Spec,
};
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
        file.write_all(&serde_json::to_vec(&spec(probe, &present))?)?;
        Ok(Self { directory })
    }

    pub(super) fn path(&self) -> String {
        self.directory.path().to_string_lossy().into_owned()
    }
}

/// The host's IPC namespace and its /dev/shm, as `docker --ipc=host` gives them, no capability, no
/// network.
fn spec(probe: &Probe<'_>, present: &[&str]) -> Spec {
    let read_only =
        |source: &str, to: &str| mount("bind", source, to, &["rbind", "ro", "nosuid", "nodev"]);
    let tmpfs = |to: &str, options: &[&str]| mount("tmpfs", "tmpfs", to, options);
    let mut mounts = vec![
        mount("proc", "proc", "/proc", &["nosuid", "noexec", "nodev"]),
        tmpfs("/dev", &["nosuid", "mode=755", "size=65536k"]),
        mount("bind", "/dev/shm", "/dev/shm", &["rbind", "nosuid", "noexec", "nodev"]),
        tmpfs("/tmp", &["nosuid", "nodev"]),
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
    let request = [("mpsgate.io/gpu-mem", Some(probe.memory)), ("mpsgate.io/gpu", probe.gpu)];
    let request = request.into_iter().filter_map(|(key, value)| Some((key.into(), value?.into())));

    // The crate's defaults are a shell with some capabilities: what is not for a probe is set anew.
    let mut process = Process::default();
    process.set_args(texts(&args));
    process.set_env(texts(&["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]));
    process.set_capabilities(None).set_rlimits(None);
    let namespaces = [Kind::Pid, Kind::Mount, Kind::Uts, Kind::Network].map(|kind| {
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(kind);
        namespace
    });
    let mut no_device = LinuxDeviceCgroup::default();
    no_device.set_allow(false).set_access(Some("rwm".into()));
    let mut resources = LinuxResources::default();
    resources.set_devices(Some(vec![no_device]));
    let mut linux = Linux::default();
    linux.set_namespaces(Some(namespaces.into())).set_resources(Some(resources));
    linux.set_masked_paths(texts(&["/proc/kcore", "/proc/keys", "/sys/firmware"]));
    linux.set_readonly_paths(texts(&["/proc/sys", "/proc/sysrq-trigger"]));
    let mut spec = Spec::default();
    spec.set_version("1.0.2".into()).set_hostname(Some("mpsgate-probe".into()));
    spec.set_mounts(Some(mounts)).set_annotations(Some(request.collect()));
    spec.set_process(Some(process)).set_linux(Some(linux));
    spec
}

fn mount(kind: &str, source: &str, destination: &str, options: &[&str]) -> Mount {
    let mut mount = Mount::default();
    mount.set_typ(Some(kind.into())).set_source(Some(source.into()));
    mount.set_destination(destination.into()).set_options(texts(options));
    mount
}

fn texts(texts: &[&str]) -> Option<Vec<String>> {
    Some(texts.iter().map(|text| (*text).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_has_nothing_of_the_crates_defaults() {
        let (program, library) = (Path::new("/usr/bin/mpsgate"), OsStr::new("/x/libcuda.so"));
        let probe = Probe { program, memory: "1Gi", gpu: None, library, json: true };
        let spec = serde_json::to_value(spec(&probe, &["/usr"])).expect("it is a document");
        let keys = |part: &str| -> Vec<String> {
            spec[part].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
        };
        assert_eq!(keys("annotations"), ["mpsgate.io/gpu-mem"]);
        assert_eq!(keys("linux"), ["resources", "namespaces", "maskedPaths", "readonlyPaths"]);
        assert_eq!(keys("process"), ["terminal", "user", "args", "env", "cwd", "noNewPrivileges"]);
        assert_eq!(spec["mounts"].as_array().map(Vec::len), Some(7));
        assert_eq!(spec["linux"]["namespaces"].as_array().map(Vec::len), Some(4));
    }
}
