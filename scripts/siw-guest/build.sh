#!/usr/bin/env bash
# Makes the virtual machine that is the peer in scripts/interop siw and sctp: Debian's kernel, rdma-core and perftest,
# and the kernel's siw driver, compiled from Debian's kernel source because Debian's kernel packages do not contain it.
#
# usage: scripts/siw-guest/build.sh [initrd]     prints the directory with vmlinuz, initrd and versions
#        scripts/siw-guest/build.sh initrd.ike   also makes initrd.ike: the same with strongSwan and libdpdk, for
#                                                scripts/interop ipsec
#
# Downloads and builds once, into $XDG_CACHE_HOME/ddpd/siw-guest (or ~/.cache/...); a change of a file in this directory
# rebuilds the initrd. The directory takes about 220 MB, and 500 MB more during the build. Files of other kernels are
# removed.
# Needs apt's package lists, a C compiler, make, cpio and kmod (scripts/setup).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/scripts/siw-guest
# Verbs program for iwspec.
peer=$repo/dataplane/iwspec/peer/iwspec-peer.c
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ddpd/siw-guest

# Programs of the guest. Their libraries are copied from the same packages.
programs=(ip rping udaddy ibv_devinfo rdma ss ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_send_bw ib_send_lat)
guest_packages=(busybox-static rdma-core rdmacm-utils ibverbs-utils ibverbs-providers libibverbs1 librdmacm1
    libibumad3 libnl-3-200 libnl-route-3-200 perftest iproute2 libpci3 libc6 libmnl0 libbpf1 libelf1 libcap2
    libbsd0 libmd0 zlib1g libselinux1 libpcre2-8-0 libudev1 libzstd1 libtirpc3 libgssapi-krb5-2 libkrb5-3
    libk5crypto3 libcom-err2 libkrb5support0 libkeyutils1 libssl3 libdb5.3 libxtables12 libgcc-s1)
modules=(virtio_net 9p 9pnet_virtio ib_uverbs rdma_ucm rdma_cm iw_cm ib_core libcrc32c crc32c_generic crc32c-intel sctp tcp_dctcp tcp_diag
    # IPsec, and the algorithms that it uses.
    esp4 esp6 xfrm_user gcm ghash-generic ctr cbc seqiv echainiv authenc authencesn hmac sha1_generic sha256_generic
    aes_generic crypto_null chacha20poly1305 chacha_generic poly1305_generic cmac)

# Additional programs of initrd.ike: charon with its plugins for IKEv2, swanctl, and the libraries of ddpd.
ike_packages=(strongswan-charon strongswan-libcharon strongswan-swanctl strongswan-pki libcharon-extra-plugins libstrongswan
    libstrongswan-standard-plugins
    libgmp10 libsystemd0 liblzma5 liblz4-1 libgcrypt20 libgpg-error0
    librte-eal23 librte-ethdev23 librte-kvargs23 librte-telemetry23 librte-mbuf23 librte-mempool23 librte-ring23 librte-net23
    librte-meter23 librte-pci23 librte-hash23 librte-rcu23 librte-cryptodev23 librte-dmadev23 librte-vhost23 librte-stack23
    librte-timer23 librte-eventdev23 librte-security23 librte-sched23
    librte-bus-vdev23 librte-bus-pci23 librte-mempool-ring23 librte-mempool-stack23 librte-net-af-packet23 librte-net-ring23
    librte-net-vhost23 libnuma1 libfdt1 libipsec-mb1)
ike_plugins=(random nonce x509 revocation constraints pubkey pkcs1 pkcs8 pem openssl hmac kdf sha1 sha2 aes gcm
    kernel-netlink socket-default vici)
ike_modules=(tun nf_tables xfrm_interface aesni-intel ghash-clmulni-intel)

# fetch DIR PACKAGE...: downloads missing packages and unpacks them into DIR; DIR/.have/PACKAGE contains the version.
fetch() {
    local dir=$1 package file
    shift
    mkdir -p debs "$dir/.have"
    for package in "$@"; do
        [ ! -s "$dir/.have/$package" ] || continue
        rm -f "debs/${package}"_*.deb
        (cd debs && apt-get -q download "$package" >/dev/null 2>&1) ||
            die "cannot download $package: run apt-get update, and look at apt's sources"
        file=$(compgen -G "debs/${package}_*.deb")
        dpkg -x "$file" "$dir"
        dpkg-deb -f "$file" Version >"$dir/.have/$package"
        rm "$file"
    done
}

kernel_version() {
    apt-cache depends linux-image-6.12-amd64 2>/dev/null |
        sed -n 's/.*Depends: linux-image-\([^ ]*\)$/\1/p' | head -n 1
}

# build_siw VERSION: builds siw.ko twice: unchanged, and with its constants turned into module parameters.
build_siw() {
    local version=$1 abi=${1%-amd64} flavour source=linux-source-6.12/drivers/infiniband/sw/siw
    local headers=$PWD/headers/usr/src/linux-headers-$version
    if [ -e "build/stock-$version/siw.ko" ] && [ -e "build/knobs-$version/siw.ko" ]; then return; fi
    fetch headers "linux-headers-$version" "linux-headers-$abi-common" "linux-kbuild-$abi" linux-source-6.12
    mkdir -p source build
    [ -d "source/$source" ] || tar -xJf headers/usr/src/linux-source-6.12.tar.xz -C source "$source"
    sed -i "s#include /usr/src/#include $PWD/headers/usr/src/#" "$headers/Makefile"
    rm -f "$headers/vmlinux" # without it, no BTF type information is built, which needs pahole
    for flavour in stock knobs; do
        rm -rf "build/$flavour-$version"
        cp -r "source/$source" "build/$flavour-$version"
        [ "$flavour" = stock ] || add_knobs "build/$flavour-$version"
        make -C "$headers" M="$PWD/build/$flavour-$version" CONFIG_RDMA_SIW=m -j"$(nproc)" modules \
            >"build/$flavour.log" 2>&1 || { tail -n 20 "build/$flavour.log" >&2; die "siw does not compile"; }
    done
}

add_knobs() { # DIR
    sed -i -E -e 's/^const bool (\w+)( = true)?;/bool \1\2;\nmodule_param(\1, bool, 0644);/' \
        -e 's/^u_char mpa_version.*/&\nmodule_param(mpa_version, byte, 0644);/' "$1/siw_main.c"
    sed -i -E 's/^extern const bool/extern bool/' "$1/siw.h"
    sed -i -E \
        -e 's/^static __be16 rtr_type.*/&\nmodule_param_named(rtr_type, *(unsigned short *)\&rtr_type, ushort, 0644);/' \
        -e 's/^static const bool (relaxed_ird_negotiation) = true;/static bool \1 = true;\nmodule_param(\1, bool, 0644);/' \
        "$1/siw_cm.c"
}

# add_program FILE: copies the program into $tree, with all libraries that it needs, directly or indirectly.
tree=root
add_program() {
    local file=$1 target=$tree/usr/bin/${1##*/}
    [ -e "$target" ] || install -m 755 "$file" "$target"
    add_libraries "$file"
}

add_libraries() { # FILE
    local library found
    for library in $(objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'); do
        [ ! -e "$tree/usr/lib/x86_64-linux-gnu/$library" ] || continue
        # Regular files only, because links may lead to /etc/alternatives.
        found=$(find -L user/lib user/usr/lib user/lib64 -name "$library" -type f | head -n 1)
        [ -n "$found" ] || die "no package of the guest has $library, which ${1##*/} needs"
        cp -L "$found" "$tree/usr/lib/x86_64-linux-gnu/$library"
        add_libraries "$found"
    done
}

# add_modules VERSION MODULE...: copies the modules and the modules that they depend on.
add_modules() {
    local from=$PWD/kernel/lib/modules/$1 to=$tree/usr/lib/modules/$1 path file module
    depmod -b "$PWD/kernel" "$1"
    for module in "${@:2}"; do
        modprobe -d "$PWD/kernel" -S "$1" --show-depends "$module" 2>/dev/null || true
    done | awk '$1 == "insmod" { print $2 }' | sort -u | while read -r path; do
        file=$to/${path#"$from"/}
        mkdir -p "${file%/*}"
        xz -dc "$path" >"${file%.xz}"
    done
    cp "$from"/modules.builtin "$from"/modules.builtin.modinfo "$from"/modules.order "$to/"
    depmod -b "$PWD/$tree" "$1"
}

add_siw() { # VERSION
    mkdir -p "root/usr/lib/modules/$1/extra" root/knobs
    strip --strip-debug -o "root/usr/lib/modules/$1/extra/siw.ko" "build/stock-$1/siw.ko"
    strip --strip-debug -o root/knobs/siw.ko "build/knobs-$1/siw.ko"
}

make_initrd() { # VERSION
    local program applet
    rm -rf root
    mkdir -p root/{etc/libibverbs.d,proc,sys,dev,tmp,run,host} root/usr/{bin,sbin,lib64,lib/x86_64-linux-gnu/libibverbs}
    ln -s usr/bin root/bin
    ln -s usr/sbin root/sbin
    ln -s usr/lib root/lib
    ln -s usr/lib64 root/lib64
    cp -L user/lib64/ld-linux-x86-64.so.2 root/usr/lib64/
    install -m 755 user/bin/busybox root/usr/bin/busybox
    for applet in $(user/bin/busybox --list); do
        [ -e "root/usr/bin/$applet" ] || ln -s busybox "root/usr/bin/$applet"
    done
    ln -sf ../bin/busybox root/usr/sbin/modprobe # for the kernel's request_module
    for program in "${programs[@]}"; do
        # Replaces the link to busybox.
        rm -f "root/usr/bin/$program"
        add_program "$(find user/bin user/sbin user/usr/bin user/usr/sbin -name "$program" | head -n 1)"
    done
    for program in user/usr/lib/x86_64-linux-gnu/libibverbs/libsiw*; do
        cp -a "$program" root/usr/lib/x86_64-linux-gnu/libibverbs/
        add_libraries "$program"
    done
    cp user/etc/libibverbs.d/siw.driver root/etc/libibverbs.d/
    gcc -O2 -Wall -Wextra -Werror -o build/siwverbs "$here/siwverbs.c" -Idevel/usr/include \
        -Luser/usr/lib/x86_64-linux-gnu -l:librdmacm.so.1 -l:libibverbs.so.1 -lpthread
    add_program build/siwverbs
    gcc -O2 -Wall -Wextra -Werror -o build/iwspec-peer "$peer" -Idevel/usr/include \
        -Luser/usr/lib/x86_64-linux-gnu -l:librdmacm.so.1 -l:libibverbs.so.1 -lpthread
    add_program build/iwspec-peer
    # Loaded at run time when a thread ends; no program names it as a dependency.
    cp -L "$(find user/lib user/usr/lib -name libgcc_s.so.1 | head -n 1)" root/usr/lib/x86_64-linux-gnu/
    add_siw "$1"
    add_modules "$1" "${modules[@]}"
    install -m 755 "$here/init" root/init
    pack root initrd
    cp "kernel/boot/vmlinuz-$1" vmlinuz
}

pack() { # DIR FILE
    (cd "$1" && find . -print0 | cpio -0 -o -H newc --quiet) | gzip -1 >"$2.new"
    mv "$2.new" "$2"
}

make_ike() { # VERSION
    local file plugin
    tree=root-ike
    rm -rf "$tree"
    cp -a root "$tree"
    mkdir -p "$tree"/usr/lib/ipsec/plugins "$tree"/etc/swanctl "$tree/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0"
    mkdir -p "$tree"/var
    ln -s ../run "$tree/var/run"
    for plugin in "${ike_plugins[@]}"; do
        file=user/usr/lib/ipsec/plugins/libstrongswan-$plugin.so
        install -m 644 "$file" "$tree/usr/lib/ipsec/plugins/"
        add_libraries "$file"
    done
    for file in user/usr/lib/ipsec/charon user/usr/sbin/swanctl user/usr/bin/pki; do add_program "$file"; done
    # DPDK loads the drivers from this directory by full names. Links stay links, because DPDK must not load a driver
    # twice.
    cp -a user/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/. "$tree/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/"
    cp -a user/usr/lib/x86_64-linux-gnu/librte_*.so.* user/usr/lib/x86_64-linux-gnu/libIPSec_MB.so.* "$tree/usr/lib/x86_64-linux-gnu/"
    for file in user/usr/lib/x86_64-linux-gnu/librte_*.so.23; do add_libraries "$file"; done
    add_modules "$1" "${modules[@]}" "${ike_modules[@]}"
    pack "$tree" initrd.ike
    rm -rf "$tree"
}

# name_versions VERSION: the versions that the table of results states.
name_versions() {
    local package
    echo "kernel $1"
    for package in rdma-core perftest; do echo "$package $(cat "user/.have/$package")"; done
}

stamp=$(cat "$here/build.sh" "$here/init" "$here/siwverbs.c" "$peer" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ]; then
    mkdir -p "$cache"
    (
        cd "$cache"
        exec 9>lock
        flock 9
        version=$(kernel_version)
        [ -n "$version" ] || die "apt knows no linux-image-6.12-amd64 (Debian 12): run apt-get update"
        say "making the guest with kernel $version in $cache"
        rm -f stamp
        # Files of another kernel are removed.
        [ -e "kernel/.have/linux-image-$version" ] || rm -rf kernel build
        fetch kernel "linux-image-$version"
        fetch user "${guest_packages[@]}"
        fetch devel librdmacm-dev libibverbs-dev
        build_siw "$version"
        make_initrd "$version"
        name_versions "$version" >versions
        rm -rf debs headers source
        echo "$stamp" >stamp
    )
fi
if [ "${1:-}" = initrd.ike ] && [ "$(cat "$cache/stamp.ike" 2>/dev/null)" != "$stamp" ]; then
    (
        cd "$cache"
        exec 9>lock
        flock 9
        version=$(sed -n 's/^kernel //p' versions)
        say "making the guest with strongSwan in $cache"
        rm -f stamp.ike
        fetch user "${ike_packages[@]}"
        make_ike "$version"
        rm -rf debs
        echo "$stamp" >stamp.ike
    )
fi
echo "$cache"
