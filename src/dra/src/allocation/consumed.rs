//! What a result of a claim's allocation consumes of its card: the amounts that the scheduler
//! wrote.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mpsgate_model::{ComputeShare, DRIVER, Mib, Refusal, parse_count, printable};

use super::Reader;

/// What one result consumes of its card's capacities.
pub(super) struct Consumed<'a> {
    pub(super) reader: &'a Reader<'a>,
    /// The request's name, as it may be printed.
    pub(super) request: &'a str,
    pub(super) result: &'a DeviceRequestAllocationResult,
}

impl Consumed<'_> {
    /// A capacity has the slice's name for it. By Kubernetes' rules the name may also have the
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

    pub(super) fn memory(&self) -> Result<Mib, Refusal> {
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

    pub(super) fn compute(&self) -> Result<Option<ComputeShare>, Refusal> {
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

    /// Checks that the share is for one client. A share belongs to one container, and the card
    /// counts containers: nothing limits a container's processes to a number.
    pub(super) fn clients(&self) -> Result<(), Refusal> {
        let Some(clients) = self.of("clients") else { return Ok(()) };
        let why = match parse_count(&clients.0) {
            Ok(1) => return Ok(()),
            Ok(_) => "a share is one, however many processes its container starts".to_owned(),
            Err(error) => error.to_string(),
        };
        let hint = "leave clients out of the request's capacity, and make the pod anew";
        Err(self.refused("clients", &clients.0, &why, hint))
    }
}
