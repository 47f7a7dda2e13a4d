//! An API server of nodes, pods and one Lease that never change, for mpsgate-scheduler to read and
//! to lead in.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use mpsgate_cluster::{Node, Pod};
use serde_json::{Value, json};

use crate::objects;

/// What it has.
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) lease: Mutex<Option<Value>>,
}

/// Serves on loopback as long as the process lives.
pub(crate) fn start(world: World) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let world = Arc::new(world);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let world = Arc::clone(&world);
            // Whoever goes away ends its thread.
            thread::spawn(move || drop(serve(stream, &world)));
        }
    });
    Ok(address)
}

/// One request: its first line and its body.
pub(crate) fn read(from: &mut BufReader<TcpStream>) -> io::Result<(String, Vec<u8>)> {
    let (mut first, mut length) = (String::new(), 0);
    if from.read_line(&mut first)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok((first, body))
}

fn serve(stream: TcpStream, world: &World) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut to = stream.try_clone()?;
    let mut from = BufReader::new(stream);
    loop {
        let (first, body) = read(&mut from)?;
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let asked = |key: &str| {
            let values = query.split('&').filter_map(|one| one.split_once('='));
            values.into_iter().find_map(|(name, value)| (name == key).then(|| value.to_owned()))
        };
        if let (Some(_), Some(seconds)) = (asked("watch"), asked("timeoutSeconds")) {
            to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")?;
            thread::sleep(Duration::from_secs(seconds.parse().map_err(io::Error::other)?));
            to.write_all(b"0\r\n\r\n")?;
            continue;
        }
        let number = |key| asked(key).and_then(|text| text.parse::<usize>().ok());
        let page = (number("continue").unwrap_or_default(), number("limit").unwrap_or(usize::MAX));
        let (code, answer) = match (method, path) {
            ("GET", "/api/v1/nodes") => (200, list(&world.nodes, page, objects::node)),
            ("GET", "/api/v1/pods") => (200, list(&world.pods, page, objects::pod)),
            (_, path) if path.contains("/leases") => lease(world, method, &body),
            _ => (
                404,
                json!({"kind": "Status", "status": "Failure", "message": path, "reason": "NotFound", "code": 404}),
            ),
        };
        let answer = answer.to_string();
        write!(
            to,
            "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        )?;
    }
}

fn list<T>(all: &[T], (from, limit): (usize, usize), of: fn(&T, usize) -> Value) -> Value {
    let to = from.saturating_add(limit).min(all.len());
    let items: Vec<Value> = (from..to).map(|n| of(&all[n], n + 1)).collect();
    let next = if to < all.len() { to.to_string() } else { String::new() };
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": all.len().to_string(), "continue": next}, "items": items})
}

/// Whoever writes last has it.
fn lease(world: &World, method: &str, body: &[u8]) -> (u16, Value) {
    let mut lease = world.lease.lock().unwrap_or_else(PoisonError::into_inner);
    if method != "GET" {
        let mut written: Value = serde_json::from_slice(body).unwrap_or_default();
        written["metadata"]["resourceVersion"] = "1".into();
        *lease = Some(written);
    }
    match &*lease {
        Some(lease) => (200, lease.clone()),
        None => (
            404,
            json!({"kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404}),
        ),
    }
}
