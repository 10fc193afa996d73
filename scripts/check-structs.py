#!/usr/bin/env python3
"""Finds structs with more than 20 fields, and cores (of the control thread, of a worker) with more than 12.

usage: check-structs.py FILE...

Tests (`tests.rs`, `tests/`, `#[cfg(test)] mod x { }`) are left out. A struct that a macro makes of a table is
judged by its table, in which a line `name: Type …` is a field (`counters!`, `section!`). The exit code is 1 if there
are any.
"""

import re
import sys
from pathlib import Path

MOST = 20
# Structs of which each field is a part with its own state.
CORES = {"control/src/appliance/core.rs": 12, "dataplane/src/worker/mod.rs": 12}

COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|r#"(?:.|\n)*?"#', re.S)
TEST_MOD = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*(\{)")
STRUCT = re.compile(r"\bstruct\s+(\w+)[^;{(]*(\{)")
TABLE = re.compile(r"^\s*(\w+)!\s*(\{)", re.M)
GROUP = re.compile(r"\b\w+\s*:\s*([A-Z]\w*)\s*(\{)")
FIELD = re.compile(r"(?:^|[,;{}\]])\s*(?:pub(?:\([^)]*\))?\s+)?(?:\[\w+\]\s*)?(?:r#)?\w+\s*:(?!:)")


def block(text, brace):
    """What stands between the brace at this place and its partner."""
    depth, end = 1, brace + 1
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[brace + 1 : end - 1]


def fields(body):
    """How many `name: Type` stand at the top level of a struct's or table's body."""
    flat, depth = [], 0
    body = re.sub(r"->|=>|<=|>=|<<|>>(?=\s*\d)|#\[[^\]]*\]", " ", body)
    for letter in body:
        depth -= letter in ")}>"
        if depth == 0:
            flat.append(letter)
        depth += letter in "({<"
    return len(FIELD.findall("".join(flat)))


def structs(text):
    """(name, fields, place) of each struct, written or made by a macro of a table."""
    text = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    while (test := TEST_MOD.search(text)) is not None:
        text = text[: test.start()] + " " * 4 + text[test.end() + len(block(text, test.start(1))) :]
    for found in STRUCT.finditer(text):
        body = block(text, found.start(2))
        by_hand = re.match(r"\s*by_hand\s*(\{)", text[found.start(2) + len(body) + 2 :])
        if by_hand:
            body += block(text, found.start(2) + len(body) + 2 + by_hand.start(1))
        yield found.group(1), fields(body), text.count("\n", 0, found.start()) + 1
    for table in TABLE.finditer(text):
        if table.group(1) == "macro_rules":
            continue
        body = block(text, table.start(2))
        yield f"{table.group(1)}!", fields(body), text.count("\n", 0, table.start(1)) + 1
        for group in GROUP.finditer(body):
            at = table.start(2) + 1 + group.start()
            yield group.group(1), fields(block(body, group.start(2))), text.count("\n", 0, at) + 1


def main():
    files = sys.argv[1:]
    if not files or any(f.startswith("-") for f in files):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    bad, cores = 0, set()
    for file in files:
        if "/tests/" in file or file.endswith("/tests.rs"):
            continue
        for name, number, line in structs(Path(file).read_text()):
            most = MOST
            if name == "Core" and file in CORES:
                cores.add(file)
                most = CORES[file]
            if number > most:
                bad += 1
                print(f"{file}:{line}: {name} has {number} fields, at most {most}: make parts of it")
    for file in CORES.keys() - cores:
        bad += 1
        print(f"{file}: its struct Core is not found: scripts/check-structs.py must know where it is")
    sys.exit(1 if bad else 0)


main()
