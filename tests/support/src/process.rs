//! A process that a test starts and looks at.

use std::process::{Child, Command};

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Ended when it is dropped; until then a zombie where it has ended.
#[derive(Debug)]
pub struct Spawned(pub Child);

impl Default for Spawned {
    fn default() -> Self {
        Self::new()
    }
}

impl Spawned {
    /// One that sleeps.
    ///
    /// # Panics
    /// Where there is no program sleep.
    #[must_use]
    pub fn new() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().expect("sleep is there"))
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has not ended.
    ///
    /// # Panics
    /// Where the kernel does not say it.
    pub fn lives(&mut self) -> bool {
        self.0.try_wait().expect("it is a child of this process").is_none()
    }

    /// Ends it, and returns when it has ended; it stays a zombie, as under a busy engine.
    ///
    /// # Panics
    /// Where the kernel does not.
    pub fn kill(&mut self) {
        self.0.kill().expect("it is a child of this process");
        let pid = Pid::from_raw(self.pid().try_into().expect("it is a pid"));
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(pid), ended).expect("it is a child of this process");
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
