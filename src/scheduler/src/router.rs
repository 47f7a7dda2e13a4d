//! Which question is answered by what.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::routing::{get, post};
use axum::{Extension, Router};
use mpsgate_cluster::Snapshot;
use mpsgate_cluster::bypass::Known;
use mpsgate_model::printable;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::desk::{BODY_LIMIT, Desk};
use crate::extender::{self, Bound};
use crate::http::Peer;
use crate::scheduler_metrics::Now;
use crate::shared_state::Shared;
use crate::webhook::{self, Mutation};
use crate::{bind, inspect, pod_claims};

/// For a review to be answered, from its first byte on. The API server waits for 3 s by default
/// (`timeoutSeconds`): what is done later nobody reads.
const REVIEW_LIMIT: Duration = Duration::from_millis(2_500);
/// The longest `timeoutSeconds` that there is.
const LONGEST_TIMEOUT: u64 = 30;

/// The body of a bind: four names.
const BIND_BODY: usize = 1 << 14;

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Shares = State<Arc<Shared>>;

/// What kube-scheduler and people ask. The second prefix is that of gpushare's extender, so that
/// its kube-scheduler configuration goes on.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let verbs = || {
        Router::new()
            .route("/filter", post(filter))
            .route("/prioritize", post(prioritize))
            .route("/prioritize-claims", post(prioritize_claims))
            .route("/preempt", post(preempt))
            .route("/bind", post(bind_pod))
            .route("/inspect", get(inspect_all))
            .route("/inspect/{node}", get(inspect_one))
    };
    let all = Router::new().nest("/mpsgate", verbs()).nest("/gpushare-scheduler", verbs());
    all.with_state(Arc::clone(&shared)).merge(probes(shared))
}

/// What a kubelet, a load balancer and Prometheus ask: nothing of it tells of a pod.
pub(crate) fn probes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/healthz", get(async || text(StatusCode::OK, "ok\n")))
        .route("/readyz", get(readyz))
        .route("/leaderz", get(leaderz))
        .route("/metrics", get(scrape))
        .route(
            "/version",
            get(async || text(StatusCode::OK, concat!(env!("CARGO_PKG_VERSION"), "\n"))),
        )
        .with_state(shared)
}

/// What the API server posts to the webhook, on an address of its own.
pub(crate) fn reviews(shared: Arc<Shared>, desk: Desk, mutation: Mutation) -> Router {
    let (mutation, desk) = (Arc::new(mutation), Arc::new(desk));
    let route = |verb: &'static str, review: Review| {
        let (mutation, desk) = (Arc::clone(&mutation), Arc::clone(&desk));
        post(async move |State(shared): Shares, request: Request<Body>| {
            let began = Instant::now();
            let latest = Some(began + review_limit(request.uri().query()));
            let cluster = Arc::clone(&shared);
            let reviewed = desk.ask(request, latest, move |body, until| {
                let known = cluster.known();
                review(body, &mutation, &known, until).map_err(|error| error.to_string())
            });
            let result = reviewed.await.flatten();
            shared.metrics.answered(verb, result.is_ok(), began.elapsed());
            match result {
                Ok(answer) => reply(&desk, StatusCode::OK, JSON, answer),
                Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
            }
        })
    };
    Router::new()
        .route(webhook::VALIDATE, route("validate", webhook::validate))
        .route(
            webhook::MUTATE,
            route("mutate", |body, mutation, _, until| webhook::mutate(body, mutation, until)),
        )
        .route("/healthz", get(async || text(StatusCode::OK, "ok\n")))
        .with_state(shared)
}

/// How long a review may take: five sixths of what the API server says in its URL (`timeout=3s`, in
/// whole seconds), and no longer than usual.
fn review_limit(query: Option<&str>) -> Duration {
    let timeout = query.and_then(|query| {
        let text = query.split('&').find_map(|pair| pair.strip_prefix("timeout="))?;
        text.strip_suffix('s')?.parse::<u64>().ok().filter(|seconds| *seconds > 0)
    });
    timeout.map_or(REVIEW_LIMIT, |seconds| {
        REVIEW_LIMIT.min(Duration::from_secs(seconds.min(LONGEST_TIMEOUT)) * 5 / 6)
    })
}

type Review = fn(&[u8], &Mutation, &Known, Instant) -> Result<Vec<u8>, webhook::Unreadable>;

async fn filter(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let known = Arc::clone(&shared);
    let asked = search(&shared, request, move |ledger, body, until| {
        extender::filter(ledger, |pod| known.closed(pod), body, until)
    });
    let asked = asked.await;
    let result = asked.unwrap_or_else(|why| extender::refused(&why));
    shared.metrics.answered("filter", result.error.is_empty(), began.elapsed());
    json(&shared.desk, &result)
}

async fn prioritize(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let result = search(&shared, request, extender::prioritize).await;
    shared.metrics.answered("prioritize", result.is_ok(), began.elapsed());
    or_bad_request(&shared.desk, result)
}

async fn prioritize_claims(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let (asker, own) = (Arc::clone(&shared), Handle::current());
    let result = search(&shared, request, move |ledger, body, until| {
        extender::prioritize_claims(ledger, body, until, |pod| {
            own.block_on(pod_claims::memory(&asker.claims, pod, until))
        })
    });
    let result = result.await;
    shared.metrics.answered("prioritize-claims", result.is_ok(), began.elapsed());
    or_bad_request(&shared.desk, result)
}

async fn preempt(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let known = Arc::clone(&shared);
    let result = search(&shared, request, move |ledger, body, until| {
        extender::preempt(ledger, |pod| known.closed(pod), body, until)
    });
    let result = result.await;
    shared.metrics.answered("preempt", result.is_ok(), began.elapsed());
    or_bad_request(&shared.desk, result)
}

/// Searches the ledger as it is when the question has its turn.
async fn search<T: Send + 'static>(
    shared: &Arc<Shared>,
    request: Request<Body>,
    question: impl FnOnce(&Snapshot, &[u8], Instant) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let ledger = Arc::clone(shared);
    let asked = shared
        .desk
        .ask(request, None, move |body, until| question(&ledger.searched()?, body, until));
    asked.await.flatten()
}

async fn bind_pod(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let body = shared.desk.body(request, BIND_BODY, (began + BODY_LIMIT).into()).await;
    let result = match body.and_then(|body| extender::binding(&body.bytes)) {
        Ok(asked) => {
            let task = Arc::clone(&shared);
            task.unanswered.fetch_add(1, Ordering::SeqCst);
            // A caller that goes away must not stop it halfway.
            let done = tokio::spawn(async move {
                let done = bind::bind(&task, &asked).await;
                if let Err(why) = &done {
                    log::info!(
                        pod:% = format_args!("{}/{}", asked.pod_namespace, asked.pod_name),
                        node = asked.node.as_str(), why = why.as_str(); "not bound"
                    );
                }
                task.unanswered.fetch_sub(1, Ordering::SeqCst);
                done
            });
            done.await.unwrap_or_else(|error| Err(error.to_string()))
        }
        Err(why) => Err(why),
    };
    shared.metrics.answered("bind", result.is_ok(), began.elapsed());
    json(&shared.desk, &Bound { error: result.err().unwrap_or_default() })
}

async fn inspect_all(state: Shares, peer: Extension<Peer>) -> Response<Body> {
    inspected(state, peer, None).await
}

async fn inspect_one(
    state: Shares,
    peer: Extension<Peer>,
    Path(node): Path<String>,
) -> Response<Body> {
    inspected(state, peer, Some(node)).await
}

async fn inspected(
    State(shared): Shares,
    Extension(peer): Extension<Peer>,
    node: Option<String>,
) -> Response<Body> {
    let ledger = Arc::clone(&shared);
    let shown = shared.looks.run(move || {
        let left_out = ledger.left_out();
        let snapshot = ledger.read().ledger.snapshot();
        inspect::inspect(&snapshot, &left_out, node.as_deref(), peer.verified)
    });
    match shown.await {
        Ok(shown) => json(&shared.desk, &shown),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
    }
}

async fn readyz(State(shared): Shares) -> Response<Body> {
    match shared.unready() {
        None => text(StatusCode::OK, "ok\n"),
        Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
    }
}

async fn leaderz(State(shared): Shares) -> Response<Body> {
    match shared.inactive() {
        None => text(StatusCode::OK, "ok\n"),
        Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
    }
}

async fn scrape(State(shared): Shares) -> Response<Body> {
    let looked = Arc::clone(&shared);
    let look = move || {
        let (active, ready) = (looked.is_active(), looked.unready().is_none());
        let ledger = looked.read().ledger.snapshot();
        let left_out = looked.left_out();
        looked.metrics.render(Now { active, ready, ledger, left_out })
    };
    match shared.scrapes.run(look).await {
        Ok(Ok(open)) => reply(&shared.desk, StatusCode::OK, OPEN_METRICS, open),
        // A `String` takes all that is written to it, so this is nobody's day.
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
    }
}

fn or_bad_request<T: Serialize>(desk: &Desk, result: Result<T, String>) -> Response<Body> {
    match result {
        Ok(answer) => json(desk, &answer),
        Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
    }
}

fn json(desk: &Desk, answer: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(answer) {
        Ok(body) => reply(desk, StatusCode::OK, JSON, printable::json(body)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn text(status: StatusCode, body: &str) -> Response<Body> {
    response(status, PLAIN, Body::from(body.to_owned()))
}

fn reply(
    desk: &Desk,
    status: StatusCode,
    content: &'static str,
    body: impl Into<axum::body::Bytes>,
) -> Response<Body> {
    match desk.answer(body) {
        Some(body) => response(status, content, body),
        None => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many large answers are on their way; try again\n",
        ),
    }
}

fn response(status: StatusCode, content: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}

#[cfg(test)]
mod tests;
