//! Ids of devices, as they come back from kubelet.

use std::collections::BTreeSet;

use mpsgate_deviceplugin::{DeviceId, prefer};

use crate::text;

/// An id has one spelling; what kubelet offers is answered with some of it and nothing else, each
/// once. One id a line, behind `!` one that must be taken; the first line is how many are wanted,
/// with `spread` behind it or not.
pub(crate) fn device_ids(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let size: usize = words.next().unwrap_or_default().parse().unwrap_or(0);
    let spread = words.next() == Some("spread");
    let (mut must, mut available) = (Vec::new(), Vec::new());
    for line in lines {
        match line.strip_prefix('!') {
            Some(id) => must.push(id.to_owned()),
            None => available.push(line.to_owned()),
        }
        match DeviceId::parse(line) {
            Ok(id) => assert_eq!(id.to_string(), line),
            Err(error) => assert!(error.to_string().len() < 2048),
        }
    }
    let chosen = prefer(&available, &must, size, spread);
    let once: BTreeSet<&String> = chosen.iter().collect();
    let must: BTreeSet<&String> = must.iter().collect();
    let ours = available.iter().filter(|id| DeviceId::parse(id).is_ok());
    let all: BTreeSet<&String> = ours.chain(must.iter().copied()).collect();
    assert!(once.is_subset(&all) && must.is_subset(&once));
    assert_eq!((once.len(), chosen.len()), (chosen.len(), size.min(all.len()).max(must.len())));
}
