//! The services that kubelet calls. They prepare and unprepare each claim by itself.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use mpsgate_kubelet::{MESSAGE_LIMIT, SocketEvent, Talk, converse};
use mpsgate_model::ClaimName;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, async_trait, http};
use tonic::{Request, Response, Status};

use crate::api::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use crate::api::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use crate::api::health_v1::dra_resource_health_server as health_v1;
use crate::api::health_v1alpha1::dra_resource_health_server as health_v1alpha1;
use crate::call_claims::{MOST, Turns, sort};
use crate::device_health::Watch;
use crate::error::cut;
use crate::{Event, Host, Pending, PreparedDevice};

/// The most calls at a time on one connection: kubelet makes one for each pod that starts or ends,
/// of which a node has 110, and one for health.
const STREAMS: u32 = 128;
/// The most bytes of a request: the most claims, with the longest names.
const REQUEST: usize = 1 << 20;
/// The most claims at a time that the daemon is asked about.
const AT_A_TIME: usize = 64;

/// The service for claims. All clones are the same service.
#[derive(Clone)]
pub(crate) struct Server {
    host: Arc<dyn Host>,
    watch: Watch,
    limit: Duration,
    turns: Arc<Turns>,
    places: Arc<Semaphore>,
}

/// An action of the daemon on one claim.
type Act<T> = for<'a> fn(&'a dyn Host, ClaimName) -> Pending<'a, Result<T, String>>;

/// The outcome of an action.
enum Outcome<T> {
    Done(T),
    Refused(String),
    TimedOut,
    /// The action did not run. The event is about the whole call.
    Unheard(String),
}

impl Server {
    /// `limit` is the time for the answer to each claim.
    pub(crate) fn new(host: Arc<dyn Host>, watch: Watch, limit: Duration) -> Self {
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        Self { host, watch, limit, turns: Arc::default(), places }
    }

    /// Runs all claims of a call at once: an answer for each uid, whatever the outcome of the
    /// others.
    async fn each<T: Send + 'static>(
        &self,
        claims: Vec<Claim>,
        act: Act<T>,
    ) -> Vec<(ClaimName, Outcome<T>)> {
        if claims.len() > MOST {
            self.host.tell(Event::TooMany { claims: claims.len() });
            let sentence = format!(
                "kubelet names {} claims at once, and mpsgate takes {MOST}: give the pod fewer",
                claims.len()
            );
            let unheard = |Claim { namespace, uid, name }| {
                (ClaimName { namespace, name, uid }, Outcome::Unheard(sentence.clone()))
            };
            return claims.into_iter().map(unheard).collect();
        }
        let asked = sort(claims);
        let wrong = asked.wrong.into_iter().map(|(claim, error)| (claim, Outcome::Refused(error)));
        let mut outcomes: Vec<_> = wrong.collect();
        // One deadline for the whole call, because kubelet gives up the whole call.
        let until = Instant::now() + self.limit;
        let mut calls = JoinSet::new();
        let mut left: BTreeMap<_, _> =
            asked.whole.into_iter().map(|claim| (claim.uid.clone(), claim)).collect();
        for claim in left.values().cloned() {
            let server = self.clone();
            calls.spawn(async move {
                let uid = claim.uid.clone();
                (uid, timeout_at(until, server.one(claim, act)).await)
            });
        }
        while let Some(call) = calls.join_next().await {
            let Ok((uid, answer)) = call else { continue };
            let Some(claim) = left.remove(&uid) else { continue };
            let outcome = match answer {
                Ok(Ok(done)) => Outcome::Done(done),
                Ok(Err(error)) => Outcome::Refused(error),
                Err(_) => Outcome::TimedOut,
            };
            outcomes.push((claim, outcome));
        }
        // For a daemon that panics and continues.
        let broken = || "mpsgated broke off: journalctl -u mpsgated -n 50".to_owned();
        outcomes.extend(left.into_values().map(|claim| (claim, Outcome::Refused(broken()))));
        outcomes
    }

    async fn one<T>(&self, claim: ClaimName, act: Act<T>) -> Result<T, String> {
        // A claim that waits for another call takes no place.
        let _turn = self.turns.of(&claim.uid).await;
        let _place = self.places.acquire().await;
        act(&*self.host, claim).await
    }

    fn timed_out(&self, claim: ClaimName) -> String {
        let seconds = self.limit.as_secs();
        self.host.tell(Event::TimedOut { claim, seconds });
        format!(
            "mpsgated has not answered for {seconds} s, and kubelet asks again: run mpsgate status \
             on the node"
        )
    }

    fn prepared(
        &self,
        claim: ClaimName,
        outcome: Outcome<Vec<PreparedDevice>>,
    ) -> NodePrepareResourceResponse {
        let error = match outcome {
            Outcome::Done(devices) => {
                self.host.tell(Event::Prepared { claim, devices: devices.len() });
                let devices = devices.into_iter().map(device).collect();
                return NodePrepareResourceResponse { devices, error: String::new() };
            }
            Outcome::Refused(error) => {
                self.host.tell(Event::Refused { claim, error: error.clone() });
                error
            }
            Outcome::TimedOut => self.timed_out(claim),
            Outcome::Unheard(error) => error,
        };
        NodePrepareResourceResponse { devices: Vec::new(), error: error_text(&error) }
    }

    fn unprepared(&self, claim: ClaimName, outcome: Outcome<()>) -> NodeUnprepareResourceResponse {
        let error = match outcome {
            Outcome::Done(()) => {
                self.host.tell(Event::Unprepared { claim });
                return NodeUnprepareResourceResponse::default();
            }
            Outcome::Refused(error) => {
                self.host.tell(Event::NotUnprepared { claim, error: error.clone() });
                error
            }
            Outcome::TimedOut => self.timed_out(claim),
            Outcome::Unheard(error) => error,
        };
        NodeUnprepareResourceResponse { error: error_text(&error) }
    }
}

/// An error for kubelet, which takes an empty text for success.
fn error_text(error: &str) -> String {
    if error.is_empty() { "mpsgated gave no reason".to_owned() } else { cut(error) }
}

/// Containers name requests, never alternatives: kubelet would find no container with one.
fn device(device: PreparedDevice) -> Device {
    let request = device.request.split('/').next().unwrap_or_default();
    Device {
        request_names: vec![request.to_owned()],
        pool_name: device.pool,
        device_name: device.device,
        cdi_device_ids: device.cdi_ids,
        share_id: device.share_id,
    }
}

#[async_trait]
impl DraPlugin for Server {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let outcomes = self.each(claims, |host, claim| host.prepare(claim)).await;
        let answers = outcomes
            .into_iter()
            .map(|(claim, outcome)| (claim.uid.clone(), self.prepared(claim, outcome)));
        Ok(Response::new(NodePrepareResourcesResponse { claims: answers.collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let outcomes = self.each(claims, |host, claim| host.unprepare(claim)).await;
        let answers = outcomes
            .into_iter()
            .map(|(claim, outcome)| (claim.uid.clone(), self.unprepared(claim, outcome)));
        Ok(Response::new(NodeUnprepareResourcesResponse { claims: answers.collect() }))
    }
}

impl Talk for Server {
    async fn answer(self, stream: UnixStream) -> Result<(), hyper::Error> {
        converse(stream, STREAMS, Services::new(self)).await
    }

    fn tell(&self, event: SocketEvent) {
        self.host.tell(Event::Socket(event));
    }
}

/// The services of one socket.
#[derive(Clone)]
struct Services {
    claims: DraPluginServer<Server>,
    health_v1: health_v1::DraResourceHealthServer<Watch>,
    health_v1alpha1: health_v1alpha1::DraResourceHealthServer<Watch>,
}

impl Services {
    fn new(server: Server) -> Self {
        let watch = || server.watch.clone();
        Self {
            health_v1: health_v1::DraResourceHealthServer::new(watch())
                .max_decoding_message_size(REQUEST)
                .max_encoding_message_size(MESSAGE_LIMIT),
            health_v1alpha1: health_v1alpha1::DraResourceHealthServer::new(watch())
                .max_decoding_message_size(REQUEST)
                .max_encoding_message_size(MESSAGE_LIMIT),
            claims: DraPluginServer::new(server)
                .max_decoding_message_size(REQUEST)
                .max_encoding_message_size(MESSAGE_LIMIT),
        }
    }
}

impl Service<http::Request<Incoming>> for Services {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        match request.uri().path().split('/').nth(1) {
            Some(health_v1::SERVICE_NAME) => self.health_v1.call(request),
            Some(health_v1alpha1::SERVICE_NAME) => self.health_v1alpha1.call(request),
            // The claims' service answers unknown calls with "not implemented".
            _ => self.claims.call(request),
        }
    }
}
