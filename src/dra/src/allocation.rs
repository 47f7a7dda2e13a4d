//! Reads a ResourceClaim: what each of its requests gives of a card.
//!
//! kube-scheduler has already chosen, so `status.allocation` counts. `spec` has only the request,
//! because the scheduler rounds amounts up and adds defaults. An amount that MPS cannot enforce is
//! refused, with the claim's name and the remedy.

mod consumed;

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
    ResourceClaimConsumerReference, ResourceClaimStatus,
};
use mpsgate_model::names::{is_label, is_name, is_uid};
use mpsgate_model::{
    ClaimName, ClaimShare, Code, DRIVER, GpuUuid, PreparedClaim, Refusal, printable,
};

use self::consumed::Consumed;
use crate::Grant;
use crate::parameters::smaller;

/// The most results of one claim (`AllocationResultsMaxSize` of k8s.io/api resource/v1).
pub const RESULTS_MAX: usize = 32;
/// The source of configuration that a DeviceClass has, which only an administrator writes. A
/// claim's own has `FromClaim` (`AllocationConfigSource` of k8s.io/api resource/v1).
const FROM_CLASS: &str = "FromClass";
/// kube-scheduler's mark on a claim that it makes of a container's `resources.limits`
/// (`ExtendedResourceClaimAnnotation` of k8s.io/api resource/v1), with the value `true`. Such a
/// claim asks for no capacity, so the slice's default counts.
const EXTENDED_RESOURCE: &str = "resource.kubernetes.io/extended-resource-claim";

/// The facts of the node that reads a claim.
#[derive(Clone, Copy)]
pub struct Here<'a> {
    /// The pool of its slice.
    pub pool: &'a str,
    /// Finds the card of a device's name.
    pub card_of: &'a dyn Fn(&str) -> Option<GpuUuid>,
    /// What it has prepared of the claim before.
    pub prepared: Option<&'a PreparedClaim>,
    /// Whether it accepts claims that kube-scheduler made of `resources.limits`
    /// (`kubernetes.dra_extended_resources`).
    pub extended_resources: bool,
}

/// Reads what an allocated claim gives on this node. `asked` is the claim that kubelet names. The
/// shares have the order of the claim's results.
///
/// A prepared claim is not decided again, if the claim has the same allocation and its pod still
/// has it. Kubelet asks so after its own restart, for running containers. Another pod that now
/// names the claim takes nothing from them.
///
/// # Errors
/// [`Code::Claim`] if the claim gives nothing that can be enforced, [`Code::MultiCard`] if one
/// request has several cards, [`Code::UnknownGpu`] if this node has no such card. Every sentence
/// names the claim, and a tenant's text in it is escaped.
pub fn read(
    claim: &ResourceClaim,
    asked: &ClaimName,
    here: &Here<'_>,
) -> Result<PreparedClaim, Refusal> {
    let reader = Reader { asked, here };
    reader.names()?;
    let status = reader.status(claim)?;
    if let Some(prepared) = here.prepared.filter(|prepared| reader.has_still(prepared, status)) {
        return Ok(prepared.clone());
    }
    reader.made_for_itself(claim)?;
    let allocation = status.allocation.as_ref().and_then(|given| given.devices.as_ref());
    let devices = allocation.ok_or_else(|| reader.unallocated())?;
    let results = reader.ours(devices.results.as_deref().unwrap_or_default())?;
    let pod_uid = reader.pod(status)?;
    let shares = results.iter().map(|result| reader.share(result));
    let mut shares = shares.collect::<Result<Vec<_>, _>>()?;
    reader.one_card_each(&results)?;
    let settings = reader.configuration(devices.config.as_deref().unwrap_or_default())?;
    for share in &mut shares {
        configure(share, &settings);
    }
    Ok(PreparedClaim { claim: asked.clone(), pod_uid, shares })
}

/// Adds configuration to a share. A DeviceClass is an administrator's, a claim a tenant's, and each
/// sets a maximum: so the stricter value counts.
fn configure(share: &mut ClaimShare, settings: &[Setting<'_>]) {
    let of = |class: bool| {
        let applying = settings.iter().filter(|one| one.of_class == class && one.is_for(share));
        applying.fold(Grant::default(), |all, one| all.merge(one.grant))
    };
    let grant = of(true).stricter(of(false));
    share.priority = grant.priority.unwrap_or_default();
    share.compute = smaller(share.compute, grant.compute);
}

/// One entry of configuration for this driver.
struct Setting<'a> {
    /// Whether it is from the DeviceClass, not from the claim.
    of_class: bool,
    /// The requests that it applies to; all if the list is empty.
    requests: &'a [String],
    grant: Grant,
}

impl Setting<'_> {
    /// Whether it applies to a share. A request's name includes all of its alternatives (k8s.io/api
    /// resource/v1, `DeviceAllocationConfiguration.requests`).
    fn is_for(&self, share: &ClaimShare) -> bool {
        let is_it = |name: &String| *name == share.request || name == main(&share.request);
        self.requests.is_empty() || self.requests.iter().any(is_it)
    }
}

/// The data that all checks need.
struct Reader<'a> {
    asked: &'a ClaimName,
    here: &'a Here<'a>,
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

    /// Checks the names, because they are used in commands, variables and file names. The API
    /// server accepts no others.
    fn names(&self) -> Result<(), Refusal> {
        let ClaimName { namespace, name, uid } = self.asked;
        if is_label(namespace) && is_name(name) && is_uid(uid) {
            return Ok(());
        }
        Err(self.refused(
            "has a namespace, name or uid that Kubernetes makes for none",
            "ask who calls this node's driver: kubelet's names come from the API server",
        ))
    }

    /// The status of the claim that kubelet asked for, unless the claim is being deleted.
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
        // A reserved claim stays until its pod has ended. After a reboot kubelet starts the pod
        // again, and it needs the claim until then.
        if metadata.deletion_timestamp.is_some() && reserved.is_none_or(Vec::is_empty) {
            return Err(self.refused(
                "is being deleted, and no pod has it",
                "make the pod anew: its ResourceClaimTemplate makes a new claim",
            ));
        }
        claim.status.as_ref().ok_or_else(|| self.unallocated())
    }

    /// Whether the allocation is the prepared one, and the pod that it was prepared for still has
    /// the claim.
    fn has_still(&self, prepared: &PreparedClaim, status: &ResourceClaimStatus) -> bool {
        let consumers = status.reserved_for.as_deref().unwrap_or_default();
        let is_its_pod =
            |one: &ResourceClaimConsumerReference| is_pod(one) && one.uid == prepared.pod_uid;
        let allocation = status.allocation.as_ref().and_then(|given| given.devices.as_ref());
        let results = allocation.and_then(|devices| devices.results.as_deref());
        let results = results.unwrap_or_default().iter().filter(|result| result.driver == DRIVER);
        let results: Vec<_> = results.collect();
        let is_share = |(result, share): (&&DeviceRequestAllocationResult, &ClaimShare)| {
            let consumed = Consumed { reader: self, request: &result.request, result };
            result.request == share.request
                && result.pool == share.pool
                && result.device == share.device
                && result.share_id == share.share_id
                && result.admin_access != Some(true)
                && consumed.memory().is_ok_and(|memory| memory == share.memory)
        };
        prepared.claim == *self.asked
            && consumers.iter().any(is_its_pod)
            && results.len() == prepared.shares.len()
            && results.iter().zip(&prepared.shares).all(is_share)
    }

    /// Refuses a claim that kube-scheduler made of limits, unless the settings accept those: it
    /// needs no right to make claims, and is a whole card for each that was asked for.
    fn made_for_itself(&self, claim: &ResourceClaim) -> Result<(), Refusal> {
        let annotations = claim.metadata.annotations.as_ref();
        let value = annotations.and_then(|all| all.get(EXTENDED_RESOURCE));
        if self.here.extended_resources || value.is_none_or(|value| value != "true") {
            return Ok(());
        }
        Err(self.refused(
            "was made by kube-scheduler of a container's resources.limits, which count whole cards",
            "ask for memory: a claim of the pod's own (docs/dra.md), or aliyun.com/gpu-mem in its \
             limits; kubernetes.dra_extended_resources = true in /etc/mpsgate/config.toml on the \
             node gives whole cards by limits",
        ))
    }

    /// The results for this driver.
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
        if let Some(other) = ours.iter().find(|result| result.pool != self.here.pool) {
            let found = format!(
                "has a device of the pool \"{}\", and this node's is \"{}\"",
                printable::value(&other.pool),
                printable::value(self.here.pool)
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
        if !is_pod(consumer) {
            let group = consumer.api_group.as_deref().unwrap_or_default();
            let found = format!(
                "is reserved for \"{}\" of the API group \"{}\", which is no pod",
                printable::value(&consumer.resource),
                printable::value(group)
            );
            let hint = "name a ResourceClaimTemplate in the pod itself (spec.resourceClaims), not \
                        in a group of pods";
            return Err(self.refused(&found, hint));
        }
        if !is_uid(&consumer.uid) {
            let found = format!(
                "is reserved for a pod with the uid \"{}\", which Kubernetes makes for none",
                printable::value(&consumer.uid)
            );
            return Err(self.refused(&found, self.shown()));
        }
        Ok(consumer.uid.clone())
    }

    /// One result as a share, without configuration.
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
        let Some(card) = (self.here.card_of)(&result.device) else {
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

    /// A request has several results if its `count` is more than one or its mode is `All`.
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

    /// The configuration of the DeviceClass and the claim for this driver, in their order.
    fn configuration<'a>(
        &self,
        config: &'a [DeviceAllocationConfiguration],
    ) -> Result<Vec<Setting<'a>>, Refusal> {
        let ours = config.iter().filter_map(|entry| {
            let opaque = entry.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER)?;
            Some((entry, &opaque.parameters.0))
        });
        let read =
            |(entry, parameters): (&'a DeviceAllocationConfiguration, &serde_json::Value)| {
                let of_class = entry.source == FROM_CLASS;
                let grant = Grant::parse(&parameters.to_string()).map_err(|error| {
                    let origin = if of_class { "of its DeviceClass " } else { "" };
                    self.refused(
                    &format!("has parameters {origin}for {DRIVER} that cannot be taken: {error}"),
                    "write parameters: {apiVersion: mpsgate.io/v1alpha1, kind: Grant, priority: \
                     low, computePercent: 30}, of which the last two may be left out",
                )
                })?;
                let requests = entry.requests.as_deref().unwrap_or_default();
                Ok(Setting { of_class, requests, grant })
            };
        ours.map(read).collect()
    }
}

/// Whether a claim is reserved for a pod, not for a group of pods.
fn is_pod(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or_default().is_empty()
}

/// The request's name, without the chosen alternative.
fn main(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

/// `REQUEST` or `REQUEST/ALTERNATIVE`, each a DNS label (`validateRequestName` of
/// pkg/apis/resource/validation).
fn is_request(text: &str) -> bool {
    let (main, alternative) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    is_label(main) && alternative.is_none_or(is_label)
}
