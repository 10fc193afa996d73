# Shared by the scripts beside it; sourced, not run.
# shellcheck shell=bash

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$repo/target}

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# Builds the release programs once and says where they are; with PROGRAMS=DIR takes those in it.
build_programs() {
    if [ -n "${PROGRAMS:-}" ]; then
        ddpd=$PROGRAMS/ddpd
        ddpctl=$PROGRAMS/ddpctl
        export ddpd ddpctl
        return
    fi
    say "building ddpd and ddpctl (release)"
    (cd "$repo" && cargo build --release --locked -q -p control --bins) || die "the build failed"
    ddpd=$target/release/ddpd
    ddpctl=$target/release/ddpctl
    export ddpd ddpctl
}

# real_file PATH MIB: a file of real content (the toolchain's own libraries, one after the other).
real_file() {
    local path=$1 bytes=$(($2 * 1024 * 1024)) sysroot
    sysroot=$(rustc --print sysroot)
    while [ "$(stat -c %s "$path" 2>/dev/null || echo 0)" -lt "$bytes" ]; do
        find "$sysroot/lib" /usr/lib -xdev -type f -size +256k -print0 2>/dev/null | sort -z |
            xargs -0 cat 2>/dev/null | head -c "$bytes" >>"$path" || true
    done
    truncate -s "$bytes" "$path"
}

# wait_until SECONDS COMMAND...: polls until the command succeeds; fails when time is up.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

# stop_pid PID: asks the process to end, and ends it when it does not within 10 s.
stop_pid() {
    local pid=$1
    kill -TERM "$pid" 2>/dev/null || return 0
    if ! wait_until 10 eval "! kill -0 $pid"; then
        kill -KILL "$pid" 2>/dev/null || true
    fi
    wait "$pid" 2>/dev/null || true
}
