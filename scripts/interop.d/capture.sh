# Part of scripts/interop: captures the frames of an interface in the namespace $ns. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # work, ns and launched come from the suite and scripts/lib.sh

# Process and file of the capture; $capture_pid is empty if there is none.
capture_pid='' capture_file=''

# start_capture FILE ARGUMENTS...: runs tcpdump, which captures to FILE, with these arguments. Its buffer (64 MiB) is larger than a
# capture, so that no frame is lost when tcpdump gets no CPU for a while.
start_capture() {
    capture_file=$1
    shift
    # The recorded pid must be that of tcpdump, so this does not call a function that runs `ip netns exec`.
    launch "$work/tcpdump" ip netns exec "$ns" tcpdump --immediate-mode -B 65536 -q -U -w "$capture_file" "$@"
    capture_pid=$launched
    started 30 "$work/tcpdump" "listening on" || die "tcpdump did not start"
}

# stop_capture: ends tcpdump once it has written all frames, because it discards the others when it ends.
stop_capture() {
    local size=''
    until [ "$size" = "$(stat -c %s "$capture_file")" ]; do
        size=$(stat -c %s "$capture_file")
        sleep 0.3
    done
    stop_pid "$capture_pid"
    capture_pid=''
}
