//! The process: its tasks, and their end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mpsgate_edge::logging;
use mpsgate_kubernetes::{
    Change, LeaseSettings, Patience, Settings, cluster_nodes, cluster_pods, lead, runtime_classes,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::desk::Desk;
use crate::removal::remove;
use crate::shared_state::Shared;
use crate::tls::{Certificate, Files};
use crate::webhook::Mutation;
use crate::{Arguments, SchedulerError, http, leading, router};

/// For the lease, the watches and the probes. Nobody else's work is done there.
const OWN_THREADS: usize = 2;
/// For connections of kube-scheduler and of the webhook. What takes time is done on others.
const ANSWER_THREADS: usize = 2;
/// The largest review: a request of 3 MiB, and what is stored already (1.5 MiB), each letter six
/// bytes (`<`, `>` and `&` are, as the API server writes JSON). How much of it is looked at, the
/// webhook decides.
const REVIEW: usize = 28 << 20;
/// For binds that are under way when the end comes. All that comes at the end fits 15 s.
const LAST_BINDS: Duration = Duration::from_secs(7);
/// For answers that are being sent.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT, or does the one step that it was called for.
///
/// # Errors
/// What keeps it from starting.
pub fn run(arguments: Arguments) -> Result<(), SchedulerError> {
    logging::to_stderr(arguments.log_level.into())?;
    threads(OWN_THREADS)?.block_on(async {
        let heard = |kind| {
            signal(kind)
                .map_err(|source| SchedulerError::Runtime { action: "hear signals", source })
        };
        let (mut term, mut interrupt) =
            (heard(SignalKind::terminate())?, heard(SignalKind::interrupt())?);
        let until = async move {
            tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        };
        if let Some(step) = arguments.removal {
            return remove(&arguments, step, until).await;
        }
        let address = arguments.listen;
        let listener = bind(address, "--listen").await?;
        serve(arguments, Patience::default(), listener, until).await
    })
}

async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, SchedulerError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| SchedulerError::Listen { address, flag, source })
}

fn threads(count: usize) -> Result<Runtime, SchedulerError> {
    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(count).enable_all().build();
    threads.map_err(|source| SchedulerError::Runtime { action: "start threads", source })
}

/// Where strangers are answered. Dropped, it ends whatever still goes on there.
struct Answers(Option<Runtime>);

impl Answers {
    fn spawn<F>(&self, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match &self.0 {
            Some(threads) => threads.spawn(future),
            None => tokio::spawn(future),
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // Waiting for them is not allowed where futures run.
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}

/// Serves until `until`, then ends in order. `patience` is for the API server.
///
/// # Errors
/// Where there is no way to an API server, no certificate, or no reason to believe whoever asks.
pub async fn serve(
    arguments: Arguments,
    patience: Patience,
    listener: TcpListener,
    until: impl Future<Output = ()>,
) -> Result<(), SchedulerError> {
    let settings = Settings::find(arguments.kubeconfig.clone(), "");
    let settings = settings.ok_or(SchedulerError::NoApiServer)?;
    let settings = Settings { patience, ..settings };
    let certificate = certificate(&arguments)?;
    refuse_strangers(&arguments, &listener)?;
    let (stop_lease, lease_stops) = watch::channel(false);
    let lease = LeaseSettings::new(
        arguments.namespace.clone(),
        arguments.lease_name.clone(),
        identity(arguments.pod_name.as_deref()),
    );
    let (leads, take_part) = lead(settings.clone(), lease.clone(), lease_stops);
    let max_body = usize::from(arguments.max_body) << 20;
    let shared =
        Arc::new(Shared::new(settings.clone(), arguments.placement, max_body, leads, lease));
    let (stop_http, http_stops) = watch::channel(false);
    let probes = probes(&arguments, &shared, &http_stops).await?;
    let answering = Answers(Some(threads(ANSWER_THREADS)?));
    let reviews = reviews(&arguments, &shared, &http_stops, &answering).await?;
    let (active, activity) = watch::channel(false);

    let mut lease = tokio::spawn(after_sync(Arc::clone(&shared), take_part));
    let routes = router::router(Arc::clone(&shared));
    let listen = http::listen(listener, routes, certificate.clone(), http_stops);
    let mut answers = answering.spawn(listen);
    let labels = arguments.pod_name.clone().map(|pod| {
        let (shared, namespace) = (Arc::clone(&shared), arguments.namespace.clone());
        tokio::spawn(leading::label(shared, namespace, pod, activity))
    });
    log::info!(address:% = arguments.listen, placement:? = arguments.placement; "mpsgate-scheduler runs");
    tokio::select! {
        () = until => {}
        () = watches(&shared, &settings) => {}
        () = leading::watch_over(&shared, &active) => {}
        () = kept(certificate) => {}
    }

    log::info!("mpsgate-scheduler ends");
    end_binds(&shared).await;
    // The label first: as soon as the lease is free, another one has it.
    if let Some((labels, pod)) = labels.zip(arguments.pod_name.as_deref()) {
        labels.abort();
        if *active.borrow() {
            take_label(&shared, &arguments.namespace, pod).await;
        }
    }
    stop_lease.send_replace(true);
    let _ = (&mut lease).await;
    stop_http.send_replace(true);
    let _ = tokio::time::timeout(LAST_ANSWERS, &mut answers).await;
    reviews.abort();
    probes.abort();
    Ok(())
}

async fn take_label(shared: &Shared, namespace: &str, pod: &str) {
    if let Err(error) = leading::set(shared, namespace, pod, false).await {
        log::warn!(error = error.cause().line().as_str(); "the label stays on the own pod");
    }
}

async fn kept(certificate: Option<Certificate>) {
    match certificate {
        Some(certificate) => certificate.keep().await,
        None => std::future::pending().await,
    }
}

/// No other one begins, and those that are under way have some time.
async fn end_binds(shared: &Shared) {
    shared.stop();
    let binds = async {
        while shared.unanswered.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(LAST_BINDS, binds).await;
}

fn certificate(arguments: &Arguments) -> Result<Option<Certificate>, SchedulerError> {
    let pair = arguments.tls_cert.clone().zip(arguments.tls_key.clone());
    let client_ca = arguments.tls_client_ca.clone();
    pair.map(|(cert, key)| Certificate::load(Files { cert, key, client_ca })).transpose()
}

/// Whoever asks for a bind has the choice of the node, so that it must be kube-scheduler.
fn refuse_strangers(arguments: &Arguments, listener: &TcpListener) -> Result<(), SchedulerError> {
    let address = listener.local_addr().unwrap_or(arguments.listen);
    if address.ip().to_canonical().is_loopback() || arguments.tls_client_ca.is_some() {
        return Ok(());
    }
    if !arguments.allow_anonymous {
        return Err(SchedulerError::Open { address });
    }
    log::warn!(address:% = address, hint = "--tls-client-ca has kube-scheduler alone answered";
        "whoever reaches this address may have pods with GPU memory bound, to nodes of their choice");
    Ok(())
}

/// Where probes are answered beside the rest: by the threads that keep the lease, so that nobody's
/// questions are before theirs.
async fn probes(
    arguments: &Arguments,
    shared: &Arc<Shared>,
    stops: &watch::Receiver<bool>,
) -> Result<JoinHandle<()>, SchedulerError> {
    let Some(address) = arguments.probe_listen else { return Ok(tokio::spawn(async {})) };
    let listener = bind(address, "--probe-listen").await?;
    let routes = router::probes(Arc::clone(shared));
    log::info!(address:% = address; "probes are answered");
    Ok(tokio::spawn(http::listen(listener, routes, None, stops.clone())))
}

/// The webhook, where it is asked for.
async fn reviews(
    arguments: &Arguments,
    shared: &Arc<Shared>,
    stops: &watch::Receiver<bool>,
    answering: &Answers,
) -> Result<JoinHandle<()>, SchedulerError> {
    let files = (arguments.webhook_tls_cert.clone(), arguments.webhook_tls_key.clone());
    let (Some(address), (Some(cert), Some(key))) = (arguments.webhook_listen, files) else {
        return Ok(tokio::spawn(async {}));
    };
    let certificate = Certificate::load(Files { cert, key, client_ca: None })?;
    let listener = bind(address, "--webhook-listen").await?;
    let mutation = Mutation {
        host_ipc: arguments.webhook_host_ipc,
        scheduler_name: arguments.webhook_scheduler_name.clone(),
        replaced_schedulers: arguments.webhook_replaces.clone(),
        steered_schedulers: arguments.webhook_steers.clone(),
        scheduler_account: arguments.webhook_scheduler_account.clone(),
        ipc: arguments.webhook_ipc,
        extended_resources: arguments.webhook_extended_resources,
        exempt: arguments.webhook_exempt.clone(),
    };
    let routes = router::reviews(
        Arc::clone(shared),
        Desk::new(REVIEW, "no object of an API server is so large"),
        mutation,
    );
    let listen = http::listen(listener, routes, Some(certificate.clone()), stops.clone());
    log::info!(address:% = address; "admission reviews are answered");
    Ok(answering.spawn(async move {
        tokio::select! { () = listen => {}, () = certificate.keep() => {} }
    }))
}

/// Takes part in the election when there are lists: who cannot read must not have the lease.
async fn after_sync(shared: Arc<Shared>, take_part: impl Future<Output = ()>) {
    while shared.unready().is_some() && !shared.is_stopping() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if !shared.is_stopping() {
        take_part.await;
    }
}

/// All watches, for ever; begun anew with each term.
async fn watches(shared: &Shared, settings: &Settings) {
    let mut terms = shared.term.subscribe();
    loop {
        let term = *terms.borrow_and_update();
        let nodes = cluster_nodes(settings, |change| {
            log_listed("nodes", &change);
            shared.write_seen().tell_node(&change);
            shared.write().tell_node(change, term);
        });
        let pods = cluster_pods(settings, |change| {
            log_listed("pods", &change);
            shared.write().tell_pod(change, term);
        });
        let classes = Box::pin(runtime_classes(settings, |change| {
            log_listed("RuntimeClasses", &change);
            shared.write_seen().tell_class(change);
        }));
        tokio::select! {
            never = classes => match never {},
            never = nodes => match never {},
            never = pods => match never {},
            changed = terms.changed() => if changed.is_err() { return },
        }
    }
}

fn log_listed<T>(what: &'static str, change: &Change<T>) {
    if let Change::Listed(all) = change {
        log::info!(what, count = all.len(); "listed");
    }
}

/// Another one after each start: what the process before had is not this one's.
fn identity(pod: Option<&str>) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = pod.unwrap_or("mpsgate-scheduler");
    format!("{name}_{:x}-{:x}", std::process::id(), since.as_nanos())
}
