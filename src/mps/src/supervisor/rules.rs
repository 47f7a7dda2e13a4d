//! What a holder may start: its own control program, in the directories of one card, with an
//! environment of its own. Only root can ask; these rules keep a mistake from becoming a process.

use std::path::Path;

use super::Start;

/// Why the holder refuses to start this; `None` if it may.
pub(super) fn objection(start: &Start, control: &Path, mps: &Path) -> Option<String> {
    if start.program != control {
        return Some(format!(
            "it was started with --control {}, and is asked for {}",
            control.display(),
            start.program.display()
        ));
    }
    let named = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if start.uuid.is_empty() || !named(&start.uuid) {
        return Some(format!("{:?} is no UUID of a card", start.uuid));
    }
    // In the background, a daemon would not be the holder's child.
    if start.arguments.first().is_none_or(|first| first != "-f")
        || !start.arguments.iter().all(|word| word.starts_with('-') && named(word))
    {
        return Some(format!("{:?} are no arguments of a control daemon", start.arguments));
    }
    let base = mps.join(start.card.to_string());
    let (pipe, log) = (base.join("pipe"), base.join("log"));
    if start.log != log.join("control.log") {
        return Some(format!("{} is not below {}", start.log.display(), log.display()));
    }
    for (place, (name, value)) in start.variables.iter().enumerate() {
        let fits = match name.as_str() {
            "CUDA_VISIBLE_DEVICES" => *value == start.uuid,
            "CUDA_MPS_PIPE_DIRECTORY" => Path::new(value) == pipe,
            "CUDA_MPS_LOG_DIRECTORY" => Path::new(value) == log,
            // A later driver's settings, none of them a path of mpsgate.
            other => other == "PATH" || (other.starts_with("CUDA_") && named(other)),
        };
        let twice = start.variables[..place].iter().any(|(earlier, _)| earlier == name);
        if !fits || twice {
            return Some(format!("{name}={value} does not belong to card {}", start.card));
        }
    }
    let needed = ["CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"];
    let missing = needed.iter().find(|name| !start.variables.iter().any(|(n, _)| n == *name));
    missing.map(|name| format!("{name} is missing"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn start(mps: &Path, control: &Path) -> Start {
        let base = mps.join("0");
        let path = |part: &str| base.join(part).display().to_string();
        Start {
            card: 0,
            uuid: "GPU-0".into(),
            program: control.into(),
            log: base.join("log/control.log"),
            arguments: vec!["-f".into()],
            variables: vec![
                ("PATH".into(), "/usr/bin:/bin".into()),
                ("CUDA_VISIBLE_DEVICES".into(), "GPU-0".into()),
                ("CUDA_MPS_PIPE_DIRECTORY".into(), path("pipe")),
                ("CUDA_MPS_LOG_DIRECTORY".into(), path("log")),
            ],
        }
    }

    #[test]
    fn only_the_control_program_in_the_directories_of_its_card_is_started() {
        let (mps, control) = (Path::new("/run/mpsgate/mps"), Path::new("/usr/bin/control"));
        let good = start(mps, control);
        assert_eq!(objection(&good, control, mps), None);
        type Spoil = fn(&mut Start);
        let cases: [(&str, Spoil); 13] = [
            ("--control", |s| s.program = "/bin/sh".into()),
            ("no UUID", |s| s.uuid = "GPU 0".into()),
            ("no UUID", |s| s.uuid = String::new()),
            ("no arguments", |s| s.arguments.clear()),
            ("no arguments", |s| s.arguments[0] = "-d".into()),
            ("no arguments", |s| s.arguments.push("/etc/passwd".into())),
            ("not below", |s| s.log = "/etc/passwd".into()),
            ("not below", |s| s.log = "/run/mpsgate/mps/1/log/control.log".into()),
            ("LD_PRELOAD=", |s| s.variables.push(("LD_PRELOAD".into(), "/x.so".into()))),
            ("CUDA_VISIBLE_DEVICES=GPU-1", |s| s.variables[1].1 = "GPU-1".into()),
            ("CUDA_MPS_PIPE_DIRECTORY=/tmp", |s| s.variables[2].1 = "/tmp".into()),
            ("PATH=/", |s| s.variables.push(("PATH".into(), "/".into()))),
            ("CUDA_MPS_LOG_DIRECTORY is missing", |s| s.variables.truncate(3)),
        ];
        for (why, spoil) in cases {
            let mut start = good.clone();
            spoil(&mut start);
            let found = objection(&start, control, mps);
            assert!(found.as_ref().is_some_and(|found| found.contains(why)), "{why}: {found:?}");
        }
        // A driver's later setting needs no other holder.
        let mut later = good;
        later.variables.push(("CUDA_MPS_ENABLE_SOMETHING".into(), "1".into()));
        assert_eq!(objection(&later, control, mps), None);
    }
}
