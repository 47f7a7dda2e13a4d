//! What happens between kubelet and the driver, for the daemon's log and its metrics.

use std::fmt;

use mpsgate_kubelet::{Level, SocketEvent};
use mpsgate_model::ClaimName;
use mpsgate_model::printable::{chain, line, value};

use crate::DriverError;

/// One thing that happened to the driver. A failure that repeats itself is told once.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Something happened to a socket of ours.
    Socket(SocketEvent),
    /// A socket of ours cannot be made.
    Failed(DriverError),
    /// Kubelet knows the driver.
    Registered,
    /// Kubelet does not take the driver; it tries again by itself.
    NotRegistered {
        /// Kubelet's words.
        error: String,
    },
    /// Our sockets are there and kubelet does not ask who we are.
    NotAsked {
        /// For how long, in seconds.
        seconds: u64,
    },
    /// Kubelet reads how well the devices are.
    Watched {
        /// How many there are.
        devices: usize,
    },
    /// A claim is kept for its pod.
    Prepared {
        /// Which.
        claim: ClaimName,
        /// Devices that kubelet was told of.
        devices: usize,
    },
    /// A claim is not kept.
    Refused {
        /// Which, as kubelet wrote it.
        claim: ClaimName,
        /// Why.
        error: String,
    },
    /// A claim is given back.
    Unprepared {
        /// Which.
        claim: ClaimName,
    },
    /// A claim is not given back.
    NotUnprepared {
        /// Which, as kubelet wrote it.
        claim: ClaimName,
        /// Why.
        error: String,
    },
    /// Kubelet got no answer of the daemon for a claim.
    TimedOut {
        /// Which.
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

    /// What to do, where something is to be done.
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

/// A claim whose name nobody may have looked at.
fn shown(claim: &ClaimName) -> String {
    value(&claim.to_string()).into_owned()
}
