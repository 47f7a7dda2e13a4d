//! An API server, as far as a client can tell. `tests/k8s` has a real one; what this one can and
//! that one cannot is to answer wrongly at one chosen request: garbage, 410 Gone, silence, a
//! connection cut in the middle.

#![allow(missing_docs, missing_debug_implementations, reason = "a part of tests")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a part of tests")]

mod cluster;
mod resource;

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

pub use cluster::{Cluster, Fault, World, managed_fields};
pub use resource::{Resources, Right, Store};

/// In what is sent, a byte that is no text of UTF-8 in its place: no [`Value`] holds one.
pub(crate) const NO_TEXT: char = '\u{e0ff}';

fn bytes(text: &str) -> Vec<u8> {
    text.split(NO_TEXT).map(str::as_bytes).collect::<Vec<_>>().join(&0xff_u8)
}

/// What was asked; of the head the first line.
#[derive(Debug, Clone)]
pub struct Request {
    pub line: String,
    pub body: String,
}

impl Request {
    fn target(&self) -> (&str, &str) {
        let target = self.line.split(' ').nth(1).unwrap();
        target.split_once('?').unwrap_or((target, ""))
    }

    fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.target().1.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(key, _)| *key == name)?;
        Some(value.replace("%3D", "=").replace("%21", "!").replace("%2C", ","))
    }
}

pub enum Answer {
    Whole(u16, String),
    /// A watch: its lines, when they come, and how it ends; else nothing more is said until the
    /// client goes.
    Watch(Box<dyn Iterator<Item = Said> + Send>),
    /// The connection is cut.
    Cut,
    /// Not even a status.
    Silence,
}

/// One piece of a watch.
pub enum Said {
    Line(String),
    /// Its end, in order.
    End,
    /// The connection is cut without the last chunk.
    Cut,
}

impl Answer {
    pub fn watch(
        lines: impl IntoIterator<Item = impl ToString>,
        last: impl IntoIterator<Item = Said>,
    ) -> Self {
        let said = lines.into_iter().map(|line| Said::Line(line.to_string())).chain(last);
        Self::Watch(Box::new(said.collect::<Vec<_>>().into_iter()))
    }

    pub fn refusal(code: u16, message: &str) -> Self {
        Self::Whole(code, status(code, message).to_string())
    }

    pub fn garbage() -> Self {
        Self::Whole(200, "<html>not you again</html>".to_owned())
    }

    pub fn list(version: u64, items: &[Value]) -> Self {
        let metadata = json!({"resourceVersion": version.to_string()});
        let list =
            json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items});
        Self::Whole(200, list.to_string())
    }
}

pub fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        _ => "ServiceUnavailable",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code})
}

/// With a second context `away`, where nobody is.
pub fn kubeconfig(address: SocketAddr) -> NamedTempFile {
    let cluster =
        |name, address| json!({"name": name, "cluster": {"server": format!("http://{address}")}});
    let context = |name| json!({"name": name, "context": {"cluster": name, "user": "u"}});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [context("here"), context("away")],
        "clusters": [cluster("here", address), cluster("away", ([127, 0, 0, 1], 1).into())],
        "users": [{"name": "u", "user": {"token": "t"}}],
    });
    let mut file = NamedTempFile::new().unwrap();
    write!(file, "{config}").unwrap();
    file
}

/// One that listens until the test's process ends.
pub struct ApiServer {
    pub kubeconfig: NamedTempFile,
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl ApiServer {
    pub fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<Request>>>::default();
        let shared = Arc::new((answer, Arc::clone(&asked)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &shared.0, &shared.1));
            }
        });
        Self { kubeconfig: kubeconfig(address), address, asked }
    }

    /// Each request has the next answer of a script, whatever it asks; what there is none for gets
    /// 500.
    pub fn scripted(script: Vec<Answer>) -> Self {
        let script = Mutex::new(VecDeque::from(script));
        let end = || Answer::refusal(500, "the script is at its end");
        Self::start(move |_| script.lock().unwrap().pop_front().unwrap_or_else(end))
    }

    pub fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut lines = reader.by_ref().lines();
    let line = lines.next()?.ok()?;
    let mut length = 0;
    loop {
        let header = lines.next()?.ok()?.to_lowercase();
        match header.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { line, body: String::from_utf8_lossy(&body).into_owned() })
}

fn serve(
    mut stream: &TcpStream,
    answer: impl Fn(&Request) -> Answer,
    log: &Mutex<Vec<Request>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    'requests: loop {
        let request = read(&mut reader)?;
        log.lock().unwrap().push(request.clone());
        let head = |code: u16, body: &str| {
            format!("HTTP/1.1 {code} x\r\ncontent-type: application/json\r\n{body}\r\n\r\n")
        };
        match answer(&request) {
            Answer::Whole(code, body) => {
                let body = bytes(&body);
                let head = head(code, &format!("content-length: {}", body.len()));
                stream.write_all(&[head.as_bytes(), body.as_slice()].concat()).ok()?;
                continue;
            }
            Answer::Watch(said) => {
                stream.write_all(head(200, "transfer-encoding: chunked").as_bytes()).ok()?;
                for piece in said {
                    let line = match piece {
                        Said::Line(line) => bytes(&(line + "\n")),
                        Said::End => Vec::new(),
                        Said::Cut => return None,
                    };
                    let length = format!("{:x}\r\n", line.len());
                    let chunk = [length.as_bytes(), line.as_slice(), b"\r\n".as_slice()].concat();
                    stream.write_all(&chunk).ok()?;
                    if line.is_empty() {
                        continue 'requests;
                    }
                }
            }
            Answer::Cut => return None,
            Answer::Silence => {}
        }
        return std::io::copy(&mut reader, &mut std::io::sink()).ok().map(drop);
    }
}
