# Two appliances that are connected by a memif, from configs/memif-SIDE.toml. Sourced after lib.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # work, ddpd and stall_limit are set by the script, which reads pid; repo comes from lib.sh

# memif_config SIDE MIB: prints configs/memif-SIDE.toml with paths in the directory $work and regions of MIB MiB.
memif_config() {
    sed -e "s#\"memif.sock\"#\"$work/memif.sock\"#" -e "s#\"memif-$1.sock\"#\"$work/$1.sock\"#" \
        -e "s#\"memif-inbox-$1.bin\"#\"$work/inbox-$1.bin\"#" -e "s#^size = .*#size = \"$2 MiB\"#" \
        "$repo/configs/memif-$1.toml"
}

# memif_config_with_programs SIDE: likewise with regions of 1 MiB, and a socket for local programs.
memif_config_with_programs() {
    memif_config "$1" 1
    printf '\n[programs]\nsocket = "%s"\n' "$work/programs-$1.sock"
}

# start_side SIDE: starts $ddpd with $work/SIDE.toml, waits until it is ready, and sets pid[SIDE].
start_side() {
    launch "$work/$1" "$ddpd" --config "$work/$1.toml"
    pid[$1]=$launched
    started "$stall_limit" "$work/$1" '^ready' || die "ddpd $1 did not start"
}
