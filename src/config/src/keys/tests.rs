//! Each error names line, key, value and the allowed values; file, types and list agree.
#![allow(clippy::unwrap_used, reason = "a failed test is to panic")]

use proptest::prelude::*;

use super::*;
use crate::settings::{
    Kubeconfig, Listen, Manage, NodeName, RunGroup, SlicesUid, SlurmConf, Tolerance,
};

const SHIPPED: &str = include_str!("../../../../config/config.toml");

/// As the settings file writes it. The other types derive theirs, in tests only.
impl serde::Serialize for Manage {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => to.serialize_str("all"),
            Self::Uuids(uuids) => uuids.serialize(to),
        }
    }
}

impl serde::Serialize for SlicesUid {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Any => to.serialize_str("any"),
            Self::Only(uid) => to.serialize_u32(*uid),
        }
    }
}

impl serde::Serialize for Tolerance {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Mib(mib) => to.serialize_u32(*mib),
        }
    }
}

impl serde::Serialize for Kubeconfig {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Off => to.serialize_str("off"),
            Self::File(path) => path.serialize(to),
        }
    }
}

impl serde::Serialize for NodeName {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Named(name) => to.serialize_str(name),
        }
    }
}

impl serde::Serialize for RunGroup {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => to.serialize_str("off"),
            Self::Named(name) => to.serialize_str(name),
        }
    }
}

impl serde::Serialize for SlurmConf {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::File(path) => path.serialize(to),
        }
    }
}

impl serde::Serialize for Listen {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => to.serialize_str("off"),
            Self::At(at) => at.serialize(to),
        }
    }
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("c.toml"))
}

/// The error's sentence and hint, without the file's name.
fn fault(text: &str) -> (String, String) {
    let error = parse(text).unwrap_err();
    let sentence = error.to_string();
    (sentence.strip_prefix("c.toml:").unwrap().to_owned(), error.hint())
}

/// The shipped file with each setting in force: lines `#key = …` lose their mark, prose (`# `)
/// stays.
fn uncommented(text: &str) -> String {
    let is_setting = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_lowercase());
    let lines = text.lines().map(|line| line.strip_prefix('#').filter(is_setting).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// `(table, key)` of each `#key = …` line, in order.
fn shipped_keys() -> Vec<(String, String)> {
    let mut table = String::new();
    let mut keys = Vec::new();
    for line in SHIPPED.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']').to_owned();
        }
        let setting = line.strip_prefix('#').and_then(|line| line.split_once(" = "));
        if let Some((key, _)) = setting.filter(|(key, _)| !key.contains(' ')) {
            keys.push((table.clone(), key.to_owned()));
        }
    }
    keys
}

#[test]
fn the_shipped_file_parses_and_changes_nothing() {
    assert_eq!(parse(SHIPPED).unwrap(), Config::default());
}

#[test]
fn the_shipped_file_shows_every_default() {
    let all = uncommented(SHIPPED);
    assert_eq!(parse(&all).unwrap(), Config::default());
    // If a line were not uncommented, the default would hide that, so the keys are counted.
    let table: toml::Table = toml::from_str(&all).unwrap();
    let there: usize = table.values().map(|keys| keys.as_table().unwrap().len()).sum();
    assert_eq!(there, KEYS.len());
}

#[test]
fn the_shipped_file_the_types_and_the_list_hold_the_same_keys_in_the_same_order() {
    let listed: Vec<(String, String)> =
        KEYS.iter().map(|key| (key.table.to_owned(), key.name.to_owned())).collect();
    assert_eq!(shipped_keys(), listed);

    let mut sorted = listed;
    sorted.sort();
    let types = toml::Table::try_from(Config::default()).unwrap();
    let mut typed = Vec::new();
    for (table, keys) in &types {
        typed.extend(keys.as_table().unwrap().keys().map(|key| (table.clone(), key.clone())));
    }
    typed.sort();
    assert_eq!(typed, sorted);
}

#[test]
fn the_shipped_file_shows_the_words_and_ranges_of_every_key() {
    let prose: String = SHIPPED.lines().map(|line| line.trim_start_matches('#')).collect();
    for key in KEYS {
        let parts: Vec<String> = match key.allowed {
            Allowed::Words(words) => words.iter().map(|word| format!("\"{word}\"")).collect(),
            Allowed::Number { from, to, .. } => vec![format!("{from} to {to}")],
            Allowed::Numbers { from, to, .. } => vec![format!("{from} to {to}")],
            Allowed::Tolerance { to } => vec!["\"auto\"".to_owned(), format!("0 to {to}")],
            _ => Vec::new(),
        };
        for part in parts {
            assert!(prose.contains(&part), "{}.{}: {part} is not explained", key.table, key.name);
        }
    }
}

#[test]
fn the_example_of_an_exemption_in_the_shipped_file_is_right() {
    let example = SHIPPED.lines().filter_map(|line| line.strip_prefix("#   "));
    let is_toml = |line: &&str| line.starts_with("[[") || line.contains(" = ");
    let example: Vec<&str> = example.filter(is_toml).collect();
    let expected = Exempt {
        namespace: "gpu-operator".to_owned(),
        image: "nvcr.io/nvidia/k8s/dcgm-exporter".to_owned(),
    };
    assert_eq!(parse(&example.join("\n")).unwrap().policy.exempt, [expected]);
}

#[test]
fn every_word_of_the_list_is_accepted_by_its_type_and_written_back() {
    let mut seen = 0;
    for key in KEYS {
        let Allowed::Words(words) = key.allowed else { continue };
        for word in words {
            let text = format!("{}.{} = \"{word}\"", key.table, key.name);
            let config = toml::Table::try_from(parse(&text).unwrap()).unwrap();
            assert_eq!(config[key.table][key.name].as_str(), Some(*word), "{text}");
            seen += 1;
        }
    }
    assert!(seen > 20);
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    let cases = [
        (
            "[policy]\nunalocated = \"warn\"",
            "2: unknown key `policy.unalocated`; did you mean \
          `policy.unallocated`?",
        ),
        (
            "[mps]\nstart_timeout = 5",
            "2: unknown key `mps.start_timeout`; did you mean \
          `mps.start_timeout_s`?",
        ),
        ("\n[polcy]\n", "2: unknown key `polcy`; did you mean `policy`?"),
        // The wrong table, or no table.
        ("[gpus]\nipc = \"any\"", "2: unknown key `gpus.ipc`; did you mean `policy.ipc`?"),
        ("reserve_mib = 1", "1: unknown key `reserve_mib`; did you mean `gpus.reserve_mib`?"),
        // No key resembles it.
        ("[log]\nfrobnicate = 1", "2: unknown key `log.frobnicate`"),
        (
            "[[policy.exempt]]\nnamespace = \"a\"\nimages = \"b\"",
            "3: unknown key \
          `policy.exempt.images`; did you mean `policy.exempt.image`?",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(fault(text).0, expected, "{text}");
    }
    assert_eq!(fault("[log]\nfrobnicate = 1").1, "known here: level");
    assert_eq!(
        fault("x = 1").1,
        "known here: [runtime], [gpus], [requests], [trust], [policy], [inject], [mps], [nvml], [run], [slurm], [kubernetes], [metrics], [log]"
    );
}

#[test]
fn a_key_of_an_older_version_is_answered_with_what_is_so_instead() {
    for value in ["auto", "control"] {
        let (what, hint) = fault(&format!("[mps]\nchannel = \"{value}\""));
        assert_eq!(
            what,
            "2: there is no `mps.channel` any more: each container has a door of its own to MPS, \
             and there is no other way"
        );
        assert_eq!(hint, "remove the line");
    }
}

#[test]
fn a_wrong_value_is_named_with_what_is_right() {
    let cards = "\"all\" or a list of GPU UUIDs as `nvidia-smi -L` prints them ([\"GPU-…\"])";
    let cases = [
        (
            "[policy]\nunallocated = \"deny\"",
            "2: `policy.unallocated` is \"deny\", but must be \
          \"refuse\", \"strip\" or \"warn\""
                .to_owned(),
        ),
        (
            "[requests]\nfrom_env = true",
            "2: `requests.from_env` is true, but must be \"auto\", \
          \"on\" or \"off\""
                .to_owned(),
        ),
        (
            "[gpus]\nreserve_mib = -1",
            "2: `gpus.reserve_mib` is -1, but must be a whole number of \
          MiB, 0 to 65536"
                .to_owned(),
        ),
        (
            "[gpus]\nreserve_mib = 65537",
            "2: `gpus.reserve_mib` is 65537, but must be a whole \
          number of MiB, 0 to 65536"
                .to_owned(),
        ),
        (
            "[gpus]\nreserve_mib = \"512\"",
            "2: `gpus.reserve_mib` is \"512\", but must be a whole \
          number of MiB, 0 to 65536"
                .to_owned(),
        ),
        (
            "[gpus]\nreserve_mib = 0.5",
            "2: `gpus.reserve_mib` is 0.5, but must be a whole number \
          of MiB, 0 to 65536"
                .to_owned(),
        ),
        (
            "[gpus]\nreserve_mib = 99999999999999999999",
            "2: `gpus.reserve_mib` is \
          99999999999999999999, but must be a whole number of MiB, 0 to 65536"
                .to_owned(),
        ),
        (
            "[mps]\nstart_timeout_s = 0",
            "2: `mps.start_timeout_s` is 0, but must be a whole number \
          of seconds, 1 to 600"
                .to_owned(),
        ),
        (
            "[gpus]\nmanage = \"GPU-1\"",
            format!("2: `gpus.manage` is \"GPU-1\", but must be {cards}"),
        ),
        (
            "[gpus]\nmanage = [\"all\"]",
            format!("2: `gpus.manage` is [\"all\"], but must be {cards}"),
        ),
        ("[gpus]\nmanage = [0]", format!("2: `gpus.manage` is [0], but must be {cards}")),
        (
            "[gpus]\nmanage = [\n \"MIG-1\",\n]",
            format!(
                "2: `gpus.manage` is [ \"MIG-1\", ], but must \
          be {cards}"
            ),
        ),
        (
            "[runtime]\npath = \"bin/runc\"",
            "2: `runtime.path` is \"bin/runc\", but must be the \
          name of a file (\"runc\") or an absolute path"
                .to_owned(),
        ),
        (
            "[mps]\ncontrol = \"nvidia-cuda-mps-control\"",
            "2: `mps.control` is \
          \"nvidia-cuda-mps-control\", but must be an absolute path"
                .to_owned(),
        ),
        (
            "[kubernetes]\nmemory_units_mib = [256, 1024]",
            "2: `kubernetes.memory_units_mib` is [256, 1024], but must be a list of at most 16 \
          whole numbers of MiB, 1 to 1023, each once"
                .to_owned(),
        ),
        (
            "[kubernetes]\nslices_gib = [10, 10]",
            "2: `kubernetes.slices_gib` is [10, 10], but must be a list of at most 16 whole numbers \
          of GiB, 1 to 1024, each once"
                .to_owned(),
        ),
        (
            "[kubernetes]\nkubeconfig = \"kubelet.conf\"",
            "2: `kubernetes.kubeconfig` is \"kubelet.conf\", but must be \"auto\", \"off\" or an \
          absolute path"
                .to_owned(),
        ),
        (
            "[run]\ngroup = \"a b\"",
            "2: `run.group` is \"a b\", but must be \"off\" or the name of a group".to_owned(),
        ),
        (
            "[slurm]\nconf = \"slurm.conf\"",
            "2: `slurm.conf` is \"slurm.conf\", but must be \"auto\" or an absolute path".to_owned(),
        ),
        (
            "[kubernetes]\nnode_name = \"GPU_1\"",
            "2: `kubernetes.node_name` is \"GPU_1\", but must be \"auto\" or the name of a \
          Kubernetes node"
                .to_owned(),
        ),
        ("mps = 5", "1: `mps` is 5, but must be a table, headed [mps]".to_owned()),
        (
            "[policy.exempt]\nnamespace = \"a\"",
            "1: `policy.exempt` is [policy.exempt], but must \
          be a list of tables, each headed [[policy.exempt]]"
                .to_owned(),
        ),
        (
            "policy.exempt = [\"a\"]",
            "1: `policy.exempt` is \"a\", but must be a list of tables, \
          each headed [[policy.exempt]]"
                .to_owned(),
        ),
        ("[[policy.exempt]]\nnamespace = \"a\"", "1: `policy.exempt.image` is missing".to_owned()),
    ];
    for (text, expected) in cases {
        assert_eq!(fault(text).0, expected, "{text}");
    }
    assert_eq!(
        fault("log.level = 3").1,
        "set log.level to \"error\", \"warn\", \"info\", \"debug\" \
                                          or \"trace\""
    );
}

#[test]
fn a_long_wrong_value_is_shortened() {
    let text = format!("runtime.path = \"/{}\\u0000\"", "ü".repeat(10_000));
    assert!(fault(&text).0.len() < 300);
}

#[test]
fn broken_syntax_is_named_with_its_line() {
    for (text, line) in [
        ("[runtime]\npath = runc\n", "2"),
        ("[runtime]\npath = \"runc\n", "2"),
        ("[gpus]\nmanage = [\n", "2"),
        ("\n[runtime\n", "2"),
        ("[log]\nlevel = \"info\"\nlevel = \"info\"\n", "3"),
        ("[log]\n[nvml]\n[log]\n", "3"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { .. }), "{text}: {error}");
        let sentence = error.to_string();
        assert!(sentence.starts_with(&format!("c.toml:{line}: ")), "{text}: {sentence}");
    }
}

#[test]
fn values_that_are_right_in_unusual_ways_are_read() {
    let config = parse(
        "mps = { max_clients = 0x30, start_timeout_s = 1_0 }\n\
         'runtime'.\"path\" = '/opt/a b/crun'\n\
         gpus.manage = ['GPU-1a', \"GPU-2b\"]\n",
    )
    .unwrap();
    assert_eq!((config.mps.max_clients, config.mps.start_timeout_s), (48, 10));
    assert_eq!(config.runtime.path.to_str(), Some("/opt/a b/crun"));
    assert_eq!(config.gpus.manage, Manage::Uuids(vec!["GPU-1a".to_owned(), "GPU-2b".to_owned()]));
    assert_eq!(parse("gpus.manage = 'all'").unwrap().gpus.manage, Manage::All);
}

#[test]
fn metrics_are_served_at_an_address_with_a_port_or_not_at_all() {
    let listen = |text: &str| parse(&format!("metrics.listen = {text}")).map(|c| c.metrics.listen);
    assert_eq!(listen("\"off\"").unwrap(), Listen::Off);
    for at in ["127.0.0.1:19400", "[::1]:1", "0.0.0.0:65535"] {
        assert_eq!(listen(&format!("{at:?}")).unwrap(), Listen::At(at.parse().unwrap()));
    }
    for wrong in [
        "\"\"",
        "\"19400\"",
        "19400",
        "\"localhost:19400\"",
        "\"127.0.0.1\"",
        "\"127.0.0.1:0\"",
        "\":9\"",
    ] {
        let (sentence, _) = fault(&format!("metrics.listen = {wrong}"));
        let allowed = "must be an IP address with a port (\"127.0.0.1:19400\"";
        assert!(sentence.contains("metrics.listen") && sentence.contains(allowed), "{sentence}");
    }
}

#[test]
fn a_card_is_managed_by_its_uuid_in_any_case_of_letters() {
    let some = Manage::Uuids(vec!["GPU-1a".to_owned()]);
    assert!(some.includes("GPU-1A") && !some.includes("GPU-1") && Manage::All.includes("GPU-1"));
    assert!(!Config::default().gpus.manage.includes("GPU-1a"));
}

#[test]
fn an_exemption_names_an_image_that_cannot_be_exchanged() {
    let hex = "0123456789abcdef".repeat(4);
    let digest = format!("sha256:{hex}");
    for image in [
        "nvcr.io/nvidia/dcgm",
        "localhost:5000/dcgm",
        "dcgm",
        &digest,
        &format!("r.io/dcgm@{digest}"),
    ] {
        assert!(is_image(image), "{image}");
    }
    for image in
        ["", "dcgm:3", "r.io/dcgm:latest", "a b", "r.io/", "r.io/dcgm@sha256:12", "@sha256:1"]
    {
        assert!(!is_image(image), "{image}");
    }
    for (namespace, right) in [
        ("gpu-operator", true),
        ("a", true),
        ("", false),
        ("A", false),
        ("a/b", false),
        ("-a", false),
    ] {
        assert_eq!(is_namespace(namespace), right, "{namespace}");
    }
}

#[test]
fn distances_are_counted_in_letters() {
    for (left, right, expected) in
        [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("a_b", "A-b", 0), ("ab", "ba", 2)]
    {
        assert_eq!((distance(left, right), distance(right, left)), (expected, expected));
    }
}

proptest! {
    #[test]
    fn any_text_is_settings_or_an_error_with_a_line_that_exists(text in "[a-z_.=\"\\[\\]#0-9 \n]{0,80}") {
        let lines = text.lines().count().max(1);
        if let Err(error) = parse(&text) {
            let sentence = error.to_string();
            let line: usize = sentence.split(':').nth(1).unwrap().parse().unwrap();
            prop_assert!((1..=lines + 1).contains(&line), "{}", sentence);
            prop_assert!(!error.hint().is_empty());
        }
    }

    #[test]
    fn a_value_is_taken_as_written_or_refused_by_name(
        key in proptest::sample::select(KEYS),
        value in prop_oneof![
            Just("[]".to_owned()), Just("{}".to_owned()), Just("true".to_owned()),
            any::<i64>().prop_map(|number| number.to_string()),
            "\"[a-zA-Z/-]{0,8}\"",
            proptest::sample::select(vec!["auto", "refuse", "all", "full", "cdi"])
                .prop_map(|word| format!("\"{word}\"")),
            Just("[\"GPU-1\"]".to_owned()),
        ],
    ) {
        let text = format!("{}.{} = {value}", key.table, key.name);
        match parse(&text) {
            Ok(config) => {
                let read = toml::Table::try_from(config).unwrap();
                let written: toml::Table = toml::from_str(&text).unwrap();
                prop_assert_eq!(&read[key.table][key.name], &written[key.table][key.name]);
            }
            Err(ConfigError::BadValue { .. }) => {}
            Err(other) => prop_assert!(false, "{}: {}", text, other),
        }
    }
}
