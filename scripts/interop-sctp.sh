# Part of scripts/interop: DDP over SCTP against Linux's SCTP in a QEMU guest and against usrsctp. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, ddpctl and json come from scripts/interop and scripts/lib.sh
#
#   namespace:  ddpd on veth (af_packet, 10.77.0.1, fd77::1) ── bridge (usrsctp, 10.77.0.3, fd77::3) ── tap ── guest
#               with Linux's SCTP (10.77.0.2)
#
# Both peers run scripts/sctp-peer. Nobody else speaks RFC 5043, so they are first run against each other: what
# goes wrong there is not the appliance's.

[ "$(id -u)" -eq 0 ] || die "sctp: needs root, for a network namespace, a tap and raw sockets"

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-sctp.XXXXXX")
ns=sctp$$
parts=${SCTP_PARTS:-peers kernel usrsctp}
mtus=${SCTP_MTUS:-1500 9000}
results=$repo/target/interop-sctp.json
ddpd_pid='' capture_pid='' serve_pid='' mtu=1500 peer='' label='' address=''
rows=0 failed=0

# shellcheck source=scripts/siw-guest/guest.sh
. "$repo/scripts/siw-guest/guest.sh"

cleanup() {
    guest_halt
    for pid in $serve_pid $capture_pid $ddpd_pid; do stop_pid "$pid"; done
    ip netns del "$ns" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

in_ns() { ip netns exec "$ns" "$@"; }
api() { timeout 60 "$ddpctl" --socket "$work/ddpd.sock" "$@"; }

make_net() {
    ip netns add "$ns"
    in_ns ip link set lo up
    in_ns ip link add br0 type bridge
    in_ns ip link add wire type veth peer name plug
    in_ns sh -c 'echo 1 >/proc/sys/net/ipv6/conf/wire/disable_ipv6; echo 0 >/proc/sys/net/ipv6/conf/br0/accept_dad'
    in_ns ethtool -K wire tx off rx off gso off tso off gro off >/dev/null
    in_ns ethtool -K plug tx off rx off gso off tso off gro off >/dev/null
    in_ns ip tuntap add guest0 mode tap
    for link in wire plug guest0 br0; do in_ns ip link set "$link" mtu 9000 up; done
    for link in plug guest0; do in_ns ip link set "$link" master br0; done
    in_ns ip address add 10.77.0.3/24 dev br0
    in_ns ip address add fd77::3/64 dev br0 nodad
}

# row CASE EXPECTED SEEN RESULT
row() {
    rows=$((rows + 1))
    [ "$4" = ok ] || failed=$((failed + 1))
    printf '%-15s %-44s %5s  %-20s %-38s %s\n' "$label" "$1" "$mtu" "$2" "$3" "$4"
    jq -cn --arg part "$label" --arg case "$1" --arg mtu "$mtu" --arg expected "$2" --arg seen "$3" --arg result "$4" \
        '{part: $part, case: $case, mtu: ($mtu | tonumber), expected: $expected, seen: $seen, good: ($result == "ok")}' >>"$work/rows.json"
}

compare() { # CASE FILE FILE
    if cmp -s "$2" "$3"; then row "$1" "the same" "the same" ok; else row "$1" "the same" "others" "BAD: they differ"; fi
}

# --- the two peers, driven alike ---
#
# peer_run WORDS...          runs sctp-peer to its end, output in $work/peer.out; its status is returned
# peer_begin WORDS...        starts it as a server
# peer_end                   waits for the server, its status is returned
# $files                     where the peer sees $share

share='' files='' peer_runs=0

peer_command() { # WORDS...
    printf '/host/sctp-peer-kernel'
    printf " '%s'" "$@"
}

peer_run() {
    if [ "$peer" = kernel ]; then
        guest_run 90 "$(peer_command "$@")" >"$work/peer.out" 2>&1
    else
        in_ns timeout 90 "$work/sctp-peer-usrsctp" "$@" >"$work/peer.out" 2>&1
    fi
}

peer_begin() {
    peer_runs=$((peer_runs + 1))
    if [ "$peer" = kernel ]; then
        guest_begin "serve$peer_runs" 120 "$(peer_command "$@")"
        wait_until 20 grep -q listening "$share/serve$peer_runs.out" || true
    else
        ip netns exec "$ns" timeout 120 "$work/sctp-peer-usrsctp" "$@" >"$work/serve.out" 2>&1 &
        serve_pid=$!
        wait_until 10 grep -q listening "$work/serve.out" || true
    fi
}

peer_end() {
    local code=0
    if [ "$peer" = kernel ]; then
        guest_end "serve$peer_runs" 60 >"$work/serve.out" || code=$?
    else
        wait_until 60 eval "! kill -0 $serve_pid" || stop_pid "$serve_pid"
        wait "$serve_pid" || code=$?
        serve_pid=''
    fi
    return "$code"
}

use_peer() { # kernel | usrsctp
    peer=$1
    label=$1
    if [ "$peer" = kernel ]; then address=10.77.0.2 files=/host; else address=10.77.0.3 files=$share; fi
}

# peer_row CASE EXPECTED PATTERN WORDS...: the peer's run ends well; the last line that matches PATTERN is shown.
peer_row() {
    local name=$1 expected=$2 pattern=$3 code=0 seen
    shift 3
    peer_run "$@" || code=$?
    seen=$(grep -E "$pattern" "$work/peer.out" | tail -n 1 | cut -c1-60 || true)
    if [ "$code" -eq 0 ] && [ -n "$seen" ]; then
        row "$name" "$expected" "$seen" ok
    else
        row "$name" "$expected" "status $code" "BAD: $(tail -n 3 "$work/peer.out" | tr '\n' ' ' | cut -c1-240)"
    fi
}

# --- the wire ---

begin_capture() {
    rm -f "$work/tcpdump.err" "$work/wire.pcap"
    # Not by in_ns: the process to end must be tcpdump itself.
    ip netns exec "$ns" tcpdump --immediate-mode -q -U -i "$1" -s 0 -w "$work/wire.pcap" \
        'proto 132 or udp port 9899' 2>"$work/tcpdump.err" &
    capture_pid=$!
    wait_until 10 grep -q "listening on" "$work/tcpdump.err" || die "tcpdump did not start"
}

# end_capture CASE: tshark knows every chunk, and every checksum is good.
end_capture() {
    local marks wrong segments control indications
    sleep 0.3
    stop_pid "$capture_pid"
    capture_pid=''
    shark() { tshark -n -o sctp.checksum:TRUE -o "udp.check_checksum:TRUE" -d udp.port==9899,sctp -r "$work/wire.pcap" "$@" 2>/dev/null; }
    marks=$(shark -Y '_ws.malformed || _ws.expert.severity == error || _ws.unreassembled' | wc -l)
    wrong=$(shark -Y 'sctp.checksum.status == "Bad" || udp.checksum.status == "Bad"' | wc -l)
    segments=$(shark -Y 'sctp.data_payload_proto_id == 16 && sctp.data_u_bit == 1' | wc -l)
    control=$(shark -Y 'sctp.data_payload_proto_id == 17 && sctp.data_u_bit == 1' | wc -l)
    indications=$(shark -Y 'sctp.adaptation_layer_indication == 1' | wc -l)
    if [ "$marks" -eq 0 ] && [ "$wrong" -eq 0 ] && [ "$segments" -gt 100 ] && [ "$control" -ge 2 ] && [ "$indications" -ge 2 ]; then
        row "$1" "nothing malformed" "$segments packets with segments, 0 marks" ok
    else
        row "$1" "nothing malformed" "$segments segments, $marks marks" "BAD: $wrong checksums, $control control, $indications indications"
    fi
    [ -z "${SCTP_KEEP:-}" ] || cp "$work/wire.pcap" "$SCTP_KEEP/$label-$mtu.pcap"
}

# served_row CASE EXPECTED PATTERN: the server has ended well; the last line that matches PATTERN is shown.
served_row() {
    local code=0 seen
    peer_end || code=$?
    seen=$(grep -E "$3" "$work/serve.out" | tail -n 1 | cut -c1-60 || true)
    if [ "$code" -eq 0 ] && [ -n "$seen" ]; then
        row "$1" "$2" "$seen" ok
    else
        row "$1" "$2" "status $code" "BAD: $(tail -n 3 "$work/serve.out" | tr '\n' ' ' | cut -c1-240)"
    fi
}

# --- 1: the two peers against each other ---

# between SERVER CLIENT: a file and echoes over several streams, then every kind of end.
between() {
    local server=$1 client=$2 at
    serve() {
        use_peer "$server"
        label="$client-$server" at=$address
        peer_begin "size=$file_len" "$@" serve "$address" 7600
        peer=$client
        [ "$client" = kernel ] && files=/host || files=$share
    }
    begin_capture guest0
    rm -f "$share/dump"
    [ "$server" = kernel ] && dump=/host/dump || dump=$share/dump
    serve echo=1 "dump=$dump"
    peer_row "sessions, a file, echoes" "wrote" wrote connect "$at" 7600 open:0:hello open:1 open:5 \
        "write:$files/file:inbox" echo:0:1 echo:1:5000 echo:5:60000 close:0 close:1 close:5 shutdown
    peer=$server
    served_row "the server's end" "3 sessions, shut" "3 sessions, 3 ended"
    compare "the file" "$share/file" "$share/dump"
    serve rdmap=1 "fill=${dump%/dump}/file"
    peer_row "RDMA Read" "read" "^read [0-9]" rdmap=1 "size=$file_len" connect "$at" 7600 open:3 "read:3:$files/file:inbox" close:3 shutdown
    peer=$server
    served_row "the server's end" "shut" "1 sessions, 1 ended"
    serve reject=no
    peer_row "a session is rejected" "Reject" Reject connect "$at" 7600 refused:2:reject shutdown
    peer=$server
    served_row "the server's end" "shut" "shut down"
    serve
    peer_row "the client aborts" "done" "abort: done" connect "$at" 7600 open:0 abort
    peer=$server
    served_row "the server's end" "aborted" "is aborted"
    serve after=1 then=abort
    peer_row "the server aborts" "aborted" "is aborted" connect "$at" 7600 open:0 send:0:1 "raw:0:16:0002c1000d0c0b01000070000000100061" ended:aborted
    peer=$server
    peer_end || true
    serve after=1 then=shutdown
    peer_row "the server shuts down" "shut down" "is shut down" connect "$at" 7600 open:0 send:0:1 "raw:0:16:0002c1000d0c0b01000070000000100061" ended:shut
    peer=$server
    served_row "the server's end" "shut down" "shut down"
    serve
    peer_row "the client vanishes" "vanishes" "vanishes" port=5555 connect "$at" 7600 open:0 vanish
    # usrsctp's INIT ACK to who begins anew lacks the indication.
    peer_row "and begins anew" "done" "shutdown: done" trust=1 port=5555 connect "$at" 7600 open:0 shutdown
    peer=$server
    served_row "the server's end" "a restart" "begun anew"
    end_capture "the wire"
}

build_programs
"$repo/scripts/sctp-peer/build.sh" "$work"
versions=$(head -n 1 "$("$repo/scripts/siw-guest/build.sh")/versions")
versions+=$(printf '\nusrsctp %s' "$(dpkg-query -W -f '${Version}' libusrsctp-dev)")
make_net
guest_boot "$ns" guest0 10.77.0.2/24 1500
share=$guest_dir/share
install -m 755 "$work/sctp-peer-kernel" "$share/"
guest_run 20 "modprobe sctp" || die "the guest has no SCTP"
file_len=3000001
real_file "$share/file" 3
truncate -s "$file_len" "$share/file"
printf '%-15s %-44s %5s  %-20s %-38s %s\n' PEER CASE MTU EXPECTED SEEN RESULT
for part in $parts; do
    case $part in
    peers)
        between usrsctp kernel
        between kernel usrsctp
        ;;
    esac
done
mkdir -p "${results%/*}"
jq -s --arg versions "$versions" --arg date "$(date -u +%F)" --arg commit "$(git -C "$repo" rev-parse --short HEAD)" \
    --arg parts "$parts" --arg mtus "$mtus" \
    '{date: $date, commit: $commit, parts: ($parts | split(" ")), mtus: ($mtus | split(" ") | map(tonumber)),
      versions: ($versions | split("\n")), rows: .}' "$work/rows.json" >"$results"
say "results are in $results"
if [ "$failed" -ne 0 ]; then
    die "$failed of $rows rows are bad"
fi
say "all $rows rows are good after $SECONDS s"
