//! The events between kubelet and the driver, for the daemon's log and its metrics.

use std::fmt;

use mpsgate_kubelet::{Level, SocketEvent};
use mpsgate_model::ClaimName;
use mpsgate_model::printable::{chain, line, value};

use crate::DriverError;

/// An event of the driver. A repeated failure is reported once.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// An event of a socket.
    Socket(SocketEvent),
    /// A socket cannot be made.
    Failed(DriverError),
    /// Kubelet has registered the driver.
    Registered,
    /// Kubelet refuses the driver; it tries again by itself.
    NotRegistered {
        /// Kubelet's reason.
        error: String,
    },
    /// The sockets are there, but kubelet does not ask for the driver's name.
    NotAsked {
        /// For how long, in seconds.
        seconds: u64,
    },
    /// Kubelet reads the devices' health.
    Watched {
        /// How many there are.
        devices: usize,
    },
    /// A claim is prepared for its pod.
    Prepared {
        /// The claim.
        claim: ClaimName,
        /// Devices in the answer to kubelet.
        devices: usize,
    },
    /// A claim is not prepared.
    Refused {
        /// The claim, as kubelet wrote it.
        claim: ClaimName,
        /// The reason.
        error: String,
    },
    /// A claim is unprepared.
    Unprepared {
        /// The claim.
        claim: ClaimName,
    },
    /// A claim could not be unprepared.
    NotUnprepared {
        /// The claim, as kubelet wrote it.
        claim: ClaimName,
        /// The reason.
        error: String,
    },
    /// The daemon did not answer for a claim in time.
    TimedOut {
        /// The claim.
        claim: ClaimName,
        /// After how long, in seconds.
        seconds: u64,
    },
    /// One call named more claims than a node can have.
    TooMany {
        /// How many.
        claims: usize,
    },
}

impl Event {
    /// How much attention it wants.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::Socket(event) => event.level(),
            Self::Failed(DriverError::Instance { .. }) => Level::Error,
            Self::Failed(_)
            | Self::NotRegistered { .. }
            | Self::NotAsked { .. }
            | Self::Refused { .. }
            | Self::NotUnprepared { .. }
            | Self::TimedOut { .. }
            | Self::TooMany { .. } => Level::Warn,
            Self::Watched { .. } => Level::Debug,
            Self::Registered | Self::Prepared { .. } | Self::Unprepared { .. } => Level::Info,
        }
    }

    /// The remedy, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Failed(error) => Some(error.hint()),
            Self::NotRegistered { .. } | Self::NotAsked { .. } => Some(
                "kubelet 1.34 or newer takes the driver, unless its feature gate \
                 DynamicResourceAllocation is off: journalctl -u kubelet -n 50"
                    .to_owned(),
            ),
            Self::TimedOut { .. } => Some("mpsgate status".to_owned()),
            _ => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(event) => write!(f, "{event}"),
            Self::Failed(error) => f.write_str(&chain(error)),
            Self::Registered => f.write_str("registered with kubelet as a DRA driver"),
            Self::NotRegistered { error } => {
                write!(f, "kubelet does not register the DRA driver: {}", line(error))
            }
            Self::NotAsked { seconds } => {
                write!(f, "kubelet has not asked for the DRA driver for {seconds} s")
            }
            Self::Watched { devices } => {
                write!(f, "kubelet reads the health of {devices} devices")
            }
            Self::Prepared { claim, devices } => {
                write!(f, "claim {} prepared: {devices} devices", shown(claim))
            }
            Self::Refused { claim, error } => {
                write!(f, "claim {} refused: {}", shown(claim), line(error))
            }
            Self::Unprepared { claim } => write!(f, "claim {} unprepared", shown(claim)),
            Self::NotUnprepared { claim, error } => {
                write!(f, "claim {} not unprepared: {}", shown(claim), line(error))
            }
            Self::TimedOut { claim, seconds } => {
                write!(f, "no answer for claim {} for {seconds} s", shown(claim))
            }
            Self::TooMany { claims } => write!(f, "kubelet names {claims} claims at once"),
        }
    }
}

/// A claim's name, which may be unchecked text.
fn shown(claim: &ClaimName) -> String {
    value(&claim.to_string()).into_owned()
}
