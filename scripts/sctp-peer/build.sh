#!/usr/bin/env bash
# Compiles the peers of scripts/interop sctp into DIR: sctp-peer-kernel (static, for the guest) and
# sctp-peer-usrsctp (for this host; Debian's libusrsctp-dev).
#
# usage: scripts/sctp-peer/build.sh DIR
set -euo pipefail
here=$(dirname "$0")
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror -D_GNU_SOURCE)
sources=("$here/main.c" "$here/session.c" "$here/llp.c")
gcc "${flags[@]}" -static -o "$1/sctp-peer-kernel" "${sources[@]}"
gcc "${flags[@]}" -DUSRSCTP -DINET -DINET6 -o "$1/sctp-peer-usrsctp" "${sources[@]}" -lusrsctp -lpthread
