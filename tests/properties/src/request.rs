//! Requests: annotations, variables and the amounts in them.

use mpsgate_model::{Author, GpuSelector, Mib, QuantityError, Request, parse_request};

use crate::text;

/// An amount that is taken is exactly what was written, has a unit, and renders back to itself;
/// ACK's form takes digits alone.
pub(crate) fn quantity(data: &[u8]) {
    let Some(written) = text(data) else { return };
    if let Ok(mib) = Mib::parse_quantity(written) {
        assert!(mib.0 > 0 && mib.0.checked_mul(1 << 20).is_some(), "{mib:?} is no amount");
        let again = [format!("{}Mi", mib.0), mib.to_string().replace([' ', 'B'], "")];
        for again in again {
            assert_eq!(Mib::parse_quantity(&again), Ok(mib), "{written:?} renders as {again:?}");
        }
        // By another way: in floating point, which is good for 15 digits.
        let digits = written.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &written[digits.len()..];
        let binary = unit.ends_with('i');
        let power = "kMGTPE".find(unit.trim_end_matches('i').replace('K', "k").as_str());
        let power = i32::try_from(power.unwrap()).unwrap() + 1;
        assert!(!unit.is_empty(), "a unit was guessed for {written:?}");
        let base: f64 = if binary { 1024.0 } else { 1000.0 };
        let bytes = digits.parse::<f64>().unwrap() * base.powi(power);
        #[allow(clippy::cast_precision_loss, reason = "compared with a tolerance")]
        let found = mib.0 as f64 * 1_048_576.0;
        assert!((bytes - found).abs() <= found * 1e-12, "{written:?} was read as {mib:?}");
    }
    let bare = !written.is_empty() && written.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if bare {
        assert!(Mib::parse_quantity(written).is_err(), "a unit was guessed for {written:?}");
    }
    match Mib::parse_gib(written) {
        Ok(mib) => {
            assert!(written.bytes().all(|b| b.is_ascii_digit()));
            assert_eq!(written.parse::<u64>().unwrap().checked_mul(1024), Some(mib.0));
            assert!(mib.0.checked_mul(1 << 20).is_some());
        }
        Err(QuantityError::Empty) => assert!(written.is_empty()),
        Err(_) => {}
    }
}

/// Lines `name=value`, annotations up to an empty line and variables after it. What is read can be
/// said again in one spelling and is then the same; every error quotes a name that was given and
/// has a hint.
pub(crate) fn request(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (annotations, env) = text.split_once("\n\n").unwrap_or((text, ""));
    for author in [Author::Operator, Author::Pod] {
        said_again(author, text, annotations, env);
    }
}

fn pairs(lines: &str) -> impl Iterator<Item = (&str, &str)> {
    lines.lines().map(|line| line.split_once('=').unwrap_or((line, "")))
}

fn said_again(author: Author, text: &str, annotations: &str, env: &str) {
    match parse_request(author, pairs(annotations), pairs(env)) {
        Ok(None) => {}
        Ok(Some(read)) => {
            let said = said(&read);
            let again = said.iter().map(|(name, value)| (*name, value.as_str()));
            let again = parse_request(author, again, std::iter::empty());
            assert_eq!(again.unwrap(), Some(read.clone()), "{text}");
            // With a token a pod's author has no say in what is given, and without a memory of his
            // own nobody is given anything.
            let by_token = author == Author::Pod && read.token.is_some();
            assert_eq!(read.memory.is_none(), by_token, "{text}");
            assert!(!by_token || read.gpu.is_none(), "{text}");
        }
        Err(error) => {
            assert!(!error.hint().is_empty());
            let message = error.to_string();
            let mut names = pairs(annotations).chain(pairs(env)).map(|(name, _)| name);
            assert!(
                names.any(|name| message.contains(name)),
                "{message} names nothing of {text:?}"
            );
        }
    }
}

fn said(read: &Request) -> Vec<(&'static str, String)> {
    let mut said: Vec<(&str, String)> = Vec::new();
    let gpu = read.gpu.as_ref().map(|gpu| match gpu {
        GpuSelector::Index(index) => index.to_string(),
        GpuSelector::Uuid(uuid) => uuid.to_string(),
    });
    let cards = (read.cards.get() > 1).then(|| read.cards.to_string());
    let all = [
        ("aliyun.com/gpu-count", cards),
        ("mpsgate.io/gpu-mem", read.memory.map(|memory| format!("{}Mi", memory.0))),
        ("mpsgate.io/gpu", gpu),
        ("mpsgate.io/gpu-compute", read.compute.map(|share| share.0.to_string())),
        ("mpsgate.io/gpu-priority", Some(format!("{:?}", read.priority).to_lowercase())),
        ("mpsgate.io/gpu-uid", read.uid.map(|uid| uid.to_string())),
        ("mpsgate.io/grant", read.token.clone()),
    ];
    said.extend(all.into_iter().filter_map(|(name, value)| Some((name, value?))));
    said
}
