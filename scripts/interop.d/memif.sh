# Part of scripts/interop: two processes of one host, joined by a memif. Sourced. No root, no hugepages.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, mib, ddpd and ddpctl come from scripts/interop and scripts/lib.sh
#
#   ddpd a (memif server, 10.78.0.1, region inbox-a) ── shared memory ── ddpd b (memif client, 10.78.0.2, inbox-b)
#
# Files are transferred in both directions. Then each side is killed by SIGKILL during a transfer, once while it receives
# and once while it sends. The other side must report the loss, free all resources and serve the process that replaces the
# killed one.

# Size of the file of an interrupted transfer, which must last until the kill, MiB.
kill_mib=$((mib < 256 ? 256 : mib))
# shellcheck source=scripts/lib-memif.sh
. "$repo/scripts/lib-memif.sh"

# Seconds in which a loss must be reported and all resources freed; seconds without progress after which a transfer has stalled.
loss_limit=5 stall_limit=30

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-memif.XXXXXX")
declare -A pid=([a]='' [b]='') address=([a]=10.78.0.1 [b]=10.78.0.2) other=([a]=b [b]=a) role=([a]=server [b]=client)
put_pid=''
transfers=0

cleanup() {
    for process in $put_pid ${pid[a]} ${pid[b]}; do stop_pid "$process"; done
    rm -rf "$work"
}
trap cleanup EXIT

api() { # SIDE ddpctl's arguments...
    local side=$1
    shift
    timeout "$stall_limit" "$ddpctl" --socket "$work/$side.sock" "$@"
}

row() { # CASE CHECK RESULT [DETAIL]
    rows=$((rows + 1))
    [ "$3" = ok ] || bad_row "$@"
    printf '%-30s %-26s %-7s %s\n' "$1" "$2" "$3" "${4:-}"
}

seconds_since() { # MICROSECONDS
    printf '%d.%02d s' $(((${EPOCHREALTIME/./} - $1) / 1000000)) $(((${EPOCHREALTIME/./} - $1) / 10000 % 100))
}

start() { # SIDE
    # Regions large enough for the files.
    memif_config "$1" "$kill_mib" >"$work/$1.toml"
    start_side "$1"
}

# links_are_up: succeeds if both links stay up for half a second. A client that connects to a server during its start reconnects.
links_are_up() {
    for _ in 1 2 3 4 5 6; do
        port_is_up a && port_is_up b || return 1
        sleep 0.1
    done
}

port_is_up() { api "$1" --json ports | jq -e '.[0].up' >/dev/null; }
newest_event() { api "$1" --json events | tail -n 1 | jq .seq; }

# gauges SIDE: prints the gauges of resources that a stream uses, and the number of free packet buffers.
gauges() {
    api "$1" --json stats | jq -c '[.gauges | .streams, .jobs, .held_bytes, .kept_bytes, .unlocatable_bytes],
        .ports[0].counters.buffers_free'
}

# is_free SIDE GAUGES: succeeds if no stream exists, no region is in use, and gauges and free packet buffers have their earlier
# values GAUGES. Up to 32 buffers may differ, because a receive queue holds empty ones.
is_free() {
    [ "$(api "$1" --json streams list | jq length)" = 0 ] &&
        api "$1" --json regions list | jq -e 'all(.bound_to == null)' >/dev/null &&
        printf '%s\n' "$2" "$(gauges "$1")" |
        jq -se '.[0] == .[2] and (.[1] - .[3] | fabs) <= 32' >/dev/null
}

# begin_put FROM FILE: starts a transfer to the other side.
begin_put() {
    local to=${other[$1]}
    "$ddpctl" --socket "$work/$1.sock" --json put "$2" "tcp://${address[$to]}:7471/inbox-$to" \
        >"$work/put.json" 2>"$work/put.err" &
    put_pid=$!
}

# end_put FROM: waits for the transfer while it makes progress. Returns its exit code, or 124 if it has stalled.
end_put() {
    local seen='' now moved=$SECONDS code=0
    while kill -0 "$put_pid" 2>/dev/null; do
        now=$(api "$1" --json jobs list 2>/dev/null | jq -c 'last | [.id, .state, .acknowledged]' || true)
        [ "$now" = "$seen" ] || moved=$SECONDS seen=$now
        if [ $((SECONDS - moved)) -ge "$stall_limit" ]; then
            stop_pid "$put_pid"
            put_pid=''
            return 124
        fi
        sleep 0.05
    done
    wait "$put_pid" || code=$?
    put_pid=''
    return "$code"
}

# transfer CASE FROM: puts a file to the other side, and compares the region and the region's file with it, byte by byte.
transfer() {
    local from=$2 to=${other[$2]} bytes=$((mib * 1024 * 1024)) code=0 result=ok detail file
    # Two different files alternate, so that a transfer that places nothing is detected.
    transfers=$((transfers + 1))
    file=$work/file$((transfers / 2 % 2)).bin
    begin_put "$from" "$file"
    end_put "$from" || code=$?
    detail="$mib MiB"
    if [ "$code" -ne 0 ]; then
        result=FAILED detail="exit code $code: $(tr '\n' ' ' <"$work/put.err")"
    elif ! api "$to" regions read "inbox-$to" --length "$bytes" --output - | cmp -s "$file" -; then
        result=FAILED detail="the region differs from the file"
    elif ! wait_until "$stall_limit" cmp -s -n "$bytes" "$file" "$work/inbox-$to.bin"; then
        result=FAILED detail="the region's file differs from the file"
    else
        detail="$mib MiB at $(jq -r '.gbit_per_s * 100 | round / 100' "$work/put.json") Gbit/s"
    fi
    row "$1" "file $from to $to" "$result" "$detail"
}

# loss_case VICTIM SENDER: kills the victim while the sender sends, checks the other side, and starts a replacement.
loss_case() {
    local victim=$1 sender=$2 survivor=${other[$1]} receiver=${other[$2]} name after seen killed
    if [ "$victim" = "$sender" ]; then name="${role[$1]} killed, sending"; else name="${role[$1]} killed, receiving"; fi
    after=$(gauges "$survivor")
    seen=$(newest_event "$survivor")
    begin_put "$sender" "$work/long.bin"
    # The transfer is in progress once eight messages have arrived.
    api "$receiver" events --follow --after "$(newest_event "$receiver")" --count 8 >/dev/null || true
    kill -KILL "${pid[$victim]}"
    killed=${EPOCHREALTIME/./}
    wait "${pid[$victim]}" 2>/dev/null || true
    pid[$victim]=''
    check_loss "$name" "$survivor" "$seen" "$killed"
    check_put "$name" "$victim" "$sender"
    if wait_until "$loss_limit" is_free "$survivor" "$after"; then
        row "$name" "everything freed" ok "streams, regions, bytes held, packet buffers"
    else
        row "$name" "everything freed" FAILED "before: $(tr '\n' ' ' <<<"$after"), now: $(gauges "$survivor" | tr '\n' ' ')"
    fi
    check_nobody "$name" "$survivor"
    killed=${EPOCHREALTIME/./}
    start "$victim"
    if wait_until "$stall_limit" links_are_up; then
        row "$name" "another takes its place" ok "the link is up after $(seconds_since "$killed")"
    else
        row "$name" "another takes its place" FAILED "the link stays down"
    fi
    transfer "$name" "$survivor"
    transfer "$name" "$victim"
}

# check_loss CASE SURVIVOR SEEN KILLED: checks that events after SEEN report the link's loss as the reason for the stream's end.
check_loss() {
    local delay
    lost() {
        api "$1" --json events --after "$2" | jq -se '[.[] | select(.event == "stream_closed")] as $closed
            | any(.event == "link_changed" and .up == false) and ($closed | length > 0)' >/dev/null &&
            api "$1" --json events --after "$2" | jq -sr '[.[] | select(.event == "stream_closed")][0].reason' >"$work/reason"
    }
    if ! wait_until "$loss_limit" lost "$2" "$3"; then
        row "$1" "loss reported" FAILED "not within $loss_limit s"
        return
    fi
    delay=$(seconds_since "$4")
    if grep -q 'link of port' "$work/reason"; then
        row "$1" "loss reported" ok "after $delay: $(cat "$work/reason")"
    else
        row "$1" "loss reported" FAILED "unclear: $(cat "$work/reason")"
    fi
}

# check_put CASE VICTIM SENDER: checks that ddpctl reports the failure of the transfer.
check_put() {
    local code=0 message
    end_put "$3" || code=$?
    message=$(jq -r .message "$work/put.err" 2>/dev/null || cat "$work/put.err")
    if [ "$code" -eq 0 ]; then
        row "$1" "put fails" FAILED "it was over before the kill: make the file longer with --mib"
    elif [ "$code" -eq 124 ]; then
        row "$1" "put fails" FAILED "it hangs"
    elif [ "$2" = "$3" ] || [[ $message == *"link of port"* ]]; then
        row "$1" "put fails" ok "exit code $code: $message"
    else
        row "$1" "put fails" FAILED "exit code $code, unclear: $message"
    fi
}

# check_nobody CASE SURVIVOR: checks that a transfer fails, and does not hang, without a process at the other end.
check_nobody() {
    local code=0 began=${EPOCHREALTIME/./}
    begin_put "$2" "$work/file0.bin"
    end_put "$2" || code=$?
    if [ "$code" -ne 0 ] && [ "$code" -ne 124 ]; then
        row "$1" "put to nobody fails" ok "after $(seconds_since "$began"): $(jq -r .message "$work/put.err")"
    else
        row "$1" "put to nobody fails" FAILED "exit code $code"
    fi
}

build_programs
say "making files of $mib MiB"
real_file "$work/file0.bin" "$mib"
# A sparse file, whose transfer is not compared.
truncate -s "${kill_mib}M" "$work/long.bin"
# Every byte differs from that of the first file.
tr '\000-\377' '\001-\377\000' <"$work/file0.bin" >"$work/file1.bin"

printf '%-30s %-26s %-7s %s\n' CASE CHECK RESULT ''
start a
start b
wait_until "$stall_limit" port_is_up a || die "the two do not find each other"
transfer "both serve" a
transfer "both serve" b
loss_case b a
loss_case b b
loss_case a b
loss_case a a
end_rows
say "all $rows rows are good"
