#!/usr/bin/env python3
"""Finds module cycles: groups of sibling modules that use each other, directly or indirectly.

usage: check-modules.py [--all] DIRECTORY...

A DIRECTORY is a module with its children (`dataplane/src/worker`) or a crate's `src`. A module includes all modules
below it: two siblings form a cycle, too, if only their children use each other. Uses between a parent and its child,
and uses in tests, are ignored. An import through a parent (`super::X`, where the parent has `use self::child::X`)
counts as an import from the child. Prints each cycle with some of the lines that cause it (--all: every line), and
exits with 1 if there is one.
"""

import re
import sys
from pathlib import Path

COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|r#"(?:.|\n)*?"#', re.S)
TEST_MOD = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*(;|\{)")
USE = re.compile(r"\buse\s+((?:[^;{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})+);")
INLINE = re.compile(r"\b(?:crate|self|super)(?:::\w+)+")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def without_inline_tests(text):
    """Returns the text with blanked bodies of `#[cfg(test)] mod x { }`, and the names of test modules in files of their own."""
    files = set()
    while (found := TEST_MOD.search(text)) is not None:
        end = found.end()
        if found.group(2) == ";":
            files.add(found.group(1))
        else:
            depth = 1
            while depth and end < len(text):
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
        text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start() : end]) + text[end:]
    return text, files


def split(text):
    """The parts of a `use` group at its top level."""
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [p for p in [*parts, part.strip()] if p]


def leaves(tree, prefix=()):
    """(path, name bound here) of every leaf of a use tree."""
    tree = tree.strip()
    if (brace := tree.find("{")) >= 0:
        head = tuple(s for s in tree[:brace].strip().split("::") if s)
        for part in split(tree[brace + 1 : tree.rindex("}")]):
            yield from leaves(part, prefix + head)
        return
    path, _, alias = tree.partition(" as ")
    path = prefix + tuple(s.strip() for s in path.split("::") if s.strip())
    if path and path[-1] == "self":
        path = path[:-1]
    yield path, (alias.strip() or (path[-1] if path else ""))


class Crate:
    def __init__(self, src):
        self.src = src
        self.modules = {}  # path of names -> (file, text)
        self.imports = {}  # path -> {name: absolute path}
        root = next((src / n for n in ("lib.rs", "main.rs") if (src / n).exists()), None)
        if root is None:
            sys.exit(f"check-modules: {src} has neither lib.rs nor main.rs")
        self.read((), root)
        for path in self.modules:
            self.imports[path] = dict(self.own_imports(path))

    def read(self, path, file):
        text, tests = without_inline_tests(COMMENT.sub(blank, file.read_text()))
        self.modules[path] = (file, text)
        base = file.parent if file.name in ("lib.rs", "main.rs", "mod.rs") else file.with_suffix("")
        for name in re.findall(r"\bmod\s+(\w+)\s*;", text):
            if name in tests:
                continue
            for child in (base / f"{name}.rs", base / name / "mod.rs"):
                if child.exists():
                    self.read((*path, name), child)

    def absolute(self, path, names):
        """Returns the path from the crate's root; None for a path into another crate."""
        first, at = names[0], path
        if first == "crate":
            return names[1:]
        if first in ("self", "super"):
            names = list(names)
            if names[0] == "self":
                names.pop(0)
            while names and names[0] == "super":
                at = at[:-1]
                names.pop(0)
            return (*at, *names)
        # A child module may be named without `self` (Rust 2018).
        return (*path, *names) if (*path, first) in self.modules else None

    def own_imports(self, path):
        for tree in USE.findall(self.modules[path][1]):
            for names, bound in leaves(re.sub(r"\s+", " ", tree)):
                if names and (target := self.absolute(path, names)) is not None and bound != "*":
                    yield bound, target

    def module_of(self, target, depth=0):
        """Returns the module that defines the item at a path, following imports of the modules in the path."""
        at = ()
        for i, name in enumerate(target):
            if (*at, name) in self.modules:
                at = (*at, name)
                continue
            through = self.imports.get(at, {}).get(name)
            if through is not None and depth < 8 and through != target[: i + 1]:
                return self.module_of((*through, *target[i + 1 :]), depth + 1)
            break
        return at

    def edges(self):
        """Yields (from, to, file, line) for each use of a module by a module."""
        for path, (file, text) in self.modules.items():
            for match in USE.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                for names, _ in leaves(re.sub(r"\s+", " ", match.group(1))):
                    if names and (target := self.absolute(path, names)) is not None:
                        yield path, self.module_of(target), file, line
            for match in INLINE.finditer(USE.sub(blank, text)):
                line = text.count("\n", 0, match.start()) + 1
                target = self.absolute(path, tuple(match.group(0).split("::")))
                yield path, self.module_of(target), file, line


def components(graph):
    """Returns the strongly connected components of more than one node (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                on.discard(group[-1])
                if group[-1] == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def main():
    sys.setrecursionlimit(10000)
    show_all = "--all" in sys.argv
    places = [Path(a) for a in sys.argv[1:] if a != "--all"]
    if not places or any(a.startswith("-") for a in sys.argv[1:] if a != "--all"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    crates, bad = {}, 0
    for place in places:
        if not place.is_dir():
            sys.exit(f"check-modules: {place} is not a directory")
        src = place.resolve()
        while src.name != "src":
            src = src.parent
        if src not in crates:
            crate = Crate(src)
            crates[src] = crate, list(crate.edges())
        crate, edges = crates[src]
        below = tuple(place.resolve().relative_to(src).parts)
        # For each parent at or below the place, its children and what they use of each other.
        between = {}
        for start, end, file, line in edges:
            if start[: len(below)] != below or end[: len(below)] != below:
                continue
            common = 0
            while common < min(len(start), len(end)) and start[common] == end[common]:
                common += 1
            if common == len(start) or common == len(end):
                continue  # the same, or one contains the other
            pair = (start[common], end[common])
            between.setdefault(start[:common], {}).setdefault(pair, []).append((file, line))
        for parent, pairs in sorted(between.items()):
            graph = {}
            for a, b in pairs:
                graph.setdefault(a, set()).add(b)
            for group in components(graph):
                bad += 1
                inside = {p: w for p, w in pairs.items() if p[0] in group and p[1] in group}
                print(f"cycle in {'/'.join((str(src.parent.name), *parent))}: {', '.join(group)}")
                for (a, b), where in sorted(inside.items()):
                    shown = where if show_all else where[:2]
                    lines = ", ".join(f"{f.relative_to(src)}:{n}" for f, n in shown)
                    more = "" if len(shown) == len(where) else f" and {len(where) - len(shown)} more"
                    print(f"    {a} -> {b}: {lines}{more}")
    sys.exit(1 if bad else 0)


main()
