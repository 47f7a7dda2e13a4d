//! The output is byte for byte that of the published tool: `published/README.md`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

mod server;

use std::path::Path;

use fake_api_server::World;
use server::Server;

#[test]
fn the_output_is_the_published_tools_byte_for_byte() {
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/published");
    let mut clusters = 0;
    for entry in std::fs::read_dir(&published).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        clusters += 1;
        let cluster: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let first = cluster["nodes"][0]["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let server = Server::start(World::of(&cluster));
        for (suffix, args) in
            [("", vec![]), ("-details", vec!["-d"]), ("-node", vec![first.as_str()])]
        {
            let stem = path.file_stem().unwrap().to_str().unwrap();
            let golden = path.with_file_name(format!("{stem}{suffix}.txt"));
            if suffix == "-node" && !golden.exists() {
                continue;
            }
            let output = server.inspect(&args);
            assert_eq!(output.status.code(), Some(0), "{stem} {args:?}: {output:?}");
            let golden = std::fs::read_to_string(golden).unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), golden, "{stem} {args:?}");
        }
    }
    assert_eq!(clusters, 20);
}
