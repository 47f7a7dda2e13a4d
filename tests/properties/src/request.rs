//! Requests: annotations, variables and the amounts in them.

use mpsgate_allocation::{GpuSelector, Mib, QuantityError, Request, parse_request};

use crate::text;

/// An amount that is taken is exactly what was written, has a unit, and renders back to itself; ACK's form
/// takes digits alone.
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

/// Lines `name=value`, annotations up to an empty line and variables after it. What is read can be said
/// again in one spelling and is then the same; every error quotes a name that was given and has a hint.
pub(crate) fn request(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (annotations, env) = text.split_once("\n\n").unwrap_or((text, ""));
    fn pairs(lines: &str) -> impl Iterator<Item = (&str, &str)> {
        lines.lines().map(|line| line.split_once('=').unwrap_or((line, "")))
    }
    match parse_request(pairs(annotations), pairs(env)) {
        Ok(None) => {}
        Ok(Some(read)) => {
            let said = said(&read);
            let again = said.iter().map(|(name, value)| (*name, value.as_str()));
            assert_eq!(parse_request(again, std::iter::empty()).unwrap(), Some(read), "{text}");
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
    let mut said = vec![("mpsgate.io/gpu-mem", format!("{}Mi", read.memory.0))];
    let gpu = read.gpu.as_ref().map(|gpu| match gpu {
        GpuSelector::Index(index) => index.to_string(),
        GpuSelector::Uuid(uuid) => uuid.to_string(),
    });
    let others = [
        ("mpsgate.io/gpu", gpu),
        ("mpsgate.io/gpu-compute", read.compute.map(|share| share.0.to_string())),
        ("mpsgate.io/gpu-priority", Some(format!("{:?}", read.priority).to_lowercase())),
        ("mpsgate.io/gpu-uid", read.uid.map(|uid| uid.to_string())),
        ("mpsgate.io/grant", read.token.clone()),
    ];
    said.extend(others.into_iter().filter_map(|(name, value)| Some((name, value?))));
    said
}
