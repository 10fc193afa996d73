#!/usr/bin/env python3
"""Checks the dependency graph on standard input (cargo metadata): layering, licences, sources, versions.

usage: cargo metadata --format-version 1 | check-graph.py deny.toml
"""

import json
import sys
import tomllib

# Crates of the workspace that each crate may use (normal dependencies).
MAY_USE = {
    "base": set(),
    "reasons": {"base"},
    "crc32c": set(),
    "wire": {"base", "crc32c"},
    "ddp": {"base", "wire"},
    "transport": {"base"},
    "link": {"base"},
    "port-kind": set(),
    "tcp-lite": {"base", "wire", "ddp", "transport"},
    "sctp-lite": {"base", "wire", "ddp", "transport"},
    # Independent of the stack: the reference codec, and the conformance test above it.
    "oracle": set(),
    "captures": {"oracle", "dialogue"},
    # The format of packet dialogues, which `sim` plays against the stack and `iwspec` against another host.
    "dialogue": {"oracle"},
    "iwspec": {"base", "wire", "oracle", "dialogue", "sctp-lite"},
    "sim": {"base", "wire", "ddp", "dialogue", "ipsec", "link", "oracle", "tcp-lite", "sctp-lite"},
    "ipsec": {"base", "ipsec-mb"},
    "ipsec-mb": set(),
    "dpdk-sys": set(),
    "dpdk": {"dpdk-sys", "port-kind"},
    "dataplane": {
        "base", "reasons", "wire", "ddp", "link", "tcp-lite", "sctp-lite", "port-kind", "dpdk", "ipsec",
        "verbs-layout",
    },
    "unix-users": set(),
    "xfrm": {"base", "ipsec"},
    "config": {"base", "ddp", "ipsec", "port-kind", "tcp-lite", "unix-users"},
    "api": {"base", "config", "ddp", "ipsec", "reasons", "sctp-lite", "tcp-lite", "unix-users"},
    "standard": {"unix-users"},
    "daemon": {"api", "base", "config", "port-kind"},
    "ddpctl": {
        "standard", "api", "base", "config", "daemon", "ddp", "ipsec", "tcp-lite", "verbs-layout", "verbs-session",
    },
    "control": {
        "base", "wire", "ddp", "link", "port-kind", "tcp-lite", "sctp-lite", "dataplane", "ipsec", "xfrm", "config", "api", "daemon", "standard", "verbs-layout", "verbs-session",
    },
    "ddpd": {"standard", "config", "control", "daemon", "dataplane"},
    "verbs-layout": set(),
    "verbs-session": set(),
    "verbs-client": {"verbs-layout", "verbs-session"},
    "ibverbs": {"verbs-client"},
    "rdmacm": {"ibverbs", "verbs-client"},
    "verbs-library": {"ibverbs", "rdmacm"},
}


def acceptable(expression, allowed):
    """True if an alternative of the SPDX expression needs only allowed licences."""
    expression = expression.replace("/", " OR ").replace("(", " ( ").replace(")", " ) ")
    words, names = [], {}
    tokens = expression.split()
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token in ("OR", "AND"):
            words.append(token.lower())
        elif token in ("(", ")"):
            words.append(token)
        else:
            if i + 2 < len(tokens) and tokens[i + 1] == "WITH":
                token = f"{token} WITH {tokens[i + 2]}"
                i += 2
            name = f"l{len(names)}"
            names[name] = token in allowed
            words.append(name)
        i += 1
    return eval(" ".join(words), {"__builtins__": {}}, names)  # only names, and, or, brackets


CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"

# Keys of deny.toml that this script checks, with the supported values (None: any). Other keys are errors, as they would not
# be checked.
CHECKED = {
    "licenses": {"allow": None},
    "bans": {"wildcards": "deny", "allow-wildcard-paths": True},
    "sources": {"unknown-registry": "deny", "unknown-git": "deny"},
}


def unchecked(policy):
    """Yields an error for each key or value of deny.toml that this script does not check."""
    for section, keys in policy.items():
        for key, value in keys.items():
            known = CHECKED.get(section, {})
            if key not in known or known[key] not in (None, value):
                yield f"deny.toml: {section}.{key} = {value!r} is not checked"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[-1])
    policy = tomllib.load(open(sys.argv[1], "rb"))
    allowed = set(policy["licenses"]["allow"])
    metadata = json.load(sys.stdin)
    members = set(metadata["workspace_members"])
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    problems = list(unchecked(policy))
    for package in metadata["packages"]:
        name = package["name"]
        if package["id"] in used and package["source"] not in (None, CRATES_IO):
            problems.append(f"{name} {package['version']}: {package['source']} is not listed in deny.toml")
        if package["id"] in members:
            wild = [d["name"] for d in package["dependencies"] if d["req"] == "*" and not d.get("path")]
            problems.extend(f"{name}: any version of {other} is taken: write one" for other in wild)
            if name not in MAY_USE:
                if not package["manifest_path"].endswith(("/benches/Cargo.toml", "/benches/load/Cargo.toml", "/benches/campaigns/Cargo.toml", "/fuzz/Cargo.toml")):
                    problems.append(f"{name}: not known to scripts/check-graph.py")
                continue
            inside = {d["name"] for d in package["dependencies"] if d["kind"] is None and d["name"] in MAY_USE}
            for wrong in sorted(inside - MAY_USE[name]):
                problems.append(f"{name} must not depend on {wrong}")
        elif package["id"] in used:
            licence = package.get("license")
            if not licence or not acceptable(licence, allowed):
                problems.append(f"{name} {package['version']}: licence {licence!r} is not in deny.toml")
    for problem in problems:
        print(f"check-graph: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


main()
