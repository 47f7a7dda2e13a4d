//! Modules of one crate that import each other in a circle cannot be read one by one.

use std::path::Path;

use mpsgate_house::{circles, graphs};

#[test]
fn no_module_imports_another_in_a_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut found = String::new();
    let mut crates = 0;
    for entry in std::fs::read_dir(src).expect("src can be listed") {
        let path = entry.expect("src can be listed").path();
        if !path.join("Cargo.toml").is_file() {
            continue;
        }
        crates += 1;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (parent, graph) in graphs(&path.join("src")) {
            let circles = circles(&graph);
            let place = [name.as_str(), &parent].join("::").trim_end_matches(':').to_owned();
            for circle in circles {
                found.push_str(&format!("\n{place}: {} modules", circle.len()));
                for (from, to) in graph.iter().filter(|(from, _)| circle.contains(*from)) {
                    let to: Vec<&str> = to.intersection(&circle).map(String::as_str).collect();
                    found.push_str(&format!("\n    {from} imports {}", to.join(", ")));
                }
            }
        }
    }
    assert!(crates > 10, "{crates} crates found");
    assert!(found.is_empty(), "modules import each other in a circle:{found}");
}

/// What the scan says of modules that are made for it.
#[test]
fn a_circle_is_found_through_lists_reexports_and_parents_and_not_in_tests_or_texts() {
    let folder = std::env::temp_dir().join(format!("mpsgate-house-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().expect("it has a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use b::{One, Two as Three};\n");
    write(
        "a.rs",
        "mod part;\nuse crate::{Other, One};\n// use crate::c::X;\nconst T: &str = \"crate::c::X\";\n",
    );
    write("a/part.rs", "use super::X;\nfn f() { crate::c::g() }\n");
    write("b.rs", "use std::{fs, io};\n#[cfg(test)]\nmod tests { use crate::d::X; }\n");
    write("c.rs", "use super::a::{self, X};\nconst C: char = '\"'; const D: char = '\\'';\n");
    write("d.rs", "use crate::b::One;\nfn f<'a>(x: &'a str) { crate::c::g() }\n");
    let graphs = graphs(&folder);
    std::fs::remove_dir_all(&folder).expect("it was made");
    let top = &graphs[""];
    let edges = |from: &str| top[from].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(edges("a"), ["(root)", "b", "c"]);
    assert_eq!((edges("c"), edges("d")), (vec!["a"], vec!["b", "c"]));
    assert!(!top.contains_key("b"));
    assert_eq!(circles(top), [["a".to_owned(), "c".to_owned()].into()]);
}
