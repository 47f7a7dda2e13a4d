//! What is done to a document: each an idea of how a node of a card might open, in the many
//! spellings that a runtime takes, or of what a document may be besides.

use crate::document::CARDS;
use crate::json::{Json, respelled};
use crate::random::Random;

fn one_of<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[usize::try_from(random.below(of.len() as u64)).unwrap_or_default()]
}

fn linux(tree: &mut Json) -> &mut Json {
    tree.member("linux", Json::Object(Vec::new()))
}

fn rules(tree: &mut Json) -> &mut Json {
    linux(tree)
        .member("resources", Json::Object(Vec::new()))
        .member("devices", Json::List(Vec::new()))
}

/// A request for memory of card 0, as an operator writes it.
pub(crate) fn request(tree: &mut Json) {
    let annotations = tree.member("annotations", Json::Object(Vec::new()));
    annotations.set("aliyun.com/gpu-mem", Json::text("1"));
    annotations.set("mpsgate.io/gpu", Json::text("0"));
}

/// What makes a container privileged.
pub(crate) fn privilege(tree: &mut Json) {
    let sets = tree
        .member("process", Json::Object(Vec::new()))
        .member("capabilities", Json::Object(Vec::new()));
    for set in ["bounding", "effective", "permitted"] {
        sets.member(set, Json::List(Vec::new())).push(Json::text("CAP_SYS_ADMIN"));
    }
    rules(tree).push(Json::object([("allow", Json::raw("true")), ("access", Json::text("rwm"))]));
}

/// Something that every container may have.
pub(crate) fn ordinary(tree: &mut Json, random: &mut Random) -> String {
    match random.below(6) {
        0 => {
            let env = tree
                .member("process", Json::Object(Vec::new()))
                .member("env", Json::List(Vec::new()));
            env.push(Json::text("PLAIN=\u{1f980} \\ \" text"));
            "a variable"
        }
        1 => {
            tree.member("annotations", Json::Object(Vec::new()))
                .set("io.example/Linux", Json::text("{\"devices\": [195]}"));
            "an annotation"
        }
        2 => {
            rules(tree).push(Json::object([
                ("allow", Json::raw("true")),
                ("type", Json::text("c")),
                ("major", Json::raw("1")),
                ("minor", Json::raw("3")),
                ("access", Json::text("rwm")),
            ]));
            "a rule for /dev/null"
        }
        3 => {
            tree.member("mounts", Json::List(Vec::new())).push(Json::object([
                ("destination", Json::text("/there")),
                ("type", Json::text("tmpfs")),
                ("source", Json::text("tmpfs")),
            ]));
            "a tmpfs"
        }
        4 => {
            tree.set("x-unknown", Json::raw("{\"a\":[1.5e300,-0,null,true]}"));
            "an unknown key"
        }
        _ => {
            linux(tree).set("sysctl", Json::Object(Vec::new()));
            "an empty sysctl"
        }
    }
    .to_owned()
}

fn rule(random: &mut Random, allow: &str, major: &str, minor: &str) -> Json {
    let kind = number(random, &["c", "c", "c", "c", "a", "b"], &["", "-", "u", "C", "p"]);
    let access = number(
        random,
        &["rwm", "rwm", "rwm", "r", "w", "m", "rw", "rm"],
        &["", "-", "rr", "RW", "x"],
    );
    let mut members = vec![("allow".to_owned(), Json::raw(allow))];
    for (key, text) in [("type", kind), ("access", access)] {
        if text != "-" {
            members.push((key.to_owned(), Json::text(text)));
        }
    }
    for (key, number) in [("major", major), ("minor", minor)] {
        if number != "-" {
            members.push((key.to_owned(), Json::raw(number)));
        }
    }
    random.shuffle(&mut members);
    Json::Object(members)
}

/// A major or minor as engines write it; or, now and then, as a runtime may read it all the same.
fn number<'a>(random: &mut Random, usual: &[&'a str], odd: &[&'a str]) -> &'a str {
    let odd_one = random.percent(8);
    one_of(random, if odd_one { odd } else { usual })
}

fn major(random: &mut Random) -> &'static str {
    number(
        random,
        &["195", "195", "195", "195", "-", "-1", "510", "1"],
        &["null", "4294967491", "-4294967101", "195.0", "1.95e2", "\"195\"", "-195", "0"],
    )
}

fn minor(random: &mut Random) -> &'static str {
    number(random, &["0", "1", "1", "-", "-1", "255"], &["null", "4294967297", "1e0", "1.0", "-2"])
}

/// Something about devices, or about GPUs.
pub(crate) fn device(tree: &mut Json, random: &mut Random) -> String {
    match random.below(15) {
        0..=5 => {
            let mut said = Vec::new();
            for _ in 0..=random.below(3) {
                let allow = one_of(random, &["true", "true", "true", "false"]);
                let (major, minor) = (major(random), minor(random));
                said.push(format!("{allow} {major}:{minor}"));
                let made = rule(random, allow, major, minor);
                if random.percent(25) {
                    rules(tree).list().insert(0, made);
                } else {
                    rules(tree).push(made);
                }
            }
            format!("rules {}", said.join(", "))
        }
        6 | 7 => {
            let (major, minor) = (major(random), minor(random));
            let kind = number(random, &["c", "c", "u"], &["b", "p", ""]);
            linux(tree).member("devices", Json::List(Vec::new())).push(Json::object([
                ("path", Json::text(one_of(random, &["/dev/x", "/dev/nvidia1", "/x"]))),
                ("type", Json::text(kind)),
                ("major", Json::raw(if major == "-" { "195" } else { major })),
                ("minor", Json::raw(if minor == "-" { "1" } else { minor })),
                ("fileMode", Json::raw("438")),
            ]));
            if random.percent(60) {
                rules(tree).push(rule(random, "true", "195", "1"));
            }
            format!("a node {kind} {major}:{minor}")
        }
        8 | 9 => {
            let (source, to) = *[
                ("/dev/nvidia1", "/dev/y"),
                ("/dev", "/hostdev"),
                ("/dev/../dev/nvidia1", "/dev/nvidia7"),
                ("/proc/1/root/dev/nvidia0", "/y"),
                ("../../../../dev/nvidia1", "/dev/z"),
            ]
            .get(usize::try_from(random.below(5)).unwrap_or_default())
            .unwrap_or(&("/dev/nvidia1", "/dev/y"));
            let option = one_of(random, &["bind", "rbind"]);
            tree.member("mounts", Json::List(Vec::new())).push(Json::object([
                ("destination", Json::text(to)),
                ("type", Json::text(one_of(random, &["bind", "", "none"]))),
                ("source", Json::text(source)),
                ("options", Json::List(vec![Json::text(option)])),
            ]));
            if random.percent(70) {
                let minor = one_of(random, &["0", "1", "-"]);
                rules(tree).push(rule(random, "true", "195", minor));
            }
            format!("a bind of {source}")
        }
        10 => {
            let everything = one_of(random, &["[]", "null", "{}"]);
            if random.percent(50) {
                rules(tree);
                linux(tree)
                    .member("resources", Json::Object(Vec::new()))
                    .set("devices", Json::raw(everything));
            } else {
                linux(tree).set("resources", Json::raw(one_of(random, &["{}", "null"])));
            }
            "rules taken away".to_owned()
        }
        11 => {
            tree.member("hooks", Json::Object(Vec::new()))
                .member(
                    one_of(random, &["poststop", "createRuntime", "prestart"]),
                    Json::List(Vec::new()),
                )
                .push(Json::object([
                    ("path", Json::text("/usr/bin/mpsgate-hook")),
                    (
                        "args",
                        Json::List(vec![
                            Json::text("mpsgate-hook"),
                            Json::text(one_of(random, &["createRuntime", "poststop", "x"])),
                            Json::text(one_of(
                                random,
                                &["--by=precreate", "--instance=0123456789abcdef0123456789abcdef"],
                            )),
                        ]),
                    ),
                ]));
            rules(tree).push(rule(random, "true", "195", "1"));
            "a forged mark".to_owned()
        }
        12 => {
            let env = tree
                .member("process", Json::Object(Vec::new()))
                .member("env", Json::List(Vec::new()));
            let said = one_of(
                random,
                &[
                    "NVIDIA_VISIBLE_DEVICES=all",
                    "CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps/1",
                    "CUDA_VERSION=12",
                ],
            );
            env.push(Json::text(said));
            if random.percent(50) {
                rules(tree).push(rule(random, "true", "195", "-"));
            }
            format!("variable {said}")
        }
        13 => {
            let (name, value) = *[
                ("run.oci.hooks.stdout", "/dev/null"),
                ("org.systemd.property.DeviceAllow", "true"),
                ("cdi.k8s.io/x", "nvidia.com/gpu=1"),
                ("io.example/plain", "true"),
            ]
            .get(usize::try_from(random.below(4)).unwrap_or_default())
            .unwrap_or(&("io.example/plain", "true"));
            // For a runtime written in C the name ends at a NUL.
            let end = one_of(random, &["", "\\u0000", "\\u0000x"]);
            tree.member("annotations", Json::Object(Vec::new()))
                .set(&format!("{name}{end}"), Json::text(value));
            if random.percent(50) {
                rules(tree).push(rule(random, "true", "195", "1"));
            }
            format!("annotation {name}{end}")
        }
        _ => {
            rules(tree).push(rule(random, "true", "-", "-"));
            if random.percent(50) {
                let major = one_of(random, &["195", "-"]);
                rules(tree).push(rule(random, "false", major, "-"));
            }
            "every device".to_owned()
        }
    }
}

/// One key of the path to devices in other letters; or twice, the other one empty. `None`: there is
/// none where it looked.
pub(crate) fn respell(tree: &mut Json, random: &mut Random) -> Option<String> {
    let depth = random.below(4);
    let mut at = tree;
    for name in
        ["linux", "resources", "devices"].iter().take(usize::try_from(depth).unwrap_or_default())
    {
        at = at.member(name, Json::Object(Vec::new()));
    }
    if let Json::List(items) = at {
        at = items.last_mut()?;
    }
    let Json::Object(members) = at else { return None };
    let wanted = ["linux", "resources", "devices", "allow", "type", "major", "minor", "access"];
    let candidates: Vec<usize> = members
        .iter()
        .enumerate()
        .filter(|(_, (key, _))| wanted.contains(&key.as_str()))
        .map(|(at, _)| at)
        .collect();
    let choice = usize::try_from(random.below(candidates.len().max(1) as u64)).unwrap_or_default();
    let at = *candidates.get(choice)?;
    let key = members[at].0.clone();
    let other = respelled(&key, random.below(5));
    match random.below(4) {
        0 => members.insert(at, (other.clone(), Json::raw("null"))),
        1 => {
            let value = members[at].1.clone();
            members[at].1 = Json::raw("null");
            members.push((other.clone(), value));
        }
        2 => members.push((key.clone(), Json::raw("null"))),
        _ => members[at].0.clone_from(&other),
    }
    Some(format!("{key} spelled {other}"))
}

/// What is around a document that is not as it should be.
#[derive(Debug)]
pub(crate) enum Wrap {
    Plain,
    Duplicate,
    BadUtf8,
    Deep,
    Large,
    Blanks,
}

impl Wrap {
    pub(crate) fn any(random: &mut Random) -> Self {
        match random.below(25) {
            0 => Self::Large,
            1..=6 => Self::Duplicate,
            7..=12 => Self::BadUtf8,
            13..=18 => Self::Deep,
            _ => Self::Blanks,
        }
    }

    pub(crate) fn around(self, tree: Json, random: &mut Random) -> Json {
        let Json::Object(mut members) = tree else { return tree };
        let value = match self {
            Self::Plain => return Json::Object(members),
            Self::Duplicate => {
                members.push(("x".to_owned(), Json::raw("1")));
                Json::raw("2")
            }
            Self::BadUtf8 => Json::Raw(b"\"\xff\xfe\"".to_vec()),
            Self::Deep => Json::raw(&format!("{}{}", "[".repeat(200), "]".repeat(200))),
            Self::Large => Json::text(&"x".repeat(17 << 20)),
            Self::Blanks => Json::raw(" \n\t1\r\n "),
        };
        let at = if random.percent(50) { 0 } else { members.len() };
        members.insert(at, ("x".to_owned(), value));
        Json::Object(members)
    }
}

/// The nodes that no container may open without a grant.
pub(crate) fn managed() -> Vec<(u64, u64)> {
    CARDS.iter().map(|minor| (195, *minor)).collect()
}
