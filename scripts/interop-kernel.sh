# Part of scripts/interop: the appliance against the kernel's TCP. Sourced.
# shellcheck shell=bash
#
#   namespace A                         namespace B
#   ddpd on veth A (af_packet/af_xdp)   kernel sockets on veth B (ddpctl put --kernel, serve-kernel)
#   10.77.0.1, fd77::1                  10.77.0.2, fd77::2

[ "$(id -u)" -eq 0 ] || die "kernel: needs root, to make network namespaces"

tag=ddp$$
a=${tag}a b=${tag}b
work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-interop.XXXXXX")
pids=()
failed=0 rows=0

cleanup() {
    for pid in "${pids[@]}"; do stop_pid "$pid"; done
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    [ -n "${KEEP:-}" ] || rm -rf "$work"
}
trap cleanup EXIT

in_a() { ip netns exec "$a" "$@"; }
in_b() { ip netns exec "$b" "$@"; }

# make_net MTU: two namespaces, one cable, no segmentation or checksum offload that would hide frames.
make_net() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    ip netns add "$a" && ip netns add "$b"
    ip link add v"$a" netns "$a" type veth peer name v"$b" netns "$b"
    in_a ethtool -K v"$a" tx off rx off gso off tso off gro off >/dev/null
    in_b ethtool -K v"$b" tx off rx off gso off tso off gro off >/dev/null
    in_a sysctl -qw net.ipv6.conf.v"$a".disable_ipv6=1
    in_b sysctl -qw net.ipv6.conf.v"$b".accept_dad=0
    in_a ip link set v"$a" mtu "$1" up && in_a ip link set lo up
    in_b ip addr add 10.77.0.2/24 dev v"$b"
    in_b ip -6 addr add fd77::2/64 dev v"$b" nodad
    in_b ip link set v"$b" mtu "$1" up && in_b ip link set lo up
}

# config KIND MTU: one region, four listeners: markers on or off, CRC required or not.
config() {
    cat <<END
[management]
socket = "$work/a.sock"

[workers]
cores = [0]
idle = "adaptive"

[[port]]
name = "wire"
kind = "$1"
device = "v$a"
mtu = $2

[[interface]]
name = "front"
port = "wire"
addresses = ["10.77.0.1/24", "fd77::1/64"]

[[region]]
name = "sink"
size = "${mib}MiB"
access = ["remote_write"]
END
    local port=7471 markers crc
    for markers in true false; do
        for crc in true false; do
            cat <<END

[[listener]]
name = "l$port"
interface = "front"
port = $port
regions = ["sink"]
markers = $markers
crc = $crc
END
            port=$((port + 1))
        done
    done
}
