//! The daemon, as the plugin sees it.

#![allow(unreachable_pub, clippy::unwrap_used, reason = "a part of a test")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use mpsgate_deviceplugin::{Allocation, Denied, Event, Host, Pending};

/// A daemon that grants up to an amount and records the events.
#[derive(Default)]
pub struct Daemon {
    pub events: Mutex<Vec<String>>,
    pub asked: Mutex<Vec<Allocation>>,
    pub hangs: AtomicBool,
}

impl Daemon {
    pub fn count(&self, sentence: &str) -> usize {
        self.events.lock().unwrap().iter().filter(|event| event.contains(sentence)).count()
    }
}

/// Larger requests are denied.
pub const MOST_MIB: u64 = 8 * 1024;

impl Host for Daemon {
    fn token(&self, allocation: Allocation) -> Pending<'_, Result<String, Denied>> {
        let number = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(allocation.clone());
            asked.len()
        };
        let hangs = self.hangs.load(Ordering::SeqCst);
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            match allocation.memory {
                Some(memory) if memory.0 <= MOST_MIB => Ok(format!("token-{number}")),
                _ => Err(Denied::new("no token: the keys cannot be read, run mpsgate doctor")),
            }
        })
    }

    fn tell(&self, event: Event) {
        self.events.lock().unwrap().push(format!("{:?}: {event}", event.level()));
    }
}
