//! Programs: who owns them, how they are linked, and what they say of themselves.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mpsgate_config::paths;

use super::{Finding, Found, LOGS, RESTART, fail, failed, ok, or, skip, warn};
use crate::doctor::doctor_node::Node;
use crate::doctor::elf::{self, Linking};
use crate::doctor::trouble::{Known, Trouble, there};

/// The program that engines call in place of the runtime, beside [`paths::HOOK`].
const SHIM: &str = "mpsgate-runtime";
/// Holds the program headers of any linker in use.
const ELF_BYTES: u64 = 64 << 10;
/// A runtime prints its version within milliseconds.
const VERSION_LIMIT: Duration = Duration::from_secs(5);
/// More than any runtime says of its version.
const VERSION_BYTES: usize = 4 << 10;
const REINSTALL: &str = "reinstall the mpsgate package";

pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) file: Known<Option<ProgramFile>>,
}

pub(super) struct ProgramFile {
    pub(super) uid: u32,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) linking: Linking,
}

impl Program {
    pub(super) fn gather(path: PathBuf) -> Self {
        Self { file: file(&path), path }
    }
}

fn file(path: &Path) -> Known<Option<ProgramFile>> {
    let failed = |error| Trouble::io("look at", path, &error);
    let Some(metadata) = there(std::fs::metadata(path)).map_err(failed)? else { return Ok(None) };
    if !metadata.is_file() {
        return Err(Trouble::new(format!("{} is not a regular file", path.display())));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|f| f.take(ELF_BYTES).read_to_end(&mut bytes));
    Ok(there(read).map_err(failed)?.map(|_| ProgramFile {
        uid: metadata.uid(),
        mode: metadata.mode() & 0o7777,
        linking: elf::linking(&bytes),
    }))
}

pub(super) fn own(node: &Node) -> Found {
    judge_own(ours(node).map(Program::gather))
}

/// `mpsgate-runtime` and `mpsgate-hook`.
fn ours(node: &Node) -> [PathBuf; 2] {
    let hook = node.below(paths::HOOK);
    [hook.with_file_name(SHIM), hook]
}

fn judge_own(programs: [Program; 2]) -> Found {
    let one = |program: Program| {
        let finding = match &program.file {
            Err(trouble) => failed(trouble, REINSTALL),
            Ok(None) => fail(format!("{} is missing", program.path.display()), REINSTALL),
            Ok(Some(file)) => program_file(&program.path, file),
        };
        finding.about(program.path.file_name().unwrap_or(program.path.as_os_str()).display())
    };
    Ok(programs.map(one).into())
}

fn program_file(path: &Path, file: &ProgramFile) -> Finding {
    let path = path.display();
    if file.uid != 0 {
        return fail(
            format!("{path} belongs to uid {}, who could replace it", file.uid),
            format!("{REINSTALL}, or, after looking at it: chown root: {path}"),
        );
    }
    if file.mode & 0o022 != 0 {
        return fail(
            format!("{path} has mode {:04o}: others than root can write it", file.mode),
            format!("{REINSTALL}, or, after looking at it: chmod 755 {path}"),
        );
    }
    if file.mode & 0o111 == 0 {
        return fail(
            format!("{path} has mode {:04o}: it cannot be run", file.mode),
            format!("chmod 755 {path}"),
        );
    }
    match file.linking {
        Linking::Static => ok(format!("{path}, root's, static")),
        Linking::StaticGlibc => ok(format!(
            "{path}, root's, static with glibc: it starts more slowly than the shipped one, which has musl"
        )),
        Linking::Dynamic => warn(
            format!("{path} is linked dynamically: slow, and LD_PRELOAD reaches it"),
            format!("{REINSTALL}: the shipped program is static"),
        ),
        Linking::NotElf64 => fail(format!("{path} is no 64-bit ELF program"), REINSTALL),
    }
}

/// The OCI runtime, and the first line of its `--version`.
pub(super) fn runtime(node: &Node) -> Found {
    judge_runtime(find(node).map(|path| (version(&path), path)), node)
}

/// As the shim looks it up, below another root. The shim itself is passed over: it may be installed
/// under the runtime's name.
fn find(node: &Node) -> Option<PathBuf> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let [shim, _] = ours(node);
    let shim = identity(&shim);
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
            && identity(path) != shim
    };
    let name = node.settings().runtime.path;
    if name.is_absolute() {
        return Some(node.below(name)).filter(is_program);
    }
    paths::RUNTIME_SEARCH.iter().map(|dir| node.below(dir).join(&name)).find(is_program)
}

/// The first line that `PROGRAM --version` prints.
fn version(program: &Path) -> Known<String> {
    let failed = |why: String| Trouble {
        what: format!("{} --version {why}", program.display()),
        hint: Some(format!("run it by hand: {} --version", program.display())),
    };
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    let deadline = Instant::now() + VERSION_LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                // Fails only for one that has ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("did not end within {} s", VERSION_LIMIT.as_secs())));
            }
            Err(error) => return Err(failed(format!("cannot be waited for: {error}"))),
        }
    };
    if !status.success() {
        return Err(failed(format!("failed: {status}")));
    }
    let mut bytes = vec![0; VERSION_BYTES];
    // It has ended, so one read gives all; reading on would wait for whom it left the pipe to.
    let length = child.stdout.and_then(|mut stdout| stdout.read(&mut bytes).ok()).unwrap_or(0);
    bytes.truncate(length);
    let text = String::from_utf8_lossy(&bytes);
    match text.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(failed("prints nothing".to_owned())),
    }
}

fn judge_runtime(runtime: Option<(Known<String>, PathBuf)>, node: &Node) -> Found {
    let Some((version, path)) = runtime else {
        let name = node.settings().runtime.path.display().to_string();
        return Err(fail(
            format!("no program {name:?} was found"),
            "install runc or crun, or set runtime.path in /etc/mpsgate/config.toml to the runtime's \
             absolute path",
        ));
    };
    let version = or(version, "run it by hand with --version")?;
    Ok(vec![ok(format!("{}: {version}", path.display()))])
}

/// Where mpsgated's link leads.
pub(super) fn runtime_link(node: &Node) -> Found {
    let path = node.below(paths::RUNTIME_LINK);
    let target = there(std::fs::read_link(&path));
    let target = target.map_err(|error| Trouble::io("read the link", &path, &error));
    judge_link((target.map(|target| target.map(|to| node.below(to))), find(node)), node)
}

fn judge_link((target, runtime): (Known<Option<PathBuf>>, Option<PathBuf>), node: &Node) -> Found {
    let Some(target) = or(target, RESTART)? else {
        return Err(if node.daemon.is_ok() {
            fail("mpsgated runs and has made none", format!("{RESTART}; {LOGS}"))
        } else {
            warn(
                "none: mpsgate-runtime reads the configuration for every verb",
                "systemctl start mpsgated",
            )
        });
    };
    let to = target.display();
    Ok(vec![match runtime {
        Some(path) if path == target => ok(format!("leads to {to}")),
        Some(path) => {
            fail(format!("leads to {to}, the configuration says {}", path.display()), RESTART)
        }
        None => skip(format!("leads to {to}; the runtime was not found")),
    }])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::tests::{FAIL, WARN, assert_calm, trouble, turns_red};

    fn program(path: &str) -> Program {
        let file = ProgramFile { uid: 0, mode: 0o755, linking: Linking::Static };
        Program { path: path.into(), file: Ok(Some(file)) }
    }

    fn both() -> [Program; 2] {
        [program("/usr/bin/mpsgate-runtime"), program("/usr/bin/mpsgate-hook")]
    }

    fn hook([_, hook]: &mut [Program; 2]) -> &mut ProgramFile {
        hook.file.as_mut().unwrap().as_mut().unwrap()
    }

    fn runc() -> Option<PathBuf> {
        Some("/usr/sbin/runc".into())
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        let found = || runc().map(|path| (Ok("runc version 1.1.5".to_owned()), path));
        turns_red("runtime", judge_runtime, found, &[
            (|f, _| *f = None, FAIL, "no program \"runc\"", "runtime.path"),
            (|f, _| f.as_mut().unwrap().0 = trouble("runc --version failed"), FAIL, "failed", "--version"),
        ]);
        turns_red("programs", |f, _| judge_own(f), both, &[
            (|[shim, _], _| shim.file = Ok(None), FAIL, "/usr/bin/mpsgate-runtime is missing", "reinstall"),
            (|[shim, _], _| shim.file = trouble("not a regular file"), FAIL, "not a regular", "reinstall"),
            (|f, _| hook(f).uid = 1000, FAIL, "mpsgate-hook belongs to uid 1000", "chown root: /usr/bin/mpsgate-hook"),
            (|f, _| hook(f).mode = 0o775, FAIL, "mode 0775", "chmod 755"),
            (|f, _| hook(f).mode = 0o644, FAIL, "cannot be run", "chmod 755"),
            (|f, _| hook(f).linking = Linking::Dynamic, WARN, "dynamically", "static"),
            (|f, _| hook(f).linking = Linking::NotElf64, FAIL, "no 64-bit ELF", "reinstall"),
        ]);
        turns_red("runtime-link", judge_link, || (Ok(runc()), runc()), &[
            (|f, _| f.0 = Ok(None), FAIL, "made none", "systemctl restart mpsgated"),
            (|f, n| { f.0 = Ok(None); n.daemon = trouble("down"); }, WARN, "for every verb", "systemctl start mpsgated"),
            (|f, _| f.0 = Ok(Some("/usr/bin/crun".into())), FAIL, "leads to /usr/bin/crun, the configuration says /usr/sbin/runc", "systemctl restart mpsgated"),
            (|f, _| f.0 = trouble("is no link"), FAIL, "is no link", "systemctl restart mpsgated"),
        ]);
    }

    #[test]
    fn a_program_that_was_built_without_musl_is_named_and_is_no_failure() {
        let mut programs = both();
        hook(&mut programs).linking = Linking::StaticGlibc;
        let found = assert_calm(judge_own(programs));
        let told = found.iter().filter(|f| f.evidence.contains("static with glibc")).count();
        assert_eq!(told, 1, "{found:#?}");
    }
}
