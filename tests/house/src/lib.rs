//! The imports between the modules of a crate, read from its source text.
//!
//! A node is a folder's module with everything below it. A module and its own children may name
//! each other: the children are its parts. Siblings may not, at any depth. Test modules are left
//! out: they may name everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module by its names from the crate's root down.
type Module = Vec<String>;

/// Which modules import which, with each import's text once.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// The root itself, as a sibling of the top modules: what is defined in `lib.rs` or `main.rs`.
const ROOT: &str = "(root)";

/// What is known of one crate.
#[derive(Debug, Default)]
struct Source {
    /// The words and marks of each module's file.
    files: BTreeMap<Module, Vec<String>>,
    /// Names that a module has from another one: `pub use`.
    exports: BTreeMap<Module, BTreeMap<String, Module>>,
}

/// The graphs of siblings, one for each parent that has several, by the parent's path.
///
/// # Panics
/// Where a source file cannot be read.
#[must_use]
pub fn graphs(crate_src: &Path) -> BTreeMap<String, Graph> {
    let mut source = Source::default();
    source.read(crate_src, &[]);
    source.note_exports();
    let mut graphs = BTreeMap::<String, Graph>::new();
    for (module, words) in &source.files {
        for target in source.imports(module, words) {
            // Below their last common parent the two are siblings, or one is the other's part.
            let common = module.iter().zip(&target).take_while(|(one, other)| one == other).count();
            let names = (module.get(common), target.get(common));
            let (from, to) = match names {
                (Some(from), Some(to)) => (from.as_str(), to.as_str()),
                (Some(from), None) if common == 0 => (from.as_str(), ROOT),
                (None, Some(to)) if common == 0 => (ROOT, to.as_str()),
                _ => continue,
            };
            let parent = module[..common].join("::");
            let graph = graphs.entry(parent).or_default();
            graph.entry(from.to_owned()).or_default().insert(to.to_owned());
        }
    }
    graphs
}

/// The sets of modules that import each other in a circle, largest first.
#[must_use]
pub fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reach(graph, from))).collect();
    let mut circles = BTreeSet::new();
    for (from, all) in &reached {
        let mut circle: BTreeSet<String> = BTreeSet::new();
        for other in all {
            if reached.get(*other).is_some_and(|back| back.contains(*from)) {
                circle.insert((*other).clone());
            }
        }
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let mut circles: Vec<_> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

fn reach<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        for to in graph.get(next).into_iter().flatten() {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

impl Source {
    fn read(&mut self, folder: &Path, parent: &[String]) {
        let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let path = entry.expect("a folder of ours can be listed").path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if stem == "tests" || stem == "generated" || stem == "bin" {
                continue;
            }
            let mut module = parent.to_vec();
            if path.is_dir() {
                module.push(stem);
                self.read(&path, &module);
            } else if path.extension().is_some_and(|end| end == "rs") {
                if !matches!(stem.as_str(), "lib" | "main" | "mod") {
                    module.push(stem);
                }
                let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
                self.files.entry(module).or_default().extend(without_tests(&words(&text)));
            }
        }
    }

    fn note_exports(&mut self) {
        let mut exports = BTreeMap::<Module, BTreeMap<String, Module>>::new();
        for (module, words) in &self.files {
            for (at, word) in words.iter().enumerate() {
                let is_public = words[..at].iter().rev().take(4).any(|before| before == "pub")
                    && matches!(words[at.saturating_sub(1)].as_str(), "pub" | ")");
                if word != "use" || !is_public {
                    continue;
                }
                let mut paths = Vec::new();
                tree(words, at + 1, &mut Vec::new(), &mut paths);
                for path in paths {
                    if let (Some(found), Some(name)) = (self.locate(module, &path), path.last()) {
                        exports.entry(module.clone()).or_default().insert(name.clone(), found);
                    }
                }
            }
        }
        self.exports = exports;
    }

    /// The modules that a file names.
    fn imports(&self, module: &Module, words: &[String]) -> BTreeSet<Module> {
        let mut found = BTreeSet::new();
        for (at, word) in words.iter().enumerate() {
            let begins = at == 0 || words[at - 1] != "::";
            let is_child = || {
                self.files.contains_key(&[module.as_slice(), std::slice::from_ref(word)].concat())
            };
            let is_path = matches!(word.as_str(), "crate" | "super" | "self") || is_child();
            // What the root hands out under its own name is no use of it.
            let is_export =
                module.is_empty() && at > 1 && words[at - 1] == "use" && words[at - 2] == "pub";
            if !begins || !is_path || is_export || words.get(at + 1).is_none_or(|next| next != "::")
            {
                continue;
            }
            let mut paths = Vec::new();
            tree(words, at, &mut Vec::new(), &mut paths);
            found.extend(paths.iter().filter_map(|path| self.locate(module, path)));
        }
        found.remove(module);
        found
    }

    /// The module in which what a path names is defined. `None` where the path leads out of the
    /// crate.
    fn locate(&self, from: &Module, path: &[String]) -> Option<Module> {
        let mut at = match path.first()?.as_str() {
            "crate" => Module::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            child => {
                let below = [from.as_slice(), &[child.to_owned()]].concat();
                self.files.contains_key(&below).then_some(below)?
            }
        };
        for name in &path[1..] {
            if name == "super" {
                at.pop();
                continue;
            }
            let below = [at.as_slice(), std::slice::from_ref(name)].concat();
            if self.files.contains_key(&below) {
                at = below;
            } else {
                if let Some(elsewhere) = self.exports.get(&at).and_then(|names| names.get(name)) {
                    at = elsewhere.clone();
                }
                break;
            }
        }
        Some(at)
    }
}

/// The paths of a use tree, or the one path of an expression, that begins at a word. Returns where
/// it ends.
fn tree(
    words: &[String],
    mut at: usize,
    prefix: &mut Vec<String>,
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let depth = prefix.len();
    while let Some(word) = words.get(at) {
        if word == "{" {
            at += 1;
            while words.get(at).is_some_and(|word| word != "}") {
                at = tree(words, at, prefix, paths);
                if words.get(at).is_some_and(|word| word == ",") {
                    at += 1;
                }
            }
            prefix.truncate(depth);
            return at + 1;
        }
        prefix.push(word.clone());
        at += 1;
        if words.get(at).is_none_or(|next| next != "::") {
            break;
        }
        at += 1;
    }
    paths.push(prefix.clone());
    prefix.truncate(depth);
    if words.get(at).is_some_and(|word| word == "as") {
        at += 2;
    }
    at
}

/// Words and marks without comments, texts and characters.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            while i < chars.len() && !(chars[i] == '*' && at(i + 1) == '/') {
                i += 1;
            }
            i += 2;
        } else if c == 'r'
            && (at(i + 1) == '"' || (at(i + 1) == '#' && matches!(at(i + 2), '"' | '#')))
        {
            let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
            i += hashes + 2;
            while i < chars.len()
                && !(chars[i] == '"'
                    && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes)
            {
                i += 1;
            }
            i += hashes + 1;
        } else if c == '"' {
            i += 1;
            while i < chars.len() && chars[i] != '"' {
                i += if chars[i] == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && chars[i] != '\'' {
                i += 1;
            }
            i += 1;
        } else if c.is_alphanumeric() || c == '_' {
            let begin = i;
            while at(i).is_alphanumeric() || at(i) == '_' {
                i += 1;
            }
            words.push(chars[begin..i].iter().collect());
        } else if c == ':' && at(i + 1) == ':' {
            words.push("::".to_owned());
            i += 2;
        } else {
            if !c.is_whitespace() {
                words.push(c.to_string());
            }
            i += 1;
        }
    }
    words
}

/// Without the items that only tests have.
fn without_tests(words: &[String]) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < words.len() {
        if !words[at..].iter().map(String::as_str).take(MARK.len()).eq(MARK) {
            kept.push(words[at].clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        let mut depth = 0_usize;
        while let Some(word) = words.get(at) {
            at += 1;
            match word.as_str() {
                "{" => depth += 1,
                "}" if depth <= 1 => break,
                "}" => depth -= 1,
                ";" if depth == 0 => break,
                _ => {}
            }
        }
    }
    kept
}
