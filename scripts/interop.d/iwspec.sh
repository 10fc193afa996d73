# Part of scripts/interop: the conformance test iwspec against ddpd, as responder and as initiator. On the af_packet port, the
# first service is tested twice. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, program and launched come from scripts/lib.sh, long from scripts/interop
#
#   namespace A                            namespace B
#   ddpd, 10.77.0.1                        iwspec over kernel sockets, 10.77.0.2, and on raw ports, 10.77.0.10 and above
#
# Kinds of port (IWSPEC_PORTS selects some of them):
#   af_packet, af_xdp   on a veth of A
#   shared              likewise af_packet, and the kernel of A has the same address (host = "tap")
#   tap                 ddpd runs in B, and creates the interface of B's kernel
#   vhost-user, memif   dpdk-testpmd forwards frames between this port and a TAP of B
#
# Without --long, all kinds but the last two are tested at the same time: af_packet with all runs, the others with three. With
# --long, each kind is tested alone with all runs.
#
# At most $lanes runs of a kind are concurrent, because a run mostly waits. Each run has its own regions, listener and raw address.

[ "$(id -u)" -eq 0 ] || die "iwspec: needs root, to make network namespaces"

root=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-iwspec.XXXXXX")
suites=()
cleanup_all() {
    local pid
    for pid in "${suites[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$root"
}
trap cleanup_all EXIT

# cleanup: ends the processes of one kind of port, and removes its namespaces.
cleanup() {
    local pid
    for pid in $(jobs -p); do [ "$pid" = "$ddpd_pid" ] || kill "$pid" 2>/dev/null || true; done
    [ -z "$program_pid" ] || kill -- "-$program_pid" 2>/dev/null || true
    for pid in $ddpd_pid $bridge_pid; do stop_pid "$pid"; done
    campaign_net_gone
}

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

# port_keys: prints the keys of the port.
port_keys() {
    case $kind in
    af_packet | shared) printf 'kind = "af_packet"\ndevice = "%s"\n' "$dev_a" ;;
    af_xdp) printf 'kind = "af_xdp"\ndevice = "%s"\n' "$dev_a" ;;
    tap) printf 'kind = "tap"\ndevice = "%s"\n' "$dev_b" ;;
    vhost-user) printf 'kind = "vhost-user"\nsocket = "%s"\n' "$work/port.sock" ;;
    memif) printf 'kind = "memif"\nsocket = "%s"\nrole = "server"\nid = 0\n' "$work/port.sock" ;;
    *) die "iwspec: unknown kind of port $kind" ;;
    esac
}

# bridge: starts dpdk-testpmd between ddpd's port and a TAP of B.
bridge() {
    local vdev
    case $kind in
    vhost-user) vdev="net_virtio_user0,path=$work/port.sock" ;;
    memif) vdev="net_memif0,socket=$work/port.sock,role=client,id=0,socket-abstract=no" ;;
    *) return 0 ;;
    esac
    # testpmd ends with its standard input.
    mkfifo "$work/stdin"
    sleep 1000000 >"$work/stdin" &
    # shellcheck disable=SC2016 # the inner shell expands its arguments
    launch "$work/bridge" ip netns exec "$net_b" sh -c 'input=$1; shift; exec "$@" <"$input"' sh "$work/stdin" \
        stdbuf -oL dpdk-testpmd --in-memory --no-pci -m 256 --single-file-segments --no-telemetry --vdev "$vdev" \
        --vdev "net_tap0,iface=$dev_b" -- --forward-mode=io --auto-start --total-num-mbufs=8192
    bridge_pid=$launched
    started 60 "$work/bridge" 'packet forwarding - ports' || die "dpdk-testpmd did not start"
}

# link_tap: gives the TAP in B its addresses.
link_tap() {
    wait_until 30 ip -n "$net_b" link show "$dev_b" || die "there is no TAP"
    ip netns exec "$net_b" ethtool -K "$dev_b" gro off >/dev/null
    ip -n "$net_b" address add 10.77.0.2/24 dev "$dev_b"
    ip -n "$net_b" link set "$dev_b" up
}

config() {
    cat <<END
name = "iwspec"

[workers]
count = 1
idle = "adaptive"

[[port]]
name = "wire"
$(port_keys)

[[interface]]
name = "front"
port = "wire"
addresses = ["10.77.0.1/24"]
$([ "$kind" != shared ] || printf 'host = "tap"\nlocal_ports = "20000-29999"')

[sctp]
udp_encapsulation = 9899

[programs]
socket = "$work/programs.sock"

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
    ip netns exec "$net_b" "$program" "${more[@]}" --service "$service" --json --pcapng "$out.packets" >"$out.json" 2>"$out.err" &
    children+=($!)
    trap 'kill "${children[@]}"; exit 1' TERM
    wait "$!" || code=$?
    unset 'children[-1]'
    [ "${#children[@]}" -eq 0 ] || kill "${children[@]}"
    echo $((SECONDS - began)) >"$out.seconds"
    echo "$code" >"$out.code"
}

# Runs of kinds that are tested at the same time as af_packet.
short_responders=("7471 region tcp" "7491 region raw" "7481 region sctp")

# Programs of local users, on the af_packet port with --long: port, service, words for iwspec, | and the shell command. An rping
# server ends if a connection fails before it is established.
verbs_programs=("7480 peer --jobs 1 --profile $repo/dataplane/iwspec/profiles/ddpd-verbs.toml|$root/iwspec-peer serve 7480"
    "7175 rping|while :; do rping -s -P -p 7175; sleep 0.05; done")

# verbs_suite INDEX: tests programs that ddpctl run starts on ddpd. Their runs have the numbers from INDEX on.
verbs_suite() {
    local index=$1 failed=0 words began library=${DDPD_VERBS_LIBRARY:-$target/verbs-library} port service more code
    if [ ! -e "$library/librdmacm.so.1" ] || ! command -v rping >/dev/null ||
        ! cc -O2 -o "$root/iwspec-peer" "$repo/dataplane/iwspec/peer/iwspec-peer.c" -lrdmacm -libverbs -lpthread; then
        echo "LEFT OUT: verbs programs need scripts/verbs-library, rping, libibverbs-dev and librdmacm-dev"
        return 0
    fi
    for words in "${verbs_programs[@]}"; do
        read -r port service more <<<"${words%%|*}"
        read -ra more <<<"$more"
        launch "$work/$service" ip netns exec "$net_a" env DDPD_VERBS_LIBRARY="$library" DDPD_PROGRAMS_SOCKET="$work/programs.sock" \
            setsid "$ddpctl" run -- sh -c "${words#*|}"
        program_pid=$launched
        wait_until 30 eval "'$ddpctl' --socket '$work/ddpd.sock' programs | grep -w $service" || die "no program for $service"
        sleep 1
        code=0 began=$SECONDS
        ip netns exec "$net_b" "$program" "10.77.0.1:$port" --service "$service" "${more[@]}" --json >"$work/run$index.json" \
            2>"$work/run$index.err" || code=$?
        echo $((SECONDS - began)) >"$work/run$index.seconds"
        echo "$code" >"$work/run$index.code"
        kill -- "-$program_pid" 2>/dev/null || true
        judge "$index" "$port $service verbs" || failed=$((failed + 1))
        index=$((index + 1))
    done
    return "$failed"
}

# suite KIND TAG: tests one kind of port. Prints a table. Runs in a subshell.
suite() {
    local index failed=0 fixed home=''
    kind=$1 campaign_tag=$2 work=$root/$1 ddpd_pid='' bridge_pid='' program_pid=''
    mkdir "$work"
    trap cleanup EXIT
    local runs=("${responders[@]}" "${initiators[@]}")
    [ -n "$long" ] || [ "$kind" = af_packet ] || runs=("${short_responders[@]}")
    campaign_net whole
    case $kind in
    tap | vhost-user | memif) ip -n "$net_b" link del "$dev_b" ;;
    *) home=$net_a ;;
    esac
    config >"$work/ddpd.toml"
    launch "$work/ddpd" ip netns exec "${home:-$net_b}" "$ddpd" --config "$work/ddpd.toml"
    ddpd_pid=$launched
    started 60 "$work/ddpd" '^ready' || die "ddpd did not start on $kind"
    bridge
    [ -n "$home" ] || link_tap

    fixed=$(jobs -pr | wc -l)
    for index in "${!runs[@]}"; do
        while [ "$(jobs -pr | wc -l)" -ge $((fixed + lanes)) ]; do sleep 0.1; done
        # The second run of a listener follows the first.
        [ "$index" -ne 1 ] || [ "${runs[0]}" != "${runs[1]}" ] || wait_until 300 test -e "$work/run0.code"
        test_run "$index" "${runs[index]}" &
    done
    for index in "${!runs[@]}"; do judge "$index" "${runs[index]}" || failed=$((failed + 1)); done
    [ -z "$long" ] || [ "$kind" != af_packet ] || verbs_suite "${#runs[@]}" || failed=$((failed + 1))
    [ "$failed" -eq 0 ]
}

# judge INDEX RUN: waits for the end of a run and prints its row. Fails if a case fails, or if two equal runs differ.
judge() {
    local port service way device=responder out=$work/run$1 code result
    read -r port service way _ <<<"${2%%|*}"
    [[ $2 != *"|"* ]] || device=initiator
    wait_until 300 test -e "$out.code" || die "iwspec at port $port of $kind does not end"
    code=$(cat "$out.code")
    [ "$code" -le 1 ] || { cat "$out.err" >&2; die "iwspec ended with code $code at port $port of $kind"; }
    jq -r '.cases[] | select(.verdict == "fail" or .verdict == "inconclusive") | "    \(.id) \(.verdict): \(.reason)"' "$out.json"
    result=$(jq -r '.summary | "\(.pass) passed, \(.known) known, \(.fail) failed, \(.inconclusive) inconclusive, \(.not_applicable) not applicable"' "$out.json")
    # On a busy machine a verdict may be inconclusive, but a pass never becomes a fail.
    if [ "$1" -eq 1 ] && [ "$2" = "${responders[0]}" ] && ! jq -e -s '[.[0].cases, .[1].cases] | transpose
            | all(.[0].verdict == .[1].verdict or any(.[]; .verdict == "inconclusive"))' "$work/run0.json" "$work/run1.json" >/dev/null; then
        result="$result; TWO RUNS DIFFER"
        code=1
    fi
    printf '%-10s %-6s %-9s %-9s %-10s %-75s %s\n' "$kind" "$port" "$service" "$way" "$device" "$result" "$(cat "$out.seconds")"
    return "$code"
}

build_programs
campaign_program iwspec
kinds=(af_packet af_xdp shared tap)
[ -z "$long" ] || kinds+=(vhost-user memif)
[ -z "${IWSPEC_PORTS:-}" ] || read -ra kinds <<<"$IWSPEC_PORTS"

bad=''
printf '%-10s %-6s %-9s %-9s %-10s %-75s %s\n' KIND PORT SERVICE WAY DEVICE RESULT SECONDS
for n in "${!kinds[@]}"; do
    lanes=1
    [ -z "$long" ] && [ "${kinds[n]}" != af_packet ] || lanes=4
    (suite "${kinds[n]}" "p$n") >"$root/${kinds[n]}.table" 2>&1 &
    suites+=($!)
    [ -z "$long" ] || wait "${suites[n]}" || true
done
for n in "${!kinds[@]}"; do
    wait "${suites[n]}" || bad="$bad ${kinds[n]}"
    cat "$root/${kinds[n]}.table"
done
suites=()
[ -z "$bad" ] || die "iwspec: not good on$bad"
say "no failure after $SECONDS s"
