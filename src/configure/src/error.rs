//! Why settings are left as they are.

use std::io;
use std::path::PathBuf;

/// Why there is no plan, or no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigureError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What the parser found.
        what: String,
    },
    /// JSON with a byte order mark.
    #[error("{} begins with a byte order mark, with which dockerd does not start", path.display())]
    ByteOrderMark {
        /// The file.
        path: PathBuf,
    },
    /// LF and CRLF in one file, or CR at its end.
    #[error("{} has line ends of more than one kind: LF, CRLF or CR", path.display())]
    LineEnds {
        /// The file.
        path: PathBuf,
    },
    /// A value is of another type than the engine documents.
    #[error("{}: {key} is {found}, not {wanted}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it is.
        found: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// containerd's first format.
    #[error("{} is in containerd's format 1, which containerd 2 no longer reads: it has no `version = 2`", path.display())]
    FormatOne {
        /// The file.
        path: PathBuf,
    },
    /// A format that is not known here.
    #[error("{} has version {version}; 2 and 3 are known here", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version, as it stands there.
        version: String,
    },
    /// Files of different formats where the newer one hides what the older one says of CRI.
    #[error("{} has version {version}, {} has {other}: containerd would drop what the older one says of CRI", path.display(), other_path.display())]
    MixedFormats {
        /// The file that decides.
        path: PathBuf,
        /// Its version.
        version: u8,
        /// The other.
        other_path: PathBuf,
        /// Its version.
        other: u8,
    },
    /// CRI is switched off.
    #[error("{} names {plugin} in disabled_plugins: this containerd serves no kubelet, so it has no handlers", path.display())]
    CriDisabled {
        /// The file.
        path: PathBuf,
        /// As it stands there.
        plugin: String,
    },
    /// A file that another program makes.
    #[error("{} is written anew by {owner} at every start", path.display())]
    Generated {
        /// The file.
        path: PathBuf,
        /// k3s or RKE2.
        owner: &'static str,
        /// The file to name instead.
        template: PathBuf,
    },
    /// A template that does not stand on the distribution's own.
    #[error("{} does not contain {{{{ template \"base\" . }}}}, and what a whole template holds cannot be told before {owner} fills it in", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// k3s or RKE2.
        owner: &'static str,
        /// What to paste.
        paste: String,
    },
    /// The default handler runs something that would be lost.
    #[error(
        "the default handler {handler} runs {program}, and runtime.path names {runtime}: containers would lose what {program} does for them"
    )]
    OtherRuntime {
        /// The handler.
        handler: String,
        /// Its program.
        program: String,
        /// The real runtime of mpsgate's settings.
        runtime: String,
    },
    /// The default handler cannot be copied.
    #[error("{}: the default handler {handler} {why}", path.display())]
    Default {
        /// The file.
        path: PathBuf,
        /// The handler.
        handler: String,
        /// What is wrong with it.
        why: String,
        /// What would do, and where it is named.
        fit: &'static str,
    },
    /// Another file says the same, and counts more.
    #[error("{} is read after {}, and what counts is its {keys}", by.display(), ours.display())]
    Outranked {
        /// The file that counts.
        by: PathBuf,
        /// Ours.
        ours: PathBuf,
        /// What it says.
        keys: String,
    },
    /// CRI-O's command line, or its environment, says the same.
    #[error(
        "crio is started with {flag}, which counts more than any file, and containers bypass mpsgate by it"
    )]
    CrioFlag {
        /// The flag, with its value.
        flag: String,
    },
    /// The file that would be written is not where CRI-O looks.
    #[error("crio is started with --config-dir {}, and {} is not in there", directory.display(), ours.display())]
    Elsewhere {
        /// Where it looks.
        directory: PathBuf,
        /// Ours.
        ours: PathBuf,
    },
    /// What stands among drop-ins and is no file.
    #[error("{} {what}, and CRI-O does not start with it", path.display())]
    NoFile {
        /// Its path.
        path: PathBuf,
        /// What it is, with the verb.
        what: &'static str,
    },
    /// What an engine printed as its settings cannot be understood.
    #[error("what `{command}` printed is not its settings: {what}")]
    Dump {
        /// The engine's program and what it was asked.
        command: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// Our name is somebody else's.
    #[error("{}: there is a handler {name} already, and it runs {program}", path.display())]
    NameTaken {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// What it runs.
        program: String,
    },
    /// A name that the engine keeps for itself or that cannot be a name.
    #[error("{name:?} cannot be the name of a handler: {why}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// dockerd was started with the same setting.
    #[error("dockerd is started with {flag}, and does not start when the file says the same")]
    Flag {
        /// The flag.
        flag: String,
    },
    /// Our own result does not hold: nothing is written.
    #[error("{} is written in a way that cannot be edited safely: {what}", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        what: String,
    },
}

impl ConfigureError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Read { path, .. } => {
                format!("ls -l {}; settings are UTF-8 text, readable by root", path.display())
            }
            Self::Syntax { path, .. } => format!(
                "mend the line; the engine does not start with it either. Nothing was changed in {}",
                path.display()
            ),
            Self::ByteOrderMark { path } => {
                format!("take it off: sed -i '1s/^\\xef\\xbb\\xbf//' {}", path.display())
            }
            Self::LineEnds { path } => {
                format!("make them one kind: sed -i 's/\\r*$//' {}", path.display())
            }
            Self::Type { key, wanted, .. } => {
                format!("make {key} {wanted}, as the engine's documentation has it")
            }
            Self::FormatOne { path } => format!(
                "with containerd 2: containerd --config {p} config migrate >{p}.new; look at it and put it in place. With containerd 1: \
                 add version = 2 and rename the plugins as its PLUGINS.md says",
                p = path.display()
            ),
            Self::Format { .. } => {
                "containerd --version; a newer mpsgate may know this format".to_owned()
            }
            Self::MixedFormats { path, other_path, .. } => format!(
                "bring both to one version: containerd --config FILE config migrate, for {} or {}",
                path.display(),
                other_path.display()
            ),
            Self::CriDisabled { plugin, .. } => format!(
                "for Docker: mpsgate configure docker. For Kubernetes: take \"{plugin}\" out of disabled_plugins, add version = 2, and call this again"
            ),
            Self::Generated { template, .. } => {
                format!("mpsgate configure containerd --config {}", template.display())
            }
            Self::Template { paste, .. } => format!(
                "add this at its end, and name it as default_runtime_name:\n{}",
                paste.trim_end()
            ),
            Self::OtherRuntime { program, runtime, .. } => format!(
                "path = \"{program}\" below [runtime] in /etc/mpsgate/config.toml, mpsgate reload, then this again; or --all-handlers, to run {runtime} instead"
            ),
            Self::Default { fit, .. } => format!("name one that is there and {fit}"),
            Self::Outranked { by, ours, .. } => format!(
                "take that out of it, or have it read first: mv {} {}; then this again",
                by.display(),
                ours.with_file_name(format!(
                    "10-{}",
                    by.file_name().unwrap_or_default().to_string_lossy()
                ))
                .display()
            ),
            Self::CrioFlag { .. } => {
                "systemctl cat crio shows where it stands, and the files that it names, such as /etc/sysconfig/crio. Take it out \
                 there, systemctl restart crio, then this again"
                    .to_owned()
            }
            Self::Elsewhere { directory, ours } => format!(
                "mpsgate configure crio --config {}",
                directory.join(ours.file_name().unwrap_or_default()).display()
            ),
            Self::NoFile { path, .. } => {
                format!("ls -l {}; take it away, or put a file in its place", path.display())
            }
            Self::Dump { command, .. } => {
                format!("run it by hand, and look at its first lines: {command} | head")
            }
            Self::NameTaken { .. } => "choose another one: --name NAME".to_owned(),
            Self::Name { .. } => {
                "choose another one, of letters, digits, - and _: --name NAME".to_owned()
            }
            Self::Flag { flag } => {
                format!("take {flag} out of dockerd's command line: systemctl edit docker")
            }
            Self::Unsafe { path, .. } => format!(
                "write inline tables and dotted keys of {} as [tables], then this again",
                path.display()
            ),
        }
    }
}
