# Functions shared by the scripts in this directory. Sourced, not run.
# shellcheck shell=bash

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$repo/target}
# Cargo arguments of the test build. Other features would rebuild most of the workspace.
# shellcheck disable=SC2034  # scripts use it
test_build=(--workspace --features "fuzz/frames fuzz/services verbs-client/tokio" --locked)

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# build_programs: builds the release programs and sets $ddpd and $ddpctl; with PROGRAMS=DIR uses the programs in DIR.
build_programs() {
    if [ -n "${PROGRAMS:-}" ]; then
        ddpd=$PROGRAMS/ddpd
        ddpctl=$PROGRAMS/ddpctl
        export ddpd ddpctl
        return
    fi
    say "building ddpd and ddpctl (release)"
    (cd "$repo" && cargo build --release --locked -q -p ddpd -p ddpctl --bins) || die "the build failed"
    ddpd=$target/release/ddpd
    ddpctl=$target/release/ddpctl
    export ddpd ddpctl
}

# real_file PATH MIB: creates a file of real content (libraries of the toolchain and the system, concatenated).
real_file() {
    local path=$1 bytes=$(($2 * 1024 * 1024)) sysroot
    sysroot=$(rustc --print sysroot)
    while [ "$(stat -c %s "$path" 2>/dev/null || echo 0)" -lt "$bytes" ]; do
        find "$sysroot/lib" /usr/lib -xdev -type f -size +256k -print0 2>/dev/null | sort -z |
            xargs -0 cat 2>/dev/null | head -c "$bytes" >>"$path" || true
    done
    truncate -s "$bytes" "$path"
}

# wait_until SECONDS COMMAND...: polls until the command succeeds; fails after the time-out.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

# Rows of the table that a suite prints: their number, and the text of each bad one.
# shellcheck disable=SC2034  # suites increment `rows`
rows=0 bad_rows=()

# bad_row TEXT...: stores the text of a bad row for `end_rows`.
bad_row() { bad_rows+=("$*"); }

# end_rows: if a row is bad, prints all bad rows again, because the start of a long log may be lost, and fails.
end_rows() {
    [ "${#bad_rows[@]}" -ne 0 ] || return 0
    printf '%s\n' "${bad_rows[@]}" >&2
    die "${#bad_rows[@]} of $rows rows are bad"
}

# launch BASE COMMAND...: starts COMMAND in the background with its output in BASE.out and BASE.err. Both are emptied
# first: `started` must not find the output of an earlier process. Its pid is in $launched.
launch() {
    local base=$1
    shift
    : >"$base.out"
    : >"$base.err"
    "$@" >"$base.out" 2>"$base.err" &
    launched=$!
}

# started SECONDS BASE PATTERN: waits until the output of the last `launch` contains PATTERN. If the process ends before or
# the time expires, prints the output and fails.
started() {
    local pid=$launched
    if ! wait_until "$1" eval "grep -qE '$3' '$2.out' '$2.err' || ! kill -0 $pid" ||
        ! grep -qE "$3" "$2.out" "$2.err"; then
        cat "$2.out" "$2.err" >&2
        return 1
    fi
}

# stop_pid PID: sends SIGTERM, and SIGKILL if the process has not ended after 10 s.
stop_pid() {
    local pid=$1
    kill -TERM "$pid" 2>/dev/null || return 0
    if ! wait_until 10 eval "! kill -0 $pid"; then
        kill -KILL "$pid" 2>/dev/null || true
    fi
    wait "$pid" 2>/dev/null || true
}

# campaign_net whole|cut: creates the namespaces $net_a and $net_b, joined by a veth cable without offloads from $dev_a in A
# to $dev_b in B.
# The appliance owns the addresses of A; the kernel of B has 10.77.0.2 and, for attackers, 10.77.0.4. With "cut" the cable
# ends in B twice: $end_a is the peer of $dev_a, $end_b that of $dev_b, and a program forwards frames between them.
# $campaign_tag, at most two letters, distinguishes several such pairs of namespaces.
campaign_net() {
    local dev
    [ "$(id -u)" -eq 0 ] || die "needs root, to make network namespaces and for packet sockets"
    local tag=$$${campaign_tag:-}
    net_a=ddp${tag}a net_b=ddp${tag}b dev_a=dd${tag}a dev_b=dd${tag}b end_a=de${tag}a end_b=de${tag}b
    ip netns add "$net_a"
    ip netns add "$net_b"
    if [ "$1" = cut ]; then
        ip link add "$dev_a" netns "$net_a" type veth peer name "$end_a" netns "$net_b"
        ip link add "$dev_b" netns "$net_b" type veth peer name "$end_b" netns "$net_b"
        for dev in "$end_a" "$end_b"; do
            # The kernel must answer for its addresses at $dev_b only.
            ip netns exec "$net_b" sh -c "echo 1 >/proc/sys/net/ipv6/conf/$dev/disable_ipv6
                echo 1 >/proc/sys/net/ipv4/conf/$dev/arp_ignore"
            ip netns exec "$net_b" ethtool -K "$dev" tx off rx off gso off tso off gro off >/dev/null
            ip -n "$net_b" link set "$dev" up
        done
    else
        ip link add "$dev_a" netns "$net_a" type veth peer name "$dev_b" netns "$net_b"
    fi
    ip netns exec "$net_a" ethtool -K "$dev_a" tx off rx off gso off tso off gro off >/dev/null
    ip netns exec "$net_b" ethtool -K "$dev_b" tx off rx off gso off tso off gro off >/dev/null
    ip netns exec "$net_a" sh -c "echo 1 >/proc/sys/net/ipv6/conf/$dev_a/disable_ipv6"
    ip -n "$net_b" address add 10.77.0.2/24 dev "$dev_b"
    ip -n "$net_b" address add 10.77.0.4/24 dev "$dev_b"
    ip -n "$net_b" address add fd77::2/64 dev "$dev_b" nodad
    ip -n "$net_a" link set "$dev_a" up
    ip -n "$net_b" link set "$dev_b" up
    ip -n "$net_b" link set lo up
    # The kernel reports the links as up only later, at most one second after other links changed.
    wait_until 30 eval "ip -n $net_a link show $dev_a | grep -q 'state UP' && ip -n $net_b link show $dev_b | grep -q 'state UP'" ||
        die "the link between the namespaces is not up"
}

# campaign_net_gone: removes the namespaces of campaign_net.
campaign_net_gone() {
    [ -z "${net_a:-}" ] || ip netns del "$net_a" 2>/dev/null || true
    [ -z "${net_b:-}" ] || ip netns del "$net_b" 2>/dev/null || true
}

# campaign_program NAME: sets $program to the campaign's program, in the test build: its speed does not matter.
campaign_program() {
    if [ -n "${PROGRAMS:-}" ]; then
        export program=$PROGRAMS/$1
        return
    fi
    say "building $1"
    (cd "$repo" && cargo build "${test_build[@]}" -q --bin "$1") || die "the build failed"
    export program=$target/debug/$1
}
