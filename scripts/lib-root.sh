# Unpacks a bare Debian root and installs packages in it. Sourced after lib.sh, not run. The root's archive, the packages'
# index and the downloads are kept in target/package-test.
# shellcheck shell=bash
# shellcheck disable=SC2154 # the sourcing script sets run: its own directory, with the packages in $run/packages
#
#   root_archive                    builds the bare root's archive unless it exists; call it first
#   new_root ROOT                   unpacks the archive
#   chrooted ROOT COMMAND...        runs a command in ROOT
#   apt ROOT ARGUMENT...            runs apt-get in ROOT
#
# DEBIAN_MIRROR=URL, DEBIAN_SUITE=NAME (bookworm).

root_work=$target/package-test
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
suite=${DEBIAN_SUITE:-bookworm}

root_archive() {
    command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install --no-install-recommends mmdebstrap"
    mkdir -p "$root_work/archives/partial"
    [ ! -f "$root_work/$suite.tar" ] || return 0
    say "== a bare root of $suite"
    mmdebstrap --quiet --variant=apt --include=ca-certificates "$suite" "$root_work/$suite.new.tar" "deb $mirror $suite main" ||
        die "mmdebstrap failed"
    mv "$root_work/$suite.new.tar" "$root_work/$suite.tar"
}

new_root() {
    mkdir "$1"
    tar -xf "$root_work/$suite.tar" -C "$1"
    # Release files of a mirror's snapshots have expired.
    echo 'Acquire::Check-Valid-Until "false";' >"$1/etc/apt/apt.conf.d/90package-test"
}

# chrooted ROOT COMMAND...: uses separate mount and process namespaces, with the packages and earlier downloads mounted.
chrooted() {
    # shellcheck disable=SC2016  # the inner shell expands them
    unshare --mount --pid --fork --kill-child bash -euc '
        root=$1 packages=$2 archives=$3
        shift 3
        mount --make-rprivate /
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mkdir -p "$root/packages" "$root/var/cache/apt/archives"
        mount --bind "$packages" "$root/packages"
        mount --bind "$archives" "$root/var/cache/apt/archives"
        exec chroot "$root" env -i HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
    ' chrooted "$1" "$run/packages" "$root_work/archives" "${@:2}"
}

apt() {
    local in=$1
    shift
    chrooted "$in" apt-get -qq -o APT::Sandbox::User=root -o APT::Keep-Downloaded-Packages=true -o Dpkg::Use-Pty=0 \
        -o Dpkg::Options::=--force-confold --no-install-recommends -y "$@" >"$run/apt.log" 2>&1 ||
        { cat "$run/apt.log" >&2; die "apt-get $* failed"; }
}
