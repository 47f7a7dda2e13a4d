//! Doors for `tests/fuzz`: the parsers of this crate that read what others wrote, one by one.

/// Whether the first bytes of a program say that it is linked statically; `None` where it is no ELF
/// program of 64 bits.
#[must_use]
pub fn is_static(program: &[u8]) -> Option<bool> {
    crate::doctor::is_static(program)
}

/// The MiB of device 0's entry in `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`.
#[must_use]
pub fn own_limit(text: &str) -> Option<u64> {
    crate::probe::limit(text)
}

/// What `explain` says of a document on a node of which nothing is known; `None` where it is none.
#[must_use]
pub fn explained(
    bytes: mpsgate_policy::Bytes<'_>,
    config: &mpsgate_config::Config,
) -> Option<mpsgate_policy::Decision> {
    crate::explain::explained(bytes, Some(std::path::Path::new("/")), None, config)
        .ok()
        .map(|(decision, _)| decision)
}
