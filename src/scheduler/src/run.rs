//! The process: its tasks, and their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mpsgate_kubernetes::{Change, LeaseSettings, Settings, cluster_nodes, cluster_pods, lead};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::shared::Shared;
use crate::tls::Certificate;
use crate::webhook::Mutation;
use crate::{Arguments, SchedulerError, http, leading, logging, router};

/// Decisions take milliseconds; more threads would only wait for the ledger.
const THREADS: usize = 4;
/// For binds that are under way when the end comes. All that comes at the end fits 15 s.
const LAST_BINDS: Duration = Duration::from_secs(7);
/// For answers that are being sent.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps it from starting.
pub fn run(arguments: Arguments) -> Result<(), SchedulerError> {
    logging::init(arguments.log_level)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime =
        runtime.map_err(|source| SchedulerError::Runtime { action: "start threads", source })?;
    runtime.block_on(async {
        let address = arguments.listen;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| SchedulerError::Listen { address, source })?;
        let heard = |kind| {
            signal(kind)
                .map_err(|source| SchedulerError::Runtime { action: "hear signals", source })
        };
        let (mut term, mut interrupt) =
            (heard(SignalKind::terminate())?, heard(SignalKind::interrupt())?);
        let until = async move {
            tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        };
        serve(arguments, listener, until).await
    })
}

/// Serves until `until`, then ends in order.
///
/// # Errors
/// Where there is no way to an API server, or no certificate.
pub async fn serve(
    arguments: Arguments,
    listener: TcpListener,
    until: impl Future<Output = ()>,
) -> Result<(), SchedulerError> {
    let Some(settings) = Settings::find(arguments.kubeconfig.clone(), "") else {
        return Err(SchedulerError::NoApiServer);
    };
    let certificate = match (arguments.tls_cert.clone(), arguments.tls_key.clone()) {
        (Some(cert), Some(key)) => Some(Certificate::load(cert, key)?),
        _ => None,
    };
    let (stop_lease, lease_stops) = watch::channel(false);
    let lease = LeaseSettings::new(
        arguments.namespace.clone(),
        arguments.lease_name.clone(),
        identity(arguments.pod_name.as_deref()),
    );
    let (leads, take_part) = lead(settings.clone(), lease, lease_stops);
    let max_body = usize::from(arguments.max_body) << 20;
    let shared =
        Arc::new(Shared::new(settings.clone(), arguments.placement.into(), max_body, leads));
    let (stop_http, http_stops) = watch::channel(false);
    let reviews = reviews(&arguments, &shared, &http_stops).await?;
    let (active, activity) = watch::channel(false);

    let mut lease = tokio::spawn(after_sync(Arc::clone(&shared), take_part));
    let mut answers = tokio::spawn(http::listen(
        listener,
        router::router(Arc::clone(&shared)),
        certificate.clone(),
        http_stops,
    ));
    let labels = arguments.pod_name.clone().map(|pod| {
        tokio::spawn(leading::label(
            Arc::clone(&shared),
            arguments.namespace.clone(),
            pod,
            activity,
        ))
    });
    log::info!(address:% = arguments.listen, placement:? = arguments.placement; "mpsgate-scheduler runs");
    tokio::select! {
        () = until => {}
        () = watches(&shared, &settings) => {}
        () = leading::watch_over(&shared, &active) => {}
        () = async { match certificate { Some(certificate) => certificate.keep().await, None => std::future::pending().await } } => {}
    }

    log::info!("mpsgate-scheduler ends");
    shared.stop();
    let binds = async {
        while shared.unanswered.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(LAST_BINDS, binds).await;
    // The label first: as soon as the lease is free, another one has it.
    if let (Some(labels), Some(pod)) = (labels, &arguments.pod_name) {
        labels.abort();
        if *active.borrow()
            && let Err(error) = leading::set(&shared, &arguments.namespace, pod, false).await
        {
            log::warn!(error = error.cause().line().as_str(); "the label stays on the own pod");
        }
    }
    stop_lease.send_replace(true);
    let _ = (&mut lease).await;
    stop_http.send_replace(true);
    let _ = tokio::time::timeout(LAST_ANSWERS, &mut answers).await;
    reviews.abort();
    Ok(())
}

/// The webhook, where it is asked for.
async fn reviews(
    arguments: &Arguments,
    shared: &Arc<Shared>,
    stops: &watch::Receiver<bool>,
) -> Result<tokio::task::JoinHandle<()>, SchedulerError> {
    let files = (arguments.webhook_tls_cert.clone(), arguments.webhook_tls_key.clone());
    let (Some(address), (Some(cert), Some(key))) = (arguments.webhook_listen, files) else {
        return Ok(tokio::spawn(async {}));
    };
    let certificate = Certificate::load(cert, key)?;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| SchedulerError::Listen { address, source })?;
    let mutation = Mutation {
        host_ipc: arguments.webhook_host_ipc,
        scheduler_name: arguments.webhook_scheduler_name.clone(),
        replaced_schedulers: arguments.webhook_replaces.clone(),
    };
    let routes = router::reviews(Arc::clone(shared), mutation);
    let listen = http::listen(listener, routes, Some(certificate.clone()), stops.clone());
    log::info!(address:% = address; "admission reviews are answered");
    Ok(tokio::spawn(async move {
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

/// Both watches, for ever; begun anew with each term.
async fn watches(shared: &Shared, settings: &Settings) {
    let mut terms = shared.term.subscribe();
    loop {
        let term = *terms.borrow_and_update();
        let nodes = cluster_nodes(settings, |change| {
            log_listed("nodes", &change);
            shared.write().tell_node(change, term);
        });
        let pods = cluster_pods(settings, |change| {
            log_listed("pods", &change);
            shared.write().tell_pod(change, term);
        });
        tokio::select! {
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
