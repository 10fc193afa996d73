# Controls the guest of scripts/interop from the host. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # the sourcing script sets repo and work
#
#   guest_boot NS TAP IP/LEN MTU     boots the guest (TCG, about 5 s) with the network interface TAP in namespace NS. With
#                                    GUEST_VHOST=SOCKET the guest has a second interface, eth1, on this vhost-user backend
#   guest_start ..., guest_ready     the same in two steps, so that two guests boot at the same time
#   guest_run SECONDS COMMAND        runs a shell command in the guest, prints its output, returns its status
#   guest_begin TAG SECONDS COMMAND  starts a command in the background; each TAG is used once
#   guest_end TAG SECONDS            waits for the command, prints its output, returns its status
#   guest_halt                       ends the guest
#   guest_use NAME                   selects the guest of the following calls, in suites with several guests
#   guest_died                       succeeds if the guest has ended by itself
#   guest_attempt COMMAND...         runs a part of a suite. If the guest dies meanwhile, boots another guest and repeats the
#                                    part, without the rows of the first attempt
#
# A command that exceeds its time is ended in the guest and has status 124; after a guest's death the status is 125.
# Set before guest_boot: GUEST_IMAGE (initrd), GUEST_MEMORY (768M), GUEST_MAC (52:54:00:77:00:02), GUEST_WORDS (for the kernel's
# command line).
# Linux's SCTP once panicked in the emulated machine with usrsctp as its peer. The console of a dead guest is printed, and
# kept in target/guest-console-N. A suite fails after more than two deaths.

guest_dir='' guest_pid='' guest_bell='' guest_runs=0 guest_deaths=0 guest_args=() guest_name=''
declare -A guest_others=()

guest_use() {
    guest_others[_$guest_name]="$guest_dir|$guest_pid|$guest_bell"
    guest_name=$1
    IFS='|' read -r guest_dir guest_pid guest_bell <<<"${guest_others[_$1]:-||}"
}

guest_boot() {
    guest_start "$@"
    guest_ready
}

guest_start() {
    local ns=$1 tap=$2 address=$3 mtu=$4 image
    guest_args=("$@")
    image=$("$repo/scripts/siw-guest/build.sh" "${GUEST_IMAGE:-initrd}") || die "the image of the guest cannot be built"
    guest_dir=$work/guest${guest_name:+-$guest_name}
    mkdir -p "$guest_dir/share"
    # Files of an earlier guest.
    rm -f "$guest_dir"/bell.* "$guest_dir/share/ready" "$guest_dir"/share/*.{rc,out,part,sh,command}
    mkfifo "$guest_dir/bell.in" "$guest_dir/bell.out"
    # Without offloads, so that the guest sends segments with checksums.
    local plain=csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off
    plain+=,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off
    # no_timer_check: with an emulated timer on a busy host the check can fail, and the kernel would stop.
    local words="console=ttyS0 quiet panic=-1 no_timer_check mitigations=off audit=0 ipv6.disable=${GUEST_NO_IPV6:-1}"
    words+=" GUEST_IP=$address GUEST_MTU=$mtu ${GUEST_WORDS:-}"
    local extra=()
    if [ -n "${GUEST_VHOST:-}" ]; then
        # Shared memory, and all offloads of the backend. vectors=0 disables MSI-X, because QEMU 7.2 without KVM crashes when a
        # vhost device with MSI-X starts.
        extra=(-object "memory-backend-memfd,id=ram,size=${GUEST_MEMORY:-768M},share=on" -machine memory-backend=ram
            -chardev "socket,id=vhost,path=$GUEST_VHOST,reconnect=1" -netdev vhost-user,id=vhost,chardev=vhost
            -device virtio-net-pci,netdev=vhost,mac=52:54:00:78:00:02,host_mtu=9000,vectors=0,romfile=)
    fi
    ip netns exec "$ns" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 1 -m "${GUEST_MEMORY:-768M}" \
        -nodefaults -no-reboot -display none -serial "file:$guest_dir/console" \
        -kernel "$image/vmlinuz" -initrd "$image/${GUEST_IMAGE:-initrd}" -append "$words" \
        -netdev "tap,id=net,ifname=$tap,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=net,mac=${GUEST_MAC:-52:54:00:77:00:02},host_mtu=9000,romfile=,$plain" \
        -device virtio-serial-pci -chardev "pipe,id=bell,path=$guest_dir/bell" \
        -device virtserialport,chardev=bell,name=bell \
        -fsdev "local,id=share,path=$guest_dir/share,security_model=none" \
        -device virtio-9p-pci,fsdev=share,mount_tag=host "${extra[@]}" >"$guest_dir/qemu.log" 2>&1 </dev/null &
    guest_pid=$!
    exec {guest_bell}<>"$guest_dir/bell.in"
}

guest_ready() {
    local deadline=$((SECONDS + 240))
    until [ -s "$guest_dir/share/ready" ]; do
        if ! kill -0 "$guest_pid" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
            cat "$guest_dir/qemu.log" "$guest_dir/console" >&2
            die "the guest did not boot"
        fi
        sleep 0.05
    done
    say "the guest is up after $(cat "$guest_dir/share/ready") s"
}

guest_begin() {
    local tag=$1 limit=$2 command=$3
    # Removes output and exit code of an earlier command with this tag.
    rm -f "$guest_dir/share/$tag".{rc,out,part}
    printf '%s\n' "$command" >"$guest_dir/share/$tag.command"
    # busybox's timeout returns the status of the ended command (143), not 124.
    cat >"$guest_dir/share/$tag.sh" <<END
timeout $limit sh /host/$tag.command
code=\$?
[ \$code -ne 143 ] || code=124
exit \$code
END
    echo "$tag" >&"$guest_bell"
}

guest_end() {
    local share=$guest_dir/share tag=$1 deadline=$((SECONDS + $2 + 10)) code
    until [ -e "$share/$tag.rc" ]; do
        ! guest_died || return 125
        if [ "$SECONDS" -ge "$deadline" ]; then
            cat "$share/$tag.out" 2>/dev/null || true
            return 124
        fi
        sleep 0.02
    done
    code=$(cat "$share/$tag.rc")
    cat "$share/$tag.out"
    return "$code"
}

guest_run() {
    guest_runs=$((guest_runs + 1))
    # A subshell does not increment guest_runs of its parent, so the tag also has the pid.
    local tag=run$guest_runs.$BASHPID
    guest_begin "$tag" "$1" "$2"
    guest_end "$tag" "$1"
}

guest_died() { [ -n "$guest_pid" ] && ! kill -0 "$guest_pid" 2>/dev/null; }

guest_attempt() {
    local rows_before=$rows bad_before=${#bad_rows[@]}
    touch "$work/rows.json"
    cp "$work/rows.json" "$work/rows.before"
    "$@"
    while guest_died; do
        guest_report
        [ "$guest_deaths" -le 2 ] || die "the guest's kernel died $guest_deaths times"
        guest_halt
        guest_boot "${guest_args[@]}"
        # Defined by the suite.
        guest_prepare
        say "again: $*"
        rows=$rows_before bad_rows=("${bad_rows[@]:0:bad_before}")
        cp "$work/rows.before" "$work/rows.json"
        "$@"
    done
}

# guest_report: counts a death of the guest, saves its console and prints the relevant lines.
guest_report() {
    local console
    guest_deaths=$((guest_deaths + 1))
    console=$target/guest-console-$guest_deaths
    mkdir -p "$target"
    cp "$guest_dir/console" "$console"
    say "THE GUEST'S KERNEL DIED (time $guest_deaths; its console is in $console):"
    grep -a -m 12 -E 'BUG|Oops|RIP:|Comm:|panic|\[sctp\]|\[siw\]' "$console" | cut -c1-160 >&2 || tail -n 5 "$console" >&2
}

guest_halt() {
    [ -z "$guest_pid" ] || stop_pid "$guest_pid"
    guest_pid=''
    [ -z "$guest_bell" ] || exec {guest_bell}>&-
    guest_bell=''
}
