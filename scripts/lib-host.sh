# Starts a ddpd that shares its port with the host's kernel. Sourced after lib.sh, not run.
#
#   namespace A                                    namespace B
#   ddpd on veth A (af_packet), kernel on TAP      kernel
#   both 10.77.0.1, fd77::1                        10.77.0.2, fd77::2
# shellcheck shell=bash

[ "$(id -u)" -eq 0 ] || die "needs root, to make network namespaces and a TAP"
[ -c /dev/net/tun ] || die "cannot run: there is no /dev/net/tun"
build_programs

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-host.XXXXXX")
ddpd_pid='' pids=()
cleanup() {
    for pid in "${pids[@]}" $ddpd_pid; do stop_pid "$pid"; done
    campaign_net_gone
    rm -rf "$work"
}
trap cleanup EXIT
campaign_net whole

# Not for background use: stopping the shell that runs the function would not stop the program.
in_a() { ip netns exec "$net_a" "$@"; }
in_b() { ip netns exec "$net_b" "$@"; }
api() { "$ddpctl" --socket "$work/a.sock" "$@"; }
tap='tap-front'

# counter NAME: prints the counter, summed over all workers.
counter() {
    api --json stats | python3 -c '
import json, sys
total, stack = 0, [json.load(sys.stdin)]
while stack:
    value = stack.pop()
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == sys.argv[1] and isinstance(inner, int): total += inner
            else: stack.append(inner)
    elif isinstance(value, list): stack.extend(value)
print(total)' "$1"
}

config() {
    cat <<END
name = "shared"

[workers]
count = 1
idle = "adaptive"

[[port]]
name = "wire"
kind = "af_packet"
device = "$dev_a"

[[interface]]
name = "front"
port = "wire"
addresses = ["10.77.0.1/24", "fd77::1/64"]
local_ports = "20000-29999"
host = "tap"

[[region]]
name = "box"
size = "8 MiB"
access = "w"

[[listener]]
name = "in"
interface = "front"
port = 7471
regions = ["box"]

[files]
paths = ["$work"]

[management]
socket = "$work/a.sock"
END
}

start_ddpd() {
    launch "$work/ddpd" ip netns exec "$net_a" "$ddpd" --config "$work/a.toml"
    ddpd_pid=$launched
    started 60 "$work/ddpd" '^ready' || die "ddpd did not start"
    in_a ip -br link show "$tap" | grep UP >/dev/null || die "the TAP is not up"
    [ "$(in_a cat "/sys/class/net/$tap/address")" = "$(in_a cat "/sys/class/net/$dev_a/address")" ] ||
        die "the TAP has another link-layer address than the port"
    in_a nft list ruleset | grep "ddpd-$dev_a" >/dev/null || die "table for $dev_a not found"
}

stop_ddpd() { stop_pid "$ddpd_pid"; ddpd_pid=''; }
