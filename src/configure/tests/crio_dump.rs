//! What `crio config` prints, and what is made of it.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_configure::{ConfigureError, Options, Source, Version, Way, crio};

/// A node without crun.
struct Node;

impl Source for Node {
    fn read(&self, _: &Path) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn list(&self, _: &Path) -> Vec<PathBuf> {
        Vec::new()
    }

    fn walk(&self, _: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        Ok(Vec::new())
    }

    fn has_program(&self, program: &str) -> bool {
        program != "crun"
    }
}

fn options() -> Options {
    Options {
        name: "mpsgate".to_owned(),
        shim: "/usr/bin/mpsgate-runtime".to_owned(),
        runtime: "runc".to_owned(),
        keep_default: false,
        all_handlers: false,
        engine: Some(Version(1, 37)),
        before: None,
    }
}

/// The handlers with where they lead, the default first; or the error.
fn read(text: &str) -> String {
    match crio::check_dump(&Node, Path::new(crio::PATH), text, &options(), &crio::Flags::default())
    {
        Ok(report) => {
            let sign = |way| match way {
                Way::Through => '+',
                Way::Bypass => '-',
                Way::Beyond => '?',
            };
            let said = report.findings.iter().map(|f| format!("{}{}", sign(f.way), f.handler));
            said.collect::<Vec<_>>().join(" ")
        }
        Err(error) => format!("{error} | {}", error.hint()),
    }
}

/// What CRI-O prints of settings that name no runtime: all of it comments. In short; whole:
/// `fixtures/crio-1.37-config.toml`.
const STOCK: &str = r#"# The CRI-O configuration file
[crio]
# root = "/var/lib/containers/storage"

[crio.runtime]

# default_runtime is the _name_ of the OCI runtime to be used as the default.
# The name is matched against the runtimes map below.
# default_runtime = "crun"

# Each entry in the table should follow the format:
#
# [crio.runtime.runtimes.runtime-handler]
# runtime_path = "/path/to/the/executable"
# runtime_type = "oci"

# [crio.runtime.runtimes.crun]
# runtime_path = ""
# runtime_type = "oci"
# runtime_root = "/run/crun"
# inherit_default_runtime = false
# allowed_annotations = [
# 	"io.containers.trace-syscall",
# ]

[crio.image]
# pause_image = "registry.k8s.io/pause:3.10.1"
"#;

fn set(runtime: &str) -> String {
    STOCK.replace("# default_runtime = \"crun\"\n", &format!("{runtime}\n"))
}

#[test]
fn handlers_and_the_default_are_those_that_count_also_where_they_stand_as_comments() {
    let ours = "[crio.runtime.runtimes.mpsgate]\nruntime_path = \"/usr/bin/mpsgate-runtime\"\nruntime_type = \"oci\"\n";
    let crun = "[crio.runtime.runtimes.crun]\nruntime_path = \"\"\n";
    let runc = "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n";
    let whole = include_str!("fixtures/crio-1.37-config.toml");
    for (text, expected) in [
        (whole.to_owned(), "-crun"),
        (STOCK.to_owned(), "-crun"),
        (set(&format!("default_runtime = \"mpsgate\"\n{crun}{ours}")), "+mpsgate"),
        (set(&format!("default_runtime = \"runc\"\n{ours}{runc}")), "-runc +mpsgate"),
        // The default is CRI-O's own, and the handlers are not.
        (format!("{}\n{ours}", set("# default_runtime = \"crun\"")), "-crun +mpsgate"),
        (
            set(&format!(
                "default_runtime = \"mpsgate\"\n{ours}platform_runtime_paths = {{\"linux/amd64\" = \"/usr/bin/runc\",\"linux/arm64\" = \"/usr/bin/mpsgate-runtime\"}}\n"
            )),
            "-mpsgate",
        ),
        (
            set(&format!(
                "default_runtime = \"mpsgate\"\n{ours}[crio.runtime.runtimes.perf]\nruntime_path = \"\"\ninherit_default_runtime = true\n[crio.runtime.runtimes.kata]\nruntime_path = \"/k\"\nruntime_type = \"vm\"\n"
            )),
            "+mpsgate +perf ?kata",
        ),
        (
            set(&format!("default_runtime = \"mpsgate\"\n{}", ours.replace("oci", "pod"))),
            "+mpsgate",
        ),
    ] {
        assert_eq!(read(&text), expected, "{text}");
    }
}

#[test]
fn what_is_not_its_settings_is_an_error_that_says_so_and_what_to_do() {
    let hint = "run it by hand, and look at its first lines: crio config | head";
    for (text, what) in [
        ("", "nothing is set in it"),
        ("# only a comment\n", "nothing is set in it"),
        ("FATA[0000] unable to load\n", "no TOML, line 1: key with no value, expected `=`"),
        ("{\"crio\": 1}\n", "no TOML, line 1: invalid key-value pair, expected key"),
        ("[crio]\n", "it does not say what default_runtime is"),
        ("[crio.runtime]\ndefault_runtime = 1\n", "default_runtime is no text"),
        ("[crio.runtime]\ndefault_runtime = \"x\"\n", "it names no handler"),
        ("[crio.runtime]\ndefault_runtime = \"x\"\nruntimes = 1\n", "runtimes is no table"),
    ] {
        assert_eq!(
            read(text),
            format!("what `crio config` printed is not its settings: {what} | {hint}"),
            "{text}"
        );
    }
}
