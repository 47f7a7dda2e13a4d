//! Every key of the settings file: its allowed values, and the field that it sets.
//!
//! Tests hold this list, the types in `settings`, and `config/config.toml` together.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::ConfigError;
use crate::settings::{
    Config, Enforce, Exempt, HostPid, InjectMode, Ipc, LogLevel, Orphan, Privileged, Processes,
    Schedule, Supervisor, Switch, Unallocated, VisibleDevices,
};

mod value;

pub(crate) use self::value::is_name_or_path;
use self::value::{
    LIST_MOST, TOLERANCE_MOST, absolute_path, cards, directories, is_image, is_namespace,
    kubeconfig, listen, name_or_path, node_name, number, numbers, run_group, slices_uid,
    slurm_conf, tolerance,
};

/// One key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    pub(crate) allowed: Allowed,
    /// Sets the field. Returns false, with the field unchanged, if the value is not allowed.
    set: fn(&mut Config, &DeValue<'_>) -> bool,
}

/// The allowed values of a key. `Display` completes the sentence "must be …".
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
    /// The name of a file that is searched, or an absolute path.
    NameOrPath(&'static str),
    AbsolutePath,
    Bool,
    SlicesUid,
    /// `"auto"` or a number of MiB from 0.
    Tolerance {
        to: u32,
    },
    Kubeconfig,
    NodeName,
    /// `"off"` or a group.
    RunGroup,
    /// `"auto"` or a path.
    SlurmConf,
    Directories,
    Cards,
    Exemptions,
    /// `"off"` or an address with a port.
    Listen,
}

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

/// The keys, in the order of the settings' types and of the shipped file.
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
    key!(policy.tolerance_mib, Allowed::Tolerance { to: TOLERANCE_MOST }, tolerance),
    // `read_exemptions` reads it, because its entries have keys of their own.
    key!(policy.exempt, Allowed::Exemptions, |_: &DeValue<'_>| None),
    key!(inject.mode, InjectMode),
    key!(mps.control, Allowed::AbsolutePath, absolute_path),
    key!(mps.processes, Processes),
    key!(mps.debug, Allowed::Bool, |value: &DeValue<'_>| value.as_bool()),
    key!(mps.start_timeout_s, "seconds", 1 to 600),
    key!(mps.multiuser, Switch),
    key!(mps.max_clients, "clients", 0 to 60),
    key!(mps.supervisor, Supervisor),
    key!(mps.orphan, Orphan),
    key!(nvml.library, Allowed::NameOrPath("libnvidia-ml.so.1"), name_or_path),
    key!(run.group, Allowed::RunGroup, run_group),
    key!(run.max_mib, "MiB", 0 to 16_777_216),
    key!(run.max_grants, "grants", 0 to 65_536),
    key!(slurm.jobs, Allowed::Bool, |value: &DeValue<'_>| value.as_bool()),
    key!(slurm.shard_mib, "MiB", 1 to 1_048_576),
    key!(slurm.prefix, Allowed::AbsolutePath, absolute_path),
    key!(slurm.conf, Allowed::SlurmConf, slurm_conf),
    key!(kubernetes.device_plugin, Switch),
    // 1024 is aliyun.com/gpu-mem, which is always served.
    key!(kubernetes.memory_units_mib, each "MiB", 1 to 1023),
    key!(kubernetes.slices_gib, each "GiB", 1 to 1024),
    key!(kubernetes.slices_uid, Allowed::SlicesUid, slices_uid),
    key!(kubernetes.dra, Switch),
    key!(kubernetes.dra_extended_resources, Allowed::Bool, |value: &DeValue<'_>| value.as_bool()),
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
            Self::Bool => f.write_str("true or false"),
            Self::Tolerance { to } => {
                write!(f, "\"auto\" or a whole number of MiB, 0 to {to}")
            }
            Self::SlicesUid => f.write_str("\"any\" or a user's number"),
            Self::Kubeconfig => f.write_str("\"auto\", \"off\" or an absolute path"),
            Self::NodeName => f.write_str("\"auto\" or the name of a Kubernetes node"),
            Self::RunGroup => f.write_str("\"off\" or the name of a group"),
            Self::SlurmConf => f.write_str("\"auto\" or an absolute path"),
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

/// The line, from 1, with this byte.
pub(crate) fn line_at(text: &[u8], offset: usize) -> usize {
    1 + text.iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// Reads a document; a setting that it does not have stays at its default.
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
        let (file, key) = (self.file.to_owned(), join(table, name));
        let line = line_at(self.text.as_bytes(), span.start);
        if let Some((.., why)) = GONE.iter().find(|(of, gone, _)| (*of, *gone) == (table, name)) {
            return ConfigError::GoneKey { file, line, key, why };
        }
        ConfigError::UnknownKey {
            file,
            line,
            key,
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

/// Keys that older versions had, and why they are gone.
const GONE: [(&str, &str, &str); 1] =
    [("mps", "channel", "each container has a door of its own to MPS, and there is no other way")];

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
