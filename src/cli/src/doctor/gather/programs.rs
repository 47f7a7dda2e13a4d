//! Programs: who owns them, how they are linked, and what they say of themselves.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mpsgate_config::paths;
use mpsgate_mps::Capabilities;

use super::{below, io_trouble, trouble};
use crate::doctor::elf;
use crate::doctor::facts::{Known, Program, ProgramFile, RuntimeFacts, Trouble};

/// The program that engines call in place of the runtime, beside [`paths::HOOK`].
const SHIM: &str = "mpsgate-runtime";
/// Holds the program headers of any linker in use.
const ELF_BYTES: u64 = 64 << 10;
/// A runtime prints its version within milliseconds.
const VERSION_LIMIT: Duration = Duration::from_secs(5);
/// More than any runtime says of its version.
const VERSION_BYTES: usize = 4 << 10;

pub(super) fn own(root: &Path) -> Vec<Program> {
    let hook = below(root, paths::HOOK);
    vec![program(&hook.with_file_name(SHIM)), program(&hook)]
}

pub(super) fn program(path: &Path) -> Program {
    Program { path: path.to_owned(), file: file(path) }
}

fn file(path: &Path) -> Known<Option<ProgramFile>> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(None),
        _ => Err(io_trouble("look at", path, &error)),
    };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) => {
            let what = format!("{} is not a regular file", path.display());
            return Err(Trouble { what, hint: None });
        }
        Err(error) => return failed(error),
    };
    let mut bytes = Vec::new();
    if let Err(error) = File::open(path).and_then(|f| f.take(ELF_BYTES).read_to_end(&mut bytes)) {
        return failed(error);
    }
    Ok(Some(ProgramFile {
        uid: metadata.uid(),
        mode: metadata.mode() & 0o7777,
        linking: elf::linking(&bytes),
    }))
}

/// Runs the control program for a moment, in a directory of its own that is removed again.
pub(super) fn capabilities(root: &Path, control: &Program) -> Option<Known<Capabilities>> {
    let file = control.file.as_ref().ok()?.as_ref()?;
    if file.mode & 0o111 == 0 {
        return None;
    }
    let scratch =
        ["/run", "/tmp"].map(|dir| below(root, dir)).into_iter().find(|dir| dir.is_dir())?;
    Some(Capabilities::probe(&control.path, &scratch).map_err(|e| trouble(&e, e.hint())))
}

pub(super) fn runtime(root: &Path, name: &Path, own: &[Program]) -> RuntimeFacts {
    let path = find(root, name, own);
    let version = path.as_deref().map(version);
    RuntimeFacts { name: name.to_owned(), path, version }
}

/// As the shim looks it up, below another root. The shim itself is passed over: it may be installed
/// under the runtime's name.
fn find(root: &Path, name: &Path, own: &[Program]) -> Option<PathBuf> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let shim = own.first().and_then(|shim| identity(&shim.path));
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
            && identity(path) != shim
    };
    if name.is_absolute() {
        return Some(below(root, name)).filter(is_program);
    }
    paths::RUNTIME_SEARCH.iter().map(|dir| below(root, dir).join(name)).find(is_program)
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
