//! Reads the value of a key and checks it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeValue;

use crate::settings::{
    Kubeconfig, Listen, Manage, NodeName, RunGroup, SlicesUid, SlurmConf, Tolerance,
};

/// The most numbers in a list: each is a resource, and kubelet keeps all devices of each.
pub(super) const LIST_MOST: usize = 16;

pub(super) fn name_or_path(value: &DeValue<'_>) -> Option<PathBuf> {
    value.as_str().filter(|text| is_name_or_path(text)).map(PathBuf::from)
}

pub(super) fn absolute_path(value: &DeValue<'_>) -> Option<PathBuf> {
    value.as_str().filter(|text| is_absolute_path(text)).map(PathBuf::from)
}

/// The most of `policy.tolerance_mib`: a larger one would be no limit.
pub(super) const TOLERANCE_MOST: u32 = 65_536;

pub(super) fn tolerance(value: &DeValue<'_>) -> Option<Tolerance> {
    match value.as_str() {
        Some(text) => (text == "auto").then_some(Tolerance::Auto),
        None => {
            let number = u32::try_from(number(value)?).ok();
            number.filter(|mib| *mib <= TOLERANCE_MOST).map(Tolerance::Mib)
        }
    }
}

pub(super) fn slices_uid(value: &DeValue<'_>) -> Option<SlicesUid> {
    match value.as_str() {
        Some(text) => (text == "any").then_some(SlicesUid::Any),
        // The last uid belongs to no user: chown(2) takes it for "as it is".
        None => {
            u32::try_from(number(value)?).ok().filter(|uid| *uid != u32::MAX).map(SlicesUid::Only)
        }
    }
}

pub(super) fn kubeconfig(value: &DeValue<'_>) -> Option<Kubeconfig> {
    match value.as_str()? {
        "auto" => Some(Kubeconfig::Auto),
        "off" => Some(Kubeconfig::Off),
        _ => absolute_path(value).map(Kubeconfig::File),
    }
}

pub(super) fn node_name(value: &DeValue<'_>) -> Option<NodeName> {
    match value.as_str()? {
        "auto" => Some(NodeName::Auto),
        text => is_node_name(text).then(|| NodeName::Named(text.to_owned())),
    }
}

pub(super) fn run_group(value: &DeValue<'_>) -> Option<RunGroup> {
    // What groupadd(8) accepts at its strictest, and names of a domain.
    let is_name = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@\\".contains(&byte);
        (1..=256).contains(&text.len()) && text.bytes().all(plain)
    };
    match value.as_str()? {
        "off" => Some(RunGroup::Off),
        text => is_name(text).then(|| RunGroup::Named(text.to_owned())),
    }
}

pub(super) fn slurm_conf(value: &DeValue<'_>) -> Option<SlurmConf> {
    match value.as_str()? {
        "auto" => Some(SlurmConf::Auto),
        _ => absolute_path(value).map(SlurmConf::File),
    }
}

pub(super) fn directories(value: &DeValue<'_>) -> Option<Vec<PathBuf>> {
    value.as_array()?.iter().map(|path| absolute_path(path.get_ref())).collect()
}

/// Host names are not accepted: their addresses are decided elsewhere, and may change. An empty
/// text is `"off"`.
pub(super) fn listen(value: &DeValue<'_>) -> Option<Listen> {
    match value.as_str()? {
        "off" => Some(Listen::Off),
        text => text.parse().ok().filter(|at: &SocketAddr| at.port() != 0).map(Listen::At),
    }
}

pub(super) fn cards(value: &DeValue<'_>) -> Option<Manage> {
    let Some(cards) = value.as_array() else {
        return (value.as_str() == Some("all")).then_some(Manage::All);
    };
    let uuid = |card: &Spanned<DeValue<'_>>| {
        card.get_ref().as_str().filter(|text| is_uuid(text)).map(str::to_owned)
    };
    cards.iter().map(uuid).collect::<Option<Vec<_>>>().map(Manage::Uuids)
}

/// Whether a runtime or library may have this name: a bare name is searched in fixed places, and a
/// relative path would depend on the caller's working directory.
pub(crate) fn is_name_or_path(text: &str) -> bool {
    is_absolute_path(text)
        || !text.is_empty() && !text.contains(['/', '\0']) && text != "." && text != ".."
}

fn is_absolute_path(text: &str) -> bool {
    text.len() > 1 && text.starts_with('/') && !text.contains('\0')
}

/// `GPU-` and what NVML appends. mpsgate cannot share MIG instances (`MIG-…`) through MPS.
fn is_uuid(text: &str) -> bool {
    text.strip_prefix("GPU-").is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

/// A DNS label (RFC 1123), which is what Kubernetes requires.
pub(super) fn is_namespace(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A DNS subdomain (RFC 1123): labels between dots.
fn is_node_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_namespace)
}

/// Whoever may push can move a tag to another image, so an exemption cannot use one.
pub(super) fn is_image(text: &str) -> bool {
    let is_digest = |text: &str| {
        text.strip_prefix("sha256:")
            .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let is_repository = |text: &str| {
        let last = text.rsplit('/').next().unwrap_or_default();
        let odd = |letter: char| letter.is_whitespace() || letter.is_control() || letter == '@';
        !last.is_empty() && !last.contains(':') && !text.contains(odd)
    };
    match text.split_once('@') {
        Some((repository, digest)) => is_repository(repository) && is_digest(digest),
        None => is_digest(text) || is_repository(text),
    }
}

pub(super) fn numbers(value: &DeValue<'_>, range: RangeInclusive<u32>) -> Option<Vec<u32>> {
    let list = value.as_array()?;
    let mut numbers = Vec::with_capacity(list.len());
    for value in list {
        let number = number(value.get_ref())?.try_into().ok()?;
        if !range.contains(&number) || numbers.contains(&number) {
            return None;
        }
        numbers.push(number);
    }
    (numbers.len() <= LIST_MOST).then_some(numbers)
}

pub(super) fn number(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}
