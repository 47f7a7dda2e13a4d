//! A CUDA client: attaches through `control` alone with the real one's words. What it does then is
//! unverified: it waits while another uid is served, takes the lower of the server's limit and its
//! own, ends when it is terminated or when its server ends.
//!
//! Prints one line for each event and holds on until it is told otherwise. Exit status: 2
//! allocation refused, 3 no MPS, 4 server lost, 10 terminated.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, poll};

use crate::server::TERMINATED;
use crate::wire::{self, word};
use crate::{pipe_dir, value};

pub(crate) fn run(arguments: &[&str]) -> u8 {
    let alloc: u64 = match arguments {
        ["--alloc", mib] => mib.parse().unwrap_or(0),
        _ => 0,
    };
    let Some(daemon) = wire::introduced(&pipe_dir().join("control"), word::CLIENT) else {
        println!("CUDA_ERROR_MPS_CONNECTION_FAILED");
        return 3;
    };
    // Hangs, as real clients do (NVIDIA/k8s-device-plugin issue 679).
    if poll(&mut [PollFd::new(daemon.as_fd(), PollFlags::POLLIN)], PATIENCE) == Ok(0) {
        println!("pending");
    }
    let handed = wire::receive(daemon.as_fd()).and_then(|mut message| message.descriptors.pop());
    let Some(server) = handed else {
        println!("CUDA_ERROR_MPS_CONNECTION_FAILED");
        return 3;
    };
    let Some((told, status)) = attach(&server, &daemon) else {
        println!("CUDA_ERROR_MPS_CONNECTION_FAILED");
        return 3;
    };
    // As libcuda: nothing more is said to the daemon.
    drop(daemon);
    if status != 0 {
        println!("CUDA_ERROR_MPS_SERVER_NOT_READY {status}");
        return 3;
    }
    let [_size, pid, _number, limit] = told;
    let limit = effective_limit(limit);
    println!("attached server={pid} limit_mib={}", limit.map_or(0, |bytes| bytes >> 20));
    if limit.is_some_and(|limit| alloc << 20 > limit) {
        println!("CUDA_ERROR_OUT_OF_MEMORY");
        return 2;
    }
    // The server hangs up with its own end, or with its control daemon's.
    if wire::receive(server.as_fd()).and_then(|message| message.int()) == Some(TERMINATED) {
        println!("CUDA_ERROR_MPS_CLIENT_TERMINATED");
        return 10;
    }
    println!("CUDA_ERROR_MPS_RPC_FAILURE");
    4
}

/// How long a server takes that is there.
const PATIENCE: u16 = 200;

/// The server's descriptors, our words, its status, which goes to the daemon: what the first
/// descriptor holds, and the status.
fn attach(server: &OwnedFd, daemon: &OwnedFd) -> Option<([u64; 4], i32)> {
    let mut descriptors = Vec::new();
    for _ in 0..4 {
        descriptors.extend(wire::receive(server.as_fd())?.descriptors);
    }
    wire::receive(server.as_fd())?;
    wire::say_int(server.as_fd(), std::process::id().cast_signed()).ok()?;
    wire::say_int(server.as_fd(), 0).ok()?;
    wire::say_int(server.as_fd(), 255).ok()?;
    let status = wire::receive(server.as_fd())?.int()?;
    wire::say_int(daemon.as_fd(), status).ok()?;
    let mut told = [0; 32];
    let _ = File::from(descriptors.into_iter().next()?).read(&mut told);
    let mut words = told.chunks_exact(8).map(|word| word.try_into().map(u64::from_ne_bytes));
    let mut next = || words.next()?.ok();
    Some(([next()?, next()?, next()?, next()?], status))
}

/// Connections that say nothing, for as long as it lives.
pub(crate) fn hold(count: usize) -> u8 {
    let held: Vec<_> =
        (0..count).map_while(|_| wire::connect_to(&pipe_dir().join("control")).ok()).collect();
    println!("held {}", held.len());
    loop {
        std::thread::park();
    }
}

/// The client's own value can only lower the server's.
fn effective_limit(server: u64) -> Option<u64> {
    let own = std::env::var("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").ok();
    let own = own.as_deref().and_then(|text| value::limit_bytes(text.strip_prefix("0=")?));
    [own, (server > 0).then_some(server)].into_iter().flatten().min()
}
