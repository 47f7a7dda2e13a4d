//! Command lines of real engines, of both grammars, and nonsense.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is to panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::flag_table::{Flag, Takes};
use super::scan::lookup;
use super::*;

fn args(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn parsed(line: &str) -> Invocation {
    let args = args(line);
    let found = parse(&args);
    assert_eq!(verb_of(&args), found.verb, "verb_of disagrees with parse on: {line}");
    found
}

/// Everything that differs from an empty command line, as text, in one order.
fn summary(found: &Invocation) -> String {
    let mut parts = vec![format!("{:?}", found.verb)];
    let mut path = |name: &str, value: &Option<PathBuf>| {
        if let Some(value) = value {
            parts.push(format!("{name}={}", value.display()));
        }
    };
    path("root", &found.root);
    path("log", &found.log);
    path("bundle", &found.bundle);
    path("config", &found.config);
    path("pid-file", &found.pid_file);
    path("process", &found.process_file);
    path("resources", &found.resources);
    path("id", &found.container_id.as_ref().map(PathBuf::from));
    let mut flag = |name: &str, on: bool| {
        if on {
            parts.push(name.to_owned());
        }
    };
    flag("json", found.log_format == LogFormat::Json);
    flag("systemd", found.systemd_cgroup);
    flag("all", found.kill_all);
    flag("force", found.force);
    if found.signal != Signal::TERM {
        parts.push(format!("{:?}", found.signal));
    }
    parts.join(" ")
}

#[test]
fn command_lines_of_engines_are_understood() {
    let cases = [
        // containerd 1.6.20 with `ctr run`, `ctr task exec`, `ctr task kill -s KILL`; captured,
        // paths shortened.
        (
            "--root /run/containerd/runc/default --log /s/capctr/log.json --log-format json create \
             --bundle /s/capctr --pid-file /s/capctr/init.pid capctr",
            "Create root=/run/containerd/runc/default log=/s/capctr/log.json bundle=/s/capctr \
             pid-file=/s/capctr/init.pid id=capctr json",
        ),
        (
            "--root /run/containerd/runc/default --log /s/capctr/log.json --log-format json exec \
             --process /tmp/runc-process996520550 --detach --pid-file /s/capctr/e1.pid capctr",
            "Exec root=/run/containerd/runc/default log=/s/capctr/log.json pid-file=/s/capctr/e1.pid \
             process=/tmp/runc-process996520550 id=capctr json",
        ),
        (
            "--root /run/containerd/runc/default --log /s/capctr/log.json --log-format json kill \
             capctr 9",
            "Kill root=/run/containerd/runc/default log=/s/capctr/log.json id=capctr json Number(9)",
        ),
        (
            "--root /run/containerd/runc/default --log /s/capctr/log.json --log-format json delete \
             --force capctr",
            "Delete root=/run/containerd/runc/default log=/s/capctr/log.json id=capctr json force",
        ),
        (
            "--root /run/containerd/runc/default --log /s/capctr/log.json --log-format json start \
             capctr",
            "Other root=/run/containerd/runc/default log=/s/capctr/log.json json",
        ),
        // dockerd 20.10.24 on containerd 1.6.20; captured, paths and id shortened.
        (
            "--root /var/run/docker/runtime-runc/moby --log /s/3f21/log.json --log-format json create \
             --bundle /s/3f21 --pid-file /s/3f21/init.pid 3f21",
            "Create root=/var/run/docker/runtime-runc/moby log=/s/3f21/log.json bundle=/s/3f21 \
             pid-file=/s/3f21/init.pid id=3f21 json",
        ),
        ("--version", "None"),
        // conmon 2.1.6, as podman and CRI-O start it, with its `-s`; captured.
        (
            "--systemd-cgroup --log-format=json --log /r/oci-log create --bundle /b --pid-file /p \
             capcon",
            "Create log=/r/oci-log bundle=/b pid-file=/p id=capcon json systemd",
        ),
        // containerd's CRI plugin with SystemdCgroup and a console; from its go-runc, not captured.
        (
            "--root /run/containerd/runc/k8s.io --log /s/log.json --log-format json --systemd-cgroup \
             create --bundle /s --pid-file /s/init.pid --console-socket /tmp/pty1/pty.sock c1",
            "Create root=/run/containerd/runc/k8s.io log=/s/log.json bundle=/s \
             pid-file=/s/init.pid id=c1 json systemd",
        ),
        (
            "--root /run/containerd/runc/k8s.io --log /s/log.json --log-format json restore \
             --image-path /i --work-path /w --bundle /s --no-pivot --detach --pid-file /p c1",
            "Restore root=/run/containerd/runc/k8s.io log=/s/log.json bundle=/s pid-file=/p id=c1 json",
        ),
        // CRI-O's own calls; from its runtime_oci.go, not captured.
        ("--root /run/runc kill c1 TERM", "Kill root=/run/runc id=c1"),
        (
            "--root /run/runc exec --pid-file /p --process /tmp/exec-1 c1",
            "Exec root=/run/runc pid-file=/p process=/tmp/exec-1 id=c1",
        ),
        // podman 5.4.2 and conmon 2.1.12 on crun 1.21, below a name that podman does not know: no
        // --root, no --log; captured.
        (
            "--systemd-cgroup create --bundle /c/userdata --pid-file /r/userdata/pidfile df592c",
            "Create bundle=/c/userdata pid-file=/r/userdata/pidfile id=df592c systemd",
        ),
        (
            "exec --pid-file /e/exec_pid --process /e/exec-process-1320345825 --detach df592c",
            "Exec pid-file=/e/exec_pid process=/e/exec-process-1320345825 id=df592c",
        ),
        (
            "exec --pid-file /e/exec_pid --process /e/exec-process-865852994 --detach \
             --console-socket /var/tmp/conmon-term.PWEKZ3 df592c",
            "Exec pid-file=/e/exec_pid process=/e/exec-process-865852994 id=df592c",
        ),
        ("kill df592c 9", "Kill id=df592c Number(9)"),
        ("delete --force df592c", "Delete id=df592c force"),
        // podman's calls beside conmon; from oci_conmon_common.go, not captured.
        ("--rootless=false delete --force c1", "Delete id=c1 force"),
        ("kill --all c1 15", "Kill id=c1 all"),
        ("kill --all c1 SIGKILL", "Kill id=c1 all Number(9)"),
    ];
    for (line, expected) in cases {
        assert_eq!(summary(&parsed(line)), expected, "{line}");
    }
}

#[test]
fn command_lines_by_hand_are_understood() {
    let cases = [
        ("", "None"),
        ("create c1", "Create id=c1"),
        ("run -d c1", "Run id=c1"),
        ("run -b /b c1", "Run bundle=/b id=c1"),
        // Go takes one dash for long names, and `=` with either.
        (
            "-root /r create -bundle /b -pid-file=/p c1",
            "Create root=/r bundle=/b pid-file=/p id=c1",
        ),
        ("--root=/r create --bundle=/b -b=/b2 c1", "Create root=/r bundle=/b2 id=c1"),
        // The last one counts.
        ("--root /a --root /b run --bundle /a --bundle=/b c1", "Run root=/b bundle=/b id=c1"),
        ("--log-format json --log-format text run c1", "Run id=c1"),
        ("--systemd-cgroup --systemd-cgroup=false run c1", "Run id=c1"),
        ("--cgroup-manager systemd run c1", "Run id=c1 systemd"),
        ("--systemd-cgroup --cgroup-manager=cgroupfs run c1", "Run id=c1"),
        // Names that look like verbs and flags.
        ("delete create", "Delete id=create"),
        ("state create", "Other"),
        ("--root /r update --resources=- c1", "Update root=/r resources=- id=c1"),
        ("update --memory 7 -r /f c1", "Update resources=/f id=c1"),
        ("update c1 --resources f", "Update resources=f id=c1"),
        ("update --pids-limit 100 c1", "Update id=c1"),
        ("--root create run run", "Run root=create id=run"),
        ("--log run --root=exec create kill", "Create root=exec log=run id=kill"),
        ("create --bundle --help c1", "Create bundle=--help id=c1"),
        ("create --bundle -b c1", "Create bundle=-b id=c1"),
        ("create -- -c1", "Create id=-c1"),
        ("-- create c1", "Create id=c1"),
        ("create --bundle -- c1", "Create bundle=-- id=c1"),
        // runc up to 1.4 moves flags that follow an argument to the front.
        ("create c1 --bundle /b", "Create bundle=/b id=c1"),
        ("kill c1 KILL --all", "Kill id=c1 all Number(9)"),
        // runc 1.5 takes global flags behind the verb too.
        (
            "create --root /r --log /l --log-format json --bundle /b c1",
            "Create root=/r log=/l bundle=/b id=c1 json",
        ),
        // argp: clusters, joined values, abbreviations.
        ("run -db /b c1", "Run bundle=/b id=c1"),
        ("run -db/b c1", "Run bundle=/b id=c1"),
        ("run -dfspec.json -b/b c1", "Run bundle=/b config=spec.json id=c1"),
        ("create --bund /b --conf spec.json c1", "Create bundle=/b config=spec.json id=c1"),
        ("create --config=/c/config.json -b /b c1", "Create bundle=/b config=/c/config.json id=c1"),
        // Two names fit, and one of them is runc's or another verb's: crun takes these.
        ("--c=systemd --ro /x create --c spec.json c1", "Create id=c1 systemd"),
        ("--cg systemd --s create c1", "Create id=c1 systemd"),
        ("--log-=json run --b /b c1", "Run bundle=/b id=c1 json"),
        ("update --r=f c1", "Update resources=f id=c1"),
        ("kill --r web.* 9", "Kill Number(9)"),
        ("restore --f --b /b c1", "Restore bundle=/b id=c1"),
        // crun refuses an abbreviation that fits two names.
        ("create --con spec.json c1", "Create id=c1"),
        // argp's hidden flags: the word after the first is no verb.
        ("--program-name state create c1", "Create id=c1"),
        ("--HANG=0 create c1", "Create id=c1"),
        ("exec -dt c1 sh", "Exec id=c1"),
        ("exec -tfalse c1 sh", "Exec id=c1"),
        ("exec -dp /p c1", "Exec process=/p id=c1"),
        ("kill -a c1 9", "Kill id=c1 all Number(9)"),
        // crun's log targets.
        ("--log=file:/l run c1", "Run log=/l id=c1"),
        ("--log=journald:c1 run c1", "Run id=c1"),
        ("--log syslog:c1 run c1", "Run id=c1"),
        // crun's `--regex`: the argument does not name one container.
        ("kill -r web.* 9", "Kill Number(9)"),
        ("delete --regex web.*", "Delete"),
        // exec: everything after the id belongs to the command.
        (
            "exec -e A=1 -u 0:0 --cap CAP_KILL -c CAP_CHOWN --cwd / -g 5 c1 ls --process /x -p y",
            "Exec id=c1",
        ),
        (
            "exec -t --process-label l --apparmor a --no-new-privs --ignore-paused c1 create",
            "Exec id=c1",
        ),
        ("exec -- c1 --process /x", "Exec id=c1"),
        ("exec --pid-file /p --preserve-fds 3 --cgroup cpu:/x c1 sh", "Exec pid-file=/p id=c1"),
        ("exec", "Exec"),
        // Flags that no table has: a value before the only argument, or before the verb.
        ("create --new-flag value --bundle /b c1", "Create bundle=/b id=c1"),
        ("--new-flag value create --bundle /b c1", "Create bundle=/b id=c1"),
        ("--new-flag create --bundle /b c1", "Create bundle=/b id=c1"),
        ("--new-flag=value run c1", "Run id=c1"),
        // A flag whose value is missing.
        ("create --bundle", "Create"),
        ("--root", "None"),
        // youki's short forms.
        ("-r /r -l /l -s create -b /b c1", "Create root=/r log=/l bundle=/b id=c1 systemd"),
    ];
    for (line, expected) in cases {
        assert_eq!(summary(&parsed(line)), expected, "{line}");
    }
}

#[test]
fn asking_for_help_or_the_version_is_no_verb() {
    for line in ["--help", "-h", "-?", "--usage", "-v", "-V", "--version create c1", "-vs run c1"] {
        assert_eq!(parsed(line).verb, Verb::None, "{line}");
    }
    for line in ["create --help", "create -h c1", "run -? c1", "exec -help", "kill c1 --help"] {
        assert_eq!(parse(&args(line)).verb, Verb::None, "{line}");
    }
}

#[test]
fn help_that_is_not_asked_for_hides_no_verb() {
    let cases = [
        ("--help=false create c1", Verb::Create),
        ("--version=0 run c1", Verb::Run),
        ("create --help=F c1", Verb::Create),
        ("create -- --help", Verb::Create),
        ("exec c1 --help", Verb::Exec),
        ("create --bundle --help c1", Verb::Create),
        // No runtime has these clusters: one unknown letter makes the whole cluster unknown.
        ("-hx create c1", Verb::Create),
        ("create -hx c1", Verb::Create),
    ];
    for (line, verb) in cases {
        assert_eq!(parse(&args(line)).verb, verb, "{line}");
    }
}

#[test]
fn empty_values_count_as_absent() {
    let mut args = args("--log= create --bundle X c1");
    args[3] = OsString::new();
    assert_eq!(summary(&parse(&args)), "Create id=c1");
}

#[test]
fn bytes_that_are_not_utf8_are_kept() {
    let odd = OsString::from_vec(b"/b/\xff\xfe".to_vec());
    let mut joined = OsString::from("--bundle=");
    joined.push(&odd);
    for args in [
        vec!["create".into(), joined, odd.clone()],
        vec!["create".into(), "-b".into(), odd.clone(), odd.clone()],
    ] {
        let found = parse(&args);
        assert_eq!(found.bundle, Some(PathBuf::from(&odd)));
        assert_eq!(found.container_id.as_ref(), Some(&odd));
    }
}

#[test]
fn signals_are_read_by_number_and_by_name() {
    let cases = [
        ("9", Signal::KILL),
        ("KILL", Signal::KILL),
        ("SIGKILL", Signal::KILL),
        ("sigkill", Signal::KILL),
        ("", Signal::TERM),
        ("TERM", Signal::TERM),
        ("USR1", Signal::Number(10)),
        ("-1", Signal::Number(-1)),
        ("SIGSIGKILL", Signal::Unknown),
        ("RTMIN+3", Signal::Unknown),
        ("9x", Signal::Unknown),
        ("99999999999999", Signal::Unknown),
    ];
    for (text, expected) in cases {
        assert_eq!(Signal::parse(OsStr::new(text)), expected, "{text}");
    }
}

#[test]
fn the_resources_file_is_replaced_in_each_form() {
    let cases = [
        ("update --resources /a c1", "update --resources /new c1"),
        ("update --resources=/a c1", "update --resources=/new c1"),
        ("update c1 -r/a", "update c1 -r/new"),
        ("update -r=/a c1", "update -r=/new c1"),
        // The last one counts.
        ("update -r /a -r /b c1", "update -r /a -r /new c1"),
    ];
    for (line, expected) in cases {
        let old = args(line);
        let at = parse(&old).resources_at.unwrap();
        let new = with_value(&old, at, Path::new("/new")).unwrap();
        assert_eq!(new, args(expected), "{line}");
        assert_eq!(parse(&new).resources, Some(PathBuf::from("/new")));
    }
    assert_eq!(parse(&args("exec c1 sh -r /x")).resources_at, None);
}

#[test]
fn our_env_goes_behind_the_callers_own_by_the_same_flag() {
    let ours = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "x=y z".to_owned())];
    let cases = [
        ("exec -e A=0 -t c1 sh -e A=2", 4, "-e"),
        ("exec -t --env A=0 c1 sh", 4, "--env"),
        ("--root /r exec --env=A=0 c1 sh", 4, "--env"),
        ("--root /r exec -env=A=0 c1 sh", 4, "--env"),
        ("exec -eA=0 -- c1 sh", 2, "-e"),
    ];
    for (line, at, flag) in cases {
        let old = args(line);
        let new = with_exec_env(&old, &parse(&old), &ours).unwrap();
        assert_eq!(new[..at], old[..at], "{line}");
        assert_eq!(new[at..at + 4], [flag, "A=1", flag, "B=x=y z"].map(OsString::from));
        assert_eq!(new[at + 4..], old[at..], "{line}");
    }
}

#[test]
fn our_env_is_not_added_where_the_runtime_has_it_already() {
    for line in [
        "exec c1 sh",
        "exec -e A=0 --process /p c1",
        "create c1",
        "exec c1 sh -e A=1",
        "exec -e",
        "exec -e A=0",
    ] {
        let old = args(line);
        assert_eq!(with_exec_env(&old, &parse(&old), &[]), None, "{line}");
    }
}

/// One option of a help text: its names and whether it takes a value.
fn options(line: &str) -> Vec<(String, Takes)> {
    // The description is set off by two spaces.
    let spec = line.trim_start().split("  ").next().unwrap();
    let takes = match spec {
        spec if spec.contains('[') => Takes::Attached,
        spec if spec.contains('=') || spec.contains(" value") => Takes::Value,
        _ => Takes::Nothing,
    };
    spec.split(", ")
        .map(|name| name.split([' ', '=', '[']).next().unwrap().to_owned())
        .map(|name| (name, takes))
        .collect()
}

#[test]
fn the_tables_hold_every_flag_of_the_help_texts_with_and_without_value() {
    let mut place = "";
    let mut seen = 0;
    for line in include_str!("../../tests/fixtures/help.txt").lines() {
        if let Some(name) = line.strip_prefix('[') {
            place = name.trim_end_matches(']');
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let flags = table_of(place).flags;
        for (name, takes) in options(line) {
            let is_it = |flag: &&Flag| match name.strip_prefix("--") {
                Some(long) => flag.long == long,
                None => name.as_bytes() == [b'-', flag.short],
            };
            let known = flags.iter().find(is_it);
            let known = known.unwrap_or_else(|| panic!("[{place}] {name} is in no table"));
            // runc's `-t` takes nothing, crun's takes an attached value: both read alike.
            let same =
                known.takes == takes || (known.takes, takes) == (Takes::Attached, Takes::Nothing);
            assert!(same, "[{place}] {name} takes {takes:?}, the table says {:?}", known.takes);
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} options seen: is the fixture cut off?");
}

/// The flags of a place in the fixture, such as `crun create`.
fn table_of(place: &str) -> flag_table::Table {
    let verb = place.split_once(' ').map(|(_, verb)| Verb::from_arg(OsStr::new(verb)));
    verb.map_or(flag_table::GLOBAL, |verb| flag_table::of(verb).unwrap())
}

#[test]
fn every_abbreviation_that_crun_takes_is_taken() {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut place = "";
    for line in include_str!("../../tests/fixtures/help.txt").lines() {
        if let Some(name) = line.strip_prefix('[') {
            place = name.trim_end_matches(']');
        } else if place.starts_with("crun") {
            let found = options(line)
                .into_iter()
                .filter_map(|(name, _)| Some(name.strip_prefix("--")?.to_owned()));
            names.entry(place).or_default().extend(found);
        }
    }
    let mut seen = 0;
    for (place, mut names) in names {
        names.extend(["program-name", "HANG"].map(str::to_owned));
        for (long, length) in names.iter().flat_map(|long| (1..long.len()).map(move |n| (long, n)))
        {
            let part = &long[..length];
            let is_alone = names.iter().filter(|other| other.starts_with(part)).count() == 1;
            if !is_alone || names.iter().any(|other| other == part) {
                continue;
            }
            let found = lookup(part.as_bytes(), 2, table_of(place)).map(|flag| flag.long);
            assert_eq!(found, Some(&**long), "[{place}] --{part}");
            seen += 1;
        }
    }
    assert!(seen > 200, "only {seen} abbreviations seen: is the fixture cut off?");
}

#[test]
fn crun_s_names_are_flags_of_the_tables() {
    let verbs = ["create", "run", "restore", "exec", "kill", "delete", "update"];
    for place in verbs.iter().map(|verb| format!("crun {verb}")).chain(["crun".to_owned()]) {
        let table = table_of(&place);
        for long in table.crun.iter().chain(&flag_table::ARGP) {
            assert!(table.flags.iter().any(|flag| flag.long == *long), "[{place}] --{long}");
        }
    }
}

#[test]
fn a_container_without_a_cgroup_is_known_by_every_name_of_that_option() {
    for line in ["--c=disabled run c1", "--c disabled run c1", "--cgroup-m=disabled create c1"] {
        assert!(parsed(line).no_cgroup, "{line}");
    }
    for line in ["--criu=disabled run c1", "--c=disabled --s run c1", "-c=disabled run c1"] {
        assert!(!parsed(line).no_cgroup, "{line}");
    }
}

#[test]
fn no_flag_is_twice_in_a_table() {
    for table in [Verb::Create, Verb::Exec, Verb::Kill, Verb::Delete].map(flag_table::of) {
        for flags in [table.unwrap().flags, flag_table::GLOBAL.flags] {
            for (at, flag) in flags.iter().enumerate() {
                for other in &flags[at + 1..] {
                    assert!(flag.long.is_empty() || flag.long != other.long, "--{}", flag.long);
                    assert!(
                        flag.short == 0 || flag.short != other.short,
                        "-{}",
                        flag.short as char
                    );
                }
            }
        }
    }
}

fn any_arg() -> impl Strategy<Value = OsString> {
    let words = vec![
        "create",
        "run",
        "exec",
        "kill",
        "delete",
        "state",
        "--",
        "-",
        "",
        "--bundle",
        "--bundle=",
        "-b",
        "-b/x",
        "--process",
        "-p",
        "-dp",
        "update",
        "--resources",
        "--resources=/x",
        "-r",
        "-r/x",
        "--root",
        "--log",
        "-e",
        "--env=A=1",
        "-e=",
        "c1",
        "--help",
        "-h",
        "--unknown",
        "-xyz",
        "-dt",
        "9",
        "--all",
        "--regex",
        "--tty=",
        "=",
    ];
    prop_oneof![
        4 => proptest::sample::select(words).prop_map(OsString::from),
        1 => proptest::collection::vec(any::<u8>(), 0..8).prop_map(OsString::from_vec),
        1 => proptest::collection::vec(any::<u8>(), 0..6).prop_map(|mut bytes| {
            bytes.splice(0..0, *b"--");
            OsString::from_vec(bytes)
        }),
    ]
}

proptest! {
    #[test]
    fn any_argv_is_read_without_panic_and_edits_touch_only_their_place(
        args in proptest::collection::vec(any_arg(), 0..12)
    ) {
        let found = parse(&args);
        if found.verb != Verb::None {
            prop_assert_eq!(verb_of(&args), found.verb);
            prop_assert!(found.verb_at.is_some());
        }
        // A pass-through that was decided on the verb alone never hides a verb that mpsgate acts
        // on.
        if matches!(verb_of(&args), Verb::Other | Verb::None) {
            prop_assert!(matches!(found.verb, Verb::Other | Verb::None));
        }
        if let Some(at) = found.resources_at {
            let new = with_value(&args, at, Path::new("/new")).unwrap();
            prop_assert_eq!(new.len(), args.len());
            for (index, (new, old)) in new.iter().zip(&args).enumerate() {
                prop_assert_eq!(index == at.index || new == old, true);
            }
            let again = parse(&new);
            prop_assert_eq!(again.resources, Some(PathBuf::from("/new")));
            prop_assert_eq!(again.container_id, found.container_id.clone());
        }
        if let Some(new) = with_exec_env(&args, &found, &[("A".into(), "1".into())]) {
            let (at, _) = found.exec_env_at.unwrap();
            prop_assert_eq!(&new[..at], &args[..at]);
            prop_assert_eq!(&new[at + 2..], &args[at..]);
            prop_assert_eq!(parse(&new).container_id, found.container_id);
        }
    }
}
