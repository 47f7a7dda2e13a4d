//! ResourceClaims (`resource.k8s.io/v1`): read when kubelet names one, and mpsgate's entries in
//! their status.
//!
//! A claim has what other drivers are told, of any form and depth, and what they say of its
//! devices. Nothing of that is read.

use std::time::Duration;

use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, CapacityRequirements, DeviceAllocationConfiguration,
    DeviceAllocationResult, DeviceClaim, DeviceRequest, DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimSpec,
    ResourceClaimStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use mpsgate_model::printable::plain;
use mpsgate_model::{ClaimName, DRIVER, Mib, parse_count};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::objects::Objects;
use crate::read::{Meta, member_as, nullable};
use crate::requests::Requests;
use crate::wire::WrittenClaim;
use crate::{Error, Settings};

/// Reads claims, and writes their status.
#[derive(Debug)]
pub struct Claims(Requests);

impl Claims {
    /// `patience` is what each request may take: well below the 45 s that kubelet gives a driver
    /// (`PluginClientTimeout`, kubernetes `pkg/kubelet/cm/dra/plugin`).
    #[must_use]
    pub fn new(settings: Settings, patience: Duration) -> Self {
        Self(Requests::new(settings, patience))
    }

    /// The claim as the API server has it now, `None` where it has none. Never out of a cache: its
    /// allocation was written a moment ago, and an older claim may have had its name.
    ///
    /// # Errors
    /// Where the API server does not answer in time, or refuses; [`Error::NotServed`] where it has
    /// no such group; [`Error::Unread`] where the claim is none that can be read. That is never
    /// `None`: a claim that cannot be read is not deleted.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, Error> {
        let what = format!("read ResourceClaim {namespace}/{name}");
        let get = |client| async move {
            Objects::<WrittenClaim>::namespaced(client, namespace).get_text(name).await
        };
        match self.0.ask(what.clone(), get).await {
            Ok(json) => parse_claim(&json).map(Some).map_err(|error| Error::Unread {
                object: format!("ResourceClaim {namespace}/{name}"),
                why: plain(&error.to_string()),
            }),
            Err(error) if error.is_not_served() => Err(Error::NotServed { what }),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes `devices` the entries of [`DRIVER`] in the claim's `status.devices`; none takes away
    /// what there was. Those of another driver in `devices` are left out, and those in the claim
    /// stay: the list is a map by driver, pool, device and share, and what is applied owns its
    /// entries alone.
    ///
    /// The uid is part of what is applied. A claim that has another one is left as it is: a uid
    /// cannot change, so the API server answers 422 with the cause `metadata.uid` (kubernetes
    /// `rest.BeforeUpdate`). Its 409 "uid mismatch" is for what an apply would have to create
    /// (`endpoints/handlers/patch.go`); a status of nothing is 404.
    ///
    /// # Errors
    /// [`Error::NoClaim`] where the claim of that uid is gone; else where the API server does not
    /// answer in time, or refuses, such as an entry of a device that is not allocated to it.
    pub async fn write_status(
        &self,
        claim: &ClaimName,
        devices: &[AllocatedDeviceStatus],
    ) -> Result<(), Error> {
        let ClaimName { namespace, name, uid } = claim;
        let ours: Vec<_> = devices.iter().filter(|device| device.driver == DRIVER).collect();
        // Nothing owned is said by leaving the list out.
        let status = if ours.is_empty() { json!({}) } else { json!({"devices": ours}) };
        let patch = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": status,
        });
        let apply = |client| async move {
            let params = PatchParams::apply(DRIVER).force();
            let claims = Objects::<WrittenClaim>::namespaced(client, namespace);
            claims.patch_status(name, &params, &Patch::Apply(patch)).await
        };
        let what = format!("write the status of ResourceClaim {claim}");
        match self.0.ask(what.clone(), apply).await {
            Ok(_claim) => Ok(()),
            Err(error) if error.is_not_served() => Err(Error::NotServed { what }),
            Err(error) if is_another(&error) => {
                Err(Error::NoClaim { claim: claim.to_string(), uid: uid.clone() })
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Deserialize)]
struct WireClaim<'a> {
    metadata: Meta,
    #[serde(default, deserialize_with = "nullable")]
    spec: WireSpec,
    #[serde(borrow, default)]
    status: Option<WireStatus<'a>>,
}

#[derive(Default, Deserialize)]
struct WireSpec {
    devices: Option<WireAsked>,
}

#[derive(Deserialize)]
struct WireAsked {
    requests: Option<Vec<DeviceRequest>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus<'a> {
    #[serde(borrow, default)]
    allocation: Option<WireAllocation<'a>>,
    #[serde(borrow, default, deserialize_with = "nullable")]
    devices: Vec<&'a RawValue>,
    reserved_for: Option<Vec<ResourceClaimConsumerReference>>,
}

#[derive(Deserialize)]
struct WireAllocation<'a> {
    #[serde(borrow, default)]
    devices: Option<WireDevices<'a>>,
}

#[derive(Deserialize)]
struct WireDevices<'a> {
    results: Option<Vec<DeviceRequestAllocationResult>>,
    #[serde(borrow, default)]
    config: Option<Vec<WireConfig<'a>>>,
}

#[derive(Deserialize)]
struct WireConfig<'a> {
    #[serde(borrow, default)]
    opaque: Option<WireOpaque<'a>>,
    requests: Option<Vec<String>>,
    #[serde(default)]
    source: String,
}

#[derive(Deserialize)]
struct WireOpaque<'a> {
    driver: String,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
}

/// What matters of a claim's JSON: who it is, what it asks for, what it was given, whose it is, and
/// what [`DRIVER`] is told and has said. All else is left out of it.
///
/// # Errors
/// Where one of these is not as it should be, parameters of [`DRIVER`] that are nested too deeply
/// among them.
pub fn parse_claim(json: &str) -> Result<ResourceClaim, serde_json::Error> {
    let WireClaim { metadata, spec, status } = serde_json::from_str(json)?;
    let asked = spec
        .devices
        .map(|asked| DeviceClaim { requests: asked.requests, ..DeviceClaim::default() });
    Ok(ResourceClaim {
        metadata: ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            labels: metadata.labels,
            annotations: metadata.annotations,
            // When is not read.
            deletion_timestamp: metadata.deletion_timestamp.map(|_| Time(Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec { devices: asked },
        status: status.map(self::status).transpose()?,
    })
}

fn status(status: WireStatus<'_>) -> Result<ResourceClaimStatus, serde_json::Error> {
    let allocation = match status.allocation {
        None => None,
        Some(allocation) => Some(AllocationResult {
            devices: allocation.devices.map(given).transpose()?,
            ..AllocationResult::default()
        }),
    };
    // What cannot be read of it is written anew.
    let ours = status.devices.into_iter().filter_map(|device| {
        let driver: String = member_as(device.get(), "driver")?;
        (driver == DRIVER).then(|| serde_json::from_str(device.get()).ok()).flatten()
    });
    let devices = Some(ours.collect());
    Ok(ResourceClaimStatus { allocation, devices, reserved_for: status.reserved_for })
}

fn given(devices: WireDevices<'_>) -> Result<DeviceAllocationResult, serde_json::Error> {
    let ours = |config: WireConfig<'_>| {
        let opaque = config.opaque.filter(|opaque| opaque.driver == DRIVER)?;
        let parameters = opaque.parameters.map_or("null", RawValue::get);
        Some(serde_json::from_str(parameters).map(|parameters| DeviceAllocationConfiguration {
            opaque: Some(OpaqueDeviceConfiguration {
                driver: opaque.driver,
                parameters: RawExtension(parameters),
            }),
            requests: config.requests,
            source: config.source,
        }))
    };
    let config = devices.config.unwrap_or_default().into_iter().filter_map(ours);
    Ok(DeviceAllocationResult {
        config: Some(config.collect::<Result<_, _>>()?),
        results: devices.results,
    })
}

/// What each request of a claim asks of a card's memory, in the order of the claim. The scheduler
/// gives that or more; of alternatives the first counts, which the scheduler tries first. A request
/// that names no memory, or none that can be counted, is left out: what it gets is for each card's
/// slice to say.
#[must_use]
pub fn memory_asked(claim: &ResourceClaim) -> Vec<Mib> {
    let devices = claim.spec.devices.as_ref();
    let requests = devices.and_then(|devices| devices.requests.as_deref()).unwrap_or_default();
    requests.iter().filter_map(|request| memory(capacity(request)?)).collect()
}

fn capacity(request: &DeviceRequest) -> Option<&CapacityRequirements> {
    match (&request.exactly, request.first_available.as_deref()) {
        (Some(exactly), _) => exactly.capacity.as_ref(),
        (None, Some([first, ..])) => first.capacity.as_ref(),
        _ => None,
    }
}

/// By its name, or with the driver's name before it.
fn memory(asked: &CapacityRequirements) -> Option<Mib> {
    const BYTES: u64 = 1 << 20;
    let requests = asked.requests.as_ref()?;
    let amount = requests.get("memory").or_else(|| requests.get(&format!("{DRIVER}/memory")))?;
    parse_count(&amount.0).ok().filter(|bytes| *bytes > 0).map(|bytes| Mib(bytes.div_ceil(BYTES)))
}

/// There is none under that name, or one with another uid.
fn is_another(error: &Error) -> bool {
    let Error::Write { source, .. } = error else { return false };
    let kube::Error::Api(status) = source.as_ref() else { return false };
    let of_uid = || {
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        causes.any(|cause| cause.field == "metadata.uid")
    };
    match status.code {
        404 => true,
        // Any other conflict is that somebody else wrote at the same time.
        409 => status.message.contains("uid mismatch"),
        422 => of_uid(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use serde_json::Value;

    use super::*;

    #[test]
    fn of_a_claim_nothing_is_read_that_is_not_used() {
        let deep = format!("{}1{}", r#"{"f:x":"#.repeat(1000), "}".repeat(1000));
        let ours = r#"{"apiVersion":"mpsgate.io/v1alpha1","kind":"Grant"}"#;
        let claim = |ours: &str, others: &str| {
            format!(
                r#"{{"metadata":{{"name":"c","namespace":"n","uid":"u","deletionTimestamp":"10000-01-01T23:58:59Z",
                    "managedFields":[{{"fieldsV1":{deep},"time":{deep}}}]}},
                "spec":{{"devices":{{"config":[{{"opaque":{{"driver":"nic.example.com","parameters":{deep}}}}}],
                    "requests":[{{"name":"gpu","exactly":{{"deviceClassName":"c"}}}}]}}}},
                "status":{{"reservedFor":[{{"resource":"pods","name":"p","uid":"pu"}}],
                    "devices":[{{"driver":"nic.example.com","device":"d","pool":"p","data":{deep}}}],
                    "allocation":{{"allocationTimestamp":{deep},"devices":{{
                        "results":[{{"request":"gpu","driver":"mpsgate.io","pool":"p","device":"gpu-1"}}],
                        "config":[{{"source":"FromClaim","opaque":{{"driver":"nic.example.com","parameters":{others}}}}},
                            {{"source":"FromClass","opaque":{{"driver":"mpsgate.io","parameters":{ours}}}}}]}}}}}}}}"#
            )
        };
        let read = parse_claim(&claim(ours, &deep)).unwrap();
        assert_eq!(
            (read.metadata.uid.as_deref(), read.metadata.name.as_deref()),
            (Some("u"), Some("c"))
        );
        assert!(read.metadata.deletion_timestamp.is_some());
        assert_eq!(read.spec.devices.unwrap().requests.unwrap().len(), 1);
        let status = read.status.unwrap();
        assert_eq!(status.reserved_for.unwrap()[0].uid, "pu");
        let devices = status.allocation.unwrap().devices.unwrap();
        assert_eq!(devices.results.unwrap()[0].device, "gpu-1");
        let [config] = &devices.config.unwrap()[..] else { panic!("not ours alone") };
        assert_eq!(config.opaque.as_ref().unwrap().parameters.0["kind"], "Grant");
        // Its own author's loss.
        let error = parse_claim(&claim(&deep, "1")).unwrap_err();
        assert!(error.to_string().contains("recursion limit"), "{error}");
    }

    #[test]
    fn what_a_claim_asks_of_a_cards_memory_is_read_request_by_request() {
        let of = |amount: Value| json!({"exactly": {"deviceClassName": "c", "capacity": {"requests": amount}}});
        let first = json!({"firstAvailable": [
            {"capacity": {"requests": {"memory": "20Gi"}}}, {"capacity": {"requests": {"memory": "10Gi"}}},
        ]});
        for (requests, expected) in [
            (json!(null), vec![]),
            (json!([]), vec![]),
            (json!([of(json!({"memory": "7Gi"}))]), vec![7168]),
            (json!([of(json!({"mpsgate.io/memory": "7Gi"}))]), vec![7168]),
            // In whole MiB there is no less than one.
            (json!([of(json!({"memory": "1"}))]), vec![1]),
            (
                json!([of(json!({"memory": "1Gi"})), of(json!({"memory": 3_145_728}))]),
                vec![1024, 3],
            ),
            (json!([first]), vec![20480]),
            // The whole card, of whatever size it is.
            (
                json!([of(json!({"clients": "1"})), {"exactly": {"deviceClassName": "c"}}, {}]),
                vec![],
            ),
            (json!([{"firstAvailable": []}]), vec![]),
            (
                json!([
                    of(json!({"memory": "0"})),
                    of(json!({"memory": "-1"})),
                    of(json!({"memory": "x"}))
                ]),
                vec![],
            ),
        ] {
            let claim = json!({"metadata": {}, "spec": {"devices": {"requests": requests}}});
            let asked = memory_asked(&serde_json::from_value(claim).unwrap());
            let expected: Vec<_> = expected.into_iter().map(Mib).collect();
            assert_eq!(asked, expected, "{requests}");
        }
    }
}
