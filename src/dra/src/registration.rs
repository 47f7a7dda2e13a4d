//! The service on the socket by which kubelet finds the driver: it returns the driver's name and
//! receives kubelet's decision.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mpsgate_kubelet::{SocketEvent, Talk, converse};
use mpsgate_model::DRIVER;
use tokio::net::UnixStream;
use tonic::codegen::async_trait;
use tonic::{Request, Response, Status};

use crate::api::registration::registration_server::{Registration, RegistrationServer};
use crate::api::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::{Event, Host};

/// Kubelet's word for such drivers. Device plugins and CSI drivers have other words.
const KIND: &str = "DRAPlugin";
/// Kubelet takes the first one that it knows, and ignores others. These are not the names of the
/// services on the wire: the first of them is shorter here.
const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];
/// Calls at a time on one connection; kubelet makes one.
const STREAMS: u32 = 16;
/// The most bytes of a request: two names at most, or kubelet's reason for a refusal.
const REQUEST: usize = 64 * 1024;

/// The service. All clones are the same service.
#[derive(Clone)]
pub(crate) struct Registrar {
    endpoint: Arc<str>,
    host: Arc<dyn Host>,
    calls: Arc<Calls>,
}

/// Kubelet's calls.
#[derive(Default)]
struct Calls {
    asked: AtomicBool,
    /// Kubelet's reason, if its last answer was a refusal.
    no: Mutex<Option<String>>,
}

impl Registrar {
    /// Names the socket at `endpoint` to kubelet.
    pub(crate) fn new(endpoint: &Path, host: Arc<dyn Host>) -> Self {
        let endpoint = endpoint.to_string_lossy().into();
        Self { endpoint, host, calls: Arc::default() }
    }

    /// Whether kubelet has asked since the last call.
    pub(crate) fn was_asked(&self) -> bool {
        self.calls.asked.swap(false, Ordering::Relaxed)
    }
}

#[async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.calls.asked.store(true, Ordering::Relaxed);
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.to_string(),
            supported_versions: SERVICES.map(ToOwned::to_owned).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        let no = (!plugin_registered).then_some(error);
        let before = {
            let mut last = self.calls.no.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *last, no.clone())
        };
        match no {
            None => self.host.tell(Event::Registered),
            // Kubelet tries again for ever.
            Some(error) if before.as_ref() != Some(&error) => {
                self.host.tell(Event::NotRegistered { error });
            }
            Some(_) => {}
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

impl Talk for Registrar {
    async fn answer(self, stream: UnixStream) -> Result<(), hyper::Error> {
        let service = RegistrationServer::new(self).max_decoding_message_size(REQUEST);
        converse(stream, STREAMS, service).await
    }

    fn tell(&self, event: SocketEvent) {
        self.host.tell(Event::Socket(event));
    }
}
