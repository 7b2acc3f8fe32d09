#!/bin/bash
# bench.sh BUILD: what tracing costs, on the simulated driver: time and instructions of an
# allocate-and-free pair, with and without stacks, on one and two threads; the capture of a warm
# Python stack on each CPython found; load time of a program that uses no GPU. Plain and traced runs
# take turns, so that a machine that slows down slows both.
set -u
here=$(dirname "$0")
build=$(realpath "$1")
turns=${TURNS:-9} pairs=20000 rounds=5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pair_ns() {
    local threads=$1
    shift
    env LD_LIBRARY_PATH="$build/simgpu" CUHEAP_OUT="$work/%p.trace" "$@" \
        "$build/e2e/bench_pairs" "$threads" "$pairs" "$rounds" | cut -d' ' -f2
    rm -f "$work"/*.trace
}

median() { sort -n | sed -n "$(((turns + 1) / 2))p"; }

instructions() {
    command -v valgrind >/dev/null || { echo -; return; }
    "$here/instructions.sh" "$build" "$@" 2>/dev/null || echo -
}

row() { printf '%-24s %8s %12s %12s %14s\n' "$@"; }

echo "machine   $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
echo "kernel    $(uname -sr)"
echo "versions  $("$build/cuheap" --version), $(getconf GNU_LIBC_VERSION), $(${CC:-gcc} --version | head -n 1)"
echo
row 'pair, by stacks taken' threads 'ns a pair' 'over plain' instructions
preload=LD_PRELOAD=$build/libcuheap.so
for threads in 1 2; do
    rm -f "$work"/t.*
    for ((turn = 0; turn < turns; turn++)); do
        pair_ns $threads NONE= >>"$work/t.plain"
        pair_ns $threads "$preload" CUHEAP_STACKS=none >>"$work/t.none"
        pair_ns $threads "$preload" CUHEAP_STACKS=native >>"$work/t.native"
    done
    plain=$(median <"$work/t.plain")
    for stacks in plain none native; do
        ns=$(median <"$work/t.$stacks")
        count=-
        if [ $threads -eq 1 ]; then
            case $stacks in
            plain) count=$(instructions) && base=$count ;;
            *) count=$(instructions "$preload" CUHEAP_STACKS=$stacks) ;;
            esac
            [ "$count" != - ] && [ $stacks != plain ] && count="+$((count - base))"
        fi
        row "$stacks" "$threads" "$ns" "$((ns - plain))" "$count"
    done
done

python_row() {
    local version=$1 python=$2 depth=$3 added without
    read -r added without < <(env LD_LIBRARY_PATH="$build/simgpu" LD_PRELOAD="$build/libcuheap.so" \
        CUHEAP_OUT="$work/%p.trace" CUHEAP_STACKS=python \
        "$python" "$here/python_stack.py" "$build/python/probe.so" "$depth" 2000 $((turns * 40)))
    echo "python stack of $depth frames: $added ns (CPython $version, a pair without: $without ns)"
}

echo
while read -r version python; do
    for depth in 10 30; do
        python_row "$version" "$python" $depth
    done
done < <("$here/../python/interpreters.sh" "$build" | grep -vE '^3\.[0-7]\.')
echo
read -r without with < <("$build/e2e/bench_load" "$build/libcuheap.so" 500 /bin/true)
echo "load time of /bin/true: $without us without, $with us with, $((with - without)) us added"
