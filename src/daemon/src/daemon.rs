//! What all tasks share: the node's state, the drivers, the card tasks, and the one place
//! where tasks are started, so that none can end unnoticed.

mod sharing_change;

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::resume_unwind;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use mpsgate_api::{Done, NodeSnapshot, Status};
use mpsgate_host::clock::now_ms;
use mpsgate_kubernetes::Recorder;
use mpsgate_model::ledger::Entry;
use mpsgate_model::ledger_file::LedgerFile;
use mpsgate_model::{GpuUuid, Grant, GrantKey, Refusal};
use mpsgate_node::card::{Card, CardEvent, Health};
use mpsgate_node::{Backend, Effect, NOT_YET, Node};
use mpsgate_policy::overrides;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::api_server::ApiServer;
use crate::around::Around;
use crate::counters::Events;
use crate::files::{FileKind, Files};
use crate::grant_doors::{Door, Sockets};
use crate::hardware::Hardware;
use crate::node_cdi;
use crate::orders::{HandedOver, LimitOrder, Order};
use crate::scontrol::Slurm;
use crate::settings_in_force::Settings;
use crate::token_store::Tokens;
use crate::usage_files::Usage;
use crate::{DaemonError, Paths, card_news, exec_record, ledger_record, tell};

/// How long cards are waited for after a start: by READY=1, so that containers that are restarted
/// at boot find them ready, and by callers.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(30);

/// What an answer to a hook waits for a limit; it comes in milliseconds, and the hook waits 5 s for
/// everything.
const HOLD_LIMIT: Duration = Duration::from_secs(2);

/// A task and what it does, for the message when it fails.
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) work: Pin<Box<dyn Future<Output = Result<(), DaemonError>> + Send>>,
}

/// Shared by all tasks.
pub(crate) struct Daemon {
    pub(crate) paths: Paths,
    pub(crate) settings: Arc<Settings>,
    pub(crate) hardware: Arc<Hardware>,
    node: Arc<Mutex<Node>>,
    /// Of its writer alone.
    ledger_file: Arc<Mutex<LedgerFile>>,
    /// Whatever is written below our directories.
    pub(crate) files: Arc<Files>,
    /// Locked after the state, where both are.
    around: Mutex<Around>,
    /// What is counted and timed, for the metrics.
    pub(crate) events: Events,
    /// What was granted and used today.
    pub(crate) usage: Arc<Usage>,
    /// Those of the doors, as gates show them.
    pub(crate) sockets: Arc<Sockets>,
    cdi: Mutex<node_cdi::Cache>,
    card_tasks: Mutex<BTreeMap<GpuUuid, mpsc::UnboundedSender<Order>>>,
    tasks: mpsc::UnboundedSender<Task>,
    /// To the task that has the driver limit cgroups.
    pub(crate) limits: mpsc::UnboundedSender<LimitOrder>,
    changes: watch::Sender<u64>,
    /// `enable` and `disable` take turns.
    pub(crate) operator: tokio::sync::Mutex<()>,
    /// Told after each change that nobody waits for.
    pub(crate) unwritten: Notify,
    /// One look at NVML at a time: should it hang, the next ones do not pile up behind it.
    pub(crate) looking: Arc<tokio::sync::Mutex<()>>,
    /// The snapshot that was written last. Of its writer alone.
    pub(crate) snapshot: Mutex<Option<NodeSnapshot>>,
    pub(crate) tokens: Arc<Tokens>,
    /// Told when the cards should be looked at now.
    pub(crate) look: Notify,
    ledger_changed: watch::Sender<u64>,
    /// Where the settings name one.
    pub(crate) api_server: OnceLock<ApiServer>,
    /// Told when the metrics are to be served elsewhere.
    pub(crate) metrics_moved: Notify,
    /// Told when the node's schedule may go on.
    pub(crate) schedule_moved: Notify,
    /// Told when the engine's handlers should be looked at now.
    pub(crate) look_at_handlers: Notify,
    pub(crate) slurm: Slurm,
    /// Plain processes are put into their cgroups in turns.
    pub(crate) confining: tokio::sync::Mutex<()>,
    /// Since the watchdog last looked.
    handed_over: Mutex<Vec<HandedOver>>,
}

impl Daemon {
    pub(crate) fn new(
        paths: Paths,
        settings: Settings,
        node: Node,
        ledger_file: LedgerFile,
        files: Files,
        tasks: mpsc::UnboundedSender<Task>,
        limits: mpsc::UnboundedSender<LimitOrder>,
    ) -> Self {
        let settings = Arc::new(settings);
        let tokens = Arc::new(Tokens::new(paths.tokens()));
        let hardware = Arc::new(Hardware::new(Arc::clone(&settings), paths.clone()));
        let usage = Arc::new(Usage::open(paths.usage()));
        Self {
            paths,
            settings,
            hardware,
            node: Arc::new(Mutex::new(node)),
            ledger_file: Arc::new(Mutex::new(ledger_file)),
            files: Arc::new(files),
            around: Mutex::default(),
            events: Events::new(),
            usage,
            sockets: Arc::new(Sockets::new()),
            cdi: Mutex::new(node_cdi::Cache::new(node_cdi::DIRECTORIES)),
            card_tasks: Mutex::default(),
            tasks,
            limits,
            changes: watch::Sender::new(0),
            operator: tokio::sync::Mutex::default(),
            unwritten: Notify::new(),
            looking: Arc::default(),
            snapshot: Mutex::default(),
            tokens,
            look: Notify::new(),
            ledger_changed: watch::Sender::new(0),
            api_server: OnceLock::new(),
            metrics_moved: Notify::new(),
            schedule_moved: Notify::new(),
            look_at_handlers: Notify::new(),
            slurm: Slurm::default(),
            confining: tokio::sync::Mutex::default(),
            handed_over: Mutex::default(),
        }
    }

    /// The state. Never held across an await, nor over a call to a driver or a write.
    pub(crate) fn node(&self) -> MutexGuard<'_, Node> {
        // A panic ends the process (`panic = "abort"`), so nobody can have left it half changed.
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then does what follows from it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Node, &mut Vec<Effect>) -> T) -> T {
        let mut effects = Vec::new();
        let changed = change(&mut self.node(), &mut effects);
        effects.into_iter().for_each(|effect| self.perform(effect));
        changed
    }

    /// Tells the state what happened to a card, then does what follows from it.
    pub(crate) fn happened(&self, card: &GpuUuid, event: CardEvent) {
        self.change(|node, effects| node.apply(card, event, Instant::now(), effects));
    }

    /// The one place where what the state wants is done.
    fn perform(&self, effect: Effect) {
        match effect {
            Effect::RemoveRecord(key) => self.records(move |at| exec_record::remove(at, &key)),
            Effect::RewriteRecord(grant) => {
                self.records(move |at| exec_record::renew(at, &grant));
            }
            Effect::RemoveLeftovers => self.records(exec_record::remove_leftovers),
            Effect::TellEnd(entry, how) => log_ended(&entry, how),
            Effect::WriteLedger => self.unwritten.notify_one(),
            Effect::Publish => self.tell_ledger_change(),
            Effect::TellChange => self.tell_change(),
            Effect::AdvanceSchedule => self.schedule_moved.notify_one(),
            Effect::ClearLimit(entry) => {
                // The task is gone only at shutdown; the next start sees to both.
                let _ = self.limits.send(LimitOrder::Clear(entry));
            }
            Effect::CloseDoor(grant) => drop(self.close_door(&grant)),
            Effect::Cap(card) => {
                self.order(&card, Order::Cap);
            }
            Effect::TellCard(card, gpu, news) => card_news::tell(&card, gpu, news),
            Effect::Look => self.look.notify_one(),
            Effect::CheckComputeMode(card) => {
                self.order(&card, Order::ComputeMode);
            }
            Effect::Count(what) => self.events.acted(what),
            Effect::TellPod(pod, why, sentence) => {
                tell::acted(self.recorder(), pod, why, &sentence);
            }
        }
    }

    /// Has something done to the exec records.
    pub(crate) fn records(&self, work: impl FnOnce(&Path) + Send + 'static) {
        let directory = self.paths.grants();
        self.files.post(FileKind::Records, move || work(&directory));
    }

    /// Closes a grant's door, where it has one; it is done also where nobody waits.
    pub(crate) fn close_door(&self, grant: &Grant) -> impl Future<Output = ()> + use<> {
        let door = Door::of(&self.paths, grant);
        self.files.run(FileKind::Doors, move || door.iter().for_each(Door::close))
    }

    /// Remembers what was done to a container or process.
    pub(crate) fn note(&self, card: &GpuUuid, of: Option<&Entry>, what: Done, why: String) {
        self.change(|node, effects| node.note(card, of, what, why, now_ms(), effects));
    }

    /// What is known of those around the node.
    pub(crate) fn around(&self) -> MutexGuard<'_, Around> {
        self.around.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where events of Kubernetes go, if anywhere.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.api_server.get().map(|api_server| &api_server.recorder)
    }

    /// Everything that is known now, without asking a driver.
    pub(crate) fn status(&self) -> Status {
        let api_server = self.api_server.get().map(ApiServer::status);
        let node = self.node();
        let settings = self.settings.now();
        let tolerance =
            |card: &Card| Some((card.index, node.backend().conclusion(card)?.tolerance));
        let answered: Vec<_> = node.cards().iter().filter_map(tolerance).collect();
        let overrides = overrides(&settings.policy, &answered);
        Status { api_server, overrides, ..self.around().status(&node) }
    }

    /// Clients that came to doors since the watchdog last took them.
    pub(crate) fn handed_over(&self) -> MutexGuard<'_, Vec<HandedOver>> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's CDI specifications.
    pub(crate) fn cdi(&self) -> MutexGuard<'_, node_cdi::Cache> {
        self.cdi.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn card_tasks(
        &self,
    ) -> MutexGuard<'_, BTreeMap<GpuUuid, mpsc::UnboundedSender<Order>>> {
        self.card_tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits for a change of a card.
    pub(crate) fn tell_change(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes at each change of a card, and at once for one since this call.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Wakes who shows what is left.
    pub(crate) fn tell_ledger_change(&self) {
        self.ledger_changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes at each change of the ledger, and at once for one since this call.
    pub(crate) fn ledger_changes(&self) -> watch::Receiver<u64> {
        self.ledger_changed.subscribe()
    }

    /// Whether a managed card has not been tried yet, or not even NVML has answered or failed: then
    /// there may be cards that are not known.
    pub(crate) fn is_starting(&self) -> bool {
        let node = self.node();
        node.driver.trouble.as_ref().is_some_and(|trouble| trouble.why == NOT_YET)
            || node.cards().iter().any(|card| {
                card.is_managed() && !card.is_closed() && *card.health() == Health::Starting
            })
    }

    /// Returns once every managed card has been tried, or after [`START_LIMIT`].
    pub(crate) async fn started(&self) {
        let mut changes = self.changes();
        let tried = async { while self.is_starting() && changes.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(START_LIMIT, tried).await;
    }

    /// Returns once no card is being asked by others, or after [`START_LIMIT`].
    pub(crate) async fn asked(&self, container: &GrantKey) {
        let mut changes = self.changes();
        let is_asked = || self.node().is_asked_by_others(container);
        let over = async { while is_asked() && changes.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(START_LIMIT, over).await;
    }

    /// Starts a task that the main loop owns: it is ended at shutdown, and its failure ends the
    /// process.
    pub(crate) fn spawn(
        &self,
        name: impl Into<String>,
        work: impl Future<Output = Result<(), DaemonError>> + Send + 'static,
    ) {
        let task = Task { name: name.into(), work: Box::pin(work) };
        // The main loop is gone only at shutdown, where no new task is wanted.
        let _ = self.tasks.send(task);
    }

    /// Returns once everything that was changed so far is in the ledger's file. One write serves
    /// all who have come meanwhile.
    ///
    /// # Errors
    /// A refusal for what asked for memory. The file is then as it was.
    pub(crate) async fn recorded(&self) -> Result<(), Refusal> {
        let changes = self.node().changes();
        // Of 200 callers at once, the first lets the others change the ledger too before it is
        // written.
        tokio::task::yield_now().await;
        if self.node().is_written(changes) {
            return Ok(());
        }
        let (node, file) = (Arc::clone(&self.node), Arc::clone(&self.ledger_file));
        let write = move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            ledger_record::write(&node, &mut file, changes)
        };
        self.files.run(FileKind::Ledger, write).await
    }

    /// Has a grant's cgroup limited, as far as driver and kernel can. Returns when that is done, or
    /// after
    /// [`HOLD_LIMIT`]: the level is told when it is there.
    pub(crate) async fn limit(&self, entry: &Entry) {
        let (reply, done) = oneshot::channel();
        if self.limits.send(LimitOrder::Hold { entry: Box::new(entry.clone()), reply }).is_ok() {
            let _ = tokio::time::timeout(HOLD_LIMIT, done).await;
        }
    }

    /// Gives an order to the card's task. `false` where the card has none.
    pub(crate) fn order(&self, card: &GpuUuid, order: Order) -> bool {
        self.card_tasks().get(card).is_some_and(|card_task| card_task.send(order).is_ok())
    }

    /// The one seam to what blocks but writes of ours: NVML, control daemons, their files.
    /// A panic in it goes on in whoever waits.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Hardware) -> T + Send + 'static,
    ) -> T {
        let hardware = Arc::clone(&self.hardware);
        match tokio::task::spawn_blocking(move || work(&hardware)).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Not begun, as the runtime ends, and with it whoever waits.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// One line per ended entry.
fn log_ended(entry: &Entry, how: &'static str) {
    log::info!(
        container = entry.grant.name().as_str(),
        instance = entry.grant.key.instance.as_str(),
        uuid = card_names(&entry.grant).as_str(),
        memory_mib = entry.grant.memory.0,
        how;
        "grant ended"
    );
}

/// The UUIDs of a grant's cards, for the log.
pub(crate) fn card_names(grant: &Grant) -> String {
    let names: Vec<&str> = grant.cards.iter().map(|card| card.uuid.as_str()).collect();
    names.join(",")
}
