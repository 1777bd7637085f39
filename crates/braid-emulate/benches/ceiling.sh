#!/bin/sh
# Measures the rate that the emulator carries on this machine, and its cost. Needs root, iperf3 and jq; BRAID
# names the binary (default: braid). Everything it makes is gone when it ends.
#
#   sudo BRAID=target/release/braid crates/braid-emulate/benches/ceiling.sh [SECONDS]
#
# One line per case: goodput that iperf3 received in each direction (Mbit/s); the emulator's CPU
# time as a share of one core, which includes the receiving kernel's work for each packet; how late
# it wrote packets after they were due (µs); packets that the kernel dropped outside of its queue.
set -eu

braid=${BRAID:-braid}
seconds=${1:-5}
a=brc-$$-a
b=brc-$$-b
work=$(mktemp -d)
# The servers' and emulators' process ids are their files' names.
stop() {
    for pid in "$work"/pids/*; do
        [ -e "$pid" ] && kill "$(basename "$pid")" 2>/dev/null && wait "$(basename "$pid")" || true
        rm -f "$pid"
    done
}
clean() {
    stop
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM
mkdir "$work/pids"
ip netns add "$a"
ip netns add "$b"

# link NUMBER OPTION...: an emulated link 10.98.NUMBER.0/24 with an iperf3 server at b.
link() {
    n=$1
    shift
    mkfifo "$work/ready$n"
    "$braid" emulate --a "$a:l$n" --b "$b:l$n" --control "$work/$n.sock" "$@" >"$work/ready$n" &
    : >"$work/pids/$!"
    # The ready line; the pipe stays open, or the emulator could not print its last line.
    exec 3<"$work/ready$n"
    read -r _ <&3
    ip -n "$a" addr add "10.98.$n.1/24" dev "l$n"
    ip -n "$b" addr add "10.98.$n.2/24" dev "l$n"
    ip netns exec "$b" iperf3 --server --bind "10.98.$n.2" >"$work/server$n" 2>&1 &
    : >"$work/pids/$!"
    until ip netns exec "$b" ss -Htln "src 10.98.$n.2:5201" | grep -q .; do :; done
}

# traffic NUMBER OPTION...: loads a link through iperf3 in the background of the caller.
traffic() {
    n=$1
    shift
    ip netns exec "$a" iperf3 --client "10.98.$n.2" --time "$seconds" --json "$@" >"$work/load$n.json"
}

show() {
    name=$1
    n=$2
    # The kernel's work for the load's own processes is not the emulator's.
    "$braid" emulate-ctl "$work/$n.sock" stats >"$work/stats$n.json"
    jq -r --slurpfile load "$work/load$n.json" --arg name "$name" --arg seconds "$seconds" '
        .stats as $s | $load[0].end as $e |
        def mbits(x): if x == null then "-" else (x.bits_per_second / 1e5 | round / 10) end;
        [$name, mbits($e.sum_received // $e.sum), mbits($e.sum_received_bidir_reverse),
         ($s.cpu_seconds / ($seconds | tonumber) * 100 | round),
         $s.up.late_us.p50, $s.up.late_us.p99, $s.up.late_us.max,
         $s.up.kernel_dropped_before + $s.down.kernel_dropped_before] |
        map(tostring) | join("\t")' "$work/stats$n.json"
}

heading='link\tup\tdown\tCPU %\tlate p50\tp99\tmax\tdropped'
{
    printf '%b\n' "$heading"
    for rate in 20 100 300 500 1000; do
        link 1 --rate "${rate}Mbit/s" --delay 10ms --queue 1000p
        traffic 1
        show "$rate" 1
        stop
        rm -f "$work/ready1"
    done
    link 1 --delay 10ms
    traffic 1
    show unlimited 1
    stop
    rm -f "$work/ready1"
    # Two links of 100 Mbit/s, both directions of both at once.
    link 1 --rate 100Mbit/s --delay 10ms --queue 1000p
    link 2 --rate 100Mbit/s --delay 10ms --queue 1000p
    traffic 1 --bidir &
    first=$!
    traffic 2 --bidir
    wait "$first"
    show "2x100 (1)" 1
    show "2x100 (2)" 2
    stop
} | column -t -s "$(printf '\t')"
