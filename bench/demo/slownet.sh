#!/usr/bin/env bash
# A slow network on one machine: a network namespace behind a veth pair whose two ends are shaped by tbf.
#
# To be sourced:
#   slownet_enter "$0" "$@"   first of all: without the right to make namespaces, runs the script again in a user
#                             namespace of its own where that is allowed (variables are kept, processes are new)
#   slownet_up RATE           RATE as tc writes it: 100mbit, 1gbit. Sets SLOWNET_MODE (netns or pacing),
#                             SLOWNET_HOST and SLOWNET_NODE (addresses of the two ends)
#   slownet_exec CMD ARG...   runs CMD behind the slow link (in pacing mode: plainly, on loopback)
#   slownet_bytes             "BYTES_TO_NODE BYTES_FROM_NODE" over the link since slownet_up
#   slownet_down              removes everything; call it from the EXIT trap
# Where nothing of this is possible SLOWNET_MODE is pacing: the caller then limits the rate in the programs themselves.
#
# By itself:  slownet.sh RATE [CMD ARG...]  prints the addresses, runs CMD behind the link and cleans up.
# The kernel's netem is not used: the delay is the business of vericache-relay.

SLOWNET_MODE=none
SLOWNET_HOST=127.0.0.1
SLOWNET_NODE=127.0.0.1
SLOWNET_PID=
SLOWNET_WHY=

slownet_note() { echo "slownet: $*" >&2; }

# Whether this process may make a namespace and a veth pair with a tbf.
slownet_can() {
    for tool in ip tc unshare nsenter; do
        command -v "$tool" >/dev/null || { SLOWNET_WHY="$tool is not installed"; return 1; }
    done
    # Tried in a namespace that vanishes with the shell, so nothing has to be undone.
    unshare -n sh -c 'ip link add dev vca type veth peer name vcb &&
        tc qdisc add dev vca root tbf rate 100mbit burst 128kb latency 50ms' >/dev/null 2>&1 ||
        { SLOWNET_WHY="no right to make a network namespace, or the kernel lacks veth or tbf"; return 1; }
}

slownet_enter() {
    [ -n "${SLOWNET_ENTERED:-}" ] && { ip link set dev lo up; return 0; }
    slownet_can && return 0
    command -v unshare >/dev/null || return 0
    # shellcheck disable=SC2016 # the inner shell expands it
    # The inner shell tries the whole thing before we give up the outer one.
    if unshare -rn bash -c '. "$1" && slownet_can' _ "${BASH_SOURCE[0]}" >/dev/null 2>&1; then
        SLOWNET_ENTERED=1 exec unshare -rn bash "$@"
    fi
    return 0
}

# Bits per second of a rate in tc's words.
slownet_bits() {
    local number=${1%%[a-zA-Z]*} unit=${1##*[0-9.]} scale
    case "$unit" in
    '' | bit) scale=1 ;; kbit) scale=1000 ;; mbit) scale=1000000 ;; gbit) scale=1000000000 ;;
    *) return 1 ;;
    esac
    awk -v n="$number" -v s="$scale" 'BEGIN { if (n + 0 <= 0) exit 1; printf "%d\n", n * s }'
}

slownet_pacing() {
    SLOWNET_MODE=pacing
    slownet_note "no shaped network here ($1); the pacing built into the programs is used"
}

# The bucket holds 5 ms of the rate and a whole segment of the largest offload at least.
slownet_shape() { # NETNS_PREFIX... -- DEV RATE BURST
    local run=()
    while [ "$1" != -- ]; do run+=("$1"); shift; done
    shift
    "${run[@]}" tc qdisc add dev "$1" root tbf rate "$2" burst "$3" latency 50ms
}

slownet_wire() { # RATE BURST
    local host=vcslow$$a node=vcslow$$b in=(nsenter -n -t "$SLOWNET_PID")
    host=${host:0:15} node=${node:0:15}
    SLOWNET_DEV=$host
    ip link add dev "$host" type veth peer name "$node" &&
        ip link set dev "$node" netns "$SLOWNET_PID" &&
        ip address add "$SLOWNET_HOST/30" dev "$host" &&
        ip link set dev "$host" up &&
        "${in[@]}" ip link set dev lo up &&
        "${in[@]}" ip address add "$SLOWNET_NODE/30" dev "$node" &&
        "${in[@]}" ip link set dev "$node" up &&
        slownet_shape -- "$host" "$1" "$2" &&
        slownet_shape "${in[@]}" -- "$node" "$1" "$2"
}

slownet_up() {
    local bits burst net
    bits=$(slownet_bits "$1") || { slownet_note "'$1' is not a rate"; return 64; }
    slownet_can || { slownet_pacing "$SLOWNET_WHY"; return 0; }
    burst=$((bits / 8 / 200))
    [ "$burst" -lt 131072 ] && burst=131072
    # A /30 of its own per process, so that two demos do not meet.
    net=$((($$ % 16000) * 4))
    SLOWNET_HOST=10.213.$((net / 256)).$((net % 256 + 1))
    SLOWNET_NODE=10.213.$((net / 256)).$((net % 256 + 2))
    # The namespace lives as long as this sleeper; it tells us when it is inside.
    exec {SLOWNET_FD}< <(exec unshare -n sh -c 'echo "$$"; exec sleep infinity >/dev/null')
    read -r SLOWNET_PID <&"$SLOWNET_FD"
    if [ -z "$SLOWNET_PID" ] || ! slownet_wire "$bits" "$burst"; then
        slownet_down
        SLOWNET_HOST=127.0.0.1 SLOWNET_NODE=127.0.0.1
        slownet_pacing "setting up the veth pair failed"
        return 0
    fi
    SLOWNET_MODE=netns
    slownet_note "$1 each way between $SLOWNET_HOST (here) and $SLOWNET_NODE (behind the link)"
}

slownet_exec() {
    if [ "$SLOWNET_MODE" = netns ]; then
        nsenter -n -t "$SLOWNET_PID" "$@"
    else
        "$@"
    fi
}

slownet_bytes() {
    [ "$SLOWNET_MODE" = netns ] || { echo "0 0"; return 0; }
    # What this end received came from the node, what it sent went there.
    ip -s link show dev "$SLOWNET_DEV" | awk '/RX:/ { getline; from = $1 } /TX:/ { getline; to = $1 } END { print to, from }'
}

slownet_down() {
    [ -n "$SLOWNET_PID" ] && kill "$SLOWNET_PID" 2>/dev/null # the namespace goes, and the veth pair with it
    [ -n "${SLOWNET_FD:-}" ] && exec {SLOWNET_FD}<&-
    [ -n "${SLOWNET_DEV:-}" ] && ip link del dev "$SLOWNET_DEV" 2>/dev/null
    SLOWNET_PID='' SLOWNET_FD='' SLOWNET_DEV='' SLOWNET_MODE=none
    return 0
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -u
    [ $# -ge 1 ] || { echo "usage: slownet.sh RATE [CMD ARG...]" >&2; exit 64; }
    slownet_enter "$0" "$@"
    trap slownet_down EXIT
    slownet_up "$1" || exit $?
    shift
    echo "mode=$SLOWNET_MODE host=$SLOWNET_HOST node=$SLOWNET_NODE"
    if [ $# -gt 0 ]; then
        slownet_exec "$@"
    fi
fi
