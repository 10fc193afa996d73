# Part of scripts/interop: common functions of the suites with a guest, for the work directory, the namespace with its bridge,
# the tested ddpd, and the results. Sourced. The sourcing script first sets `suite` to its name. It also defines the functions
# `config`, which prints ddpd's configuration, and `row`.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, ddpctl and suite come from scripts/interop and its parts
#
#   ddpd on `wire` (veth) ── `plug` ── bridge `br0` ── tap `guest0` ── guest

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-$suite.XXXXXX")
ns=$suite$$
mtu=1500
# Processes that `cleanup` stops, beside the capture; only some suites use the last two.
ddpd_pid='' serve_pid='' vhost_pid=''

# shellcheck source=scripts/siw-guest/guest.sh
. "$repo/scripts/siw-guest/guest.sh"
# shellcheck source=scripts/interop.d/capture.sh
. "$repo/scripts/interop.d/capture.sh"

cleanup() {
    guest_halt
    for pid in $capture_pid $serve_pid $ddpd_pid $vhost_pid; do stop_pid "$pid"; done
    ip netns del "$ns" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

in_ns() { ip netns exec "$ns" "$@"; }
# The appliance's management socket.
api_socket=$work/ddpd.sock
api() { timeout 60 "$ddpctl" --socket "$api_socket" "$@"; }

# newest: prints the number of the last event.
newest() { api --json events --after 0 | tail -n 1 | jq .seq; }

# make_bridge: creates the namespace with its links, which are down.
make_bridge() {
    ip netns add "$ns"
    in_ns ip link add br0 type bridge
    in_ns ip link add wire type veth peer name plug
    in_ns ip tuntap add guest0 mode tap
    for link in wire plug; do in_ns ethtool -K "$link" tx off rx off gso off tso off gro off >/dev/null; done
    for link in plug guest0; do in_ns ip link set "$link" master br0; done
}

# links_up: sets MTU 9000 and the links up. Separate from make_bridge, because sysctls for addresses precede the link being up.
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

# api_row CASE EXPECTED JQ ARGUMENTS...: runs ddpctl. The row is good if it succeeds, and shows its JSON output filtered by JQ.
# Fails if the row is bad.
api_row() {
    local name=$1 expected=$2 filter=$3 code=0
    shift 3
    api --json "$@" >"$work/api.json" 2>"$work/api.err" || code=$?
    if [ "$code" -eq 0 ]; then
        row "$name" "$expected" "$(jq -r "$filter" "$work/api.json" | tail -n 1)" ok
    else
        row "$name" "$expected" "exit code $code" "BAD: $(tr '\n' ' ' <"$work/api.err" | cut -c1-200)"
        return 1
    fi
}

# finish VERSIONS: writes the rows ($work/rows.json), date, commit, parts, MTUs and versions to target/interop-SUITE.json. Fails if
# a row is bad.
finish() {
    local results=$repo/target/interop-$suite.json
    mkdir -p "${results%/*}"
    jq -s --arg versions "$1" --arg date "$(date -u +%F)" --arg commit "$(git -C "$repo" rev-parse --short HEAD)" \
        --arg parts "$parts" --arg mtus "$mtus" \
        '{date: $date, commit: $commit, parts: ($parts | split(" ")), mtus: ($mtus | split(" ") | map(tonumber)),
          versions: ($versions | split("\n")), rows: .}' "$work/rows.json" >"$results"
    say "results are in $results"
    [ "$guest_deaths" -eq 0 ] || say "the guest's kernel died $guest_deaths times; those parts were run again (see above)"
    end_rows
    say "all $rows rows are good after $SECONDS s"
}
