//! How much of a card is offered to containers. Pure arithmetic.

use crate::Card;

const MIB_PER_GIB: u64 = 1024;

/// The MiB that a card of `total_mib` offers when `reserve_mib` stay with driver and MPS server.
///
/// `floor((total - reserve) / 1024) * 1024`: whole GiB, because the GiB is the unit in which
/// Kubernetes counts `aliyun.com/gpu-mem`. A reserve as large as the card leaves 0.
///
/// | card | NVML total | offered with [`Card::DEFAULT_RESERVE_MIB`] |
/// |---|---|---|
/// | 16 GiB without ECC carve-out | 16384 MiB | 15 GiB (15360 MiB) |
/// | Tesla T4, ECC on | 15360 MiB | 14 GiB (14336 MiB) |
/// | H200 | 143771 MiB | 139 GiB (142336 MiB) |
#[must_use]
pub fn advertised_mib(total_mib: u64, reserve_mib: u64) -> u64 {
    total_mib.saturating_sub(reserve_mib) / MIB_PER_GIB * MIB_PER_GIB
}

impl Card {
    /// MiB that are reserved on every card unless configured otherwise.
    ///
    /// NVML's total includes what driver and firmware keep for themselves (`reserved` of
    /// `nvmlMemory_v2_t`, some hundred MiB), and the MPS server has a context of its own (418 MiB
    /// were seen, NVIDIA/nvidia-docker issue 868). Neither counts against a client's limit. One GiB
    /// covers both, so that the last container on a full card still gets its grant. The context of
    /// a client is inside that client's limit and needs no reserve.
    pub const DEFAULT_RESERVE_MIB: u64 = 1024;

    /// What this card offers, see [`advertised_mib`].
    #[must_use]
    pub fn advertised_mib(&self, reserve_mib: u64) -> u64 {
        advertised_mib(self.memory_total_mib, reserve_mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: u64 = Card::DEFAULT_RESERVE_MIB;

    #[test]
    fn offers_whole_gib_after_the_reserve() {
        for (total_mib, offered_gib) in
            [(16384, 15), (15360, 14), (143_771, 139), (81920, 79), (24564, 22), (2048, 1)]
        {
            assert_eq!(advertised_mib(total_mib, RESERVE), offered_gib * 1024, "{total_mib} MiB");
        }
    }

    #[test]
    fn offers_whole_gib_without_a_reserve() {
        assert_eq!(advertised_mib(16384, 0), 16384);
        assert_eq!(advertised_mib(16383, 0), 15360);
    }

    #[test]
    fn offers_nothing_when_the_reserve_takes_the_card() {
        assert_eq!(advertised_mib(1024, 1024), 0);
        assert_eq!(advertised_mib(1024, 1025), 0);
        assert_eq!(advertised_mib(0, 0), 0);
        assert_eq!(advertised_mib(16384, u64::MAX), 0);
    }

    #[test]
    fn always_keeps_at_least_the_reserve_back() {
        for total_mib in 0..20_000 {
            let offered = advertised_mib(total_mib, RESERVE);
            assert_eq!(offered % 1024, 0);
            assert!(offered == 0 || total_mib - offered >= RESERVE, "{total_mib} MiB");
        }
    }
}
