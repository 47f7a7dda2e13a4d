#!/usr/bin/env python3
"""house.py [--self-test] [--against COMMIT] [--list WORD]: how large the code is, and how tidy.

It counts what the working tree has. With --against it prints COMMIT's figures before, and which
lines of product code only moved from one file to another. --list names the places of each row with
WORD in its name. A line counts where it has a token of code: no blank lines, no comments.

- Product: src/*/src without what a program generated, without modules `tests`, and without what
  `#[cfg(test)]` stands before. Tests: these, src/*/tests and the Rust of tests/; scripts: its shell.
- A type is called card where Card or Cards is a word of its name; pod, request, grant likewise.
- Files of one name: product files whose name another folder has, too. What a name means in each
  crate alike is left out: lib.rs, main.rs, error.rs, args.rs (a program's command line) and fuzz.rs
  (its doors for tests/fuzz).
- Texts that are enums: a field, or its `.as_str()`, that is compared with a literal of one word, by
  `==` or `!=`; and each `match` or `matches!` of an `.as_str()` with such a literal.
- Settings that tests change: the keys of tests/env/settings-in-tests, which settings.py keeps true.
- Circles: modules of one folder that name each other by `crate::`, `super::` or `self::`. The test
  that fails for one, in tests/house, also follows `pub use`.
"""

import collections
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
LONG, PAIRS = 60, 15
SAME = ("lib.rs", "main.rs", "error.rs", "args.rs", "fuzz.rs")
NOUNS = ("Card", "Pod", "Request", "Grant")
LINES = ["product lines", "of these the daemon's", "test lines, Rust", "test lines, scripts"]
WORDS = {"Result<Result": ["Result", "<", "Result"], "Ok(Err(": ["Ok", "(", "Err", "("], "card_mut outside node": ["card_mut"]}
TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      | [bc]?r(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:\\.|[^"\\])*"
      | b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])' | '\w+ | \w+ | :: | -> | => | [=!]= | .""",
    re.VERBOSE | re.DOTALL,
)
Token = collections.namedtuple("Token", "word line last")


def tokens(text):
    """The tokens of Rust's text, without comments, with their first and last lines."""
    line = 1
    for match in TOKEN.finditer(text):
        last = line + match[0].count("\n")
        if match["skip"] is None:
            yield Token(match[0], line, last)
        line = last


def closed(code, at):
    """The position behind the bracket that closes the one at `at`."""
    depth = 0
    for end in range(at, len(code)):
        depth += (code[end].word in "({[") - (code[end].word in ")}]")
        if depth == 0:
            return end + 1
    return len(code)


def item_end(code, at):
    """The position behind the item that begins at `at`."""
    while at < len(code) and code[at].word not in "{;":
        at = closed(code, at)
    return closed(code, at) if at < len(code) else at


def split(code):
    """What is the product's, and what stands behind `#[cfg(test)]`."""
    product, tests, at = [], [], 0
    while at < len(code):
        attribute = [token.word for token in code[at : at + 2]] == ["#", "["]
        end = closed(code, at + 1) if attribute else at + 1
        words = {token.word for token in code[at:end]}
        is_test = attribute and {"cfg", "test"} <= words and "not" not in words
        if is_test:
            at, end = end, item_end(code, end)
        (tests if is_test else product).extend(code[at:end])
        at = end
    return product, tests


def lines(code):
    return {line for token in code for line in range(token.line, token.last + 1)}


def tree(commit):
    """{path: text} of the Rust and the shell of a commit, or of the working tree."""
    wanted = re.compile(r"(src|tests)/.*\.(rs|sh|bash|bats)$|tests/env/settings-in-tests$")
    git = ["git", "-C", ROOT]
    if commit:
        packed = subprocess.run([*git, "archive", commit, "src", "tests"], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            files = [file for file in archive if file.isfile() and wanted.match(file.name)]
            return {file.name: archive.extractfile(file).read().decode(errors="replace") for file in files}
    names = subprocess.run([*git, "ls-files", "-co", "--exclude-standard", "src", "tests"], check=True, capture_output=True, text=True)
    paths = [path for path in filter(wanted.match, names.stdout.splitlines()) if os.path.isfile(os.path.join(ROOT, path))]
    return {path: pathlib.Path(ROOT, path).read_text(encoding="utf-8", errors="replace") for path in paths}


def enum_texts(code, word):
    """Where a text is compared with words, as it would be with the variants of an enum."""
    literal = re.compile(r'"[A-Za-z][A-Za-z_-]*"$')
    for at, one in enumerate(word):
        if one in ("==", "!=") and literal.match(word[at + 1]):
            left = at - 4 if word[at - 4 : at] == [".", "as_str", "(", ")"] else at
            if word[left - 2] == "." and word[left - 1].isidentifier():
                yield at
        elif one in ("match", "matches") and "as_str" in word[at : at + 12]:
            begin = word.index("{" if one == "match" else "(", at)
            arms = word[begin : closed(code, begin)]
            if any(literal.match(arm) and after in ("=>", "|", ")") for arm, after in zip(arms, arms[1:])):
                yield at


def module(path):
    """A file's crate, and the names of its module from the crate's root down."""
    _, crate, _, *names = path.removesuffix(".rs").split("/")
    return crate, tuple(names[:-1] if names[-1] in ("lib", "main", "mod") else names)


def named(code, word, own):
    """The paths in a module's file that begin at `crate`, `super` or `self`."""
    for at, one in enumerate(word):
        if one in ("crate", "super", "self") and word[at - 1] != "::" and word[at + 1 : at + 2] == ["::"]:
            todo = [(at + 2, {"crate": (), "super": own[:-1], "self": own}[one])]
            while todo:
                at, where = todo.pop()
                if word[at] == "{":
                    starts = [n for n in range(at + 1, closed(code, at)) if word[n - 1] in "{,"]
                    todo += [(n, where) for n in starts if word[n] not in "{},"]
                    continue
                where = where[:-1] if word[at] == "super" else where if word[at] == "self" else (*where, word[at])
                yield where
                if word[at + 1] == "::":
                    todo.append((at + 2, where))


def circles(product):
    """Modules of one folder that name each other in a circle."""
    known = {module(path): path for path in product}
    edges = collections.defaultdict(set)
    for (crate, own), path in known.items():
        for to in named(*product[path], own):
            while to and (crate, to) not in known:
                to = to[:-1]
            common = len(os.path.commonprefix([own, to]))
            if common < min(len(own), len(to)):
                edges[crate, *own[: common + 1]].add((crate, *to[: common + 1]))
    reached = {}
    for start in edges:
        reached[start], todo = set(), [start]
        while todo:
            new = edges.get(todo.pop(), set()) - reached[start]
            reached[start] |= new
            todo += new
    found = {frozenset(to for to in of if start in reached.get(to, ())) for start, of in reached.items()}
    return [" ".join(sorted("::".join(one) for one in circle)) for circle in found if circle]


def count(texts):
    """{row: its number, or the places that are counted}, and the product's lines by file."""
    product, rows = {}, {row: 0 for row in LINES}
    rows |= {f"types called {noun.lower()}": [] for noun in NOUNS} | {"files of one name": []}
    rows |= {row: [] for row in [*WORDS, "Daemon parameters", f"functions over {LONG} lines", "texts that are enums"]}
    for path, text in texts.items():
        if path.endswith(".rs") and "/generated/" not in path:
            code = list(tokens(text))
            if re.match(r"src/[^/]+/src/", path) and not re.search(r"/tests(/|\.rs$)", path):
                own, code = split(code)
                product[path] = (own, [token.word for token in own])
            rows["test lines, Rust"] += len(lines(code))
        elif path.startswith("tests/") and not path.endswith(".rs"):
            rows["test lines, scripts"] += len(re.findall(r"^\s*[^\s#]", text, re.M))
    of_name, shown = collections.Counter(os.path.basename(path) for path in product), {}
    for path, (code, word) in product.items():
        name, here, text = os.path.basename(path), sorted(lines(code)), texts[path].split("\n")
        shown[path] = [text[line - 1].strip() for line in here]
        rows["product lines"] += len(here)
        rows["of these the daemon's"] += len(here) * path.startswith("src/daemon/")
        if of_name[name] > 1 and name not in SAME:
            rows["files of one name"].append(f"{name} ×{of_name[name]}: {path}")
        for at, token in enumerate(code):
            place = f"{path}:{token.line}"
            if token.word in ("struct", "enum", "union", "type"):
                for noun in {part.removesuffix("s") for part in re.findall(r"[A-Z][a-z0-9]*", word[at + 1])} & {*NOUNS}:
                    rows[f"types called {noun.lower()}"].append(f"{place} {word[at + 1]}")
            elif token.word == "fn" and word[at + 1].isidentifier():
                many = len(lines(code[at : item_end(code, at)]))
                if many > LONG:
                    rows[f"functions over {LONG} lines"].append(f"{place} {word[at + 1]}, {many} lines")
            elif token.word == ":" and re.match(r"(& ('\w+ )?)?(Arc < )?Daemon\b", " ".join(word[at + 1 : at + 6])):
                rows["Daemon parameters"].append(place)
            for row, words in WORDS.items():
                if word[at : at + len(words)] == words and not ("outside node" in row and path.startswith("src/node/")):
                    rows[row].append(place)
        rows["texts that are enums"] += [f"{path}:{code[at].line}" for at in enum_texts(code, word)]
    rows["settings that tests change"] = re.findall(r"^\w+\.\w+", texts.get("tests/env/settings-in-tests", ""), re.M)
    rows["circles of modules"] = circles(product)
    return rows, shown


def moved(before, after):
    """{(from, to): lines} that left one file for another, and how many came and went in all. Lines
    without a word, such as a bracket, are not looked for."""
    gone, come = collections.defaultdict(list), []
    for path in sorted(before.keys() | after.keys()):
        old, new = (collections.Counter(side.get(path, ())) for side in (before, after))
        for line in (old - new).elements():
            gone[line].append(path)
        come += [(line, path) for line in (new - old).elements()]
    went, pairs = sum(map(len, gone.values())), collections.Counter()
    for line, path in come:
        if re.search(r"\w{3}", line) and gone[line]:
            pairs[gone[line].pop(), path] += 1
    return pairs, len(come), went


def self_test():
    code = "// a\nfn f<'a>(x: &'a str) -> char { '\"' /* b */ }\n#[cfg(test)]\nmod t { use a; }\nconst S: &str = r#\"\n\"#;\n"
    product, tests = split(list(tokens(code)))
    assert (lines(product), lines(tests)) == ({2, 5, 6}, {4}), (product, tests)
    texts = {
        "src/x/src/lib.rs": "pub mod a;\nmod b;\n",
        "src/x/src/a.rs": "use crate::{b::{self, C}, D};\nstruct PodCards;\nfn f(d: &Daemon) -> Result<Result<(), E>, F> { Ok(Err(E)) }\n",
        "src/x/src/b.rs": 'use super::a::f;\nfn g(s: &S) -> bool { s.state == "wedged" || matches!(s.x.as_str(), "off" | "on") }\n',
        "src/x/src/c/b.rs": "fn h(n: &mut N) { n.card_mut(1); }\n#[cfg(test)]\nmod tests;\n",
        "src/x/src/c/b/tests.rs": "use super::*;\n",
    }
    seen = [value if isinstance(value, int) else len(value) for value in count(texts)[0].values()]
    assert seen == [8, 0, 2, 0, 1, 1, 0, 0, 2, 1, 1, 1, 1, 0, 2, 0, 1], seen
    pairs, come, went = moved({"a": ["let x = 1;", "}"], "b": ["old"]}, {"a": [], "b": ["let x = 1;", "}", "new"]})
    assert (dict(pairs), come, went) == ({("a", "b"): 1}, 3, 3), (pairs, come, went)


def main():
    words = sys.argv[1:]
    if words == ["--self-test"]:
        return self_test()
    options = dict(zip(words[::2], words[1::2]))
    if len(words) % 2 or options.keys() - {"--against", "--list"}:
        sys.exit(__doc__.split("\n")[0])
    (now, after), against = count(tree(None)), options.get("--against")
    then, before = count(tree(against)) if against else (now, after)
    for row in now:
        old, new = (side[row] if isinstance(side[row], int) else len(side[row]) for side in (then, now))
        print(f"{row:28}" + (f"{old:9,} ->{new:9,}{new - old:+9,}" if against else f"{new:9,}"))
        if options.get("--list", "\n") in row and not isinstance(now[row], int):
            print(*(f"  {place}" for place in now[row]), sep="\n")
    if against:
        pairs, come, went = moved(before, after)
        print(f"\n{come:,} lines of the product came and {went:,} went; {sum(pairs.values()):,} of them only moved:")
        print(*(f"{many:9,}  {old} -> {new}" for (old, new), many in pairs.most_common(PAIRS)), sep="\n")


main()
