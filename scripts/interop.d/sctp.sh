# Part of scripts/interop: DDP over SCTP against Linux's SCTP in a QEMU guest and against usrsctp. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, ddpctl and json come from scripts/interop and scripts/lib.sh
#
#   namespace:  ddpd on veth (af_packet, 10.77.0.1, fd77::1) ── bridge (usrsctp, 10.77.0.3, fd77::3) ── tap ── guest
#               with Linux's SCTP (10.77.0.2)
#
# Both peers run scripts/sctp-peer, because no other implementation of RFC 5043 is known. The peers are first tested with each
# other, to find errors that are not the appliance's.

[ "$(id -u)" -eq 0 ] || die "sctp: needs root, for a network namespace, a tap and raw sockets"

suite=sctp
# shellcheck source=scripts/interop.d/guest.sh
. "$repo/scripts/interop.d/guest.sh"

parts=${SCTP_PARTS:-peers kernel usrsctp}
mtus=${SCTP_MTUS:-1500 9000}
peer='' label='' address=''

make_net() {
    make_bridge
    in_ns ip link set lo up
    in_ns sh -c 'echo 1 >/proc/sys/net/ipv6/conf/wire/disable_ipv6; echo 0 >/proc/sys/net/ipv6/conf/br0/accept_dad'
    links_up
    in_ns ip address add 10.77.0.3/24 dev br0
    in_ns ip address add fd77::3/64 dev br0 nodad
}

# row CASE EXPECTED SEEN RESULT: prints and stores a row, which is good if RESULT is `ok`.
row() {
    rows=$((rows + 1))
    [ "$4" = ok ] || bad_row "$label" "$1" "$mtu" "$2" "$3" "$4"
    printf '%-15s %-62s %5s  %-34s %-38s %s\n' "$label" "$1" "$mtu" "$2" "$3" "$4"
    jq -cn --arg part "$label" --arg case "$1" --arg mtu "$mtu" --arg expected "$2" --arg seen "$3" --arg result "$4" \
        '{part: $part, case: $case, mtu: ($mtu | tonumber), expected: $expected, seen: $seen, good: ($result == "ok")}' >>"$work/rows.json"
}

compare() { # CASE FILE FILE
    if cmp -s "$2" "$3"; then row "$1" "equal" "equal" ok; else row "$1" "equal" "different" "BAD: they differ"; fi
}

# --- common interface of the two peers ---
#
# peer_run WORDS...          runs sctp-peer with output in $work/peer.out; returns its status
# peer_begin WORDS...        starts sctp-peer as a server
# peer_end                   waits for the server; returns its status
# $files                     path of $share for the peer

share='' files='' peer_runs=0

peer_command() { # WORDS...
    printf '/host/sctp-peer-kernel'
    printf " '%s'" "$@"
}

peer_run() {
    ! guest_died || return 125
    if [ "$peer" = kernel ]; then
        guest_run 90 "$(peer_command "$@")" >"$work/peer.out" 2>&1
    else
        in_ns timeout 90 "$work/sctp-peer-usrsctp" "$@" >"$work/peer.out" 2>&1
    fi
}

peer_begin() {
    ! guest_died || return 0
    peer_runs=$((peer_runs + 1))
    if [ "$peer" = kernel ]; then
        guest_begin "serve$peer_runs" 120 "$(peer_command "$@")"
        wait_until 30 grep -q listening "$share/serve$peer_runs.out" || true
    else
        launch "$work/serve" ip netns exec "$ns" timeout 120 "$work/sctp-peer-usrsctp" "$@"
        serve_pid=$launched
        started 30 "$work/serve" listening || true
    fi
}

peer_end() {
    local code=0
    if [ "$peer" = kernel ]; then
        guest_end "serve$peer_runs" 60 >"$work/serve.out" || code=$?
    elif [ -n "$serve_pid" ]; then
        # If the guest has died, no client connects, and the server does not end.
        wait_until 60 eval "guest_died || ! kill -0 $serve_pid" || true
        ! kill -0 "$serve_pid" 2>/dev/null || stop_pid "$serve_pid"
        wait "$serve_pid" || code=$?
        cat "$work/serve.err" >>"$work/serve.out"
        serve_pid=''
    else
        code=125
    fi
    return "$code"
}

use_peer() { # kernel | usrsctp
    peer=$1
    label=$1
    if [ "$peer" = kernel ]; then address=10.77.0.2 files=/host; else address=10.77.0.3 files=$share; fi
}

# peer_row CASE EXPECTED PATTERN WORDS...: runs sctp-peer. The row is good if it succeeds and prints a line that matches PATTERN,
# and shows the last one.
peer_row() {
    local name=$1 expected=$2 pattern=$3 code=0 seen
    shift 3
    peer_run "$@" || code=$?
    seen=$(grep -E "$pattern" "$work/peer.out" | tail -n 1 | cut -c1-100 || true)
    if [ "$code" -eq 0 ] && [ -n "$seen" ]; then
        row "$name" "$expected" "$seen" ok
    else
        row "$name" "$expected" "status $code" "BAD: $(tail -n 3 "$work/peer.out" | tr '\n' ' ' | cut -c1-240)"
    fi
}

# peer_step CASE PATTERN WORDS...: prepares the next row. As peer_row, but only a bad row is printed and stored.
peer_step() {
    local name=$1 pattern=$2 code=0
    shift 2
    peer_run "$@" || code=$?
    if [ "$code" -ne 0 ] || ! grep -E -q "$pattern" "$work/peer.out"; then
        row "$name" "done" "status $code" "BAD: $(tail -n 3 "$work/peer.out" | tr '\n' ' ' | cut -c1-240)"
    fi
}

# --- the wire ---

begin_capture() {
    rm -f "$work/wire.pcap"
    start_capture "$work/wire.pcap" -i "$1" 'proto 132 or udp port 9899'
}

# end_capture CASE: the row is good if tshark finds no error in the capture, and all checksums are correct.
end_capture() {
    local marks wrong segments control indications
    stop_capture
    shark() { tshark -n -o sctp.checksum:TRUE -o "udp.check_checksum:TRUE" -d udp.port==9899,sctp -r "$work/wire.pcap" "$@" 2>/dev/null; }
    # One case sends a message with PPID 99, which tshark parses as another protocol.
    marks=$(shark -Y '(_ws.malformed || _ws.expert.severity == error || _ws.unreassembled) && !(sctp.data_payload_proto_id == 99)' | wc -l)
    wrong=$(shark -Y 'sctp.checksum.status == "Bad" || udp.checksum.status == "Bad"' | wc -l)
    segments=$(shark -Y 'sctp.data_payload_proto_id == 16 && sctp.data_u_bit == 1' | wc -l)
    control=$(shark -Y 'sctp.data_payload_proto_id == 17 && sctp.data_u_bit == 1' | wc -l)
    indications=$(shark -Y 'sctp.adaptation_layer_indication == 1' | wc -l)
    if [ "$marks" -eq 0 ] && [ "$wrong" -eq 0 ] && [ "$segments" -gt 100 ] && [ "$control" -ge 2 ] && [ "$indications" -ge 2 ]; then
        row "$1" "0 malformed" "0 malformed, $segments packets with DDP segments" ok
    else
        row "$1" "0 malformed" "$marks malformed, $segments packets with DDP segments" "BAD: $wrong checksums, $control control, $indications indications"
    fi
    [ -z "${SCTP_KEEP:-}" ] || cp "$work/wire.pcap" "$SCTP_KEEP/$label-$mtu.pcap"
}

# served_row CASE EXPECTED PATTERN: waits for the server. The row is good if it succeeds and printed a line that matches PATTERN,
# and shows the last one.
served_row() {
    local code=0 seen
    peer_end || code=$?
    seen=$(grep -E "$3" "$work/serve.out" | tail -n 1 | cut -c1-100 || true)
    if [ "$code" -eq 0 ] && [ -n "$seen" ]; then
        row "$1" "$2" "$seen" ok
    else
        row "$1" "$2" "status $code" "BAD: $(tail -n 3 "$work/serve.out" | tr '\n' ' ' | cut -c1-240)"
    fi
}

# --- 1: the two peers against each other ---

# between SERVER CLIENT: tests the peers with each other: a file and echoes over several streams, then each kind of end.
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
    peer_row "3 sessions: Writes of a file, echoed Sends" "$file_len bytes" "^wrote $file_len " connect "$at" 7600 open:0:hello open:1 open:5 \
        "write:$files/file:inbox" echo:0:1 echo:1:5000 echo:5:60000 close:0 close:1 close:5 shutdown
    peer=$server
    served_row "server: association after these sessions" "3 sessions, all ended by the peer" "3 sessions, 3 ended"
    compare "server: placed bytes and file compared" "$share/file" "$share/dump"
    serve rdmap=1 "fill=${dump%/dump}/file"
    peer_row "RDMA Read" "$file_len bytes" "^read $file_len " rdmap=1 "size=$file_len" connect "$at" 7600 open:3 "read:3:$files/file:inbox" close:3 shutdown
    peer=$server
    served_row "server: association after the RDMA Read" "1 session, ended by the peer" "1 sessions, 1 ended"
    serve reject=no
    peer_row "the server rejects a session" "Reject" Reject connect "$at" 7600 refused:2:reject shutdown
    peer=$server
    served_row "server: association after the Reject" "shut down" "shut down"
    serve
    peer_step "the client aborts" "abort: done" connect "$at" 7600 open:0 abort
    peer=$server
    served_row "server: association after an ABORT of the client" "aborted" "is aborted"
    serve after=1 then=abort
    peer_row "client: association after an ABORT of the server" "aborted" "is aborted" connect "$at" 7600 open:0 send:0:1 "raw:0:16:0002c1000d0c0b01000070000000100061" ended:aborted
    peer=$server
    peer_end || true
    serve after=1 then=shutdown
    peer_row "client: association after a shutdown by the server" "shut down" "is shut down" connect "$at" 7600 open:0 send:0:1 "raw:0:16:0002c1000d0c0b01000070000000100061" ended:shut
    peer=$server
    served_row "server: association after its own shutdown" "shut down" "shut down"
    serve
    peer_step "the client exits without an ABORT" "vanishes" port=5555 connect "$at" 7600 open:0 vanish
    # In a restart, usrsctp's INIT ACK lacks the indication.
    peer_step "the restarted client connects" "shutdown: done" trust=1 port=5555 connect "$at" 7600 open:0 shutdown
    peer=$server
    served_row "server: the client exits without an ABORT and connects again" "a restart" "peer has restarted"
    end_capture "capture: packets that tshark parses"
}

# --- 2: a peer and the appliance ---

listener() { # NAME PORT KEYS...
    printf '\n[[listener]]\nname = "%s"\ninterface = "front"\ntransport = "sctp"\nport = %s\n' "$1" "$2"
    shift 2
    printf '%s\n' "$@"
}

config() {
    cat <<CONFIG
name = "sctp"

[workers]
count = 1
idle = "adaptive"

[[port]]
name = "wire"
kind = "af_packet"
device = "wire"
mtu = $mtu

[[interface]]
name = "front"
port = "wire"
addresses = ["10.77.0.1/24", "fd77::1/64"]

[files]
paths = ["$work", "$share"]

[management]
socket = "$work/ddpd.sock"

[sctp]
udp_encapsulation = 9899
max_retransmits = 5

[limits]
events = 20000

[[region]]
name = "box"
size = "4 MiB"
access = "rw"
shared = true
CONFIG
    listener ddp 7471 'regions = ["box"]' '[[listener.queue]]' 'qn = 0' 'buffers = 16' 'buffer_size = "64 KiB"' 'deliver_to = "echo"'
    listener rdmap 7472 'ulp = "rdmap"' 'service = "region"' 'regions = ["box"]'
}

set_mtu() {
    mtu=$1
    stop_ddpd
    guest_run 30 "ip link set eth0 mtu $mtu" >/dev/null || guest_died || die "the guest does not take MTU $mtu"
    in_ns ip link set br0 mtu "$mtu"
    start_ddpd
    wait_until 30 in_ns timeout 5 "$work/sctp-peer-usrsctp" connect 10.77.0.1 7471 open:0 close:0 shutdown ||
        die "the appliance does not answer"
}

# saw CASE EXPECTED PATTERN AFTER: the row is good if an event after number AFTER matches PATTERN.
saw() {
    local seen=''
    wait_until 30 eval "api --json events --after $4 | grep -E -q '$3'" || true
    seen=$(api --json events --after "$4" | grep -E "$3" | tail -n 1 | jq -r '.reason // .event' || true)
    if [ -n "$seen" ]; then
        row "$1" "$2" "${seen:0:100}" ok
    else
        row "$1" "$2" "none" "BAD: $(api --json events --after "$4" | jq -c '[.event, .reason]' | tail -n 4 | tr '\n' ' ')"
    fi
}

region_is() { # CASE FILE
    api regions read box --length "$file_len" --output "$work/box.bin" >/dev/null || true
    compare "$1" "$2" "$work/box.bin"
}

# other_file: changes every byte of the file, so that a transfer that places nothing is detected.
other_file() {
    tr '\000-\377' '\001-\377\000' <"$share/file" >"$share/file.new"
    mv "$share/file.new" "$share/file"
}

peer_connects() {
    local at seq
    other_file
    peer_row "3 sessions: Writes of a file, echoed Sends" "$file_len bytes" "^wrote $file_len " connect 10.77.0.1 7471 open:0:hello open:1 open:5 \
        "write:$files/file:box" echo:0:1 echo:1:5000 echo:5:60000 close:0 close:1 close:5 shutdown
    region_is "region and file compared, after Writes in 3 sessions" "$share/file"
    other_file
    peer_row "Writes of a file, each message in SCTP fragments" "$file_len bytes" "^wrote $file_len " segment=12000 connect 10.77.0.1 7471 open:0 \
        "write:$files/file:box" echo:0:20000 close:0 shutdown
    region_is "region and file compared, after fragmented Writes" "$share/file"
    other_file
    peer_row "RDMA Write and Read of a file" "$file_len bytes" "^read $file_len " rdmap=1 "size=$file_len" connect 10.77.0.1 7472 open:3 \
        "write:$files/file:box" "read:3:$files/file:box" close:3 shutdown
    # Sessions overlap, because the appliance shuts down an association without a session.
    peer_row "5 sessions in succession, each with an echo" "5 echoes" "shutdown: done" connect 10.77.0.1 7471 \
        open:7 open:0 echo:0:10 close:0 open:1 echo:1:10 close:1 open:2 echo:2:10 close:2 open:3 echo:3:10 close:3 open:0 echo:0:10 close:0 close:7 shutdown
    if [ "$peer" = usrsctp ]; then
        other_file
        peer_row "IPv6: Writes of a file" "$file_len bytes" "^wrote $file_len " connect fd77::1 7471 open:0 "write:$files/file:box" close:0 shutdown
        region_is "region and file compared, after Writes over IPv6" "$share/file"
    fi
    other_file
    peer_row "SCTP in UDP (RFC 6951): Writes of a file" "$file_len bytes" "^wrote $file_len " encapsulation=9899 connect 10.77.0.1 7471 open:0 \
        "write:$files/file:box" close:0 shutdown
    region_is "region and file compared, after Writes in UDP" "$share/file"
}

peer_errs() {
    local seq
    seq=$(newest)
    peer_row "INIT without an adaptation indication" "aborted" "is aborted" indication=none trust=1 connect 10.77.0.1 7471 ended:aborted
    peer_row "INIT with another adaptation indication" "aborted" "is aborted" indication=2 trust=1 connect 10.77.0.1 7471 ended:aborted
    peer_row "INIT to a port without a listener" "aborted" "is aborted" trust=1 connect 10.77.0.1 7499 ended:aborted
    seq=$(newest)
    peer_row "Write past the region" "last message 01 11 01 (error 1/01)" "last message 01 11 01" connect 10.77.0.1 7471 open:0 open:1 \
        pastwrite:0:box echo:1:100 close:1 shutdown
    seq=$(newest)
    peer_row "two Initiates in a session" "Terminate" "^stream 0: Terminate" connect 10.77.0.1 7471 open:0 raw:0:17:00010001 \
        closed:0 shutdown
    saw "two Initiates: the appliance's event" "a session error" "session_error|session" "$seq"
    peer_row "a message with an unknown PPID" "Terminate" "^stream 0: Terminate" connect 10.77.0.1 7471 open:0 raw:0:99:000100 \
        closed:0 shutdown
    seq=$(newest)
    peer_step "the peer aborts" "abort: done" connect 10.77.0.1 7471 open:0 "write:$files/file:box" abort
    saw "the peer aborts: the appliance's event" "aborted by the peer" "aborted by the peer" "$seq"
    seq=$(newest)
    peer_row "the peer shuts down with a session open" "shut down" "is shut down" connect 10.77.0.1 7471 open:0 send:0:10 shutdown
    seq=$(newest)
    # Suppresses the host's ICMP error for a protocol without a program, which would end the association earlier.
    in_ns nft -f - <<<'table inet silence { chain out { type filter hook output priority 0; icmp code prot-unreachable drop; }; }'
    peer_step "the peer exits without an ABORT" "vanishes" port=5555 connect 10.77.0.1 7471 open:0 "write:$files/file:box" vanish
    peer_row "the peer exits without an ABORT, restarts, and writes" "$file_len bytes" "^wrote $file_len " port=5555 connect 10.77.0.1 7471 open:0 "write:$files/file:box" close:0 shutdown
    saw "the peer restarts: the appliance's event" "restarted by the peer" "restarted by the peer" "$seq"
    in_ns nft delete table inet silence
    # shellcheck disable=SC2016 # wait_until expands it
    if wait_until 30 eval '[ "$(api --json streams list | jq length)" = 0 ]'; then
        row "streams of the appliance after these errors" "0" "0" ok
    else
        row "streams of the appliance after these errors" "0" "$(api --json streams list | jq length)" "BAD: $(api --json streams list | head -c 200)"
    fi
}

# from_here CASE EXPECTED JQ ARGUMENTS...: as api_row, but a bad row does not end the suite.
from_here() { api_row "$@" || true; }

# fails_here CASE EXPECTED PATTERN ARGUMENTS...: the row is good if ddpctl fails and its error message matches PATTERN.
fails_here() {
    local name=$1 expected=$2 pattern=$3 code=0 message
    shift 3
    api "$@" >"$work/api.out" 2>"$work/api.err" || code=$?
    message=$(tr '\n' ' ' <"$work/api.err" | cut -c1-200)
    if [ "$code" -ne 0 ] && grep -E -q "$pattern" "$work/api.err"; then
        row "$name" "$expected" "this error, exit code $code" ok
    else
        row "$name" "$expected" "exit code $code" "BAD: $message"
    fi
}

appliance_connects() {
    local name="put: the peer shuts down during the transfer" url=sctp://$address:7600
    serve() {
        rm -f "$share/dump"
        other_file
        peer_begin "size=$file_len" "$@" serve "$address" 7600
    }
    serve "dump=$files/dump"
    from_here "put: Writes of a file" "$file_len bytes" '"\(.bytes) bytes"' put "$share/file" "$url/inbox"
    served_row "put: the association in the peer's log" "1 session, ended by its peer, the appliance" "1 sessions, 1 ended"
    compare "put: placed bytes and file compared" "$share/file" "$share/dump"
    serve echo=1
    from_here "send: the echo is returned" "5000 bytes" '"\(.bytes) bytes"' send "$url" --file "$work/message.bin" --wait-reply 10s
    jq -r .reply "$work/api.json" | base64 -d >"$work/reply.bin" 2>/dev/null || true
    compare "send: echo and message compared" "$work/message.bin" "$work/reply.bin"
    peer_end || true
    serve rdmap=1 "fill=$files/file"
    from_here "get: RDMA Read of a file" "$file_len bytes" '"\(.bytes) bytes"' get "rdmap+$url/inbox" "$work/got.bin" --length "$file_len"
    compare "get: read bytes and file compared" "$share/file" "$work/got.bin"
    peer_end || true
    serve "dump=$files/dump" encapsulation=9899
    from_here "put in UDP (RFC 6951): Writes of a file" "$file_len bytes" '"\(.bytes) bytes"' put "$share/file" "$url/inbox" --udp-port 9899
    served_row "put in UDP: the association in the peer's log" "1 session, ended by its peer, the appliance" "1 sessions, 1 ended"
    compare "put in UDP: placed bytes and file compared" "$share/file" "$share/dump"
    serve reject=no-room
    fails_here "put: the peer rejects the session" "an error about the reject" "reject" put "$share/file" "$url/inbox"
    peer_end || true
    serve indication=none
    fails_here "put: the peer has no adaptation indication" "an error about the indication" "adaptation indication" put "$share/file" "$url/inbox"
    kill_serve
    serve after=500000 then=abort
    fails_here "put: the peer aborts during the transfer" "an error about the peer" "peer|answer|lost" put "$share/file" "$url/inbox"
    peer_end || true
    serve after=500000 then=vanish
    fails_here "put: the peer exits without an ABORT during the transfer" "an error about the peer" "peer|answer|lost" put "$share/file" "$url/inbox"
    peer_end || true
    # Data posted before the SHUTDOWN is still sent (RFC 9260 §9.2). Either all bytes arrive, or the put fails.
    serve "dump=$files/dump" after=500000 then=shutdown
    if api put "$share/file" "$url/inbox" >"$work/api.out" 2>&1; then
        peer_end || true
        if cmp -s "$share/file" "$share/dump"; then
            row "$name" "every byte, or an error" "every byte" ok
        else
            row "$name" "every byte, or an error" "other bytes" "BAD: they differ"
        fi
    else
        peer_end || true
        row "$name" "every byte, or an error" "an error" ok
    fi
    fails_here "put: no listener at the peer" "an error: refused, or no answer" "refused|no answer|ICMP" put "$share/file" "$url/inbox"
}

# kill_serve: ends a server to which no client connects.
kill_serve() {
    if [ "$peer" = kernel ]; then
        guest_run 10 "killall sctp-peer-kernel" >/dev/null || true
        peer_end || true
    else
        stop_pid "$serve_pid"
        serve_pid=''
    fi
}

guest_prepare() { guest_run 20 "modprobe sctp" || guest_died || die "the guest has no SCTP"; }

# cases PART MTU: all cases of a peer and the appliance.
cases() {
    set_mtu "$2"
    use_peer "$1"
    # Captures at the other end of the veth pair; a capture at the appliance's end lacks the frames that it sends.
    begin_capture plug
    peer_connects
    appliance_connects
    # Cases that do not depend on the MTU run once.
    [ "$2" = 9000 ] || peer_errs
    end_capture "capture: packets that tshark parses"
}

build_programs
"$repo/scripts/sctp-peer/build.sh" "$work"
versions=$(head -n 1 "$("$repo/scripts/siw-guest/build.sh")/versions")
versions+=$(printf '\nusrsctp %s' "$(dpkg-query -W -f '${Version}' libusrsctp-dev)")
make_net
# The guest's SCTP over UDP also needs an IPv6 socket.
GUEST_NO_IPV6=0
guest_boot "$ns" guest0 10.77.0.2/24 1500
share=$guest_dir/share
install -m 755 "$work/sctp-peer-kernel" "$share/"
guest_prepare
file_len=3000001
real_file "$share/file" 3
truncate -s "$file_len" "$share/file"
head -c 5000 "$share/file" >"$work/message.bin"
printf '%-15s %-62s %5s  %-34s %-38s %s\n' PEER CASE MTU EXPECTED SEEN RESULT
case " $parts " in
*" peers "*)
    guest_attempt between usrsctp kernel
    guest_attempt between kernel usrsctp
    ;;
esac
for value in $mtus; do
    for part in $parts; do
        [ "$part" != peers ] || continue
        guest_attempt cases "$part" "$value"
    done
done
if [ -n "$ddpd_pid" ] && ! kill -0 "$ddpd_pid"; then
    row "ddpd" "runs" "has ended" "BAD: $(tail -n 3 "$work/ddpd.err" | tr '\n' ' ')"
fi
finish "$versions"
