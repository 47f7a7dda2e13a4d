//! A handler of CRI-O, and who said it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::{Options, Source, Version};

/// What is named in `runtimes` for a platform runs instead of `runtime_path`.
pub(super) const PLATFORMS: &str = "platform_runtime_paths";
/// Takes program, type and root of the default handler.
pub(super) const INHERITS: &str = "inherit_default_runtime";

/// From which version crun is built in as the default, and runc no longer.
const CRUN_FROM: Version = Version(1, 31);
/// From which version the built-in handler allows devices, and by which name later.
const DEVICES_FROM: Version = Version(1, 29);
const DEVICES_RENAMED_FROM: Version = Version(1, 35);
/// Types by which CRI-O runs a program at `runtime_path`: with conmon, and with conmon-rs.
const RUN: [&str; 2] = ["oci", "pod"];

/// Who said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// CRI-O has it whatever its settings are.
    BuiltIn,
    /// A file.
    File(PathBuf),
    /// The command line or the environment: the flag with its value.
    Flag(String),
    /// CRI-O's own reading, which does not tell.
    Dump,
    /// Nobody.
    Nowhere,
}

impl Origin {
    pub(super) fn is(&self, path: &Path) -> bool {
        matches!(self, Self::File(file) if file == path)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Handler {
    pub(super) name: String,
    pub(super) program: String,
    pub(super) kind: String,
    pub(super) inherits: bool,
    /// Programs that run in `program`'s place, each with its platform before it.
    pub(super) platforms: Vec<(String, String)>,
    pub(super) table: Map<String, Value>,
    pub(super) origin: Origin,
}

impl Handler {
    pub(super) fn of(name: &str, table: &Map<String, Value>, origin: Origin) -> Self {
        let text =
            |key: &str| table.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let platforms = table.get(PLATFORMS).and_then(Value::as_object).into_iter().flatten();
        Self {
            name: name.to_owned(),
            // Without a path CRI-O looks for the name in $PATH.
            program: text("runtime_path").unwrap_or(name).to_owned(),
            kind: text("runtime_type").unwrap_or("oci").to_owned(),
            inherits: table.get(INHERITS) == Some(&json!(true)),
            platforms: platforms
                .filter_map(|(name, program)| Some((name.clone(), program.as_str()?.to_owned())))
                .collect(),
            table: table.clone(),
            origin,
        }
    }

    /// One of which nothing but its name is known.
    pub(super) fn bare(name: &str) -> Self {
        Self::of(name, &Map::new(), Origin::Nowhere)
    }

    /// The handler that CRI-O has in any case (`defaultRuntimeHandler` in its pkg/config).
    pub(super) fn built_in(engine: Option<Version>) -> Self {
        let mut annotations = vec!["io.containers.trace-syscall"];
        match engine {
            Some(version) if version < DEVICES_FROM => {}
            Some(version) if version < DEVICES_RENAMED_FROM => {
                annotations.push("io.kubernetes.cri-o.Devices");
            }
            _ => annotations.push("devices.crio.io"),
        }
        let mut table = Map::new();
        table.insert("runtime_path".to_owned(), json!(""));
        table.insert("runtime_type".to_owned(), json!("oci"));
        table.insert("allowed_annotations".to_owned(), json!(annotations));
        table.insert(
            "monitor_env".to_owned(),
            json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]),
        );
        let is_runc = engine.is_some_and(|version| version < CRUN_FROM);
        if !is_runc {
            table.insert("container_min_memory".to_owned(), json!("500KiB"));
        }
        Self::of(if is_runc { "runc" } else { "crun" }, &table, Origin::BuiltIn)
    }

    /// Whether CRI-O runs a program for it that ours can stand before.
    pub(super) fn runs_a_program(&self) -> bool {
        RUN.contains(&self.kind.as_str())
    }

    /// Whether CRI-O looks for a program of the handler's name, and there is none.
    pub(super) fn is_without_program(&self, source: &dyn Source) -> bool {
        let is_named = self.table.get("runtime_path").is_some_and(|path| path != "");
        !is_named && !self.inherits && !source.has_program(&self.name)
    }

    /// Programs by platform that are not ours: `PROGRAM for PLATFORM`.
    pub(super) fn strangers(&self, options: &Options) -> Vec<String> {
        let strange =
            |(_, program): &&(String, String)| !program.is_empty() && !options.is_shim(program);
        let said = |(platform, program): &(String, String)| format!("{program} for {platform}");
        self.platforms.iter().filter(strange).map(said).collect()
    }

    /// As it is called where no kind is told.
    pub(super) fn title(&self) -> String {
        if self.origin == Origin::BuiltIn {
            format!("handler {}, which CRI-O has built in,", self.name)
        } else {
            format!("handler {}", self.name)
        }
    }
}
