#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use std::num::NonZeroU32;

use super::*;

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn parse(annotations: Pairs<'_>, env: Pairs<'_>) -> Result<Option<Request>, RequestError> {
    parse_by(Author::Operator, annotations, env)
}

fn parse_by(
    author: Author,
    annotations: Pairs<'_>,
    env: Pairs<'_>,
) -> Result<Option<Request>, RequestError> {
    parse_request(author, annotations.iter().copied(), env.iter().copied())
}

fn error(annotations: Pairs<'_>) -> String {
    parse(annotations, &[]).unwrap_err().to_string()
}

#[test]
fn foreign_annotations_are_no_request() {
    assert_eq!(
        parse(&[("io.kubernetes.pod.name", "x"), ("mpsgate.io/note", "y")], &[("PATH", "/")]),
        Ok(None)
    );
}

#[test]
fn both_forms_and_env_give_the_same_memory() {
    for (annotations, env) in [
        (&[("aliyun.com/gpu-mem", "7")][..], &[][..]),
        (&[("mpsgate.io/gpu-mem", "7Gi")], &[]),
        (&[("mpsgate.io/gpu-mem", "7168Mi"), ("aliyun.com/gpu-mem", "7")], &[]),
        (&[], &[("MPSGATE_GPU_MEM", "7Gi")]),
        (&[("aliyun.com/gpu-mem", "7")], &[("MPSGATE_GPU_MEM", "7168Mi")]),
        (&[], &[("MPSGATE_GPU_MEM", "1Gi"), ("MPSGATE_GPU_MEM", "7Gi")]),
    ] {
        assert_eq!(
            parse(annotations, env).unwrap().unwrap().memory,
            Some(Mib(7168)),
            "{annotations:?} {env:?}"
        );
    }
}

#[test]
fn with_a_token_a_pods_author_has_no_say_in_memory_and_card() {
    let token = ("mpsgate.io/grant", "t");
    let plain = parse_by(Author::Pod, &[token], &[]).unwrap().unwrap();
    assert_eq!((plain.memory, plain.token.as_deref()), (None, Some("t")));
    for forged in [
        &[token, ("aliyun.com/gpu-mem", "80")][..],
        &[token, ("aliyun.com/gpu-mem", "much"), ("mpsgate.io/gpu-mem", "9Gi")],
        &[token, ("mpsgate.io/gpu", "1"), ("aliyun.com/gpu-count", "2")],
    ] {
        assert_eq!(parse_by(Author::Pod, forged, &[]), Ok(Some(plain.clone())), "{forged:?}");
    }
    // An author may ask for less.
    let modest = parse_by(Author::Pod, &[token, ("mpsgate.io/gpu-compute", "30")], &[]);
    assert_eq!(modest.unwrap().unwrap().compute, Some(ComputeShare(30)));
    assert!(parse_by(Author::Pod, &[token, ("mpsgate.io/gpu-compute", "0")], &[]).is_err());
    // Without a token nothing changes, and an operator's token does not replace the amount.
    let asked = parse_by(Author::Pod, &[("aliyun.com/gpu-mem", "7")], &[]).unwrap().unwrap();
    assert_eq!((asked.memory, asked.token), (Some(Mib(7168)), None));
    assert_eq!(error(&[token]), "mpsgate.io/grant is set but no amount of GPU memory is");
    assert!(parse(&[token, ("aliyun.com/gpu-mem", "much")], &[]).is_err());
}

#[test]
fn every_optional_field_is_read() {
    let uuid = "GPU-00000000-1111-2222-3333-444444444444";
    let request = parse(
        &[
            ("aliyun.com/gpu-mem", "7"),
            ("mpsgate.io/gpu", uuid),
            ("mpsgate.io/gpu-compute", "30"),
            ("mpsgate.io/gpu-priority", "low"),
            ("mpsgate.io/gpu-uid", "1000"),
            ("mpsgate.io/grant", "t"),
            ("aliyun.com/gpu-count", "1"),
        ],
        &[],
    );
    assert_eq!(
        request.unwrap().unwrap(),
        Request {
            memory: Some(Mib(7168)),
            cards: NonZeroU32::MIN,
            gpu: Some(GpuSelector::Uuid(GpuUuid::parse(uuid).unwrap())),
            compute: Some(ComputeShare(30)),
            priority: Priority::Low,
            uid: Some(1000),
            token: Some("t".to_owned()),
        }
    );
}

#[test]
fn every_bad_value_is_quoted() {
    for (annotations, text) in [
        (&[("aliyun.com/gpu-mem", "0")][..], "aliyun.com/gpu-mem is \"0\": it is zero"),
        (&[("aliyun.com/gpu-mem", "-1")], "aliyun.com/gpu-mem is \"-1\": it is negative"),
        (
            &[("aliyun.com/gpu-mem", "7.5")],
            "aliyun.com/gpu-mem is \"7.5\": it is not a whole number",
        ),
        (&[("aliyun.com/gpu-mem", "")], "aliyun.com/gpu-mem is \"\": it is empty"),
        (
            &[("mpsgate.io/gpu-mem", "7GB")],
            "mpsgate.io/gpu-mem is \"7GB\": its unit is not one that Kubernetes knows",
        ),
        (&[("mpsgate.io/gpu-mem", "1e9")], "mpsgate.io/gpu-mem is \"1e9\": it has no unit"),
        (&[("mpsgate.io/gpu-mem", "7")], "mpsgate.io/gpu-mem is \"7\": it has no unit"),
        (
            &[("aliyun.com/gpu-mem", "18446744073709551616")],
            "aliyun.com/gpu-mem is \"18446744073709551616\": it is too large",
        ),
        (
            &[("mpsgate.io/gpu-mem", "7Gi"), ("aliyun.com/gpu-mem", "8")],
            "mpsgate.io/gpu-mem is \"7Gi\" but aliyun.com/gpu-mem is \"8\"",
        ),
        (
            &[("aliyun.com/gpu-mem", "7"), ("aliyun.com/gpu-count", "2")],
            "aliyun.com/gpu-mem is \"7\", which 2 cards cannot have in equal parts of whole GiB",
        ),
        (
            &[("mpsgate.io/gpu-mem", "7167Mi"), ("aliyun.com/gpu-count", "2")],
            "mpsgate.io/gpu-mem is \"7167Mi\", which 2 cards cannot have in equal parts of whole MiB",
        ),
        (
            &[("aliyun.com/gpu-mem", "2"), ("aliyun.com/gpu-count", "4")],
            "aliyun.com/gpu-mem is \"2\", which 4 cards cannot have in equal parts of whole GiB",
        ),
        (
            &[("aliyun.com/gpu-mem", "8"), ("aliyun.com/gpu-count", "2"), ("mpsgate.io/gpu", "1")],
            "mpsgate.io/gpu is \"1\", which is one card, but 2 are asked for",
        ),
        (
            &[("aliyun.com/gpu-mem", "8"), ("aliyun.com/gpu-count", "0")],
            "aliyun.com/gpu-count is \"0\", which is not a number of cards, 1 or more",
        ),
        (
            &[("aliyun.com/gpu-mem", "8"), ("aliyun.com/gpu-count", "+2")],
            "aliyun.com/gpu-count is \"+2\", which is not a number of cards, 1 or more",
        ),
        (
            &[("aliyun.com/gpu-mem", "8"), ("aliyun.com/gpu-count", "")],
            "aliyun.com/gpu-count is \"\", which is not a number of cards, 1 or more",
        ),
        (
            &[("mpsgate.io/gpu-compute", "30")],
            "mpsgate.io/gpu-compute is set but no amount of GPU memory is",
        ),
        (
            &[("aliyun.com/gpu-mem", "7"), ("mpsgate.io/gpu-compute", "0")],
            "mpsgate.io/gpu-compute is \"0\", which is not a whole percentage from 1 to 100",
        ),
        (
            &[("aliyun.com/gpu-mem", "7"), ("mpsgate.io/gpu-compute", "101")],
            "mpsgate.io/gpu-compute is \"101\", which is not a whole percentage from 1 to 100",
        ),
        (
            &[("aliyun.com/gpu-mem", "7"), ("mpsgate.io/gpu-priority", "high")],
            "mpsgate.io/gpu-priority is \"high\", which is not \"normal\" or \"low\"",
        ),
        (
            &[("aliyun.com/gpu-mem", "7"), ("mpsgate.io/gpu-uid", "4294967295")],
            "mpsgate.io/gpu-uid is \"4294967295\", which is not a user id from 0 to 4294967294",
        ),
        (
            &[("aliyun.com/gpu-mem", "7"), ("mpsgate.io/gpu", "all")],
            "mpsgate.io/gpu is \"all\", which is not a GPU's index or UUID",
        ),
        (
            &[("mpsgate.io/gpu-memory", "7Gi")],
            "mpsgate.io/gpu-memory is not an annotation that mpsgate knows (did you mean mpsgate.io/gpu-mem?)",
        ),
    ] {
        assert_eq!(error(annotations), text);
    }
}

#[test]
fn an_amount_in_the_words_of_engines_and_shells_is_told_with_the_right_spelling() {
    let plain = "write a whole number of MiB with its unit, such as MPSGATE_GPU_MEM=7Gi or MPSGATE_GPU_MEM=7168Mi";
    for (value, why, hint) in [
        ("8g", "its unit is not one that Kubernetes knows", "write MPSGATE_GPU_MEM=8Gi"),
        ("7G", "it is not a whole number of MiB", "write MPSGATE_GPU_MEM=7Gi"),
        ("7GB", "its unit is not one that Kubernetes knows", "write MPSGATE_GPU_MEM=7Gi"),
        ("7gb", "its unit is not one that Kubernetes knows", "write MPSGATE_GPU_MEM=7Gi"),
        ("7GiB", "its unit is not one that Kubernetes knows", "write MPSGATE_GPU_MEM=7Gi"),
        ("7gi", "its unit is not one that Kubernetes knows", "write MPSGATE_GPU_MEM=7Gi"),
        ("6500M", "it is not a whole number of MiB", "write MPSGATE_GPU_MEM=6500Mi"),
        ("7168MiB", "its unit is not one that Kubernetes knows", "write MPSGATE_GPU_MEM=7168Mi"),
        ("7 Gi", "there is a blank or a line end in it", "write MPSGATE_GPU_MEM=7Gi"),
        ("7 GiB", "there is a blank or a line end in it", "write MPSGATE_GPU_MEM=7Gi"),
        ("7Gi\r", "there is a blank or a line end in it", "write MPSGATE_GPU_MEM=7Gi"),
        ("\"7Gi\"", "there are quotes in it", "write MPSGATE_GPU_MEM=7Gi"),
        ("'7Gi'", "there are quotes in it", "write MPSGATE_GPU_MEM=7Gi"),
        ("7", "it has no unit", plain),
        ("", "it is empty", plain),
        ("all", "it is not a number", plain),
        ("50%", "its unit is not one that Kubernetes knows", plain),
    ] {
        let error = parse(&[], &[("MPSGATE_GPU_MEM", value)]).unwrap_err();
        assert_eq!(error.to_string(), format!("MPSGATE_GPU_MEM is {value:?}: {why}"));
        assert_eq!(error.hint(), hint, "{value:?}");
    }
    for value in ["1.5Gi", "0.5Gi"] {
        assert!(parse(&[], &[("MPSGATE_GPU_MEM", value)]).is_ok(), "{value}");
    }
    for (value, hint) in [
        ("7g", "write aliyun.com/gpu-mem=7: it counts GiB"),
        ("7Gi", "write aliyun.com/gpu-mem=7: it counts GiB"),
        ("\"7 GB\"", "write aliyun.com/gpu-mem=7: it counts GiB"),
        ("8138MiB", "aliyun.com/gpu-mem counts whole GiB: use mpsgate.io/gpu-mem=8138Mi"),
        ("much", "write whole GiB, such as aliyun.com/gpu-mem=7, or use mpsgate.io/gpu-mem=7168Mi"),
    ] {
        assert_eq!(parse(&[("aliyun.com/gpu-mem", value)], &[]).unwrap_err().hint(), hint);
    }
}

#[test]
fn a_mistyped_variable_names_the_right_one() {
    let error = parse(&[], &[("MPSGATE_GPU_MEMORY", "7Gi")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "MPSGATE_GPU_MEMORY is not an annotation that mpsgate knows (did you mean MPSGATE_GPU_MEM?)"
    );
}

#[test]
fn what_a_grant_tells_its_container_is_never_a_request() {
    let granted = [("MPSGATE_GPU_MEM_MIB", "7168"), ("MPSGATE_GPU_UUID", "GPU-x,GPU-y")];
    let memory = |env: Pairs<'_>| parse(&[], env).map(|request| request.and_then(|r| r.memory));
    for (env, asked) in [
        (&granted[..], Ok(None)),
        (&[granted[0]], Ok(None)),
        (&[granted[1]], Ok(None)),
        (&[granted[0], ("MPSGATE_GPU_MEM", "2Gi"), granted[1]], Ok(Some(Mib(2048)))),
        (&[("MPSGATE_GPU_MEM_MIB", "much"), ("MPSGATE_GPU_UUID", "")], Ok(None)),
    ] {
        assert_eq!(memory(env), asked, "{env:?}");
    }
    for name in ["MPSGATE_GPU_MEM_MIB", "MPSGATE_GPU_UUID"] {
        assert!(!is_request_env(name), "{name}");
    }
    // A name that only resembles one is still a mistyped request, and an unknown annotation.
    for near in ["MPSGATE_GPU_MEM_MIB_", "MPSGATE_GPU_MEM_MB", "MPSGATE_GPU_UUIDS"] {
        assert!(is_request_env(near) && parse(&[], &[(near, "1")]).is_err(), "{near}");
    }
    assert!(parse(&[("mpsgate.io/gpu-uuid", "GPU-x")], &[]).is_err());
}

#[test]
fn several_cards_have_equal_parts_in_the_unit_of_the_request() {
    for (name, amount, cards, each) in [
        ("aliyun.com/gpu-mem", "8", "2", Mib(4096)),
        ("aliyun.com/gpu-mem", "3", "3", Mib(1024)),
        ("mpsgate.io/gpu-mem", "7Gi", "2", Mib(3584)),
        ("mpsgate.io/gpu-mem", "7Gi", "1", Mib(7168)),
    ] {
        let request = parse(&[(name, amount), ("aliyun.com/gpu-count", cards)], &[]);
        let request = request.unwrap().unwrap();
        let split = request.memory.unwrap().split(request.cards, Mib(1));
        assert_eq!(split, Some(each), "{amount} on {cards}");
    }
    // A pod's author says neither how much nor on how many.
    let pod =
        parse_by(Author::Pod, &[("mpsgate.io/grant", "t"), ("aliyun.com/gpu-count", "2")], &[]);
    assert_eq!(pod.unwrap().unwrap().cards, NonZeroU32::MIN);
}

#[test]
fn a_message_asks_for_at_least_one_card() {
    let one = parse(&[("aliyun.com/gpu-mem", "8")], &[]).unwrap().unwrap();
    let two = Request { cards: NonZeroU32::new(2).unwrap(), ..one };
    let text = serde_json::to_string(&two).unwrap();
    assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), two);
    assert!(serde_json::from_str::<Request>(&text.replace("\"cards\":2", "\"cards\":0")).is_err());
}
