#!/usr/bin/env python3
"""rights.py [--check | --self-test]: docs/rights.md, made from tests/rights.

tests/rights has each right that somebody would like to have, who would like it, what becomes of it,
and the test that shows it. Without an option the page is written. With --check nothing is written.
Each of these is a sentence with the line, and exit status 1:

- the page is not what the file makes;
- a test is named that its file does not have, by its exact title;
- a standpoint, a result, or a row or section of SECURITY.md is none;
- a right has no line for a standpoint, or a row of SECURITY.md has no line at all.

A title is a bats test's, a Rust test function's, an attempt's of tests/e2e/escape or of a bats file
with attempts, or that of a question of docs/gpu-report.md that was answered.
"""

import functools
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
LIST, PAGE, SECURITY = "tests/rights", "docs/rights.md", "SECURITY.md"
STANDPOINTS = {
    "grant": "container with a grant",
    "no grant": "container without a grant",
    "process": "plain process with a grant",
    "user": "user of the node",
    "author": "pod's author",
    "root": "root of a node",
    "admin": "namespace's admin",
}
# What becomes of it. Of those in OPEN somebody has the right; what is "not there" needs no test.
RESULTS = ["closed", "refused", "taken away", "ended", "open", "open, noted", "trusted", "not there"]
OPEN = ("open", "open, noted")
TITLES = {
    ".rs": r"#\[(?:tokio::)?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)",
    ".bats": r'^\s*(?:@test|closed|closed_as|open|open_as|refused_as) "(.*?)"(?: |$)',
    ".md": r"^\| ([a-z]+\.[a-z-]+) \|.*\| (?:PASS|RECORDED) \|$",
    "": r'(?:^|[|;])\s*(?:attempt|command_|mps|row) "([^"]*)"',
}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


@functools.lru_cache(maxsize=None)
def titles(path):
    """The titles in a file, or None where there is no such file."""
    pattern = TITLES.get(os.path.splitext(path)[1])
    if pattern is None or not os.path.isfile(os.path.join(ROOT, path)):
        return None
    return set(re.findall(pattern, read(path), re.M))


def security(text):
    """The rows of the table, as {number: anchor}, and all sections, as {anchor: heading}."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    anchors = {head: re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    sections = {head.split(".")[0]: anchor for head, anchor in anchors.items() if re.match(r"\d+\w?\. ", head)}
    numbers = re.findall(r"^\| (\d+\w?) \| .* \| .* \|$", text, re.M)
    return {number: sections.get(number, "ways-to-a-gpu-past-a-grant") for number in numbers}, {anchor: head for head, anchor in anchors.items()}


def parse(text):
    """([(right, line, [way])], [sentence]); a way is a dict of what its line and those below say."""
    rights, wrong = [], []
    for number, line in enumerate(text.split("\n"), 1):
        fields = [field.strip() for field in line.split(" | ")]
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            rights.append((line.strip("[]"), number, []))
        elif line[0] == " " and rights and rights[-1][2]:
            rights[-1][2][-1]["tests"].append((number, line.strip()))
        elif len(fields) == 4 and rights:
            rights[-1][2].append(dict(zip(("who", "result", "where", "way"), fields), line=number, tests=[]))
        else:
            wrong.append(f"{LIST}:{number}: neither a right, nor a way of four fields, nor a test below one")
    return rights, wrong


def check(rights, rows, anchors, find):
    """A sentence for each line that is wrong."""
    covered = set()
    for right, number, ways in rights:
        for who in STANDPOINTS:
            if not any(way["who"] == who for way in ways):
                yield f'{LIST}:{number}: the right "{right}" has no line for the standpoint "{who}"'
        for way in ways:
            at = f"{LIST}:{way['line']}"
            if way["who"] not in STANDPOINTS:
                yield f'{at}: "{way["who"]}" is no standpoint: {", ".join(STANDPOINTS)}'
            if way["result"] not in RESULTS:
                yield f'{at}: "{way["result"]}" is no result: {"; ".join(RESULTS)}'
            for where in way["where"].split():
                if where.lstrip("#") not in (anchors if where[0] == "#" else rows) and where != "-":
                    yield f'{at}: {SECURITY} has no row or section "{where}"'
                covered.add(where)
            if not way["tests"] and way["result"] != "not there":
                yield f'{at}: it names no test; where there is none, write "no test" below it'
            for line, test in way["tests"]:
                path, _, title = test.partition(": ")
                if path != "no test" and title not in (find(path) or ()):
                    what = f'no test is called "{title}" there' if find(path) is not None else "there is no such file"
                    yield f"{LIST}:{line}: {path}: {what}"
    for row in rows:
        if row not in covered:
            yield f"{LIST}: row {row} of {SECURITY} has no line"


def results(ways):
    """What becomes of a right from one standpoint, in one cell."""
    found = {way["result"] for way in ways}
    return ", ".join(f"**{result}**" if result in OPEN else result for result in RESULTS if result in found)


def tested(way):
    """The tests of a way, in one cell."""
    if way["result"] == "not there":
        return "–"
    return "<br>".join(test.replace("no test", "**no test**", 1) if test.startswith("no test") else f"`{test}`" for _, test in way["tests"])


def render(head, rights, rows, anchors):
    ways = [way for _, _, of in rights for way in of]
    untested = sum(any(test.startswith("no test") for _, test in way["tests"]) for way in ways)
    lines = [head.rstrip("\n"), "", f"<!-- list: made from {LIST} by tests/env/rights.py -->"]
    lines += ["| | " + " | ".join(STANDPOINTS.values()) + " |", "|---" * (len(STANDPOINTS) + 1) + "|"]
    for right, _, of in rights:
        anchor = re.sub(r"[^\w -]", "", right.lower()).replace(" ", "-")
        cells = (results(way for way in of if way["who"] == who) for who in STANDPOINTS)
        lines.append(f"| [{right}](#{anchor}) | " + " | ".join(cells) + " |")
    opened = sum(way["result"] in OPEN for way in ways)
    lines += ["", f"{len(rights) * len(STANDPOINTS)} cells with {len(ways)} ways: {opened} are open, {untested} have no test."]
    for right, _, of in rights:
        lines += ["", f"## {right}", "", "| who | result | way | SECURITY.md | test |", "|---|---|---|---|---|"]
        for who, name in STANDPOINTS.items():
            for way in (way for way in of if way["who"] == who):
                links = ((w, "#" + rows[w]) if w in rows else (anchors[w[1:]], w) for w in way["where"].split() if w != "-")
                cells = [name, results([way]), way["way"], ", ".join(f"[{text}](../{SECURITY}{anchor})" for text, anchor in links) or "–", tested(way)]
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
                name = ""
    return "\n".join(lines) + "\n<!-- end of list -->\n"


def head(text):
    """What the page begins with: the comment at the top of the file, after its first line of -."""
    comment = text.split("\n\n", 1)[0].split("\n# ---\n", 1)[1]
    return re.sub(r"^# ?", "", comment, flags=re.M)


def self_test():
    rows, anchors = security("| 1 | a | b |\n| 2a | c | d |\n### 1. `A` way, or b\n## What it is\n")
    assert (rows, anchors) == ({"1": "1-a-way-or-b", "2a": "ways-to-a-gpu-past-a-grant"}, {"1-a-way-or-b": "1. `A` way, or b", "what-it-is": "What it is"})
    lines = [f"{who} | not there | - | x" for who in STANDPOINTS if who != "grant"]
    good = "[a right]\ngrant | closed | 1 2a #what-it-is | x\n  t.rs: a\n" + "\n".join(lines)
    cases = [
        ("", "", ""),
        ("t.rs: a", "t.rs: b", '3: t.rs: no test is called "b"'),
        ("t.rs: a", "u.rs: a", "3: u.rs: there is no such file"),
        ("t.rs: a", "no test: needs a GPU", ""),
        ("  t.rs: a\n", "", "2: it names no test"),
        (" 2a ", " ", "row 2a of SECURITY.md has no line"),
        ("2a", "2a 3", 'row or section "3"'),
        ("#what-it-is", "#what-it-was", 'row or section "#what-it-was"'),
        ("user |", "stranger |", '"stranger" is no standpoint'),
        ("user |", "stranger |", 'no line for the standpoint "user"'),
        ("closed", "shut", '2: "shut" is no result'),
        ("root | not there | - | x", "root", "neither a right"),
    ]
    for old, new, expected in cases:
        rights, wrong = parse(good.replace(old, new, 1) if old else good)
        wrong += check(rights, rows, anchors, {"t.rs": {"a"}}.get)
        assert any(expected in line for line in wrong) if expected else not wrong, (old, new, wrong)
    page = render("# Head", parse(good)[0], rows, anchors)
    assert "7 cells with 7 ways: 0 are open, 0 have no test." in page, page
    assert "[1](../SECURITY.md#1-a-way-or-b), [2a](../SECURITY.md#ways-to-a-gpu-past-a-grant), [What it is](../SECURITY.md#what-it-is) |" in page and "| `t.rs: a` |" in page, page


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    text = read(LIST)
    rows, anchors = security(read(SECURITY))
    rights, wrong = parse(text)
    wrong += check(rights, rows, anchors, titles)
    page = render(head(text), rights, rows, anchors) if not wrong else ""
    if not wrong and "--check" not in sys.argv:
        with open(os.path.join(ROOT, PAGE), "w", encoding="utf-8") as file:
            file.write(page)
    elif not wrong and (not os.path.isfile(os.path.join(ROOT, PAGE)) or read(PAGE) != page):
        wrong.append(f"{PAGE} is not what {LIST} makes: run tests/env/rights.py")
    print(*(f"rights: {line}" for line in wrong), sep="\n", end="\n" if wrong else "", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
