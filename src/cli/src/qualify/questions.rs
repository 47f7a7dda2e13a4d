//! Each question: what is done on the card, and what its answer is.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use mpsgate_api::{Asking, Call, CardStatus, GateStatus, Removal, Terminate};
use mpsgate_host::clock::now_ms;
use mpsgate_model::{
    Answer, ComputeMode, ContainerId, GrantKey, Guarantee, Instance, OneOf, Question, Verdict,
};

use crate::cuda_client::{self, Bundle, Client, Container, Runs, Runtime, Silent, Step};
use crate::{CliError, daemon_call};

/// For all of them.
pub(super) const ALL: Duration = Duration::from_secs(60);
/// For what `--full` adds. Together with [`ALL`] less than mpsgated keeps a card for who asks.
pub(super) const FULL: Duration = Duration::from_secs(40);
/// Whose the second client of `users` is: nobody's.
const OTHER_UID: u32 = 65_534;
/// What the client has that is asked, as [`granted`] says, and what its neighbour has in `bypass`.
const GRANTED: u64 = 2048;
const NEIGHBOURS: u64 = 4096;
/// A client that a limit stops has got more than this: what is missing is its own context (514 MiB
/// on an H200, driver 580, measured; 426 on an L40S, driver 610), and it makes a second one.
const LEAST: u64 = GRANTED / 2;
/// What `processes` looks for.
const TAKEN: u64 = 256;
/// For mpsgated to know: the watchdog looks each second, and a gate tells of its clients every
/// five.
const KNOWN: Duration = Duration::from_secs(10);
/// For as long a figure has to be the same: two looks of the watchdog's. While its context is made
/// a client has less (14 MiB, and 516 then: H200, driver 580, measured).
const SETTLED: Duration = Duration::from_millis(2200);
/// The clients of `throughput` work for so long.
const WORK: Duration = Duration::from_secs(1);
/// Between two looks at mpsgated.
const POLL: Duration = Duration::from_millis(200);
/// `CUDA_ERROR_MAP_FAILED`: a client does not find the server's region in its `/dev/shm` (libcuda
/// 535 and 550, measured).
const MAP_FAILED: i32 = 205;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`: "often … due to use of `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`"
/// (cuda.h). No other says that it was the compute mode.
const UNAVAILABLE: i32 = 46;
/// Of a client: it attaches and makes a context, and takes what it gets.
const CONTEXT: [&str; 2] = ["attach", "context"];
const FILL: [&str; 3] = ["attach", "context", "fill"];
const LIMIT_VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// Who asks a card.
pub(super) struct Asker<'a> {
    /// What mpsgated said.
    pub(super) asking: &'a Asking,
    /// mpsgated's.
    pub(super) socket: &'a Path,
    /// `mpsgate` itself.
    pub(super) own: &'a Path,
    pub(super) runtime: Runtime<'a>,
    /// libcuda.
    pub(super) library: &'a OsStr,
    /// When all is over.
    pub(super) until: Instant,
    /// When the question that is put is.
    pub(super) deadline: Instant,
    /// Containers so far: of their ids.
    pub(super) containers: Cell<u32>,
    /// What came of `attach`, which the others rest on.
    pub(super) attached: Option<Step>,
}

/// What a question showed.
struct Seen {
    verdict: Verdict,
    /// A client was put to it.
    was_put: bool,
    seen: String,
    evidence: String,
    mib: Option<u64>,
}

impl Seen {
    fn new(verdict: Verdict, seen: impl Into<String>) -> Self {
        Self { verdict, was_put: true, seen: seen.into(), evidence: String::new(), mib: None }
    }

    /// Whatever else there is on the card, it has no answer now.
    fn not_asked(why: impl Into<String>) -> Self {
        Self { was_put: false, ..Self::unanswered(why) }
    }

    /// A client was put to it, or should have been, and did not show it.
    fn unanswered(why: impl Into<String>) -> Self {
        Self::new(Verdict::Unanswered, why)
    }

    fn with(self, evidence: impl Into<String>) -> Self {
        Self { evidence: evidence.into(), ..self }
    }

    /// More than was granted is none that holds. Far less was stopped by something else.
    fn memory(got: u64, evidence: impl Into<String>) -> Self {
        if got == 0 {
            return Self::new(Verdict::No, format!("a client with {GRANTED} MiB got nothing"));
        }
        let seen = format!("a client with {GRANTED} MiB got {got}");
        if got <= LEAST {
            return Self::unanswered(format!("{seen}: no limit of memory stops it there"));
        }
        let verdict = if got <= GRANTED { Verdict::Yes } else { Verdict::No };
        Self { mib: Some(got), ..Self::new(verdict, seen).with(evidence) }
    }
}

/// What a client that did not answer means.
impl From<Silent> for Seen {
    fn from(silent: Silent) -> Self {
        match silent {
            Silent::NotStarted(_) | Silent::Unattached(_) => Self::unanswered(silent.to_string()),
            Silent::Ended(_) | Silent::Killed(_) | Silent::Hung => {
                Self::new(Verdict::No, silent.to_string())
            }
            Silent::Signal => Self::not_asked(silent.to_string()),
        }
    }
}

impl<'a> Asker<'a> {
    /// Asks one question.
    pub(super) fn ask(&mut self, question: Question) -> Answer {
        let begun = Instant::now();
        let seen = counted(question, || self.attempt(question));
        Answer {
            question,
            expected: question.expected().to_owned(),
            seen: seen.seen,
            verdict: seen.verdict,
            evidence: seen.evidence,
            meanwhile: String::new(),
            mib: seen.mib,
            granted_mib: seen.was_put.then(|| granted(question)),
            took_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            at_ms: now_ms(),
        }
    }

    fn attempt(&mut self, question: Question) -> Result<Seen, Silent> {
        let begun = Instant::now();
        if begun >= self.until {
            return Ok(Seen::not_asked("no time was left"));
        }
        self.deadline = (begun + limit_of(question)).min(self.until);
        match self.put(question) {
            // It has not had the time that the question may take.
            Err(Silent::Hung) if begun + limit_of(question) > self.until => {
                Ok(Seen::unanswered("no time was left"))
            }
            seen => seen,
        }
    }

    fn put(&mut self, question: Question) -> Result<Seen, Silent> {
        match question {
            Question::Attach => self.attach(),
            Question::Commands => self.commands(),
            Question::OwnShm => self.own_shm(),
            _ if self.attached.as_ref().is_none_or(|step| step.error.is_some()) => {
                Ok(Seen::not_asked("no CUDA client attaches: see attach"))
            }
            Question::Limit => self.limit(),
            Question::Bypass => self.bypass(),
            Question::Processes => self.processes(),
            Question::Detour => self.detour(),
            Question::Users => self.users(),
            Question::Terminate => self.terminate(),
            Question::Cgroup => self.cgroup(),
            Question::Throughput => self.throughput(),
        }
    }

    fn attach(&mut self) -> Result<Seen, Silent> {
        let before = self.gate().map_or(0, |gate| gate.handed_over);
        let step = self.client(GRANTED, &[])?.steps(&CONTEXT)?;
        let verdict = match &step.error {
            Some(why) if step.no_library => Seen::not_asked(format!("no libcuda: {why}")),
            None if step.mps_client == Some(false) => {
                Seen::new(Verdict::No, "a context past MPS: CUDA says that it is no MPS client")
            }
            None => Seen::new(Verdict::Yes, "a context, of an MPS client"),
            // Without a GPU its server can only turn it away.
            Some(why)
                if self.asking.subject.simulated && self.tells(|now| now.handed_over > before) =>
            {
                Seen::not_asked(format!(
                    "no GPU: its client reached the MPS server through its door, and CUDA said: {why}"
                ))
            }
            Some(why) => Seen::new(Verdict::No, why.as_str()),
        };
        self.attached = Some(step);
        Ok(verdict)
    }

    /// Whether the card's gate tells so, as it does some moments later.
    fn tells(&self, so: impl Fn(&GateStatus) -> bool) -> bool {
        let deadline = self.deadline.min(Instant::now() + KNOWN);
        while Instant::now() < deadline {
            if self.gate().as_ref().is_some_and(&so) {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }

    fn commands(&mut self) -> Result<Seen, Silent> {
        // One that has told nothing yet has ended nobody.
        let before = self.gate().unwrap_or_default();
        let control = self.asking.control.clone();
        // A command that each control daemon answers with a number, whatever runs.
        let words = format!(
            "echo get_default_active_thread_percentage | timeout 5 '{}'; echo \"exit status $?\"",
            control.display()
        );
        let runs = Runs::Shell { words: &words, file: &control };
        let client = self.container(GRANTED, runs)?;
        let said = client.all()?;
        let said = said.trim().replace('\n', " | ");
        let ended = |gate: &GateStatus| gate.ended.get("word").copied().unwrap_or_default();
        let number = |word: &str| word.parse::<f64>().is_ok();
        let answer = said.split(" | ").find(|line| number(line.trim()));
        Ok(match answer {
            Some(answer) => {
                Seen::new(Verdict::No, format!("the control daemon answered {}", answer.trim()))
            }
            None if said.contains("exit status 127") || !said.contains("exit status") => {
                Seen::not_asked("the control program does not run in a container")
            }
            // Else it may not have come so far.
            None if self.tells(|now| ended(now) > ended(&before)) => {
                Seen::new(Verdict::Yes, "no answer, and the gate ended the client for its word")
            }
            None => Seen::unanswered("no answer, and the gate tells of no client that said it"),
        }
        .with(said))
    }

    fn own_shm(&mut self) -> Result<Seen, Silent> {
        let step = self.container(GRANTED, Runs::OwnShm { args: &["--steps"] })?.steps(&CONTEXT)?;
        let with = self.attached.as_ref();
        Ok(match &step.error {
            None => Seen::new(Verdict::Yes, "a context"),
            Some(why) if step.no_library => Seen::not_asked(format!("no libcuda: {why}")),
            // Whatever it is, the container's own /dev/shm has nothing to do with it.
            Some(why)
                if with.is_some_and(|with| with.error.is_some() && with.code == step.code) =>
            {
                Seen::not_asked(format!("as far as with the server's own: {why}"))
            }
            Some(why)
                if step.code == Some(MAP_FAILED)
                    || with.is_some_and(|with| with.error.is_none()) =>
            {
                Seen::new(Verdict::No, why.as_str())
            }
            Some(why) => Seen::unanswered(why.as_str()),
        })
    }

    fn limit(&mut self) -> Result<Seen, Silent> {
        let got = self.client(GRANTED, &[])?.steps(&FILL)?;
        Ok(match got.error {
            None => Seen::memory(got.allocated_mib, "as its container's grant has it"),
            Some(why) => Seen::new(Verdict::No, why),
        })
    }

    /// The worst of all that a client can do with its environment, beside a neighbour that has
    /// more. One that has lost its variable asks the server and keeps to what that says; one whose
    /// variable cannot be read keeps to nothing, and only a server could hold it.
    fn bypass(&mut self) -> Result<Seen, Silent> {
        let raised = format!("{LIMIT_VARIABLE}=0=1024G");
        let invisible = format!("{LIMIT_VARIABLE}=0=1024G,9=1024G");
        let unreadable = format!("{LIMIT_VARIABLE}=none");
        let mut worst = 0;
        let mut evidence = Vec::new();
        let mut note = |client: &str, got: &Step| {
            worst = worst.max(got.mib());
            evidence.push(format!("{client}: {got}"));
        };
        let mut neighbour = self.client(NEIGHBOURS, &[])?;
        if let Some(why) = neighbour.steps(&CONTEXT)?.error {
            return Ok(Seen::unanswered(format!("a neighbour did not attach: {why}")));
        }
        for (name, by) in [
            ("unset", ["env", "-u", LIMIT_VARIABLE].as_slice()),
            ("raised", &["env", &raised]),
            ("naming a GPU that is not there", &["env", &invisible]),
            ("unreadable", &["env", &unreadable]),
        ] {
            note(name, &self.client(GRANTED, by)?.steps(&FILL)?);
        }
        drop(neighbour);
        // It attaches first, then a larger neighbour does, and only then it makes its contexts.
        let mut client = self.client(GRANTED, &["env", "-u", LIMIT_VARIABLE])?;
        let mut got = client.step("attach")?;
        let mut neighbour = self.client(NEIGHBOURS, &[])?;
        neighbour.steps(&CONTEXT)?;
        if got.error.is_none() {
            got = client.steps(&["context", "fill"])?;
        }
        note("attached before a larger one", &got);
        if got.error.is_none() {
            note("with a second context", &client.steps(&["second", "fill"])?);
        }
        let evidence = evidence.join("; ");
        Ok(match worst {
            0 => Seen::unanswered("no client got any memory").with(evidence),
            mib => Seen::memory(mib, evidence),
        })
    }

    fn processes(&mut self) -> Result<Seen, Silent> {
        let mut client = self.client(GRANTED, &[])?;
        if let Some(why) = client.steps(&CONTEXT)?.error {
            return Ok(Seen::new(Verdict::No, why));
        }
        let Some(idle) = self.used(client.id(), 1) else {
            return Ok(Seen::new(Verdict::No, "nothing of an idle client").with(self.unwatched()));
        };
        let taken = client.step(&format!("take {TAKEN}"))?;
        if let Some(why) = taken.error {
            return Ok(Seen::new(Verdict::No, why));
        }
        // In two figures a client's own memory may have changed a little.
        let least = idle + TAKEN - TAKEN / 8;
        Ok(match self.used(client.id(), least) {
            Some(then) => Seen {
                mib: Some(idle),
                ..Seen::new(Verdict::Yes, format!("{idle} MiB idle, {then} with {TAKEN} taken"))
            },
            None => {
                Seen::new(Verdict::No, format!("{idle} MiB idle, and no more with {TAKEN} taken"))
                    .with(self.unwatched())
            }
        })
    }

    fn detour(&mut self) -> Result<Seen, Silent> {
        if self.asking.subject.simulated {
            return Ok(Seen::not_asked("no GPU: the card is simulated"));
        }
        let exclusive = ComputeMode::ExclusiveProcess;
        let mode = self.card().map(|card| card.compute_mode);
        if mode.as_ref().is_none_or(|mode| *mode != exclusive) {
            let mode = mode.as_ref().map_or("", OneOf::as_str);
            return Ok(Seen::not_asked(format!("its compute mode is {mode}, not {exclusive}")));
        }
        let _client = self.attached(GRANTED)?;
        let mut command = cuda_client::steps(self.own, self.library);
        command.env_clear().env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
        command.env("CUDA_VISIBLE_DEVICES", self.asking.subject.card.as_str());
        let mut beside = Client::beside(command, self.runtime.ended, self.deadline)?;
        let past = beside.steps(&CONTEXT)?;
        Ok(match past.error {
            None => Seen::new(Verdict::No, "it got the card"),
            Some(why) if past.code == Some(UNAVAILABLE) => Seen::new(Verdict::Yes, why),
            Some(why) if past.no_library => Seen::not_asked(why),
            Some(why) => {
                Seen::unanswered(format!("it failed for another reason than a busy card: {why}"))
            }
        })
    }

    fn users(&self) -> Result<Seen, Silent> {
        let mut own = self.attached(GRANTED)?;
        let runs = Runs::Probe { by: &[], args: &["--steps"] };
        let mut other = self.of_uid(OTHER_UID, NEIGHBOURS, runs)?;
        let attached = match other.steps(&CONTEXT) {
            // It was refused: a control daemon that serves one uid has not been tried.
            Err(Silent::Ended(why)) if why.contains("E_UID") => {
                return Ok(Seen::not_asked("this control daemon serves one uid at a time"));
            }
            other => other?,
        };
        if let Some(why) = attached.error {
            return Ok(Seen::new(Verdict::No, format!("uid {OTHER_UID} beside uid 0: {why}")));
        }
        let (first, second) = (own.step("fill")?, other.step("fill")?);
        let held = [(&first, GRANTED), (&second, NEIGHBOURS)]
            .iter()
            .all(|(got, granted)| (1..=*granted).contains(&got.mib()));
        let verdict = if held { Verdict::Yes } else { Verdict::No };
        let seen = format!("{GRANTED} MiB: {first}; uid {OTHER_UID}, {NEIGHBOURS} MiB: {second}");
        Ok(Seen::new(verdict, seen))
    }

    fn terminate(&self) -> Result<Seen, Silent> {
        let (mut one, mut other) = (self.attached(GRANTED)?, self.attached(GRANTED)?);
        if let Err(why) = self.terminate_clients_of(one.id()) {
            return Ok(Seen::new(Verdict::No, why));
        }
        let (hit, spared) = (one.step("take 1")?.error, other.step("take 1")?.error);
        Ok(match (hit, spared) {
            (Some(why), None) => Seen::new(Verdict::Yes, format!("{why}; its neighbour goes on")),
            (None, None) => Seen::new(Verdict::No, "the client goes on as before"),
            (_, Some(why)) => Seen::new(Verdict::No, format!("its neighbour is hit: {why}")),
        })
    }

    /// Two clients of one container: MPS holds each of them to the grant, and only the driver's
    /// limit on the cgroup holds both.
    fn cgroup(&self) -> Result<Seen, Silent> {
        let granted = granted(Question::Cgroup);
        let mut client = self.attached(granted)?;
        let status =
            daemon_call::status(self.socket).map(|status| status.grants).unwrap_or_default();
        let level = status.into_iter().find(|grant| grant.container_id == client.id());
        if level.is_none_or(|grant| grant.guarantee != Guarantee::Cgroup) {
            let why = self.card().and_then(|card| card.unlimited).unwrap_or_default();
            return Ok(Seen::not_asked(format!("its cgroup has no limit of the driver's: {why}")));
        }
        let beside = client.step("beside")?;
        if let Some(why) = beside.error {
            return Ok(Seen::unanswered(format!("no second client: {why}")));
        }
        let second = beside.beside_mib;
        let filled = client.step("fill")?;
        if let Some(why) = filled.error {
            return Ok(Seen::unanswered(format!("the first one failed: {why}")));
        }
        let first = filled.allocated_mib;
        let seen = format!("{granted} MiB: one client got {first}, another beside it {second}");
        Ok(match first + second {
            // Two contexts are missing, 1028 MiB on an H200.
            sum if sum <= granted / 2 => {
                Seen::unanswered(format!("{seen}: no limit of memory stops them there"))
            }
            sum if sum <= granted => Seen { mib: Some(sum), ..Seen::new(Verdict::Yes, seen) },
            sum => Seen { mib: Some(sum), ..Seen::new(Verdict::No, seen) },
        })
    }

    /// A kernel that needs a small part of a card: two clients launch nearly twice as many in the
    /// same time (1.99 times on an H200 with driver 580, measured), or no more where they take
    /// turns (0.9).
    fn throughput(&self) -> Result<Seen, Silent> {
        let mut clients = [self.attached(GRANTED)?, self.attached(GRANTED)?];
        let work = format!("work {}", WORK.as_millis());
        let [one, _] = &mut clients;
        let alone = one.step(&work)?;
        clients.iter_mut().try_for_each(|client| client.tell(&work))?;
        let [one, other] = &mut clients;
        let (one, other) = (one.hear()?, other.hear()?);
        if let Some(why) = [&alone, &one, &other].into_iter().find_map(|step| step.error.clone()) {
            return Ok(Seen::unanswered(format!("its kernel did not run: {why}")));
        }
        let (alone, both) = (alone.launches, one.launches + other.launches);
        let seen = format!("one alone launched {alone} kernels, two at once {both}");
        Ok(match both * 2 >= alone * 3 {
            _ if alone == 0 => Seen::unanswered(seen),
            true => Seen::new(Verdict::Yes, seen),
            false => Seen::new(Verdict::No, seen),
        })
    }

    /// Has mpsgated end the GPU work of a container's clients, as before a kill; why not, else.
    fn terminate_clients_of(&self, id: &str) -> Result<(), String> {
        let status = daemon_call::status(self.socket).map_err(|error| error.to_string())?;
        let grant = status.grants.into_iter().find(|grant| grant.container_id == id);
        let key = grant.and_then(|grant| {
            Some(GrantKey {
                runtime_root: grant.runtime_root,
                container_id: ContainerId::parse(&grant.container_id).ok()?,
                instance: Instance::parse(&grant.instance).ok()?,
            })
        });
        let key = key.ok_or("its grant has ended")?;
        let call = Call::Terminate(Terminate { key, removal: Removal::No });
        match daemon_call::change(self.socket, call) {
            Ok(said) if said.is_empty() => Err("the MPS server knows no such client".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What mpsgated sees of a container's memory, once it is at least so much and stays.
    fn used(&self, id: &str, least: u64) -> Option<u64> {
        let deadline = self.deadline.min(Instant::now() + KNOWN);
        let (mut last, mut since) = (None, Instant::now());
        while Instant::now() < deadline {
            let status = daemon_call::status(self.socket).ok()?;
            let grant = status.grants.iter().find(|grant| grant.container_id == id);
            let used = grant.and_then(|grant| grant.used_mib).filter(|mib| *mib >= least);
            if used != last {
                (last, since) = (used, Instant::now());
            } else if used.is_some() && since.elapsed() >= SETTLED {
                return used;
            }
            std::thread::sleep(POLL);
        }
        None
    }

    fn unwatched(&self) -> String {
        self.card().and_then(|card| card.unwatched).unwrap_or_default()
    }

    fn gate(&self) -> Option<GateStatus> {
        self.card()?.gate
    }

    fn card(&self) -> Option<CardStatus> {
        let status: Result<_, CliError> = daemon_call::status(self.socket);
        let mut cards = status.ok()?.cards.into_iter();
        cards.find(|card| card.uuid == self.asking.subject.card.as_str())
    }

    /// A client with a context, where that is not what is asked.
    fn attached(&self, mib: u64) -> Result<Client<'a>, Silent> {
        let mut client = self.client(mib, &[])?;
        match client.steps(&CONTEXT)?.error {
            None => Ok(client),
            Some(why) => Err(Silent::Unattached(why)),
        }
    }

    /// A client in a container with so much of the card, started by a command of the node.
    fn client(&self, mib: u64, by: &[&str]) -> Result<Client<'a>, Silent> {
        self.container(mib, Runs::Probe { by, args: &["--steps"] })
    }

    fn container(&self, mib: u64, runs: Runs<'_>) -> Result<Client<'a>, Silent> {
        self.of_uid(0, mib, runs)
    }

    fn of_uid(&self, uid: u32, mib: u64, runs: Runs<'_>) -> Result<Client<'a>, Silent> {
        let number = self.containers.get();
        self.containers.set(number + 1);
        let container = Container {
            program: self.own,
            memory: &format!("{mib}Mi"),
            gpu: Some(self.asking.subject.card.as_str()),
            library: self.library,
            uid,
            runs,
        };
        let id = format!("{}-{number}", self.asking.id);
        let failed =
            |what: &str, error: io::Error| Silent::NotStarted(format!("{what} failed: {error}"));
        let bundle = Bundle::write(&container).map_err(|e| failed("a bundle in /run", e))?;
        let what = self.runtime.program.display().to_string();
        self.runtime.start(id, bundle, Some(self.deadline)).map_err(|e| failed(&what, e))
    }
}

/// What the client has that is asked.
fn granted(question: Question) -> u64 {
    match question {
        // Two clients make two contexts.
        Question::Cgroup => NEIGHBOURS,
        _ => GRANTED,
    }
}

/// What was seen when a question was asked: a second time, where the first client's silence may
/// have been chance and a *no* would count.
fn counted(question: Question, mut attempt: impl FnMut() -> Result<Seen, Silent>) -> Seen {
    let first = match attempt() {
        Err(silent) if silent.may_be_chance() && question.is_evaluated() => Seen::from(silent),
        seen => return seen.unwrap_or_else(Seen::from),
    };
    let again = match attempt() {
        Err(Silent::NotStarted(why)) => {
            return Seen::unanswered(first.seen).with(format!("not asked again: {why}"));
        }
        // Its answer is waited for by nobody.
        Err(Silent::Signal) => return Seen::from(Silent::Signal),
        again => again.unwrap_or_else(Seen::from),
    };
    let before = format!("asked a second time, because at first: {}", first.seen);
    let evidence = match again.evidence.as_str() {
        "" => before,
        evidence => format!("{before}; {evidence}"),
    };
    // The first one was put to it.
    Seen { was_put: true, ..again.with(evidence) }
}

/// What one attempt may take. Together all are done within [`ALL`]: what no time is left for is
/// unanswered.
fn limit_of(question: Question) -> Duration {
    Duration::from_secs(match question {
        // Eight clients.
        Question::Bypass => 30,
        _ => 15,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What counts where the attempts come to this, and how many there were.
    fn asked(question: Question, attempts: Vec<Result<Seen, Silent>>) -> (Seen, usize) {
        let (mut made, mut attempts) = (0, attempts.into_iter());
        let attempt = || {
            made += 1;
            attempts.next().unwrap_or_else(|| panic!("asked {made} times"))
        };
        (counted(question, attempt), made)
    }

    #[test]
    fn silence_counts_when_it_came_twice_and_a_refusal_at_once() {
        let killed = || Err(Silent::Killed("exit status 137: ".to_owned()));
        let ended = || Err(Silent::Ended("exit status 1: ".to_owned()));
        let hung = || Err(Silent::Hung);
        let no = || Ok(Seen::new(Verdict::No, "CUDA said no"));
        let yes = || Ok(Seen::new(Verdict::Yes, "a context"));
        let open = || Ok(Seen::unanswered("no time was left"));
        let not_started = || Err(Silent::NotStarted("no".to_owned()));
        let attach = Question::Attach;
        for (question, attempts, verdict, made) in [
            (attach, vec![yes()], Verdict::Yes, 1),
            (attach, vec![no()], Verdict::No, 1),
            (attach, vec![ended()], Verdict::No, 1),
            (attach, vec![not_started()], Verdict::Unanswered, 1),
            (attach, vec![Err(Silent::Signal)], Verdict::Unanswered, 1),
            (attach, vec![hung(), yes()], Verdict::Yes, 2),
            (attach, vec![killed(), yes()], Verdict::Yes, 2),
            (attach, vec![hung(), no()], Verdict::No, 2),
            (attach, vec![hung(), hung()], Verdict::No, 2),
            (attach, vec![killed(), killed()], Verdict::No, 2),
            (attach, vec![hung(), killed()], Verdict::No, 2),
            (attach, vec![hung(), open()], Verdict::Unanswered, 2),
            (attach, vec![killed(), not_started()], Verdict::Unanswered, 2),
            (attach, vec![killed(), Err(Silent::Signal)], Verdict::Unanswered, 2),
            (Question::Limit, vec![killed(), yes()], Verdict::Yes, 2),
            // Nothing follows from its no.
            (Question::Bypass, vec![hung()], Verdict::No, 1),
        ] {
            let case = format!("{question:?}: {}", attempts.len());
            let (seen, times) = asked(question, attempts);
            assert_eq!((seen.verdict, times), (verdict, made), "{case}: {}", seen.seen);
        }
        for (attempts, was_put) in [
            (vec![not_started()], true),
            (vec![hung(), not_started()], true),
            (vec![Ok(Seen::not_asked("no time was left"))], false),
            (vec![hung(), Ok(Seen::not_asked("no time was left"))], true),
            (vec![Err(Silent::Signal)], false),
            (vec![hung(), Err(Silent::Signal)], false),
        ] {
            let case = attempts.len();
            let (seen, _) = asked(attach, attempts);
            assert_eq!(
                (seen.verdict, seen.was_put),
                (Verdict::Unanswered, was_put),
                "{case}: {}",
                seen.seen
            );
        }
        let more = Ok(Seen::new(Verdict::Yes, "a context").with("a figure"));
        let (seen, _) = asked(attach, vec![hung(), more]);
        let expected = "asked a second time, because at first: no answer in time; a figure";
        assert_eq!((seen.seen.as_str(), seen.evidence.as_str()), ("a context", expected));
    }
}
