//! The service on a resource's socket.

use mpsgate_kubelet::{MESSAGE_LIMIT, SocketEvent, Talk, converse};
use tokio::net::UnixStream;

use crate::Event;
use crate::api::device_plugin_server::DevicePluginServer;
use crate::frame_scan::Scanned;
use crate::plugin_server::Server;

/// Calls at a time on one connection; kubelet makes two.
const STREAMS: u32 = 16;

impl Talk for Server {
    async fn answer(self, stream: UnixStream) -> Result<(), hyper::Error> {
        let seen = self.clone();
        let stream = Scanned::new(stream, move || seen.saw_malformed());
        let service = DevicePluginServer::new(self.clone())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT);
        converse(stream, STREAMS, service).await
    }

    fn tell(&self, event: SocketEvent) {
        self.host().tell(Event::Socket(event));
    }
}
