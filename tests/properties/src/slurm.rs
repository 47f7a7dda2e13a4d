//! What Slurm's programs print, with texts that a job's owner chose in it.

use mpsgate_model::Mib;
use mpsgate_policy::slurm_request::{Named, Place, Sluid, Told, ask, devices, differences, given};

/// What is given is some of something, of the job that was asked for; what is asked for is a card
/// that Slurm has named.
pub(crate) fn slurm(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let devices = devices(text);
    let _ = given(text, &Named::Id(7), "node1");
    let _ = differences(&devices, &[(0, Mib(15_360))], Mib(1024));
    // The corpus has the answer and the cards in one text.
    let line = text.lines().next().unwrap_or_default();
    for word in line.split_ascii_whitespace().take(64) {
        let name = word.strip_prefix("SLUID=").unwrap_or(word);
        let Some(sluid) = Sluid::parse(name) else { continue };
        if let Ok(Told::Job { .. }) = given(line, &Named::Sluid(sluid), "node1") {
            assert!(line.contains(&format!(" SLUID={name}")));
        }
    }
    let Ok(Told::Job { id, given: Some(given) }) = given(line, &Named::Id(7), "node1") else {
        return;
    };
    assert!(id == 7 && given.count > 0 && !given.devices.is_empty());
    if let Ok(asked) = ask(&given, &devices, |_| Some(Mib(15_360)), Mib(1024)) {
        assert!(devices.iter().any(|device| device.place == Place::Card(asked.minor)));
        assert!(asked.compute.is_none_or(|share| (1..=100).contains(&share.0)));
        assert!(asked.hint.is_none() || asked.memory > Mib(15_360));
    }
}
