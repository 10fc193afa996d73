# Part of scripts/interop: the packet dialogues against other hosts, in real time. Sourced.
# shellcheck shell=bash
#
#   namespace A                           namespace B
#   iwspec script on veth A               kernel.toml: the kernel's TCP, a listener that accepts any bytes
#   10.78.0.2, no address of the kernel   serve-kernel.toml: ddpctl serve-kernel over the kernel's sockets
#                                         ddpd.toml: ddpd on af_packet, no address of the kernel
#
# Each host description has its own pair of namespaces. All hosts are tested in parallel.

[ "$(id -u)" -eq 0 ] || die "dialogues: needs root, to make network namespaces"

tag=dlg$$
dialogues=$repo/dataplane/sim/dialogues
hosts=(kernel serve-kernel ddpd)
work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-dialogues.XXXXXX")
pids=()

cleanup() {
    for pid in "${pids[@]}"; do stop_pid "$pid"; done
    for i in "${!hosts[@]}"; do
        ip netns del "${tag}a$i" 2>/dev/null || true
        ip netns del "${tag}b$i" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 143' TERM

# make_net INDEX: creates two namespaces and a veth pair without offloads, so that frames have checksums.
make_net() {
    local a=${tag}a$1 b=${tag}b$1 end
    ip netns add "$a"
    ip netns add "$b"
    ip link add v netns "$a" type veth peer name v netns "$b"
    for end in "$a" "$b"; do
        ip netns exec "$end" ethtool -K v tx off rx off gso off tso off gro off >/dev/null
        # No packets other than those of the dialogues.
        ip netns exec "$end" sh -c "echo 1 >/proc/sys/net/ipv6/conf/v/disable_ipv6"
        ip netns exec "$end" ip link set v up
    done
}

# run_in INDEX NAME PATTERN COMMAND...: starts COMMAND in the tested host's namespace and waits until it prints PATTERN.
run_in() {
    local b=${tag}b$1 name=$2 pattern=$3
    shift 3
    launch "$work/$name" ip netns exec "$b" "$@"
    pids+=("$launched")
    started 60 "$work/$name" "$pattern" || die "$name did not start"
}

address_in() { ip netns exec "${tag}b$1" ip address add 10.78.0.1/24 dev v; }

start_kernel() { # INDEX
    address_in "$1"
    run_in "$1" listener '^ready' python3 "$repo/scripts/interop.d/listener.py" 10.78.0.1 7
}

start_serve-kernel() { # INDEX
    local port=7471 markers crc
    address_in "$1"
    for markers in on off; do
        for crc in on off; do
            run_in "$1" "serve$port" listening "$ddpctl" --json serve-kernel "10.78.0.1:$port" --size 64KiB --stag 16 \
                --markers "$markers" --crc "$crc"
            port=$((port + 1))
        done
    done
}

# listener PORT MARKERS CRC: prints the section of a listener.
listener() {
    cat <<END

[[listener]]
name = "l$1"
interface = "front"
port = $1
regions = ["sink"]
markers = $2
crc = $3
END
}

start_ddpd() { # INDEX
    {
        cat <<END
name = "dialogues"

[workers]
count = 1
idle = "adaptive"

[[port]]
name = "wire"
kind = "af_packet"
device = "v"

[[interface]]
name = "front"
port = "wire"
addresses = ["10.78.0.1/24"]

[[region]]
name = "sink"
size = "64 KiB"
access = "w"
shared = true

[management]
socket = "$work/ddpd.sock"
END
        listener 7471 true true
        listener 7472 true false
        listener 7473 false true
        listener 7474 false false
        cat <<END

[[listener]]
name = "sctp"
interface = "front"
port = 7475
transport = "sctp"
regions = ["sink"]

[sctp]
streams = 16
linger = "10 s"
heartbeat = "5 s"
END
    } >"$work/ddpd.toml"
    run_in "$1" ddpd '^ready' "$ddpd" --config "$work/ddpd.toml"
}

# The tested appliance is the release build.
build_programs
campaign_program iwspec

testers=()
for i in "${!hosts[@]}"; do
    make_net "$i"
    "start_${hosts[i]}" "$i"
    # A busy machine may cause delays, so a dialogue fails only after five attempts.
    ip netns exec "${tag}a$i" "$program" script --raw v,10.78.0.2 --to 10.78.0.1 \
        --host "$dialogues/${hosts[i]}.toml" --attempts 5 --tolerance "${INTEROP_TOLERANCE:-20%+100ms}" \
        ${INTEROP_VERBOSE:+--verbose} "$dialogues" \
        >"$work/${hosts[i]}.table" 2>"$work/${hosts[i]}.log" &
    testers[i]=$!
    pids+=("$!")
done
failed=0
for i in "${!hosts[@]}"; do
    code=0
    wait "${testers[i]}" || code=$?
    printf '== %s\n' "${hosts[i]}"
    cat "$work/${hosts[i]}.table"
    if [ "$code" -ne 0 ]; then
        failed=$((failed + 1))
        cat "$work/${hosts[i]}.log" >&2
    fi
done
[ "$failed" -eq 0 ] || die "dialogues: $failed of ${#hosts[@]} hosts failed"
say "no dialogue failed"
