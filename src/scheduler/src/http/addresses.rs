//! How many connections an address may have.

use std::net::{IpAddr, Ipv6Addr};

/// Connections of one address at a time.
const EACH: usize = 32;
/// Of this machine: whoever is on it and binds many pods at once is kube-scheduler, or a proxy
/// before all of them.
const EACH_LOCAL: usize = 128;

/// How many connections an address may have at a time.
pub(super) fn each(of: IpAddr) -> usize {
    if of.is_loopback() { EACH_LOCAL } else { EACH }
}

/// Of IPv6 a host has its whole /64.
pub(super) fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) if !six.is_loopback() => {
            Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;

    #[test]
    fn an_address_is_one_however_it_is_written_and_a_host_has_a_whole_64() {
        for (address, same, most) in [
            ("10.0.0.1", "10.0.0.1", EACH),
            ("::ffff:10.0.0.1", "10.0.0.1", EACH),
            ("fd00::1", "fd00::", EACH),
            ("fd00::ffff", "fd00::", EACH),
            ("fd00:0:0:1::1", "fd00:0:0:1::", EACH),
            ("127.0.0.1", "127.0.0.1", EACH_LOCAL),
            ("::1", "::1", EACH_LOCAL),
        ] {
            let found = whose(address.parse().unwrap());
            assert_eq!(found, same.parse::<IpAddr>().unwrap(), "{address}");
            assert_eq!(each(found), most, "{address}");
        }
    }
}
