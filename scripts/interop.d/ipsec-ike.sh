# Part of scripts/interop: IPsec with IKEv2 by strongSwan on both sides. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd and ddpctl come from scripts/interop and scripts/lib.sh
#
#   guest a: the appliance                                  guest b: the peer
#   charon, addresses on the TAP                            charon, kernel ESP, siw, kernel sockets
#   ddpd on eth0 (af_packet), ESP by ddpd ── bridge br0 ──  eth0
#   10.77.0.1, fd77::1                                      10.77.0.2, fd77::2
#
# charon in guest a installs its SAs and policies in that guest's kernel, and sends IKE through the TAP and ddpd. ddpd mirrors
# the SAs and policies (`[ipsec] keys = "kernel"`) and processes ESP itself. All frames of guest b's device are captured: none
# may be unprotected, no sequence number may be used twice with a key, and tshark must decrypt every frame with the keys
# from guest b's kernel.
#
# IKE_LAB_KERNEL=1: replaces ddpd by guest a's kernel (ESP and sockets), which tests the set-up itself.
# IKE_ONLY='AUTH MODE FAMILY': only one combination (cert or psk, transport or tunnel, 4 or 6). IKE_CASES: only some cases.

[ "$(id -u)" -eq 0 ] || die "ipsec-ike: needs root, for a network namespace and taps"
for program in tshark tcpdump python3; do
    command -v "$program" >/dev/null || die "ipsec-ike: needs $program (scripts/setup)"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-ike.XXXXXX")
ns=ike$$
short=${IPSEC_SHORT:-}
kernel=${IKE_LAB_KERNEL:-}
starts=0
# Parameters of the current combination.
auth='' mode='' family='' combination='' rekey=1h encap=no
front='' back='' front_url='' back_url=''
kept=$target/interop-ipsec-ike-bad

# Long transfers send one chunk of this many bytes per second, so that their duration does not depend on the machine.
chunk=131072 short_bytes=1000003

# shellcheck source=scripts/siw-guest/guest.sh
. "$repo/scripts/siw-guest/guest.sh"
# shellcheck source=scripts/interop.d/capture.sh
. "$repo/scripts/interop.d/capture.sh"

in_ns() { ip netns exec "$ns" "$@"; }

cleanup() {
    for name in a b; do
        guest_use "$name"
        guest_halt
    done
    [ -z "$capture_pid" ] || stop_pid "$capture_pid"
    ip netns del "$ns" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# --- guests ---

# on GUEST SECONDS COMMAND: runs the command in the guest; its output is in $work/out.
on() {
    guest_use "$1"
    local code=0
    guest_run "$2" "$3" >"$work/out" || code=$?
    [ "$code" -ne 125 ] || die "guest $1 died: $(tail -n 5 "$guest_dir/console")"
    return "$code"
}

# must GUEST SECONDS COMMAND: as `on`; a failure ends the suite.
must() { on "$@" || die "guest $1: $3: $(tail -n 5 "$work/out")"; }

share() { echo "$work/guest-$1/share"; }

boot() {
    ip netns add "$ns"
    in_ns ip link add br0 type bridge
    for tap in guest-a guest-b; do
        in_ns ip tuntap add "$tap" mode tap
        in_ns ip link set "$tap" master br0 up
    done
    in_ns ip link set br0 up
    local address=none
    [ -z "$kernel" ] || address=10.77.0.1/24
    local GUEST_NO_IPV6=0 GUEST_IMAGE=initrd.ike GUEST_MEMORY=1G
    guest_use a
    GUEST_MAC=52:54:00:77:00:01 guest_start "$ns" guest-a "$address" 1500
    guest_use b
    GUEST_MAC=52:54:00:77:00:02 guest_start "$ns" guest-b 10.77.0.2/24 1500
    for name in a b; do
        guest_use "$name"
        guest_ready
    done
}

# prepare: installs programs, certificates, the common configuration of strongSwan, and policies of lower priority than charon's
# that block unprotected packets while charon does not run.
prepare() {
    local name
    cp "$work/ddpctl" "$work/ddpd" "$(share a)/"
    cp "$work/ddpctl" "$(share b)/"
    [ -z "$kernel" ] || must a 10 "/usr/bin/ip addr add fd77::1/64 dev eth0 nodad"
    # eth0 must have no link-local address, because the appliance has it, too.
    [ -n "$kernel" ] || must a 10 "echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6"
    must b 10 "/usr/bin/ip addr add fd77::2/64 dev eth0 nodad"
    head -c "$short_bytes" /dev/urandom >"$(share a)/short"
    head -c $((chunk * 30)) /dev/urandom >"$(share a)/long"
    cp "$(share a)"/{short,long} "$(share b)/"
    for name in a b; do
        strongswan_conf >"$(share "$name")/strongswan.conf"
        guest_script >"$(share "$name")/lab.sh"
        must "$name" 60 ". /host/lab.sh; install_lab $name$kernel"
    done
    must a 60 ". /host/lab.sh; make_certificates"
    cp "$(share a)"/*.pem "$(share b)/"
    for name in a b; do must "$name" 20 ". /host/lab.sh; install_certificates $name"; done
}

# guest_script: prints the functions that commands in the guests source.
guest_script() {
    cat <<'END'
PATH=/tmp/bin:/usr/sbin:/usr/bin
install_lab() {
    mkdir -p /tmp/bin /run /etc/swanctl
    for directory in x509 x509ca x509ocsp x509aa x509ac x509crl pubkey private rsa ecdsa bliss pkcs8 pkcs12; do
        mkdir -p /etc/swanctl/$directory
    done
    cp /host/strongswan.conf /etc/
    # devtmpfs lacks these links.
    ln -sfn /proc/self/fd /dev/fd
    ln -sf fd/0 /dev/stdin
    for program in ddpctl ddpd; do
        [ ! -e /host/$program ] || cp /host/$program /tmp/bin/ && chmod 755 /tmp/bin/$program
    done
    # Policies of lower priority than charon's. Their selectors differ from charon's, because the kernel keeps only the last of
    # two policies with the same selector. In guest a, the appliance's own policies block unprotected packets.
    [ "$1" = a ] || for net in 10.77.0.0/24 fd77::/64; do
        for direction in in out; do
            ip xfrm policy add src $net dst $net dir $direction action block priority 4000000000
        done
    done
    # Records each SA with its keys when it is installed.
    (ip xfrm monitor SA >>/tmp/keys 2>&1 </dev/null 3<&- &)
}
ip() { /usr/bin/ip "$@"; }
make_certificates() {
    mkdir -p /tmp/pki && cd /tmp/pki &&
    pki --gen --type ecdsa --size 256 --outform pem >ca-key.pem &&
    pki --self --ca --in ca-key.pem --type ecdsa --dn "CN=lab CA" --outform pem >ca.pem || return 1
    for name in a b; do
        pki --gen --type ecdsa --size 256 --outform pem >$name-key.pem &&
        pki --issue --cacert ca.pem --cakey ca-key.pem --in $name-key.pem --type ecdsa --dn "CN=$name.lab.test" \
            --san $name.lab.test --outform pem >$name.pem || return 1
    done
    cp ca.pem a.pem b.pem a-key.pem b-key.pem /host/
}
install_certificates() {
    cp /host/ca.pem /etc/swanctl/x509ca/ && cp /host/$1.pem /etc/swanctl/x509/ && cp /host/$1-key.pem /etc/swanctl/private/
}
start_charon() {
    (charon >/tmp/charon.out 2>&1 </dev/null 3<&- &)
    n=0
    until swanctl --version >/dev/null 2>&1 && [ -S /run/charon.vici ] && swanctl --stats >/dev/null 2>&1; do
        sleep 0.1
        n=$((n + 1))
        [ $n -lt 300 ] || { tail -n 5 /tmp/charon.out /tmp/charon.log; return 1; }
    done
}
# end_charon SIGNAL: sends the signal to charon and waits for its end.
end_charon() {
    pid=$(cat /run/charon.pid 2>/dev/null) || return 0
    kill -$1 $pid
    n=0
    # A zombie has no command line.
    while grep -q . /proc/$pid/cmdline 2>/dev/null; do
        sleep 0.1
        n=$((n + 1))
        [ $n -lt 200 ] || { echo "charon does not end"; return 1; }
    done
    rm -f /run/charon.pid /run/charon.vici
}
load() { swanctl --load-all; }
# made_sas: prints the number of CHILD_SAs in the log of charon.
made_sas() { grep -o 'CHILD_SA peer{[0-9]*} established' /tmp/charon.log | sort -u | wc -l; }
# spis: prints the SPIs of the kernel's SAs, without larval ones, which have no keys yet.
spis() { ip xfrm state | awk '$3 == "spi" { spi = $4 } $1 == "aead" || $1 == "enc" { print "spi " spi }' | sort; }
# feed COUNT SIZE: prints COUNT chunks of the long file, of SIZE bytes each, one per second.
feed() {
    i=0
    while [ $i -lt $1 ]; do
        dd if=/host/long bs=$2 skip=$i count=1 2>/dev/null || return 1
        sleep 1
        i=$((i + 1))
    done
}
END
}

strongswan_conf() {
    local program
    # Only the necessary plugins of Debian's default.
    cat <<'END'
charon {
    load = random nonce x509 revocation constraints pubkey pkcs1 pkcs8 pem openssl hmac kdf sha1 sha2 aes gcm kernel-netlink socket-default vici
    # A peer counts as dead after 2 + 3 + 4.5 s.
    retransmit_tries = 2
    retransmit_timeout = 2.0
    retransmit_base = 1.5
    plugins {
        kernel-netlink {
            # Seconds after which the kernel repeats an ACQUIRE without an answer.
            xfrm_acq_expires = 5
        }
    }
    filelog {
        log {
            path = /tmp/charon.log
            time_format = %s
            append = yes
            flush_line = yes
            default = 1
        }
    }
}
END
    for program in swanctl pki; do
        printf '%s {\n    load = random x509 pubkey pkcs1 pkcs8 pem openssl sha1 sha2\n}\n' "$program"
    done
}

# swanctl_conf a|b: prints swanctl.conf of a guest for the current combination.
swanctl_conf() {
    local here=$front there=$back other=b
    [ "$1" = a ] || here=$back there=$front other=a
    local how="auth = psk"
    [ "$auth" = psk ] || how="auth = pubkey"
    cat <<END
connections {
    peer {
        version = 2
        local_addrs = $here
        remote_addrs = $there
        proposals = aes128gcm16-prfsha256-ecp256
        mobike = no
        encap = $encap
        dpd_delay = 3s
        local {
            $how
            id = $1.lab.test
            $([ "$auth" = psk ] || echo "certs = $1.pem")
        }
        remote {
            $how
            id = $other.lab.test
        }
        children {
            peer {
                mode = $mode
                local_ts = $here
                remote_ts = $there
                esp_proposals = aes128gcm16-esn
                start_action = trap
                close_action = trap
                dpd_action = trap
                rekey_time = $rekey
                rand_time = 0s
                replay_window = 64
            }
        }
    }
    # Neighbour discovery is not protected: ICMPv6 of type 135 (0x8700) and 136.
    neighbours {
        children {
            solicitations {
                local_ts = ::/0[58/34560]
                remote_ts = ::/0[58/34560]
                mode = pass
                start_action = trap
            }
            advertisements {
                local_ts = ::/0[58/34816]
                remote_ts = ::/0[58/34816]
                mode = pass
                start_action = trap
            }
        }
    }
}
secrets {
    ike-peer {
        id-a = a.lab.test
        id-b = b.lab.test
        secret = "$secret"
    }
}
END
}

config() {
    cat <<END
name = "ike"

[workers]
count = 1
idle = "adaptive"

[[port]]
name = "wire"
kind = "af_packet"
device = "eth0"
mtu = 1500

[[interface]]
name = "front"
port = "wire"
addresses = ["10.77.0.1/24", "fd77::1/64"]
host = "tap"
local_ports = "20000-29999"

[ipsec]
keys = "kernel"

# Policies for the time in which charon does not run.
[[ipsec.policy]]
name = "v4"
remote = "10.77.0.0/24"
action = "protect"

[[ipsec.policy]]
name = "v6"
remote = "fd77::/64"
action = "protect"

[[ipsec.policy]]
name = "links"
remote = "fe80::/10"
action = "bypass"

[files]
paths = ["/host", "/tmp"]

[management]
socket = "/tmp/ddpd.sock"

[limits]
buffers_per_worker = "256 MiB"
END
    local region
    for region in "box 4 MiB" "pings 4 MiB" "scratch 16 MiB"; do
        printf '\n[[region]]\nname = "%s"\nsize = "%s"\naccess = "rw"\nshared = true\n' "${region%% *}" "${region#* }"
    done
    listener ddp 7475 box ''
    listener rping 7174 pings $'ulp = "rdmap"\nservice = "rping"\npeer = "siw"'
    listener perftest 18515 scratch $'ulp = "rdmap"\nservice = "perftest"\npeer = "siw"'
    printf '\n[[listener.queue]]\nqn = 0\nbuffers = 64\nbuffer_size = "1 MiB"\n'
}

# listener NAME PORT REGION KEYS: prints the section of a listener.
listener() { printf '\n[[listener]]\nname = "%s"\ninterface = "front"\nport = %s\nregions = ["%s"]\n%s\n' "$1" "$2" "$3" "$4"; }

# start_ddpd: starts ddpd in guest a, except with IKE_LAB_KERNEL.
start_ddpd() {
    [ -z "$kernel" ] || return 0
    starts=$((starts + 1))
    guest_use a
    guest_begin "ddpd$starts" 100000 "exec /tmp/bin/ddpd --config /host/ddpd.toml"
    if ! wait_until 90 grep -q '^ready' "$(share a)/ddpd$starts.out"; then
        cat "$(share a)/ddpd$starts.out" >&2
        die "ddpd did not start in guest a"
    fi
}

# end_ddpd SIGNAL: sends the signal to ddpd and waits for its end.
end_ddpd() {
    on a 30 "kill -$1 \$(pidof ddpd); n=0; while pidof ddpd; do sleep 0.1; n=\$((n + 1)); [ \$n -lt 250 ] || exit 1; done" ||
        die "ddpd does not end in guest a"
}

# --- rows ---

# row CASE RESULT: prints a row, which is good if RESULT is `ok`.
row() {
    rows=$((rows + 1))
    printf '%-28s %-52s %s\n' "$combination" "$1" "$2"
    [ "$2" = ok ] && return
    bad_row "$combination" "$1" "$2"
    keep_bad
}

# keep_bad: saves the state of both guests and of ddpd for a bad row.
keep_bad() {
    local dir=$kept/row$rows name
    mkdir -p "$dir"
    for name in a b; do
        on "$name" 20 "swanctl --list-sas; /usr/bin/ip -s xfrm state; /usr/bin/ip xfrm policy; grep -v ' 0\$' /proc/net/xfrm_stat; tail -n 100 /tmp/charon.log" || true
        cp "$work/out" "$dir/guest-$name"
    done
    if [ -z "$kernel" ]; then
        on a 20 "for what in sas policies counters; do /tmp/bin/ddpctl --socket /tmp/ddpd.sock ipsec \$what; done; /tmp/bin/ddpctl --socket /tmp/ddpd.sock events | tail -n 60" || true
        cp "$work/out" "$dir/ddpd"
        cp "$(share a)/ddpd$starts.out" "$dir/ddpd.out" 2>/dev/null || true
    fi
    say "more of the bad row is in $dir"
}

# check CASE COMMAND...: the row is good if the command succeeds.
check() {
    local name=$1
    shift
    if "$@"; then row "$name" ok; else row "$name" "BAD: $(tail -n 3 "$work/out" | tr '\n\t' '  ' | cut -c1-200)"; fi
}

# --- transfers ---

# Each begin_ function starts a transfer; its end_ function waits for it and compares. SECONDS is the duration with the long
# file; without it the short file is sent.
to_a_tag='' to_b_tag='' tags=0

# begin_to_a [SECONDS]: guest b puts over kernel sockets to the appliance.
begin_to_a() {
    tags=$((tags + 1))
    to_a_tag=toa$tags
    if [ -n "$kernel" ]; then
        guest_use a
        guest_begin "serve$to_a_tag" 200 "rm -f /tmp/box; exec /tmp/bin/ddpctl serve-kernel $front_url:7475 --size 4MiB --file /tmp/box --connections 1 --idle-timeout 120s"
        wait_until 30 grep -q -i listen "$(share a)/serve$to_a_tag.out" || true
    fi
    guest_use b
    guest_begin "$to_a_tag" 180 ". /host/lab.sh; $(source_of "${1:-}") ddpctl put --kernel --timeout 120s $(file_of "${1:-}") tcp://$front_url:7475/${kernel:+in}box"
}

end_to_a() { # [SECONDS]
    local code=0
    guest_use b
    guest_end "$to_a_tag" 180 >"$work/out" || code=$?
    [ "$code" -eq 0 ] || return 1
    if [ -n "$kernel" ]; then
        guest_use a
        guest_end "serve$to_a_tag" 60 >"$work/out" || return 1
        on a 30 "cmp -n $(bytes_of "${1:-}") /tmp/box /host/$(name_of "${1:-}")"
    else
        on a 60 "/tmp/bin/ddpctl --socket /tmp/ddpd.sock regions read box --length $(bytes_of "${1:-}") --output /tmp/box >/dev/null && cmp -n $(bytes_of "${1:-}") /tmp/box /host/$(name_of "${1:-}")"
    fi
}

# begin_to_b [SECONDS]: the appliance puts to kernel sockets of guest b.
begin_to_b() {
    local how="--socket /tmp/ddpd.sock put"
    [ -z "$kernel" ] || how="put --kernel --timeout 120s"
    tags=$((tags + 1))
    to_b_tag=tob$tags
    guest_use b
    guest_begin "serve$to_b_tag" 200 "rm -f /tmp/box; exec /tmp/bin/ddpctl serve-kernel $back_url:7481 --size 4MiB --file /tmp/box --connections 1 --idle-timeout 120s"
    wait_until 30 grep -q -i listen "$(share b)/serve$to_b_tag.out" || true
    guest_use a
    guest_begin "$to_b_tag" 180 ". /host/lab.sh; $(source_of "${1:-}") ddpctl $how $(file_of "${1:-}") tcp://$back_url:7481/inbox"
}

end_to_b() { # [SECONDS]
    local code=0
    guest_use a
    guest_end "$to_b_tag" 180 >"$work/out" || code=$?
    [ "$code" -eq 0 ] || return 1
    guest_use b
    guest_end "serve$to_b_tag" 60 >"$work/out" || return 1
    on b 30 "cmp -n $(bytes_of "${1:-}") /tmp/box /host/$(name_of "${1:-}")"
}

source_of() { [ -z "$1" ] || echo "feed $1 $chunk |"; }
file_of() { if [ -z "$1" ]; then echo /host/short; else echo -; fi; }
name_of() { if [ -z "$1" ]; then echo short; else echo long; fi; }
bytes_of() { if [ -z "$1" ]; then echo "$short_bytes"; else echo $(($1 * chunk)); fi; }

put_to_a() { begin_to_a '' && end_to_a ''; }
put_to_b() { begin_to_b '' && end_to_b ''; }

# --- the wire ---

begin_capture() {
    must b 10 ": >/tmp/keys"
    start_capture "$work/wire.pcap" -i guest-b
}

check_wire() {
    local clear esp inside keys=()
    stop_capture
    must b 10 "cat /tmp/keys"
    mapfile -t keys < <(python3 "$repo/scripts/interop.d/esp.py" keys "$work/out")
    clear=$(tshark -r "$work/wire.pcap" -Y '(tcp or icmp or icmpv6.type == 128 or icmpv6.type == 129) and not esp' -T fields -e frame.number \
        2>/dev/null | wc -l)
    [ "$clear" -eq 0 ] || { mkdir -p "$kept" && cp "$work/wire.pcap" "$kept/clear-$rows.pcap"; }
    if [ "$clear" -eq 0 ]; then row "nothing in clear" ok; else row "nothing in clear" "BAD: $clear frames"; fi
    if python3 "$repo/scripts/interop.d/esp.py" numbers "$work/wire.pcap" >"$work/out" 2>&1; then
        row "no number twice: $(cat "$work/out")" ok
    else
        row "no number twice under one key" "BAD: $(tail -n 1 "$work/out")"
    fi
    local options=(-o esp.enable_encryption_decode:TRUE) key
    for key in "${keys[@]}"; do options+=(-o "$key"); done
    esp=$(tshark -r "$work/wire.pcap" -Y esp -T fields -e frame.number 2>/dev/null | wc -l)
    inside=$(tshark -r "$work/wire.pcap" "${options[@]}" -Y 'esp and (tcp or icmp or icmpv6)' -T fields -e frame.number 2>/dev/null | wc -l)
    if [ "$esp" -gt 100 ] && [ "$inside" -eq "$esp" ]; then
        row "tshark decrypts all of $esp frames of ${#keys[@]} SAs" ok
    else
        row "tshark decrypts all frames" "BAD: $inside of $esp, ${#keys[@]} SAs"
        mkdir -p "$kept"
        cp "$work/wire.pcap" "$kept/"
        printf '%s\n' "${keys[@]}" >"$kept/keys"
    fi
}

# --- one combination ---

# configure: loads the current configuration in both guests and removes all earlier SAs.
configure() {
    local name
    for name in a b; do
        swanctl_conf "$name" >"$(share "$name")/swanctl.conf"
        must "$name" 60 ". /host/lab.sh; cp /host/swanctl.conf /etc/swanctl/; swanctl --terminate --ike peer --force --timeout 5 >/dev/null 2>&1; ip xfrm state flush; load"
    done
}

# combine AUTH MODE FAMILY CASES: runs the cases of one combination.
combine() {
    auth=$1 mode=$2 family=$3
    combination="$auth, $mode, IPv$family"
    if [ "$family" = 4 ]; then
        front=10.77.0.1 back=10.77.0.2 front_url=$front back_url=$back
    else
        front=fd77::1 back=fd77::2 front_url="[$front]" back_url="[$back]"
    fi
    local part
    rekey=1h
    configure
    begin_capture
    for part in ${IKE_CASES:-$4}; do "case_$part"; done
    check_wire
}

terminate() { on "$1" 30 "swanctl --terminate --$2 peer" || true; }

case_both_ways() {
    check "b puts: SAs by its kernel's ACQUIRE" put_to_a
    terminate b ike
    check "a puts: SAs by the appliance's ACQUIRE" put_to_b
    check_mirror
}

# check_mirror: checks that the appliance has the SAs of its kernel, and no others.
check_mirror() {
    [ -z "$kernel" ] || return 0
    local theirs ours
    theirs=$(spis_of a)
    must a 20 "/tmp/bin/ddpctl --socket /tmp/ddpd.sock --json ipsec sas"
    ours=$(jq -r '.. | objects | .spi? // empty' "$work/out" | while read -r spi; do printf 'spi 0x%08x\n' "$spi"; done | sort)
    if [ -n "$ours" ] && [ "$theirs" = "$ours" ]; then
        row "the appliance has its kernel's SAs" ok
    else
        row "the appliance has its kernel's SAs" "BAD: $(echo "$theirs, not $ours" | tr '\n' ' ')"
    fi
}

# rping and perftest need the services of the appliance.
case_verbs() {
    [ -z "$kernel" ] || return 0
    check "rping" on b 90 "rping -c -a $front -v -V -C 20 -S 5000 >/tmp/rping && [ \$(grep -c '^ping data' /tmp/rping) = 20 ]"
    [ "$family" = 6 ] || check "ib_send_bw" on b 90 "ib_send_bw -R -s 65536 -n 5 -p 18515 -F $front"
}

# sas_made: prints the number of CHILD_SAs of guest b's charon.
sas_made() {
    on b 10 ". /host/lab.sh; made_sas" || true
    cat "$work/out"
}

case_rekey() {
    local before after seconds=24
    [ -z "$short" ] || seconds=14
    rekey=4s
    configure
    before=$(sas_made)
    begin_to_a "$seconds"
    begin_to_b "$seconds"
    check "put to a while CHILD_SAs are replaced" end_to_a "$seconds"
    check "put to b while CHILD_SAs are replaced" end_to_b "$seconds"
    after=$(sas_made)
    # The exact number depends on the speed of the guests.
    if [ $((after - before)) -ge 2 ]; then
        row "CHILD_SAs made meanwhile: $((after - before))" ok
    else
        row "CHILD_SAs made meanwhile" "BAD: $((after - before)), not two"
    fi
    rekey=1h
    configure
}

# during CASE COMMAND...: runs the command 3 s after the start of transfers in both directions, which must succeed.
during() {
    local name=$1 seconds=10
    shift
    begin_to_a "$seconds"
    begin_to_b "$seconds"
    sleep 3
    "$@"
    check "$name: put to a goes on" end_to_a "$seconds"
    check "$name: put to b goes on" end_to_b "$seconds"
}

case_delete() {
    local name what
    for name in a b; do
        for what in child ike; do
            during "$name deletes ${what^^}_SA" must "$name" 30 "swanctl --terminate --$what peer"
        done
    done
}

# The link is down for longer than dead peer detection takes.
case_dpd() { during "DPD" unplug 16; }

unplug() {
    in_ns ip link set guest-b down
    sleep "$1"
    on a 10 "swanctl --list-sas" || true
    if [ -s "$work/out" ] && grep -q ESTABLISHED "$work/out"; then
        row "a gives the dead peer up" "BAD: $(head -n 1 "$work/out")"
    else
        row "a gives the dead peer up" ok
    fi
    in_ns ip link set guest-b up
    # Creates SAs before TCP's next retransmission, whose interval has grown.
    on b 20 "ping -c 4 $front" || true
}

case_restarts() {
    local name
    for name in a b; do
        during "charon of $name restarts" must "$name" 60 ". /host/lab.sh; end_charon TERM && start_charon && load"
    done
    during "charon of a is killed" must a 60 ". /host/lab.sh; end_charon KILL && start_charon && load"
    # Removes the SAs of the killed charon, which its successor does not manage.
    configure
}

spis_of() {
    on "$1" 10 ". /host/lab.sh; spis" || true
    cat "$work/out"
}

# ddpd is replaced: its streams end, and the SAs continue.
case_ddpd() {
    [ -z "$kernel" ] || return 0
    local signal before after
    for signal in TERM KILL; do
        check "before ddpd ends by SIG$signal" put_to_a
        begin_to_a 8
        sleep 3
        before=$(spis_of b)
        end_ddpd "$signal"
        # The next ddpd resets the stream, which it does not have. Until then the peer receives no answer.
        start_ddpd
        guest_use b
        if guest_end "$to_a_tag" 180 >"$work/out"; then
            row "its stream ends" "BAD: the put succeeds"
        else
            row "its stream ends" ok
        fi
        check "ddpd is back: put to a" put_to_a
        check "ddpd is back: put to b" put_to_b
        after=$(spis_of b)
        if [ "$before" = "$after" ]; then row "the same SAs" ok; else row "the same SAs" "BAD: $(echo "$before" "became" "$after" | tr '\n' ' ')"; fi
    done
}

# --- the run ---

secret=$(od -An -v -tx1 -N16 /dev/urandom | tr -d ' \n')
rm -rf "$kept"
build_programs
strip -o "$work/ddpctl" "$ddpctl"
strip -o "$work/ddpd" "$ddpd"
boot
say "both guests are up after $SECONDS s"
prepare
config >"$(share a)/ddpd.toml"
start_ddpd
for name in a b; do must "$name" 60 ". /host/lab.sh; start_charon"; done
say "ddpd and charon run after $SECONDS s"

if [ -n "${IKE_ONLY:-}" ]; then
    read -ra only <<<"$IKE_ONLY"
    combine "${only[@]:0:3}" "both_ways verbs rekey"
elif [ -n "$short" ]; then
    combine cert transport 4 "both_ways verbs rekey"
    combine psk tunnel 6 "both_ways"
else
    combine cert transport 4 "both_ways verbs rekey delete dpd restarts ddpd"
    combine psk tunnel 6 "both_ways verbs rekey delete ddpd"
    combine psk transport 6 "both_ways verbs rekey"
    combine cert tunnel 4 "both_ways verbs rekey"
    encap=yes
    combine cert transport 4 "both_ways rekey"
fi

echo
end_rows
say "all $rows rows are good after $SECONDS s"
