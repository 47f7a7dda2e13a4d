//! The JSON file: found, read, checked, and changed by one value. Its format is told in the crate's
//! documentation.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, io, process};

use nvml_wrapper_sys::bindings as nvml;
use serde::Deserialize;

use crate::Fault;
use crate::limits::{Limits, Offer};

const UNKNOWN: Fault = nvml::nvmlReturn_enum_NVML_ERROR_UNKNOWN;

pub(crate) const FILE_NAME: &str = "nvml.json";
const ENVIRONMENT: &str = "MPSGATE_FAKE_NVML";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(crate) driver_version: String,
    pub(crate) cuda_driver_version: Version,
    pub(crate) init_error: Option<ErrorName>,
    #[serde(default)]
    pub(crate) refuse_compute_mode: bool,
    pub(crate) memory_limits: Option<Offer>,
    pub(crate) cards: Vec<Card>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    pub(crate) uuid: String,
    pub(crate) index: u32,
    pub(crate) minor: u32,
    pub(crate) name: String,
    pub(crate) memory_total_mib: u64,
    pub(crate) memory_used_mib: u64,
    pub(crate) compute_capability: Version,
    pub(crate) mig: Mig,
    pub(crate) compute_mode: ComputeMode,
    pub(crate) pci_bus_id: String,
    pub(crate) processes: Vec<Process>,
    #[serde(default)]
    pub(crate) limits: BTreeMap<PathBuf, Limits>,
    error: Option<ErrorName>,
    error_in: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    // Without this a missing key would read as null.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) used_mib: Option<u64>,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Compute,
    Graphics,
    Mps,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mig {
    Disabled,
    Enabled,
    Unsupported,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum ComputeMode {
    Default,
    ExclusiveThread,
    Prohibited,
    ExclusiveProcess,
}

impl ComputeMode {
    const ALL: [(Self, nvml::nvmlComputeMode_t, &str); 4] = [
        (Self::Default, nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT, "DEFAULT"),
        (
            Self::ExclusiveThread,
            nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_THREAD,
            "EXCLUSIVE_THREAD",
        ),
        (Self::Prohibited, nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED, "PROHIBITED"),
        (
            Self::ExclusiveProcess,
            nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
            "EXCLUSIVE_PROCESS",
        ),
    ];

    fn row(self) -> (Self, nvml::nvmlComputeMode_t, &'static str) {
        Self::ALL[self as usize]
    }

    pub(crate) fn code(self) -> nvml::nvmlComputeMode_t {
        self.row().1
    }

    pub(crate) fn from_code(code: nvml::nvmlComputeMode_t) -> Option<Self> {
        Self::ALL.into_iter().find(|row| row.1 == code).map(|row| row.0)
    }
}

/// `12.4`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Version(u8, u8);

impl Version {
    pub(crate) fn parts(self) -> (u8, u8) {
        (self.0, self.1)
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.split_once('.')
            .and_then(|(major, minor)| Some(Self(major.parse().ok()?, minor.parse().ok()?)))
            .ok_or_else(|| format!("`{text}` is no version such as 12.4"))
    }
}

/// NVML's constant without `NVML_ERROR_`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ErrorName(Fault);

impl ErrorName {
    pub(crate) fn code(self) -> Fault {
        self.0
    }
}

impl TryFrom<String> for ErrorName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Ok(Self(match name.as_str() {
            "UNINITIALIZED" => nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
            "INVALID_ARGUMENT" => nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
            "NOT_SUPPORTED" => nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            "NO_PERMISSION" => nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
            "NOT_FOUND" => nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
            "INSUFFICIENT_SIZE" => nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
            "INSUFFICIENT_POWER" => nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER,
            "DRIVER_NOT_LOADED" => nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
            "TIMEOUT" => nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT,
            "IRQ_ISSUE" => nvml::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE,
            "LIBRARY_NOT_FOUND" => nvml::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND,
            "FUNCTION_NOT_FOUND" => nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND,
            "CORRUPTED_INFOROM" => nvml::nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM,
            "GPU_IS_LOST" => nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
            "RESET_REQUIRED" => nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED,
            "OPERATING_SYSTEM" => nvml::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
            "LIB_RM_VERSION_MISMATCH" => nvml::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            "IN_USE" => nvml::nvmlReturn_enum_NVML_ERROR_IN_USE,
            "MEMORY" => nvml::nvmlReturn_enum_NVML_ERROR_MEMORY,
            "NO_DATA" => nvml::nvmlReturn_enum_NVML_ERROR_NO_DATA,
            "UNKNOWN" => UNKNOWN,
            _ => return Err(format!("`{name}` is no error of NVML")),
        }))
    }
}

impl Card {
    /// The error that `call` is to return on this card.
    pub(crate) fn fault_in(&self, call: &str) -> Result<(), Fault> {
        match (self.error, &self.error_in) {
            (Some(error), None) => Err(error.code()),
            (Some(error), Some(calls)) if calls.iter().any(|name| name == call) => {
                Err(error.code())
            }
            _ => Ok(()),
        }
    }
}

impl State {
    /// Reads the file. A bad one is `UNKNOWN`, with the reason on stderr: NVML has no words for it.
    pub(crate) fn load() -> Result<Self, Fault> {
        let path = path();
        read(&path).and_then(|text| Self::parse(&text)).map_err(|error| complain(&path, &error))
    }

    /// Sets one card's compute mode in the file.
    pub(crate) fn save_compute_mode(uuid: &str, mode: ComputeMode) -> Result<(), Fault> {
        let path = path();
        save_compute_mode(&path, uuid, mode).map_err(|error| complain(&path, &error))
    }

    /// Sets or clears one cgroup's limits in the file.
    pub(crate) fn save_limits(
        uuid: &str,
        cgroup: &Path,
        limits: Option<Limits>,
        keeps: bool,
    ) -> Result<(), Fault> {
        let path = path();
        crate::limits::save(&path, uuid, cgroup, limits, keeps)
            .map_err(|error| complain(&path, &error))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (place, card) in state.cards.iter().enumerate() {
            let before = &state.cards[..place];
            if card.index as usize != place {
                return Err(format!("card {place} has index {}", card.index));
            }
            if before.iter().any(|other| other.uuid == card.uuid || other.minor == card.minor) {
                return Err(format!("card {place} has the uuid or minor of another"));
            }
            if card.memory_used_mib > card.memory_total_mib || card.memory_total_mib > 1 << 40 {
                return Err(format!("card {place} has memory that cannot be"));
            }
            if card.error.is_none() && card.error_in.is_some() {
                return Err(format!("card {place} has error_in without error"));
            }
            if card.processes.iter().any(|process| process.used_mib > Some(1 << 40)) {
                return Err(format!("card {place} has a process with memory that cannot be"));
            }
        }
        Ok(state)
    }
}

fn complain(path: &Path, error: &str) -> Fault {
    eprintln!("fake nvml: {}: {error}", path.display());
    UNKNOWN
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| error.to_string())
}

fn path() -> PathBuf {
    env::var_os(ENVIRONMENT).map_or_else(beside_the_library, PathBuf::from)
}

/// `nvml.json` beside this library, by the name under which it was loaded.
fn beside_the_library() -> PathBuf {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let inside: *const fn() -> PathBuf = &(beside_the_library as fn() -> PathBuf);
    // SAFETY: `dladdr` only compares the address, which lies in this library, and fills `info`.
    let found = unsafe { libc::dladdr(inside.cast(), &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::from(FILE_NAME);
    }
    // SAFETY: a C string of the dynamic loader, alive while the library is loaded.
    let library = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(OsStr::from_bytes(library.to_bytes())).with_file_name(FILE_NAME)
}

fn save_compute_mode(path: &Path, uuid: &str, mode: ComputeMode) -> Result<(), String> {
    let line = format!("{uuid} {}", mode.row().2);
    change(path, uuid, "writes", &line, |card| card["compute_mode"] = mode.row().2.into())
}

/// Changes a card in the file, and appends a line to `<file>.<log>`: who was never written to is
/// not in it.
pub(crate) fn change(
    path: &Path,
    uuid: &str,
    log: &str,
    line: &str,
    edit: impl FnOnce(&mut serde_json::Value),
) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let lock = File::create(beside(".lock")).map_err(text)?;
    lock.lock().map_err(text)?;

    // As a tree and not as `State`: what the author of the file wrote stays as it is.
    let mut tree: serde_json::Value =
        serde_json::from_str(&read(path)?).map_err(|error| error.to_string())?;
    let card = tree["cards"]
        .as_array_mut()
        .and_then(|cards| cards.iter_mut().find(|card| card["uuid"] == uuid))
        .ok_or("the card is gone")?;
    edit(card);

    let temporary = beside(&format!(".{}.tmp", process::id()));
    fs::write(&temporary, format!("{tree:#}\n")).map_err(text)?;
    let permissions = fs::metadata(path).map_err(text)?.permissions();
    fs::set_permissions(&temporary, permissions).map_err(text)?;
    fs::rename(&temporary, path).map_err(text)?;

    let mut writes =
        File::options().create(true).append(true).open(beside(&format!(".{log}"))).map_err(text)?;
    writeln!(writes, "{line}").map_err(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::EXAMPLE;

    fn edited(edit: impl FnOnce(&mut serde_json::Value)) -> Result<State, String> {
        let mut tree = serde_json::from_str(EXAMPLE).unwrap();
        edit(&mut tree);
        State::parse(&tree.to_string())
    }

    #[test]
    fn reads_the_example() {
        let state = State::parse(EXAMPLE).unwrap();
        assert_eq!(state.cards.len(), 2);
        assert!(state.cards.iter().all(|card| card.memory_total_mib == 16384));
    }

    #[test]
    fn requires_every_key_that_is_not_optional() {
        let tree: serde_json::Value = serde_json::from_str(EXAMPLE).unwrap();
        for key in tree.as_object().unwrap().keys() {
            let error = edited(|tree| drop(tree.as_object_mut().unwrap().remove(key)));
            assert!(error.unwrap_err().contains(key), "{key}");
        }
        for key in tree["cards"][1].as_object().unwrap().keys() {
            let error = edited(|tree| drop(tree["cards"][1].as_object_mut().unwrap().remove(key)));
            assert!(error.unwrap_err().contains(key), "{key}");
        }
        let without_memory = serde_json::json!([{ "pid": 1, "kind": "mps" }]);
        let error = edited(|tree| tree["cards"][0]["processes"] = without_memory);
        assert!(error.unwrap_err().contains("used_mib"));
    }

    #[test]
    fn refuses_what_no_node_can_have() {
        type Edit = fn(&mut serde_json::Value);
        let edits: [(&str, Edit); 9] = [
            ("surprise", |tree| tree["surprise"] = 1.into()),
            ("surprise", |tree| tree["cards"][0]["surprise"] = 1.into()),
            ("index", |tree| tree["cards"][1]["index"] = 2.into()),
            ("minor", |tree| tree["cards"][1]["minor"] = 0.into()),
            ("memory", |tree| tree["cards"][0]["memory_used_mib"] = 16385.into()),
            ("no version", |tree| tree["cards"][0]["compute_capability"] = "7".into()),
            ("no error of NVML", |tree| tree["cards"][0]["error"] = "LOST".into()),
            ("without error", |tree| tree["cards"][0]["error_in"] = serde_json::json!([])),
            ("exclusive", |tree| tree["cards"][0]["compute_mode"] = "exclusive".into()),
        ];
        for (reason, edit) in edits {
            let error = edited(edit).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }

    #[test]
    fn compute_modes_stand_in_their_own_row() {
        for (mode, code, name) in ComputeMode::ALL {
            assert_eq!(mode.row(), (mode, code, name));
            assert_eq!(ComputeMode::from_code(code), Some(mode));
            assert_eq!(
                serde_json::from_value::<ComputeMode>(name.into()).ok(),
                Some(mode),
                "{name}"
            );
        }
        assert_eq!(ComputeMode::from_code(4), None);
    }

    #[test]
    fn concurrent_changes_of_different_cards_are_all_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let mut tree: serde_json::Value = serde_json::from_str(EXAMPLE).unwrap();
        let card = tree["cards"][0].clone();
        let cards = (0..16).map(|index| {
            let mut card = card.clone();
            card["uuid"] = format!("GPU-{index}").into();
            card["index"] = index.into();
            card["minor"] = index.into();
            card
        });
        tree["cards"] = cards.collect();
        fs::write(&path, tree.to_string()).unwrap();

        std::thread::scope(|scope| {
            for index in 0..16 {
                let path = &path;
                scope.spawn(move || {
                    save_compute_mode(path, &format!("GPU-{index}"), ComputeMode::ExclusiveProcess)
                        .unwrap();
                });
            }
        });

        let state = State::parse(&read(&path).unwrap()).unwrap();
        assert!(state.cards.iter().all(|card| card.compute_mode == ComputeMode::ExclusiveProcess));
    }
}
