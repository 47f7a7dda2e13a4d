//! The service that kubelet calls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::watch;
use tonic::codegen::{async_trait, tokio_stream::Stream};
use tonic::{Request, Response, Status};

use crate::allocate::answer;
use crate::api::device_plugin_server::DevicePlugin;
use crate::api::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};
use crate::register::OPTIONS;
use mpsgate_model::Resource;

use crate::{Allocation, Denied, Event, Host, Inventory, Pending, list, prefer};

/// Containers in one call; kubelet asks for one.
const CONTAINERS: usize = 64;

/// The readers of the list, as far as registration needs to know.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Readers {
    /// Streams that have begun.
    pub(crate) begun: u64,
    /// Streams that have begun and not ended.
    pub(crate) live: u64,
    /// Requests that were refused as malformed.
    pub(crate) malformed: u64,
}

/// The service of one resource. All clones are the same service.
#[derive(Clone)]
pub(crate) struct Server {
    resource: Arc<Resource>,
    inventory: watch::Receiver<Inventory>,
    host: Arc<dyn Host>,
    readers: watch::Sender<Readers>,
    limit: Duration,
}

impl Server {
    pub(crate) fn new(
        resource: Arc<Resource>,
        inventory: watch::Receiver<Inventory>,
        host: Arc<dyn Host>,
        limit: Duration,
    ) -> Self {
        Self { resource, inventory, host, readers: watch::Sender::default(), limit }
    }

    pub(crate) fn resource(&self) -> &Resource {
        &self.resource
    }

    pub(crate) fn host(&self) -> &dyn Host {
        &*self.host
    }

    pub(crate) fn readers(&self) -> watch::Receiver<Readers> {
        self.readers.subscribe()
    }

    /// A request was reset before it reached the service. Only the first one is reported: kubelet
    /// tries for ever.
    pub(crate) fn saw_malformed(&self) {
        self.readers.send_modify(|readers| readers.malformed += 1);
        if self.readers.borrow().malformed == 1 {
            self.host.tell(Event::Malformed);
        }
    }

    async fn allocate_all(&self, request: AllocateRequest) -> Result<AllocateResponse, Denied> {
        let containers = request.container_requests;
        if containers.len() > CONTAINERS {
            let sentence = format!("kubelet asks for {} containers at once", containers.len());
            return Err(Denied::new(sentence));
        }
        let call = containers.iter().map(|container| container.device_ids.len()).sum();
        // All are checked before the first gets its token.
        let all: Result<Vec<Allocation>, Denied> =
            containers.iter().map(|one| Allocation::of(&self.resource, &one.device_ids)).collect();
        let mut response = AllocateResponse::default();
        for allocation in all? {
            let token = tokio::time::timeout(self.limit, self.host.token(allocation.clone()));
            let token = token.await.unwrap_or_else(|_| {
                let seconds = self.limit.as_secs();
                Err(Denied::new(format!(
                    "mpsgated has not answered for {seconds} s: run mpsgate status on the node"
                )))
            })?;
            let inventory = self.inventory.borrow().clone();
            let answer = answer(&self.resource, &inventory, &allocation, call, token);
            response.container_responses.push(answer);
            self.host.tell(Event::Allocated(allocation));
        }
        Ok(response)
    }
}

#[async_trait]
impl DevicePlugin for Server {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream = Lists;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Lists>, Status> {
        Ok(Response::new(Lists::new(self)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let spread = self.inventory.borrow().spread;
        let containers = request.into_inner().container_requests.into_iter();
        let container_responses = containers
            .map(|one| {
                let size = usize::try_from(one.allocation_size).unwrap_or(0);
                let (available, must) = (&one.available_device_ids, &one.must_include_device_ids);
                let device_ids = prefer(available, must, size, spread);
                ContainerPreferredAllocationResponse { device_ids }
            })
            .collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        self.allocate_all(request.into_inner()).await.map(Response::new).map_err(|denied| {
            let status = Status::failed_precondition(denied.to_string());
            self.host.tell(Event::Denied(denied));
            status
        })
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("mpsgate asks for no PreStartContainer"))
    }
}

/// The list now, and after each change. A slow reader misses only outdated lists.
pub(crate) struct Lists {
    next: Pending<'static, (Reader, Option<ListAndWatchResponse>)>,
}

impl Lists {
    fn new(server: &Server) -> Self {
        server.readers.send_modify(|readers| {
            readers.begun += 1;
            readers.live += 1;
        });
        let mut inventory = server.inventory.clone();
        inventory.mark_changed();
        Self { next: Box::pin(Reader { server: server.clone(), inventory, last: None }.next()) }
    }
}

impl Stream for Lists {
    type Item = Result<ListAndWatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (reader, message) = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(reader.next());
        Poll::Ready(message.map(Ok))
    }
}

/// A reader of the list; counted while it lives.
struct Reader {
    server: Server,
    inventory: watch::Receiver<Inventory>,
    last: Option<Vec<Device>>,
}

impl Reader {
    /// The next list that differs from the last. `None` if there will be no other.
    async fn next(mut self) -> (Self, Option<ListAndWatchResponse>) {
        loop {
            if self.inventory.changed().await.is_err() {
                return (self, None);
            }
            let listed = list(&self.server.resource, &self.inventory.borrow_and_update());
            let devices = listed.unwrap_or_else(|error| {
                self.server.host.tell(Event::Unlistable(error));
                Vec::new()
            });
            if self.last.as_ref() != Some(&devices) {
                let healthy = devices.iter().filter(|device| device.health == "Healthy").count();
                self.server.host.tell(Event::Watched { healthy, all: devices.len() });
                self.last = Some(devices.clone());
                return (self, Some(ListAndWatchResponse { devices }));
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.server.readers.send_modify(|readers| readers.live -= 1);
    }
}
