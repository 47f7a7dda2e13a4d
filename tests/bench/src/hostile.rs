//! Hostile documents: as large as mpsgate reads any, of one thing that matters to it. Each is
//! decided within a bound of time and memory, or whoever may start containers stops the node.
//!
//! Without mpsgated, which is the worst case: every card counts as managed, and all that is found
//! is taken away.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use mpsgate_config::paths;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::wait::waitpid;

use crate::{Failure, Workplace, node};

/// Longest time in which one is decided, its reading and writing included.
pub(crate) const TIME: Duration = Duration::from_secs(2);
/// Most memory of the process that decides, in KiB.
pub(crate) const MEMORY_KIB: i64 = 256 * 1024;

/// One document, and what it cost.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
    /// The most of any document so far: the kernel keeps the largest of all children.
    pub(crate) peak_kib: i64,
}

impl Row {
    pub(crate) fn is_within(&self) -> bool {
        self.time <= TIME && self.peak_kib <= MEMORY_KIB
    }
}

type Entry = fn(usize) -> String;

/// What stands before the entries, between which commas come, and after them.
const DOCUMENTS: [(&str, usize, [&str; 2], Entry); 6] = [
    ("600,000 variables of MPS", 600_000, [r#""process":{"env":["#, "]}"], |i| {
        format!(r#""CUDA_MPS_{i}=1""#)
    }),
    ("600,000 times one variable", 600_000, [r#""process":{"env":["#, "]}"], |_| {
        r#""DOCKER_RESOURCE_GPU=0""#.to_owned()
    }),
    ("300,000 annotations", 300_000, [r#""annotations":{"#, "}"], |i| {
        format!(r#""cdi.k8s.io/{i}":"nvidia.com/gpu=0""#)
    }),
    ("180,000 rules", 180_000, [r#""linux":{"resources":{"devices":["#, "]}}"], |i| {
        format!(r#"{{"allow":false,"type":"c","major":195,"minor":{i},"access":"rw"}}"#)
    }),
    ("160,000 devices", 160_000, [r#""linux":{"devices":["#, "]}"], |i| {
        format!(r#"{{"path":"/dev/nvidia{i}","type":"c","major":195,"minor":{}}}"#, i + 1000)
    }),
    ("120,000 mounts", 120_000, [r#""mounts":["#, "]"], |i| {
        format!(
            r#"{{"destination":"/var/run//nvidia-container-devices/{i}","source":"/dev/null","options":["bind"]}}"#
        )
    }),
];

fn document(count: usize, [before, after]: [&str; 2], entry: Entry) -> String {
    let mut text = format!(r#"{{"ociVersion":"1.0.2",{before}"#);
    for i in 0..count {
        if i > 0 {
            text.push(',');
        }
        text.push_str(&entry(i));
    }
    // A signal in any case, so that the whole table is gone through.
    let signal = if before.starts_with(r#""process""#) {
        ""
    } else {
        r#","process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}"#
    };
    let _ = write!(text, "{after}{signal}}}");
    text
}

/// Measures all of them. Before the daemon is started: what it has written would be read.
pub(crate) fn measure(at: &Workplace) -> Result<Vec<Row>, Failure> {
    node::prepare(at, 1)?;
    let settings = std::fs::read_to_string(paths::CONFIG_FILE)?;
    std::fs::write(paths::CONFIG_FILE, format!("{settings}\n[policy]\nunallocated = \"strip\"\n"))?;
    let directory = at.scratch.join("hostile");
    std::fs::create_dir_all(&directory)?;
    let mut rows = Vec::new();
    for (name, count, around, entry) in DOCUMENTS {
        eprintln!("measuring: {name}");
        let text = document(count, around, entry);
        std::fs::write(directory.join("config.json"), &text)?;
        let bytes = text.len();
        drop(text);
        let bundle = directory.to_string_lossy();
        let create = at.shim(["create", "--bundle", &bundle, "hostile"]);
        let start = Instant::now();
        // Whether it is started or refused is not what is measured.
        waitpid(create.spawn()?, None)?;
        let time = start.elapsed();
        let peak_kib = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
        rows.push(Row { name, bytes, time, peak_kib });
    }
    std::fs::remove_dir_all(&directory)?;
    std::fs::write(paths::CONFIG_FILE, settings)?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_is_json_that_mpsgate_still_reads() {
        for (name, count, around, entry) in DOCUMENTS {
            assert!(document(count, around, entry).len() <= 16 << 20, "{name}");
            let text = document(3, around, entry);
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{name}: {text}");
        }
    }
}
