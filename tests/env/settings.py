#!/usr/bin/env python3
"""settings.py [--self-test] [--files]: which tests run the product with other settings than shipped.

It reads the settings that tests/*/ writes for mpsgate (TOML in scripts, and what sed makes of it)
and those that Rust tests of the daemon put into a `Config`, and takes what differs from the default
in config/config.toml. Each key has to stand in tests/env/settings-in-tests with a reason, below
`[every test]` where a shared set-up has it, else below `[some tests]`. Exit status 1 for a key that
is not there, stands below the wrong heading, or is set by no test any more. Prints each key with the
number of files and tests. --files names the files.
"""

import collections
import os
import re
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
LIST = "tests/env/settings-in-tests"
SHELL = re.compile(r"^tests/(e2e|hosts|engines|k8s|vm|packages|gpu|demo|container)/[^.]*(\.bats|\.bash)?$")
RUST = re.compile(r"^(src/(?!config/)[^/]+/tests/|tests/(faults|bench)/).*\.rs$")
# Set-ups that all tests of their suite have: a file, and the function that writes the settings.
SHARED = {"tests/e2e/mpsgate.bash": "settings() {", "src/daemon/tests/daemon/harness.rs": "fn new("}
VALUE = r'(\\*"[^"\n]*"|\d+\b|true|false|\[[^\]\n]*\]|%s|\$\w+|\{\w*:?\??\})'


def shipped():
    """{section: {key: default}}, as text."""
    keys, section = collections.defaultdict(dict), ""
    with open(os.path.join(ROOT, "config/config.toml"), encoding="utf-8") as file:
        for line in file:
            if match := re.match(r"\[(\w+)\]$", line):
                section = match[1]
            elif match := re.match(r"#(\w+) = (.*)$", line):
                keys[section][match[1]] = match[2]
    return keys


def of_text(text, keys):
    """(key, line) of TOML in a script, or in Rust's strings. A section counts for the rest of its
    line and, inside a here-document or a TOML text of several lines, up to its end."""
    sections = {key: section for section, of in keys.items() for key in of if sum(key in other for other in keys.values()) == 1}
    found, section, end = [], None, None
    for number, line in enumerate(text.split("\n"), 1):
        if end is None:
            section = None
            if match := re.search(r"<<-?\s*['\"]?(\w+)", line):
                end = match[1]
        elif line.strip() == end:
            section = end = None
        for part in re.split(r"\\+n", line):
            marks = [(m.start(), m[1], None) for m in re.finditer(r"(?<![\w$\[}])\[+([a-z][\w.\"-]*)\\?\]+(?!\w)", part)]
            marks += [(m.start(), sections[m[1]], None) for m in re.finditer(r"\^(\w+)", part) if m[1] in sections]
            marks += [(m.start(1), m[1], m[2]) for m in re.finditer(r"(?:^|[\s'\"|;/,&])(\w+) = " + VALUE, part)]
            for _, name, value in sorted(marks):
                if value is None:
                    section = name.strip('"')
                elif section in keys and name in keys[section] and value.replace("\\", "") != keys[section][name]:
                    found.append((f"{section}.{name}", number))
    return found


def of_rust(text, keys):
    """The same of `config.SECTION.KEY = VALUE;`."""
    found = []
    for match in re.finditer(r"\bconfig\.(\w+)\.(\w+) = ([^;]*);", text):
        section, key, value = match.groups()
        if key not in keys.get(section, {}):
            continue
        default = keys[section][key]
        plain = re.sub(r"\.into\(\)$", "", value.split("::")[-1]).strip('"').lower()
        if plain != default.strip('"').replace("-", "") and not (default == "[]" and "Vec::new()" in value):
            found.append((f"{section}.{key}", text.count("\n", 0, match.start()) + 1))
    return found


def shared_lines(path, text):
    """The lines of the set-up that all tests of a suite have."""
    begin = text.find(SHARED[path]) if path in SHARED else -1
    if begin < 0:
        return range(0)
    end = re.compile(r"^\s*}$", re.M).search(text, begin).end()
    return range(text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 2)


def tests_in(text):
    return len(re.findall(r"^\s*(?:@test |#\[test\]|#\[tokio::test)", text, re.M))


def look(files, keys):
    """{heading: {key: {path: tests}}}"""
    seen = {"every test": collections.defaultdict(dict), "some tests": collections.defaultdict(dict)}
    files = list(files)
    of_suite = collections.Counter()
    for path, text in files:
        of_suite[os.path.dirname(path)] += tests_in(text)
    for path, text in files:
        found = (of_rust(text, keys) if path.endswith(".rs") else []) + of_text(text, keys)
        shared = shared_lines(path, text)
        for key, line in found:
            if line in shared:
                seen["every test"][key][path] = of_suite[os.path.dirname(path)]
            else:
                seen["some tests"][key][path] = tests_in(text)
    for key in seen["every test"]:
        seen["some tests"].pop(key, None)
    return seen


def allowed():
    listed, heading = {}, ""
    with open(os.path.join(ROOT, LIST), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if match := re.match(r"\[(.*)\]$", line):
                heading = match[1]
            elif line.strip() and not line.startswith("#"):
                key, _, reason = line.strip().partition(" ")
                if not reason.strip():
                    sys.exit(f"{LIST}:{number}: {key} has no reason")
                listed[key] = heading
    return listed


def tracked():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    for path in names.stdout.splitlines():
        if (SHELL.match(path) or RUST.match(path)) and os.path.isfile(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
                yield path, file.read()


def judge(seen, listed):
    wrong = []
    for heading, of in seen.items():
        for key, files in of.items():
            where = ", ".join(sorted(files))
            if key not in listed:
                wrong.append(f"{key} is not at its default in {where}: test what is shipped, or give {LIST} a reason")
            elif listed[key] != heading:
                wrong.append(f"{key} is set for {heading} in {where}, and {LIST} says for {listed[key]}")
    for key in listed:
        if not any(key in of for of in seen.values()):
            wrong.append(f"{key} is set by no test any more: remove it from {LIST}")
    return wrong


def self_test(keys):
    shell = (
        'SETTINGS="s|^control = .*|control = \\"$MG/x\\"\\\\norphan = \\"kill\\"|"\n'
        "daemon_with '/^\\[mps\\]/i [policy]\\nhost_pid = \"warn\"'\n"
        "printf '[trust]\\nlocal = \"auto\"\\n[run]\\nmax_mib = %s\\n' 7\n"
        'cat >x <<TOML\n[nvidia-container-runtime]\nmode = "cdi"\n[inject]\nmode = "cdi"\nTOML\nmode = "cdi"\n'
        "SETTINGS='/^manage/a schedule = \"share\"'\n"
    )
    keys = {
        "mps": {"control": '"x"', "orphan": '"wait"'}, "policy": {"host_pid": '"refuse"'}, "trust": {"local": '"auto"'},
        "run": {"max_mib": "0"}, "inject": {"mode": '"auto"'}, "gpus": {"manage": "[]", "schedule": '"mps"'},
    }
    want = [("mps.control", 1), ("mps.orphan", 1), ("policy.host_pid", 2), ("run.max_mib", 3), ("inject.mode", 8), ("gpus.schedule", 11)]
    assert of_text(shell, keys) == want, of_text(shell, keys)
    rust = "node.config.gpus.schedule = Schedule::Share;\nconfig.trust.local = Switch::Auto;\nconfig.gpus.manage = Manage::Uuids(Vec::new());\n"
    assert of_rust(rust, keys) == [("gpus.schedule", 1)], of_rust(rust, keys)
    text = "settings() {\n[policy]\n}\n@test x"
    assert list(shared_lines("tests/e2e/mpsgate.bash", text)) == [1, 2, 3] and tests_in(text) == 1
    seen = {"every test": {"a.b": {"f": 1}}, "some tests": {"c.d": {"g": 1}}}
    assert judge(seen, {"a.b": "every test", "c.d": "some tests"}) == []
    assert len(judge(seen, {"a.b": "some tests", "e.f": "some tests"})) == 3


def main():
    keys = shipped()
    if "--self-test" in sys.argv:
        return self_test(keys)
    seen = look(tracked(), keys)
    for heading, of in seen.items():
        for key, files in sorted(of.items()):
            print(f"{key}: {heading}, {len(files)} files with {sum(files.values())} tests")
            if "--files" in sys.argv:
                print(*(f"  {path}" for path in sorted(files)), sep="\n")
    wrong = judge(seen, allowed())
    print(*(f"settings: {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))


main()
