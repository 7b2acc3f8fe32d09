#!/bin/bash
# instructions.sh BUILD [NAME=VALUE...]: instructions that a warm allocate-and-free pair takes, as
# callgrind counts them, with these settings in the environment. Used by gate.sh and bench.sh.
#
# Two runs of different length: what is cold or done once is in both and falls out.
set -eu
build=$(realpath "$1")
shift
few=1000 many=3000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

count() {
    local pairs=$1
    shift
    if ! env LD_LIBRARY_PATH="$build/simgpu" CUHEAP_OUT="$work/%p.trace" "$@" \
        valgrind --tool=callgrind --callgrind-out-file="$work/out" \
        --toggle-collect=measured "$build/e2e/bench_pairs" 1 "$pairs" 1 >"$work/log" 2>&1; then
        cat "$work/log" >&2
        return 1
    fi
    # The last one: a short-lived child of the library's says so too, and has done nothing.
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$work/log" | tail -n 1
}

short=$(count $few "$@")
long=$(count $many "$@")
echo $(((long - short) / (many - few)))
