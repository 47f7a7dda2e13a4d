//! `doctor --bundle` on made-up nodes: what is in the archive, and what never is.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use serde_json::Value;

use crate::doctor::Root;
use crate::{mpsgate, text};

/// Planted wherever a secret could lie.
const SECRET: &str = "hunter2";

fn unpack(archive: &Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(archive).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mode().unwrap(), 0o600);
        let name =
            entry.path().unwrap().strip_prefix("mpsgate-bundle").unwrap().display().to_string();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        files.insert(name, content);
    }
    files
}

/// The archive of `root`, beside it.
fn bundle(root: &Root) -> BTreeMap<String, String> {
    let target = root.at("/bundle.tar.gz");
    let ended = mpsgate(&[
        "doctor",
        "-o",
        "json",
        "--root",
        text(root.dir.path()),
        "--bundle",
        text(&target),
    ]);
    // As without --bundle: a check fails here.
    ended.assert_code(1).assert_stderr(&["bundle.tar.gz: ", "readable by its owner alone"]);
    serde_json::from_str::<Value>(&ended.stdout).unwrap();
    assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o7777, 0o600);
    unpack(&target)
}

#[test]
fn it_holds_what_helps_and_no_secret() {
    let root = Root::new();
    let config = std::fs::read_to_string(root.at("/etc/mpsgate/config.toml")).unwrap();
    root.write("/etc/mpsgate/config.toml", &format!("{config}# DB_PASSWORD={SECRET}\n"));
    root.write("/var/lib/mpsgate/tokens/keys.json", SECRET);
    root.write("/var/lib/mpsgate/configure/docker/daemon.json", SECRET);
    root.write("/run/mpsgate/grants/x.json", &format!("{{\"env\":[\"A={SECRET}\"]}}"));
    root.write("/etc/docker/daemon.json", &format!("{{\"registry-auth\":\"{SECRET}\"}}"));
    root.write("/proc/1/environ", SECRET);
    root.write("/proc/self/mountinfo", SECRET);
    root.write(
        "/run/mpsgate/ledger/ledger.json",
        &format!(
            "{{\"format\":9,\"env\":[\"CUDA_A=1\",\"B={SECRET}\"],\"x\":\"mpsgate1.k.{SECRET}.m\"}}"
        ),
    );
    root.write(
        "/run/mpsgate/mps/0/log/control.log",
        &format!("started\nuses mpsgate1.k.{SECRET}.mac\n"),
    );
    root.write("/run/mpsgate/mps/0/log/server.log", &"a line of the server\n".repeat(20_000));
    root.write("/var/lib/mpsgate/managed.json", "{\"x\": ");
    root.write("/proc/driver/nvidia/version", "NVRM version: 550.163.01\n");
    root.write(
        "/etc/systemd/system/mpsgated.service.d/proxy.conf",
        &format!("[Service]\nEnvironment=HTTPS_PROXY=http://joe:{SECRET}@proxy \\\n  B={SECRET}\nNice=1\n"),
    );
    root.write("/usr/lib/systemd/system/mpsgated.service", "[Service]\nType=notify\n");
    let files = bundle(&root);
    for (name, content) in &files {
        assert!(!content.contains(SECRET), "{name}: {content}");
    }
    for (name, part) in [
        ("doctor.json", "\"checks\""),
        ("config.toml", "[nvml]\nlibrary = \"/lib/libnvidia-ml.so.1\"\n"),
        ("ledger.json", "CUDA_A=1"),
        ("mps/0/control.log", "started\nuses mpsgate1.[redacted]"),
        ("mps/0/server.log", "a line of the server"),
        ("system/driver", "550.163.01"),
        ("units/etc/systemd/system/mpsgated.service.d/proxy.conf", "Nice=1"),
        ("units/usr/lib/systemd/system/mpsgated.service", "Type=notify"),
    ] {
        let content = files.get(name).unwrap_or_else(|| panic!("{name}: {:?}", files.keys()));
        assert!(content.contains(part), "{name}: {content}");
    }
    let manifest: Value = serde_json::from_str(files.get("manifest.json").unwrap()).unwrap();
    assert_eq!(manifest["schema"], 1);
    let included = manifest["included"].as_array().unwrap();
    // All but itself.
    assert_eq!(included.len() + 1, files.len());
    let log = included.iter().find(|file| file["name"] == "mps/0/server.log").unwrap();
    assert_eq!(log["cut"], true);
    assert!(log["bytes"].as_u64().unwrap() <= 256 << 10, "{log}");
    let left_out = manifest["left_out"].as_array().unwrap();
    let why =
        |what: &str| left_out.iter().find(|l| l["what"] == what).unwrap()["why"].as_str().unwrap();
    assert!(why("mpsgate status -o json").contains("mpsgated is not running"));
    assert_eq!(why("/run/mpsgate/node.json"), "it is not there");
    assert_eq!(why("/var/lib/mpsgate/managed.json"), "it is no JSON document");
    assert!(manifest["never_included"].to_string().contains("/var/lib/mpsgate/tokens"));
}

#[test]
fn it_follows_no_link_and_waits_for_no_fifo() {
    let root = Root::new();
    root.write("/secret", SECRET);
    root.write("/elsewhere/control.log", SECRET);
    std::fs::create_dir_all(root.at("/run/mpsgate/mps/0/log")).unwrap();
    std::fs::create_dir_all(root.at("/run/mpsgate/mps/1")).unwrap();
    symlink(root.at("/secret"), root.at("/run/mpsgate/mps/0/log/control.log")).unwrap();
    symlink(root.at("/elsewhere"), root.at("/run/mpsgate/mps/1/log")).unwrap();
    nix::unistd::mkfifo(
        &root.at("/run/mpsgate/mps/0/log/server.log"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let files = bundle(&root);
    assert!(!files.keys().any(|name| name.starts_with("mps/")), "{:?}", files.keys());
    assert!(files.values().all(|content| !content.contains(SECRET)));
    let manifest = files.get("manifest.json").unwrap();
    assert!(manifest.contains("it is a symbolic link, and none is followed"), "{manifest}");
    assert!(manifest.contains("it is no regular file"), "{manifest}");
}

#[test]
fn what_exists_is_not_replaced_and_nothing_is_left_behind() {
    let root = Root::new();
    root.write("/out/there", "mine");
    symlink(root.at("/out/nowhere"), root.at("/out/link")).unwrap();
    for name in ["/out/there", "/out/link"] {
        let target = root.at(name);
        let ended =
            mpsgate(&["doctor", "--root", text(root.dir.path()), "--bundle", text(&target)]);
        ended
            .assert_code(2)
            .assert_stderr(&["exists and is not replaced", "hint: name another file"]);
    }
    assert_eq!(std::fs::read_to_string(root.at("/out/there")).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(root.at("/out")).unwrap().count(), 2);
    let target = root.at("/no/such/directory.tar.gz");
    let ended = mpsgate(&["doctor", "--root", text(root.dir.path()), "--bundle", text(&target)]);
    ended.assert_code(2).assert_stderr(&["cannot write", "hint: mkdir -p"]);
}
