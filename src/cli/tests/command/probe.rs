//! `mpsgate probe` against a libcuda of our own: the real loading path, without a GPU.

use std::path::Path;
use std::process::Command;

/// 16 GiB, of which an MPS client with a limit of 7168 MiB gets 7000; FAKE_CUDA_INIT fails cuInit.
const LIBCUDA: &str = r#"
#include <stdlib.h>
#include <stddef.h>
static size_t left = (size_t)7000 << 20;
int cuInit(unsigned f) { (void)f; char *e = getenv("FAKE_CUDA_INIT"); if (getenv("FAKE_CUDA_UNLIMITED")) left = (size_t)16000 << 20; return e ? atoi(e) : 0; }
int cuDeviceGet(int *d, int n) { (void)n; *d = 0; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { (void)d; if (a != 133 || !getenv("FAKE_CUDA_MPS")) return 1; *v = atoi(getenv("FAKE_CUDA_MPS")); return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = &left; return 0; }
int cuCtxSetCurrent(void *c) { return c == &left ? 0 : 201; }
int cuDevicePrimaryCtxRelease_v2(int d) { return d; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = left; *t = (size_t)16384 << 20; return 0; }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { if (n > left) return 2; left -= n; *p = 1; return 0; }
int cuMemFree_v2(unsigned long long p) { return p == 1 ? 0 : 1; }
int cuGetErrorName(int e, const char **s) { *s = e == 805 ? "CUDA_ERROR_MPS_CONNECTION_FAILED" : NULL; return 0; }
"#;

fn library(dir: &Path) -> String {
    let (source, library) = (dir.join("cuda.c"), dir.join("libcuda.so.1"));
    std::fs::write(&source, LIBCUDA).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(built.success(), "cc, which Rust links with, builds the library");
    library.to_str().unwrap().to_owned()
}

fn probe(library: &str, env: &[(&str, &str)], args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mpsgate"))
        .args(["probe", "--library", library])
        .args(args)
        .env_remove("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const LIMIT: (&str, &str) = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=7168M");

#[test]
fn measures_what_can_be_allocated_against_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path());
    let (code, stdout, _) = probe(&library, &[LIMIT], &["-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &answer["allocated_mib"], &answer["holds"]), (0, &7000.into(), &true.into()));
    let (code, stdout, _) = probe(&library, &[LIMIT, ("FAKE_CUDA_UNLIMITED", "1")], &[]);
    assert_eq!(code, 1);
    assert!(stdout.contains("does NOT hold: 8832 MiB more than 7168 MiB"), "{stdout}");
    let (code, stdout, _) = probe(&library, &[], &["--max-mib", "10"]);
    assert!(
        code == 0 && stdout.contains("allocated  10 MiB") && stdout.contains("is not set"),
        "{stdout}"
    );
}

#[test]
fn says_whether_it_is_an_mps_client_where_the_driver_tells() {
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path());
    for (env, json, words) in [
        (&[LIMIT, ("FAKE_CUDA_MPS", "1")][..], true.into(), "MPS client yes"),
        (
            &[LIMIT, ("FAKE_CUDA_MPS", "0")],
            false.into(),
            "MPS client NO: it uses the card past MPS",
        ),
        (&[LIMIT], serde_json::Value::Null, "MPS client this driver does not tell"),
    ] {
        let (_, stdout, _) = probe(&library, env, &["-o", "json"]);
        let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(answer["mps_client"], json);
        let (_, stdout, _) = probe(&library, env, &[]);
        assert!(stdout.contains(words), "{stdout}");
    }
}

#[test]
fn cudas_errors_are_said_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path());
    let (code, _, stderr) = probe(&library, &[LIMIT, ("FAKE_CUDA_INIT", "805")], &[]);
    assert_eq!(code, 69);
    assert!(
        stderr.contains("CUDA_ERROR_MPS_CONNECTION_FAILED (805)") && stderr.contains("--ipc=host"),
        "{stderr}"
    );
    let (code, _, stderr) = probe("/nonexistent/libcuda.so.1", &[], &[]);
    assert!(
        code == 69 && stderr.contains("hint: run it where the driver's libraries are"),
        "{stderr}"
    );
    let (code, _, stderr) = probe("libc.so.6", &[], &[]);
    assert!(code == 69 && stderr.contains("cuInit"), "{stderr}");
}
