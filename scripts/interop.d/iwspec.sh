# Part of scripts/interop: the conformance test iwspec against ddpd on an af_packet port, as responder and as initiator. The
# first service is tested twice. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, program and launched come from scripts/lib.sh
#
#   namespace A                            namespace B
#   ddpd on af_packet, 10.77.0.1           iwspec over kernel sockets, 10.77.0.2, and on raw ports, 10.77.0.10 and above
#
# At most $lanes runs are concurrent, because a run mostly waits. Each run has its own regions, listener and raw address.

[ "$(id -u)" -eq 0 ] || die "iwspec: needs root, to make network namespaces"

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-iwspec.XXXXXX")
ddpd_pid=''
cleanup() {
    local pid
    for pid in $(jobs -p); do [ "$pid" = "$ddpd_pid" ] || kill "$pid" 2>/dev/null || true; done
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
    local port
    # A base TO above 0: cases write and read below it.
    for port in "${region_ports[@]}"; do
        region "box$port" "1 MiB" 'access = "rwa"' 'base_to = 1048576' 'shared = true'
        region "source$port" "64 KiB" 'access = "r"' 'shared = true'
        region "inbox$port" "64 KiB" 'access = "w"' 'shared = true'
    done
    region pings "16 MiB" 'access = "rw"' 'shared = true'
    region scratch "64 MiB" 'access = "rw"' 'shared = true'
    listener region 7471 region "$(memory 7471)"
    listener markers 7472 region "$(memory 7472)" 'markers = true'
    listener no-crc 7473 region "$(memory 7473)" 'crc = false'
    listener markers-no-crc 7474 region "$(memory 7474)" 'markers = true' 'crc = false'
    listener echo 7475 echo
    listener sink 7476 sink
    bare_listener bare 7477 "$(memory 7477)"
    bare_listener bare-sctp 7487 "$(memory 7487)" 'transport = "sctp"'
    listener raw-region 7491 region "$(memory 7491)"
    listener raw-markers 7492 region "$(memory 7492)" 'markers = true'
    listener raw-echo 7495 echo
    sctp_listener sctp-region 7481 region "$(memory 7481)"
    sctp_listener raw-sctp-region 7482 region "$(memory 7482)"
    sctp_listener sctp-echo 7485 echo
    sctp_listener sctp-sink 7486 sink
    # These listeners only put the regions of the initiators' runs into one protection domain each.
    for port in 7600 7601 7602 7604 7605 7606; do listener "domain$port" "$port" region "$(memory "$port")"; done
    listener rping 7174 rping 'regions = ["pings"]' 'limits = { streams = 256 }'
    listener perftest 18515 perftest 'regions = ["scratch"]' 'limits = { streams = 128 }' \
        '[[listener.queue]]' 'qn = 0' 'buffers = 512' 'buffer_size = "4 KiB"'
}

lanes=3
# Ports of the runs that use memory: listeners of ddpd, and listeners of iwspec (76xx).
region_ports=(7471 7472 7473 7474 7477 7487 7491 7492 7481 7482 7600 7601 7602 7604 7605 7606)

# memory PORT: prints the key `regions` of a listener.
memory() { printf 'regions = ["box%s", "source%s", "inbox%s"]' "$1" "$1" "$1"; }

# Runs: port, service, way, additional words for iwspec. A way with "raw" is iwspec's raw port; "sctp" is SCTP in UDP, "sctp-raw"
# SCTP in IP. The default of one job is for the rping program. ddpd's rping service accepts connections in parallel.
responders=("7471 region tcp" "7471 region tcp" "7472 region tcp" "7473 region tcp" "7474 region tcp" "7475 echo tcp" "7476 sink tcp"
    "7174 rping tcp --jobs 8" "18515 perftest tcp" "7491 region raw" "7492 region raw" "7495 echo raw" "7481 region sctp"
    "7485 echo sctp" "7486 sink sctp" "7482 region sctp-raw" "7477 ddp tcp" "7487 ddp sctp")
# Port, service, way, words for iwspec, | and words for ddpctl: the scheme of the peer's URL, and options of `ddpctl connect`.
initiators=("7600 region tcp --jobs 4|rdmap --peer-to-peer" "7601 region tcp --jobs 4 mpa|rdmap --mpa-rev 1 --markers on"
    "7602 ddp tcp|tcp" "7603 sink tcp --jobs 4 mpa|rdmap --mpa-rev start-key" "7604 region sctp|rdmap+sctp --peer-to-peer --udp-port 9899"
    "7605 ddp sctp --udp-port 9898|sctp --udp-port 9898" "7606 region raw mpa/segments|rdmap --peer-to-peer")

# connect_repeatedly URL WORDS...: lets ddpd open a stream again and again, after the end of the previous one.
connect_repeatedly() {
    local id
    while :; do
        if id=$("$ddpctl" --socket "$work/ddpd.sock" --json --timeout 10s connect "$@" 2>/dev/null | jq -r .id) && [ -n "$id" ]; then
            wait_until 20 eval "! '$ddpctl' --socket '$work/ddpd.sock' streams show $id" || true
        else
            sleep 0.05
        fi
    done
}

# test_run INDEX RUN: executes a run of `responders` or `initiators`. Writes its output, and its exit code as the last step.
test_run() {
    local index=$1 words=${2%%|*} url='' code=0 opens=() port service way here=10.77.0.2 more=() children=() out=$work/run$1 began=$SECONDS lane
    [ "$words" = "$2" ] || url=${2#*|}
    read -r port service way more <<<"$words"
    read -ra more <<<"$more"
    [[ $way != *raw ]] || here=10.77.0.$((10 + index))
    case $way in
    tcp) more+=(--transport tcp) ;;
    raw) more+=(--raw "$dev_b,$here") ;;
    sctp) more+=(--transport sctp) ;;
    sctp-raw) more+=(--transport sctp --raw "$dev_b,$here") ;;
    esac
    if [ -z "$url" ]; then
        more=("10.77.0.1:$port" "${more[@]}")
    else
        more=(--listen "$here:$port" "${more[@]}")
        read -ra opens <<<"$url"
        opens=("${opens[0]}://$here:$port" "${opens[@]:1}")
        if [[ $service =~ ^(region|ddp)$ ]]; then
            opens+=(--region "box$port" --region "source$port" --region "inbox$port")
        fi
        # As many connections at a time as --jobs.
        for lane in 1 2 3 4; do
            [ "$lane" -eq 1 ] || [[ " ${more[*]} " == *" --jobs 4 "* ]] || break
            connect_repeatedly "${opens[@]}" &
            children+=($!)
        done
    fi
    ip netns exec "$net_b" "$program" "${more[@]}" --service "$service" --json >"$out.json" 2>"$out.err" &
    children+=($!)
    trap 'kill "${children[@]}"; exit 1' TERM
    wait "$!" || code=$?
    unset 'children[-1]'
    [ "${#children[@]}" -eq 0 ] || kill "${children[@]}"
    echo $((SECONDS - began)) >"$out.seconds"
    echo "$code" >"$out.code"
}

build_programs
campaign_program iwspec
campaign_net whole
config >"$work/ddpd.toml"
launch "$work/ddpd" ip netns exec "$net_a" "$ddpd" --config "$work/ddpd.toml"
ddpd_pid=$launched
started 60 "$work/ddpd" '^ready' || die "ddpd did not start"

failed=0 index=0 runs=("${responders[@]}" "${initiators[@]}")
printf '%-6s %-9s %-9s %-10s %-66s %s\n' PORT SERVICE WAY DEVICE RESULT SECONDS
for run in "${runs[@]}"; do
    while [ "$(jobs -pr | wc -l)" -gt "$lanes" ]; do sleep 0.1; done
    # The second run of a listener follows the first.
    [ "$index" -ne 1 ] || wait_until 300 test -e "$work/run0.code"
    test_run "$index" "$run" &
    index=$((index + 1))
done
for index in "${!runs[@]}"; do
    read -r port service way _ <<<"${runs[index]%%|*}"
    device=responder out=$work/run$index
    [[ ${runs[index]} != *"|"* ]] || device=initiator
    wait_until 300 test -e "$out.code" || die "iwspec at port $port does not end"
    code=$(cat "$out.code")
    [ "$code" -le 1 ] || { cat "$out.err" >&2; die "iwspec ended with code $code at port $port"; }
    jq -r '.cases[] | select(.verdict == "fail" or .verdict == "inconclusive") | "    \(.id) \(.verdict): \(.reason)"' "$out.json"
    [ "$code" -eq 0 ] || failed=$((failed + 1))
    result=$(jq -r '.summary | "\(.pass) passed, \(.fail) failed, \(.inconclusive) inconclusive, \(.not_applicable) not applicable"' "$out.json")
    # On a busy machine a verdict may be inconclusive, but a pass never becomes a fail.
    if [ "$index" -eq 1 ] && ! jq -e -s '[.[0].cases, .[1].cases] | transpose | all(.[0].verdict == .[1].verdict or any(.[]; .verdict == "inconclusive"))' \
        "$work/run0.json" "$work/run1.json" >/dev/null; then
        result="$result; TWO RUNS DIFFER"
        failed=$((failed + 1))
    fi
    printf '%-6s %-9s %-9s %-10s %-66s %s\n' "$port" "$service" "$way" "$device" "$result" "$(cat "$out.seconds")"
done
[ "$failed" -eq 0 ] || die "iwspec: $failed runs have failures"
say "no failure after $SECONDS s"
