# Part of scripts/interop: the appliance against the kernel's TCP. Sourced.
# shellcheck shell=bash
#
#   namespace A                         namespace B
#   ddpd on veth A (af_packet, af_xdp)  kernel sockets on veth B (ddpctl put --kernel, serve-kernel)
#   10.77.0.1, fd77::1                  10.77.0.2, fd77::2

[ "$(id -u)" -eq 0 ] || die "kernel: needs root, to make network namespaces"

tag=ddp$$
a=${tag}a b=${tag}b
work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-interop.XXXXXX")
bytes=$((mib * 1024 * 1024))
ddpd_pid="" capture_pid="" serve_pid=""

cleanup() {
    for pid in $serve_pid $capture_pid $ddpd_pid; do stop_pid "$pid"; done
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

in_a() { ip netns exec "$a" "$@"; }
in_b() { ip netns exec "$b" "$@"; }
api() { "$ddpctl" --socket "$work/a.sock" "$@"; }

# make_net MTU: creates two namespaces and a veth pair without offloads, so that frames are as on a wire.
make_net() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    ip netns add "$a"
    ip netns add "$b"
    ip link add "v$a" netns "$a" type veth peer name "v$b" netns "$b"
    in_a ethtool -K "v$a" tx off rx off gso off tso off gro off >/dev/null
    in_b ethtool -K "v$b" tx off rx off gso off tso off gro off >/dev/null
    # The kernel of A has no addresses, so that only the appliance answers.
    in_a sh -c "echo 1 >/proc/sys/net/ipv6/conf/v$a/disable_ipv6"
    in_b ip address add 10.77.0.2/24 dev "v$b"
    in_b ip address add fd77::2/64 dev "v$b" nodad
    in_a ip link set "v$a" mtu "$1" up
    in_b ip link set "v$b" mtu "$1" up
}

# listener PORT MARKERS CRC: prints the section of a listener.
listener() {
    cat <<END

[[listener]]
name = "l$1"
interface = "front"
port = $1
regions = ["sink"]
revisions = [0, 1]
markers = $2
crc = $3
END
}

# config KIND MTU: prints a configuration with one region, a listener for each combination of markers and CRC, and one for RDMAP.
config() {
    cat <<END
name = "interop"

[workers]
count = 1
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
size = "$mib MiB"
access = "w"

[files]
paths = ["$work"]

[management]
socket = "$work/a.sock"
END
    listener 7471 true true
    listener 7472 true false
    listener 7473 false true
    listener 7474 false false
    cat <<END

[[listener.queue]]
qn = 0
buffers = 4
buffer_size = "1 KiB"
deliver_to = "echo"

[[listener]]
name = "l7476"
interface = "front"
port = 7476
ulp = "rdmap"
service = "echo"
markers = false
crc = false
END
}

start_ddpd() {
    config "$1" "$2" >"$work/a.toml"
    launch "$work/ddpd" ip netns exec "$a" "$ddpd" --config "$work/a.toml"
    ddpd_pid=$launched
    started 60 "$work/ddpd" '^ready' || die "ddpd did not start on $1"
}

stop_ddpd() {
    stop_pid "$ddpd_pid"
    ddpd_pid=""
}

# Two different files alternate, so that a transfer that places nothing is detected.
file() { echo "$work/file$((rows % 2)).bin"; }

# row FIELDS... RESULT: prints a row, which is good if RESULT begins with `ok`.
row() {
    rows=$((rows + 1))
    [[ ${!#} == ok* ]] || bad_row "$@"
    printf '%-10s %5s %-5s %-10s %-8s %-4s %9s  %s\n' "$@"
}

# verdict: compares the region with the file, and prints the result.
verdict() {
    if api regions read sink --length "$bytes" --output - 2>"$work/read.err" | cmp -s "$(file)" -; then
        echo ok
    else
        echo "FAILED: the region differs from the file"
    fi
}

# to_appliance KIND MTU HOST REVISION PORT MARKERS CRC: puts a file over kernel sockets to the appliance, and compares.
to_appliance() {
    local kind=$1 mtu=$2 host=$3 revision=$4 port=$5 markers=$6 crc=$7 place=() url rate='-' result
    url="tcp://$host:$port/sink"
    api --json regions list >"$work/regions.json"
    if [ "$revision" = start-key ]; then
        place=(--stag "$(jq -r '.[0].stag' "$work/regions.json")" --to "$(jq -r '.[0].base_to' "$work/regions.json")")
        url="tcp://$host:$port"
    fi
    if in_b "$ddpctl" --json put --kernel --mpa-rev "$revision" --markers "$markers" --crc "$crc" \
        "${place[@]}" "$(file)" "$url" >"$work/put.json" 2>"$work/put.err"; then
        # The negotiated parameters must be those of the row.
        if jq -e --arg m "$markers" --arg c "$crc" \
            '.mpa.markers_tx == ($m == "on") and .mpa.crc == ($c == "on")' "$work/put.json" >/dev/null; then
            result=$(verdict)
            rate=$(jq -r '.gbit_per_s * 100 | round / 100' "$work/put.json")
        else
            result="FAILED: other parameters: $(tr -d '\n' <"$work/put.json")"
        fi
    else
        result="FAILED: $(tr '\n' ' ' <"$work/put.err")"
    fi
    row "$kind" "$mtu" "$(family "$host")" "$revision" "$markers" "$crc" "$rate" "$result"
}

family() { case $1 in \[*) echo IPv6 ;; *) echo IPv4 ;; esac }

# from_appliance KIND MTU HOST REVISION MARKERS CRC: puts a file from the appliance to kernel sockets, and compares.
from_appliance() {
    local kind=$1 mtu=$2 host=$3 revision=$4 markers=$5 crc=$6 result=ok rate='-'
    rm -f "$work/served.bin"
    launch "$work/serve" ip netns exec "$b" "$ddpctl" --json serve-kernel "$host:7475" --size "${mib}MiB" \
        --file "$work/served.bin" --markers "$markers" --crc "$crc" --connections 1
    serve_pid=$launched
    if ! started 30 "$work/serve" listening; then
        result="FAILED: no listener: $(tr '\n' ' ' <"$work/serve.err")"
    elif ! api --json put --mpa-rev "$revision" --markers "$markers" --crc "$crc" "$(file)" \
        "tcp://$host:7475/inbox" >"$work/put.json" 2>"$work/put.err"; then
        result="FAILED: $(tr '\n' ' ' <"$work/put.err")"
    else
        rate=$(jq -r '.gbit_per_s * 100 | round / 100' "$work/put.json")
        wait "$serve_pid" || result="FAILED: the listener: $(tr '\n' ' ' <"$work/serve.err")"
        serve_pid=""
        cmp -s "$(file)" "$work/served.bin" || result="FAILED: the file differs"
    fi
    [ -z "$serve_pid" ] || stop_pid "$serve_pid"
    serve_pid=""
    row "$kind" "$mtu" "$(family "$host")" "$revision" "$markers" "$crc" "$rate" "$result"
}

# closes_at_once KIND MTU: checks that a peer whose last message and FIN are in one segment receives the answer, or a reset.
closes_at_once() {
    local kind=$1 mtu=$2 how port result
    for how in ddp:7474 rdmap:7476 bad-crc:7473; do
        port=${how#*:}
        if result=$(in_b python3 "$repo/scripts/interop.d/close.py" 10.77.0.1 "$port" "${how%:*}" 20 2>&1); then
            result="ok: $result"
        else
            result="FAILED: $(tail -n 1 <<<"$result")"
        fi
        row "$kind" "$mtu" IPv4 "${how%:*}" off "$([ "$port" = 7473 ] && echo on || echo off)" - "$result"
    done
}

# check_capture: checks that tshark finds DDP and good CRCs, and nothing malformed, without markers and with revision 1.
check_capture() {
    local result=ok segments malformed wrong_crc
    rm -f "$work/cap.pcap"
    launch "$work/dumpcap" ip netns exec "$b" dumpcap -q -i "v$b" -f 'tcp port 7473' -w "$work/cap.pcap" -a filesize:65536
    capture_pid=$launched
    started 30 "$work/dumpcap" '^File:' || die "dumpcap did not start"
    to_appliance "$@"
    stop_pid "$capture_pid"
    capture_pid=""
    local tshark=(tshark -n -r "$work/cap.pcap")
    segments=$("${tshark[@]}" -Y iwarp_ddp_rdmap 2>/dev/null | wc -l)
    malformed=$("${tshark[@]}" -Y _ws.malformed 2>/dev/null | wc -l)
    wrong_crc=$("${tshark[@]}" -V -c 3000 2>/dev/null | grep 'CRC check:' | grep -vc 'Good CRC32' || true)
    if [ "$segments" -lt 100 ] || [ "$wrong_crc" -ne 0 ] || [ "$malformed" -ne 0 ]; then
        result="FAILED"
    fi
    row "$1" "$2" "$(family "$3")" tshark off - - "$result: $segments frames with DDP, $malformed malformed, $wrong_crc wrong CRCs"
}

# suite KIND MTU: all cases on one kind of port.
suite() {
    local kind=$1 mtu=$2 host revision
    make_net "$mtu"
    start_ddpd "$kind" "$mtu"
    for host in 10.77.0.1 '[fd77::1]'; do
        for revision in 1 0 start-key; do
            to_appliance "$kind" "$mtu" "$host" "$revision" 7471 on on
            to_appliance "$kind" "$mtu" "$host" "$revision" 7472 on off
            to_appliance "$kind" "$mtu" "$host" "$revision" 7473 off on
            to_appliance "$kind" "$mtu" "$host" "$revision" 7474 off off
        done
    done
    closes_at_once "$kind" "$mtu"
    check_capture "$kind" "$mtu" 10.77.0.1 1 7473 off on
    for host in 10.77.0.2 '[fd77::2]'; do
        for revision in 1 0; do
            from_appliance "$kind" "$mtu" "$host" "$revision" on on
            from_appliance "$kind" "$mtu" "$host" "$revision" off off
        done
    done
    stop_ddpd
}

build_programs
say "making a file of $mib MiB"
real_file "$work/file0.bin" "$mib"
real_file "$work/file1.bin" "$((mib + 1))"
tail -c "$bytes" "$work/file1.bin" >"$work/file.bin" && mv "$work/file.bin" "$work/file1.bin"
printf '%-10s %5s %-5s %-10s %-8s %-4s %9s  %s\n' PORT MTU IP REVISION MARKERS CRC Gbit/s RESULT
for part in ${INTEROP_PARTS:-af_packet:1500 af_packet:9000 af_xdp:1500}; do
    suite "${part%:*}" "${part#*:}"
done
end_rows
say "all $rows rows are good"
