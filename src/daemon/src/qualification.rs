//! What the node has shown with its own driver and a CUDA client of its own: answers in
//! `qualification/` below the state directory, which outlive a reboot and count for the driver that
//! gave them.

use std::io::Read;
use std::path::Path;

use mpsgate_policy::SharedMemory;
use serde::Deserialize;

const FORMAT: u32 = 1;
/// Longer is no answer.
const LIMIT: u64 = 64 << 10;

/// Whether a client with a `/dev/shm` of its own attached.
#[derive(Deserialize)]
struct OwnShm {
    format: u32,
    /// The driver's version, as NVML names it.
    driver: String,
    attaches: bool,
}

/// What an answer says of this driver; `None` where it is none, or another driver's.
pub(crate) fn parse(answer: &[u8], driver: &str) -> Option<bool> {
    let answer: OwnShm = serde_json::from_slice(answer).ok()?;
    (answer.format == FORMAT && answer.driver == driver).then_some(answer.attaches)
}

/// How the servers share memory: what the node has shown counts before what was seen of its
/// servers.
pub(crate) fn shared_memory(state: &Path, driver: &str, seen: SharedMemory) -> SharedMemory {
    let mut answer = Vec::new();
    let file = std::fs::File::open(state.join("qualification/own-shm.json"));
    let read = file.and_then(|file| file.take(LIMIT).read_to_end(&mut answer));
    match read.ok().and_then(|_| parse(&answer, driver)) {
        Some(true) => SharedMemory::Anonymous,
        Some(false) => SharedMemory::Required,
        None => seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_the_driver_that_gave_it() {
        let answer = |text: &str| parse(text.as_bytes(), "550.163.01");
        let of = |driver: &str, attaches| {
            format!(r#"{{"format":1,"driver":"{driver}","attaches":{attaches},"date":"x"}}"#)
        };
        assert_eq!(answer(&of("550.163.01", false)), Some(false));
        assert_eq!(answer(&of("550.163.01", true)), Some(true));
        assert_eq!(answer(&of("535.261.03", false)), None);
        for none in ["", "[]", "{}", r#"{"format":2,"driver":"550.163.01","attaches":false}"#] {
            assert_eq!(answer(none), None, "{none}");
        }
    }

    #[test]
    fn without_an_answer_counts_what_was_seen() {
        let missing = Path::new("/nonexistent");
        let found = shared_memory(missing, "550.163.01", SharedMemory::Named);
        assert_eq!(found, SharedMemory::Named);
    }
}
