# Part of scripts/interop: what the suites with a guest share: the namespace with its bridge, and the one ddpd
# that is tested. Sourced; the sourcing script has `config`, which prints ddpd's configuration.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, ddpctl, work and ns come from scripts/interop and its parts
#
#   ddpd on `wire` (veth) ── `plug` ── bridge `br0` ── tap `guest0` ── guest

ddpd_pid=''

# shellcheck source=scripts/siw-guest/guest.sh
. "$repo/scripts/siw-guest/guest.sh"

in_ns() { ip netns exec "$ns" "$@"; }
# The appliance's management socket.
api_socket=$work/ddpd.sock
api() { timeout 60 "$ddpctl" --socket "$api_socket" "$@"; }

# The number of the last event.
newest() { api --json events --after 0 | tail -n 1 | jq .seq; }

# The namespace; links take frames of 9000 bytes.
make_bridge() {
    ip netns add "$ns"
    in_ns ip link add br0 type bridge
    in_ns ip link add wire type veth peer name plug
    in_ns ip tuntap add guest0 mode tap
    for link in wire plug; do in_ns ethtool -K "$link" tx off rx off gso off tso off gro off >/dev/null; done
    for link in plug guest0; do in_ns ip link set "$link" master br0; done
}

# Separate from the making, because what an interface may do with addresses is settled before it is up.
links_up() {
    for link in wire plug guest0 br0; do in_ns ip link set "$link" mtu 9000 up; done
}

start_ddpd() {
    config >"$work/ddpd.toml"
    launch "$work/ddpd" ip netns exec "$ns" "$ddpd" --config "$work/ddpd.toml"
    ddpd_pid=$launched
    started 60 "$work/ddpd" '^ready' || die "ddpd did not start"
}

stop_ddpd() {
    [ -z "$ddpd_pid" ] || stop_pid "$ddpd_pid"
    ddpd_pid=''
}
