//! What Slurm's programs print, with texts that a job's owner chose in it.

use mpsgate_model::Mib;
use mpsgate_policy::slurm::{ask, devices, differences, given};

/// What is given is some of something; what is asked for is a card that Slurm has named.
pub(crate) fn slurm(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let devices = devices(text);
    let _ = differences(&devices, &[(0, Mib(15_360))], Mib(1024));
    let Ok(Some(given)) = given(text, 7, "node1") else { return };
    assert!(given.count > 0 && !given.devices.is_empty());
    if let Ok(asked) = ask(&given, &devices, |_| Some(Mib(15_360)), Mib(1024)) {
        assert!(devices.iter().any(|device| device.minor == asked.minor));
        assert!(asked.compute.is_none_or(|share| (1..=100).contains(&share.0)));
    }
}
