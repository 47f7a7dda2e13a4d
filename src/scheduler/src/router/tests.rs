#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use mpsgate_kubernetes::{Lead, LeaseSettings, Patience, Settings, Source};
use mpsgate_model::Placement;
use tokio::sync::watch;
use tokio::time::Sleep;
use tower::ServiceExt as _;

use super::*;

const REVIEW: &str =
    r#"{"request":{"uid":"u","kind":{"kind":"Pod"},"operation":"CREATE","object":{"spec":{}}}}"#;

/// A body that comes after a while.
struct Slow {
    bytes: Option<Bytes>,
    from: Pin<Box<Sleep>>,
}

impl axum::body::HttpBody for Slow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.bytes.is_some() {
            ready!(self.from.as_mut().poll(context));
        }
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn after(time: Duration) -> Body {
    let bytes = Some(Bytes::from_static(REVIEW.as_bytes()));
    Body::new(Slow { bytes, from: Box::pin(tokio::time::sleep(time)) })
}

/// Asks the webhook, for whom there is no API server.
async fn ask(path: &str, body: Body) -> (StatusCode, String) {
    let settings = Settings {
        source: Source::Kubeconfig("/nonexistent".into()),
        node: String::new(),
        patience: Patience::default(),
    };
    let words = ["kube-system", "lease", "this"].map(ToOwned::to_owned);
    let [namespace, name, identity] = words;
    let lease = LeaseSettings::new(namespace, name, identity);
    let (_, lead) = watch::channel(Lead::default());
    let shared = Arc::new(Shared::new(settings, Placement::Binpack, 1 << 20, lead, lease));
    let router = reviews(shared, Desk::new(1 << 20, "do less"), Mutation::default());
    let request = Request::post(path).body(body).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_review_that_came_too_slowly_for_the_api_server_is_not_looked_at() {
    let late = || after(REVIEW_LIMIT + Duration::from_millis(50));
    let (validated, changed) =
        tokio::join!(ask(webhook::VALIDATE, late()), ask(webhook::MUTATE, late()));
    for (status, said) in [validated, changed] {
        assert_eq!(status, StatusCode::BAD_REQUEST, "{said}");
        assert_eq!(said, "the request did not arrive in time\n");
    }
    for path in [webhook::VALIDATE, webhook::MUTATE] {
        let (status, said) = ask(path, after(Duration::ZERO)).await;
        assert_eq!(status, StatusCode::OK, "{said}");
        assert!(said.contains(r#""allowed":true"#), "{said}");
    }
}

#[test]
fn a_review_is_answered_while_the_api_server_waits() {
    let sixths = |seconds: u64| Duration::from_secs(seconds) * 5 / 6;
    for (query, limit) in [
        (None, REVIEW_LIMIT),
        (Some(""), REVIEW_LIMIT),
        (Some("timeout=1s"), sixths(1)),
        (Some("a=b&timeout=2s"), sixths(2)),
        (Some("timeout=3s"), REVIEW_LIMIT),
        (Some("timeout=30s"), REVIEW_LIMIT),
        (Some("timeout=18446744073709551615s"), REVIEW_LIMIT),
        (Some("timeout=18446744073709551616s"), REVIEW_LIMIT),
        (Some("timeout=0s"), REVIEW_LIMIT),
        (Some("timeout=1"), REVIEW_LIMIT),
        (Some("timeout=1m0s"), REVIEW_LIMIT),
        (Some("notimeout=1s"), REVIEW_LIMIT),
    ] {
        assert_eq!(review_limit(query), limit, "{query:?}");
    }
    assert_eq!(sixths(3), REVIEW_LIMIT);
}

#[tokio::test]
async fn bytes_that_are_no_text_keep_no_pod_out_of_sight() {
    let object = r#"{"spec":{}}"#;
    let (before, after) = REVIEW.split_once(object).unwrap();
    let fields: &[u8] = b"{\"metadata\":{\"managedFields\":[{\"fieldsV1\":{\"f:\xff\xfe\":{}}}]},";
    let spec = r#""spec":{"containers":[{"name":"c","securityContext":{"privileged":true},
        "resources":{"limits":{"mpsgate.io/gpu-mem-512mi":"3"}}}]}}"#;
    let body = [before.as_bytes(), fields, spec.as_bytes(), after.as_bytes()].concat();
    assert!(std::str::from_utf8(&body).is_err());
    let (status, said) = ask(webhook::VALIDATE, Body::from(body)).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    assert!(said.contains(r#""allowed":false"#), "{said}");
}
