#!/usr/bin/env python3
"""Checks docs/conformance: every test named there exists, every row has a test or a reason, and README.md lists every file.
Also checks every `RFC N §S` of the project against the sections in rfc-sections.txt.

A row is a table line; its last cell holds tests as `crate: path::to::test` (several, separated by
commas), a script as `scripts/NAME ...`, or a reason that starts with "Not met:", "Not ours:" or "ULP:".

`iwspec: ID` is a case of iwspec, or a requirement that its case files name as not observable (`unseen`). Each is named in a row,
also in rows with a reason. A row with the level MUST of a specification that iwspec tests names at least one, unless it describes
a service or the local programs of ddpd.

A test has its whole path: modules and function, as `cargo test` prints it; for a file in `tests/` preceded
by the file's name. The function has `#[test]`, or is generated with it by a macro of the same file. A
dialogue of `sim` has the name of its file, with the directory (`rfc5681-recovery::name`) where the file's
name alone is ambiguous.

usage: check-conformance.py docs/conformance
"""

import pathlib
import re
import subprocess
import sys

CRATES = {
    "base": "dataplane/base",
    "wire": "dataplane/wire",
    "ddp": "dataplane/ddp",
    "link": "dataplane/link",
    "port-kind": "dataplane/port-kind",
    "transport": "dataplane/transport",
    "sim": "dataplane/sim",
    "ipsec": "dataplane/ipsec",
    "dpdk": "dataplane/dpdk",
    "dataplane": "dataplane",
    "tcp-lite": "tcp-lite",
    "sctp-lite": "dataplane/sctp-lite",
    "config": "control/config",
    "api": "control/api",
    "daemon": "control/daemon",
    "ddpctl": "control/ctl",
    "control": "control",
    "ddpd": "control/ddpd",
    "xfrm": "control/xfrm",
}
CASES = "dataplane/iwspec/cases"
REASONS = ("Not met:", "Not ours:", "ULP:", "Out of scope:")
# Pages of the specifications that iwspec tests, and the beginnings of requirements that concern ddpd alone.
TESTED = {"rfc5040", "rfc5041", "rfc5042", "rfc5043", "rfc5044", "rfc6581", "rfc7306", "draft-culley-iwarp-mpa-03"}
OWN = ("local programs:", "`service = ")
SECTIONS = pathlib.Path(__file__).with_name("rfc-sections.txt")
# The number of an RFC and the sections after it: `5042 §6.4.3, §7.1 (2) and §7.2`.
CITATION = re.compile(r"\b(\d{3,4})((?:(?:,| and| to)? §(?:\d+|[A-Z])(?:\.\d+)*(?: \(\w+\))*)+)")
CITING = {".rs", ".md", ".case", ".script", ".lua", ".py", ".toml", ".json", ".c", ".h", ".sh"}

# Comments, strings and characters, which may contain braces or `fn`. A lifetime ('a) is not a character.
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""", re.S
)
TOKEN = re.compile(r"\bmod\s+(\w+)\s*\{|#\[test\]|\bfn\s+(\w+)|\bmacro_rules!\s*(\w+)\s*\{|\b(\w+)!\s*([({])|[{}]")


def closing(text, at):
    """Returns the position of the bracket that closes the one at `at`."""
    pairs, depth = {"{": "}", "(": ")"}, 0
    opened = text[at]
    for i in range(at, len(text)):
        depth += (text[i] == opened) - (text[i] == pairs[opened])
        if depth == 0:
            return i
    return len(text)


def test_macro(body):
    """Returns, for the body of a macro that generates tests, the pattern of its arguments and the variables with the names of
    the tests."""
    names = re.findall(r"#\[test\]\s*fn\s+\$(\w+)", body)
    matcher = re.search(r"\$\((.*?)\)\s*[;,]?\s*[*+]", body, re.S)
    if not names or not matcher:
        return None
    pieces = re.split(r"\$(\w+):ident", matcher.group(1))
    pattern = ""
    for i, piece in enumerate(pieces):
        if i % 2:
            pattern += rf"(?P<{piece}>\w+)"
        else:
            pattern += r"\s*".join(re.escape(word) for word in re.findall(r"\w+|[^\w\s]", piece)) + r"\s*"
    return re.compile(pattern), names


def tests_of(text):
    """Returns the paths of all tests in the text of a Rust file, relative to the file's module."""
    text = NO_CODE.sub(lambda found: '""' if found.group().lstrip("b").startswith(('"', "r")) else " ", text)
    found, macros, modules, depth, marked, at = [], {}, [], 0, False, 0
    while token := TOKEN.search(text, at):
        at = token.end()
        module, function, macro, call, _ = token.groups()
        path = [name for name, _ in modules]
        if module:
            modules.append((module, depth))
            depth += 1
        elif token.group() == "#[test]":
            marked = True
        elif function:
            if marked:
                found.append("::".join([*path, function]))
            marked = False
        elif macro:
            end = closing(text, token.end() - 1)
            if makes := test_macro(text[at:end]):
                macros[macro] = makes
            at = end + 1
        elif call:
            if call in macros:
                pattern, names = macros[call]
                end = closing(text, token.end() - 1)
                for case in pattern.finditer(text, at, end):
                    found.extend("::".join([*path, case.group(name)]) for name in names)
                at = end + 1
            elif token.group().endswith("{"):
                depth += 1
        elif token.group() == "{":
            depth += 1
        else:
            depth -= 1
            if modules and modules[-1][1] == depth:
                modules.pop()
    return found


def crate_tests(root, cache={}):
    """Returns the paths of all tests of a crate."""
    if root not in cache:
        tests, root_path = set(), pathlib.Path(root)
        for directory in ("src", "tests"):
            for path in (root_path / directory).rglob("*.rs"):
                parts = list(path.relative_to(root_path / directory).with_suffix("").parts)
                if parts[-1] in ("mod", "lib", "main"):
                    parts.pop()
                tests.update("::".join([*parts, test]) for test in tests_of(path.read_text()))
        cache[root] = tests
    return cache[root]


def dialogues(root):
    """Returns the names of all dialogue files: with their directory, and also without it if the name is unique."""
    files = list(pathlib.Path(root).rglob("*.script"))
    alone = [path.stem for path in files]
    named = {f"{path.parent.name}::{path.stem}" for path in files}
    return named | {name for name in alone if alone.count(name) == 1}


def spec_cases(root, cache={}):
    """Returns the identifiers of all cases and of all requirements without one in the case files of iwspec."""
    if root not in cache:
        files = pathlib.Path(root).rglob("*.case")
        cache[root] = {found for path in files for found in re.findall(r"^(?:case|unseen) (\S+)", path.read_text(), re.M)}
    return cache[root]


def wrong_citations():
    """Returns an error for each citation of a section that its RFC does not have. RFCs that are not listed pass."""
    lines = [line.split() for line in SECTIONS.read_text().splitlines() if not line.startswith("#")]
    known = {number: set(sections) for number, *sections in lines}
    problems = []
    for name in subprocess.check_output(["git", "ls-files"], text=True).splitlines():
        if pathlib.Path(name).suffix not in CITING:
            continue
        for number, line in enumerate(pathlib.Path(name).read_text().splitlines(), 1):
            for rfc, cited in CITATION.findall(line) if "§" in line else ():
                sections = re.findall(r"§([\w.]*\w)", cited)
                absent = [section for section in sections if section not in known.get(rfc, sections)]
                problems.extend(f"{name}:{number}: RFC {rfc} has no §{section}" for section in absent)
    return problems


def problem_with(name):
    """Returns the error in a test's or script's name, or None."""
    if name.startswith("scripts/"):
        return None if pathlib.Path(name.split()[0]).exists() else f"{name} does not exist"
    crate, _, test = name.partition(":")
    test = test.strip()
    if crate == "iwspec":
        return None if test in spec_cases(CASES) else f"no case {test} in {CASES}"
    if crate not in CRATES or not test:
        return f"cannot read {name!r}"
    known = crate_tests(CRATES[crate])
    if crate == "sim":
        known = known | dialogues(CRATES[crate])
    if test in known:
        return None
    last = test.split("::")[-1]
    similar = sorted(path for path in known if path.split("::")[-1] == last)
    return f"no test {test} in {crate}" + (f": is {' or '.join(similar)} meant?" if similar else "")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[-1])
    directory = pathlib.Path(sys.argv[1])
    files = sorted(path for path in directory.glob("*.md") if path.name != "README.md")
    listed = set(re.findall(r"\]\(([^)/]+\.md)\)", (directory / "README.md").read_text()))
    problems, rows, tests, named = [], 0, 0, set()
    for name in sorted(listed ^ {path.name for path in files}):
        problems.append(f"{directory}/README.md: {name} is {'missing' if name in listed else 'not listed'}")
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.startswith("|") or re.match(r"^\|[\s|:-]+$", line) or line.startswith("| §"):
                continue
            rows += 1
            last = line.strip().strip("|").split("|")[-1].strip()
            names = re.findall(r"`([^`]+)`", last)
            if not names and not last.startswith(REASONS):
                problems.append(f"{path}:{number}: neither a test nor a reason: {last!r}")
            cases = [name for name in names if name.startswith("iwspec:")]
            level, requirement = (cell.strip() for cell in line.split("|")[2:4])
            if path.stem in TESTED and "MUST" in level and not cases and not requirement.startswith(OWN):
                problems.append(f"{path}:{number}: no case of iwspec, and no `unseen` entry: {requirement!r}")
            named.update(name.partition(":")[2].strip() for name in cases)
            if last.startswith(REASONS):
                names = cases
            tests += len(names)
            problems.extend(f"{path}:{number}: {problem}" for problem in map(problem_with, names) if problem)
    problems.extend(f"{CASES}: {case} is in no row of {directory}" for case in sorted(spec_cases(CASES) - named))
    problems.extend(wrong_citations())
    if rows < 50:
        problems.append(f"only {rows} rows: the tables are not there")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"check-conformance: {rows} requirements, {tests} tests named, {len(problems)} problems", file=sys.stderr)
    sys.exit(1 if problems else 0)


main()
