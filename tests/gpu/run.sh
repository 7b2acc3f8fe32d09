#!/bin/bash
# run.sh BUILD OUT: the same comparison as tests/e2e, on a real GPU. Writes one text file a program
# into OUT: what it printed, the report, both numbers side by side. They are kept in examples/gpu.
#
# BUILD may come from another machine: only libcuheap.so and cuheap are used. Libraries that cuheap
# needs and this machine lacks (libdw, libjansson, libunwind) are found by the caller's
# LD_LIBRARY_PATH. Ends with a line like Criterion's; what this machine lacks is skipped with a word.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$(dirname "$here")")
build=$(realpath "$1")
mkdir -p "$2" && out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# A usable GPU, not only a libcuda: a machine can have the one without the other.
has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

skip() { echo "[SKIP] gpu::$1: $2"; }

verdict() {
    if [ "$2" -eq 0 ]; then
        echo "[PASS] gpu::$1"
        passed=$((passed + 1))
    else
        echo "[FAIL] gpu::$1: see $out/$1.txt"
        failed=$((failed + 1))
    fi
}

# compare_run NAME HOW COMMAND...: runs it plain and traced; outputs and exit codes must be equal
# but for what differs between two plain runs (none for HOW = kinds; times for torch).
compare_run() {
    local name=$1 how=$2 rc plain_rc bad
    shift 2
    (cd "$work" && "$@" >plain.out 2>plain.err)
    plain_rc=$?
    rm -f "$work"/*.trace*
    : >"$work/bad"
    (cd "$work" && CUHEAP_OUT="$work/%p.trace" LD_PRELOAD="$build/libcuheap.so" "$@" >traced.out 2>traced.err)
    rc=$?
    {
        echo "\$ LD_PRELOAD=\$(cuheap lib) ${*/$work\//}"
        cat "$work/traced.out"
        echo
        [ "$rc" -eq "$plain_rc" ] || { echo "exit code $rc, without cuheap $plain_rc"; echo '!' >>"$work/bad"; }
        diff "$work/plain.err" "$work/traced.err" || echo '!' >>"$work/bad"
        [ "$how" != kinds ] || diff "$work/plain.out" "$work/traced.out" || echo '!' >>"$work/bad"
        echo "exit code $rc, with cuheap and without"
        echo
        "$build/cuheap" report --json "$work"/*.trace >"$work/report.json" || echo '!' >>"$work/bad"
        python3 "$here/compare.py" "$how" "$work/traced.out" "$work/report.json" || echo '!' >>"$work/bad"
        echo
        echo "\$ cuheap report"
        COLUMNS=120 "$build/cuheap" report "$work"/*.trace || echo '!' >>"$work/bad"
    } 2>&1 | sed "s|$work/||g; s|$top/||g; s|$build|build|g" >"$out/$name.txt"
    bad=$(grep -c '^!' "$work/bad")
    verdict "$name" "$bad"
}

if ! has_gpu; then
    skip all 'no GPU'
elif ! command -v nvcc >/dev/null; then
    skip allocs 'no nvcc'
else
    for runtime in static shared; do
        if nvcc -g -O1 -lineinfo -cudart $runtime -o "$work/allocs" "$here/allocs.cu" 2>"$out/allocs-$runtime.txt"; then
            compare_run "allocs-$runtime" kinds "$work/allocs"
        else
            verdict "allocs-$runtime" 1
        fi
    done
fi

# The example of the README, as it prints it.
if has_gpu && [ -x "$build/examples/leak" ]; then
    COLUMNS=100 sh "$top/examples/demo.sh" "$build" 2>&1 |
        sed "s|/[^ ]*/leak.trace|leak.trace|g" >"$out/leak.txt"
    grep -q 'on the GPU' "$out/leak.txt" &&
        grep -q '125849600 bytes)  *in 40 blocks' "$out/leak.txt" &&
        grep -q '703605248 bytes)' "$out/leak.txt"
    verdict leak $?
fi

# A training that runs out of memory, on this card made to look like one of 16 GiB.
if has_gpu && [ -x "$build/examples/gpt2" ]; then
    {
        echo '$ cuheap run --limit 16GiB -- build/examples/gpt2'
        "$build/cuheap" run --quiet --limit 16GiB --out "$work/gpt2.trace" -- "$build/examples/gpt2" 2>&1
        printf '\n$ cuheap report\n'
        COLUMNS=100 "$build/cuheap" report "$work/gpt2.trace" 2>&1
    } | sed "s|$work/||g; s|$top/||g" >"$out/gpt2.txt"
    grep -q 'oom.capacity' "$out/gpt2.txt" && grep -q 'attention_qkv (gpt2.c:' "$out/gpt2.txt"
    verdict gpt2 $?
fi

if has_gpu; then
    if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        compare_run train torch python3 "$top/examples/train.py"
    else
        skip train 'no PyTorch with CUDA'
    fi
    {
        nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
        uname -sr
        nvcc --version 2>/dev/null | tail -n 2
        python3 -c 'import torch; print("PyTorch", torch.__version__)' 2>/dev/null
    } >"$out/machine.txt"
fi

echo "[====] Synthesis: Tested: $((passed + failed)) | Passing: $passed | Failing: $failed | Crashing: 0"
[ "$failed" -eq 0 ]
