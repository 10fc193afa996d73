# Part of scripts/interop: unmodified verbs programs of the distribution, run by `ddpctl run`. Sourced. No root, no hugepages.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, target, ddpd, ddpctl, short and publish come from scripts/interop and scripts/lib.sh
#
#   memif   programs ── ddpd a (10.78.0.1) ── shared memory ── ddpd b (10.78.0.2) ── programs     clients at a, servers at b
#   lab     programs ── ddpctl run --lab: one ddpd, lab1 (10.9.0.1) ── ring ── lab2 (10.9.0.2)    servers at lab2
#
# A row asserts the exit codes of both programs, the text that shows success, and the least number of bytes that the worker
# of the receiver has received. Rates are not asserted. Rows with the result `no` are programs that cannot run over iWARP:
# they must end with an error within the time limit, without being killed.
#
# The programs run in a user and network namespace with the appliances' addresses on an interface: qperf, fi_pingpong
# and perftest without -R also use kernel sockets to these addresses, and libfabric skips devices unless a kernel
# interface other than `lo` has their addresses. On systems without such namespaces these rows are left out.
#
# The libraries are those of DDPD_VERBS_LIBRARY=DIR; otherwise scripts/verbs-library builds them. All results are written to
# target/interop-verbs.tsv; --publish writes the table of the last full run to docs/verbs.md.

# VERBS_PLACES=NAMES, VERBS_PARTS=NAMES: runs only the rows of these places (memif, lab) and functions of this file.

# shellcheck source=scripts/lib-memif.sh
. "$repo/scripts/lib-memif.sh"

# Seconds without progress after which a row has stalled, and after which it has failed although it progresses.
stall_limit=30 row_limit=240
# The outputs of failed rows are in $outputs/ROW.
results=$target/interop-verbs.tsv outputs=$target/interop-verbs-failed

if [ -n "$publish" ]; then
    exec python3 "$repo/scripts/interop.d/verbs-table.py" "$results" "$repo/docs/verbs.md"
fi

if [ -z "${INTEROP_VERBS_NAMESPACE:-}" ]; then
    build_programs
    if [ -z "${DDPD_VERBS_LIBRARY:-}" ]; then
        say "building the verbs libraries"
        "$repo/scripts/verbs-library" || die "the verbs libraries cannot be built"
        DDPD_VERBS_LIBRARY=$target/verbs-library
    fi
    PROGRAMS=$(dirname "$(realpath -s "$ddpctl")")
    export PROGRAMS DDPD_VERBS_LIBRARY
    namespace=(unshare --user --map-current-user --keep-caps --net --)
    link=(ip link add rdma type veth peer name rdma-peer)
    if "${namespace[@]}" "${link[@]}" 2>/dev/null; then
        # shellcheck disable=SC2016 # the shell in the namespace expands it
        INTEROP_VERBS_NAMESPACE=yes LINK="${link[*]}" exec "${namespace[@]}" sh -ec '
            $LINK
            for interface in lo rdma rdma-peer; do ip link set "$interface" up; done
            for address in 10.78.0.1 10.78.0.2 10.9.0.1 10.9.0.2; do ip address add "$address/32" dev rdma; done
            exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"
        ' sh "$0" verbs ${short:+--short}
    fi
    say "LEFT OUT: rows that use kernel sockets need user and network namespaces"
    export INTEROP_VERBS_NAMESPACE=no
else
    ddpd=$PROGRAMS/ddpd ddpctl=$PROGRAMS/ddpctl
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-verbs.XXXXXX")
mkdir -m 0700 "$work/runtime"
# Separates the lab of these rows from the user's.
export XDG_RUNTIME_DIR=$work/runtime
declare -A pid=([a]='' [b]='')
others=() refused=0 faults=0 port=20000

cleanup() {
    local process
    for process in "${others[@]}" ${pid[a]} ${pid[b]}; do stop_pid "$process"; done
    rm -rf "$work"
}
trap cleanup EXIT
rm -rf "$outputs"

# version PROGRAM: prints the version of the package that has the program.
version() {
    local file package
    file=$(command -v "$1") || return 0
    package=$(dpkg-query -S "$(realpath "$file")" 2>/dev/null || dpkg-query -S "$file" 2>/dev/null) &&
        dpkg-query -W -f '${Version}' "${package%%:*}" 2>/dev/null && return
    command -v dpkg-query >/dev/null || rpm -qf --qf '%{VERSION}-%{RELEASE}' "$file" 2>/dev/null || true
}

# row PROGRAM CASE RESULT [DETAIL]: prints a row. RESULT: ok, no (refused as expected) or FAILED.
# With known=REASON, FAILED becomes `known`: a fault that docs/verbs.md lists. With known_if=PATTERN, only if the client's
# output contains this extended regular expression.
declare -A versions=()
row() {
    local program=$1
    local result=$3 detail=${4:-}
    if [ "$result" = FAILED ] && [ -n "${known:-}" ] &&
        { [ -z "${known_if:-}" ] || grep -qE -- "$known_if" "$work/client.out"; }; then
        result=known detail=$known
    fi
    rows=$((rows + 1))
    if [ "$result" = FAILED ]; then
        mkdir -p "$outputs/$rows"
        cp "$work"/{client,server}.* "$outputs/$rows" 2>/dev/null || true
    fi
    case $result in ok) ;; no) refused=$((refused + 1)) ;; known) faults=$((faults + 1)) ;; *) bad_row "$program" "$2" "$place" "$result" "$detail" ;; esac
    [ -n "${versions[$program]:-}" ] || versions[$program]=$(version "$program")
    printf '%-13s %-15s %-44s %-6s %-7s %s\n' "$program" "${versions[$program]}" "$2" "$place" "$result" "$detail"
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$program" "${versions[$program]}" "$2" "$place" "$result" "$detail" >>"$work/results.tsv"
}

start() { # SIDE
    memif_config_with_programs "$1" >"$work/$1.toml"
    start_side "$1"
}

# place memif|lab [OPTION...]: selects the appliances of the following rows, and options of ddpctl run. Sets the commands that
# run a client and a server, the server's address, and the management sockets of both sides.
place() {
    place=$1
    local options=("${@:2}")
    case $1 in
        memif)
            at_client=("$ddpctl" run "${options[@]}" --appliance "$work/programs-a.sock" --)
            at_server=("$ddpctl" run "${options[@]}" --appliance "$work/programs-b.sock" --)
            address=10.78.0.2 other=10.78.0.1
            declare -gA socket=([client]=$work/a.sock [server]=$work/b.sock) ;;
        lab)
            at_client=("$ddpctl" run "${options[@]}" --lab --) at_server=("$ddpctl" run "${options[@]}" --lab --)
            address=10.9.0.2 other=10.9.0.1
            declare -gA socket=([client]=$XDG_RUNTIME_DIR/ddpd-lab/ddpd.sock [server]=$XDG_RUNTIME_DIR/ddpd-lab/ddpd.sock) ;;
    esac
}

# received SIDE: prints the number of bytes in frames that the workers of a side have received.
received() {
    "$ddpctl" --socket "${socket[$1]}" --json stats | jq '[.workers[].counters.rx_bytes] | add'
}

# progress: prints a number that changes while programs communicate.
progress() {
    local side
    for side in client server; do
        "$ddpctl" --socket "${socket[$side]}" --json stats 2>/dev/null | jq -c '[.workers[].counters |
            [.rx_bytes, .program_sends_completed, .program_receives_completed, .commands]]' || true
    done
}

# listens PORT...: succeeds if a program of the server's side listens at each port of the appliance, or a process at the
# kernel's.
listens() {
    local port
    for port; do
        "$ddpctl" --socket "${socket[server]}" --json programs list |
            jq -e --arg port ":$port" 'any(.[].listeners[]; endswith($port))' >/dev/null 2>&1 ||
            grep -qiE ":$(printf '%04X' "$port") [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6 || return 1
    done
}

# serve PORTS COMMAND...: starts a server and waits until it listens at all of the ports; port 0: does not wait.
serve() {
    local server_ports=$1
    shift
    launch "$work/server" timeout -k 5 $((row_limit + stall_limit)) "${at_server[@]}" "$@"
    server=$launched
    others+=("$server")
    [ "$server_ports" = 0 ] ||
        wait_until "$stall_limit" eval "listens $server_ports || ! kill -0 $server" && kill -0 "$server" 2>/dev/null
}

# client COMMAND...: runs a client; its output is in $work/client.out, its exit code in $code: 124 if it has stalled.
client() {
    local process before='' now
    code=0
    timeout -k 5 "$row_limit" "${at_client[@]}" "$@" >"$work/client.out" 2>&1 &
    process=$!
    while ! wait_until "$stall_limit" eval "! kill -0 $process"; do
        now=$(progress)
        if [ "$now" = "$before" ]; then stop_pid "$process"; code=124; return; fi
        before=$now
    done
    wait "$process" || code=$?
}

# ended PID: waits for a server's end and sets $served to its exit code; 124: it did not end in time.
ended() {
    served=0
    wait_until "$stall_limit" eval "! kill -0 $1" || { stop_pid "$1"; served=124; return; }
    wait "$1" 2>/dev/null || served=$?
}

# problem CODE: describes an exit code.
problem() {
    case $1 in
        0) echo "exit code 0" ;;
        124 | 137) echo "stalled" ;;
        *) if [ "$1" -gt 128 ] && [ "$1" -le 192 ]; then echo "killed by signal $(($1 - 128))"; else echo "exit code $1"; fi ;;
    esac
}
# is_bad CODE: succeeds for the exit code of a program that has stalled or crashed.
is_bad() { [ "$1" -eq 124 ] || { [ "$1" -gt 128 ] && [ "$1" -le 192 ]; }; }
last_line() { grep -hvE '^[[:space:]]*(-+)?[[:space:]]*$' "$@" 2>/dev/null | tail -n 1 | cut -c 1-100 || true; }

# pair CASE BYTES RECEIVER PORTS PATTERN SERVER -- CLIENT: a row for two programs that must both end with exit code 0. BYTES:
# least number of bytes that RECEIVER (client or server) receives. PATTERN: extended regular expression that the client's
# or the server's output must contain. With stays=1 the server does not end by itself.
pair() {
    local case=$1 bytes=$2 receiver=$3 listen=$4 pattern=$5 servers=() before now
    shift 5
    while [ "$1" != -- ]; do servers+=("$1"); shift; done
    shift
    if ! serve "$listen" "${servers[@]}"; then
        ended "$server"
        row "${servers[0]}" "$case" FAILED "the server does not listen: $(problem "$served"), $(last_line "$work/server.err" "$work/server.out")"
        return
    fi
    before=$(received "$receiver")
    # The lab ends with its last program, so another one runs until the counter has been read.
    if [ "$place" = lab ]; then hold; fi
    client "$@"
    [ "$code" -eq 0 ] && [ -z "${stays:-}" ] || kill -TERM "$server" 2>/dev/null || true
    ended "$server"
    # A server that does not end by itself gets SIGTERM (timeout(1) then returns 124, and a shell 143).
    [ -z "${stays:-}" ] || [ "$served" -ne 143 ] && [ "$served" -ne 124 ] || served=0
    now=$(received "$receiver")
    release
    if [ "$code" -ne 0 ]; then
        row "$1" "$case" FAILED "client: $(problem "$code"), $(last_line "$work/client.out")"
    elif [ "$served" -ne 0 ]; then
        row "$1" "$case" FAILED "server: $(problem "$served"), $(last_line "$work/server.err" "$work/server.out")"
    elif [ $((now - before)) -lt "$bytes" ]; then
        row "$1" "$case" FAILED "$((now - before)) of $bytes bytes were received"
    elif ! grep -qE -- "$pattern" "$work/client.out" "$work/server.out" "$work/server.err"; then
        row "$1" "$case" FAILED "no line with: $pattern"
    else
        row "$1" "$case" ok "$((now - before)) bytes"
    fi
}

holder=''
hold() {
    # shellcheck disable=SC2016 # the shell in the lab expands it
    launch "$work/holder" "${at_client[@]}" sleep 300
    holder=$launched
    others+=("$holder")
}
release() {
    [ -z "$holder" ] || { kill -TERM "$holder" 2>/dev/null; wait "$holder" 2>/dev/null || true; }
    holder=''
}

# alone CASE PATTERN COMMAND...: a row for one program. With label=NAME it has this name.
alone() {
    local case=$1 pattern=$2 name=${label:-$3}
    shift 2
    client "$@"
    if [ "$code" -ne 0 ]; then
        row "$name" "$case" FAILED "$(problem "$code"), $(last_line "$work/client.out")"
    elif ! grep -qE -- "$pattern" "$work/client.out"; then
        row "$name" "$case" FAILED "no line with: $pattern"
    else
        row "$name" "$case" ok
    fi
}

# refuses CASE PATTERN COMMAND...: a row for a program that iWARP cannot serve. It must end by itself, with an error and with
# a line that contains PATTERN.
refuses() {
    local case=$1 pattern=$2 line
    shift 2
    client "$@"
    line=$(grep -iE -m 1 -- "$pattern" "$work/client.out" | cut -c 1-100 || true)
    if [ "$code" -eq 0 ] || is_bad "$code"; then
        row "$1" "$case" FAILED "$(problem "$code"), $(last_line "$work/client.out")"
    elif [ -z "$line" ]; then
        row "$1" "$case" FAILED "unclear: $(last_line "$work/client.out")"
    else
        row "$1" "$case" no "$line"
    fi
}

next_port() { port=$((port + 1)); }

devices() {
    alone "lists the devices" '^ +(lan|lab1) ' ibv_devices
    alone "-v" 'PORT_ACTIVE' ibv_devinfo -v
    local watched=FAILED
    launch "$work/watch" "${at_client[@]}" ibv_asyncwatch
    others+=("$launched")
    if wait_until "$stall_limit" grep -q 'async event FD' "$work/watch.out"; then watched=ok; fi
    stop_pid "$launched"
    row ibv_asyncwatch "waits for events until it is stopped" "$watched" "$(last_line "$work/watch.err")"
}

rdma_cm() {
    next_port
    pair "-V: 50 rounds of 64 KiB, compared" $((50 * 65535)) server $port 'ping data: rdma-ping-49' \
        rping -s -a "$address" -p $port -C 50 -S 65535 -V -- rping -c -a "$address" -p $port -C 50 -S 65535 -V -v
    next_port
    [ -n "$short" ] || pair "-q: QP made by the program" 1000 server $port . \
        rping -s -a "$address" -p $port -C 10 -V -q -- rping -c -a "$address" -p $port -C 10 -V -q
    next_port
    pair "1 connection, 10 messages of 4 KiB each way" 40960 server $port 'return status 0' \
        ucmatose -b "$address" -p $port -C 10 -S 4096 -- ucmatose -s "$address" -p $port -C 10 -S 4096
    next_port
    pair "64 connections" $((64 * 10 * 100)) server $port 'return status 0' \
        ucmatose -b "$address" -p $port -c 64 -- ucmatose -s "$address" -p $port -c 64
    next_port
    pair "synchronous, static buffers" 16 server $port 'rdma_client: end 0' \
        rdma_server -s "$address" -p $port -- rdma_client -s "$address" -p $port
    next_port
    label="librdmacm" alone "a connect between bind and listen, a loopback address" '^done$' python3 "$repo/scripts/interop.d/verbs-connections.py" early "$other"
    pair "-c r: SRQ" 16 server $port 'rdma_xclient: end 0' rdma_xserver -p $port -c r -- rdma_xclient -s "$address" -p $port -c r
    [ -z "$short" ] || return 0
    next_port
    pair "20 connections" 2000 server $port 'disconnect' cmtime -b "$address" -p $port -c 20 -- cmtime -s "$address" -p $port -c 20
}

# perftest PROGRAM SIZE ITERATIONS RECEIVER [OPTION...]: a row for a program of perftest with -R.
perftest() {
    local program=$1 size=$2 count=$3 receiver=$4
    shift 4
    next_port
    # The client connects while the server starts to listen. After a refusal it retries with ids that it has freed.
    local known_if=''
    if [ -z "${known:-}" ]; then
        local known="its client connected before its server listened" known_if='RDMA_CM_EVENT_REJECTED'
    fi
    local options=(-R -F -p "$port" -n "$count" "$@")
    if [ "$size" -gt 0 ]; then options+=(-s "$size"); fi
    pair "-R -s $size -n $count${*:+ $*}" $((size * count)) "$receiver" $port "^ *[0-9]+ +[0-9]+" \
        "$program" "${options[@]}" -- "$program" "${options[@]}" "$address"
}

# Options of ddpctl run.
run_options() {
    place "$place" --transport sctp
    next_port
    pair "-V over SCTP (--transport sctp)" $((10 * 65535)) server $port 'ping data: rdma-ping-9' \
        rping -s -a "$address" -p $port -C 10 -S 65535 -V -- rping -c -a "$address" -p $port -C 10 -S 65535 -V -v
    place "$place" --sysfs
    label=ddpctl alone "devices in sysfs (--sysfs)" '^(lan|lab1)$' ls /sys/class/infiniband
    place "$place"
    [ "$place" = lab ] || return 0
    place lab --device lab2
    alone "one device (--device lab2)" '^ +lab2 ' ibv_devices
    if grep -q lab1 "$work/client.out"; then row ibv_devices "--device lab2 hides lab1" FAILED; fi
    place lab
}

perftests() {
    perftest ib_write_bw 65536 1000 server
    perftest ib_read_bw 65536 1000 client
    perftest ib_send_bw 65536 1000 server
    perftest ib_write_lat 64 200 server
    perftest ib_read_lat 64 200 client
    perftest ib_send_lat 64 200 server
    perftest ib_write_bw 4096 1000 server -b
    # Not `ib_send_bw -e`: over iWARP its client waits for credits of the server, which arrive without an event.
    perftest ib_send_lat 64 200 server -e
    perftest ib_read_bw 4096 1000 client -e
    [ -z "$short" ] || return 0
    # Its credits count the receives of the SRQ by the QP that posted them. For a QP that posted fewer than it received,
    # the difference wraps.
    known="perftest's credits of iWARP do not support an SRQ of several QPs" perftest ib_send_bw 4096 1000 server -q 4 --use-srq
    perftest ib_atomic_bw 8 1000 client
    perftest ib_atomic_lat 8 200 client
    perftest ib_read_bw 4096 1000 client -b
    perftest ib_send_bw 4096 1000 server -b
    perftest ib_write_bw 4096 1000 server -q 16
    perftest ib_read_bw 4096 1000 client -q 16
    perftest ib_send_bw 4096 1000 server -q 16
    perftest ib_write_lat 64 200 server -I 64
    perftest ib_send_lat 64 200 server -I 64
    perftest ib_send_lat 64 200 server --use-srq
    local program known="its client connected before its server listened" known_if='RDMA_CM_EVENT_REJECTED'
    for program in ib_write_bw ib_read_bw ib_send_bw; do
        next_port
        pair "-R -a: 2 bytes to 8 MiB" 16000000 "$([ $program = ib_read_bw ] && echo client || echo server)" $port '^ *8388608 ' \
            $program -R -F -p $port -a -n 5 -- $program -R -F -p $port -a -n 5 "$address"
        next_port
        pair "-R -D 1: for a second" 100000 "$([ $program = ib_read_bw ] && echo client || echo server)" $port '^ *65536 ' \
            $program -R -F -p $port -D 1 -- $program -R -F -p $port -D 1 "$address"
    done
}

# fio_row VERB BYTES JOBS: fio's rdma engine. The job with rw=read is the server, whatever the verb. With verb=send the
# server verifies the received blocks; with the other verbs the engine does not tell it their location. The server then
# has more receives than the client has messages in flight, because fio relies on retries that iWARP does not have.
fio_row() {
    local verb=$1 bytes=$2 jobs=$3 receiver=server first=$((port + 1)) job check='' depth=1
    if [ "$verb" = read ]; then receiver=client; fi
    if [ "$verb" = send ]; then check=$'verify=crc32c\nverify_state_save=0' depth=256; fi
    {
        printf '[global]\nioengine=rdma\nbs=64k\nsize=%s\niodepth=%s\nrw=read\n%s\n' "$bytes" "$depth" "$check"
        for ((job = 0; job < jobs; job++)); do printf '[server%s]\nport=%s\n' $job $((first + job)); done
    } >"$work/server.fio"
    {
        printf '[global]\nioengine=rdma\nbs=64k\nsize=%s\niodepth=8\nverb=%s\nrw=write\nhostname=%s\n%s\n' "$bytes" "$verb" "$address" "$check"
        [ -z "$check" ] || echo do_verify=0
        for ((job = 0; job < jobs; job++)); do printf '[client%s]\nport=%s\n' $job $((first + job)); done
    } >"$work/client.fio"
    port=$((port + jobs))
    pair "ioengine=rdma verb=$verb, $jobs job(s)${check:+, verify=crc32c}" $((bytes * jobs)) "$receiver" "$(seq -s ' ' "$first" "$port")" 'err= 0' \
        fio "$work/server.fio" -- fio "$work/client.fio"
}

storage() {
    fio_row write 16777216 1
    fio_row read 16777216 1
    [ -z "$short" ] || return 0
    fio_row send 16777216 1
    fio_row write 4194304 8
    fio_row read 4194304 8
    fio_row send 4194304 8
}

# Random operations: scripts/interop.d/verbs-mix.c. MIX_SEED=N: another seed.
mix() {
    local seed=${MIX_SEED:-1} seconds=60
    if [ -n "$short" ]; then seconds=3; fi
    if [ ! -e "$work/bin/verbs-mix" ]; then
        mkdir -p "$work/bin"
        PATH=$work/bin:$PATH
        cc -O2 -Wall -Wextra -Werror -o "$work/bin/verbs-mix" "$repo/scripts/interop.d/verbs-mix.c" -libverbs -lrdmacm ||
            die "verbs-mix cannot be built: install libibverbs-dev and librdmacm-dev"
    fi
    next_port
    pair "random operations of 8 QPs with 6 SGEs, $seconds s, seed $seed" 1000000 server $port 'all equal' \
        verbs-mix server "$address" $port -- verbs-mix client "$address" $port "$seed" $seconds
}

# Programs that also use kernel sockets to the server's address.
with_kernel_sockets() {
    local test
    [ "$INTEROP_VERBS_NAMESPACE" = yes ] || return 0
    for test in rc_bw rc_lat rc_bi_bw rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat \
        rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add; do
        next_port
        stays=1 pair "-cm 1 $test" 1000 "$([ "${test#rc_rdma_read}" = "$test" ] && echo server || echo client)" $port "^$test" \
            qperf -lp $port -- qperf -lp $port "$address" -t 1 -cm 1 "$test"
        if [ -n "$short" ]; then break; fi
    done
    alone "-p verbs" 'provider: verbs' fi_info -p verbs
    next_port
    pair "-p verbs -e msg" 1000 server $port '^ *(bytes|[0-9]+k?) ' \
        fi_pingpong -p verbs -e msg -B $port -- fi_pingpong -p verbs -e msg -P $port "$address"
    next_port
    pair "-p verbs;ofi_rxm -e rdm" 1000 server $port '^ *(bytes|[0-9]+k?) ' \
        fi_pingpong -p 'verbs;ofi_rxm' -e rdm -B $port -- fi_pingpong -p 'verbs;ofi_rxm' -e rdm -P $port "$address"
}

# Programs that need features that iWARP lacks: UD, multicast, XRC, and RC without a connection manager.
impossible() {
    [ -z "$short" ] || return 0
    refuses "UD" '^ddpd verbs:' udaddy -s "$address" -b "$other"
    refuses "multicast" '^ddpd verbs:' mckey -m 239.1.1.1 -b "$other"
    refuses "-c x: XRC" 'end -1' rdma_xclient -s "$address" -c x
    [ "$INTEROP_VERBS_NAMESPACE" = yes ] || return 0
    next_port
    pair_refused "without -R: RC without a connection manager" ib_write_bw -F -p $port -n 10
    next_port
    pair_refused "-R -c UD" ib_send_bw -R -F -p $port -n 10 -c UD
    next_port
    pair_refused "-c XRC" ib_write_bw -F -p $port -n 10 -c XRC
}

# pair_refused CASE COMMAND...: as `refuses`, for a server and a client of the same command. Both must end by themselves.
pair_refused() {
    local case=$1 line
    shift
    serve 0 "$@"
    wait_until "$stall_limit" eval "listens $port || ! kill -0 $server" || true
    client "$@" "$address"
    [ "$code" -ne 124 ] || kill -TERM "$server" 2>/dev/null || true
    ended "$server"
    line=$(grep -hiE -m 1 -- 'ddpd verbs:|not supported|unable|failed|invalid|could' "$work/client.out" "$work/server.err" | head -n 1 | cut -c 1-100 || true)
    if [ "$code" -eq 0 ] || is_bad "$code" || is_bad "$served"; then
        row "$1" "$case" FAILED "client: $(problem "$code"), server: $(problem "$served")"
    elif [ -z "$line" ]; then
        row "$1" "$case" FAILED "unclear: $(last_line "$work/client.out")"
    else
        row "$1" "$case" no "$line"
    fi
}

# The lab: all programs of a user share one, and it ends with the last of them.
lab_life() {
    local state
    wait_until "$stall_limit" eval "! pgrep -f 'lab-process serve $XDG_RUNTIME_DIR/ddpd-lab' >/dev/null" ||
        row ddpctl "the lab ends with its last program" FAILED "it still runs"
    hold
    wait_until "$stall_limit" "$ddpctl" --socket "${socket[client]}" status || row ddpctl "the lab starts" FAILED
    state=$("$ddpctl" run --lab=3 -- true 2>&1 || true)
    if [[ $state == *"a lab of 2 addresses runs"* ]]; then row ddpctl "--lab=3 beside a lab of 2" no "$(head -n 1 <<<"$state")"; else
        row ddpctl "--lab=3 beside a lab of 2" FAILED "$state"
    fi
    kill -KILL "$holder"
    wait "$holder" 2>/dev/null || true
    holder=''
    if wait_until "$stall_limit" eval "! pgrep -f 'lab-process serve $XDG_RUNTIME_DIR/ddpd-lab' >/dev/null" &&
        ! pgrep -f "$XDG_RUNTIME_DIR/ddpd-lab/lab.toml" >/dev/null; then
        row ddpctl "the lab ends when its last program is killed" ok
    else
        row ddpctl "the lab ends when its last program is killed" FAILED "it still runs"
    fi
    hold
    wait_until "$stall_limit" "$ddpctl" --socket "${socket[client]}" status || row ddpctl "the lab starts" FAILED
    rm -rf "$XDG_RUNTIME_DIR/ddpd-lab"
    release
    if wait_until "$stall_limit" eval "! pgrep -f 'lab-process serve $XDG_RUNTIME_DIR/ddpd-lab' >/dev/null"; then
        row ddpctl "the lab ends after its directory was removed" ok
    else
        row ddpctl "the lab ends after its directory was removed" FAILED "it still runs"
    fi
    # The first program is killed while it starts the lab: the next one joins this lab, or starts another.
    local each starts=()
    state=ok
    for each in 0.01 0.03 0.05 0.1 0.2 0.4; do
        launch "$work/killed" "${at_client[@]}" sleep 300
        sleep $each
        kill -KILL "$launched" 2>/dev/null || true
        wait "$launched" 2>/dev/null || true
        "$ddpctl" run --lab -- "$ddpctl" status >/dev/null 2>"$work/client.out" || state=FAILED
    done
    row ddpctl "the first program is killed while the lab starts" "$state" "$([ $state = ok ] || last_line "$work/client.out")"
    # Programs start and end concurrently: each finds an appliance.
    for each in 1 2 3 4 5 6 7 8; do
        (for _ in 1 2 3; do "$ddpctl" run --lab -- "$ddpctl" status >/dev/null || exit 1; done) &
        starts+=($!)
    done
    state=ok
    for each in "${starts[@]}"; do wait "$each" || state=FAILED; done
    row ddpctl "24 programs start and end labs at the same time" "$state"
}

mkdir -p "$target"
: >"$work/results.tsv"
printf '%-13s %-15s %-44s %-6s %-7s %s\n' PROGRAM VERSION CASE PLACE RESULT ''
start a
start b
links_are_up() {
    wait_until "$stall_limit" eval "'$ddpctl' --socket '$work/$1.sock' --json ports | jq -e '.[0].up'" || die "the link of $1 is not up"
}
links_are_up a
links_are_up b
for where in ${VERBS_PLACES:-memif lab}; do
    place "$where"
    for part in ${VERBS_PARTS:-devices rdma_cm run_options perftests storage mix with_kernel_sockets impossible}; do "$part"; done
done
[ -n "${VERBS_PARTS:-}" ] || lab_life
[ -n "$short${VERBS_PARTS:-}${VERBS_PLACES:-}" ] || mv "$work/results.tsv" "$results"
end_rows
say "$((rows - refused - faults)) rows are good, $refused programs that cannot run say so, $faults have known faults, after $SECONDS s"
