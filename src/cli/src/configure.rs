//! `mpsgate configure`: shows, writes, undoes and checks what an engine has to be told.
//!
//! ```text
//! plan (mpsgate-configure) ─► diff on stdout
//!                          └► --write: the engine reads it ─► record for undo ─► files, each renamed into place
//! ```

pub(crate) mod engine_checks;
pub(crate) mod engine_files;
pub(crate) mod engine_programs;
mod engines;
mod loaded;
mod undo_record;

use std::path::{Path, PathBuf};

use mpsgate_config::Config;
use mpsgate_configure::{
    Change, ConfigureError, Finding, Options, Plan, Report, Source, Version, Way, containerd, crio,
    docker, podman,
};
use mpsgate_edge::{ExitCode, print};
use mpsgate_host::engine::Engine as Running;
use mpsgate_host::process::ProcessId;

use self::engine_files::{DISK, WithoutUs};
use self::engine_programs::Program;
use self::undo_record::Record;
use crate::CliError;
use crate::args::{ConfigureArgs, Engine};
use crate::error::SetUpError;

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

    pub(crate) fn usual_path(self) -> &'static str {
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
    if args.check { check(&call) } else { change(&call).map(|_| ExitCode::Done) }
}

/// Writes an engine's settings, and says how its daemon then stands to them.
pub(crate) fn write(args: ConfigureArgs) -> Result<Written, CliError> {
    let call = Call::gather(&args)?;
    let changed = change(&call)?;
    let report = call.report()?;
    // A reload leaves the daemon as old as it was: what it has loaded is what was kept of it.
    let stale = changed || loaded::stale(args.engine, call.process(), &report).is_some();
    Ok(Written { args, report, stale })
}

/// Settings that were written.
pub(crate) struct Written {
    args: ConfigureArgs,
    report: Report,
    /// Whether the engine's daemon runs with others.
    pub(crate) stale: bool,
}

impl Written {
    /// Keeps that the engine's daemon, which may be another process by now, has loaded them.
    pub(crate) fn keep(&self) -> Result<(), CliError> {
        let config = self.args.config.as_deref().map(absolute).transpose()?;
        match choose(&self.args, config.as_deref())?.0 {
            Some(running) => Ok(loaded::keep(self.args.engine, running.process, &self.report)?),
            None => Ok(()),
        }
    }
}

/// The engine's process that a call is about, and why one may run that is not known.
fn choose(
    args: &ConfigureArgs,
    config: Option<&Path>,
) -> Result<(Option<Running>, Vec<String>), SetUpError> {
    if let Some(pid) = args.engine_pid {
        return Ok((Some(engines::of_pid(args.engine, pid)?), Vec::new()));
    }
    let found = engines::find(args.engine, Path::new("/"));
    Ok((engines::one_of(found.engines, config)?, found.doubts))
}

/// What one call works with.
struct Call<'a> {
    args: &'a ConfigureArgs,
    path: PathBuf,
    options: Options,
    /// The engine's process that reads these settings.
    running: Option<Running>,
    /// Why one may run that is not known.
    doubts: Vec<String>,
    /// What the CRI-O that reads these settings was started with.
    flags: crio::Flags,
    /// The program that is asked: the one that runs, or the one that is installed, where these
    /// settings are this machine's.
    program: Option<Program>,
}

impl<'a> Call<'a> {
    fn gather(args: &'a ConfigureArgs) -> Result<Self, CliError> {
        if args.hooks_only && args.engine != Engine::Podman {
            return Err(SetUpError::HooksOnly { engine: args.engine.name() }.into());
        }
        let config = args.config.as_deref().map(absolute).transpose()?;
        let (running, doubts) = choose(args, config.as_deref())?;
        // Of CRI-O other files count beside the one that was named.
        if let Some(running) = &running
            && (config.is_none() || args.engine == Engine::Crio)
        {
            engines::check_named(running, Path::new("/"))?;
        }
        let usual = || args.engine.usual_path().into();
        let path = config.unwrap_or_else(|| running.as_ref().map_or_else(usual, engines::settings));
        // Settings elsewhere are those of another CRI-O than the one that was named.
        let reads = |running: &&Running| engines::settings(running).parent() == path.parent();
        let flags = running.as_ref().filter(reads).map(engines::flags).unwrap_or_default();
        let program = match &running {
            // It is a template to containerd's settings, and none of containerd's.
            _ if path.extension().is_some_and(|extension| extension == "tmpl") => None,
            Some(running) => Some(Program::of(running)),
            // k3s and RKE2 bring a containerd along, which another one says nothing about.
            None if args.engine == Engine::Containerd && path.starts_with("/var/lib/rancher") => {
                None
            }
            None => engine_programs::find(args.engine.program()).map(Program::Installed),
        };
        let engine = program
            .as_ref()
            .and_then(engine_programs::version)
            .and_then(|text| Version::find(&text));
        let mut options = Options {
            name: args.name.clone(),
            shim: absolute(&args.program)?.to_string_lossy().into_owned(),
            runtime: Config::load(&args.settings)?.runtime.path.to_string_lossy().into_owned(),
            keep_default: args.keep_default,
            all_handlers: args.all_handlers,
            engine,
            before: None,
        };
        if !args.check {
            let files = WithoutUs(Record::load(&args.state, args.engine.name())?.without_us()?);
            options.before = match args.engine {
                // What cannot be understood of earlier files is not known.
                _ if files.0.is_empty() => None,
                Engine::Containerd => containerd::programs(&files, &path, &options).ok(),
                Engine::Docker => docker::programs(&files, &path).ok(),
                Engine::Podman | Engine::Crio => None,
            };
        }
        Ok(Self { args, path, options, running, doubts, flags, program })
    }

    fn process(&self) -> Option<ProcessId> {
        self.running.as_ref().map(|running| running.process)
    }

    fn plan(&self) -> Result<Plan, ConfigureError> {
        let (path, options) = (&self.path, &self.options);
        match self.args.engine {
            Engine::Containerd => containerd::plan(&DISK, path, options),
            Engine::Docker => {
                let line = self.running.as_ref().map(|running| running.command_line.as_slice());
                docker::plan(&DISK, path, options, line.unwrap_or_default())
            }
            Engine::Podman => {
                podman::plan(&DISK, path, options, self.args.hooks_only.then_some(HOOK))
            }
            Engine::Crio => crio::plan(&DISK, path, options, &self.flags),
        }
    }

    fn report(&self) -> Result<Report, CliError> {
        let program = self.program.as_ref();
        report(self.args.engine, &DISK, &self.path, &self.options, &self.flags, program)
    }

    /// Whether the engine, which read what is to be written, would lead containers to mpsgate by
    /// it.
    fn evaluate(&self, program: &Program, reading: &str) -> Result<(), CliError> {
        let name = &self.options.name;
        let report = match self.args.engine {
            Engine::Crio => {
                crio::check_dump(&DISK, &self.path, reading, &self.options, &self.flags)?
            }
            _ => containerd::check_dump(&DISK, &self.path, reading, &self.options)?,
        };
        let through = |finding: &Finding| finding.way == Way::Through;
        let ours = report.findings.iter().find(|finding| finding.handler == *name);
        let default = report.findings.first().filter(|_| !self.options.keep_default);
        let wrong = match (ours, default) {
            (Some(ours), Some(default)) if through(ours) && !through(default) => &default.handler,
            (Some(ours), _) if through(ours) => return Ok(()),
            _ => name,
        };
        let said = format!("read by it, {wrong} would not lead to mpsgate");
        Err(SetUpError::Rejected { program: program.path().display().to_string(), said }.into())
    }
}

/// How the engine stands: by its own reading of its settings, where `program` can be asked for it.
fn report(
    engine: Engine,
    source: &dyn Source,
    path: &Path,
    options: &Options,
    flags: &crio::Flags,
    program: Option<&Program>,
) -> Result<Report, CliError> {
    Ok(match engine {
        Engine::Containerd => match program.filter(|_| path.exists()) {
            Some(program) => {
                let arguments = ["--config", &path.to_string_lossy(), "config", "dump"];
                let dump = engine_programs::own_reading(program, &arguments)?;
                containerd::check_dump(source, path, &dump, options)?
            }
            None => containerd::check(source, path, options)?,
        },
        Engine::Docker => docker::check(source, path, options)?,
        Engine::Podman => podman::check(source, path, options)?,
        Engine::Crio => match program {
            Some(program) => {
                let arguments = crio::reading(source, path, flags)?;
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let dump = engine_programs::own_reading(program, &arguments)?;
                crio::check_dump(source, path, &dump, options, flags)?
            }
            None => crio::check(source, path, options, flags)?,
        },
    })
}

/// What `--hooks-only` installs.
const HOOK: &str = include_str!("../../../hooks/podman-precreate.json");

fn absolute(path: &Path) -> Result<PathBuf, SetUpError> {
    std::path::absolute(path).map_err(|source| SetUpError::Read { path: path.to_owned(), source })
}

/// Shows or writes what has to change; whether something was written.
fn change(call: &Call<'_>) -> Result<bool, CliError> {
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
        text.push_str(&notes(call, &plan));
        print::answer(&text)?;
        return Ok(false);
    }
    let edited = |edit: &Change| {
        format!(
            "note: {} was changed after mpsgate wrote it: --undo will refuse, and show the change\n",
            edit.path.display()
        )
    };
    let edited: String = record.edits()?.iter().map(edited).collect();
    if plan.changes.is_empty() {
        text.push_str(&format!("Nothing to change: {engine} is set up.\n"));
        text.push_str(&edited);
        print::answer(&text)?;
        return Ok(false);
    }
    engine_files::check_programs(&args.program, Path::new(&call.options.runtime))?;
    let targets =
        plan.changes.iter().map(engine_files::Target::of).collect::<Result<Vec<_>, _>>()?;
    if let Some(program) = &call.program {
        let reading = engine_programs::validate(
            args.engine,
            program,
            call.options.engine,
            &call.path,
            &call.flags,
            &plan.changes,
        )?;
        if let Some(reading) = reading {
            call.evaluate(program, &reading)?;
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
    text.push_str(&edited);
    text.push_str(&notes(call, &plan));
    print::answer(&text)?;
    Ok(true)
}

fn notes(call: &Call<'_>, plan: &Plan) -> String {
    call.doubts.iter().chain(&plan.notes).map(|note| format!("note: {note}\n")).collect()
}

/// Puts back what `--write` found, and says so; whether there was something.
pub(crate) fn put_back(engine: Engine, state: &Path) -> Result<bool, CliError> {
    let text = restore(engine, state)?;
    print::answer(&text)?;
    Ok(!text.is_empty())
}

/// Puts back what `--write` found; what was done, for people. Where that would lose somebody's
/// edit, it shows the edit and does nothing.
fn restore(engine: Engine, state: &Path) -> Result<String, CliError> {
    let record = Record::load(state, engine.name())?;
    let edits: String = record.edits()?.iter().map(Change::diff).collect();
    print::answer(&edits)?;
    Ok(record.undo()?)
}

fn undo(args: &ConfigureArgs) -> Result<ExitCode, CliError> {
    let engine = args.engine.name();
    let mut text = restore(args.engine, &args.state)?;
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
            // Seen on 1.37, which looks a container's handler up by the name that it was made with.
            Engine::Crio => {
                "systemctl restart crio, after the pods have ended whose RuntimeClass names the handler that was added (mpsgate, unless --name \
                 said otherwise): CRI-O could neither stop nor remove them then, and they would run on. Pods without a RuntimeClass are kept"
            }
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
            Way::Through => "ok    ",
            Way::Bypass => "BYPASS",
            Way::Beyond => "note  ",
        };
        text.push_str(&format!("{mark} {}\n", finding.sentence));
    }
    if let Err(error) =
        engine_files::check_programs(&call.args.program, Path::new(&call.options.runtime))
    {
        covered = false;
        text.push_str(&format!("FAIL   {error}: no container starts\n"));
    }
    if matches!(call.args.engine, Engine::Containerd | Engine::Crio)
        && let Some(stale) = loaded::stale(call.args.engine, call.process(), &report)
    {
        covered = false;
        let name = call.args.engine.name();
        text.push_str(&format!("FAIL   {name} (pid {}) was started before {} was last changed: systemctl restart {name}\n", stale.pid, stale.path.display()));
    }
    text.extend(call.doubts.iter().map(|doubt| format!("note   {doubt}\n")));
    if !report.is_covered() {
        text.push_str(&what_would_change(call));
    }
    print::answer(&text)?;
    Ok(if covered { ExitCode::Done } else { ExitCode::No })
}

/// What to do about what bypasses mpsgate: `configure` itself, where it would change anything.
fn what_would_change(call: &Call<'_>) -> String {
    match call.plan() {
        // What each sentence says of its handler is all.
        Ok(plan) if plan.changes.is_empty() => String::new(),
        Ok(_) => {
            let args = call.args;
            let pid = args.engine_pid.map(|pid| format!(" --engine-pid {pid}"));
            let config = args.config.as_ref().map(|path| format!(" --config {}", path.display()));
            let words = [pid, config].map(Option::unwrap_or_default).concat();
            format!("\nWhat would change that: mpsgate configure {}{words}\n", args.engine.name())
        }
        Err(error) => format!("\nWhat has to be done before: {error}\nhint: {}\n", error.hint()),
    }
}
