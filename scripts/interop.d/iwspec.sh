# Part of scripts/interop: the conformance test iwspec against ddpd on an af_packet port, the first service twice. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, program and launched come from scripts/lib.sh
#
#   namespace A                            namespace B
#   ddpd on af_packet, 10.77.0.1           iwspec over kernel sockets, 10.77.0.2, and on its raw port, 10.77.0.9

[ "$(id -u)" -eq 0 ] || die "iwspec: needs root, to make network namespaces"

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-iwspec.XXXXXX")
ddpd_pid=''
cleanup() {
    [ -z "$ddpd_pid" ] || stop_pid "$ddpd_pid"
    campaign_net_gone
    rm -rf "$work"
}
trap cleanup EXIT

# sctp_listener NAME PORT SERVICE KEYS...: prints the section of a listener of SCTP.
sctp_listener() { listener "$@" 'transport = "sctp"'; }

# bare_listener NAME PORT KEYS...: prints the section of a listener of DDP without RDMAP, with an echo queue.
bare_listener() {
    printf '\n[[listener]]\nname = "%s"\ninterface = "front"\nport = %s\nulp = "ddp"\n' "$1" "$2"
    shift 2
    printf '%s\n' "$@" '[[listener.queue]]' 'qn = 0' 'buffers = 64' 'buffer_size = "4 KiB"' 'deliver_to = "echo"'
}

# listener NAME PORT SERVICE KEYS...: prints the section of a listener.
listener() {
    printf '\n[[listener]]\nname = "%s"\ninterface = "front"\nport = %s\nulp = "rdmap"\nservice = "%s"\n' "$1" "$2" "$3"
    shift 3
    printf '%s\n' "$@"
}

# region NAME SIZE KEYS...: prints the section of a region.
region() {
    printf '\n[[region]]\nname = "%s"\nsize = "%s"\n' "$1" "$2"
    shift 2
    printf '%s\n' "$@"
}

config() {
    cat <<END
name = "iwspec"

[workers]
count = 1
idle = "adaptive"

[[port]]
name = "wire"
kind = "af_packet"
device = "$dev_a"

[[interface]]
name = "front"
port = "wire"
addresses = ["10.77.0.1/24"]

[sctp]
udp_encapsulation = 9899

[management]
socket = "$work/ddpd.sock"
END
    # A base TO above 0: cases write and read below it.
    region box "1 MiB" 'access = "rwa"' 'base_to = 1048576' 'shared = true'
    region source "64 KiB" 'access = "r"' 'shared = true'
    region inbox "64 KiB" 'access = "w"' 'shared = true'
    region pings "16 MiB" 'access = "rw"' 'shared = true'
    region scratch "64 MiB" 'access = "rw"' 'shared = true'
    local memory='regions = ["box", "source", "inbox"]'
    listener region 7471 region "$memory"
    listener markers 7472 region "$memory" 'markers = true'
    listener no-crc 7473 region "$memory" 'crc = false'
    listener markers-no-crc 7474 region "$memory" 'markers = true' 'crc = false'
    listener echo 7475 echo
    listener sink 7476 sink
    bare_listener bare 7477 "$memory"
    bare_listener bare-sctp 7487 "$memory" 'transport = "sctp"'
    sctp_listener sctp-region 7481 region "$memory"
    sctp_listener sctp-echo 7485 echo
    sctp_listener sctp-sink 7486 sink
    listener rping 7174 rping 'regions = ["pings"]' 'limits = { streams = 256 }'
    listener perftest 18515 perftest 'regions = ["scratch"]' 'limits = { streams = 128 }' \
        '[[listener.queue]]' 'qn = 0' 'buffers = 512' 'buffer_size = "4 KiB"'
}

build_programs
campaign_program iwspec
campaign_net whole
config >"$work/ddpd.toml"
launch "$work/ddpd" ip netns exec "$net_a" "$ddpd" --config "$work/ddpd.toml"
ddpd_pid=$launched
started 60 "$work/ddpd" '^ready' || die "ddpd did not start"

failed=0
for target in 7471:region 7472:region 7473:region 7474:region 7475:echo 7476:sink 7174:rping 18515:perftest \
    7471:region:raw 7472:region:raw 7475:echo:raw 7481:region:sctp 7485:echo:sctp 7486:sink:sctp 7481:region:sctp-raw \
    7477:ddp 7487:ddp:sctp; do
    IFS=: read -r port service transport <<<"$target"
    runs=(1) jobs=() way=(--transport "${transport:-tcp}")
    [ "$transport" != raw ] || way=(--raw "$dev_b,10.77.0.9")
    # SCTP in IP, not in UDP.
    [ "$transport" != sctp-raw ] || way=(--transport sctp --raw "$dev_b,10.77.0.9")
    # The default of one job is for the rping program. ddpd's rping service accepts connections in parallel.
    [ "$service" != rping ] || jobs=(--jobs 8)
    [ "$port${transport:-tcp}" != 7471tcp ] || runs=(1 2)
    for run in "${runs[@]}"; do
        code=0
        ip netns exec "$net_b" "$program" "10.77.0.1:$port" --service "$service" "${way[@]}" "${jobs[@]}" --json >"$work/$run.json" || code=$?
        [ "$code" -le 1 ] || die "iwspec ended with code $code at port $port"
        jq '[.cases[] | {id, verdict}]' "$work/$run.json" >"$work/$run.verdicts"
        jq -r '.cases[] | select(.verdict == "fail" or .verdict == "inconclusive") | "    \(.id) \(.verdict): \(.reason)"' "$work/$run.json"
        [ "$code" -eq 0 ] || failed=$((failed + 1))
    done
    result=$(jq -r '.summary | "\(.pass) passed, \(.fail) failed, \(.inconclusive) inconclusive, \(.not_applicable) not applicable"' "$work/1.json")
    # On a busy machine a verdict may be inconclusive, but a pass never becomes a fail.
    if [ "${#runs[@]}" -eq 2 ] && ! jq -e -s '[.[0], .[1]] | transpose | all(.[0].verdict == .[1].verdict or any(.[]; .verdict == "inconclusive"))' \
        "$work/1.verdicts" "$work/2.verdicts" >/dev/null; then
        result="$result; TWO RUNS DIFFER"
        failed=$((failed + 1))
    fi
    printf '%-6s %-9s %-8s %s\n' "$port" "$service" "${transport:-tcp}" "$result"
done
[ "$failed" -eq 0 ] || die "iwspec: $failed runs have failures"
say "no failure after $SECONDS s"
