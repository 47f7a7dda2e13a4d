//! A ResourceClaim, read as what each of its requests gives of a card.
//!
//! kube-scheduler has already chosen. What counts is `status.allocation`: what was asked for, in
//! `spec`, says less, as the scheduler rounds amounts up and fills in what was left out. What MPS
//! cannot hold a container to is refused, with the claim's name and what to do.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
    ResourceClaimStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mpsgate_model::{
    ClaimName, ClaimShare, Code, ComputeShare, DRIVER, GpuUuid, Mib, PreparedClaim, Refusal,
    parse_count, printable,
};

use crate::Grant;
use crate::cdi::is_word;

/// The most results of one claim (`AllocationResultsMaxSize` of k8s.io/api resource/v1).
pub const RESULTS_MAX: usize = 32;
/// The source of configuration that a DeviceClass has, which only an administrator writes. A
/// claim's own has `FromClaim` (`AllocationConfigSource` of k8s.io/api resource/v1).
const FROM_CLASS: &str = "FromClass";

/// Reads what an allocated claim gives on this node.
///
/// `asked` is the claim that kubelet names, `pool` the pool of this node's slice, and `card_of`
/// finds the card of a device's name. Shares have the order of the claim's results.
///
/// # Errors
/// [`Code::Claim`] where the claim gives nothing that a container could be held to,
/// [`Code::MultiCard`] where one request has several cards, [`Code::UnknownGpu`] where this node
/// has no such card. Every sentence names the claim, and no text of a tenant's is in it unescaped.
pub fn read(
    claim: &ResourceClaim,
    asked: &ClaimName,
    pool: &str,
    card_of: &dyn Fn(&str) -> Option<GpuUuid>,
) -> Result<PreparedClaim, Refusal> {
    let reader = Reader { asked, pool, card_of };
    reader.names()?;
    let status = reader.status(claim)?;
    let allocation = status.allocation.as_ref().and_then(|given| given.devices.as_ref());
    let devices = allocation.ok_or_else(|| reader.unallocated())?;
    let results = reader.ours(devices.results.as_deref().unwrap_or_default())?;
    let pod_uid = reader.pod(status)?;
    let shares = results.iter().map(|result| reader.share(result));
    let mut shares = shares.collect::<Result<Vec<_>, _>>()?;
    reader.one_card_each(&results)?;
    let said = reader.configuration(devices.config.as_deref().unwrap_or_default())?;
    for share in &mut shares {
        configure(share, &said);
    }
    Ok(PreparedClaim { claim: asked.clone(), pod_uid, shares })
}

/// Adds what configuration says of a share.
fn configure(share: &mut ClaimShare, said: &[(&[String], Grant)]) {
    let applying = said.iter().filter(|(requests, _)| applies(requests, &share.request));
    let grant = applying.fold(Grant::default(), |all, (_, grant)| all.merge(*grant));
    share.priority = grant.priority.unwrap_or_default();
    // Both are the most, so the smaller one counts.
    share.compute = match (share.compute, grant.compute) {
        (Some(one), Some(other)) => Some(ComputeShare(one.0.min(other.0))),
        (one, other) => one.or(other),
    };
}

/// What each check has to know.
struct Reader<'a> {
    asked: &'a ClaimName,
    pool: &'a str,
    card_of: &'a dyn Fn(&str) -> Option<GpuUuid>,
}

impl Reader<'_> {
    fn refuse(&self, code: Code, found: &str, hint: impl Into<String>) -> Refusal {
        Refusal::new(code, format!("claim {} {found}", self.asked), hint)
    }

    fn refused(&self, found: &str, hint: impl Into<String>) -> Refusal {
        self.refuse(Code::Claim, found, hint)
    }

    /// The command that shows the claim. Its names are checked, so it can be pasted.
    fn shown(&self) -> String {
        let ClaimName { namespace, name, .. } = self.asked;
        format!("kubectl get resourceclaim -n {namespace} {name} -o yaml")
    }

    fn unallocated(&self) -> Refusal {
        let hint = format!(
            "wait for kube-scheduler, which writes it before it binds the pod; {}",
            self.shown()
        );
        self.refused("has no allocation", hint)
    }

    /// These names come to stand in commands, variables and file names. The API server makes no
    /// others.
    fn names(&self) -> Result<(), Refusal> {
        let ClaimName { namespace, name, uid } = self.asked;
        if is_subdomain(namespace) && is_subdomain(name) && is_word(uid) {
            return Ok(());
        }
        Err(self.refused(
            "has a namespace, name or uid that Kubernetes makes for none",
            "ask who calls this node's driver: kubelet's names come from the API server",
        ))
    }

    /// The status of the claim that was asked for, unless it goes away.
    fn status<'a>(&self, claim: &'a ResourceClaim) -> Result<&'a ResourceClaimStatus, Refusal> {
        let metadata = &claim.metadata;
        if metadata.uid.as_deref() != Some(&self.asked.uid) {
            let hint = format!(
                "nothing to do: kubelet asks again for the claim that its pod has now; {}",
                self.shown()
            );
            return Err(self.refused("was deleted, and another claim has its name now", hint));
        }
        let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
        // A claim that is reserved stays until its pod has ended, and a pod that kubelet starts
        // again after a reboot needs it until then.
        if metadata.deletion_timestamp.is_some() && reserved.is_none_or(Vec::is_empty) {
            return Err(self.refused(
                "is being deleted, and no pod has it",
                "make the pod anew: its ResourceClaimTemplate makes a new claim",
            ));
        }
        claim.status.as_ref().ok_or_else(|| self.unallocated())
    }

    /// The results that are this driver's.
    fn ours<'a>(
        &self,
        results: &'a [DeviceRequestAllocationResult],
    ) -> Result<Vec<&'a DeviceRequestAllocationResult>, Refusal> {
        let ours: Vec<_> = results.iter().filter(|result| result.driver == DRIVER).collect();
        if ours.is_empty() {
            let found = format!("has no device of {DRIVER} in its allocation");
            return Err(self.refused(&found, self.shown()));
        }
        if ours.len() > RESULTS_MAX {
            let found =
                format!("has {} devices, of {RESULTS_MAX} that a claim has at most", ours.len());
            return Err(self.refused(&found, "ask for fewer devices in one claim"));
        }
        if let Some(other) = ours.iter().find(|result| result.pool != self.pool) {
            let found = format!(
                "has a device of the pool \"{}\", and this node's is \"{}\"",
                printable::value(&other.pool),
                printable::value(self.pool)
            );
            let hint = format!(
                "delete the pod so that it is scheduled anew; kubectl get resourceslice \
                 --field-selector spec.driver={DRIVER}"
            );
            return Err(self.refused(&found, hint));
        }
        Ok(ours)
    }

    /// The uid of the one pod that may use the claim.
    fn pod(&self, status: &ResourceClaimStatus) -> Result<String, Refusal> {
        let consumers = status.reserved_for.as_deref().unwrap_or_default();
        let consumer = match consumers {
            [one] => one,
            [] => {
                let hint = format!(
                    "wait for kube-scheduler, which reserves it before it binds the pod; {}",
                    self.shown()
                );
                return Err(self.refused("is reserved for no pod", hint));
            }
            several => {
                let count = several.len();
                let found = format!(
                    "is a claim of {} pods, and a limit is one pod's",
                    if count == 2 { "two".to_owned() } else { count.to_string() }
                );
                return Err(self.refused(
                    &found,
                    "use resourceClaimTemplateName in the pods in place of resourceClaimName: a \
                     ResourceClaimTemplate gives each its own",
                ));
            }
        };
        let group = consumer.api_group.as_deref().unwrap_or_default();
        if consumer.resource != "pods" || !group.is_empty() {
            let found = format!(
                "is reserved for \"{}\" of the API group \"{}\", which is no pod",
                printable::value(&consumer.resource),
                printable::value(group)
            );
            let hint = "name a ResourceClaimTemplate in the pod itself (spec.resourceClaims), not \
                        in a group of pods";
            return Err(self.refused(&found, hint));
        }
        if !is_word(&consumer.uid) {
            let found = format!(
                "is reserved for a pod with the uid \"{}\", which Kubernetes makes for none",
                printable::value(&consumer.uid)
            );
            return Err(self.refused(&found, self.shown()));
        }
        Ok(consumer.uid.clone())
    }

    /// One result, without what configuration adds.
    fn share(&self, result: &DeviceRequestAllocationResult) -> Result<ClaimShare, Refusal> {
        let request = printable::value(&result.request);
        if !is_request(&result.request) {
            let found = format!(
                "has a device for the request \"{request}\", a name that Kubernetes takes for none"
            );
            return Err(self.refused(&found, self.shown()));
        }
        if result.admin_access == Some(true) {
            let found = format!(
                "asks for admin access in request \"{request}\", which is a card without a limit"
            );
            return Err(self.refused(
                &found,
                "remove adminAccess from the request; a monitor of cards gets them by \
                 policy.exempt in /etc/mpsgate/config.toml on the node",
            ));
        }
        let consumed = Consumed { reader: self, request: &request, result };
        let memory = consumed.memory()?;
        let Some(card) = (self.card_of)(&result.device) else {
            let found = format!(
                "has the device \"{}\", which is no managed GPU of this node",
                printable::value(&result.device)
            );
            return Err(self.refuse(
                Code::UnknownGpu,
                &found,
                "mpsgate status on the node lists its GPUs; delete the pod so that it is scheduled \
                 anew",
            ));
        };
        let compute = consumed.compute()?;
        consumed.clients()?;
        Ok(ClaimShare {
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            share_id: result.share_id.clone(),
            card,
            memory,
            compute,
            priority: mpsgate_model::Priority::default(),
        })
    }

    /// A request has several results where its `count` is more than one or its mode is `All`.
    fn one_card_each(&self, results: &[&DeviceRequestAllocationResult]) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        let Some(twice) = results.iter().find(|result| !seen.insert(main(&result.request))) else {
            return Ok(());
        };
        let found = format!(
            "has several cards for the request \"{}\", and MPS gives a process one",
            printable::value(main(&twice.request))
        );
        let hint = "set count: 1 (allocationMode: ExactCount), and write a request, and a \
                    container, for each card";
        Err(self.refuse(Code::MultiCard, &found, hint))
    }

    /// What the DeviceClass and the claim say to this driver, in the order in which it counts.
    fn configuration<'a>(
        &self,
        config: &'a [DeviceAllocationConfiguration],
    ) -> Result<Vec<(&'a [String], Grant)>, Refusal> {
        let ours = config.iter().filter_map(|entry| {
            let opaque = entry.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER)?;
            Some((entry, &opaque.parameters.0))
        });
        let mut ours: Vec<_> = ours.collect();
        // Stable: within a source the order stays.
        ours.sort_by_key(|(entry, _)| entry.source != FROM_CLASS);
        let read =
            |(entry, parameters): (&'a DeviceAllocationConfiguration, &serde_json::Value)| {
                let grant = Grant::parse(&parameters.to_string()).map_err(|error| {
                    let class = entry.source == FROM_CLASS;
                    let whose = if class { "of its DeviceClass " } else { "" };
                    self.refused(
                    &format!("has parameters {whose}for {DRIVER} that cannot be taken: {error}"),
                    "write parameters: {apiVersion: mpsgate.io/v1alpha1, kind: Grant, priority: \
                     low, computePercent: 30}, of which the last two may be left out",
                )
                })?;
                Ok((entry.requests.as_deref().unwrap_or_default(), grant))
            };
        ours.into_iter().map(read).collect()
    }
}

/// What one result has consumed of its card's capacities.
struct Consumed<'a> {
    reader: &'a Reader<'a>,
    /// The request's name, as it may be printed.
    request: &'a str,
    result: &'a DeviceRequestAllocationResult,
}

impl Consumed<'_> {
    /// A capacity has the name that the slice has. By Kubernetes' rules it is the same with the
    /// driver's name before it.
    fn of(&self, name: &str) -> Option<&Quantity> {
        let consumed: &BTreeMap<String, Quantity> = self.result.consumed_capacity.as_ref()?;
        consumed.get(name).or_else(|| consumed.get(&format!("{DRIVER}/{name}")))
    }

    fn refused(&self, name: &str, value: &str, why: &str, hint: &str) -> Refusal {
        let found = format!(
            "was given {name} \"{}\" for the request \"{}\", and {why}",
            printable::value(value),
            self.request
        );
        self.reader.refused(&found, hint)
    }

    fn memory(&self) -> Result<Mib, Refusal> {
        let Some(memory) = self.of("memory") else {
            let found = format!(
                "has no consumed memory for the request \"{}\": the scheduler gave it a whole card",
                self.request
            );
            return Err(self.reader.refused(
                &found,
                "turn on the feature gate DRAConsumableCapacity in kube-apiserver, kube-scheduler, \
                 kube-controller-manager and kubelet (it is on from Kubernetes 1.36), and make the \
                 pod anew",
            ));
        };
        Mib::parse_bytes(&memory.0).map_err(|error| {
            let hint = "write capacity: {requests: {memory: 7Gi}} in the request, in whole MiB";
            self.refused("memory", &memory.0, &error.to_string(), hint)
        })
    }

    fn compute(&self) -> Result<Option<ComputeShare>, Refusal> {
        let Some(compute) = self.of("compute") else { return Ok(None) };
        let why = match parse_count(&compute.0) {
            Ok(0) => return Ok(None),
            Ok(share) => match u8::try_from(share) {
                Ok(share @ 1..=100) => return Ok(Some(ComputeShare(share))),
                _ => "it is not 1 to 100 percent".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        let hint = "write capacity: {requests: {compute: \"30\"}} in the request, in percent";
        Err(self.refused("compute", &compute.0, &why, hint))
    }

    /// The number itself is not kept: the scheduler counts it, and MPS refuses a process too many.
    fn clients(&self) -> Result<(), Refusal> {
        let Some(clients) = self.of("clients") else { return Ok(()) };
        let why = match parse_count(&clients.0) {
            Ok(1..) => return Ok(()),
            Ok(0) => "it is zero".to_owned(),
            Err(error) => error.to_string(),
        };
        let hint = "write capacity: {requests: {clients: \"1\"}} in the request, one for each \
                    process";
        Err(self.refused("clients", &clients.0, &why, hint))
    }
}

/// Configuration without requests is for all. With a request's name it is for each alternative of
/// it too (k8s.io/api resource/v1, `DeviceAllocationConfiguration.requests`).
fn applies(requests: &[String], request: &str) -> bool {
    requests.is_empty() || requests.iter().any(|name| name == request || name == main(request))
}

/// The request's name, without the alternative that was taken.
fn main(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

/// `REQUEST` or `REQUEST/ALTERNATIVE`, each a DNS label (`validateRequestName` of
/// pkg/apis/resource/validation).
fn is_request(text: &str) -> bool {
    let (main, alternative) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    is_label(main) && alternative.is_none_or(is_label)
}

/// A DNS label (RFC 1123), as Kubernetes has them.
fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(inner)
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

/// A DNS subdomain (RFC 1123), as Kubernetes has them: labels there may be longer.
fn is_subdomain(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}
