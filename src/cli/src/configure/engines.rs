//! Which running engine a command is about, and where that one's settings are. What an engine is,
//! [`mpsgate_host::engine`] says.

use std::path::{Path, PathBuf};

use mpsgate_configure::{containerd, crio, docker};
use mpsgate_host::engine::{Engine as Running, Kind, of, running};
use mpsgate_host::exchange::Exchange;
use mpsgate_model::printable::{chain, plain};

use crate::args::Engine;
use crate::error::SetUpError;

impl Engine {
    /// Its daemon, where it has one.
    fn kind(self) -> Option<Kind> {
        match self {
            Self::Containerd => Some(Kind::Containerd),
            Self::Docker => Some(Kind::Dockerd),
            Self::Crio => Some(Kind::Crio),
            Self::Podman => None,
        }
    }
}

/// The processes of one engine.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) engines: Vec<Running>,
    /// Why there may be others.
    pub(super) doubts: Vec<String>,
}

/// Those on the node whose root is `root`.
pub(super) fn find(engine: Engine, root: &Path) -> Found {
    let Some(kind) = engine.kind() else { return Found::default() };
    match running(root) {
        Ok(all) => {
            let engines: Vec<_> = all.engines.into_iter().filter(|e| e.kind == kind).collect();
            // Any user can give a program of root's an engine's name: beside an engine it is noise.
            let doubted = if engines.is_empty() { all.doubted } else { Vec::new() };
            Found { engines, doubts: doubted.iter().map(|stranger| chain(stranger)).collect() }
        }
        Err(error) => {
            let why = chain(&error);
            let doubt = format!("whether {} runs is not known: {why}", engine.name());
            Found { engines: Vec::new(), doubts: vec![doubt] }
        }
    }
}

/// The process with this pid, where it is this engine.
pub(super) fn of_pid(engine: Engine, pid: u32) -> Result<Running, SetUpError> {
    let found = of(Path::new("/"), pid).map_err(|source| SetUpError::NoEngine { source })?;
    if engine.kind() == Some(found.kind) {
        return Ok(found);
    }
    let (found, engine) = (found.kind.program(), engine.name());
    Err(SetUpError::OtherEngine { pid, found, engine })
}

/// The one that reads the settings `config`, or the only one; `None` where none does.
pub(super) fn one_of(
    mut found: Vec<Running>,
    config: Option<&Path>,
) -> Result<Option<Running>, SetUpError> {
    if let Some(config) = config {
        // k3s' template lies beside the settings that are made of it.
        found.retain(|engine| settings(engine).parent() == config.parent());
    }
    match found.as_slice() {
        [] | [_] => Ok(found.pop()),
        [one, ..] => Err(SetUpError::Several {
            program: one.kind.program(),
            found: found.iter().map(|engine| plain(&engine.describe())).collect(),
        }),
    }
}

/// Its settings; of CRI-O our drop-in among those that it reads.
pub(super) fn settings(engine: &Running) -> PathBuf {
    named(engine).unwrap_or_else(|| match engine.kind {
        Kind::Containerd => containerd::PATH.into(),
        Kind::Dockerd => docker::PATH.into(),
        Kind::Crio => crio::PATH.into(),
    })
}

fn named(engine: &Running) -> Option<PathBuf> {
    match engine.kind {
        Kind::Containerd => containerd::settings(&engine.command_line),
        Kind::Dockerd => docker::settings(&engine.command_line),
        Kind::Crio => {
            let flags = flags(engine);
            flags.directory().map(|_| crio::path(&flags))
        }
    }
}

/// What a CRI-O was started with.
pub(super) fn flags(engine: &Running) -> crio::Flags {
    crio::Flags::of(&engine.command_line, &engine.environment)
}

/// Whether root alone can change what its command line names, on the node whose root is `root`:
/// else a user would say what root reads and writes.
pub(super) fn check_named(engine: &Running, root: &Path) -> Result<(), SetUpError> {
    let flags = flags(engine);
    let main = flags.main().filter(|main| engine.kind == Kind::Crio && !main.is_empty());
    let paths = named(engine).into_iter().chain(main.map(PathBuf::from));
    let mut exchange = Exchange::default();
    for path in paths {
        let path = path.strip_prefix("/").map_or_else(|_| path.clone(), |rest| root.join(rest));
        exchange.roots_alone(&path).map_err(|why| SetUpError::Distrusted {
            program: engine.kind.program(),
            pid: engine.process.pid,
            why: plain(&why),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_host::engine::Program;
    use mpsgate_host::process::ProcessId;
    use mpsgate_testing::need;

    use super::*;

    /// Engines with these command lines, of this test's own program.
    fn engines(kind: Kind, lines: &[&str]) -> Result<Vec<Running>, String> {
        mpsgate_testing::root()?;
        let program = Program::of(Path::new("/"), std::process::id()).map_err(|e| e.to_string())?;
        let engine = |(pid, line): (u32, &&str)| Running {
            kind,
            process: ProcessId { pid, start_time: 1 },
            command_line: line.split(' ').map(str::to_owned).collect(),
            environment: Vec::new(),
            program: program.clone(),
        };
        Ok((1000..).zip(lines).map(engine).collect())
    }

    fn pid(found: Result<Option<Running>, SetUpError>) -> Result<Option<u32>, String> {
        found.map(|found| found.map(|engine| engine.process.pid)).map_err(|error| error.to_string())
    }

    #[test]
    fn of_several_the_settings_choose_and_without_them_nobody_does() {
        // Docker's package brings a containerd of its own unit, and k3s starts another.
        const K3S: &str = "containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml";
        let found = need!(engines(Kind::Containerd, &["/usr/bin/containerd", K3S]));
        let of = |config: Option<&str>| pid(one_of(found.clone(), config.map(Path::new)));
        assert_eq!(of(Some("/etc/containerd/config.toml")), Ok(Some(1000)));
        let k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config";
        for file in [".toml", ".toml.tmpl", "-v3.toml.tmpl"] {
            assert_eq!(of(Some(&format!("{k3s}{file}"))), Ok(Some(1001)), "{file}");
        }
        assert_eq!(of(Some("/elsewhere/config.toml")), Ok(None));
        let program = std::env::current_exe().unwrap();
        let (program, two) = (program.display(), "2 processes are containerd");
        assert_eq!(
            of(None),
            Err(format!(
                "{two}: pid 1000, {program}: /usr/bin/containerd; pid 1001, {program}: {K3S}"
            ))
        );
        assert_eq!(pid(one_of(found[1..].to_vec(), None)), Ok(Some(1001)));
        assert_eq!(pid(one_of(Vec::new(), None)), Ok(None));

        let two = need!(engines(Kind::Crio, &["crio", "crio --config-dir /srv/crio.conf.d"]));
        let of = |config: Option<&str>| pid(one_of(two.clone(), config.map(Path::new)));
        assert!(of(None).unwrap_err().starts_with("2 processes are crio: pid 1000, "));
        assert_eq!(of(Some("/srv/crio.conf.d/zz-mpsgate.conf")), Ok(Some(1001)));
        assert_eq!(of(Some(crio::PATH)), Ok(Some(1000)));
    }

    #[test]
    fn what_a_command_line_names_counts_where_root_alone_can_change_it() {
        let dir = tempfile::tempdir().unwrap();
        let users = dir.path().join("home");
        std::fs::create_dir(&users).unwrap();
        let check = |found: &[Running]| {
            check_named(&found[0], Path::new("/")).map_err(|error| error.to_string())
        };
        let file = users.join("x.conf");
        let (file, users) = (file.display(), users.display());
        let lines = [
            (Kind::Containerd, format!("containerd --config {file}")),
            (Kind::Dockerd, format!("dockerd --config-file={file}")),
            (Kind::Crio, format!("crio --config-dir {users}")),
            (Kind::Crio, format!("crio -c {file}")),
        ];
        for (kind, line) in &lines {
            let found = need!(engines(*kind, &[line.as_str()]));
            assert_eq!(check(&found), Ok(()), "{line}");
        }
        std::os::unix::fs::chown(users.to_string(), Some(1000), None).unwrap();
        for (kind, line) in &lines {
            let said = check(&need!(engines(*kind, &[line.as_str()]))).unwrap_err();
            let begins = format!(
                "{} (pid 1000) reads what another user than root can change",
                kind.program()
            );
            assert!(said.starts_with(&begins), "{line}: {said}");
        }
        for line in ["containerd", "containerd -c config.toml"] {
            let said = check(&need!(engines(Kind::Containerd, &[line])));
            assert_eq!(said.is_ok(), line == "containerd", "{said:?}");
        }
    }

    #[test]
    fn a_pid_is_an_engine_by_the_same_look_and_of_the_kind_that_was_named() {
        let process = mpsgate_testing::Spawned::new();
        let error = of_pid(Engine::Crio, process.pid()).unwrap_err();
        assert_eq!(error.to_string(), "--engine-pid names no engine");
    }
}
