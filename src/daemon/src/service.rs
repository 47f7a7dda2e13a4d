//! From start to end: directories, ledger, socket, tasks, signals.
//!
//! ```text
//! settings ─► log ─► directories ─► ledger (lock, read, settle) ─► socket ─► cards ─► READY=1
//!    78         2         2                     2                     2      (never ends the process)
//! ```

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_config::{Config, Origin};
use mpsgate_edge::logging;
use mpsgate_host::crash_point;
use mpsgate_model::ledger::Ledger;
use mpsgate_model::ledger_file::{LedgerFile, LedgerFileError};
use mpsgate_node::Node;
use mpsgate_node::sharing::Scheduling;
use mpsgate_policy::schedule::Wants;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::daemon::{Daemon, START_LIMIT, Task};
use crate::files::{FileKind, Files};
use crate::real_machine::ThisMachine;
use crate::reload_settings::quota;
use crate::settings_in_force::Settings;
use crate::{
    DaemonError, Paths, cgroup_limits, claims, directories, ends, error, exec_record, grant_doors,
    handler_watch, inventory, jobs, kubelet, managed, metrics, plugin, pods, reload_settings, runs,
    sharing_task, snapshot, socket, tokens, usage_files, watchdog,
};

/// How long the end waits for calls to drivers that are under way.
const BLOCKING_LIMIT: Duration = Duration::from_secs(3);
/// How long it waits before for what is to be written; systemd gives it 10 s for all.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// How long a lock that is still held is waited for, and how often it is tried.
const LOCK_LIMIT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Between two attempts to write what could not be written.
const RETRY: Duration = Duration::from_secs(5);

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// The settings file.
    pub config: PathBuf,
    /// For how long kubelet is not told of a card that was never asked.
    pub qualify_first: Duration,
}

/// Runs the daemon until SIGTERM or SIGINT. The MPS control daemons go on.
///
/// # Errors
/// See [`DaemonError`].
pub fn run(options: &Options) -> Result<(), DaemonError> {
    let (config, origin) =
        Config::load_with_origin(&options.config).map_err(DaemonError::Config)?;
    logging::to_journal("mpsgated", config.log.level).map_err(DaemonError::Edge)?;
    log::info!(
        version = env!("CARGO_PKG_VERSION"),
        settings:% = match &origin {
            Origin::File(path) => path.display().to_string(),
            _ => "defaults".to_owned(),
        };
        "mpsgated starts"
    );
    let system = |action| move |source| DaemonError::System { action, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("make the runtime"))?;
    let (file, qualify_first) = (options.config.clone(), options.qualify_first);
    let files = Files::start(|_| ()).map_err(system("start the writers of files"))?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(system("catch SIGTERM"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("catch SIGINT"))?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        serve(Paths::default(), files, config, Some(file), qualify_first, stop).await
    });
    notify(&[NotifyState::Stopping]);
    // A call that hangs in a driver must not keep the process.
    runtime.shutdown_timeout(BLOCKING_LIMIT);
    result
}

/// The daemon between its start and `stop`, below `paths`. `settings_file` is what a reload
/// reads again; `qualify_first` as in [`Options`]. At the end all that waits is written.
///
/// # Errors
/// See [`DaemonError`].
pub async fn serve(
    paths: Paths,
    files: Files,
    config: Config,
    settings_file: Option<PathBuf>,
    qualify_first: Duration,
    stop: impl Future<Output = &'static str>,
) -> Result<(), DaemonError> {
    directories::make(&paths)?;
    let (file, ledger) = open_ledger(&paths).await.map_err(DaemonError::Ledger)?;
    crash_point!("daemon.start.locked");
    let handed_over = managed::read(&paths.managed())
        .map_err(|source| DaemonError::Managed { path: paths.managed(), source })?;
    let listener = socket::bind(&paths.socket())?;
    let hangup = signal(SignalKind::hangup())
        .map_err(|source| DaemonError::System { action: "catch SIGHUP", source })?;

    let mut node = Node::new(ledger);
    node.trust_local = config.trust.local;
    node.quota = quota(&config);
    node.kubelet = kubelet::has_kubelet(&paths);
    let (tasks, todo) = mpsc::unbounded_channel();
    let (limits, orders) = mpsc::unbounded_channel();
    let settings = Settings::new(config, settings_file);
    let daemon = Arc::new(Daemon::new(paths, settings, node, file, files, tasks, limits));
    let runs = runs::of(daemon.node().ledger());
    daemon.change(|node, effects| node.settle(&ThisMachine, effects));
    remove_strays(&daemon).await;
    runs::remove_strays(&daemon.paths.cgroups, &runs, daemon.node().ledger());
    crash_point!("daemon.start.settled");
    // Where it fails it is said, and tried again with the next change.
    let _ = daemon.recorded().await;
    crash_point!("daemon.start.stored");
    snapshot::link_runtime(&daemon, &daemon.settings.now().runtime.path).await;
    {
        let mut node = daemon.node();
        let settings = daemon.settings.now().gpus.schedule;
        let wants = Wants { settings, label: handed_over.schedule };
        node.schedule = Scheduling::start(wants, node.ledger().entries());
        node.handed_over = handed_over.cards;
        node.stopped = handed_over.stopped;
    }
    start(&daemon, listener, hangup, qualify_first);
    daemon.spawn("limits cgroups", cgroup_limits::watch(Arc::clone(&daemon), orders));
    let stop = async {
        let why = stop.await;
        // All tasks go on meanwhile.
        pods::leave(&daemon).await;
        why
    };
    let result = own(todo, stop).await;
    let flushed = timeout(FLUSH_LIMIT, async {
        let _ = daemon.recorded().await;
        let usage = Arc::clone(&daemon.usage);
        if let Err(error) = daemon.files.run(FileKind::Usage, move || usage.keep()).await {
            log::error!(reason:% = error; "usage not written");
        }
        daemon.files.flush().await;
    });
    if flushed.await.is_err() {
        let seconds = FLUSH_LIMIT.as_secs();
        log::error!(seconds; "a disk does not answer: what waits for it is not written");
    }
    crash_point!("daemon.stop.stored");
    // The ledger is still locked, so it is ours and not a successor's.
    let _ = std::fs::remove_file(daemon.paths.socket());
    crash_point!("daemon.stop.unlinked");
    result
}

/// Removes what grants left that ended while mpsgated was away.
async fn remove_strays(daemon: &Daemon) {
    let (paths, ledger) = (daemon.paths.clone(), daemon.node().ledger().clone());
    let (directory, of_doors) = (paths.grants(), ledger.clone());
    let records = move || exec_record::remove_strays(&directory, &ledger);
    daemon.files.run(FileKind::Records, records).await;
    daemon.files.run(FileKind::Doors, move || grant_doors::remove_strays(&paths, &of_doors)).await;
}

/// Opens the ledger. What a daemon before us was just starting holds a copy of its lock until it
/// has become another program: that is waited for.
async fn open_ledger(paths: &Paths) -> Result<(LedgerFile, Ledger), LedgerFileError> {
    let until = Instant::now() + LOCK_LIMIT;
    loop {
        match LedgerFile::open(&paths.ledger()) {
            Err(LedgerFileError::Locked { .. }) if Instant::now() < until => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            other => return other,
        }
    }
}

fn start(
    daemon: &Arc<Daemon>,
    listener: tokio::net::UnixListener,
    hangup: Signal,
    qualify_first: Duration,
) {
    {
        let node = daemon.node();
        for entry in node.ledger().entries() {
            ends::start(daemon, entry);
        }
        log::info!(grants = node.ledger().entries().len(); "ledger read");
    }
    daemon.spawn("looks at the cards", inventory::watch(Arc::clone(daemon)));
    daemon.spawn("listens", socket::listen(Arc::clone(daemon), listener));
    daemon.spawn("serves users", socket::serve_users(Arc::clone(daemon)));
    daemon.spawn("serves jobs", socket::serve_jobs(Arc::clone(daemon)));
    daemon.spawn("looks at Slurm", jobs::keep(Arc::clone(daemon)));
    daemon.spawn("reports readiness", report_ready(Arc::clone(daemon)));
    daemon.spawn("watches the memory", watchdog::watch(Arc::clone(daemon)));
    daemon.spawn("tells of sockets", grant_doors::tell(Arc::clone(&daemon.sockets)));
    daemon.spawn(
        "writes usage",
        usage_files::keep(Arc::clone(&daemon.usage), Arc::clone(&daemon.files)),
    );
    daemon.spawn("serves metrics", metrics::serve(Arc::clone(daemon)));
    daemon.spawn("keeps the schedule", sharing_task::keep(Arc::clone(daemon)));
    daemon.spawn("tends the keys", tokens::keep(Arc::clone(daemon)));
    daemon.spawn("serves kubelet", plugin::keep(Arc::clone(daemon), qualify_first));
    daemon.spawn("looks at the handlers", handler_watch::watch(Arc::clone(daemon)));
    pods::start(daemon);
    claims::start(daemon);
    daemon.spawn("publishes changes", publish(Arc::clone(daemon)));
    daemon.spawn("writes the ledger", write(Arc::clone(daemon)));
    daemon.spawn("reloads", reload_settings::on_hangup(Arc::clone(daemon), hangup));
    if let Some(period) = watchdog_period() {
        daemon.spawn("feeds the watchdog", feed(period));
    }
}

/// Runs all tasks until `stop`, or until one fails.
async fn own(
    mut todo: mpsc::UnboundedReceiver<Task>,
    stop: impl Future<Output = &'static str>,
) -> Result<(), DaemonError> {
    let mut running: JoinSet<(String, Result<(), DaemonError>)> = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            why = &mut stop => {
                log::info!(signal = why; "mpsgated ends; the MPS control daemons go on");
                return Ok(());
            }
            task = todo.recv() => match task {
                Some(Task { name, work }) => {
                    running.spawn(async move { (name, work.await) });
                }
                // Every task holds a sender; without one nothing is left to do.
                None => {
                    let why = "no task is left".to_owned();
                    return Err(DaemonError::Task { task: "owns the others".to_owned(), why });
                }
            },
            Some(ended) = running.join_next() => match ended {
                Ok((_, Ok(()))) => {}
                Ok((task, Err(error))) => {
                    return Err(DaemonError::Task { task, why: error::chain(&error) });
                }
                Err(panic) => {
                    let why = panic.to_string();
                    return Err(DaemonError::Task { task: "was joined last".to_owned(), why });
                }
            },
        }
    }
}

/// READY=1 once every managed card has been tried.
async fn report_ready(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    daemon.started().await;
    if daemon.is_starting() {
        log::warn!(seconds = START_LIMIT.as_secs(); "not every card is ready, going on without");
    }
    snapshot::publish(&daemon).await;
    log::info!("mpsgated is ready");
    notify(&[NotifyState::Ready]);
    Ok(())
}

/// Keeps the snapshot as the cards are.
async fn publish(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let mut changes = daemon.changes();
    loop {
        snapshot::publish(&daemon).await;
        // Changes are taken as they come; without any, what failed is tried again.
        let _ = timeout(RETRY, changes.changed()).await;
    }
}

/// Writes what nobody waits for: ends of grants and reservations.
async fn write(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    loop {
        daemon.unwritten.notified().await;
        while daemon.recorded().await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Half of what systemd allows, where it watches us.
fn watchdog_period() -> Option<Duration> {
    let micros: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    // Absent where systemd watches whoever speaks.
    let other =
        std::env::var("WATCHDOG_PID").is_ok_and(|pid| pid != std::process::id().to_string());
    (micros > 0 && !other).then(|| Duration::from_micros(micros / 2))
}

/// Runs on the one thread that everything runs on: if it stands, systemd notices.
async fn feed(period: Duration) -> Result<(), DaemonError> {
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(period).await;
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        log::warn!(reason:% = error; "systemd not notified");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::io;

    use mpsgate_edge::Remedy as _;

    use super::*;

    async fn own_one(
        work: impl Future<Output = Result<(), DaemonError>> + Send + 'static,
    ) -> Result<(), DaemonError> {
        let (tasks, todo) = mpsc::unbounded_channel();
        assert!(
            tasks.send(Task { name: "does its work".to_owned(), work: Box::pin(work) }).is_ok()
        );
        own(todo, std::future::pending()).await
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_task_that_fails_or_panics_ends_the_process() {
        let failed = || DaemonError::System { action: "try", source: io::Error::other("denied") };
        let error = own_one(async move { Err(failed()) }).await.unwrap_err();
        assert_eq!(error.to_string(), "the task that does its work ended: cannot try: denied");
        assert_eq!(error.exit_code(), mpsgate_edge::ExitCode::Failed);
        let error = own_one(async { panic!("on purpose") }).await.unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_task_that_ends_well_leaves_the_others_running() {
        let (tasks, todo) = mpsc::unbounded_channel();
        let (done, heard) = tokio::sync::oneshot::channel();
        let quick = Task { name: "ends".to_owned(), work: Box::pin(async { Ok(()) }) };
        let slow = Task {
            name: "ends later".to_owned(),
            work: Box::pin(async move {
                tokio::task::yield_now().await;
                done.send(()).unwrap();
                Ok(())
            }),
        };
        assert!(tasks.send(quick).is_ok() && tasks.send(slow).is_ok());
        own(todo, async {
            heard.await.unwrap();
            "test"
        })
        .await
        .unwrap();
    }
}
