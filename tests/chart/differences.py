"""differences.py BASE.yaml RENDERED.yaml: what RENDERED has otherwise than BASE, object by object.

First the objects that are gone, then those that differ, with a line around each difference, then
whole those that BASE has not. An object that is not named is the same, comments included.
"""
import difflib
import re
import sys

NAME = re.compile(r"^metadata:\n(?:(?!  name:)  .*\n)*  name: (.*)$", re.M)


def objects(file):
    """As {kind and name: text}, in the file's order."""
    found = {}
    with open(file, encoding="utf-8") as stream:
        texts = re.split(r"^---\n", stream.read(), flags=re.M)
    for text in filter(str.strip, texts):
        namespace = re.search(r"^  namespace: (.*)$", text, re.M)
        name = f"{re.search(r'^kind: (.*)$', text, re.M)[1]} {NAME.search(text)[1]}"
        name += f" in {namespace[1]}" if namespace else ""
        if name in found:
            raise SystemExit(f"{file} has {name} twice")
        found[name] = text
    return found


def main():
    base, rendered = (objects(file) for file in sys.argv[1:])
    for name in base:
        if name not in rendered:
            print(f"gone: {name}")
    for name, text in rendered.items():
        if name in base and text != base[name]:
            print(f"differs: {name}")
            lines = difflib.unified_diff(base[name].splitlines(), text.splitlines(), n=1, lineterm="")
            print(*("@@" if line.startswith("@@") else line for line in list(lines)[2:]), sep="\n")
    for name, text in rendered.items():
        if name not in base:
            print(f"---\n{text}", end="")


main()
