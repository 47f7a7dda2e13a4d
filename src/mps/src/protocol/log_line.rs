//! Lines of the control daemon's log. In the foreground (`-f`) it writes no files: the lines of the
//! daemon *and* of its servers come on its stdout, and their component distinguishes them
//! (measured).
//!
//! **A line is a hint and proves nothing**: a process that can open the FIFO `log` can write
//! well-formed records with any component and any pid (measured), and the daemon repeats every
//! command of a front-end. Before anything follows from a line, the kernel or the control daemon
//! must confirm it.

/// One line: `[2026-11-21 12:58:44.442 Control 27835] text`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// `Control`, `Server`, `Legacy Server` or `Other`.
    pub component: &'a str,
    /// The process that wrote it.
    pub pid: i32,
    /// The text after the bracket.
    pub text: &'a str,
}

/// The event of a line. Server lines are from NVIDIA's documentation; those of a start and of its
/// region were seen on an H200, those of a fault on an H100 (both 580.159.04).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A server was forked for a uid.
    ServerStarting {
        /// The server's pid.
        server: i32,
        /// The uid that it serves.
        uid: u32,
    },
    /// A server connected to its control daemon.
    ServerReady {
        /// The server's pid.
        server: i32,
    },
    /// A server ended.
    ServerExited {
        /// The server's pid.
        server: i32,
        /// Its exit status.
        status: i32,
    },
    /// Some front-end ended a server without waiting for its clients.
    ServerForcedDown {
        /// The server's pid.
        server: i32,
    },
    /// A client was given its server.
    ClientServed {
        /// The client's pid.
        client: i32,
    },
    /// A fatal GPU fault, whatever its cause.
    ServerFault {
        /// The server's pid.
        server: i32,
    },
    /// A fatal GPU fault, and the client that caused it, as the server names it in its first line
    /// about a fault (seen with 580.159.04; no such line of older drivers is known).
    FaultCulprit {
        /// The server's pid.
        server: i32,
        /// The client's pid.
        client: i32,
    },
    /// A server made the memory that it shares with its clients: a region with a name in
    /// `/dev/shm`, or one without (NVIDIA/k8s-device-plugin issue 1118; bottlerocket-kernel-kit
    /// pull request 415).
    ServerRegion {
        /// The server's pid.
        server: i32,
        /// Whether it has a name.
        is_named: bool,
    },
    /// A server made its contexts, at the start or after a fault.
    ServerContext {
        /// The server's pid.
        server: i32,
    },
}

impl<'a> LogLine<'a> {
    /// `None` for lines of another form.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let (head, text) = line.strip_prefix('[')?.split_once("] ")?;
        let (head, pid) = head.rsplit_once(' ')?;
        let (_date, head) = head.split_once(' ')?;
        let (_time, component) = head.split_once(' ')?;
        Some(Self { component: component.trim(), pid: pid.parse().ok()?, text: text.trim_end() })
    }

    /// The event of this line, if it is one that matters here.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        if self.component == "Control" { control_event(self.text) } else { self.server_event() }
    }

    fn server_event(&self) -> Option<Event> {
        let server = self.pid;
        if let Some(client) = culprit(self.text) {
            return Some(Event::FaultCulprit { server, client });
        }
        if self.text.contains("fatal GPU error") || self.text.contains("fatal exception") {
            return Some(Event::ServerFault { server });
        }
        let region = self.text.strip_prefix("Created ").and_then(|text| text.split_once(' '));
        if let Some((kind @ ("named" | "anonymous"), rest)) = region
            && rest.starts_with("shared memory region ")
        {
            return Some(Event::ServerRegion { server, is_named: kind == "named" });
        }
        let made = self.text.starts_with("Creating server context on device ");
        made.then_some(Event::ServerContext { server })
    }
}

/// The pid in `Client {PID: 7, Context: 1} encountered a fatal GPU error.`, which may have `Context
/// ID` as all other lines do. No other line names the culprit: those of an "error trigging process"
/// come for each client of the server, too.
fn culprit(text: &str) -> Option<i32> {
    let client = text.strip_prefix("Client {PID: ")?;
    let client = client.strip_suffix("} encountered a fatal GPU error.")?;
    let (pid, context) = client.split_once(", Context")?;
    context.strip_prefix(" ID").unwrap_or(context).strip_prefix(": ")?.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn control_event(text: &str) -> Option<Event> {
    if let Some(rest) = text.strip_prefix("Starting new server ") {
        let (server, uid) = rest.split_once(" for user ")?;
        return Some(Event::ServerStarting {
            server: server.parse().ok()?,
            uid: uid.parse().ok()?,
        });
    }
    if let Some(rest) = text.strip_prefix("NEW SERVER ") {
        let server = rest.strip_suffix(": Ready")?.parse().ok()?;
        return Some(Event::ServerReady { server });
    }
    if let Some(rest) = text.strip_prefix("NEW CLIENT ") {
        let (client, rest) = rest.split_once(" from user ")?;
        let (uid, what) = rest.split_once(": ")?;
        let (client, _uid) = (client.parse().ok()?, uid.parse::<u32>().ok()?);
        // For one reason, a uid other than its server's.
        let waits = what.contains("push client to pending list");
        return (!waits).then_some(Event::ClientServed { client });
    }
    if let Some(rest) = text.strip_prefix("Cmd:shutdown_server ") {
        let server = rest.split_once(" -f")?.0.trim().parse().ok()?;
        return Some(Event::ServerForcedDown { server });
    }
    let (server, status) = text.strip_prefix("Server ")?.split_once(" exited with status ")?;
    Some(Event::ServerExited { server: server.parse().ok()?, status: status.parse().ok()? })
}

/// All events of a piece of log, oldest first.
pub fn parse_log(log: &str) -> impl Iterator<Item = Event> {
    log.lines().filter_map(|line| LogLine::parse(line)?.event())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_lines_of_a_real_daemon() {
        // Captured from 550.163.01 without a GPU.
        let log = "[2026-11-21 12:58:47.628 Control 27925] Starting new server 27925 for user 0\n\
                   [2026-11-21 12:58:47.628 Control 27882] Server 27925 exited with status 1\n\
                   [2026-11-21 12:58:47.628 Control 27882] Removed Shm file at \n\
                   CUDA MPS log recorder error\n";
        let events: Vec<_> = parse_log(log).collect();
        assert_eq!(
            events,
            [
                Event::ServerStarting { server: 27925, uid: 0 },
                Event::ServerExited { server: 27925, status: 1 }
            ]
        );
    }

    #[test]
    fn names_the_client_that_caused_a_fault_and_no_neighbour_of_it() {
        let culprit = |client| Some(Event::FaultCulprit { server: 5874, client });
        let fault = Some(Event::ServerFault { server: 5874 });
        for (text, expected) in [
            // All lines of 580.159.04 on an H100: 6425 caused the fault, 6088 did nothing.
            ("Client {PID: 6425, Context: 1} encountered a fatal GPU error.", culprit(6425)),
            ("Server is handling a fatal GPU error.", fault.clone()),
            ("Client {PID: 6088, Context ID: 1} on device 0 to be torn down", None),
            ("Client {PID: 6425, Context ID: 1} on device 0 to be torn down", None),
            ("All clients belonging to error trigging process 6088 will be torn down", None),
            (
                "Client {PID: 6088, Context ID: 1} on the error-trigging process 6088 to be torn down",
                None,
            ),
            ("All clients belonging to error trigging process 6425 will be torn down", None),
            (
                "Client {PID: 6425, Context ID: 1} on the error-trigging process 6425 to be torn down",
                None,
            ),
            ("The following devices will be reset:", None),
            ("0", None),
            ("The following client process have a sticky error set:", None),
            ("6088", None),
            ("6425", None),
            (
                "Client {PID: 6425, Context ID: 1} exiting. Number of active client contexts is 1.",
                None,
            ),
            ("Client process 6425 disconnected", None),
            // Lines that other drivers print, or may print.
            ("Client {PID: 77, Context ID: 1} encountered a fatal GPU error.", culprit(77)),
            ("Volta MPS: Server is handling a fatal GPU error.", fault.clone()),
            ("Server encountered a fatal exception. Shutting down", fault.clone()),
            ("Volta MPS: status of client {77, 1} is INACTIVE", None),
            ("Received new client request for {PID: 77, Context ID: 0}", None),
            // A fault is one even if its line names no process.
            ("Client {PID: x, Context: 1} encountered a fatal GPU error.", fault.clone()),
            ("Client {PID: 77} encountered a fatal GPU error.", fault.clone()),
            ("Client {PID: 77, Context: } encountered a fatal GPU error.", fault.clone()),
            ("x Client {PID: 77, Context: 1} encountered a fatal GPU error.", fault.clone()),
            ("Client {PID: 77, Context: 1} encountered a fatal GPU error. x", fault),
            ("Client {PID: 77, Context: 1} caused a memory fault", None),
        ] {
            let line = format!("[2026-11-27 03:37:49.792 Server  5874] {text}");
            let event = LogLine::parse(&line).and_then(|line| line.event());
            assert_eq!(event, expected, "{text}");
        }
    }

    #[test]
    fn tells_what_a_server_shares_with_its_clients() {
        for (component, text, is_named) in [
            ("Server", "Created named shared memory region /cuda.shm.0.52.1", Some(true)),
            ("Server", "Created anonymous shared memory region mps.shm.1000.4428", Some(false)),
            ("Server", "Created other shared memory region x", None),
            ("Server", "Created named pipe x", None),
            ("Control", "Created named shared memory region /cuda.shm.0.52.1", None),
        ] {
            let line = format!("[2026-01-01 00:00:00.000 {component} 8] {text}");
            let event = LogLine::parse(&line).and_then(|line| line.event());
            let expected = is_named.map(|is_named| Event::ServerRegion { server: 8, is_named });
            assert_eq!(event, expected, "{component} {text}");
        }
    }

    #[test]
    fn tells_a_server_that_was_forced_down_from_one_that_was_asked_to_end() {
        for (text, server) in [
            ("Cmd:shutdown_server 99 -f", Some(99)),
            ("Cmd:shutdown_server 99", None),
            ("Cmd:shutdown_server x -f", None),
        ] {
            let line = format!("[2026-01-01 00:00:00.000 Control 7] {text}");
            let event = LogLine::parse(&line).and_then(|line| line.event());
            assert_eq!(event, server.map(|server| Event::ServerForcedDown { server }), "{text}");
        }
    }

    #[test]
    fn tells_a_client_that_is_served_from_one_that_waits() {
        let line =
            "[2026-01-01 00:00:00.000 Control 7] NEW CLIENT 99 from user 0: Server already exists";
        let event = LogLine::parse(line).and_then(|line| line.event());
        assert_eq!(event, Some(Event::ClientServed { client: 99 }));
        let line = "[2026-01-01 00:00:00.000 Control   7] NEW CLIENT 99 from user 1000: Server is not ready, push client to pending list";
        assert_eq!(LogLine::parse(line).and_then(|line| line.event()), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_foreign_lines(text in "\\PC{0,120}") {
            let _ = parse_log(&text).count();
        }
    }
}
