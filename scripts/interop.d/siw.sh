# Part of scripts/interop: the kernel's soft iWARP (siw) in a QEMU guest as the peer. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, ddpctl and json come from scripts/interop and scripts/lib.sh
#
#   namespace:  ddpd on veth (af_packet, 10.77.0.1) ── bridge ── tap ── guest with siw (10.77.0.2)
#               another ddpd (vhost-user, 10.78.0.1) ── the guest's memory ── its second interface (10.78.0.2)
#
# Each row has a case, the expected and the observed result. Results of protocol errors are layer/type/code of the Terminate,
# read from a capture.

[ "$(id -u)" -eq 0 ] || die "siw: needs root, for a network namespace and a tap"

suite=siw
# shellcheck source=scripts/interop.d/guest.sh
. "$repo/scripts/interop.d/guest.sh"

# Parts, each a group of cases; SIW_PARTS selects some.
parts=${SIW_PARTS:-server perf client programs vhost wrong cycle dctcp}
mtus=${SIW_MTUS:-1500 9000}
# Iterations of perftest: few, because emulation is slow.
iterations=${SIW_ITERATIONS:-20}
# Directory for details of bad rows: output, the guest's log, the appliance's events.
bad_dir=$repo/target/interop-siw-bad
congestion=cubic
# Addresses of the tested appliance and of the guest.
front=10.77.0.1 back=10.77.0.2
# MTU of the ddpd with a vhost-user port; empty before its start.
vhost_mtu=''

make_net() {
    make_bridge
    in_ns sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6'
    links_up
}

# listener NAME PORT SERVICE KEYS...: prints the section of a listener.
listener() {
    printf '\n[[listener]]\nname = "%s"\ninterface = "front"\nport = %s\nulp = "rdmap"\nservice = "%s"\npeer = "siw"\n' \
        "$1" "$2" "$3"
    shift 3
    printf '%s\n' "$@"
}

# region NAME SIZE KEYS...: prints the section of a region.
region() {
    printf '\n[[region]]\nname = "%s"\nsize = "%s"\n' "$1" "$2"
    shift 2
    printf '%s\n' "$@"
}

config() { config_of af_packet 'device = "wire"' "$front" "$work/ddpd.sock"; }
config_vhost() { config_of vhost-user "socket = \"$work/vhost-user.sock\"" 10.78.0.1 "$work/vhost.sock"; }

# config_of KIND KEY ADDRESS SOCKET: prints a configuration.
config_of() {
    cat <<END
name = "siw"

[workers]
count = 1
idle = "adaptive"

[[port]]
name = "wire"
kind = "$1"
$2
mtu = $mtu

[[interface]]
name = "front"
port = "wire"
addresses = ["$3/24"]

[tcp]
congestion = "$congestion"

[files]
paths = ["$work"]

[management]
socket = "$4"
bench = true

[programs]
socket = "$4.programs"

[limits]
buffers_per_worker = "2 GiB"
events = 20000
END
    region box "4 MiB" 'access = "rw"' 'shared = true'
    region own "1 MiB" 'access = "rw"'
    region locked "1 MiB" 'access = "r"' 'shared = true'
    region blind "1 MiB" 'access = "w"' 'shared = true'
    region counter "4 KiB" 'access = ["remote-read", "remote-write", "atomic"]' 'shared = true'
    region pings "4 MiB" 'access = "rw"' 'shared = true'
    region scratch "80 MiB" 'access = "rw"' 'shared = true'
    listener region 7471 region 'regions = ["box", "locked", "blind", "counter"]' 'limits = { streams = 64 }' \
        '[[listener.queue]]' 'qn = 0' 'buffers = 4' 'buffer_size = 1024' 'deliver_to = "events"'
    listener silent 7472 region 'regions = ["box"]' 'ird = 4'
    listener alone 7473 region 'regions = ["own"]' '[[listener.queue]]' 'qn = 0' 'deliver_to = "discard"'
    listener forced 7478 region 'regions = ["box"]' 'crc = true' 'revisions = [1, 2]'
    listener echo 7475 echo
    listener sink 7476 sink '[[listener.queue]]' 'qn = 0' 'buffers = 64' 'buffer_size = "1 MiB"'
    listener rping 7174 rping 'regions = ["pings"]'
    listener perftest 18515 perftest 'regions = ["scratch"]' 'limits = { streams = 32 }' \
        '[[listener.queue]]' 'qn = 0' 'buffers = 512' 'buffer_size = "1 MiB"'
    for size in $big_lat; do
        region "lat$size" "16 MiB" 'access = "rw"' 'shared = true'
        listener "lat$size" $((18500 + ${#size})) perftest "regions = [\"lat$size\"]" "message_size = $size" \
            'limits = { streams = 4 }' '[[listener.queue]]' 'qn = 0' 'buffers = 16' 'buffer_size = "1 MiB"'
    done
}

# Message sizes of ib_write_lat above 4096 bytes, for which a listener needs `message_size`.
big_lat="65536 1048576"

# set_mtu MTU: sets the MTU of both ends. siw reads the MTU of its device when its link is added.
set_mtu() {
    mtu=$1
    stop_ddpd
    guest_prepare
    start_ddpd
    # The guest keeps running, and its device reconnects to the new ddpd.
    if with_vhost && [ "$vhost_mtu" != "$mtu" ]; then
        stop_vhost
        start_vhost
    fi
}

guest_prepare() {
    guest_run 30 "rdma link delete siw0; ip link set eth0 mtu $mtu; rdma link add siw0 type siw netdev eth0" >/dev/null ||
        guest_died || die "the guest does not take MTU $mtu"
    with_vhost || return 0
    guest_run 30 "rdma link delete siw1 2>/dev/null; ip link set eth1 mtu $mtu up && ip addr replace 10.78.0.2/24 dev eth1 && rdma link add siw1 type siw netdev eth1" >"$work/second.out" ||
        guest_died || die "the guest does not take MTU $mtu at its second interface: $(tail -n 3 "$work/second.out")"
}

with_vhost() { case " $parts " in *" vhost "*) ;; *) return 1 ;; esac; }

# start_vhost: starts the ddpd with a vhost-user port. It precedes the guest, because QEMU waits for the socket.
start_vhost() {
    vhost_mtu=$mtu
    config_vhost >"$work/vhost.toml"
    launch "$work/vhost" "$ddpd" --config "$work/vhost.toml"
    vhost_pid=$launched
    started 60 "$work/vhost" '^ready' || die "ddpd with a vhost-user port did not start"
}

stop_vhost() {
    [ -z "$vhost_pid" ] || stop_pid "$vhost_pid"
    vhost_pid=''
}

# row CASE EXPECTED SEEN RESULT: prints and stores a row, which is good if RESULT is `ok`.
row() {
    rows=$((rows + 1))
    if [ "$4" != ok ]; then
        bad_row "$1" "$mtu" "$2" "$3" "$4"
        keep_bad
    fi
    printf '%-44s %5s  %-22s %-34s %s\n' "$1" "$mtu" "$2" "$3" "$4"
    jq -cn --arg part "$part" --arg case "$1" --arg mtu "$mtu" --arg expected "$2" --arg seen "$3" --arg result "$4" \
        '{part: $part, case: $case, mtu: ($mtu | tonumber), expected: $expected, seen: $seen, good: ($result == "ok")}' >>"$work/rows.json"
}

# keep_bad: saves the details of a bad row in a directory with the row's number.
keep_bad() {
    local dir=$bad_dir/row$rows
    mkdir -p "$dir"
    cp "$work"/guest.out "$work"/api.err "$work"/ddpd.err "$work"/vhost.err "$work"/bench.out "$dir" 2>/dev/null || true
    api --json events 2>/dev/null | tail -n 200 >"$dir/events" || true
    guest_run 10 "dmesg | tail -n 200" >"$dir/dmesg" || true
    say "more of the bad row is in $dir"
}

# revive_ddpd: restarts a ddpd that has ended, with one bad row, so that the following cases can succeed.
revive_ddpd() {
    if kill -0 "$ddpd_pid" 2>/dev/null; then return; fi
    row "ddpd" "runs" "has ended" "BAD: $(tail -n 3 "$work/ddpd.err" | tr '\n' ' ')"
    start_ddpd
}

revive_vhost() {
    if [ -z "$vhost_pid" ] || kill -0 "$vhost_pid" 2>/dev/null; then return; fi
    row "ddpd at vhost-user" "runs" "has ended" "BAD: $(tail -n 3 "$work/vhost.err" | tr '\n' ' ')"
    start_vhost
}

# in_guest CASE EXPECTED SECONDS COMMAND [PATTERN]: the row is good if the command succeeds in the guest. It shows the last line
# of output that matches PATTERN.
in_guest() {
    local code=0 seen
    guest_run "$3" "$4" >"$work/guest.out" || code=$?
    seen=$(grep -E "${5:-.}" "$work/guest.out" | tail -n 1 | tr -s ' \t' ' ' | cut -c1-60 || true)
    if [ "$code" -eq 0 ]; then
        row "$1" "$2" "$seen" ok
    else
        row "$1" "$2" "exit code $code" "BAD: $(tail -n 3 "$work/guest.out" | tr '\n\t' '  ' | cut -c1-200)"
        revive_ddpd
        revive_vhost
    fi
}

# from_here CASE EXPECTED JQ ARGUMENTS...: as api_row, but restarts an ended ddpd after a bad row.
from_here() {
    api_row "$@" && return
    revive_ddpd
    revive_vhost
    return 1
}

# --- 1: programs of the guest as clients of the appliance ---

server_cases() {
    local size
    for size in 23 64 1447 5000 65535; do
        in_guest "rping -c -v -V -C 100 -S $size" "100 rounds" 60 "rping -c -a $front -v -V -C 100 -S $size >/tmp/rping && [ \$(grep -c '^ping data' /tmp/rping) = 100 ] && echo 100 rounds" rounds
    done
    in_guest "region: Writes and Reads of many lengths" "every byte" 60 \
        "siwverbs client $front 7471 write:/host/file read:/host/file" "compared"
    if api regions read box --length "$file_len" --output "$work/box.bin" >/dev/null && cmp -s "$work/box.bin" "$guest_dir/share/file"; then
        row "region: appliance's and guest's bytes compared" "equal" "equal" ok
    else
        row "region: appliance's and guest's bytes compared" "equal" "different" "BAD: the region differs"
    fi
    in_guest "echo: 5 Sends of up to 64 KiB are returned" "every byte" 30 \
        "siwverbs client $front 7475 len=65536 echo:1 echo:0 echo:1424 echo:1425 echo:65536" "done"
    in_guest "sink: 5 Sends of up to 1 MiB complete" "no error" 60 \
        "siwverbs client $front 7476 send:1 send:0 send:65536 send:1048576 sendse:100" "done"
    in_guest "region: 32 concurrent connections" "32 slots" 60 "siwverbs many $front 7471 32" "slots"
    in_guest "region: a Send of the guest, reported in the event log" "no error" 20 "siwverbs client $front 7471 send:77 open:100" "done"
}

# perf PROGRAM SIZE [PORT]: runs a client of perftest.
perf() {
    local program=$1 size=$2 port=${3:-18515} n=$iterations
    [ "$size" -lt 65536 ] || n=5
    in_guest "$program -R -s $size" "a result" 60 \
        "$program -R -s $size -n $n -p $port -F $front" "^ *$size "
}

perf_cases() {
    local size program
    for program in ib_write_bw ib_read_bw ib_send_bw ib_read_lat ib_send_lat; do
        for size in 2 64 4096 65536 1048576; do perf "$program" "$size"; done
    done
    for size in 2 4096; do perf ib_write_lat "$size"; done
    for size in $big_lat; do perf ib_write_lat "$size" $((18500 + ${#size})); done
}

# --- 2: the appliance as client of servers in the guest ---

# The guest's verbs server. A server that has ended gives a bad row with its output and is replaced, so that the following
# cases can succeed.
servers=0 served=0
server_begin() {
    servers=$((servers + 1)) served=0
    guest_begin "serve$servers" 300 \
        "killall -9 siwverbs 2>/dev/null; siwverbs serve 7480 echo=1 len=65536 fill=/host/file dump=/host/dump"
    wait_until 30 grep -q listening "$guest_dir/share/serve$servers.out" || true
}

server_has_ended() { [ -e "$guest_dir/share/serve$servers.rc" ]; }
server_is_done() { server_has_ended || [ "$(grep -c '^served' "$guest_dir/share/serve$servers.out")" -ge "$served" ]; }

# to_server CASE EXPECTED JQ ARGUMENTS...: as from_here, then waits until the server has finished the connection.
to_server() {
    local name=$1 code=0
    from_here "$@" || code=$?
    served=$((served + 1))
    wait_until 30 server_is_done || true
    server_has_ended || return "$code"
    row "the server in the guest, at: $name" "serves" "has ended" "BAD: $(tail -n 2 "$guest_dir/share/serve$servers.out" | tr '\n' ' ')"
    server_begin
    return "$code"
}

server_end() {
    guest_run 10 "killall siwverbs" >/dev/null || true
    if guest_end "serve$servers" 30 >"$work/serve.out"; then
        row "end of the guest's server" "no error" "$(tail -n 1 "$work/serve.out")" ok
    else
        row "end of the guest's server" "no error" "an error" "BAD: $(tail -n 2 "$work/serve.out" | tr '\n' ' ')"
    fi
}

# ping_server SIZE: pings an rping server (librdmacm) of this size.
ping_server() {
    local tag=rping$part$mtu$1
    guest_begin "$tag" 60 "rping -s -a $back -p 7174 -C 20 -S $1 -V"
    # Port 7174, state LISTEN.
    guest_run 20 "until grep -q ':1C06 .* 0A ' /proc/net/tcp; do sleep 0.1; done" >/dev/null || true
    from_here "ping an rping server, $1 bytes" "20 rounds" '"\(.rounds) rounds, mean \(.mean_ns / 1000 | round) us"' \
        ping "$back:7174" --peer-kind siw --count 20 --size "$1" || true
    guest_end "$tag" 60 >"$work/rping.out" || true
}

client_cases() {
    local size
    for size in 64 5000; do ping_server "$size"; done
    server_begin
    if to_server "get: RDMA Read into a file" "$file_len bytes" '"\(.bytes) bytes"' \
        get "rdmap://$back:7480/inbox" "$work/got.bin" --length "$file_len" --peer-kind siw; then
        compare "get: file and guest's bytes compared" "$guest_dir/share/file" "$work/got.bin"
    fi
    if to_server "get: RDMA Read into a region" "$file_len bytes" '"\(.bytes) bytes"' \
        get "rdmap://$back:7480/inbox" --into box --length "$file_len" --peer-kind siw; then
        api regions read box --length "$file_len" --output "$work/box.bin" >/dev/null || true
        compare "get: region and guest's bytes compared" "$guest_dir/share/file" "$work/box.bin"
    fi
    if to_server "put: RDMA Write" "$file_len bytes" '"\(.bytes) bytes"' \
        put "$work/other.bin" "rdmap://$back:7480/inbox" --peer-kind siw; then
        head -c "$file_len" "$guest_dir/share/dump" >"$work/dump.bin" || true
        compare "put: guest's bytes and file compared" "$work/other.bin" "$work/dump.bin"
    fi
    head -c 5000 "$work/other.bin" >"$work/message.bin"
    if to_server "send: the echo is returned" "5000 bytes" '"\(.bytes) bytes"' \
        send "rdmap://$back:7480" --file "$work/message.bin" --wait-reply 10s --peer-kind siw; then
        jq -r .reply "$work/api.json" | base64 -d >"$work/reply.bin" 2>/dev/null || true
        compare "send: echo and message compared" "$work/message.bin" "$work/reply.bin"
    fi
    to_server "put over MPA revision 1" "$file_len bytes" '"\(.bytes) bytes"' \
        put "$work/other.bin" "rdmap://$back:7480/inbox" --peer-kind siw --mpa-rev 1 || true
    server_end
}

# --- 2b: local programs against verbs programs of the guest ---

# program ROLE ADDRESS:PORT ARGUMENTS...: runs the verbs program of the project's library at the appliance.
program() { timeout 60 "$verbs_peer" "$api_socket.programs" "$@"; }

# program_row CASE EXPECTED ADDRESS:PORT ARGUMENTS...: runs a program as client. The row shows its last line.
program_row() {
    local name=$1 expected=$2 code=0 seen
    shift 2
    program connect "$@" >"$work/program.out" 2>&1 || code=$?
    seen=$(tail -n 1 "$work/program.out" | cut -c1-60)
    if [ "$code" -eq 0 ]; then
        row "$name" "$expected" "$seen" ok
    else
        row "$name" "$expected" "exit code $code" "BAD: $seen"
        revive_ddpd
    fi
}

# program_served CASE: waits until the guest's server has finished the connection of a program.
program_served() {
    served=$((served + 1))
    wait_until 30 server_is_done || true
    server_has_ended || return 0
    row "the server in the guest, at: $1" "serves" "has ended" "BAD: $(tail -n 2 "$guest_dir/share/serve$servers.out" | tr '\n' ' ')"
    server_begin
}

# serve_program BASE ROLE PORT ARGUMENT: starts a program that listens at the appliance.
serve_program() {
    launch "$work/$1" "$verbs_peer" "$api_socket.programs" "$2" "$front:$3" "$4"
    serve_pid=$launched
    started 30 "$work/$1" '^listening' || die "the program does not listen: $(tail -n 1 "$work/$1.err")"
}

# nothing_left CASE: a good row if no program, QP and stream remain.
nothing_left() {
    # shellcheck disable=SC2016 # wait_until's eval expands it
    if wait_until 30 eval '[ "$(api --json programs list | jq length)" = 0 ] && [ "$(api --json streams list | jq length)" = 0 ]'; then
        row "$1" "nothing" "nothing" ok
    else
        row "$1" "nothing" "something" "BAD: $(api --json streams list | jq -c 'map(.state)')"
    fi
}

programs_cases() {
    local tag code=0
    if [ -z "${verbs_peer:-}" ]; then
        say "building the verbs program"
        (cd "$repo" && cargo build --release --locked -q -p verbs-client --example verbs_peer) || die "the build failed"
        verbs_peer=$target/release/examples/verbs_peer
    fi
    # The guest's server sends messages back: a Send needs its answer.
    server_begin
    # The guest fills its memory with share/file, so the Writes must come from another file.
    program_row "program: Writes of unequal lengths" "no error" "$back:7480" siw "write:$work/other.bin"
    program_served "program: Writes"
    head -c "$file_len" "$guest_dir/share/dump" >"$work/dump.bin" || true
    compare "program: guest's bytes and file compared" "$work/other.bin" "$work/dump.bin"
    program_row "program: Reads of unequal lengths" "every byte" "$back:7480" siw "read:$guest_dir/share/file"
    program_served "program: Reads"
    program_row "program: Sends come back" "every byte" "$back:7480" siw echo:1 echo:0 echo:1424 echo:1425 echo:65536
    program_served "program: Sends"
    program_row "program: Sends with Solicited Event" "every byte" "$back:7480" siw echose:1 echose:5000
    program_served "program: solicited Sends"
    # A program that is killed resets its connection, and the guest's server continues.
    launch "$work/killed" "$verbs_peer" "$api_socket.programs" connect "$back:7480" siw echo:100 stay:60000
    started 30 "$work/killed" '^echo' || true
    kill -KILL "$launched"
    wait "$launched" 2>/dev/null || true
    program_served "program: killed client"
    nothing_left "program: killed client leaves"
    program_row "program: the server still serves" "every byte" "$back:7480" siw echo:77
    program_served "program: after a killed client"
    server_end
    tag=reject$mtu
    guest_begin "$tag" 60 "siwverbs serve 7481 count=1 reject=busy"
    wait_until 30 grep -q listening "$guest_dir/share/$tag.out" || true
    program_row "program: rejected with private data" "rejected with busy" "$back:7481" siw rejected:busy
    guest_end "$tag" 30 >/dev/null || true
    # As server.
    serve_program program serve 7490 3
    in_guest "program as server: many lengths" "every byte" 60 \
        "siwverbs client $front 7490 write:/host/file read:/host/file" compared
    in_guest "program as server: Sends come back" "every byte" 30 \
        "siwverbs client $front 7490 len=65536 echo:1 echo:0 echo:1424 echo:1425 echo:65536" "done"
    in_guest "program as server: solicited Send" "done" 30 "siwverbs client $front 7490 sendse:100" "done"
    wait "$serve_pid" || code=$?
    row "program as server: its end" "3 connections" "exit code $code" "$([ "$code" -eq 0 ] && echo ok || echo "BAD: $(tail -n 1 "$work/program.err")")"
    serve_program program reject 7491 full
    guest_run 30 "siwverbs client $front 7491 echo:1" >"$work/guest.out" || true
    # siw loses the private data of a rejection if the FIN is in the same segment.
    if grep -q REJECTED "$work/guest.out"; then
        row "program as server: rejects" "rejected" "$(grep REJECTED "$work/guest.out" | tail -n 1)" ok
    else
        row "program as server: rejects" "rejected" "$(tail -n 1 "$work/guest.out")" "BAD: not as expected"
    fi
    wait "$serve_pid" 2>/dev/null || true
    serve_program program serve 7492 1
    guest_begin "kill$mtu" 60 "siwverbs client $front 7492 echo:100 ended:30000"
    wait_until 30 grep -q 'echo: done' "$guest_dir/share/kill$mtu.out" || true
    kill -KILL "$serve_pid"
    wait "$serve_pid" 2>/dev/null || true
    if guest_end "kill$mtu" 60 >"$work/guest.out"; then
        row "program as server: killed" "the guest is notified" "$(tail -n 1 "$work/guest.out")" ok
    else
        row "program as server: killed" "the guest is notified" "no" "BAD: $(tail -n 1 "$work/guest.out")"
    fi
    serve_pid=''
    nothing_left "program as server: killed, leaves"
}

# vhost_cases: the same over the vhost-user port, with the offloads of the guest's driver.
vhost_cases() {
    local front=10.78.0.1 back=10.78.0.2 api_socket=$work/vhost.sock size program
    # shellcheck disable=SC2016 # wait_until's eval expands it
    if ! wait_until 10 eval '[ "$(api --json ports | jq ".[0].up")" = true ]'; then
        row "vhost-user: the link is up" "up" "down" "BAD: $(tail -n 1 "$work/vhost.err")"
        return
    fi
    offloads
    server_cases
    for program in ib_write_bw ib_read_bw ib_send_bw ib_send_lat; do
        if [ "$mtu" = 1500 ]; then perf "$program" 64; fi
        perf "$program" 65536
    done
    client_cases
    if [ "$mtu" = 1500 ]; then bench_cases; fi
}

# offloads: checks that the guest's driver has accepted the device's features: transmit checksum offload (bit 0), receive
# checksum offload (bit 1), mergeable receive buffers (bit 15).
offloads() {
    local bits
    bits=$(guest_run 10 "cat /sys/class/net/eth1/device/features" | tail -n 1 || true)
    if [ "${bits:0:2}${bits:15:1}" = 111 ]; then
        row "virtio features: checksums, mergeable buffers" "bits 0, 1, 15" "bits 0, 1, 15" ok
    else
        row "virtio features: checksums, mergeable buffers" "bits 0, 1, 15" "${bits:-nothing}" "BAD: not negotiated"
    fi
}

# bench_server PROGRAM LOAD SIZE: loads a server of perftest by `ddpctl bench`.
bench_server() {
    local tag=$1-$part$mtu-$3 line
    guest_begin "$tag" 60 "exec $1 -R -s $3 -F"
    # Port 18515, state LISTEN, at both interfaces.
    guest_run 20 "until [ \$(grep -c ':4853 .* 0A ' /proc/net/tcp) = 2 ]; do sleep 0.1; done" >/dev/null || true
    from_here "bench $2 to the server of $1 -R -s $3" "some messages" \
        '"\(.bench.messages) messages, \(.bench.gbit_per_s * 1000 | round) Mbit/s, p99 \(.bench.latency.p99_ns / 1000 | round) us"' \
        bench "$2" --peer perftest --to "rdmap://$back:18515" --peer-kind siw --size "$3" --time 1s || true
    if guest_end "$tag" 60 >"$work/bench.out"; then
        line=$(grep -E "^ *$3 " "$work/bench.out" | tail -n 1 | tr -s ' \t' ' ' || true)
        row "result of the server of $1 -R -s $3" "a result" "$line" "$([ -n "$line" ] && echo ok || echo "BAD: no result")"
    else
        row "result of the server of $1 -R -s $3" "a result" "an error" "BAD: $(tail -n 3 "$work/bench.out" | tr '\n' ' ')"
    fi
}

bench_cases() {
    bench_server ib_write_bw write 65536
    bench_server ib_read_bw read 65536
    bench_server ib_write_bw write 64
}

compare() { # CASE FILE FILE
    if cmp -s "$2" "$3"; then row "$1" "equal" "equal" ok; else row "$1" "equal" "different" "BAD: they differ"; fi
}

# --- 3: protocol errors ---

begin_capture() { start_capture "$1" -i guest0 'tcp and host 10.77.0.1'; }

# wrong CASE LAYER/TYPE/CODE PORT OPS...: the guest makes an error. The row is good if the captured Terminate of the appliance and
# its event log have these numbers.
wrong() {
    local name=$1 expected=$2 port=$3 seen said good='' before
    shift 3
    before=$(newest)
    begin_capture "$work/wrong.pcap"
    guest_run 40 "siwverbs client 10.77.0.1 $port $* ended:10000" >"$work/guest.out" || good="the guest: $(tail -n 1 "$work/guest.out")"
    stop_capture
    seen=$("$repo/scripts/siw-guest/fpdus.py" --terminates "$work/wrong.pcap" "$port" | awk -v p="$port" '$1 == p { print $3 }' | tail -n 1)
    said=$(api --json events --after "$before" | jq -rs '[.[] | select(.event == "terminated" and .by_peer == false) | .code] | last // "none"')
    [ "$seen" = "$expected" ] || good="BAD: not as expected${good:+; $good}"
    [ "$said" = "$seen" ] || good="BAD: the event log says $said${good:+; $good}"
    [ -z "$good" ] || case $good in BAD*) ;; *) good="BAD: $good" ;; esac
    row "$name" "$expected" "${seen:-no Terminate}" "${good:-ok}"
}

wrong_cases() {
    # Another stream, which must continue.
    guest_begin "other$mtu" 200 "siwverbs client 10.77.0.1 7475 echo:100 $(printf 'open:1000 echo:100 %.0s' 1 2 3 4 5 6 7 8 9 10)"
    wrong "Write: bad STag" 1/1/00 7471 region:box badput:64
    wrong "Write: out of bounds" 1/1/01 7471 region:box pastput:64
    wrong "Write: no access right" 1/1/00 7471 region:locked put:64
    wrong "Read: bad STag" 0/1/00 7471 region:box badget:64
    wrong "Read: out of bounds" 0/1/01 7471 region:box pastget:64
    wrong "Read: no access right" 0/1/02 7471 region:blind get:64
    wrong "Send: longer than the buffer" 1/2/05 7471 trysend:1025
    wrong "Send: no buffer posted" 1/2/02 7472 trysend:10
    # rdma-core 44 sends STag 0, which this stream must not invalidate.
    wrong "Send with Invalidate: not an STag of the stream" 0/1/09 7473 trysendinv:1
    after_invalidation
    if guest_end "other$mtu" 60 >"$work/other.out"; then
        row "another stream during these errors" "11 echoes" "$(grep -c 'echo: done' "$work/other.out") echoes" ok
    else
        row "another stream during these errors" "11 echoes" "ended" "BAD: $(tail -n 1 "$work/other.out")"
    fi
    too_many_reads
}

# after_invalidation: uses plain TCP, because the guest's verbs programs cannot send the STag.
after_invalidation() {
    local seen
    in_ns ip address add 10.77.0.3/24 dev br0 2>/dev/null || true
    seen=$(in_ns timeout 20 "$repo/scripts/siw-guest/invalidate.py" 10.77.0.1 7473 2>&1 | tail -n 1 || true)
    if [ "$seen" = 1/1/00 ]; then
        row "Write after invalidation (plain TCP)" 1/1/00 "$seen" ok
    else
        row "Write after invalidation (plain TCP)" 1/1/00 "$seen" "BAD: not as expected"
    fi
}

# too_many_reads: uses MPA revision 1. Without negotiation of IRD and ORD the driver issues as many Reads as it is configured to.
too_many_reads() {
    guest_run 30 'rdma link delete siw0; rmmod siw; insmod /knobs/siw.ko mpa_version=1; rdma link add siw0 type siw netdev eth0' \
        >"$work/knobs.out" || die "the guest does not load the driver with knobs: $(cat "$work/knobs.out")"
    wrong "Read: more outstanding than negotiated" 1/2/02 7472 ord=64 region:box gets:64
    # Regular operation in other modes of the driver.
    local part=server
    in_guest "MPA revision 1" "every byte" 40 "siwverbs client 10.77.0.1 7471 write:/host/file read:/host/file" compared
    guest_run 30 'echo 2 >/sys/module/siw/parameters/mpa_version; echo 1 >/sys/module/siw/parameters/peer_to_peer' >/dev/null || true
    in_guest "MPA revision 2, peer-to-peer" "every byte" 40 "siwverbs client 10.77.0.1 7471 write:/host/file read:/host/file" compared
    guest_run 30 'echo 0 >/sys/module/siw/parameters/peer_to_peer; echo 1 >/sys/module/siw/parameters/mpa_crc_required' >/dev/null || true
    in_guest "CRC required by the guest" "every byte" 40 "siwverbs client 10.77.0.1 7471 write:/host/file read:/host/file" compared
    guest_run 30 'rdma link delete siw0; rmmod siw; modprobe siw; rdma link add siw0 type siw netdev eth0' >/dev/null ||
        die "the guest does not load its own driver again"
}

# --- 4: all resources are released ---

resident() { awk '/^VmRSS/ { print $2 }' "/proc/$ddpd_pid/status"; }

# left: prints the resources that must return to their earlier values: streams, sessions and gauges.
left() {
    api --json listeners | jq -c 'map([.streams, .sessions])'
    api --json stats | jq -c '.gauges | del(.uptime, .events)'
}

cycle_cases() {
    local before after rss grown
    guest_run 60 "siwverbs cycle 10.77.0.1 7471 50" >/dev/null || true
    wait_until 30 eval '[ "$(api --json streams list | jq length)" = 0 ]' || true
    before=$(left) rss=$(resident)
    in_guest "connect and disconnect 1000 times" "no error" 240 "siwverbs cycle 10.77.0.1 7471 1000" "times"
    wait_until 30 eval '[ "$(api --json streams list | jq length)" = 0 ]' || true
    after=$(left)
    grown=$(($(resident) - rss))
    if [ "$before" = "$after" ] && [ "$grown" -lt 8192 ]; then
        row "resident memory of ddpd after 1000 connections" "less than 8 MiB more" "$grown KiB more" ok
    else
        row "resident memory of ddpd after 1000 connections" "less than 8 MiB more" "$grown KiB more" "BAD: $before became $after"
    fi
}

# --- 5: DCTCP at both ends, with ECN marks ---

# make_marks: marks one in four ECN-capable packets in both directions.
make_marks() {
    in_ns nft delete table bridge marks 2>/dev/null || true
    in_ns nft -f - <<'END'
table bridge marks {
    chain forward {
        type filter hook forward priority 0
        ether type ip ip ecn { ect0, ect1 } numgen random mod 4 == 0 ip ecn set ce counter
    }
}
END
}

tcp_counter() { api --json stats | jq -r ".. | objects | .$1? // empty" | head -n 1; }

dctcp_cases() {
    local marks reductions alpha
    guest_run 20 'modprobe tcp_dctcp && modprobe tcp_diag && echo dctcp >/proc/sys/net/ipv4/tcp_congestion_control && echo 1 >/proc/sys/net/ipv4/tcp_ecn' >/dev/null ||
        guest_died || die "the guest has no tcp_dctcp"
    stop_ddpd
    congestion=dctcp
    start_ddpd
    make_marks
    in_guest "DCTCP: writes and reads with CE marks" "every byte" 60 \
        "siwverbs client 10.77.0.1 7471 write:/host/file read:/host/file" "compared"
    marks=$(tcp_counter tcp_ecn_marks_in) reductions=$(tcp_counter tcp_ecn_reductions)
    if [ "${marks:-0}" -gt 0 ] && [ "${reductions:-0}" -gt 0 ]; then
        row "DCTCP: CE marks received, window reductions" "both above 0" "$marks, $reductions" ok
    else
        row "DCTCP: CE marks received, window reductions" "both above 0" "${marks:-none}, ${reductions:-none}" "BAD: none"
    fi
    # If the appliance echoes each mark, the kernel's estimate falls from 1024 towards 256. With ECE until CWR it stays high.
    guest_begin "dctcp$mtu" 60 "siwverbs client 10.77.0.1 7471 write:/host/file write:/host/file write:/host/file"
    alpha=$(guest_run 30 "while [ ! -e /host/dctcp$mtu.rc ]; do ss -tin dst 10.77.0.1 | grep -o 'alpha:[0-9]*'; sleep 0.2; done" |
        tail -n 1 || true)
    guest_end "dctcp$mtu" 60 >"$work/guest.out" || true
    alpha=${alpha#alpha:}
    if [ "${alpha:-0}" -ge 64 ] && [ "$alpha" -le 640 ]; then
        row "DCTCP: the guest's Alpha, in 1/1024" "64 to 640" "$alpha" ok
    else
        row "DCTCP: the guest's Alpha, in 1/1024" "64 to 640" "${alpha:-none}" "BAD: not in 64 to 640"
    fi
    in_ns nft delete table bridge marks
    guest_run 20 'echo cubic >/proc/sys/net/ipv4/tcp_congestion_control; echo 2 >/proc/sys/net/ipv4/tcp_ecn' >/dev/null || true
    stop_ddpd
    congestion=cubic
    start_ddpd
}

rm -rf "$bad_dir"
build_programs
versions=$(cat "$("$repo/scripts/siw-guest/build.sh")/versions")
make_net
if with_vhost; then
    mtu=${mtus%% *}
    start_vhost
    GUEST_VHOST=$work/vhost-user.sock
fi
guest_boot "$ns" guest0 10.77.0.2/24 1500
file_len=3000001
real_file "$guest_dir/share/file" 3
truncate -s "$file_len" "$guest_dir/share/file"
tr '\000-\377' '\001-\377\000' <"$guest_dir/share/file" >"$work/other.bin"
printf '%-44s %5s  %-22s %-34s %s\n' CASE MTU EXPECTED SEEN RESULT
for value in $mtus; do
    guest_attempt set_mtu "$value"
    for part in $parts; do
        case $value:$part in
        # Cases that do not depend on the MTU run once.
        9000:wrong | 9000:cycle | 9000:dctcp) ;;
        *) guest_attempt "${part}_cases" ;;
        esac
    done
done
revive_ddpd
revive_vhost
finish "$versions"
