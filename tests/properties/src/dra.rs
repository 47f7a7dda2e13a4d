//! Dynamic Resource Allocation: claims that pass the API server, and parameters that nobody checks.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;
use mpsgate_dra::{Grant, Here, device_id, file, file_name, news, read, status};
use mpsgate_model::{ClaimName, ComputeShare, GpuUuid, PreparedClaim, Refusal};

use crate::text;

/// A claim that is read is one pod's, and each request has one part of one card; what is made of it
/// names each share once. A refusal shows nothing that a terminal obeys.
pub(crate) fn dra_claim(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Ok(grant) = Grant::parse(text) {
        assert!(grant.compute.is_none_or(|ComputeShare(share)| (1..=100).contains(&share)));
        assert!(text.contains("mpsgate.io/v1alpha1") || text.contains('\\'));
    }
    let Ok(claim) = mpsgate_kubernetes::parse_claim(text) else { return };
    let metadata = claim.metadata.clone();
    let asked = ClaimName {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
    };
    let card_of = |device: &str| GpuUuid::parse(&device.replacen("gpu", "GPU", 1)).ok();
    let here =
        Here { pool: "gpu-node-1", card_of: &card_of, prepared: None, extended_resources: true };
    match read(&claim, &asked, &here) {
        Ok(prepared) => {
            taken(&claim, &prepared);
            let again = Here { prepared: Some(&prepared), extended_resources: false, ..here };
            assert_eq!(read(&claim, &asked, &again).ok(), Some(prepared), "asked again");
        }
        Err(refusal) => shown(&refusal),
    }
}

fn taken(claim: &ResourceClaim, prepared: &PreparedClaim) {
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref());
    let [pod] = reserved.unwrap_or_default() else { panic!("not one pod: {prepared:?}") };
    assert_eq!((pod.resource.as_str(), &pod.uid), ("pods", &prepared.pod_uid));
    assert!(!prepared.pod_uid.is_empty() && (1..=32).contains(&prepared.shares.len()));
    let (mut requests, mut devices) = (BTreeSet::new(), BTreeSet::new());
    for share in &prepared.shares {
        let main = share.request.split('/').next().unwrap();
        assert!(requests.insert(main), "{main:?} has two shares: {prepared:?}");
        assert!(devices.insert(device_id(&prepared.claim.uid, &share.request)));
        assert!(share.memory.0 > 0 && share.memory.0 <= u64::MAX >> 20, "{share:?}");
        assert!(share.compute.is_none_or(|ComputeShare(n)| (1..=100).contains(&n)), "{share:?}");
    }
    let name = file_name(&prepared.claim.uid).unwrap();
    assert!(!name.contains('/') && name.len() <= 255, "{name:?}");
    let tokens: Vec<_> =
        prepared.shares.iter().map(|share| (share.request.clone(), "token".to_owned())).collect();
    let spec: serde_json::Value = serde_json::from_str(&file(prepared, &tokens)).unwrap();
    let made = spec["devices"].as_array().unwrap();
    assert_eq!(made.len(), prepared.shares.len());
    for device in made {
        assert!(
            devices.contains(&format!("mpsgate.io/claim={}", device["name"].as_str().unwrap()))
        );
        let variable = device["containerEdits"]["env"][0].as_str().unwrap();
        // One `=`, between the name and the token: no name reaches into the value.
        assert_eq!(variable.split('=').collect::<Vec<_>>()[1..], ["token"], "{variable:?}");
        assert!(!variable.contains(char::is_control), "{variable:?}");
    }
}

fn shown(refusal: &Refusal) {
    for text in [&refusal.sentence, &refusal.hint] {
        assert!(!text.is_empty() && !text.contains(char::is_control), "{refusal:?}");
    }
    let share = mpsgate_model::ClaimShare {
        request: "gpu".to_owned(),
        pool: "gpu-node-1".to_owned(),
        device: "gpu".to_owned(),
        share_id: None,
        card: GpuUuid::parse("GPU-00000000-0000-4000-8000-00000000beef").unwrap(),
        memory: mpsgate_model::Mib(1),
        compute: None,
        priority: mpsgate_model::Priority::Normal,
    };
    let status = status(&share, Err(refusal), "2026-09-01T12:00:00Z");
    let shown = [status.clone()];
    assert_eq!(news(vec![status.clone()], &shown), [], "it is shown already");
    let [condition] = &status.conditions.unwrap()[..] else { panic!("not one condition") };
    assert!(condition.message.len() <= 32_768 && !condition.reason.is_empty());
}
