//! Which question is answered by what.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;

use crate::extender::{self, Bound};
use crate::shared::Shared;
use crate::webhook::{self, Mutation};
use crate::{bind, inspect, metrics};

/// For the body of a request to arrive.
const BODY_LIMIT: Duration = Duration::from_secs(10);

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Shares = State<Arc<Shared>>;

/// All routes. The second prefix is that of gpushare's extender, so that its kube-scheduler configuration goes on.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let verbs = || {
        Router::new()
            .route("/filter", post(filter))
            .route("/prioritize", post(prioritize))
            .route("/preempt", post(preempt))
            .route("/bind", post(bind_pod))
            .route("/inspect", get(inspect_all))
            .route("/inspect/{node}", get(inspect_one))
    };
    Router::new()
        .nest("/mpsgate", verbs())
        .nest("/gpushare-scheduler", verbs())
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
pub(crate) fn reviews(shared: Arc<Shared>, mutation: Mutation) -> Router {
    let mutation = Arc::new(mutation);
    let route = |verb: &'static str, review: Review| {
        let mutation = Arc::clone(&mutation);
        post(async move |State(shared): Shares, request: Request<Body>| {
            let began = Instant::now();
            let result = match body(&shared, request).await {
                Ok(body) => review(&body, &mutation).map_err(|error| error.to_string()),
                Err(why) => Err(why),
            };
            shared.metrics.answered(verb, result.is_ok(), began.elapsed());
            match result {
                Ok(answer) => reply(StatusCode::OK, JSON, answer),
                Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
            }
        })
    };
    Router::new()
        .route(webhook::VALIDATE, route("validate", webhook::validate))
        .route(webhook::MUTATE, route("mutate", webhook::mutate))
        .route("/healthz", get(async || text(StatusCode::OK, "ok\n")))
        .with_state(shared)
}

type Review = fn(&[u8], &Mutation) -> Result<Vec<u8>, webhook::Unreadable>;

async fn filter(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let body = body(&shared, request).await;
    // Not in the `match`: its guard would live as long, and a second one can wait for a writer that waits for it.
    let unsynced = shared.read().unsynced();
    let result = match (body, unsynced) {
        (Err(why), _) | (_, Some(why)) => extender::refused(&why),
        (Ok(body), None) => extender::filter(&shared.read().ledger, &body),
    };
    shared.metrics.answered("filter", result.error.is_empty(), began.elapsed());
    json(StatusCode::OK, &result)
}

async fn prioritize(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let result = match body(&shared, request).await {
        Ok(body) => {
            extender::prioritize(&shared.read().ledger, &body).map_err(|error| error.to_string())
        }
        Err(why) => Err(why),
    };
    shared.metrics.answered("prioritize", result.is_ok(), began.elapsed());
    or_bad_request(result)
}

async fn preempt(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let result = match body(&shared, request).await {
        Ok(body) => {
            extender::preempt(&shared.read().ledger, &body).map_err(|error| error.to_string())
        }
        Err(why) => Err(why),
    };
    shared.metrics.answered("preempt", result.is_ok(), began.elapsed());
    or_bad_request(result)
}

async fn bind_pod(State(shared): Shares, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let asked = match body(&shared, request).await {
        Ok(body) => {
            extender::binding(&body).map_err(|error| format!("the request cannot be read: {error}"))
        }
        Err(why) => Err(why),
    };
    let result = match asked {
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
    json(StatusCode::OK, &Bound { error: result.err().unwrap_or_default() })
}

async fn inspect_all(State(shared): Shares) -> Response<Body> {
    json(StatusCode::OK, &inspect::inspect(&shared.read().ledger, None))
}

async fn inspect_one(State(shared): Shares, Path(node): Path<String>) -> Response<Body> {
    json(StatusCode::OK, &inspect::inspect(&shared.read().ledger, Some(&node)))
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
    match metrics::render(&shared) {
        Ok(open) => reply(StatusCode::OK, OPEN_METRICS, open),
        // A `String` takes all that is written to it, so this is nobody's day.
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

/// The whole body, within its limits.
async fn body(shared: &Shared, request: Request<Body>) -> Result<Vec<u8>, String> {
    let read = Limited::new(request.into_body(), shared.max_body).collect();
    match tokio::time::timeout(BODY_LIMIT, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(format!(
            "the request has more than {} MiB; set nodeCacheCapable: true for this extender, or raise --max-body",
            shared.max_body >> 20
        )),
        Ok(Err(error)) => Err(format!("the request was cut: {error}")),
        Err(_) => Err(format!("the request did not arrive within {} s", BODY_LIMIT.as_secs())),
    }
}

fn or_bad_request<T: Serialize>(result: Result<T, String>) -> Response<Body> {
    match result {
        Ok(answer) => json(StatusCode::OK, &answer),
        Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
    }
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(answer) {
        Ok(body) => reply(status, JSON, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn text(status: StatusCode, body: &str) -> Response<Body> {
    reply(status, PLAIN, body.to_owned())
}

fn reply(status: StatusCode, content: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}
