//! A process is killed at each crash point, while containers come and go.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mpsgate_config::paths;
use mpsgate_host::crash::{ARMED, DIED, POINTS};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::check::{self, Before};
use crate::churn::{Mix, Workers};
use crate::container::Container;
use crate::daemon::{Daemon, status};
use crate::node::{self, THIRD, uuid, wait_for};
use crate::random::Random;
use crate::third::Third;
use crate::{Failure, Workplace};

/// Containers of a run, at least; in an emulated machine as many times fewer as waiting may take
/// longer.
const CONTAINERS: u64 = 500;
/// How long points are visited; those that are left have their turn with another seed.
const BUDGET: Duration = Duration::from_secs(110);
/// How long a point may stay unreached once something is done that passes it.
const REACH: Duration = Duration::from_secs(20);
/// In an emulated machine one, for which it is slow enough.
const WORKERS: u64 = 3;
/// The container that gets more, and what it gets.
const RESIZED: u64 = 97;
const RESIZED_MIB: u64 = 1280;
/// A device of cgroup v1 is evaluated by its rules: no child is forked that could pass this.
const CGROUP_V2_ONLY: &str = "hook.probe_joined";

/// What makes a process pass a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Containers that come and go.
    Churn,
    /// A start of mpsgated.
    Start,
    /// The end of mpsgated.
    Stop,
    /// `mpsgate enable` of the third card.
    Enable,
    /// `mpsgate disable`.
    Disable,
    /// A poststop hook that comes before the daemon has seen the container's end. That is rare:
    /// here it comes while the container lives.
    EarlyRelease,
    /// `mpsgate mps stop` of the third card.
    MpsStop,
    /// `mpsgate mps restart` of one that is stopped.
    MpsStart,
    /// `mpsgate mps restart`.
    MpsRestart,
    /// The death of a control daemon with a grant on its card.
    MpsDeath,
    /// `mpsgate resize` of a container.
    Resize,
    /// `mpsgate run`.
    Run,
}

fn need(point: &str) -> Need {
    match point {
        "daemon.release.changed" => Need::EarlyRelease,
        "daemon.record.before_renew" => Need::Resize,
        "mps_start.recorded" => Need::MpsStart,
        "mps_restart.ended" => Need::MpsRestart,
        "daemon.stop.stored" | "daemon.stop.unlinked" => Need::Stop,
        "disable.fenced"
        | "disable.stopped"
        | "disable.published"
        | "disable.forgotten"
        | "compute_mode.restored"
        | "lease.removed"
        | "mps.daemon_ended"
        | "mps.directories_removed" => Need::Disable,
        _ if point.starts_with("mps.door.") => Need::Churn,
        _ => match point.split('.').next().unwrap_or_default() {
            "enable" | "lease" | "compute_mode" | "mps" | "launch" | "hold" => Need::Enable,
            "shim" | "hook" | "ledger" => Need::Churn,
            "mps_stop" => Need::MpsStop,
            "grants" => Need::MpsDeath,
            _ => match point.split('.').nth(1).unwrap_or_default() {
                "reserve" | "activate" | "terminate" | "expire" | "end" | "record" => Need::Churn,
                "resize" => Need::Resize,
                "run" => Need::Run,
                _ => Need::Start,
            },
        },
    }
}

/// Calls that may fail because a process was killed there: its own. A daemon that is killed is
/// waited for.
fn allowed_failures(point: &str) -> usize {
    usize::from(point.starts_with("shim.") || point.starts_with("hook."))
}

struct Run<'a> {
    at: &'a Workplace,
    daemon: Daemon,
    workers: Workers,
    before: Before,
    random: Random,
    number: usize,
    failed: usize,
}

pub(crate) fn run(at: &Workplace) -> Result<bool, Failure> {
    std::fs::create_dir_all(Path::new(ARMED).parent().ok_or("a directory of points")?)?;
    node::prepare(at, &at.crashing)?;
    let daemon = Daemon::start(&at.scratch.join("log/mpsgated.log"))?;
    let workers = Workers::start(
        at,
        if at.patience > 1 { 1 } else { WORKERS },
        Mix { greedy: 0, may_refuse: false },
    );
    let witnesses = [workers.churn.witness(0)?, workers.churn.witness(1)?];
    let before = Before::take(at)?;
    let random = Random::new(at.seed, 1000);
    let mut run = Run { at, daemon, workers, before, random, number: 0, failed: 0 };
    println!("1..{}", POINTS.len() + 2);
    run.shipped_programs_hold_no_point()?;

    let mut points = POINTS.to_vec();
    run.random.shuffle(&mut points);
    let started = Instant::now();
    let mut left = Vec::new();
    for point in points {
        if point == CGROUP_V2_ONLY && Path::new("/sys/fs/cgroup/devices").exists() {
            run.tell(
                &format!("{point} # skip cgroup v1: rules are read, nobody is forked"),
                Ok(()),
            );
        } else if started.elapsed() > BUDGET * at.patience {
            run.tell(
                &format!("{point} # skip the time is up: another seed begins elsewhere"),
                Ok(()),
            );
            left.push(point);
        } else {
            let result = run.visit(point);
            run.tell(&format!("killed at {point}"), result);
        }
    }
    let result = run.end(&witnesses);
    let containers = run.workers.churn.created();
    run.tell(&format!("{containers} containers later nothing is left"), result);
    println!(
        "# {} of {} points in {} s, seed {}{}",
        POINTS.len() - left.len(),
        POINTS.len(),
        started.elapsed().as_secs(),
        at.seed,
        if left.is_empty() { String::new() } else { format!("; not visited: {}", left.join(" ")) }
    );
    let (failed, workers) = (run.failed, run.workers);
    run.daemon.stop()?;
    workers.stop()?;
    Ok(failed == 0)
}

impl Run<'_> {
    fn tell(&mut self, what: &str, result: Result<(), Failure>) {
        self.number += 1;
        let number = self.number;
        match result {
            Ok(()) => println!("ok {number} {what}"),
            Err(error) => {
                self.failed += 1;
                println!("not ok {number} {what}\n#   {error}");
                // What follows a first failure is mostly its consequence.
                if self.failed == 1 {
                    println!("#   {}", last_lines(&self.at.scratch.join("log/mpsgated.log")));
                }
            }
        }
    }

    /// The names of points are in the programs that were built with them, and in no other.
    fn shipped_programs_hold_no_point(&mut self) -> Result<(), Failure> {
        let mut wrong = Vec::new();
        let mut with = 0;
        for program in node::PROGRAMS {
            let text = |path: PathBuf| {
                std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            };
            let shipped = text(self.at.products.join(program))?;
            let crashing = text(self.at.crashing.join(program))?;
            let words = || POINTS.iter().copied().chain([ARMED, DIED]);
            wrong.extend(
                words()
                    .filter(|word| shipped.contains(word))
                    .map(|word| format!("{program}: {word}")),
            );
            with += usize::from(crashing.contains(ARMED));
        }
        let result = match (wrong.is_empty(), with) {
            // Shim, hook and daemon.
            (true, 3) => Ok(()),
            (true, _) => {
                Err(format!("{with} programs with points, 3 expected: this test sees nothing")
                    .into())
            }
            (false, _) => Err(wrong.join(", ").into()),
        };
        self.tell("programs as shipped hold no crash point", result);
        Ok(())
    }

    fn visit(&mut self, point: &str) -> Result<(), Failure> {
        let need = need(point);
        let third =
            Third { at: self.at, is_wanted: need.is_of_third() || point == "hook.node_made" };
        // Whose last act is what is to be cut short.
        if third.is_wanted && need != Need::Enable {
            third.retried(&["enable"])?;
        }
        if need == Need::MpsStart {
            third.retried(&["mps", "stop", "--yes"])?;
        }
        let on_third = (need == Need::MpsDeath)
            .then(|| self.workers.churn.witness_on(THIRD, 98))
            .transpose()?;
        let resized =
            (need == Need::Resize).then(|| self.workers.churn.witness(RESIZED)).transpose()?;
        if point.starts_with("daemon.link.") {
            std::fs::remove_file(paths::RUNTIME_LINK)?;
        }
        let passings = match need {
            Need::Churn if point.starts_with("shim.file.") => 1 + self.random.below(6),
            Need::Churn => 1 + self.random.below(3),
            _ => 1,
        };
        let starts = self.daemon.starts();
        let _ = std::fs::remove_file(DIED);
        arm(point, passings)?;
        self.provoke(need, &third)?;
        let died = self.wait_until_died(point);
        let _ = std::fs::remove_file(ARMED);
        died?;
        // As systemd would: the supervisor starts it again.
        let others = ["shim.", "hook.", "launch.", "hold."];
        let killed_daemon = !others.iter().any(|of| point.starts_with(of));
        self.daemon.wait_started(starts + u32::from(killed_daemon))?;
        if let Some(container) = &on_third {
            wait_for("a grant on a dead MPS to be broken", || is_broken(&container.id))?;
            self.workers.churn.dismiss(container)?;
        }
        if let Some(container) = &resized {
            wait_for("a container to be resized", || Ok(resize().is_ok()))?;
            self.workers.churn.has(container, RESIZED_MIB)?;
        }
        // The command that was cut short, again.
        if !need.command().is_empty() {
            third.retried(need.command())?;
        }
        self.evaluate(point)?;
        if let Some(container) = &resized {
            self.workers.churn.dismiss(container)?;
        }
        third.give_back()
    }

    /// Does what passes the point. That may fail: it is cut short.
    fn provoke(&self, need: Need, third: &Third<'_>) -> Result<(), Failure> {
        match need {
            Need::Churn => Ok(()),
            Need::Start => self.daemon.signal(Signal::SIGKILL),
            Need::Stop => self.daemon.signal(Signal::SIGTERM),
            Need::EarlyRelease => self.release_early(),
            Need::Resize => {
                let _ = resize();
                Ok(())
            }
            Need::Run => {
                let _ = node::run("/usr/bin/mpsgate", &["run", "--gpu-mem", "64Mi", "--", "true"]);
                Ok(())
            }
            Need::MpsDeath => {
                let cards = status()?.cards.into_iter();
                let mps =
                    cards.filter(|card| card.uuid == uuid(THIRD)).find_map(|card| card.mps?.pid);
                let pid = mps.ok_or("the third card has no control daemon")?;
                Ok(kill(Pid::from_raw(pid.try_into()?), Signal::SIGKILL)?)
            }
            _ => {
                let _ = third.once(need.command());
                Ok(())
            }
        }
    }

    fn release_early(&self) -> Result<(), Failure> {
        let churn = &self.workers.churn;
        let container = churn.witness(99)?;
        container.poststop()?;
        churn.dismiss(&container)
    }

    fn wait_until_died(&self, point: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + REACH * self.at.patience;
        while !Path::new(DIED).exists() || Path::new(ARMED).exists() {
            if Instant::now() > deadline {
                return Err(format!(
                    "{point} was not reached in {} s",
                    (REACH * self.at.patience).as_secs()
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Lets some containers be made, so that what they clean up is clean; then looks at everything.
    fn evaluate(&mut self, point: &str) -> Result<(), Failure> {
        let churn = &self.workers.churn;
        let created = churn.created();
        wait_for("containers to be made", || Ok(churn.created() >= created + 2))?;
        let (node, failures) = churn
            .paused(|| (check::node(churn, &self.before, self.daemon.pid()), churn.failures()));
        node?;
        if failures.len() > allowed_failures(point) {
            return Err(format!("{} calls failed: {}", failures.len(), failures.join("; ")).into());
        }
        let broken: Vec<String> =
            churn.broken().into_iter().chain(self.daemon.odd_ends()).collect();
        if !broken.is_empty() {
            return Err(broken.join("; ").into());
        }
        Ok(())
    }

    fn end(&mut self, witnesses: &[Container]) -> Result<(), Failure> {
        let churn = &self.workers.churn;
        let deadline = Instant::now() + Duration::from_secs(300);
        let least = CONTAINERS / u64::from(self.at.patience);
        while churn.created() < least && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        if churn.created() < least {
            return Err(format!("{} containers, {least} are the least", churn.created()).into());
        }
        churn.paused(|| check::node(churn, &self.before, self.daemon.pid()))?;
        for witness in witnesses {
            churn.dismiss(witness)?;
        }
        Ok(())
    }
}

fn arm(point: &str, passings: u64) -> Result<(), Failure> {
    let temporary = Path::new(ARMED).with_extension("new");
    std::fs::write(&temporary, format!("{point} {passings}\n"))?;
    std::fs::rename(temporary, ARMED)?;
    Ok(())
}

impl Need {
    /// The operator's command for the third card.
    fn command(self) -> &'static [&'static str] {
        match self {
            Self::Enable => &["enable"],
            Self::Disable => &["disable"],
            Self::MpsStop => &["mps", "stop", "--yes"],
            Self::MpsStart | Self::MpsRestart => &["mps", "restart", "--yes"],
            _ => &[],
        }
    }

    fn is_of_third(self) -> bool {
        !self.command().is_empty() || self == Self::MpsDeath
    }
}

fn resize() -> Result<String, Failure> {
    let (container, memory) = (format!("witness{RESIZED}"), format!("{RESIZED_MIB}Mi"));
    node::run("/usr/bin/mpsgate", &["resize", &container, &memory])
}

fn is_broken(container: &str) -> Result<bool, Failure> {
    let Ok(status) = status() else { return Ok(false) };
    Ok(status
        .grants
        .iter()
        .any(|grant| grant.container_id == container && grant.broken_ms.is_some()))
}

/// The end of a log, as lines of TAP.
pub(crate) fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(30).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n#   ")
}
