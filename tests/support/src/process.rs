//! A process that a test starts and looks at.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::programs;

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

    /// One whose first thread has ended, while another sleeps.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn leaderless() -> Self {
        Self::that_says(Command::new(programs::cuda_client()).args(["-", "leaderless"])).0
    }

    /// One that sleeps, and whose name is no text.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn renamed() -> Self {
        Self::that_says(Command::new(programs::cuda_client()).args(["-", "renamed"])).0
    }

    /// One that sleeps and has started another with this pid, which ends when this one does.
    ///
    /// # Errors
    /// As words for [`skip!`](crate::skip), where the kernel gives no process that pid.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn with_child(pid: u32) -> Result<Self, String> {
        let pid = pid.to_string();
        let program = programs::cuda_client();
        let (parent, said) = Self::that_says(Command::new(program).args(["-", "numbered", &pid]));
        if said == pid { Ok(parent) } else { Err(format!("no process gets the pid {pid}: {said}")) }
    }

    /// With its first line.
    fn that_says(command: &mut Command) -> (Self, String) {
        let mut spawned = Self(command.stdout(Stdio::piped()).spawn().expect("it starts"));
        let mut said = String::new();
        let stdout = spawned.0.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).expect("it says something");
        (spawned, said.trim().to_owned())
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
