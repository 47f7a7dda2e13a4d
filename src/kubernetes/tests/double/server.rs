//! A listener that answers each connection with the next line of a script; what it has no line for
//! gets 500.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mpsgate_kubernetes::Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// One answer. A body is sent chunked, and what follows it is said by the variant.
#[derive(Clone)]
pub(crate) enum Answer {
    /// Whole.
    Whole(u16, String),
    /// A watch: these lines, then nothing more until the client goes.
    Lines(Vec<String>),
    /// A watch: these lines, then its end, in order.
    Ended(Vec<String>),
    /// A watch: these lines, then the connection is cut without the last chunk.
    Cut(Vec<String>),
    /// Not even a status.
    Silence(Duration),
}

pub(crate) struct Double {
    pub(crate) settings: Settings,
    pub(crate) address: SocketAddr,
    /// First lines of requests, and bodies.
    asked: Arc<Mutex<Vec<(String, String)>>>,
    _kubeconfig: tempfile::NamedTempFile,
}

impl Double {
    pub(crate) async fn start(script: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (settings, kubeconfig) = settings(address);
        let asked = Arc::<Mutex<Vec<(String, String)>>>::default();
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let log = Arc::clone(&asked);
        #[expect(clippy::disallowed_methods, reason = "the fake is a server of its own")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&log)));
            }
        });
        Self { settings, address, asked, _kubeconfig: kubeconfig }
    }

    pub(crate) fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().expect("no test panicked").clone()
    }
}

/// The API server at `address`, for the node gpu-1.
pub(crate) fn settings(address: SocketAddr) -> (Settings, tempfile::NamedTempFile) {
    let mut kubeconfig = tempfile::NamedTempFile::new().expect("a file");
    write!(
        kubeconfig,
        "{{apiVersion: v1, kind: Config, current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    )
    .expect("written");
    let settings = Settings::find(Some(kubeconfig.path().to_owned()), "gpu-1").expect("named");
    (settings, kubeconfig)
}

async fn serve(
    mut stream: TcpStream,
    script: Arc<Mutex<VecDeque<Answer>>>,
    log: Arc<Mutex<Vec<(String, String)>>>,
) -> Option<()> {
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut held).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&held[..end]).into_owned();
        let length: usize = head
            .lines()
            .find_map(|line| {
                line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned)
            })
            .map_or(0, |text| text.trim().parse().expect("a number"));
        while held.len() < end + length {
            stream.read_buf(&mut held).await.ok()?;
        }
        let body = String::from_utf8_lossy(&held[end..end + length]).into_owned();
        held.drain(..end + length);
        log.lock().expect("no test panicked").push((head.lines().next()?.to_owned(), body));
        let answer = script.lock().expect("no test panicked").pop_front();
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        match answer.unwrap_or_else(|| Answer::Whole(500, status(500, "the script is at its end")))
        {
            Answer::Whole(code, body) => {
                let head = format!(
                    "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.ok()?;
            }
            Answer::Lines(lines) | Answer::Cut(lines) if lines.is_empty() => return None,
            ref answer @ (Answer::Lines(ref lines)
            | Answer::Cut(ref lines)
            | Answer::Ended(ref lines)) => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes()).await.ok()?;
                for line in lines {
                    stream.write_all(chunk(&format!("{line}\n")).as_bytes()).await.ok()?;
                }
                match answer {
                    Answer::Cut(_) => return None,
                    Answer::Ended(_) => {
                        stream.write_all(b"0\r\n\r\n").await.ok()?;
                        continue;
                    }
                    _ => {}
                }
                let _end = stream.read_buf(&mut held).await;
                return None;
            }
            Answer::Silence(time) => tokio::time::sleep(time).await,
        }
    }
}

pub(crate) fn status(code: u16, message: &str) -> String {
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}","reason":"x","code":{code}}}"#
    )
}

pub(crate) fn pod(uid: &str, version: u32) -> String {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"uid":"{uid}","name":"{uid}","namespace":"n","resourceVersion":"{version}"}},"spec":{{"containers":[{{"name":"main","resources":{{"limits":{{"aliyun.com/gpu-mem":"7"}}}}}}]}}}}"#
    )
}

pub(crate) fn list(version: u32, pods: &[String]) -> Answer {
    let items = pods.join(",");
    Answer::Whole(
        200,
        format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#
        ),
    )
}

pub(crate) fn added(pod: &str) -> String {
    format!(r#"{{"type":"ADDED","object":{pod}}}"#)
}
