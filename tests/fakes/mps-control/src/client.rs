//! A CUDA client, unverified: attaches through `control` alone, waits while another uid is served,
//! takes the lower of the server's limit and its own, ends when it is terminated or when its server
//! or control daemon ends.
//!
//! Prints one line for each event and holds on until it is told otherwise. Exit status: 2 allocation
//! refused, 3 no MPS, 4 server lost, 10 terminated.

use crate::{connect_to, pipe_dir, receive_text, send_text, value};

pub(crate) fn run(arguments: &[&str]) -> u8 {
    let alloc: u64 = match arguments {
        ["--alloc", mib] => mib.parse().unwrap_or(0),
        _ => 0,
    };
    let Ok(daemon) = connect_to(&pipe_dir().join("control")) else {
        println!("CUDA_ERROR_MPS_CONNECTION_FAILED");
        return 3;
    };
    if send_text(&daemon, "CLIENT").is_err() {
        return 3;
    }
    let reply = loop {
        match receive_text(&daemon).as_deref() {
            // Hangs, as real clients do (NVIDIA/k8s-device-plugin issue 679).
            Some("PENDING") => println!("pending"),
            Some(reply) if reply.starts_with("SERVER ") => break reply.to_owned(),
            Some(error) => {
                println!("{error}");
                return 3;
            }
            None => return 3,
        }
    };
    let mut words = reply.split(' ').skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
    let (server, server_limit) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
    let limit = effective_limit(server_limit);
    println!("attached server={server} limit_mib={}", limit.map_or(0, |bytes| bytes >> 20));
    if limit.is_some_and(|limit| alloc << 20 > limit) {
        println!("CUDA_ERROR_OUT_OF_MEMORY");
        return 2;
    }
    // The daemon hangs up with the server's end, or with its own.
    let told = receive_text(&daemon);
    if told.as_deref() == Some("TERMINATE") {
        println!("CUDA_ERROR_MPS_CLIENT_TERMINATED");
        return 10;
    }
    println!("CUDA_ERROR_MPS_RPC_FAILURE");
    4
}

/// Connections that say nothing, for as long as it lives.
pub(crate) fn hold(count: usize) -> u8 {
    let held: Vec<_> =
        (0..count).map_while(|_| connect_to(&pipe_dir().join("control")).ok()).collect();
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
