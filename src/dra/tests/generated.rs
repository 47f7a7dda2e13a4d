//! The committed code is what the schemas make. `MPSGATE_BLESS=1` writes it anew.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the test runs protoc")]

use std::path::Path;
use std::process::{Command, Stdio};

/// The compiler that prost runs: that of `PROTOC`, else the one in the path. Not a dependency,
/// which would bring programs of ten platforms.
fn protoc() -> String {
    std::env::var("PROTOC").unwrap_or_else(|_| "protoc".to_owned())
}

#[test]
fn generated_code_is_that_of_the_schemas() {
    let version = Command::new(protoc()).arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        mpsgate_testing::skip!("needs protoc (Debian: protobuf-compiler)");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = tempfile::tempdir().unwrap();
    let schemas = ["dra", "registration", "health_v1", "health_v1alpha1"];
    tonic_prost_build::configure()
        // Of ours: every map is to come out in one order, so that equal answers are equal bytes.
        .btree_map(".")
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(made.path())
        .compile_protos(
            &schemas.map(|name| root.join(format!("proto/{name}.proto"))),
            &[root.join("proto")],
        )
        .unwrap();
    for (package, name) in [
        ("k8s.io.kubelet.pkg.apis.dra.v1", "dra"),
        ("pluginregistration", "registration"),
        ("v1", "health_v1"),
        ("v1alpha1", "health_v1alpha1"),
    ] {
        let made = std::fs::read_to_string(made.path().join(format!("{package}.rs"))).unwrap();
        mpsgate_testing::golden::compare(root.join(format!("src/generated/{name}.rs")), &made);
    }
}
