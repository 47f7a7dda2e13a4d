//! What the gate may do once it reads bytes of containers.

use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::GateError;

/// What remains: to name a client's uid and gid to the control daemon (unix(7), `SCM_CREDENTIALS`).
const KEPT: [Capability; 2] = [Capability::CAP_SETGID, Capability::CAP_SETUID];

/// Gives up all capabilities but two, and what could bring them back.
///
/// # Errors
/// [`GateError::Incapable`], [`GateError::Capabilities`], [`GateError::System`]: then nothing may
/// be read.
pub fn confine() -> Result<(), GateError> {
    let held = caps::read(None, CapSet::Permitted)?;
    if let Some(missing) = KEPT.into_iter().find(|one| !held.contains(one)) {
        return Err(GateError::Incapable(missing));
    }
    let kept = CapsHashSet::from(KEPT);
    // First what needs CAP_SETPCAP, which goes with the rest.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for capability in caps::read(None, CapSet::Bounding)? {
            if !kept.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability)?;
            }
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    rustix::thread::set_no_new_privs(true).map_err(GateError::system("renounce new privileges"))
}

/// As many descriptors as it may have: each client that waits takes one.
///
/// # Errors
/// [`GateError::System`].
pub fn raise_nofile() -> Result<(), GateError> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .map_err(GateError::system("raise the limit of descriptors"))
}
