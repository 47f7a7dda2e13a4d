//! `mpsgate configure`: shows, writes, undoes and checks what an engine has to be told.
//!
//! ```text
//! plan (mpsgate-configure) ─► diff on stdout
//!                          └► --write: the engine reads it ─► record for undo ─► files, each renamed into place
//! ```

mod error;
pub(crate) mod files;
pub(crate) mod programs;
mod record;
pub(crate) mod standing;

use std::path::{Path, PathBuf};

use mpsgate_config::{Config, ExitCode};
use mpsgate_configure::{
    Change, ConfigureError, Options, Plan, Report, Source, Version, Way, containerd, crio, docker,
    podman,
};

pub use self::error::SetUpError;
use self::files::Disk;
use self::record::Record;
use crate::args::{ConfigureArgs, Engine};
use crate::{CliError, print};

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Crio => "crio",
        }
    }

    /// The program that knows its version.
    fn program(self) -> &'static str {
        if self == Self::Docker { "dockerd" } else { self.name() }
    }

    fn usual_path(self) -> &'static str {
        match self {
            Self::Containerd => containerd::PATH,
            Self::Docker => docker::PATH,
            Self::Podman => podman::PATH,
            Self::Crio => crio::PATH,
        }
    }
}

pub(crate) fn run(args: &ConfigureArgs) -> Result<ExitCode, CliError> {
    if args.undo {
        return undo(args);
    }
    let call = Call::gather(args)?;
    if args.check { check(&call) } else { change(&call) }
}

/// What one call works with.
struct Call<'a> {
    args: &'a ConfigureArgs,
    path: PathBuf,
    options: Options,
    /// The engine's own program, where it is installed and its settings are those of this machine.
    program: Option<PathBuf>,
}

impl<'a> Call<'a> {
    fn gather(args: &'a ConfigureArgs) -> Result<Self, CliError> {
        if args.hooks_only && args.engine != Engine::Podman {
            return Err(SetUpError::HooksOnly { engine: args.engine.name() }.into());
        }
        let path = absolute(
            args.config.as_deref().unwrap_or_else(|| Path::new(args.engine.usual_path())),
        )?;
        // k3s and RKE2 bring a containerd along, which another one says nothing about.
        let bundled = args.engine == Engine::Containerd && path.starts_with("/var/lib/rancher");
        let program = if bundled { None } else { programs::find(args.engine.program()) };
        let engine =
            program.as_deref().and_then(programs::version).and_then(|text| Version::find(&text));
        let options = Options {
            name: args.name.clone(),
            shim: absolute(&args.program)?.to_string_lossy().into_owned(),
            runtime: Config::load(&args.settings)?.runtime.path.to_string_lossy().into_owned(),
            keep_default: args.keep_default,
            all_handlers: args.all_handlers,
            engine,
        };
        Ok(Self { args, path, options, program })
    }

    fn plan(&self) -> Result<Plan, ConfigureError> {
        let (path, options) = (&self.path, &self.options);
        match self.args.engine {
            Engine::Containerd => containerd::plan(&Disk, path, options),
            Engine::Docker => {
                docker::plan(&Disk, path, options, &programs::command_line("dockerd"))
            }
            Engine::Podman => {
                podman::plan(&Disk, path, options, self.args.hooks_only.then_some(HOOK))
            }
            Engine::Crio => crio::plan(&Disk, path, options),
        }
    }

    /// containerd's own reading of its settings, where it can be asked.
    fn report(&self) -> Result<Report, CliError> {
        let program = self.program.as_deref();
        report(self.args.engine, &Disk, &self.path, &self.options, program)
    }
}

fn report(
    engine: Engine,
    source: &dyn Source,
    path: &Path,
    options: &Options,
    program: Option<&Path>,
) -> Result<Report, CliError> {
    Ok(match engine {
        Engine::Containerd => match program.filter(|_| path.exists()) {
            Some(program) => {
                let dump = programs::config_dump(program, path)?;
                containerd::check_dump(source, path, &dump, options)?
            }
            None => containerd::check(source, path, options)?,
        },
        Engine::Docker => docker::check(source, path, options)?,
        Engine::Podman => podman::check(source, path, options)?,
        Engine::Crio => crio::check(source, path, options)?,
    })
}

/// What `--hooks-only` installs.
const HOOK: &str = include_str!("../../../hooks/podman-precreate.json");

fn absolute(path: &Path) -> Result<PathBuf, SetUpError> {
    std::path::absolute(path).map_err(|source| SetUpError::Read { path: path.to_owned(), source })
}

fn change(call: &Call<'_>) -> Result<ExitCode, CliError> {
    let args = call.args;
    let plan = call.plan()?;
    let engine = args.engine.name();
    let mut record = Record::load(&args.state, engine)?;
    let mut text: String = plan.changes.iter().map(Change::diff).collect();
    if !args.write {
        text.push_str(&match plan.changes.len() {
            0 => format!("Nothing to change: {engine} is set up.\n"),
            _ => "\nNothing was written. To write it: the same with --write\n".to_owned(),
        });
        text.push_str(&notes(&plan));
        print::answer(&text)?;
        return Ok(ExitCode::Done);
    }
    if plan.changes.is_empty() {
        text.push_str(&format!("Nothing to change: {engine} is set up.\n"));
        for path in record.take_in_edits()? {
            text.push_str(&format!(
                "{} was changed since; --undo will keep that.\n",
                path.display()
            ));
        }
        print::answer(&text)?;
        return Ok(ExitCode::Done);
    }
    files::check_programs(&args.program, Path::new(&call.options.runtime))?;
    let targets = plan.changes.iter().map(files::Target::of).collect::<Result<Vec<_>, _>>()?;
    if let Some(program) = &call.program {
        let dump = programs::validate(
            args.engine,
            program,
            call.options.engine,
            &call.path,
            &plan.changes,
        )?;
        if let Some(dump) = dump {
            // containerd's reading, not ours, decides whether the result is right.
            let report = containerd::check_dump(&Disk, &call.path, &dump, &call.options)?;
            if !report
                .findings
                .iter()
                .any(|finding| finding.handler == call.options.name && finding.way == Way::Through)
            {
                let said = format!("read by it, {} would not lead to mpsgate", call.options.name);
                return Err(
                    SetUpError::Rejected { program: program.display().to_string(), said }.into()
                );
            }
        }
    }
    record.add(&targets)?;
    for target in &targets {
        target.write()?;
        text.push_str(&target.sentence());
    }
    text.push_str(&format!(
        "What was there is kept; to have it back: mpsgate configure {engine} --undo\n"
    ));
    text.push_str(&format!("For {engine} to use it: {}\n", plan.restart));
    text.push_str(&notes(&plan));
    print::answer(&text)?;
    Ok(ExitCode::Done)
}

fn notes(plan: &Plan) -> String {
    plan.notes.iter().map(|note| format!("note: {note}\n")).collect()
}

fn undo(args: &ConfigureArgs) -> Result<ExitCode, CliError> {
    let engine = args.engine.name();
    let record = Record::load(&args.state, engine)?;
    let mut text = record.undo(engine)?;
    if text.is_empty() {
        text = format!("Nothing to undo: mpsgate configure {engine} --write wrote nothing here.\n");
    } else {
        let restart = match args.engine {
            Engine::Docker => {
                "systemctl reload docker. Containers that name mpsgate as their runtime do not start any more: make them anew"
            }
            Engine::Podman => {
                "nothing. Containers that name mpsgate as their runtime do not start any more: make them anew"
            }
            Engine::Containerd => "systemctl restart containerd",
            Engine::Crio => "systemctl restart crio",
        };
        text.push_str(&format!("For {engine} to use it: {restart}\n"));
    }
    print::answer(&text)?;
    Ok(ExitCode::Done)
}

fn check(call: &Call<'_>) -> Result<ExitCode, CliError> {
    let report = call.report()?;
    let mut covered = report.is_covered();
    let mut text = String::new();
    for finding in &report.findings {
        let mark = match finding.way {
            Way::Through => "ok   ",
            Way::Round => "ROUND",
            Way::Beyond => "note ",
        };
        text.push_str(&format!("{mark}  {}\n", finding.sentence));
    }
    if let Err(error) = files::check_programs(&call.args.program, Path::new(&call.options.runtime))
    {
        covered = false;
        text.push_str(&format!("FAIL   {error}: no container starts\n"));
    }
    if matches!(call.args.engine, Engine::Containerd | Engine::Crio)
        && let Some(pid) = programs::started_before(call.args.engine.program(), &call.path)
    {
        covered = false;
        let name = call.args.engine.name();
        text.push_str(&format!("FAIL   {name} (pid {pid}) was started before {} was last changed: systemctl restart {name}\n", call.path.display()));
    }
    if !report.is_covered() {
        text.push_str(&format!(
            "\nWhat would change that: mpsgate configure {}\n",
            call.args.engine.name()
        ));
    }
    print::answer(&text)?;
    Ok(if covered { ExitCode::Done } else { ExitCode::No })
}
