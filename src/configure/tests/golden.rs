//! Every configuration as it occurs: what would be written, said and reported, as golden text; that
//! a second call changes nothing; and, where containerd's program is there, that it reads the
//! result as meant.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests make what they look at"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mpsgate_configure::{
    Change, ConfigureError, Options, Plan, Report, Source, Version, Way, containerd, crio, docker,
    podman,
};
use mpsgate_testing::{golden, programs};

/// A file system in memory.
#[derive(Debug, Clone, Default)]
struct Files(BTreeMap<PathBuf, String>);

impl Source for Files {
    fn read(&self, path: &Path) -> std::io::Result<Option<String>> {
        Ok(self.0.get(path).cloned())
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        self.0.keys().filter(|path| path.parent() == Some(directory)).cloned().collect()
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        Ok(self.0.keys().filter(|path| path.starts_with(directory)).cloned().collect())
    }

    /// All are there, but those that lie in `/absent`.
    fn has_program(&self, program: &str) -> bool {
        !self.0.contains_key(&Path::new("/absent").join(program))
    }
}

impl Files {
    fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect())
    }

    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            assert_eq!(self.0.insert(change.path.clone(), change.after.clone()), change.before);
        }
    }
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name))
        .unwrap()
}

fn options() -> Options {
    Options {
        name: "mpsgate".to_owned(),
        shim: "/usr/bin/mpsgate-runtime".to_owned(),
        runtime: "runc".to_owned(),
        keep_default: false,
        all_handlers: false,
        engine: None,
        before: None,
    }
}

fn engine(major: u32, minor: u32) -> Options {
    Options { engine: Some(Version(major, minor)), ..options() }
}

fn with_runtime(runtime: &str, options: Options) -> Options {
    Options { runtime: runtime.to_owned(), ..options }
}

/// One engine's two questions.
type Ask<'a> = (
    &'a dyn Fn(&Files) -> Result<Plan, ConfigureError>,
    &'a dyn Fn(&Files) -> Result<Report, ConfigureError>,
);

/// What the operator reads, before and after.
fn tell(name: &str, mut files: Files, (plan, check): Ask<'_>) -> (String, Files) {
    let mut text = format!("==== {name}\n");
    match plan(&files) {
        Err(error) => {
            let _ = writeln!(text, "error: {error}\nhint: {}", error.hint());
        }
        Ok(plan_) => {
            for change in &plan_.changes {
                text.push_str(&change.diff());
            }
            for note in &plan_.notes {
                let _ = writeln!(text, "note: {note}");
            }
            let _ = writeln!(text, "then: {}", plan_.restart);
            files.apply(&plan_.changes);
            let again = plan(&files).unwrap();
            assert_eq!(again.changes, [], "{name}: a second call changes something");
        }
    }
    match check(&files) {
        Ok(report) => {
            for finding in &report.findings {
                let _ = writeln!(text, "{:?}: {}", finding.way, finding.sentence);
            }
            let _ = writeln!(text, "covered: {}", report.is_covered());
        }
        Err(error) => {
            let _ = writeln!(text, "check: error: {error}");
        }
    }
    (text + "\n", files)
}

const MAIN: &str = "/etc/containerd/config.toml";
const NVIDIA: &str = "/etc/containerd/conf.d/99-nvidia.toml";

fn containerd_cases() -> Vec<(&'static str, Files, Options)> {
    let one = |text: &str| Files::of(&[(MAIN, text)]);
    let debian = fixture("containerd-debian.toml");
    let bom = format!("\u{feff}{debian}");
    let crlf = debian.replace('\n', "\r\n");
    let nvidia = Files::of(&[
        (MAIN, &fixture("containerd-nvidia-main.toml")),
        (NVIDIA, &fixture("containerd-nvidia-drop-in.toml")),
    ]);
    let real_nvidia = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
    let operator = fixture("containerd-gpu-operator.toml");
    vec![
        ("missing", Files::default(), options()),
        ("missing, containerd 2.1", Files::default(), engine(2, 1)),
        ("empty", one(""), engine(1, 6)),
        ("comments only", one("# nothing yet\n"), engine(2, 1)),
        ("Debian's, containerd 1.6", one(&debian), engine(1, 6)),
        ("Debian's, containerd 2.1", one(&debian), engine(2, 1)),
        ("Debian's with a byte order mark", one(&bom), engine(1, 7)),
        ("Debian's with CRLF", one(&crlf), engine(1, 7)),
        ("Debian's without a last line end", one(debian.trim_end()), engine(1, 7)),
        ("both line ends", one("version = 2\r\n[plugins]\n"), options()),
        ("syntax error", one("version = 2\n[plugins\n"), options()),
        ("1.6 default", one(&fixture("containerd-1.6.20-default.toml")), engine(1, 6)),
        ("1.7 default", one(&fixture("containerd-1.7.24-default.toml")), engine(1, 7)),
        ("2.1 default", one(&fixture("containerd-2.1.9-default.toml")), engine(2, 1)),
        ("2.1 default, in place", one(&fixture("containerd-2.1.9-default.toml")), options()),
        ("GKE, containerd 1.7", one(&fixture("containerd-gke.toml")), engine(1, 7)),
        ("GKE, containerd 2.1", one(&fixture("containerd-gke.toml")), engine(2, 1)),
        ("nvidia-ctk, containerd 1.7", nvidia.clone(), engine(1, 7)),
        ("nvidia-ctk, containerd 2.1", nvidia.clone(), engine(2, 1)),
        (
            "nvidia-ctk, containerd 2.1, runtime.path names NVIDIA's",
            nvidia,
            with_runtime("/usr/bin/nvidia-container-runtime", engine(2, 1)),
        ),
        ("GPU operator, its own default", one(&operator), engine(1, 7)),
        (
            "GPU operator, runtime.path names NVIDIA's",
            one(&operator),
            with_runtime(real_nvidia, engine(1, 7)),
        ),
        (
            "GPU operator, all handlers",
            one(&operator),
            Options { all_handlers: true, ..engine(1, 7) },
        ),
        (
            "GPU operator, keep the default",
            one(&operator),
            Options { keep_default: true, ..engine(1, 7) },
        ),
        ("dotted keys and inline tables", one(&fixture("containerd-others.toml")), engine(2, 0)),
        (
            "dotted keys and inline tables, containerd 2.1",
            one(&fixture("containerd-others.toml")),
            engine(2, 1),
        ),
        ("Docker Inc.'s", one(&fixture("containerd-docker-inc.toml")), engine(1, 7)),
        ("format 1", one(&fixture("containerd-format-1.toml")), engine(1, 6)),
        ("format 4", one("version = 4\n"), engine(2, 1)),
        (
            "formats mixed",
            Files::of(&[
                (
                    MAIN,
                    "version = 2\nimports = [\"conf.d/*.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"x\"\n",
                ),
                (
                    NVIDIA,
                    "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = true\n",
                ),
            ]),
            engine(2, 1),
        ),
        (
            "the name is taken",
            one(
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mpsgate]\nruntime_type = \"io.containerd.runc.v2\"\n",
            ),
            engine(1, 7),
        ),
        (
            "the default is not there",
            one(
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"x\"\n",
            ),
            engine(1, 7),
        ),
        (
            "a wrong type",
            one(
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nBinaryName = 7\n",
            ),
            engine(1, 7),
        ),
        ("k3s's own result", one(&fixture("k3s-generated.toml")), options()),
    ]
}

fn ask_containerd(name: &str, path: &str, files: Files, options: &Options) -> (String, Files) {
    let path = Path::new(path);
    tell(
        name,
        files,
        (&|files| containerd::plan(files, path, options), &|files| {
            containerd::check(files, path, options)
        }),
    )
}

#[test]
fn containerd_as_it_occurs() {
    let mut text = String::new();
    for (name, files, options) in containerd_cases() {
        text.push_str(&ask_containerd(name, MAIN, files, &options).0);
    }
    golden!("containerd.txt", &text);
}

/// NVIDIA's runtime as `runtime.path`, then runc, then NVIDIA's again. With runc its handler runs
/// what it ran before, with a word on that; with NVIDIA's it is led, as it was the first time.
#[test]
fn a_handler_is_given_back_when_its_program_is_no_longer_the_real_runtime() {
    let nvidia = "nvidia-container-runtime";
    let containerd = Files::of(&[
        (MAIN, &fixture("containerd-nvidia-main.toml")),
        (NVIDIA, &fixture("containerd-nvidia-drop-in.toml")),
    ]);
    let docker = fixture("docker-nvidia.json").replace("\"nvidia\",", "\"runc\",");
    let docker = Files::of(&[(docker::PATH, &docker)]);
    let path = Path::new(MAIN);
    for (files, engine, docker) in [
        (&containerd, engine(2, 1), false),
        (&containerd, engine(1, 7), false),
        (&docker, options(), true),
    ] {
        let path = if docker { Path::new(docker::PATH) } else { path };
        let plan = |files: &Files, options: &Options| match docker {
            true => docker::plan(files, path, options, &[]),
            false => containerd::plan(files, path, options),
        };
        let check = |files: &Files, options: &Options| match docker {
            true => docker::check(files, path, options),
            false => containerd::check(files, path, options),
        };
        let before = match docker {
            true => docker::programs(files, path),
            false => containerd::programs(files, path, &engine),
        };
        let known = Options { before: Some(before.unwrap()), ..engine.clone() };
        let there = with_runtime(nvidia, known.clone());
        let way = |files: &Files, options: &Options| {
            let report = check(files, options).unwrap();
            report.findings.into_iter().find(|finding| finding.handler == "nvidia").unwrap()
        };
        let mut now = files.clone();
        now.apply(&plan(&now, &there).unwrap().changes);
        let led = check(&now, &there).unwrap().findings;
        assert_eq!(way(&now, &there).way, Way::Through);
        let back = plan(&now, &known).unwrap();
        now.apply(&back.changes);
        assert_eq!(way(&now, &known).way, Way::Bypass, "{:?}", now.0);
        assert!(way(&now, &known).sentence.contains(nvidia), "{:?}", way(&now, &known));
        assert!(
            back.notes
                .iter()
                .any(|note| note.contains("nvidia-container-runtime and bypasses mpsgate"))
        );
        assert_eq!(plan(&now, &known).unwrap().changes, []);
        now.apply(&plan(&now, &there).unwrap().changes);
        assert_eq!(check(&now, &there).unwrap().findings, led);
        // Where nobody knows what it ran, it stays.
        let unknown = Options { before: None, ..engine };
        assert_eq!(plan(&now, &unknown).unwrap().changes, []);
    }
}

#[test]
fn a_default_whose_program_would_be_lost_later_is_refused_as_at_first() {
    let operator = Files::of(&[(MAIN, &fixture("containerd-gpu-operator.toml"))]);
    let (path, runtime) = (Path::new(MAIN), "/usr/local/nvidia/toolkit/nvidia-container-runtime");
    let before = containerd::programs(&operator, path, &engine(1, 7)).unwrap();
    let known = Options { before: Some(before), ..engine(1, 7) };
    let mut now = operator;
    now.apply(
        &containerd::plan(&now, path, &with_runtime(runtime, known.clone())).unwrap().changes,
    );
    let error = containerd::plan(&now, path, &known).unwrap_err();
    assert!(
        matches!(&error, ConfigureError::OtherRuntime { program, .. } if program == runtime),
        "{error}"
    );
}

#[test]
fn templates_of_k3s_and_rke2() {
    let mut text = String::new();
    for (name, path, before) in [
        ("k3s, no template", "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl", None),
        (
            "k3s, a template on the base",
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
            Some(fixture("k3s-base.toml.tmpl")),
        ),
        (
            "rke2, an old whole template",
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl",
            Some(fixture("k3s-full.toml.tmpl")),
        ),
        ("rke2, no template", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl", None),
    ] {
        let files = Files(before.into_iter().map(|text| (PathBuf::from(path), text)).collect());
        let generated = Files::of(&[("/g/config.toml", &fixture("k3s-generated.toml"))]);
        let check =
            |_: &Files| containerd::check(&generated, Path::new("/g/config.toml"), &options());
        text.push_str(
            &tell(
                name,
                files,
                (&|files| containerd::plan(files, Path::new(path), &options()), &check),
            )
            .0,
        );
    }
    golden!("templates.txt", &text);
}

#[test]
fn docker_as_it_occurs() {
    let path = Path::new(docker::PATH);
    let mut text = String::new();
    let nvidia = fixture("docker-nvidia.json");
    for (name, before, options, line) in [
        ("missing", None, options(), ""),
        ("empty", Some(String::new()), options(), ""),
        ("tabs, no last line end", Some(fixture("docker-tabs.json")), options(), ""),
        ("CRLF", Some("{\r\n  \"debug\": true\r\n}\r\n".to_owned()), options(), ""),
        ("with NVIDIA's runtime as default", Some(nvidia.clone()), options(), ""),
        (
            "with NVIDIA's runtime, runtime.path names it",
            Some(nvidia.clone()),
            with_runtime("nvidia-container-runtime", options()),
            "",
        ),
        (
            "with NVIDIA's runtime, all handlers",
            Some(nvidia.clone()),
            Options { all_handlers: true, ..options() },
            "",
        ),
        (
            "with NVIDIA's runtime, keep the default",
            Some(nvidia.clone()),
            Options { keep_default: true, ..options() },
            "",
        ),
        (
            "NVIDIA's runtime not as default",
            Some(
                nvidia.replace("\"default-runtime\": \"nvidia\"", "\"default-runtime\": \"runc\""),
            ),
            options(),
            "",
        ),
        ("comments", Some("{\n  // not JSON\n  \"debug\": true\n}\n".to_owned()), options(), ""),
        ("a key twice", Some("{\"debug\": true, \"debug\": false}".to_owned()), options(), ""),
        ("a wrong type", Some("{\"runtimes\": []}".to_owned()), options(), ""),
        ("a list", Some("[]".to_owned()), options(), ""),
        ("a byte order mark", Some("\u{feff}{}".to_owned()), options(), ""),
        ("dockerd with the flag", None, options(), "/usr/sbin/dockerd --default-runtime=nvidia"),
        ("the name runc", None, Options { name: "runc".to_owned(), ..options() }, ""),
    ] {
        let files = Files(before.into_iter().map(|text| (path.to_owned(), text)).collect());
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        text.push_str(
            &tell(
                name,
                files,
                (&|files| docker::plan(files, path, &options, &line), &|files| {
                    docker::check(files, path, &options)
                }),
            )
            .0,
        );
    }
    golden!("docker.txt", &text);
}

#[test]
fn podman_as_it_occurs() {
    let path = Path::new(podman::PATH);
    let mut text = String::new();
    let house = fixture("podman-containers.conf");
    for (name, files, options, with_hooks) in [
        ("missing", Files::default(), options(), false),
        ("missing, crun below", Files::default(), with_runtime("crun", options()), false),
        (
            "settings of the house",
            Files::of(&[("/etc/containers/containers.conf", &house)]),
            options(),
            false,
        ),
        (
            "our file, edited",
            Files::of(&[(
                podman::PATH,
                "# mine\n[engine]\nruntime = \"crun\"\nevents_logger = \"file\"\n",
            )]),
            options(),
            false,
        ),
        (
            "NVIDIA's as default",
            Files::of(&[(
                "/etc/containers/containers.conf.d/99-nvidia.conf",
                "[engine]\nruntime = \"nvidia\"\n[engine.runtimes]\nnvidia = [\"/usr/bin/nvidia-container-runtime\"]\n",
            )]),
            options(),
            false,
        ),
        ("hooks only", Files::default(), options(), true),
        (
            "hooks only, a directory of the house",
            Files::of(&[(
                "/etc/containers/containers.conf",
                "[engine]\nhooks_dir = [\"/opt/hooks\"]\n",
            )]),
            options(),
            true,
        ),
        (
            "syntax error",
            Files::of(&[("/etc/containers/containers.conf", "[engine\n")]),
            options(),
            false,
        ),
    ] {
        let chosen = with_hooks.then_some("{}\n");
        text.push_str(
            &tell(
                name,
                files,
                (&|files| podman::plan(files, path, &options, chosen), &|files| {
                    podman::check(files, path, &options)
                }),
            )
            .0,
        );
    }
    golden!("podman.txt", &text);
}

/// A drop-in of the user's: what `runtimes` are, and which is the default.
fn crio_user(name: &str, text: &str) -> Files {
    Files::of(&[(&format!("/etc/crio/crio.conf.d/{name}"), text)])
}

const RUNC: &str = "[crio.runtime]\ndefault_runtime = \"runc\"\n\n[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/sbin/runc\"\n";

fn crio_cases() -> Vec<(&'static str, Files, Options, &'static str)> {
    let packaged = crio_user("10-crio.conf", &fixture("crio-10-crio.conf"));
    let and = |mut files: Files, path: &str, text: &str| {
        files.0.insert(PathBuf::from(path), text.to_owned());
        files
    };
    let runc = || crio_user("10-user.conf", RUNC);
    let no_crun = |files: Files| and(files, "/absent/crun", "");
    let all = |options: Options| Options { all_handlers: true, ..options };
    let handler = |keys: &str| format!("{RUNC}\n[crio.runtime.runtimes.other]\n{keys}\n");
    vec![
        ("missing", Files::default(), options(), ""),
        ("missing, CRI-O 1.28", Files::default(), engine(1, 28), ""),
        ("missing, CRI-O 1.30", Files::default(), engine(1, 30), ""),
        ("missing, CRI-O 1.36", Files::default(), engine(1, 36), ""),
        ("missing, CRI-O 1.34 on crun", Files::default(), with_runtime("crun", engine(1, 34)), ""),
        ("missing, CRI-O 1.37 on crun", Files::default(), with_runtime("crun", engine(1, 37)), ""),
        ("missing, CRI-O 1.37, all handlers onto runc", Files::default(), all(engine(1, 37)), ""),
        ("packaged", packaged.clone(), options(), ""),
        (
            "packaged, runtime.path names its crun",
            packaged.clone(),
            with_runtime("/usr/libexec/crio/crun", options()),
            "",
        ),
        ("packaged, keep the default", packaged, Options { keep_default: true, ..options() }, ""),
        ("runc without a root, crun is installed", runc(), engine(1, 37), ""),
        ("runc without a root, no crun", no_crun(runc()), engine(1, 37), ""),
        (
            "runc, runtime.path names NVIDIA's",
            no_crun(runc()),
            with_runtime("nvidia-container-runtime", engine(1, 37)),
            "",
        ),
        ("a drop-in behind ours", no_crun(crio_user("zzz-user.conf", RUNC)), engine(1, 37), ""),
        (
            "a drop-in behind ours that names a handler of ours as the default",
            no_crun(and(
                runc(),
                "/etc/crio/crio.conf.d/zzz.conf",
                "[crio.runtime]\ndefault_runtime = \"runc\"\n",
            )),
            engine(1, 37),
            "",
        ),
        (
            "an editor's copy of ours",
            no_crun(and(
                runc(),
                "/etc/crio/crio.conf.d/zz-mpsgate.conf~",
                "[crio.runtime.runtimes.mpsgate]\nruntime_path = \"/usr/bin/runc\"\n",
            )),
            engine(1, 37),
            "",
        ),
        (
            "a drop-in in a folder",
            no_crun(and(
                runc(),
                "/etc/crio/crio.conf.d/50-more.d/x",
                "[crio.runtime.runtimes.second]\nruntime_path = \"/usr/bin/runc\"\n",
            )),
            engine(1, 37),
            "",
        ),
        (
            "a drop-in in a folder behind ours",
            no_crun(and(
                runc(),
                "/etc/crio/crio.conf.d/zzz.d/x.conf",
                "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n",
            )),
            engine(1, 37),
            "",
        ),
        (
            "a later file that wants CRI-O's own default",
            and(
                runc(),
                "/etc/crio/crio.conf.d/20-none.conf",
                "[crio.runtime]\ndefault_runtime = \"\"\n",
            ),
            with_runtime("crun", engine(1, 37)),
            "",
        ),
        (
            "platforms with a program of their own",
            no_crun(crio_user(
                "10-user.conf",
                &format!(
                    "{RUNC}platform_runtime_paths = {{ \"linux/amd64\" = \"/usr/sbin/runc\" }}\n"
                ),
            )),
            engine(1, 37),
            "",
        ),
        (
            "a handler that inherits",
            no_crun(crio_user("10-user.conf", &handler("inherit_default_runtime = true"))),
            engine(1, 37),
            "",
        ),
        (
            "a handler that inherits, while the default bypasses mpsgate",
            no_crun(crio_user("10-user.conf", &handler("inherit_default_runtime = true"))),
            Options { keep_default: true, ..engine(1, 37) },
            "",
        ),
        (
            "a handler that inherits, but for one platform",
            no_crun(crio_user(
                "10-user.conf",
                &handler(
                    "inherit_default_runtime = true\nplatform_runtime_paths = { \"linux/arm64\" = \"/usr/sbin/runc\" }",
                ),
            )),
            engine(1, 37),
            "",
        ),
        (
            "conmon-rs",
            no_crun(crio_user(
                "10-user.conf",
                &format!("{RUNC}runtime_type = \"pod\"\nmonitor_path = \"/usr/bin/conmonrs\"\n"),
            )),
            engine(1, 37),
            "",
        ),
        (
            "Kata beside",
            no_crun(crio_user(
                "10-user.conf",
                &handler(
                    "runtime_path = \"/usr/bin/containerd-shim-kata-v2\"\nruntime_type = \"vm\"",
                ),
            )),
            engine(1, 37),
            "",
        ),
        (
            "Kata as the default",
            no_crun(crio_user("10-user.conf", &format!("{RUNC}runtime_type = \"vm\"\n"))),
            engine(1, 37),
            "",
        ),
        (
            "the name is taken",
            no_crun(crio_user(
                "10-user.conf",
                &handler("runtime_path = \"/opt/x\"").replace("runtimes.other", "runtimes.mpsgate"),
            )),
            engine(1, 37),
            "",
        ),
        (
            "started with another default",
            no_crun(runc()),
            engine(1, 37),
            "crio --runtimes plain:/usr/sbin/runc:/run/runc --default-runtime plain",
        ),
        (
            "started with a handler that ours would lead",
            no_crun(runc()),
            engine(1, 37),
            "crio --runtimes=plain:/usr/sbin/runc:/run/runc",
        ),
        (
            "started with a default that ours leads",
            no_crun(runc()),
            engine(1, 37),
            "crio --default-runtime=runc",
        ),
        (
            "started with drop-ins elsewhere",
            no_crun(runc()),
            engine(1, 37),
            "crio --config-dir /etc/other.d",
        ),
        (
            "started with another main file",
            no_crun(Files::of(&[
                ("/etc/other.conf", RUNC),
                ("/etc/crio/crio.conf", "[crio.runtime]\ndefault_runtime = \"kata\"\n"),
            ])),
            engine(1, 37),
            "crio -c /etc/other.conf",
        ),
        (
            "a default that nobody defines",
            crio_user("10-user.conf", "[crio.runtime]\ndefault_runtime = \"gone\"\n"),
            options(),
            "",
        ),
        ("syntax error", Files::of(&[("/etc/crio/crio.conf", "[crio\n")]), options(), ""),
        (
            "a wrong type",
            crio_user("10-user.conf", "[crio.runtime]\ndefault_runtime = [\"runc\"]\n"),
            options(),
            "",
        ),
    ]
}

#[test]
fn crio_as_it_occurs() {
    let path = Path::new(crio::PATH);
    let mut text = String::new();
    for (name, files, options, line) in crio_cases() {
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let flags = crio::Flags::of(&line, &[]);
        text.push_str(
            &tell(
                name,
                files,
                (&|files| crio::plan(files, path, &options, &flags), &|files| {
                    crio::check(files, path, &options, &flags)
                }),
            )
            .0,
        );
    }
    golden!("crio.txt", &text);
}

/// The same files below another root.
fn below(root: &Path, files: &Files) -> Files {
    let at = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    Files(files.0.iter().map(|(path, text)| (at(path), text.clone())).collect())
}

/// CRI-O's program, where there is one: `$CRIO_BIN` names its folder.
#[test]
fn real_crio_reads_files_and_flags_as_we_do_before_and_after() {
    let folder = std::env::var_os("CRIO_BIN").map_or_else(|| "/usr/bin".into(), PathBuf::from);
    let program = folder.join("crio");
    if !program.is_file() {
        mpsgate_testing::skip!("needs crio in {}", folder.display());
    }
    let mut read = 0;
    for (name, files, options, line) in crio_cases() {
        // Which handler is built in depends on the version.
        if options.engine.is_none_or(|version| version < Version(1, 35)) {
            continue;
        }
        let dir = tempdir();
        let line = line.replace("/etc/", &format!("{}/etc/", dir.display()));
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let flags = crio::Flags::of(&line, &[]);
        let path = dir.join(crio::PATH.strip_prefix('/').unwrap());
        // Drop-ins elsewhere are read where they are.
        let path = flags.directory().map_or(path, |directory| directory.join("zz-mpsgate.conf"));
        let (absent, mut files): (Files, Files) = {
            let (absent, files): (BTreeMap<_, _>, BTreeMap<_, _>) =
                files.0.into_iter().partition(|(path, _)| path.starts_with("/absent"));
            (Files(absent), below(&dir, &Files(files)))
        };
        let ask = |files: &Files, arguments: Vec<String>| {
            let said = Command::new(&program).args(arguments).output().unwrap();
            assert!(said.status.success(), "{name}: {}", String::from_utf8_lossy(&said.stderr));
            let text = String::from_utf8(said.stdout).unwrap();
            let mut all = files.clone();
            all.0.extend(absent.0.clone());
            let theirs = crio::check_dump(&all, &path, &text, &options, &flags).unwrap();
            let ours = crio::check(&all, &path, &options, &flags).unwrap();
            let sorted = |report: Report| {
                let mut findings = report.findings;
                findings.sort_by(|a, b| a.handler.cmp(&b.handler));
                findings
            };
            assert_eq!(sorted(theirs), sorted(ours), "{name}:\n{text}");
        };
        for (path, text) in &files.0 {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        ask(&files, crio::reading(&files, &path, &flags).unwrap());
        let mut all = files.clone();
        all.0.extend(absent.0.clone());
        if let Ok(plan) = crio::plan(&all, &path, &options, &flags) {
            let trial = dir.join("trial");
            let reading = crio::trial(&files, &path, &flags, &plan.changes, &trial).unwrap();
            for (path, text) in reading.files {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            files.apply(&plan.changes);
            ask(&files, reading.arguments);
        }
        std::fs::remove_dir_all(dir).unwrap();
        read += 1;
    }
    println!("{}: {read} cases", program.display());
    assert!(read > 15, "{} was asked too little", program.display());
}

/// containerd's programs that are here: the installed one, and those that tests unpacked.
fn containerds() -> Vec<PathBuf> {
    let unpacked = std::fs::read_dir(programs::cache()).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> =
        unpacked.map(|entry| entry.path().join("usr/bin/containerd")).collect();
    all.push(PathBuf::from("/usr/bin/containerd"));
    all.retain(|path| path.is_file());
    all
}

#[test]
fn real_containerd_reads_every_result_as_it_was_meant() {
    let programs = containerds();
    if programs.is_empty() {
        mpsgate_testing::skip!("needs containerd");
    }
    for program in programs {
        let said = Command::new(&program).arg("--version").output().unwrap();
        let version = Version::find(&String::from_utf8(said.stdout).unwrap()).unwrap();
        let mut read = 0;
        for (name, files, options) in containerd_cases() {
            // Results for another version are not evaluated by this one.
            let fits = options
                .engine
                .is_none_or(|meant| (meant >= Version(2, 1)) == (version >= Version(2, 1)));
            let mut files = files;
            let Ok(plan) = containerd::plan(&files, Path::new(MAIN), &options) else { continue };
            let text = files.0.get(Path::new(MAIN)).cloned().unwrap_or_default();
            let three = plan.changes.iter().any(|change| change.after.contains("version = 3"))
                || text.contains("version = 3");
            if !fits
                || (version < Version(2, 0) && three)
                || (version >= Version(2, 0) && text.starts_with('\u{feff}'))
            {
                continue;
            }
            let dir = tempdir();
            for (path, text) in
                containerd::trial(&files, Path::new(MAIN), &plan.changes, &dir).unwrap()
            {
                std::fs::write(path, text).unwrap();
            }
            // Files that did not change are imported by their own names, which are not here.
            let main = dir.join("config.toml");
            let mut text = std::fs::read_to_string(&main).unwrap();
            for (path, content) in &files.0 {
                if text.contains(&format!("\"{}\"", path.display())) {
                    let copy = dir.join(path.file_name().unwrap());
                    std::fs::write(&copy, content).unwrap();
                    text = text.replace(&*path.to_string_lossy(), &copy.to_string_lossy());
                }
            }
            std::fs::write(&main, text).unwrap();
            let dump = Command::new(&program)
                .arg("--config")
                .arg(&main)
                .args(["config", "dump"])
                .output()
                .unwrap();
            assert!(dump.status.success(), "{name}: {}", String::from_utf8_lossy(&dump.stderr));
            let dump = String::from_utf8(dump.stdout).unwrap();
            let theirs = containerd::check_dump(&files, &main, &dump, &options).unwrap();
            files.apply(&plan.changes);
            let ours = containerd::check(&files, Path::new(MAIN), &options).unwrap();
            let mut ours = ours.findings;
            let mut theirs = theirs.findings;
            // The order of handlers is containerd's own there.
            ours.sort_by(|a, b| a.handler.cmp(&b.handler));
            theirs.sort_by(|a, b| a.handler.cmp(&b.handler));
            assert_eq!(theirs, ours, "{name}, {}:\n{dump}", program.display());
            std::fs::remove_dir_all(dir).unwrap();
            read += 1;
        }
        println!("{} {version:?}: {read} results", program.display());
        assert!(read >= 3, "{} was asked too little", program.display());
    }
}

fn tempdir() -> PathBuf {
    let dir = std::env::temp_dir().join(format!(
        "mpsgate-configure-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// What is written where there is nothing stands in `config/`, for who does it by hand.
#[test]
fn the_snippets_in_config_are_what_configure_writes() {
    let new = |plan: Plan| plan.changes.into_iter().map(|change| change.after).collect::<String>();
    let none = Files::default();
    let tmpl = Path::new("/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl");
    let written = [
        ("containerd.toml", new(containerd::plan(&none, Path::new(MAIN), &options()).unwrap())),
        (
            "containerd-v3.toml",
            new(containerd::plan(&none, Path::new(MAIN), &engine(2, 1)).unwrap()),
        ),
        ("k3s-config-v3.toml.tmpl", new(containerd::plan(&none, tmpl, &options()).unwrap())),
        (
            "docker-daemon.json",
            new(docker::plan(&none, Path::new(docker::PATH), &options(), &[]).unwrap()),
        ),
        (
            "podman-containers.conf",
            new(podman::plan(&none, Path::new(podman::PATH), &options(), None).unwrap()),
        ),
        (
            "crio.conf",
            new(crio::plan(&none, Path::new(crio::PATH), &options(), &crio::Flags::default())
                .unwrap()),
        ),
    ];
    for (name, wanted) in written {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            plain(&text),
            plain(&wanted),
            "{name} has:\n{text}\nconfigure writes:\n{wanted}"
        );
    }
}

/// Without comments and empty lines.
fn plain(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).collect()
}
