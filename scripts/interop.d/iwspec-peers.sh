# Part of scripts/interop: the conformance test iwspec against other implementations. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, program and launched come from scripts/lib.sh and its users
#
#   namespace:  iwspec (10.77.0.3; raw port 10.77.0.9) and usrsctp (10.77.0.3) ── bridge ── tap ── guest with siw and Linux's SCTP (10.77.0.2)
#
# --short: the start-up of siw in both roles, once, and SCTP. Otherwise each target of siw runs twice: iwspec-peer with all cases,
# the other programs with the start-up. IWSPEC_TARGETS, IWSPEC_CASES and IWSPEC_RUNS select others.
#
# Parts (IWSPEC_PARTS):
#   siw    the guest's soft iWARP in both roles. The profile siw.toml has its known deviations: a row is bad with any other
#          failure, with more than one and more than a twentieth of inconclusive verdicts, or if a second run has other verdicts
#   sctp   SCTP of the guest's kernel, in UDP and in IP on iwspec's raw port, in both roles, and usrsctp in UDP, below the sessions
#          of scripts/sctp-peer: the cases that these stacks decide (associations, streams, PPIDs, the U flag)
#
# Each target is a program that is started anew in the guest. The program may end if a connection ends in a way that it does not
# expect; the shell in the guest then starts it again.

[ "$(id -u)" -eq 0 ] || die "iwspec-peers: needs root, for a network namespace and a tap"

suite=iwspec-peers
# shellcheck source=scripts/interop.d/guest.sh
. "$repo/scripts/interop.d/guest.sh"

parts=${IWSPEC_PARTS:-siw sctp}
mtus=1500
if [ -n "${short:-}" ]; then
    IWSPEC_TARGETS="peer-server peer-client" IWSPEC_CASES="mpa/startup" IWSPEC_RUNS=1
fi
back=10.77.0.2 here=10.77.0.3
profile=$repo/dataplane/iwspec/profiles/siw.toml
results_dir=$repo/target/iwspec-peers
# Targets of siw: name, service, role of the device, port, and the shell command in the guest.
targets=(
    "rping-server|rping|responder|7174|rping -s -P -p 7174"
    "peer-server|peer|responder|7480|iwspec-peer serve 7480"
    "rping-client|rping|initiator|7175|timeout 45 rping -c -a $here -p 7175 -C 1"
    "peer-client|peer|initiator|7481|iwspec-peer connect $here 7481"
    "ib_write_bw-server|perftest|responder|18515|timeout 45 ib_write_bw -R -F -p 18515"
    "ib_read_bw-server|perftest|responder|18516|timeout 45 ib_read_bw -R -F -p 18516"
    "ib_send_bw-server|perftest|responder|18517|timeout 45 ib_send_bw -R -F -p 18517"
    "ib_write_bw-client|perftest|initiator|18518|timeout 45 ib_write_bw -R -F -p 18518 $here"
    "ib_read_bw-client|perftest|initiator|18519|timeout 45 ib_read_bw -R -F -p 18519 $here"
    "ib_send_bw-client|perftest|initiator|18520|timeout 45 ib_send_bw -R -F -p 18520 $here"
)

row() { # CASE EXPECTED SEEN RESULT
    rows=$((rows + 1))
    [ "$4" = ok ] || bad_row "$@"
    printf '%-34s %-22s %-60s %s\n' "$1" "$2" "$3" "$4"
    jq -cn --arg case "$1" --arg expected "$2" --arg seen "$3" --arg result "$4" \
        '{case: $case, expected: $expected, seen: $seen, good: ($result == "ok")}' >>"$work/rows.json"
}

make_net() {
    make_bridge
    in_ns ip link set lo up
    in_ns sh -c 'echo 0 >/proc/sys/net/ipv6/conf/br0/accept_dad'
    links_up
    in_ns ip link set br0 mtu 1500
    in_ns ip address add "$here/24" dev br0
}

guest_prepare() {
    guest_run 30 "ip link set eth0 mtu 1500; rdma link show | grep -q siw0" >/dev/null || guest_died || die "the guest has no siw"
}

# device_begin TAG COMMAND PORT ROLE: starts a program in the guest, again and again. siw can lose the event of a FIN, and its
# program then waits for ever: a connection that stays in CLOSE_WAIT ends the program.
device_begin() {
    local port programs="rping iwspec-peer ib_write_bw ib_read_bw ib_send_bw"
    port=$(printf %04X "$3")
    cat >"$guest_dir/share/$1.watch" <<END
while sleep 3; do
    at=\$(grep ':$port 08 \|:$port .* 08 ' /proc/net/tcp | awk '{ print \$2, \$3, \$4 }')
    [ -z "\$at" ] || [ "\$at" != "\$before" ] || killall -9 $programs
    before=\$at
done
END
    guest_begin "$1" 900 "echo \$\$ >/tmp/device.pid; sh /host/$1.watch 2>/dev/null & echo \$! >/tmp/watch.pid
while :; do $2; sleep 0.05; done"
    [ "$4" = responder ] || return 0
    # The port in state LISTEN.
    guest_run 30 "until grep -q ':$(printf %04X "$3") .* 0A ' /proc/net/tcp; do sleep 0.1; done" >/dev/null || true
}

device_end() { # TAG
    guest_run 20 "kill \$(cat /tmp/device.pid /tmp/watch.pid); killall -9 rping iwspec-peer ib_write_bw ib_read_bw ib_send_bw" >/dev/null || true
    guest_end "$1" 20 >"$work/device.out" 2>&1 || true
}

# run_iwspec OUTPUT ARGUMENTS...: runs iwspec while the guest is alive. Returns its exit code, or 125 if the guest has died.
run_iwspec() {
    local output=$1 code=0
    shift
    launch "$work/iwspec" ip netns exec "$ns" "$program" "$@" --json
    serve_pid=$launched
    if ! wait_until 900 eval "guest_died || ! kill -0 $serve_pid" || guest_died; then
        stop_pid "$serve_pid"
        serve_pid=''
        cp "$work/iwspec.out" "$output"
        return 125
    fi
    wait "$serve_pid" || code=$?
    serve_pid=''
    cp "$work/iwspec.out" "$output"
    return "$code"
}

# verdicts FILE: prints the verdict of each case.
verdicts() { jq -c '.cases[] | [.id, .verdict]' "$1"; }

# judge NAME FILE CODE: the row of one run.
judge() {
    local seen new
    if [ "$3" -gt 1 ]; then
        row "$1" "no new failure" "exit code $3" "BAD: $(tail -n 2 "$work/iwspec.err" | tr '\n' ' ' | cut -c1-200)"
        return
    fi
    seen=$(jq -r '.summary | "\(.pass) pass, \(.known) known, \(.fail) fail, \(.inconclusive) inconclusive"' "$2")
    new=$(jq -r '[.cases[] | select(.verdict == "fail") | .id] | join(" ")' "$2")
    if [ -n "$new" ]; then
        row "$1" "no new failure" "$seen" "BAD: $new"
    elif jq -e '.summary | .inconclusive > 1 and .inconclusive * 20 > .pass + .known' "$2" >/dev/null; then
        row "$1" "no new failure" "$seen" "BAD: no verdict on too many cases"
    else
        row "$1" "no new failure" "$seen" ok
    fi
}

# test_target NAME SERVICE ROLE PORT COMMAND RUNS CASES...: the rows of one target.
test_target() {
    local name=$1 service=$2 role=$3 port=$4 command=$5 runs=$6 n code where
    shift 6
    where=("$back:$port")
    [ "$role" = responder ] || where=(--listen "$here:$port")
    for n in $(seq "$runs"); do
        code=0
        device_begin "$name-$n" "$command" "$port" "$role"
        run_iwspec "$results_dir/$name-$n.json" "${where[@]}" "$@" --service "$service" --settle 200 --jobs 1 \
            --profile "$profile" || code=$?
        device_end "$name-$n"
        [ "$code" -ne 125 ] || return 0
        judge "$name, run $n" "$results_dir/$name-$n.json" "$code"
    done
    [ "$runs" -gt 1 ] || return 0
    # A busy machine may cost a verdict, but never changes one.
    local differing lost
    differing=$(differing "$name" 'all(.[]; .verdict != "inconclusive")') || differing=unreadable
    lost=$(differing "$name" 'any(.[]; .verdict == "inconclusive")') || lost=unreadable
    if [ -z "$differing" ]; then row "$name, both runs" "the same verdicts" "the same${lost:+, once inconclusive: $lost}" ok
    else row "$name, both runs" "the same verdicts" "other verdicts" "BAD: $differing"; fi
}

# differing NAME CONDITION: prints the cases with different verdicts in both runs whose pair meets the condition.
differing() {
    jq -rs "[.[0].cases, .[1].cases] | transpose | map(select(.[0].verdict != .[1].verdict and (. | $2)) | .[0].id)
        | join(\" \")" "$results_dir/$1"-[12].json
}

# siw_part: the rows of the guest's soft iWARP.
siw_part() {
    local words name service role port command cases
    for words in "${targets[@]}"; do
        IFS='|' read -r name service role port command <<<"$words"
        case " ${IWSPEC_TARGETS:-$name} " in
        *" $name "*) ;;
        *) continue ;;
        esac
        read -ra cases <<<"${IWSPEC_CASES:-}"
        # Programs other than iwspec-peer reach few additional cases.
        if [ "$service" != peer ] && [ "${#cases[@]}" -eq 0 ]; then cases=(mpa/startup); fi
        guest_attempt test_target "$name" "$service" "$role" "$port" "$command" "${IWSPEC_RUNS:-2}" "${cases[@]}"
    done
}

# --- SCTP ---

# Cases of the SCTP stack: the others test the sessions of scripts/sctp-peer, which only serve as a test peer.
sctp_cases=(sctp/5.1-1 sctp/8-1 sctp/11.3-1 sctp/5.2-1 sctp/5.2-2 sctp/10-1 sctp/6.2-1 sctp/6.2-2 sctp/5.2.1-1 sctp/6.1-1
    sctp/6.1-8 sctp/5.2.3-1 sctp/5.2.3-3)
# Cases of the SCTP stack of a device that opens the association.
active_cases=(sctp/5.1-10 sctp/8-10 sctp/6.2-10 sctp/5.2.3-10 sctp/5.2.3-11)
sctp_words="rdmap=1 size=65536 count=10000" in_udp="encapsulation=9899"
# Address of iwspec's raw port.
raw=10.77.0.9

# test_sctp NAME ARGUMENTS...: the row of a stack whose program runs.
test_sctp() {
    local name=$1 code=0
    shift
    run_iwspec "$results_dir/$name.json" --transport sctp --jobs 1 "$@" || code=$?
    [ "$code" -eq 125 ] || judge "$name" "$results_dir/$name.json" "$code"
}

# guest_sctp WORDS...: runs sctp-peer in the guest, again and again. Ends the one that ran before.
guest_sctp() {
    guest_run 20 "[ ! -e /tmp/sctp.pid ] || kill \$(cat /tmp/sctp.pid); killall -9 sctp-peer-kernel; true" >/dev/null || true
    sctp_runs=$((${sctp_runs:-0} + 1))
    guest_begin "sctp$sctp_runs" 300 "echo \$\$ >/tmp/sctp.pid
while :; do /host/sctp-peer-kernel $*; sleep 0.05; done"
    [[ "$*" != *serve* ]] || wait_until 30 grep -q listening "$guest_dir/share/sctp$sctp_runs.out" || true
}

kernel_sctp() {
    guest_run 20 "modprobe sctp" >/dev/null || guest_died || die "the guest has no SCTP"
    guest_sctp "$sctp_words $in_udp serve $back 7600"
    test_sctp kernel-sctp-in-udp "$back:7600" "${sctp_cases[@]}" --service region
    guest_sctp "$sctp_words serve $back 7600"
    test_sctp kernel-sctp "$back:7600" "${sctp_cases[@]}" --service region --raw "br0,$raw"
    guest_sctp "rdmap=1 $in_udp connect $here 7601 open:0 closed:0"
    test_sctp kernel-sctp-in-udp-active --listen "$here:7601" "${active_cases[@]}" --service sink
    guest_sctp "rdmap=1 connect $raw 7601 open:0 closed:0"
    test_sctp kernel-sctp-active --listen "$raw:7601" "${active_cases[@]}" --service sink --raw "br0,$raw"
}

usrsctp() {
    # shellcheck disable=SC2086 # words
    launch "$work/usrsctp" ip netns exec "$ns" timeout 300 "$work/sctp-peer-usrsctp" $sctp_words $in_udp serve "$here" 7600
    vhost_pid=$launched
    started 30 "$work/usrsctp" listening || die "usrsctp does not listen"
    test_sctp usrsctp-in-udp "$here:7600" "${sctp_cases[@]}" --service region
    stop_pid "$vhost_pid"
    vhost_pid=''
}

sctp_part() {
    "$repo/scripts/sctp-peer/build.sh" "$work"
    install -m 755 "$work/sctp-peer-kernel" "$guest_dir/share/"
    versions+=$(printf '\nusrsctp %s' "$(dpkg-query -W -f '${Version}' libusrsctp-dev)")
    guest_attempt kernel_sctp
    usrsctp
}

campaign_program iwspec
mkdir -p "$results_dir"
rm -f "$results_dir"/*.json
versions=$(cat "$("$repo/scripts/siw-guest/build.sh")/versions")
make_net
# An Oops stops the guest, so that it is seen. SCTP over UDP of the guest also needs an IPv6 socket.
GUEST_WORDS=oops=panic GUEST_NO_IPV6=0
guest_boot "$ns" guest0 "$back/24" 1500
guest_prepare
printf '%-34s %-22s %-60s %s\n' TARGET EXPECTED SEEN RESULT
for part in $parts; do "${part}_part"; done
finish "$versions"
