# Part of scripts/interop: IPsec against the kernel's ESP in a QEMU guest. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, ddpd, ddpctl and mib come from scripts/interop and scripts/lib.sh
#
#   namespace:  ddpd on veth (af_packet, 10.77.0.1, fd77::1) ── bridge ── tap ── guest: siw, kernel sockets, ESP by
#               `ip xfrm` (10.77.0.2, fd77::2); in a tunnel the same addresses are inside and outside
#
# Each combination of algorithm, mode, sequence numbers, UDP and family has new keys and a new ddpd. All frames are captured:
# none may be unprotected, and with the keys tshark must decrypt every frame whose algorithm it supports.

[ "$(id -u)" -eq 0 ] || die "ipsec: needs root, for a network namespace and a tap"
command -v tshark >/dev/null || die "ipsec: needs tshark (scripts/setup)"

suite=ipsec
# shellcheck source=scripts/interop.d/guest.sh
. "$repo/scripts/interop.d/guest.sh"

# With --short: a few combinations, for CI.
short=${IPSEC_SHORT:-}
# Parameters of the current combination.
algorithm='' mode='' esn='' udp='' family=''
file_bytes=400000

# --- configuration of both ends ---

# key_bytes ALGORITHM: prints the key lengths for encryption, salt included, and for authentication, bytes.
key_bytes() {
    case $1 in
    aes128gcm16 | aes128gmac) echo 20 0 ;;
    aes256gcm16 | aes256gmac | chacha20poly1305) echo 36 0 ;;
    aes128-sha256) echo 16 32 ;;
    aes256-sha256) echo 32 32 ;;
    aes128-sha1) echo 16 20 ;;
    aes256-sha1) echo 32 20 ;;
    null-sha256) echo 0 32 ;;
    null-sha1) echo 0 20 ;;
    *) die "no such algorithm: $1" ;;
    esac
}

random_hex() { od -An -v -tx1 -N"$1" /dev/urandom | tr -d ' \n'; }

# new_keys DIRECTION: writes new keys to $work/DIRECTION.key for ddpd, and separately to DIRECTION.encryption and
# DIRECTION.integrity.
new_keys() {
    local lengths
    read -ra lengths <<<"$(key_bytes "$algorithm")"
    : >"$work/$1.key"
    chmod 600 "$work/$1.key"
    random_hex "${lengths[0]}" >"$work/$1.encryption"
    random_hex "${lengths[1]}" >"$work/$1.integrity"
    for kind in encryption integrity; do
        [ ! -s "$work/$1.$kind" ] || { cat "$work/$1.$kind" && echo; } >>"$work/$1.key"
    done
}

# xfrm_algorithm DIRECTION: prints algorithm and keys as arguments of `ip xfrm state`.
xfrm_algorithm() {
    local encryption integrity
    encryption=0x$(cat "$work/$1.encryption") integrity=0x$(cat "$work/$1.integrity")
    [ "$encryption" != 0x ] || encryption='""'
    case $algorithm in
    aes*gcm16) echo "aead 'rfc4106(gcm(aes))' $encryption 128" ;;
    aes*gmac) echo "aead 'rfc4543(gcm(aes))' $encryption 128" ;;
    chacha20poly1305) echo "aead 'rfc7539esp(chacha20,poly1305)' $encryption 128" ;;
    aes*-sha256) echo "enc 'cbc(aes)' $encryption auth-trunc 'hmac(sha256)' $integrity 128" ;;
    aes*-sha1) echo "enc 'cbc(aes)' $encryption auth-trunc 'hmac(sha1)' $integrity 96" ;;
    null-sha256) echo "enc 'ecb(cipher_null)' '' auth-trunc 'hmac(sha256)' $integrity 128" ;;
    null-sha1) echo "enc 'ecb(cipher_null)' '' auth-trunc 'hmac(sha1)' $integrity 96" ;;
    esac
}

# guest_xfrm: prints a shell program that installs the guest's SAs and policies.
guest_xfrm() {
    local here=$back there=$front extra='' encap=''
    [ -z "$esn" ] || extra='flag esn'
    [ -z "$udp" ] || encap='encap espinudp 4500 4500 ::'
    [ -z "$udp" ] || [ "$family" = 6 ] || encap='encap espinudp 4500 4500 0.0.0.0'
    cat <<END
set -e
/usr/bin/ip xfrm state flush
/usr/bin/ip xfrm policy flush
/usr/bin/ip xfrm state add src $here dst $there proto esp spi 0x2001 mode $mode $extra replay-window 64 $(xfrm_algorithm in) $encap
/usr/bin/ip xfrm state add src $there dst $here proto esp spi 0x1001 mode $mode $extra replay-window 64 $(xfrm_algorithm out) $encap
/usr/bin/ip xfrm policy add src $here dst $there dir out priority 2 tmpl src $here dst $there proto esp mode $mode
/usr/bin/ip xfrm policy add src $there dst $here dir in priority 2 tmpl src $there dst $here proto esp mode $mode
END
    # Bypasses the socket for ESP in UDP, as IKE daemons do. A policy without addresses would be for IPv4 only.
    if [ -n "$udp" ]; then
        local any=0.0.0.0/0
        [ "$family" = 4 ] || any=::/0
        echo "/usr/bin/ip xfrm policy add src $any dst $any proto 17 dport 4500 dir in priority 1"
    fi
    # Neighbour discovery is not protected.
    [ "$family" = 4 ] || for type in 135 136; do
        echo "/usr/bin/ip xfrm policy add src ::/0 dst ::/0 proto 58 type $type dir out priority 1"
        echo "/usr/bin/ip xfrm policy add src ::/0 dst ::/0 proto 58 type $type dir in priority 1"
    done
}

config() {
    local net=10.77.0.0/24 tunnel=''
    [ "$family" = 4 ] || net=fd77::/64
    [ "$mode" = transport ] || tunnel=$(printf 'mode = "tunnel"\ntunnel_local = "%s"\ntunnel_remote = "%s"' "$front" "$back")
    cat <<END
name = "ipsec"

[workers]
count = 2
idle = "adaptive"

[[port]]
name = "wire"
kind = "af_packet"
device = "wire"
mtu = $mtu

[[interface]]
name = "front"
port = "wire"
addresses = ["10.77.0.1/24", "fd77::1/64"]

[files]
paths = ["$work"]

[management]
socket = "$work/ddpd.sock"

[limits]
buffers_per_worker = "2 GiB"

[ipsec]
laboratory = true

[[ipsec.policy]]
name = "guest"
remote = "$net"
action = "protect"
$tunnel

[[ipsec.sa]]
name = "to-guest"
policy = "guest"
direction = "out"
spi = 0x1001
algorithm = "$algorithm"
key_file = "$work/out.key"
sequence_file = "$work/out.sequence"
esn = ${esn:-false}
udp = ${udp:-false}

[[ipsec.sa]]
name = "from-guest"
policy = "guest"
direction = "in"
spi = 0x2001
algorithm = "$algorithm"
key_file = "$work/in.key"
esn = ${esn:-false}
udp = ${udp:-false}

[[region]]
name = "box"
size = "4 MiB"
access = "rw"
shared = true

[[region]]
name = "pings"
size = "4 MiB"
access = "rw"
shared = true

[[region]]
name = "scratch"
size = "80 MiB"
access = "rw"
shared = true

[[listener]]
name = "region"
interface = "front"
port = 7471
ulp = "rdmap"
service = "region"
peer = "siw"
regions = ["box"]

[[listener]]
name = "rping"
interface = "front"
port = 7174
ulp = "rdmap"
service = "rping"
peer = "siw"
regions = ["pings"]

[[listener]]
name = "perftest"
interface = "front"
port = 18515
ulp = "rdmap"
service = "perftest"
peer = "siw"
regions = ["scratch"]

[[listener.queue]]
qn = 0
buffers = 512
buffer_size = "1 MiB"

[[listener]]
name = "ddp"
interface = "front"
port = 7475
regions = ["box"]
END
}

# --- rows ---

# row CASE RESULT: prints a row, which is good if RESULT is `ok`.
row() {
    rows=$((rows + 1))
    [ "$2" = ok ] || bad_row "$combination" "$1" "$2"
    printf '%-62s %-34s %s\n' "$combination" "$1" "$2"
}

# in_guest CASE SECONDS COMMAND: the row is good if the command succeeds in the guest.
in_guest() {
    local code=0
    guest_run "$2" "$3" >"$work/guest.out" || code=$?
    if [ "$code" -eq 0 ]; then
        row "$1" ok
    else
        row "$1" "BAD: exit code $code: $(tail -n 3 "$work/guest.out" | tr '\n\t' '  ' | cut -c1-200)"
    fi
}

# --- the wire ---

begin_capture() { start_capture "$work/wire.pcap" -i guest0; }

# tshark_words: prints tshark's names of the algorithms for encryption and integrity; fails for GMAC, which tshark lacks.
tshark_words() {
    local sha
    case $algorithm in *sha256) sha='HMAC-SHA-256-128 [RFC4868]' ;; *) sha='HMAC-SHA-1-96 [RFC2404]' ;; esac
    case $algorithm in
    aes*gcm16) echo 'AES-GCM with 16 octet ICV [RFC4106]|NULL' ;;
    aes*-sha*) echo "AES-CBC [RFC3602]|$sha" ;;
    null-sha*) echo "NULL|$sha" ;;
    *) return 1 ;;
    esac
}

# sa_line SOURCE DESTINATION SPI DIRECTION: prints the option of tshark for an SA.
sa_line() {
    local words encryption integrity name=IPv4
    words=$(tshark_words)
    [ "$family" = 4 ] || name=IPv6
    encryption=$(cat "$work/$4.encryption") integrity=$(cat "$work/$4.integrity")
    printf 'uat:esp_sa:"%s","%s","%s","%s","%s","%s","%s","%s"' "$name" "$1" "$2" "$3" "${words%|*}" \
        "${encryption:+0x$encryption}" "${words#*|}" "${integrity:+0x$integrity}"
}

check_wire() {
    local clear esp inside
    # No unprotected TCP or ping in either direction.
    clear=$(tshark -r "$work/wire.pcap" -Y '(tcp or icmp) and not esp' -T fields -e frame.number 2>/dev/null | wc -l)
    if [ "$clear" -eq 0 ]; then row "nothing in clear" ok; else row "nothing in clear" "BAD: $clear frames"; fi
    esp=$(tshark -r "$work/wire.pcap" -Y esp -T fields -e frame.number 2>/dev/null | wc -l)
    if ! tshark_words >/dev/null; then
        [ "$esp" -gt 100 ] && row "$esp frames of ESP (tshark has no $algorithm)" ok || row "frames of ESP" "BAD: $esp"
        return
    fi
    inside=$(tshark -r "$work/wire.pcap" -o esp.enable_encryption_decode:TRUE -o "$(sa_line "$front" "$back" 0x00001001 out)" \
        -o "$(sa_line "$back" "$front" 0x00002001 in)" -Y 'esp and tcp' -T fields -e frame.number 2>/dev/null | wc -l)
    if [ "$esp" -gt 100 ] && [ "$inside" -eq "$esp" ]; then
        row "tshark decrypts all of $esp frames" ok
    else
        row "tshark decrypts all frames" "BAD: $inside of $esp"
        cp "$work/wire.pcap" "$target/interop-ipsec-$rows.pcap"
    fi
}

# --- one combination ---

# combine ALGORITHM MODE ESN UDP FAMILY [more]: runs all cases of a combination; with `more` also perftest.
combine() {
    algorithm=$1 mode=$2 esn='' udp='' family=$5
    [ "$3" = - ] || esn=true
    [ "$4" = - ] || udp=true
    if [ "$family" = 4 ]; then front=10.77.0.1 back=10.77.0.2; else front=fd77::1 back=fd77::2; fi
    combination="$algorithm, $mode${esn:+, ESN}${udp:+, UDP}, IPv$family"
    stop_ddpd
    rm -f "$work"/*.sequence
    new_keys in
    new_keys out
    guest_xfrm >"$guest_dir/share/xfrm.sh"
    if ! guest_run 30 "sh /host/xfrm.sh" >"$work/guest.out"; then
        row "the guest's kernel takes it" "BAD: $(tail -n 3 "$work/guest.out" | tr '\n' ' ')"
        return
    fi
    start_ddpd
    begin_capture
    in_guest "rping" 60 "rping -c -a $front -v -V -C 20 -S 5000 >/tmp/rping && [ \$(grep -c '^ping data' /tmp/rping) = 20 ]"
    if [ "$family" = 4 ]; then
        in_guest "siw: a file there and back" 60 "siwverbs client $front 7471 write:/host/file read:/host/file"
        compare "siw: the region has its bytes"
        [ -z "${6:-}" ] || in_guest "ib_send_bw" 60 "ib_send_bw -R -s 65536 -n 5 -p 18515 -F $front"
    fi
    local at=$front
    [ "$family" = 4 ] || at="[$front]"
    in_guest "kernel sockets: put to ddpd" 60 "/tmp/ddpctl put --kernel /host/other tcp://$at:7475/box"
    compare "kernel sockets: the region has it" "$guest_dir/share/other"
    from_here
    stop_capture
    check_wire
    check_counters
}

# compare CASE [FILE]: the row is good if the region begins with the file.
compare() {
    if api regions read box --length "$file_bytes" --output "$work/box.bin" >/dev/null && cmp -s "$work/box.bin" "${2:-$guest_dir/share/file}"; then
        row "$1" ok
    else
        row "$1" "BAD: other bytes"
    fi
}

from_here() {
    local at=$back tag=served$rows
    [ "$family" = 4 ] || at="[$back]"
    guest_begin "$tag" 60 "rm -f /tmp/got; /tmp/ddpctl serve-kernel $at:7481 --size 1MiB --file /tmp/got --connections 1 && cmp -n $file_bytes /tmp/got /host/file"
    wait_until 30 grep -q -i listen "$guest_dir/share/$tag.out" || true
    if api put "$guest_dir/share/file" "tcp://$at:7481/inbox" >"$work/put.out" 2>&1; then
        row "put to kernel sockets" ok
    else
        row "put to kernel sockets" "BAD: $(tr '\n' ' ' <"$work/put.out" | cut -c1-200)"
    fi
    if guest_end "$tag" 60 >"$work/guest.out"; then row "the guest has it" ok; else row "the guest has it" "BAD: $(tail -n 2 "$work/guest.out" | tr '\n' ' ')"; fi
}

check_counters() {
    local bad
    bad=$(api --json ipsec counters | jq -c 'with_entries(select(.value > 0 and (.key | test("^(drop_|unsent_)"))))')
    # A neighbour's multicast reports may match no policy.
    bad=$(jq -c 'del(.drop_ipsec_no_policy)' <<<"$bad")
    if [ "$bad" = '{}' ]; then row "nothing refused" ok; else row "nothing refused" "BAD: $bad"; fi
}

guest_prepare() {
    cp "$work/ddpctl.stripped" "$guest_dir/share/ddpctl"
    guest_run 60 "cp /host/ddpctl /tmp/ddpctl && chmod 755 /tmp/ddpctl && /usr/bin/ip addr add fd77::2/64 dev eth0 nodad" >"$work/guest.out" ||
        die "the guest has no ddpctl: $(cat "$work/guest.out")"
    guest_begin encap 100000 "exec siwverbs encap 4500"
    for name in file other; do head -c "$file_bytes" /dev/urandom >"$guest_dir/share/$name"; done
}

build_programs
strip -o "$work/ddpctl.stripped" "$ddpctl"
make_bridge
links_up
GUEST_NO_IPV6=0 guest_boot "$ns" guest0 10.77.0.2/24 1500
guest_prepare

if [ -n "${IPSEC_ONLY:-}" ]; then
    # One combination with additional output, for debugging.
    read -ra only <<<"$IPSEC_ONLY"
    combine "${only[@]}"
    guest_run 20 "cat /proc/net/xfrm_stat | grep -v ' 0$'; /usr/bin/ip -s xfrm state" || true
    api ipsec counters
    api ipsec sas
    end_rows
    exit 0
fi
combine aes128gcm16 transport esn - 4 more
combine aes256-sha256 tunnel - - 4
combine chacha20poly1305 transport - udp 4
combine aes256gcm16 tunnel esn - 6
if [ -z "$short" ]; then
    for a in aes128gcm16 aes256gcm16 chacha20poly1305 aes128gmac aes256gmac aes128-sha256 aes256-sha256 aes128-sha1 aes256-sha1 \
        null-sha256 null-sha1; do
        for m in transport tunnel; do combine "$a" "$m" - - 4; done
    done
    for a in aes128gcm16 aes128gmac chacha20poly1305 aes128-sha256 null-sha256; do
        combine "$a" transport esn - 6
        combine "$a" tunnel - udp 6
        combine "$a" tunnel esn udp 4
    done
fi

echo
end_rows
say "all $rows rows are good after $SECONDS s"
