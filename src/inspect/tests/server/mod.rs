//! An API server that has the nodes and pods of a document, and the command under test beside it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    dead_code,
    reason = "test code fails by panicking, is a server, starts a program, and no test uses all of it"
)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// Statuses that a path is answered with instead.
pub(crate) type Refusals = BTreeMap<&'static str, u16>;

pub(crate) struct Server {
    pub(crate) kubeconfig: PathBuf,
    asked: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(cluster: Value, refusals: Refusals) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("config");
        let address = listener.local_addr().unwrap();
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}, \
             {{name: away, context: {{cluster: away, user: u}}}}], clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}, \
             {{name: away, cluster: {{server: \"http://127.0.0.1:1\"}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&asked);
        let cluster = Arc::new((cluster, refusals));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (cluster, log) = (Arc::clone(&cluster), Arc::clone(&log));
                std::thread::spawn(move || serve(&stream, &cluster.0, &cluster.1, &log));
            }
        });
        Self { kubeconfig, asked, dir }
    }

    /// Request lines so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// The command, with this server's kubeconfig.
    pub(crate) fn inspect(&self, args: &[&str]) -> Output {
        inspect(&self.kubeconfig, args)
    }
}

/// The command, without anything of this machine but the kubeconfig.
pub(crate) fn inspect(kubeconfig: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-inspect-cgpu"))
        .args(args)
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", "/nowhere")
        .env("TERM", "xterm")
        .output()
        .unwrap()
}

fn serve(
    stream: &TcpStream,
    cluster: &Value,
    refusals: &Refusals,
    log: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    loop {
        let request = lines.next()?.ok()?;
        while !lines.next()?.ok()?.is_empty() {}
        log.lock().unwrap().push(request.clone());
        let target = request.split(' ').nth(1)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let refusal = refusals.get(path).copied();
        let (code, body) = match refusal {
            Some(code) => (code, status(code)),
            None => answer(cluster, path, query),
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = stream;
        stream.write_all((head + &body).as_bytes()).ok()?;
    }
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "told to refuse", "reason": "x", "code": code})
}

fn answer(cluster: &Value, path: &str, query: &str) -> (u16, Value) {
    let of = |what: &str| cluster[what].as_array().unwrap().clone();
    if let Some(name) = path.strip_prefix("/api/v1/nodes/") {
        let node = of("nodes").into_iter().find(|node| node["metadata"]["name"] == name);
        return node.map_or_else(|| (404, status(404)), |node| (200, node));
    }
    let parameter = |name: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(decoded)
    };
    let mut items = of(path.strip_prefix("/api/v1/").unwrap());
    if let Some(selector) = parameter("fieldSelector") {
        items.retain(|item| selector.split(',').all(|one| selected(item, one)));
    }
    // In pages, as the real one, of at most 3 here.
    let from: usize = parameter("continue").map_or(0, |token| token.parse().unwrap());
    assert!(parameter("limit").is_some(), "a whole list was asked for at once: {query}");
    let more = (items.len() > from + 3).then(|| (from + 3).to_string());
    let page: Vec<Value> = items.into_iter().skip(from).take(3).collect();
    (
        200,
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": more}, "items": page}),
    )
}

fn decoded(text: &str) -> String {
    text.replace("%3D", "=").replace("%21", "!").replace("%2C", ",")
}

fn selected(item: &Value, one: &str) -> bool {
    let (field, wanted, equal) = match one.split_once("!=") {
        Some((field, wanted)) => (field, wanted, false),
        None => one.split_once('=').map(|(field, wanted)| (field, wanted, true)).unwrap(),
    };
    let pointer = format!("/{}", field.replace('.', "/"));
    (item.pointer(&pointer).and_then(Value::as_str).unwrap_or("") == wanted) == equal
}
