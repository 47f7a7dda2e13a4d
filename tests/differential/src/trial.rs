//! A document on the real runtime, through mpsgate-runtime and before `mpsgate explain`, and what
//! came of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::document::Document;
use crate::mutate::managed;
use crate::{Failure, probe, variable};

/// Where documents are tried.
pub(crate) struct Place {
    dir: PathBuf,
    runtime: PathBuf,
    cgroup: String,
}

/// What came of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// Its program ran to its end and opened these.
    Ran(BTreeSet<String>),
    /// mpsgate refused it, with this text.
    Refused(String),
    /// The runtime would not have it, or it ended early.
    Failed(String),
}

/// One document, tried.
pub(crate) struct Trial {
    plain: Lifecycle,
    gated: Lifecycle,
    /// `pass`, `edit`, `reserve`, `refuse`, or what else was said.
    explained: String,
}

impl Place {
    pub(crate) fn new(dir: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(dir)?;
        let cgroup = variable("MG_CGROUP")?.to_string_lossy().into_owned();
        let runtime = variable("MG_REAL_RUNTIME").unwrap_or_else(|_| "/usr/sbin/runc".into());
        Ok(Self { dir: dir.to_owned(), runtime, cgroup })
    }

    pub(crate) fn try_out(&self, number: u64, document: &Document) -> Result<Trial, Failure> {
        let file = self.dir.join("config.json");
        let name = format!("d{number}");
        // Each has its cgroup beside the others, and its document as it was made: mpsgate edits it
        // in place.
        let bytes = with_cgroup(&document.bytes, &format!("{}/{name}", self.cgroup));
        fs::write(&file, &bytes)?;
        let explained = explain(&file)?;
        let plain = self.lifecycle(&self.runtime, &format!("{name}p"))?;
        fs::write(&file, &bytes)?;
        let gated = self.lifecycle(Path::new("/usr/bin/mpsgate-runtime"), &format!("{name}g"))?;
        Ok(Trial { plain, gated, explained })
    }

    fn lifecycle(&self, runtime: &Path, id: &str) -> Result<Lifecycle, Failure> {
        let state = self.dir.join("state");
        let mut command = Command::new(runtime);
        command.arg("--root").arg(&state).args(["run", "--bundle"]).arg(&self.dir).arg(id);
        let output = limited(command)?;
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let _ = Command::new(&self.runtime)
            .arg("--root")
            .arg(&state)
            .args(["delete", "--force", id])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let open = out.lines().filter_map(|line| line.strip_prefix("open ")).map(str::to_owned);
        let refused = err.lines().find(|line| line.contains("mpsgate: refused container"));
        Ok(match refused {
            Some(line) => Lifecycle::Refused(line.to_owned()),
            None if out.lines().any(|line| line == probe::END) => Lifecycle::Ran(open.collect()),
            None => Lifecycle::Failed(err.lines().last().unwrap_or("said nothing").to_owned()),
        })
    }
}

/// The base has this text where the cgroup's path belongs.
fn with_cgroup(bytes: &[u8], path: &str) -> Vec<u8> {
    const MARK: &[u8] = b"/CGROUP-OF-THIS";
    let Some(at) = bytes.windows(MARK.len()).position(|found| found == MARK) else {
        return bytes.to_vec();
    };
    [&bytes[..at], path.as_bytes(), &bytes[at + MARK.len()..]].concat()
}

fn explain(file: &Path) -> Result<String, Failure> {
    let mut command = Command::new("/usr/bin/mpsgate");
    command.args(["explain", "--node", "/run/mpsgate/node.json", "--output", "json"]).arg(file);
    let output = limited(command)?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(match answer.get("decision").and_then(serde_json::Value::as_str) {
        Some(decision) => decision.to_owned(),
        None => format!("no decision: {}", text(&output.stderr)),
    })
}

/// Runs a command; one that does not come back is ended.
fn limited(mut command: Command) -> Result<Output, Failure> {
    let limit = Duration::from_secs(60);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let begin = Instant::now();
    // What they say fits into a pipe.
    while child.try_wait()?.is_none() {
        if begin.elapsed() > limit {
            child.kill()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(child.wait_with_output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What came of all.
#[derive(Default)]
pub(crate) struct Tally {
    /// Documents that open a managed node on the real runtime: without such the others show
    /// nothing.
    dangerous: u64,
    failed: u64,
    refused: u64,
    ran: u64,
    granted: u64,
    ordinary: u64,
    /// Sentences about what must not be, with document and story.
    opens: Vec<String>,
    apart: Vec<String>,
    stopped: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, number: u64, document: &Document, trial: &Trial) {
        let managed: BTreeSet<String> =
            managed().iter().map(|(major, minor)| format!("{major}:{minor}")).collect();
        let is_dangerous = matches!(&trial.plain, Lifecycle::Ran(open) if open.intersection(&managed).next().is_some());
        self.dangerous += u64::from(is_dangerous);
        self.ordinary += u64::from(document.is_ordinary);
        match &trial.gated {
            Lifecycle::Ran(_) if document.asks => self.granted += 1,
            Lifecycle::Ran(_) => self.ran += 1,
            Lifecycle::Refused(_) => self.refused += 1,
            Lifecycle::Failed(_) => self.failed += 1,
        }
        let story = || format!("document {number} ({})", document.story.join("; "));
        if let Lifecycle::Ran(open) = &trial.gated {
            let may = |node: &String| document.asks && node == "195:0";
            let wrong: Vec<_> =
                open.iter().filter(|node| managed.contains(*node) && !may(node)).collect();
            if !wrong.is_empty() {
                self.opens.push(format!("{} opens {wrong:?} through mpsgate", story()));
            }
        }
        let refused = matches!(trial.gated, Lifecycle::Refused(_));
        let explained = trial.explained.as_str();
        // A reservation is refused by the daemon, too, which explain does not ask.
        let is_apart = match explained {
            "refuse" => !refused,
            "pass" | "edit" => refused,
            "reserve" => false,
            _ => !matches!(trial.plain, Lifecycle::Failed(_)),
        };
        if is_apart {
            self.apart.push(format!(
                "{}: explain says {explained}, and {:?}",
                story(),
                trial.gated
            ));
        }
        // What the runtime itself will not have, too large a document for one, does not start here
        // either.
        let runs = matches!(trial.plain, Lifecycle::Ran(_));
        if document.is_ordinary && runs && !matches!(trial.gated, Lifecycle::Ran(_)) {
            self.stopped.push(format!("{}: {:?}", story(), trial.gated));
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.opens.is_empty()
            && self.apart.is_empty()
            && self.stopped.is_empty()
            && self.dangerous > 0
    }

    pub(crate) fn print(&self, count: u64) {
        println!(
            "# of {count}: {} open a managed node on the real runtime, {} are ordinary; through mpsgate {} ran, {} with a grant, \
             {} were refused, {} the runtime would not have",
            self.dangerous, self.ordinary, self.ran, self.granted, self.refused, self.failed
        );
        let rows = [
            ("no managed node opens through mpsgate", &self.opens),
            ("explain says what mpsgate-runtime does", &self.apart),
            ("an ordinary document starts", &self.stopped),
        ];
        for (number, (what, found)) in rows.iter().enumerate() {
            let verdict = if found.is_empty() { "ok" } else { "not ok" };
            println!("{verdict} {} {what}", number + 1);
            found.iter().take(10).for_each(|line| println!("#   {line}"));
            if found.len() > 10 {
                println!("#   and {} more", found.len() - 10);
            }
        }
        let verdict = if self.dangerous > 0 { "ok" } else { "not ok" };
        println!("{verdict} 4 the documents can open a managed node at all");
    }
}
