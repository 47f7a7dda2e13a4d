//! What kube-scheduler waits for: mpsgate-scheduler as it is shipped, asked over HTTP on loopback,
//! in turn with a handler that answers as many bytes and decides nothing.

use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use mpsgate_cluster::{Node, Pod};
use serde_json::Value;

use crate::Failure;
use crate::api::{self, World};
use crate::hostile;
use crate::objects;
use crate::random::Random;
use crate::scale::{BUDGET, KINDS, percentile};

/// kube-scheduler asks for no more than some 10 % of 5,000 nodes: the budget is for these.
const USUAL: usize = 500;
/// With `percentageOfNodesToScore: 100` it asks for all.
const CANDIDATES: [usize; 2] = [USUAL, 5_000];
const WARM_UP: usize = 10;
/// Until all is listed, and the lease is had.
const READY: Duration = Duration::from_secs(300);

/// mpsgate-scheduler, ended with this.
struct Scheduler {
    process: Child,
    address: SocketAddr,
    _kubeconfig: tempfile::NamedTempFile,
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Scheduler {
    fn start(program: &Path, api: SocketAddr) -> Result<Self, Failure> {
        let mut kubeconfig = tempfile::NamedTempFile::new()?;
        write!(
            kubeconfig,
            "{{apiVersion: v1, kind: Config, current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: \"http://{api}\"}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
        )?;
        // Free a moment ago: whoever takes it first is unlikely to be another.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = Command::new(program)
            .args(["--listen", &address.to_string(), "--log-level", "error", "--kubeconfig"])
            .arg(kubeconfig.path())
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut started = Self { process, address, _kubeconfig: kubeconfig };
        let begin = Instant::now();
        while !started.leads() {
            if begin.elapsed() > READY || started.process.try_wait()?.is_some() {
                return Err("mpsgate-scheduler does not come to lead".into());
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(started)
    }

    fn leads(&self) -> bool {
        let Ok(mut asker) = Asker::connect(self.address) else { return false };
        asker.ask("GET", "/leaderz", "").is_ok_and(|(code, _)| code == 200)
    }
}

/// One connection that is kept, as Go's client keeps it.
pub(crate) struct Asker {
    to: TcpStream,
    from: BufReader<TcpStream>,
}

impl Asker {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let to = TcpStream::connect(address)?;
        to.set_nodelay(true)?;
        Ok(Self { from: BufReader::new(to.try_clone()?), to })
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<(u16, Vec<u8>)> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\n\
             Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n",
            body.len()
        );
        self.to.write_all((head + body).as_bytes())?;
        let (first, body) = api::read(&mut self.from)?;
        let code = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((code.ok_or(io::ErrorKind::InvalidData)?, body))
    }

    /// The answer and how long it took.
    pub(crate) fn timed(&mut self, path: &str, body: &str) -> Result<(Duration, Vec<u8>), Failure> {
        let begin = Instant::now();
        let (code, answer) = self.ask("POST", path, body)?;
        let took = begin.elapsed();
        if code != 200 {
            return Err(format!("{path}: {code} {}", String::from_utf8_lossy(&answer)).into());
        }
        Ok((took, answer))
    }
}

/// Reads a request, and answers as many bytes as its path says.
fn floor() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || -> io::Result<()> {
        for stream in listener.incoming() {
            let mut to = stream?;
            to.set_nodelay(true)?;
            let mut from = BufReader::new(to.try_clone()?);
            while let Ok((first, _)) = api::read(&mut from) {
                let length = first.split(' ').nth(1).and_then(|path| path.get(1..)?.parse().ok());
                let length: usize = length.ok_or(io::ErrorKind::InvalidData)?;
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
                );
                let mut answer = head.into_bytes();
                answer.resize(answer.len() + length, b' ');
                to.write_all(&answer)?;
            }
        }
        Ok(())
    });
    Ok(address)
}

/// Filter and prioritize of one pod, as kube-scheduler asks them: the second about those that the
/// first left.
pub(crate) struct Cycle {
    pub(crate) took: Duration,
    fitting: usize,
    /// Bodies and the lengths of their answers.
    said: [(String, usize); 2],
}

pub(crate) fn cycle(asker: &mut Asker, pod: &str, names: &[&str]) -> Result<Cycle, Failure> {
    let filter = objects::question(pod, names);
    let (first, answer) = asker.timed("/mpsgate/filter", &filter)?;
    let parsed: Value = serde_json::from_slice(&answer)?;
    if let Some(error) = parsed["Error"].as_str().filter(|error| !error.is_empty()) {
        return Err(error.into());
    }
    let left = parsed["NodeNames"].as_array().ok_or("an answer without NodeNames")?;
    let left: Vec<&str> = left.iter().filter_map(Value::as_str).collect();
    let (mut took, mut second) = (first, (String::new(), 0));
    // Without any kube-scheduler asks nothing more.
    if !left.is_empty() {
        let prioritize = objects::question(pod, &left);
        let (more, scores) = asker.timed("/mpsgate/prioritize", &prioritize)?;
        took += more;
        second = (prioritize, scores.len());
    }
    Ok(Cycle { took, fitting: left.len(), said: [(filter, answer.len()), second] })
}

/// Prints the table; whether the budget is met.
pub(crate) fn table(program: &Path, nodes: Vec<Node>, pods: Vec<Pod>) -> Result<bool, Failure> {
    let all: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    eprintln!("starting {}", program.display());
    let api = api::start(World { nodes, pods, lease: Mutex::default() })?;
    let scheduler = Scheduler::start(program, api)?;
    let (mut asker, mut floor) = (Asker::connect(scheduler.address)?, Asker::connect(floor()?)?);
    println!(
        "\nover HTTP, names of nodes (nodeCacheCapable: true), one connection; µs; (ratio to the floor)\n"
    );
    println!(
        "| filter + prioritize | candidates | of these fit | body, answer KiB | p50 | p99 | floor, p50 | floor, p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut random = Random::new(888);
    let mut met = true;
    for (what, make) in KINDS {
        for count in CANDIDATES {
            eprintln!("measuring over HTTP: {what}, {count}");
            let rounds = if count > 1000 { 300 } else { 1000 };
            let (mut times, mut floors, mut fit, mut bytes) = (Vec::new(), Vec::new(), 0, (0, 0));
            for round in 0..WARM_UP + rounds {
                let from = random.below(names.len() - count + 1);
                let asked = objects::pod(&make(&mut random), 1).to_string();
                let done = cycle(&mut asker, &asked, &names[from..from + count])?;
                let mut least = Duration::ZERO;
                for (body, length) in done.said.iter().filter(|(body, _)| !body.is_empty()) {
                    least += floor.timed(&format!("/{length}"), body)?.0;
                }
                if round >= WARM_UP {
                    times.push(done.took);
                    floors.push(least);
                    fit += done.fitting;
                    bytes.0 += done.said.iter().map(|(body, _)| body.len()).sum::<usize>();
                    bytes.1 += done.said.iter().map(|(_, length)| length).sum::<usize>();
                }
            }
            times.sort_unstable();
            floors.sort_unstable();
            let us = |time: Duration| time.as_secs_f64() * 1e6;
            let cell = |percent| {
                let (ours, least) =
                    (us(percentile(&times, percent)), us(percentile(&floors, percent)));
                (format!("{ours:.0} ({:.1})", ours / least), format!("{least:.0}"))
            };
            let (half, most) = (cell(50), cell(99));
            println!(
                "| {what} | {count} | {} % | {}, {} | {} | {} | {} | {} |",
                fit * 100 / (rounds * count),
                bytes.0 / rounds / 1024,
                bytes.1 / rounds / 1024,
                half.0,
                most.0,
                half.1,
                most.1
            );
            met &= count > USUAL || percentile(&times, 99) <= BUDGET;
        }
    }
    let verdict = if met { "met" } else { "MISSED" };
    let most = BUDGET.as_millis();
    println!("\nbudget over HTTP, p99 at most {most} ms with {USUAL} candidates: {verdict}");
    Ok(hostile::reviews(&names)? & hostile::filters(&mut asker, &names)? & met)
}
