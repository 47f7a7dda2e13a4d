//! How the installed engines stand to mpsgate, for the doctor: what `configure --check` says,
//! without printing.

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_config::paths;
use mpsgate_configure::disk::below;
use mpsgate_configure::{ConfigureError, Options, Report, Source, Version, Way};
use mpsgate_host::engine::Engine as Running;

use super::engine_files::DISK;
use super::engine_programs::Program;
use super::{engine_programs, engines, loaded, report};
use crate::CliError;
use crate::args::{Engine, NAME};

/// Where kubelet keeps its state: only it uses the CRI of containerd and CRI-O.
const KUBELET: &str = "var/lib/kubelet";

/// One engine that runs or is installed.
#[derive(Debug)]
pub(crate) struct Standing {
    /// First line of what it says of its version.
    pub(crate) version: Option<String>,
    /// Whether containers come from it now: its daemon runs, and somebody uses it.
    pub(crate) in_use: bool,
    /// What its settings say.
    pub(crate) said: Result<Said, CliError>,
}

/// What an engine's settings say of its handlers, a sentence each.
#[derive(Debug)]
pub(crate) struct Said {
    /// Bypasses mpsgate, and settings can change that.
    pub(crate) round: Vec<String>,
    /// Through mpsgate.
    pub(crate) through: Vec<String>,
    /// The pid of a daemon that runs since before these settings were written.
    pub(crate) stale: Option<u32>,
}

/// One for each process of it that runs on the node whose root is `root`, or for the program that
/// is installed there; and why one may run that is not known. `runtime`: as `runtime.path` has it.
pub(crate) fn of(engine: Engine, root: &Path, runtime: &Path) -> (Vec<Standing>, Vec<String>) {
    let engines::Found { engines: running, mut doubts } = engines::find(engine, root);
    // Where no process is shown, as below another root, that is no finding of an engine.
    if !root.join("proc/1").exists() {
        doubts.clear();
    }
    if running.is_empty() {
        let installed = engine_programs::find_below(root, engine.program()).map(Program::Installed);
        let standing = |program| standing(engine, root, runtime, &program, None);
        return (installed.map(standing).into_iter().collect(), doubts);
    }
    let mut found = Vec::new();
    for one in &running {
        let mut standing = standing(engine, root, runtime, &Program::of(one), Some(one));
        if running.len() > 1 {
            let version = standing.version.get_or_insert_with(|| engine.program().to_owned());
            version.push_str(&format!(" (pid {})", one.process.pid));
        }
        found.push(standing);
    }
    (found, doubts)
}

fn standing(
    engine: Engine,
    root: &Path,
    runtime: &Path,
    program: &Program,
    running: Option<&Running>,
) -> Standing {
    let cri = matches!(engine, Engine::Containerd | Engine::Crio);
    // Of another root nothing is started.
    let asked = Some(program).filter(|_| root == Path::new("/"));
    let version = asked.and_then(engine_programs::version);
    let options = Options {
        name: NAME.to_owned(),
        shim: paths::RUNTIME.to_owned(),
        runtime: runtime.to_string_lossy().into_owned(),
        // Decides how drop-ins are read.
        engine: version.as_deref().and_then(Version::find),
        ..Options::default()
    };
    let flags = running.map(engines::flags).unwrap_or_default();
    let path = running.map_or_else(|| engine.usual_path().into(), engines::settings);
    let trusted = running.map_or(Ok(()), |running| engines::check_named(running, root));
    let found = trusted
        .map_err(CliError::from)
        .and_then(|()| report(engine, &Below(root), &path, &options, &flags, asked));
    let sentences = |report: &Report, way: Way| -> Vec<String> {
        report.findings.iter().filter(|f| f.way == way).map(|f| f.sentence.clone()).collect()
    };
    let process = running.map(|running| running.process).filter(|_| cri && asked.is_some());
    Standing {
        version: version.and_then(|text| text.lines().next().map(str::to_owned)),
        in_use: running.is_some() && (!cri || root.join(KUBELET).is_dir()),
        said: found.map(|report| Said {
            round: sentences(&report, Way::Bypass),
            through: sentences(&report, Way::Through),
            stale: loaded::stale(engine, process, &report).map(|stale| stale.pid),
        }),
    }
}

/// The files of a node whose root is another directory, under the names that they have there.
struct Below<'a>(&'a Path);

impl Below<'_> {
    fn at(&self, path: &Path) -> PathBuf {
        path.strip_prefix("/").map_or_else(|_| path.to_owned(), |rest| self.0.join(rest))
    }

    fn named(&self, path: PathBuf) -> PathBuf {
        path.strip_prefix(self.0).map_or_else(|_| path.clone(), |rest| Path::new("/").join(rest))
    }
}

impl Source for Below<'_> {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        DISK.read(&self.at(path))
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        DISK.list(&self.at(directory)).into_iter().map(|path| self.named(path)).collect()
    }

    /// Where a link leads on that node is not looked at.
    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        if self.0 == Path::new("/") {
            return DISK.walk(directory);
        }
        Ok(below(&self.at(directory))?.into_iter().map(|path| self.named(path)).collect())
    }

    fn has_program(&self, program: &str) -> bool {
        engine_programs::find_below(self.0, program).is_some()
    }
}
