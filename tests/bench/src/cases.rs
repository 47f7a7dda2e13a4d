//! What is measured.

use std::time::Duration;

use mpsgate_api::{Activate, Call, GrantState};
use mpsgate_model::{ContainerId, GrantKey, Instance};
use serde_json::json;

use crate::count::{Counts, Instructions, count};
use crate::measure::{Program, Times, in_turns};
use crate::node::{
    Bundle, CARDS, Container, Held, Node, Reserved, ask, status, wait_for, wait_until_left,
};
use crate::{Failure, Workplace, fixture};

/// Grants that live while the daemon is measured.
pub(crate) const LIVE_GRANTS: u32 = 400;
/// For how long its idle CPU time is taken.
const IDLE: Duration = Duration::from_secs(10);
/// From the last grant on until nothing is new to it.
const SETTLED: Duration = Duration::from_secs(5);
/// MiB of a grant here, as [`fixture::with_request`] has it.
const GRANT_MIB: u64 = 256;

/// A program beside the floor.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Largest ratio at p50, where one is promised.
    pub(crate) budget: Option<f64>,
    pub(crate) floor: Times,
    pub(crate) times: Times,
    pub(crate) floor_counts: Counts,
    pub(crate) counts: Counts,
}

impl Row {
    pub(crate) fn ratio(&self) -> f64 {
        self.times.percentile(50).as_secs_f64() / self.floor.percentile(50).as_secs_f64()
    }
}

/// The programs and how often they run.
pub(crate) struct Bench<'a> {
    pub(crate) at: &'a Workplace,
    pub(crate) rounds: usize,
    pub(crate) how: Instructions,
}

const PASS: f64 = 1.5;
const GRANTED: f64 = 2.5;
const HOOK: f64 = 2.0;

impl Bench<'_> {
    /// Measures what `prepare` gives against the floor with the same arguments.
    fn row(
        &self,
        name: &'static str,
        budget: Option<f64>,
        mut prepare: impl FnMut() -> Result<Program, Failure>,
    ) -> Result<Row, Failure> {
        eprintln!("measuring: {name}");
        let floor = self.at.floor();
        let mut last_floor = None;
        let [floor_times, times] = in_turns(self.rounds, || {
            let program = prepare()?;
            let floor = program.instead(&floor);
            last_floor = Some(floor.clone());
            Ok([floor, program])
        })?;
        let floor = last_floor.ok_or("no round was run")?;
        let floor_counts = count(self.how, || Ok(floor.clone()))?;
        let counts = count(self.how, prepare)?;
        Ok(Row { name, budget, floor: floor_times, times, floor_counts, counts })
    }

    /// Containers that ask for nothing of ours.
    pub(crate) fn pass_through(&self) -> Result<Vec<Row>, Failure> {
        let at = self.at;
        let bundle = Bundle::new(at, "plain", &fixture::ordinary())?;
        let state = at.shim(["state", "4c01db0b339c"]);
        let create = at.create(&bundle, "4c01db0b339c");
        let process = at.scratch.join("process.json");
        std::fs::write(&process, fixture::ordinary()["process"].to_string())?;
        let exec = at.shim(["exec", "--process", &process.to_string_lossy(), "4c01db0b339c"]);
        let kill = at.shim(["kill", "4c01db0b339c", "9"]);
        let rows = vec![
            self.row("state", Some(PASS), || Ok(state.clone()))?,
            self.row("create, no request", Some(PASS), || Ok(create.clone()))?,
            self.row("exec, no grant", Some(PASS), || Ok(exec.clone()))?,
            self.row("kill, no grant", Some(PASS), || Ok(kill.clone()))?,
        ];
        if bundle.is_untouched()? { Ok(rows) } else { Err("a spec was changed".into()) }
    }

    /// `create` with a grant. Every run is checked to have been granted.
    pub(crate) fn granted(&self) -> Result<Row, Failure> {
        let bundle = Bundle::new(self.at, "granted", &fixture::with_request())?;
        let create = self.at.create(&bundle, "granted");
        let mut has_run = false;
        let row = self.row("create, granted", Some(GRANTED), || {
            if std::mem::replace(&mut has_run, true) && !bundle.is_granted()? {
                return Err("a create was not granted".into());
            }
            wait_until_left(CARDS)?;
            bundle.restore()?;
            Ok(create.clone())
        })?;
        Ok(row)
    }

    /// The hook, at both of its stages.
    pub(crate) fn hook(&self) -> Result<[Row; 2], Failure> {
        let at = self.at;
        let mut spec = fixture::with_request();
        spec["annotations"]["mpsgate.io/gpu"] = json!("0");
        let bundle = Bundle::new(at, "hooked", &spec)?;
        let container = Container::create(at, 0)?;
        let state = at.scratch.join("state.json");
        // The container of each round; the one before is released first.
        let next = |last: &mut Option<(Reserved, Held)>| -> Result<Program, Failure> {
            if let Some((reserved, init)) = last.take() {
                drop(init);
                at.hook("poststop", &reserved, &state).run()?;
            }
            wait_until_left(CARDS)?;
            let reserved = Reserved::new(at, &bundle, "hooked")?;
            // runc takes much longer to come to its hooks than the daemon to set the card's limit.
            wait_for("the card's limit", || {
                let cards = status()?.cards;
                let mps = cards.iter().find(|card| card.index == 0).and_then(|c| c.mps.as_ref());
                Ok(mps.and_then(|mps| mps.default_limit_mib).is_some_and(|mib| mib >= GRANT_MIB))
            })?;
            let init = container.init(at)?;
            let text = json!({
                "ociVersion": "1.0.2", "id": "hooked", "status": "creating",
                "pid": init.0.as_raw(), "bundle": bundle.directory
            });
            std::fs::write(&state, text.to_string())?;
            let hook = at.hook("createRuntime", &reserved, &state);
            *last = Some((reserved, init));
            Ok(hook)
        };
        let mut last = None;
        let create_runtime = self.row("hook createRuntime", Some(HOOK), || next(&mut last))?;
        let poststop = self.row("hook poststop", Some(HOOK), || {
            next(&mut last)?.run()?;
            let Some((reserved, init)) = last.take() else { return Err("no container".into()) };
            drop(init);
            let hook = at.hook("poststop", &reserved, &state);
            Ok(hook)
        })?;
        Ok([create_runtime, poststop])
    }

    /// `kill` with SIGKILL of a container with a grant, whose processes use no GPU: the daemon is
    /// asked, and it asks its card's control daemon for the clients, mostly by running NVIDIA's
    /// front-end twice. To terminate one is once more. The promise is 1 s in all, so there is no
    /// ratio to keep.
    pub(crate) fn kill_granted(&self) -> Result<Row, Failure> {
        let bundle = Bundle::new(self.at, "killed", &fixture::with_request())?;
        let _init = self.grant(&bundle, "killed")?;
        let kill = self.at.shim(["kill", "killed", "9"]);
        self.row("kill, granted", None, || Ok(kill.clone()))
    }

    /// NVIDIA's own wrapper on the same bundle, where its binary is given.
    pub(crate) fn peer(&self, binary: &std::path::Path) -> Result<Row, Failure> {
        let directory = std::path::Path::new("/etc/nvidia-container-runtime");
        std::fs::create_dir_all(directory)?;
        let settings =
            format!("[nvidia-container-runtime]\nruntimes = [{:?}]\n", self.at.runtime());
        std::fs::write(directory.join("config.toml"), settings)?;
        let bundle = Bundle::new(self.at, "peer", &fixture::ordinary())?;
        let create = self.at.create(&bundle, "peer").instead(binary);
        self.row("nvidia-container-runtime create", None, || Ok(create.clone()))
    }

    /// One small grant on each card. The first and the last grant of a card change MPS's own limit,
    /// by commands that the daemon runs beside; with a neighbour there, none is.
    pub(crate) fn neighbours(&self) -> Result<Vec<Held>, Failure> {
        (0..CARDS)
            .map(|card| {
                let mut spec = fixture::with_request();
                spec["annotations"]["mpsgate.io/gpu"] = json!(card.to_string());
                self.grant(&Bundle::new(self.at, "neighbour", &spec)?, &format!("neighbour-{card}"))
            })
            .collect()
    }

    /// Makes [`LIVE_GRANTS`] active grants. They end with what is returned.
    pub(crate) fn live_grants(&self) -> Result<Vec<Held>, Failure> {
        eprintln!("making: {LIVE_GRANTS} grants");
        let bundle = Bundle::new(self.at, "live", &fixture::with_request())?;
        let grant = |number| self.grant(&bundle, &format!("live-{number}"));
        let containers = (0..LIVE_GRANTS).map(grant).collect::<Result<Vec<_>, _>>()?;
        let active =
            status()?.grants.iter().filter(|grant| grant.state == GrantState::Active).count();
        if active == containers.len() {
            Ok(containers)
        } else {
            Err(format!("{active} grants").into())
        }
    }

    /// An active grant: the shim has reserved it, and this program, in the hook's place, activates
    /// it for a process that does nothing.
    fn grant(&self, bundle: &Bundle, id: &str) -> Result<Held, Failure> {
        let reserved = Reserved::new(self.at, bundle, id)?;
        let init = Held::start(self.at, &Program::new(&self.at.runtime(), ["init"]))?;
        let (root, instance) = (reserved.argument("--root"), reserved.argument("--instance"));
        let key = GrantKey {
            runtime_root: root.ok_or("no --root")?.to_owned(),
            container_id: ContainerId::parse(id)?,
            instance: Instance::parse(instance.ok_or("no --instance")?)?,
        };
        let pid = init.0.as_raw().try_into()?;
        let cgroup = Some(init.in_cgroup(id)?);
        ask(Call::Activate(Activate { key, pid, cgroup, grant: None }))?;
        Ok(init)
    }
}

/// Share of a core that the daemon takes while nothing happens, in percent.
pub(crate) fn idle_percent(node: &Node) -> Result<f64, Failure> {
    eprintln!("measuring: the idle daemon, {} s", IDLE.as_secs());
    // After a grant mpsgated looks at what has connected to its card meanwhile, twice.
    std::thread::sleep(SETTLED);
    cpu_percent(node)
}

/// Share of a core that the daemon takes while nobody asks it anything, in percent.
pub(crate) fn cpu_percent(node: &Node) -> Result<f64, Failure> {
    let before = node.cpu()?;
    std::thread::sleep(IDLE);
    Ok((node.cpu()? - before).as_secs_f64() / IDLE.as_secs_f64() * 100.0)
}

impl Workplace {
    /// The shim as containerd calls it.
    pub(crate) fn shim<const N: usize>(&self, args: [&str; N]) -> Program {
        let global = [
            "--root",
            "/run/docker/runtime-runc/moby",
            "--log",
            "/run/t/log.json",
            "--log-format",
            "json",
        ];
        Program::new(&self.program("mpsgate-runtime"), global.into_iter().chain(args))
    }

    /// `create` as containerd calls it.
    pub(crate) fn create(&self, bundle: &Bundle, id: &str) -> Program {
        let pid_file = bundle.directory.join("init.pid");
        self.shim([
            "create",
            "--bundle",
            &bundle.directory.to_string_lossy(),
            "--pid-file",
            &pid_file.to_string_lossy(),
            id,
        ])
    }

    /// The hook as runc calls it.
    fn hook(&self, stage: &str, reserved: &Reserved, state: &std::path::Path) -> Program {
        let mut args = vec![stage.to_owned()];
        for name in ["--root", "--instance"] {
            args.extend(reserved.argument(name).map(|value| format!("{name}={value}")));
        }
        Program::new(&self.program("mpsgate-hook"), args).reading(state)
    }
}
