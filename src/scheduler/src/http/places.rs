//! Who may have how many connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections of one address at a time.
const EACH: usize = 32;
/// Of this machine: whoever is on it and binds many pods at once is kube-scheduler, or a proxy
/// before all of them.
const EACH_LOCAL: usize = 128;

/// Connections by address.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Addresses {
    /// A place for one more of this address; `None` where it has enough.
    pub(super) fn place(&self, of: IpAddr) -> Option<Address> {
        let of = whose(of);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if of.is_loopback() { EACH_LOCAL } else { EACH };
        let count = all.entry(of).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Address { all: self.clone(), of })
    }
}

/// Of IPv6 a host has its whole /64.
fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) if !six.is_loopback() => {
            Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into()
        }
        other => other,
    }
}

/// A connection's place. It is free when this is dropped.
#[derive(Debug)]
pub(super) struct Address {
    all: Addresses,
    of: IpAddr,
}

impl Drop for Address {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;

    #[test]
    fn an_address_has_its_number_of_places_and_another_one_its_own() {
        let all = Addresses::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut held: Vec<_> = (0..EACH).map(|_| all.place(address("10.0.0.1")).unwrap()).collect();
        assert!(all.place(address("10.0.0.1")).is_none());
        assert!(all.place(address("::ffff:10.0.0.1")).is_none(), "it is the same one");
        assert!(all.place(address("10.0.0.2")).is_some());
        held.pop();
        assert!(all.place(address("10.0.0.1")).is_some());
        let six: Vec<_> =
            (1..=EACH).map(|n| all.place(address(&format!("fd00::{n:x}"))).unwrap()).collect();
        assert!(all.place(address("fd00::ffff")).is_none(), "a host has a whole /64");
        assert!(all.place(address("fd00:0:0:1::1")).is_some());
        let local: Vec<_> =
            (0..EACH_LOCAL).map(|_| all.place(address("127.0.0.1")).unwrap()).collect();
        assert!(all.place(address("127.0.0.1")).is_none());
        drop((held, six, local));
        assert!(all.0.lock().unwrap().is_empty());
    }
}
