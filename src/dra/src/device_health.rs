//! The devices' health for kubelet: the whole list now, with each change, and again and again,
//! because kubelet takes silence for unknown.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::watch;
use tonic::codegen::{async_trait, tokio_stream::Stream};
use tonic::{Request, Response, Status};

use crate::api::{health_v1, health_v1alpha1};
use crate::error::cut;
use crate::{Event, Host, Pending};

/// How many lists may fail to arrive before kubelet takes a device's health for unknown.
const MISSED: u128 = 3;

/// The health of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The pool of the ResourceSlice that has the device.
    pub pool: String,
    /// The device's name in that slice.
    pub device: String,
    /// `None` if it is not known.
    pub healthy: Option<bool>,
    /// The reason, for people.
    pub message: String,
    /// When this was last determined, in seconds since 1970.
    pub since_s: i64,
}

/// The service. All clones are the same service.
#[derive(Clone)]
pub(crate) struct Watch {
    health: watch::Receiver<Vec<DeviceHealth>>,
    host: Arc<dyn Host>,
    again: Duration,
}

impl Watch {
    /// `again`: the time after which the list is sent again.
    pub(crate) fn new(
        health: watch::Receiver<Vec<DeviceHealth>>,
        host: Arc<dyn Host>,
        again: Duration,
    ) -> Self {
        Self { health, host, again }
    }

    fn lists<M: Message>(&self) -> Lists<M> {
        let mut health = self.health.clone();
        self.host.tell(Event::Watched { devices: health.borrow().len() });
        health.mark_changed();
        Lists { next: Box::pin(next(health, self.again)) }
    }
}

/// A list in one of kubelet's versions.
pub(crate) trait Message: Send + 'static {
    /// Kubelet takes a device for unknown after `silence_s` seconds without a list.
    fn of(devices: &[DeviceHealth], silence_s: i64) -> Self;
}

/// The versions differ only in their names.
macro_rules! serves {
    ($api:ident) => {
        impl Message for $api::NodeWatchResourcesResponse {
            fn of(devices: &[DeviceHealth], silence_s: i64) -> Self {
                let of_one = |one: &DeviceHealth| $api::DeviceHealth {
                    device: Some($api::DeviceIdentifier {
                        pool_name: one.pool.clone(),
                        device_name: one.device.clone(),
                    }),
                    health: match one.healthy {
                        Some(true) => $api::HealthStatus::Healthy,
                        Some(false) => $api::HealthStatus::Unhealthy,
                        None => $api::HealthStatus::Unknown,
                    }
                    .into(),
                    last_updated_time: one.since_s,
                    health_check_timeout_seconds: silence_s,
                    message: cut(&one.message),
                };
                Self { devices: devices.iter().map(of_one).collect() }
            }
        }

        #[async_trait]
        impl $api::dra_resource_health_server::DraResourceHealth for Watch {
            type NodeWatchResourcesStream = Lists<$api::NodeWatchResourcesResponse>;

            async fn node_watch_resources(
                &self,
                _: Request<$api::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                Ok(Response::new(self.lists()))
            }
        }
    };
}

serves!(health_v1);
serves!(health_v1alpha1);

type Health = watch::Receiver<Vec<DeviceHealth>>;

/// The lists for one reader. A slow reader misses only outdated lists.
pub(crate) struct Lists<M> {
    next: Pending<'static, Option<(Health, Duration, M)>>,
}

/// `None` if there will be no other list.
async fn next<M: Message>(mut health: Health, again: Duration) -> Option<(Health, Duration, M)> {
    // After the silence the present list is sent again.
    if let Ok(Err(_)) = tokio::time::timeout(again, health.changed()).await {
        return None;
    }
    let silence = again.as_millis().div_ceil(1000).saturating_mul(MISSED);
    let message = M::of(&health.borrow_and_update(), i64::try_from(silence).unwrap_or(i64::MAX));
    Some((health, again, message))
}

impl<M: Message> Stream for Lists<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some((health, again, message)) = ready!(self.next.as_mut().poll(cx)) else {
            self.next = Box::pin(std::future::ready(None));
            return Poll::Ready(None);
        };
        self.next = Box::pin(next(health, again));
        Poll::Ready(Some(Ok(message)))
    }
}
