//! A node with three simulated cards: two are managed by the settings, the third comes and goes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mpsgate_config::paths;
use serde_json::{Value, json};

use crate::{Failure, Workplace};

/// Cards that the settings manage: containers run on them.
pub(crate) const MANAGED: u64 = 2;
/// The card that `mpsgate enable` and `disable` are asked for.
pub(crate) const THIRD: u64 = 2;
/// MiB of each card, of which 15 GiB can be granted.
const CARD_MIB: u64 = 16384;

/// Programs that are installed in the sandbox.
pub(crate) const PROGRAMS: [&str; 4] = ["mpsgate", "mpsgated", "mpsgate-runtime", "mpsgate-hook"];

/// The same, without crash points.
pub(crate) const GATE: &str = "mpsgate-gate";

pub(crate) fn uuid(card: u64) -> String {
    format!("GPU-00000000-0000-4000-8000-{card:012}")
}

/// Simulated cards, settings, and the programs of `from`.
pub(crate) fn prepare(at: &Workplace, from: &Path) -> Result<(), Failure> {
    for directory in ["nvml", "b", "log"] {
        std::fs::create_dir_all(at.scratch.join(directory))?;
    }
    let library = at.scratch.join("nvml/libnvidia-ml.so.1");
    std::fs::copy(at.products.join("fakes/libnvidia-ml.so.1"), &library)?;
    std::fs::write(nvml_file(at), cards().to_string())?;
    let managed: Vec<String> = (0..MANAGED).map(uuid).collect();
    let mut settings = String::new();
    writeln!(settings, "[runtime]\npath = {:?}", at.runtime)?;
    writeln!(settings, "[gpus]\nmanage = {managed:?}")?;
    writeln!(settings, "[inject]\nmode = \"devices\"")?;
    writeln!(settings, "[mps]\ncontrol = {:?}", at.control)?;
    writeln!(settings, "[nvml]\nlibrary = {library:?}")?;
    std::fs::write(paths::CONFIG_FILE, settings)?;
    // Without a node of the third card the hook makes one to test it with.
    match std::fs::remove_file(format!("/dev/nvidia{THIRD}")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    for program in PROGRAMS {
        install(from, program)?;
    }
    install(&at.products, GATE)?;
    make_rootfs(&at.scratch.join("rootfs"))?;
    let spec = at.scratch.join("spec");
    std::fs::create_dir_all(&spec)?;
    // Into the directory where it is called: crun's has no --bundle.
    run_in(&spec, &at.runtime.to_string_lossy(), &["spec"]).map(drop)
}

/// Puts a program in place as a package does: under another name, then renamed.
pub(crate) fn install(from: &Path, program: &str) -> Result<(), Failure> {
    let temporary = format!("/usr/bin/.{program}.new");
    std::fs::copy(from.join(program), &temporary)
        .map_err(|error| format!("{}: {error}", from.join(program).display()))?;
    std::fs::rename(temporary, format!("/usr/bin/{program}"))?;
    Ok(())
}

pub(crate) fn nvml_file(at: &Workplace) -> PathBuf {
    at.scratch.join("nvml/nvml.json")
}

fn cards() -> Value {
    let card = |index: u64| {
        json!({
            "uuid": uuid(index), "index": index, "minor": index, "name": "Simulated",
            "memory_total_mib": CARD_MIB, "memory_used_mib": 0, "compute_capability": "7.5",
            "mig": "unsupported", "compute_mode": "DEFAULT",
            "pci_bus_id": format!("00000000:{:02X}:00.0", 0x3A + index), "processes": []
        })
    };
    json!({
        "driver_version": "550.163.01", "cuda_driver_version": "12.4",
        "cards": (0..=THIRD).map(card).collect::<Vec<_>>()
    })
}

/// A card's compute mode, as NVML has it.
pub(crate) fn compute_mode(at: &Workplace, card: u64) -> Result<String, Failure> {
    let found: Value = serde_json::from_slice(&std::fs::read(nvml_file(at))?)?;
    let card = usize::try_from(card)?;
    Ok(found["cards"][card]["compute_mode"].as_str().unwrap_or_default().to_owned())
}

fn make_rootfs(root: &Path) -> Result<(), Failure> {
    if root.exists() {
        return Ok(());
    }
    for directory in ["bin", "dev", "etc", "proc", "sys", "tmp", "run"] {
        std::fs::create_dir_all(root.join(directory))?;
    }
    let busybox =
        ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    std::fs::copy(
        busybox.ok_or("busybox is missing: tests/env/install.sh test")?,
        root.join("bin/busybox"),
    )?;
    for applet in ["sh", "sleep", "true", "env"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    Ok(())
}

/// Runs a program to its end; its whole output is the error where it fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    run_in(Path::new("/"), program, arguments)
}

fn run_in(directory: &Path, program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new(program).args(arguments).current_dir(directory).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}: {text}{errors}", arguments.join(" "), output.status).into())
}

/// Waits until `is_so`.
pub(crate) fn wait_for(
    what: &str,
    is_so: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    mpsgate_testing::try_wait_for(what, Duration::from_millis(5), is_so)
}
