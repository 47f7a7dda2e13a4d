#!/usr/bin/env python3
"""prose.py [--self-test] [FILE...]: holds the width of comments and the words of docs/glossary.md.

Without FILE it reads every file that git tracks. Two rules:

- width: a comment is at most 100 columns wide, in Rust, shell, TOML and systemd units, and so is
  every line of the pages below. Code between fences, words that cannot be broken (URLs), and what a
  test writes into a page (between `<!-- list: … -->` and `<!-- end of list -->`) may be wider.
- words: the table "Words that are not used" of docs/glossary.md. They are looked for in file names,
  in comments and string literals of Rust and shell, in TOML, YAML and units, and in the pages
  below. Text between backticks, paths, variables and strings of one word are code.

Exit status 1 where a rule is broken; each finding is one line, FILE:LINE: what, and what to write.
"""

import os
import re
import subprocess
import sys
import tempfile

WIDTH = 100
# Pages that were written in the words of the glossary. A page that is rewritten joins them.
PAGES = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "SPECIFICATION.md",
    "docs/compose.md",
    "docs/dra.md",
    "docs/gate.md",
    "docs/glossary.md",
    "docs/inspect.md",
    "docs/install.md",
    "docs/jupyterhub.md",
    "docs/kubernetes.md",
    "docs/metrics.md",
    "docs/migrate-from-ack.md",
    "docs/migrate-from-gpushare.md",
    "docs/migrate-from-nos.md",
    "docs/qualify.md",
    "docs/resize.md",
    "docs/resource-policy.md",
    "docs/rights.md",
    "docs/scheduler.md",
    "docs/slurm.md",
    "docs/selinux.md",
    "src/README.md",
]
GLOSSARY = "docs/glossary.md"
WRITTEN = re.compile(r"^<!-- list: .*?^<!-- end of list -->$", re.MULTILINE | re.DOTALL)
# Written by a machine, recorded from other programs, or frozen by a release.
FOREIGN = re.compile(r"/(generated|captured|corpus|fixtures|third-party)/|^tests/formats/|\.lock$")
HASH = (".sh", ".bash", ".bats", ".toml", ".yaml", ".yml", ".service", ".socket", ".timer")
UNWRAPPED = (".yaml", ".yml")

RUST = re.compile(
    r"""(?P<comment>//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/)
      | b?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
      | [bc]?"(?P<string>(?:\\.|[^"\\])*)"
      | b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])'""",
    re.VERBOSE | re.DOTALL,
)


def rust_parts(text):
    """Comments and string literals, as (offset, text, is it a comment?)."""
    for found in RUST.finditer(text):
        for group in ("comment", "raw", "string"):
            if found[group] is not None:
                yield found.start(group), found[group], group == "comment"


# Comments, names of bats tests, and strings, as far as one line shows them.
SHELL = re.compile(r"""(?P<comment>(?:^|(?<=\s))\#.*$)|"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>[^']*)'""")


def shell_parts(text):
    at = 0
    for line in text.split("\n"):
        for found in SHELL.finditer(line):
            yield at + found.start(found.lastgroup), found[found.lastgroup]
        at += len(line) + 1


def shebang(text):
    return re.match(r"#!.*\b(ba)?sh\b|#!.*\bbats\b", text) is not None


def table(text):
    """The phrases of the glossary's table, each with what to write in its place."""
    words = {}
    section = text.split("## Words that are not used", 1)[1].split("\n## ", 1)[0]
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|$", section, re.MULTILINE):
        for phrase in re.findall(r"`([^`]+)`", row[0]):
            words[phrase] = row[1]
    if not words:
        raise SystemExit(f"prose: {GLOSSARY} has no table of words")
    return words


def matcher(words):
    phrases = sorted(words, key=len, reverse=True)
    spaced = (re.escape(phrase).replace(r"\ ", r"\s+(?:(?://[/!]?|\#)\s+)?") for phrase in phrases)
    # Not within a name, a path, a variable, a command in $() or an argument of format!.
    return re.compile(r"(?<![\w$/{-])(?<!\$\()(" + "|".join(spaced) + r")(?![\w/-])", re.IGNORECASE)


def is_wide(line):
    """Wider than allowed, and there is a space at which it could have been broken."""
    if len(line) <= WIDTH:
        return False
    body = re.match(r"\s*(//[/!]?|#+|[-*|]|\d+\.)?\s*", line).end()
    return " " in line[body:WIDTH + 1].strip() and not re.match(r"\s*# shellcheck ", line)


def wide_lines(name, text):
    lines = text.split("\n")
    if name.endswith(".rs"):
        parts = [(at, part) for at, part, comment in rust_parts(text) if comment]
    elif name in PAGES:
        # As many lines as before, so that the findings beside it keep their numbers.
        text = WRITTEN.sub(lambda part: "\n" * part[0].count("\n"), text)
        lines = text.split("\n")
        parts = [(0, text)]
    elif name.endswith(UNWRAPPED):
        return
    else:
        parts = [(found.start(), found[0]) for found in re.finditer(r"^[ \t]*#.*$", text, re.M)]
    for at, part in parts:
        fence = False
        first = text.count("\n", 0, at)
        for number in range(first, first + part.count("\n") + 1):
            line = lines[number]
            if re.match(r"\s*(//[/!]?|#)?\s*```", line):
                fence = not fence
            elif not fence and is_wide(line):
                yield number + 1, f"{len(line)} columns wide, {WIDTH} are allowed"


def bad_words(name, text, words, match):
    if name.endswith(".rs"):
        parts = [(at, part) for at, part, _ in rust_parts(text) if not part.isidentifier()]
    elif name.endswith((".sh", ".bash", ".bats")) or shebang(text):
        parts = shell_parts(text)
    elif name == GLOSSARY:
        parts = [(0, re.sub(r"^\|.*$", lambda row: " " * len(row[0]), text, flags=re.M))]
    else:
        parts = [(0, text)]
    for at, part in parts:
        plain = re.sub(r"`[^`\n]*`", lambda code: " " * len(code[0]), part)
        for found in match.finditer(plain):
            phrase = " ".join(w for w in found[1].lower().split() if not re.match(r"//|#", w))
            line = text.count("\n", 0, at + found.start()) + 1
            yield line, f"{phrase!r} is not a word of the glossary: {words[phrase]}"


def findings(name, text, words, match):
    """All that is wrong with one file, as (line, what)."""
    spoken = re.sub(r"[/_.-]", " ", name)
    for found in match.finditer(spoken):
        yield 0, f"the file's name has {found[1]!r}: {words[found[1].lower()]}"
    if name.endswith((".rs", *HASH)) or name in PAGES or shebang(text):
        yield from wide_lines(name, text)
        yield from bad_words(name, text, words, match)


def check(names, words):
    match = matcher(words)
    broken = 0
    for name in names:
        if FOREIGN.search(name) or not os.path.isfile(name) or os.path.islink(name):
            continue
        try:
            with open(name, encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError:
            continue
        for line, what in sorted(findings(name, text, words, match)):
            print(f"{name}:{line}: {what}")
            broken += 1
    return broken


def self_test():
    """Each rule finds what it is for, and nothing beside it."""
    words = {"the double": "fake", "double": "fake", "goes round": "bypass"}
    match = matcher(words)
    long = "word " * 22
    cases = [
        ("a.rs", "// " + long, ["columns"]),
        ("a.rs", f'let text = "{long}";', []),
        ("a.rs", f"    /// {long}\n    fn f() {{}}", ["columns"]),
        ("a.rs", "//! ```text\n//! " + long + "\n//! ```", []),
        ("a.rs", "//! ```text\n//! ```\nfn f() {}\n// " + long, ["columns"]),
        ("a.rs", "// https://example.org/" + "x" * 100, []),
        ("a.rs", "// the double", ["the double"]),
        ("a.rs", "//! Asks the\n//! double.", ["the double"]),
        ("a.rs", "/* It goes\n   round. */", ["goes round"]),
        ("a.rs", 'let s = "it goes round";', ["goes round"]),
        ("a.rs", 'let s = r#"it "goes round" here"#;', ["goes round"]),
        ("a.rs", "let double = 1; // `the double`", []),
        ("a.rs", "let quote = '\"'; let the = 1; // the double", ["the double"]),
        ("a.rs", "fn f<'a>(x: &'a str) {} // the doubled one", []),
        ("a.rs", 'json!({"double": "double"}); f("{double}")', []),
        ("a.sh", "# it goes round", ["goes round"]),
        ("a.sh", "echo $the; double=1 # the double", ["the double"]),
        ("a.bats", '@test "it goes round" {', ["goes round"]),
        ("a.bats", 'goes round; say "$(goes round) $HOME/the double/x"', []),
        ("a.sh", "# " + long, ["columns"]),
        ("a.sh", "echo " + long, []),
        ("run", "#!/usr/bin/env bash\n# " + long, ["columns"]),
        ("a.yaml", "# the double", ["the double"]),
        ("a.md", "the double " + long, []),
        ("CONTRIBUTING.md", "the double " + long, ["columns", "the double"]),
        ("README.md", f"<!-- list: x -->\n{long}\n<!-- end of list -->\n", []),
        ("README.md", f"<!-- list: x -->\n<!-- end of list -->\n{long}", ["columns"]),
        ("README.md", f"<!-- list: x -->\n{long}", ["columns"]),
        ("README.md", "<!-- list: x -->\nthe double\n<!-- end of list -->\n", ["the double"]),
        ("tests/the-double.json", "{}", ["file's name"]),
    ]
    for name, text, expected in cases:
        found = [what for _, what in findings(name, text, words, match)]
        if len(found) != len(expected) or not all(e in f for e, f in zip(expected, found)):
            raise SystemExit(f"prose: self-test: {name}: {text!r} gave {found}, not {expected}")
    row = "## Words that are not used\n\n| not | but |\n|---|---|\n| `a b`, `c` | d |\n\n## X\n| `e` | f |"
    if table(row) != {"a b": "d", "c": "d"}:
        raise SystemExit(f"prose: self-test: the table was read as {table(row)}")
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write("# it goes round\n")
        file.flush()
        with open(os.devnull, "w", encoding="utf-8") as null:
            kept, sys.stdout = sys.stdout, null
            broken = check([file.name], words)
            sys.stdout = kept
    if broken != 1:
        raise SystemExit("prose: self-test: a file with a bad word passed")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = sys.argv[1:] or subprocess.check_output(listed, text=True).rstrip("\0").split("\0")
    with open(GLOSSARY, encoding="utf-8") as file:
        broken = check(names, table(file.read()))
    if broken:
        print(f"prose: {broken} findings; {GLOSSARY} has the words", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
