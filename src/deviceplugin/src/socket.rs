//! Who answers kubelet on a resource's socket.

use mpsgate_kubelet::{MESSAGE_LIMIT, Talk, converse};
use tokio::net::UnixStream;

use crate::Event;
use crate::api::device_plugin_server::DevicePluginServer;
use crate::scan::Scanned;
use crate::server::Server;

/// Calls at a time on one connection; kubelet makes two.
const STREAMS: u32 = 16;

impl Talk for Server {
    async fn answer(self, stream: UnixStream) {
        let seen = self.clone();
        let stream = Scanned::new(stream, move || seen.saw_malformed());
        let service = DevicePluginServer::new(self.clone())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT);
        if let Err(error) = converse(stream, STREAMS, service).await {
            self.host().tell(Event::Broken(error));
        }
    }

    fn stranger(&self, uid: u32) {
        self.host().tell(Event::Stranger { uid });
    }
}
