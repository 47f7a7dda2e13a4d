//! Reservations as fast as they go: each from a process of its own that ends at once, as a shim
//! whose `create` fails does, so that its memory comes back by itself.
//!
//! JUSTIFICATION for unsafe code: a process a reservation, without the cost of an exec, is a fork.
#![allow(unsafe_code, reason = "see above")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mpsgate_api::{Call, Client, Engine, Reply, Reserve};
use mpsgate_config::paths;
use mpsgate_model::{ContainerId, GrantKey, Instance, Mib, Priority, Request};
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::Failure;

/// How many ask at the same time.
pub(crate) const CLIENTS: u32 = 8;
/// How long.
const FOR: Duration = Duration::from_secs(5);
/// What each asks for.
const MEMORY: Mib = Mib(64);

/// The first argument of a client.
pub(crate) const CLIENT: &str = "--reserve-as";

const GRANTED: i32 = 0;
const REFUSED: i32 = 1;
const FAILED: i32 = 2;

/// What came of the calls.
#[derive(Default, Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) granted: u32,
    pub(crate) refused: u32,
    pub(crate) failed: u32,
}

impl Outcome {
    /// Reservations in a second.
    pub(crate) fn rate(self) -> f64 {
        f64::from(self.granted) / FOR.as_secs_f64()
    }
}

/// Starts the clients and adds up what they say.
pub(crate) fn measure() -> Result<Outcome, Failure> {
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(CLIENT).arg(number.to_string()).stdout(Stdio::piped());
        clients.push(command.spawn()?);
    }
    let mut sum = Outcome::default();
    for client in clients {
        let output = client.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        let numbers: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
        let [granted, refused, failed] = numbers?[..] else {
            return Err(format!("a client ended with {}", output.status).into());
        };
        sum.granted += granted;
        sum.refused += refused;
        sum.failed += failed;
    }
    Ok(sum)
}

/// One client: prints how many calls were granted, refused, and failed.
pub(crate) fn client(number: &str) -> Result<(), Failure> {
    let start = Instant::now();
    let mut outcome = Outcome::default();
    for turn in 0_u64.. {
        if start.elapsed() >= FOR {
            break;
        }
        // SAFETY: this program has one thread here, so the child may do what the parent may.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => match waitpid(child, None)? {
                WaitStatus::Exited(_, GRANTED) => outcome.granted += 1,
                WaitStatus::Exited(_, REFUSED) => outcome.refused += 1,
                _ => outcome.failed += 1,
            },
            ForkResult::Child => {
                let status = match reserve(&format!("rate-{number}-{turn}")) {
                    Ok(true) => GRANTED,
                    Ok(false) => REFUSED,
                    Err(error) => {
                        eprintln!("{error}");
                        FAILED
                    }
                };
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(status) }
            }
        }
    }
    println!("{} {} {}", outcome.granted, outcome.refused, outcome.failed);
    Ok(())
}

fn reserve(id: &str) -> Result<bool, Failure> {
    let mut instance = [0; 16];
    instance[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    let call = Call::Reserve(Reserve {
        key: GrantKey {
            runtime_root: "/run/bench".to_owned(),
            container_id: ContainerId::parse(id)?,
            instance: Instance::from_bytes(instance),
        },
        request: Request {
            memory: Some(MEMORY),
            cards: std::num::NonZeroU32::MIN,
            gpu: None,
            compute: None,
            priority: Priority::default(),
            uid: None,
            token: None,
        },
        uid: 0,
        engine: Engine::Local,
        pod: None,
        for_parent: false,
        user: None,
    });
    let reply: Reply = Client::connect(Path::new(paths::SOCKET))?.call(call, None, FOR)?;
    match reply {
        Reply::Reserved { .. } => Ok(true),
        Reply::Refused(_) => Ok(false),
        reply => Err(format!("not an answer to reserve: {reply:?}").into()),
    }
}
