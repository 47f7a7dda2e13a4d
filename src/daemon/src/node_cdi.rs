//! What a card needs in a container, by the node's CDI specifications ([`mpsgate_oci::cdi`]). Reads
//! their directories, writes nothing; the answer goes into a grant, and the shim applies it.
//!
//! Files are named `*.json`, `*.yaml` or `*.yml`. A device of a later directory wins over one of an
//! earlier; one that two files of the same directory define is an error.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mpsgate_model::{CdiEdits, CdiHook, CdiMount, DeviceNode};
use mpsgate_oci::cdi::{ContainerEdits, Spec};

/// Where specifications lie, by rising priority: what an administrator wrote, what tools generate.
pub(crate) const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The kind of NVIDIA's GPUs.
pub const KIND: &str = "nvidia.com/gpu";
/// Largest file, in bytes. NVIDIA's for 16 GPUs has about 100 KiB.
const SIZE_LIMIT: u64 = 4 << 20;

/// Why a device cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CdiError {
    /// The device is in no file that can be used, and some cannot be.
    #[error("no usable CDI specification names {KIND}={device}, and {problem}")]
    Unusable {
        /// The device's name.
        device: String,
        /// The first problem found.
        problem: String,
    },
    /// Two files of one directory define it.
    #[error("{KIND}={device} is defined in {} and in {}", first.display(), second.display())]
    Conflict {
        /// The device's name.
        device: String,
        /// One file.
        first: PathBuf,
        /// Another.
        second: PathBuf,
    },
    /// A part of the specification cannot be applied.
    #[error("{KIND}={device} in {} cannot be applied: {why}", file.display())]
    Unsupported {
        /// The device's name.
        device: String,
        /// The file.
        file: PathBuf,
        /// What and why.
        why: String,
    },
}

/// A file, to see whether it changed.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    directory: usize,
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

/// The specifications of some directories, read again where a file changed.
#[derive(Debug)]
pub struct Cache {
    directories: Vec<PathBuf>,
    stamps: Vec<Stamp>,
    specs: Vec<(usize, PathBuf, Result<Spec, String>)>,
}

impl Cache {
    /// A cache of directories by rising priority; absent ones are empty.
    pub fn new(directories: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            directories: directories.into_iter().map(Into::into).collect(),
            stamps: Vec::new(),
            specs: Vec::new(),
        }
    }

    /// What `nvidia.com/gpu=<device>` needs; `None` where no specification names it.
    ///
    /// # Errors
    /// See [`CdiError`]; a broken file matters only where no other names the device.
    pub fn resolve(&mut self, device: &str) -> Result<Option<CdiEdits>, CdiError> {
        self.refresh();
        let mut found: Option<(usize, &Path, &Spec)> = None;
        for (directory, path, spec) in &self.specs {
            let Ok(spec) = spec else { continue };
            if spec.kind != KIND || spec.edits_of(device).is_none() {
                continue;
            }
            if let Some((other, first, _)) = found
                && other == *directory
            {
                return Err(CdiError::Conflict {
                    device: device.to_owned(),
                    first: first.to_owned(),
                    second: path.clone(),
                });
            }
            found = Some((*directory, path, spec));
        }
        let Some((_, file, spec)) = found else {
            let problem = self.specs.iter().find_map(|(_, _, spec)| spec.as_ref().err());
            return match problem {
                None => Ok(None),
                Some(problem) => {
                    Err(CdiError::Unusable { device: device.to_owned(), problem: problem.clone() })
                }
            };
        };
        let mut edits = CdiEdits::default();
        // The file's own edits come first, as in the reference implementation.
        for part in std::iter::once(&spec.container_edits).chain(spec.edits_of(device)) {
            merge(&mut edits, part).map_err(|why| CdiError::Unsupported {
                device: device.to_owned(),
                file: file.to_owned(),
                why,
            })?;
        }
        Ok(Some(edits))
    }

    fn refresh(&mut self) {
        let stamps = stamps(&self.directories);
        if stamps == self.stamps {
            return;
        }
        self.specs = stamps
            .iter()
            .map(|stamp| (stamp.directory, stamp.path.clone(), load(&stamp.path)))
            .collect();
        self.stamps = stamps;
    }
}

fn stamps(directories: &[PathBuf]) -> Vec<Stamp> {
    let mut stamps = Vec::new();
    for (directory, path) in directories.iter().enumerate() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_spec =
                path.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml");
            if let (true, Ok(meta)) = (is_spec, fs::metadata(&path)) {
                let (modified, length) = (meta.modified().ok(), meta.len());
                stamps.push(Stamp { path, directory, modified, length, inode: meta.ino() });
            }
        }
    }
    stamps.sort_by(|a, b| (a.directory, &a.path).cmp(&(b.directory, &b.path)));
    stamps
}

fn load(path: &Path) -> Result<Spec, String> {
    let name = path.display();
    let read = || {
        let mut text = String::new();
        fs::File::open(path)?.take(SIZE_LIMIT).read_to_string(&mut text).map(|_| text)
    };
    let text = read().map_err(|error| format!("{name} cannot be read: {error}"))?;
    // JSON is YAML too.
    let spec: Spec = serde_saphyr::from_str(&text).map_err(|error| {
        let line = error.to_string();
        format!("{name} is no CDI specification: {}", line.lines().next().unwrap_or_default())
    })?;
    spec.check_version().map_err(|why| format!("{name} cannot be used: {why}"))?;
    Ok(spec)
}

fn merge(edits: &mut CdiEdits, part: &ContainerEdits) -> Result<(), String> {
    if part.intel_rdt.is_some() || !part.net_devices.is_empty() {
        return Err("it has intelRdt or netDevices".to_owned());
    }
    for entry in &part.env {
        let (name, value) =
            entry.split_once('=').ok_or_else(|| format!("env {entry:?} has no ="))?;
        edits.env.push((name.to_owned(), value.to_owned()));
    }
    for node in &part.device_nodes {
        let (major, minor) = match (node.kind.as_deref(), node.major, node.minor) {
            (Some("c" | "u") | None, Some(major), Some(minor)) if (major, minor) != (0, 0) => {
                (major, minor)
            }
            (Some("c" | "u" | "") | None, _, _) => {
                numbers(node.host_path.as_ref().unwrap_or(&node.path))?
            }
            (Some(kind), _, _) => return Err(format!("device {} is of type {kind}", node.path)),
        };
        edits.devices.push(DeviceNode { path: node.path.clone(), major, minor });
    }
    for mount in &part.mounts {
        edits.mounts.push(CdiMount {
            source: mount.host_path.clone(),
            destination: mount.container_path.clone(),
            options: mount.options.clone(),
        });
    }
    for hook in &part.hooks {
        edits.hooks.push(CdiHook {
            stage: hook.hook_name.clone(),
            path: hook.path.clone(),
            args: hook.args.clone(),
            env: hook.env.clone(),
            timeout_s: hook.timeout,
        });
    }
    edits.gids.extend(&part.additional_gids);
    Ok(())
}

/// A host device's numbers, for a specification that leaves them out.
fn numbers(path: &str) -> Result<(u32, u32), String> {
    let meta = fs::metadata(path).map_err(|error| format!("device {path}: {error}"))?;
    if !meta.file_type().is_char_device() {
        return Err(format!("{path} is no character device"));
    }
    // The layout of dev_t in Linux' user space (makedev(3)).
    let rdev = meta.rdev();
    let major = ((rdev >> 32) & 0xffff_f000) | ((rdev >> 8) & 0xfff);
    let minor = ((rdev >> 12) & 0xffff_ff00) | (rdev & 0xff);
    let narrow = |n: u64| u32::try_from(n).map_err(|_| format!("device {path} has odd numbers"));
    Ok((narrow(major)?, narrow(minor)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";

    /// As `nvidia-ctk cdi generate` 1.17 writes it, shortened to one of each part.
    fn nvidia(device: &str) -> String {
        format!(
            r#"---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/null
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldcache, --folder, /lib/x]
    env: [NVIDIA_CTK_DEBUG=false]
  mounts:
  - hostPath: /usr/lib/libcuda.so.1
    containerPath: /usr/lib/libcuda.so.1
    options: [ro, nosuid, nodev, rbind, rprivate]
devices:
- name: "0"
  containerEdits: {{}}
- name: {device}
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      type: c
      major: 195
      minor: 0
      permissions: rw
"#
        )
    }

    fn cache(files: &[(&str, &str)]) -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let (etc, run) = (dir.path().join("etc"), dir.path().join("run"));
        for directory in [&etc, &run] {
            fs::create_dir(directory).unwrap();
        }
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let cache = Cache::new([etc, run]);
        (dir, cache)
    }

    #[test]
    fn a_device_gets_the_files_edits_and_its_own() {
        let (_dir, mut cache) = cache(&[("run/nvidia.yaml", &nvidia(UUID))]);
        let edits = cache.resolve(UUID).unwrap().unwrap();
        assert_eq!(edits.env, [("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())]);
        let nodes: Vec<_> =
            edits.devices.iter().map(|d| (d.path.as_str(), d.major, d.minor)).collect();
        assert_eq!(nodes, [("/dev/null", 1, 3), ("/dev/nvidia0", 195, 0)]);
        assert_eq!(edits.mounts.len(), 1);
        assert_eq!(edits.hooks.first().unwrap().stage, "createContainer");
    }

    #[test]
    fn json_is_read_and_a_changed_file_is_read_again() {
        let json = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"D","containerEdits":{"env":["A=1"]}}]}"#;
        let (dir, mut cache) = cache(&[("etc/a.json", json)]);
        assert_eq!(cache.resolve("D").unwrap().unwrap().env.len(), 1);
        fs::write(dir.path().join("etc/a.json"), json.replace("\"A=1\"", "\"A=1\",\"B=2\""))
            .unwrap();
        assert_eq!(cache.resolve("D").unwrap().unwrap().env.len(), 2);
        fs::remove_file(dir.path().join("etc/a.json")).unwrap();
        assert_eq!(cache.resolve("D").unwrap(), None);
    }

    #[test]
    fn the_later_directory_wins_and_one_directory_must_not_differ_with_itself() {
        let other = nvidia(UUID).replace("minor: 0", "minor: 7");
        let (dir, mut cache) = cache(&[("etc/n.yaml", &nvidia(UUID)), ("run/n.yaml", &other)]);
        let edits = cache.resolve(UUID).unwrap().unwrap();
        assert!(edits.devices.iter().any(|d| d.minor == 7));
        fs::write(dir.path().join("run/m.yml"), &other).unwrap();
        assert!(matches!(cache.resolve(UUID), Err(CdiError::Conflict { .. })));
    }

    #[test]
    fn a_broken_file_is_named_only_where_nothing_else_answers() {
        let (_dir, mut cache) = cache(&[("run/a.yaml", "kind: [")]);
        let error = cache.resolve(UUID).unwrap_err().to_string();
        assert!(error.contains("run/a.yaml is no CDI specification"), "{error}");
        let (_dir, mut cache) =
            self::cache(&[("run/a.yaml", "kind: ["), ("run/b.yaml", &nvidia(UUID))]);
        assert!(cache.resolve(UUID).unwrap().is_some());
    }

    #[test]
    fn a_version_must_be_known_and_have_what_is_used() {
        let problem = |text: &str| {
            let (_dir, mut cache) = cache(&[("run/a.yaml", text)]);
            cache.resolve(UUID).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let spec = |version: &str, device: &str, more: &str| {
            format!(
                "cdiVersion: {version}\nkind: nvidia.com/gpu\n{more}\ndevices:\n- name: {UUID}\n  containerEdits:\n    env: [A=1]\n{device}"
            )
        };
        for version in ["0.3.0", "v0.5.0", "0.8.0", "1.0.0", "1.1.0"] {
            assert_eq!(problem(&spec(version, "", "")), "", "{version}");
        }
        for version in ["0.9.0", "1.2.0", "\"\"", "0.5"] {
            assert!(problem(&spec(version, "", "")).contains("is none that is known"), "{version}");
        }
        for (needs, below, device, more) in [
            ("0.4.0", "0.3.0", "    mounts: [{hostPath: /a, containerPath: /a, type: bind}]", ""),
            ("0.5.0", "0.4.0", "    deviceNodes: [{path: /dev/null, hostPath: /dev/null}]", ""),
            ("0.5.0", "0.4.0", "- name: \"0\"", ""),
            ("0.6.0", "0.5.0", "  annotations: {a: b}", ""),
            ("0.6.0", "0.5.0", "", "annotations: {a: b}"),
            ("0.7.0", "0.6.0", "    additionalGids: [44]", ""),
        ] {
            assert_eq!(problem(&spec(needs, device, more)), "", "{needs} {device}{more}");
            let text = problem(&spec(below, device, more));
            assert!(text.contains(&format!("which begins with {needs}")), "{below}: {text}");
        }
        // Nothing is asked of what an empty map says.
        assert_eq!(problem(&spec("0.3.0", "", "annotations: {}")), "");
    }

    #[test]
    fn what_cannot_be_applied_is_an_error() {
        for (from, to) in [
            ("deviceNodes:\n  - path: /dev/null", "deviceNodes:\n  - path: /dev/none"),
            ("env:\n  - NVIDIA_VISIBLE_DEVICES=void", "env:\n  - NOTHING"),
            ("type: c", "type: b"),
            ("hooks:", "netDevices: [{}]\n  hooks:"),
        ] {
            let text = nvidia(UUID).replace("cdiVersion: 0.5.0", "cdiVersion: 1.1.0");
            let (_dir, mut cache) = cache(&[("run/a.yaml", &text.replace(from, to))]);
            let error = cache.resolve(UUID).unwrap_err();
            assert!(matches!(error, CdiError::Unsupported { .. }), "{to}: {error}");
        }
        let (_dir, mut cache) =
            cache(&[("run/a.yaml", &nvidia(UUID).replace("hooks:", "novelty: 1\n  hooks:"))]);
        assert!(matches!(cache.resolve(UUID), Err(CdiError::Unusable { .. })));
    }
}
