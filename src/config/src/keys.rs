//! Every key of the settings file: what it may hold, and which field it sets.
//!
//! Tests hold this list, the types in `settings`, and `config/config.toml` together.

use std::fmt;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::ConfigError;
use crate::settings::{
    ClientDir, Config, Enforce, Exempt, HostPid, InjectMode, Ipc, Kubeconfig, Listen, LogLevel,
    Manage, NodeName, Orphan, Privileged, Schedule, SlicesUid, Supervisor, Switch, Unallocated,
    VisibleDevices,
};

/// One key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    pub(crate) allowed: Allowed,
    /// Sets the field. False where the value is not allowed, with the field unchanged.
    set: fn(&mut Config, &DeValue<'_>) -> bool,
}

/// What a key may hold. `Display` completes the sentence "must be …".
#[derive(Debug, Clone, Copy)]
pub(crate) enum Allowed {
    Words(&'static [&'static str]),
    Number {
        from: i64,
        to: i64,
        unit: &'static str,
    },
    /// A list in which each number comes once; see [`LIST_MOST`].
    Numbers {
        from: u32,
        to: u32,
        unit: &'static str,
    },
    /// The name of a file that is searched for, or an absolute path.
    NameOrPath(&'static str),
    AbsolutePath,
    SlicesUid,
    Kubeconfig,
    NodeName,
    Directories,
    Cards,
    Exemptions,
    /// `"off"` or an address with a port.
    Listen,
}

/// Numbers in a list: each is a resource, and kubelet keeps all devices of each.
const LIST_MOST: usize = 16;

/// A key whose field is `$table.$name` of [`Config`].
macro_rules! key {
    ($table:ident . $name:ident, $allowed:expr, $read:expr) => {
        Key {
            table: stringify!($table),
            name: stringify!($name),
            allowed: $allowed,
            set: |config, value| {
                let read = $read(value);
                read.map(|read| config.$table.$name = read).is_some()
            },
        }
    };
    ($table:ident . $name:ident, $words:ident) => {
        key!($table.$name, Allowed::Words($words::WORDS), |value: &DeValue<'_>| {
            value.as_str().and_then($words::from_word)
        })
    };
    ($table:ident . $name:ident, each $unit:literal, $from:literal to $to:literal) => {
        key!(
            $table.$name,
            Allowed::Numbers { from: $from, to: $to, unit: $unit },
            |value: &DeValue<'_>| numbers(value, $from..=$to)
        )
    };
    ($table:ident . $name:ident, $unit:literal, $from:literal to $to:literal) => {
        key!(
            $table.$name,
            Allowed::Number { from: $from, to: $to, unit: $unit },
            |value: &DeValue<'_>| {
                let number = number(value).filter(|number| ($from..=$to).contains(number));
                number.and_then(|number| number.try_into().ok())
            }
        )
    };
}

/// In the order of the settings' types and of the shipped file.
pub(crate) const KEYS: &[Key] = &[
    key!(runtime.path, Allowed::NameOrPath("runc"), name_or_path),
    key!(gpus.manage, Allowed::Cards, cards),
    key!(gpus.schedule, Schedule),
    key!(gpus.reserve_mib, "MiB", 0 to 65_536),
    key!(requests.from_env, Switch),
    key!(trust.local, Switch),
    key!(trust.kubernetes_roots, Allowed::Directories, directories),
    key!(policy.unallocated, Unallocated),
    key!(policy.visible_devices, VisibleDevices),
    key!(policy.privileged, Privileged),
    key!(policy.ipc, Ipc),
    key!(policy.host_pid, HostPid),
    key!(policy.enforce, Enforce),
    key!(policy.tolerance_mib, "MiB", 0 to 65_536),
    // `read_exemptions` reads it: its entries have keys of their own.
    key!(policy.exempt, Allowed::Exemptions, |_: &DeValue<'_>| None),
    key!(inject.mode, InjectMode),
    key!(mps.control, Allowed::AbsolutePath, absolute_path),
    key!(mps.client_dir, ClientDir),
    key!(mps.start_timeout_s, "seconds", 1 to 600),
    key!(mps.multiuser, Switch),
    key!(mps.max_clients, "clients", 0 to 60),
    key!(mps.supervisor, Supervisor),
    key!(mps.orphan, Orphan),
    key!(nvml.library, Allowed::NameOrPath("libnvidia-ml.so.1"), name_or_path),
    key!(kubernetes.device_plugin, Switch),
    // 1024 is aliyun.com/gpu-mem, which is always there.
    key!(kubernetes.memory_units_mib, each "MiB", 1 to 1023),
    key!(kubernetes.slices_gib, each "GiB", 1 to 1024),
    key!(kubernetes.slices_uid, Allowed::SlicesUid, slices_uid),
    key!(kubernetes.kubeconfig, Allowed::Kubeconfig, kubeconfig),
    key!(kubernetes.node_name, Allowed::NodeName, node_name),
    key!(metrics.listen, Allowed::Listen, listen),
    key!(log.level, LogLevel),
];

/// A key of an entry of `policy.exempt`.
struct ExemptKey {
    name: &'static str,
    allowed: &'static str,
    is_right: fn(&str) -> bool,
}

const EXEMPT_KEYS: [ExemptKey; 2] = [
    ExemptKey {
        name: "namespace",
        allowed: "the name of a Kubernetes namespace",
        is_right: is_namespace,
    },
    ExemptKey {
        name: "image",
        allowed: "an image repository without a tag (\"nvcr.io/nvidia/k8s/dcgm-exporter\"), or a \
                  digest (\"sha256:\" and 64 hex digits), or both joined by \"@\"",
        is_right: is_image,
    },
];

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                f.write_str(&or_list(&quoted))
            }
            Self::Number { from, to, unit } => {
                write!(f, "a whole number of {unit}, {from} to {to}")
            }
            Self::Numbers { from, to, unit } => {
                write!(
                    f,
                    "a list of at most {LIST_MOST} whole numbers of {unit}, {from} to {to}, each once"
                )
            }
            Self::NameOrPath(example) => {
                write!(f, "the name of a file (\"{example}\") or an absolute path")
            }
            Self::AbsolutePath => f.write_str("an absolute path"),
            Self::SlicesUid => f.write_str("\"any\" or a user's number"),
            Self::Kubeconfig => f.write_str("\"auto\", \"off\" or an absolute path"),
            Self::NodeName => f.write_str("\"auto\" or the name of a Kubernetes node"),
            Self::Directories => f.write_str("a list of absolute paths"),
            Self::Cards => f.write_str(
                "\"all\" or a list of GPU UUIDs as `nvidia-smi -L` prints them ([\"GPU-…\"])",
            ),
            Self::Listen => f.write_str(
                "an IP address with a port (\"127.0.0.1:19400\", \"[::1]:19400\"), or \"off\"",
            ),
            Self::Exemptions => f.write_str("a list of tables, each headed [[policy.exempt]]"),
        }
    }
}

fn or_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The line, from 1, in which this byte is.
pub(crate) fn line_at(text: &[u8], offset: usize) -> usize {
    1 + text.iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// Reads a document; what it does not hold stays at its default.
pub(crate) fn read(root: &DeTable<'_>, text: &str, file: &Path) -> Result<Config, ConfigError> {
    let at = Place { text, file };
    let mut config = Config::default();
    for (table_name, value) in root {
        let table = table_name.get_ref().as_ref();
        if !KEYS.iter().any(|key| key.table == table) {
            return Err(at.unknown(table_name.span(), "", table));
        }
        let Some(entries) = value.get_ref().as_table() else {
            return Err(at.bad(value, table, &format!("a table, headed [{table}]")));
        };
        for (name, value) in entries {
            let key = KEYS.iter().find(|key| key.table == table && key.name == name.get_ref());
            let key = key.ok_or_else(|| at.unknown(name.span(), table, name.get_ref()))?;
            if matches!(key.allowed, Allowed::Exemptions) {
                config.policy.exempt = read_exemptions(value, at)?;
            } else if !(key.set)(&mut config, value.get_ref()) {
                let full_name = format!("{table}.{}", key.name);
                return Err(at.bad(value, &full_name, &key.allowed.to_string()));
            }
        }
    }
    Ok(config)
}

fn read_exemptions(
    value: &Spanned<DeValue<'_>>,
    at: Place<'_>,
) -> Result<Vec<Exempt>, ConfigError> {
    let wrong = |value| at.bad(value, "policy.exempt", &Allowed::Exemptions.to_string());
    let entries = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
    let mut exempt = Vec::with_capacity(entries.len());
    for entry in entries {
        let table = entry.get_ref().as_table().ok_or_else(|| wrong(entry))?;
        for (name, _) in table {
            if !EXEMPT_KEYS.iter().any(|known| known.name == name.get_ref()) {
                return Err(at.unknown(name.span(), "policy.exempt", name.get_ref()));
            }
        }
        let [namespace, image] = &EXEMPT_KEYS;
        exempt.push(Exempt {
            namespace: read_exempt_key(namespace, entry, table, at)?,
            image: read_exempt_key(image, entry, table, at)?,
        });
    }
    Ok(exempt)
}

fn read_exempt_key(
    key: &ExemptKey,
    entry: &Spanned<DeValue<'_>>,
    table: &DeTable<'_>,
    at: Place<'_>,
) -> Result<String, ConfigError> {
    let full_name = format!("policy.exempt.{}", key.name);
    let value = table.get(key.name).ok_or_else(|| ConfigError::MissingKey {
        file: at.file.to_owned(),
        line: line_at(at.text.as_bytes(), entry.span().start),
        key: full_name.clone(),
    })?;
    let text = value.get_ref().as_str().filter(|text| (key.is_right)(text));
    text.map(str::to_owned).ok_or_else(|| at.bad(value, &full_name, key.allowed))
}

fn name_or_path(value: &DeValue<'_>) -> Option<PathBuf> {
    value.as_str().filter(|text| is_name_or_path(text)).map(PathBuf::from)
}

fn absolute_path(value: &DeValue<'_>) -> Option<PathBuf> {
    value.as_str().filter(|text| is_absolute_path(text)).map(PathBuf::from)
}

fn slices_uid(value: &DeValue<'_>) -> Option<SlicesUid> {
    match value.as_str() {
        Some(text) => (text == "any").then_some(SlicesUid::Any),
        // The last one is no user's: chown(2) takes it for "as it is".
        None => {
            u32::try_from(number(value)?).ok().filter(|uid| *uid != u32::MAX).map(SlicesUid::Only)
        }
    }
}

fn kubeconfig(value: &DeValue<'_>) -> Option<Kubeconfig> {
    match value.as_str()? {
        "auto" => Some(Kubeconfig::Auto),
        "off" => Some(Kubeconfig::Off),
        _ => absolute_path(value).map(Kubeconfig::File),
    }
}

fn node_name(value: &DeValue<'_>) -> Option<NodeName> {
    match value.as_str()? {
        "auto" => Some(NodeName::Auto),
        text => is_node_name(text).then(|| NodeName::Named(text.to_owned())),
    }
}

fn directories(value: &DeValue<'_>) -> Option<Vec<PathBuf>> {
    value.as_array()?.iter().map(|path| absolute_path(path.get_ref())).collect()
}

/// No host names: whom they mean is decided elsewhere, and may change. An empty text is `"off"`.
fn listen(value: &DeValue<'_>) -> Option<Listen> {
    match value.as_str()? {
        "off" => Some(Listen::Off),
        text => text.parse().ok().filter(|at: &SocketAddr| at.port() != 0).map(Listen::At),
    }
}

fn cards(value: &DeValue<'_>) -> Option<Manage> {
    let Some(cards) = value.as_array() else {
        return (value.as_str() == Some("all")).then_some(Manage::All);
    };
    let uuid = |card: &Spanned<DeValue<'_>>| {
        card.get_ref().as_str().filter(|text| is_uuid(text)).map(str::to_owned)
    };
    cards.iter().map(uuid).collect::<Option<Vec<_>>>().map(Manage::Uuids)
}

/// Whether a runtime or library may be named so: a bare name is searched in fixed places, and a
/// relative path would depend on the caller's working directory.
pub(crate) fn is_name_or_path(text: &str) -> bool {
    is_absolute_path(text)
        || !text.is_empty() && !text.contains(['/', '\0']) && text != "." && text != ".."
}

fn is_absolute_path(text: &str) -> bool {
    text.len() > 1 && text.starts_with('/') && !text.contains('\0')
}

/// `GPU-` and what NVML appends. MIG instances (`MIG-…`) cannot be shared through MPS by us.
fn is_uuid(text: &str) -> bool {
    text.strip_prefix("GPU-").is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

/// A DNS label (RFC 1123), which is what Kubernetes requires.
fn is_namespace(text: &str) -> bool {
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

/// A tag can be moved to another image by whoever may push, so an exemption cannot rest on one.
fn is_image(text: &str) -> bool {
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

fn numbers(value: &DeValue<'_>, range: RangeInclusive<u32>) -> Option<Vec<u32>> {
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

fn number(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Makes errors that name a place in the text.
#[derive(Clone, Copy)]
struct Place<'a> {
    text: &'a str,
    file: &'a Path,
}

impl Place<'_> {
    fn unknown(self, span: Range<usize>, table: &str, name: &str) -> ConfigError {
        let names: Vec<String> = if table.is_empty() {
            tables().map(|table| format!("[{table}]")).collect()
        } else if table == "policy.exempt" {
            EXEMPT_KEYS.iter().map(|key| key.name.to_owned()).collect()
        } else {
            let keys = KEYS.iter().filter(|key| key.table == table);
            keys.map(|key| key.name.to_owned()).collect()
        };
        ConfigError::UnknownKey {
            file: self.file.to_owned(),
            line: line_at(self.text.as_bytes(), span.start),
            key: join(table, name),
            nearest: nearest(table, name),
            allowed: names.join(", "),
        }
    }

    fn bad(self, value: &Spanned<DeValue<'_>>, key: &str, allowed: &str) -> ConfigError {
        let written = self.text.get(value.span()).unwrap_or_default();
        let mut shown: String = written.split_whitespace().collect::<Vec<_>>().join(" ");
        if shown.chars().count() > 60 {
            shown = shown.chars().take(60).chain(['…']).collect();
        }
        ConfigError::BadValue {
            file: self.file.to_owned(),
            line: line_at(self.text.as_bytes(), value.span().start),
            key: key.to_owned(),
            value: shown,
            allowed: allowed.to_owned(),
        }
    }
}

fn join(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

/// Each table once.
fn tables() -> impl Iterator<Item = &'static str> {
    let is_first = |at: usize| at == 0 || KEYS[at - 1].table != KEYS[at].table;
    (0..KEYS.len()).filter(move |at| is_first(*at)).map(|at| KEYS[at].table)
}

/// The known key that is most like an unknown one: first in its own table, then elsewhere.
fn nearest(table: &str, name: &str) -> Option<String> {
    // A third of the letters may be wrong; more would suggest keys that only look alike by chance.
    let allowed = 1.max(name.len() / 3);
    let of_tables = tables().filter(|_| table.is_empty()).map(|known| ("", known));
    let of_exempt = EXEMPT_KEYS.iter().map(|key| ("policy.exempt", key.name));
    let of_keys = KEYS.iter().map(|key| (key.table, key.name));
    of_tables
        .chain(of_keys)
        .chain(of_exempt)
        .map(|(known_table, known)| {
            (distance(name, known), known_table != table, known_table, known)
        })
        .filter(|(distance, ..)| *distance <= allowed)
        .min_by_key(|(distance, elsewhere, ..)| (*distance, *elsewhere))
        .map(|(_, _, table, known)| join(table, known))
}

/// Levenshtein's distance, with case and the choice of `-` or `_` left out.
fn distance(left: &str, right: &str) -> usize {
    let plain = |text: &str| -> Vec<char> {
        text.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
    };
    let (left, right) = (plain(left), plain(right));
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, from) in left.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests;
