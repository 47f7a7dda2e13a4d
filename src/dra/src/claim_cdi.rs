//! The CDI file of a claim: one device for each request, whose only edit is a variable with the
//! token of that share.
//!
//! Kubelet gives the devices' names to the engine, which reads the file (CDI, SPEC.md of
//! cncf-tags/container-device-interface). Names and versions below follow its `pkg/parser` and
//! `specs-go/version.go`. Writing and removing the file is the daemon's.

use mpsgate_model::names::is_uid;
use mpsgate_model::{CLAIM, CLAIM_ENV_PREFIX, PreparedClaim};
use serde::Serialize;

/// The lowest version with everything that is written here: since this version a device's name may
/// begin with a digit, as many uids do.
const VERSION: &str = "0.5.0";

/// The qualified name of a share's device, for kubelet's answer: `mpsgate.io/claim=UID-REQUEST`.
#[must_use]
pub fn device_id(claim_uid: &str, request: &str) -> String {
    format!("{CLAIM}={}", device_name(claim_uid, request))
}

/// A device's name may have letters, digits, `_`, `-`, `.` and `:`, but no `/`. A request's name
/// has no dot of its own, so no two requests of one claim get the same name.
fn device_name(claim_uid: &str, request: &str) -> String {
    format!("{claim_uid}-{}", request.replace('/', "."))
}

/// The file's name in the CDI directory: `mpsgate.io-claim_UID.json`, as CDI's own
/// `GenerateTransientSpecName` makes it.
///
/// `None` if the text is not a uid, so that the name might lead elsewhere.
#[must_use]
pub fn file_name(claim_uid: &str) -> Option<String> {
    is_uid(claim_uid).then(|| format!("{}_{claim_uid}.json", CLAIM.replace('/', "-")))
}

/// Whether a file of the CDI directory has such a name.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    let uid = name.strip_suffix(".json").and_then(|name| name.rsplit_once('_'));
    uid.is_some_and(|(_, uid)| file_name(uid).as_deref() == Some(name))
}

/// The variable of a share: `MPSGATE_GRANT_CLAIM.REQUEST`.
///
/// Claims of one pod have different names, and so have requests of one claim. So a container with
/// two shares has a variable for each.
#[must_use]
pub fn variable(claim_name: &str, request: &str) -> String {
    format!("{CLAIM_ENV_PREFIX}{claim_name}.{request}")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Serialize)]
struct Edits {
    env: [String; 1],
}

/// The file's text. `tokens` has each request with its token.
///
/// A share without a token gets no device: the engine then cannot make a container that asks for
/// it. With a device it would make one without a grant.
#[must_use]
pub fn file(claim: &PreparedClaim, tokens: &[(String, String)]) -> String {
    let devices = claim.shares.iter().filter_map(|share| {
        let (request, token) = tokens.iter().find(|(request, _)| *request == share.request)?;
        Some(Device {
            name: device_name(&claim.claim.uid, request),
            container_edits: Edits {
                env: [format!("{}={token}", variable(&claim.claim.name, request))],
            },
        })
    });
    let spec = Spec { cdi_version: VERSION, kind: CLAIM, devices: devices.collect() };
    // Strings and lists always have a JSON form.
    serde_json::to_string_pretty(&spec).unwrap_or_default() + "\n"
}
