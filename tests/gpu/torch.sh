#!/bin/bash
# torch.sh BUILD OUT: PyTorch's own counters against the tensor ledger, for the ways in which people use
# its allocator. Writes the table OUT/tensors.txt. As run.sh, it takes BUILD from another machine.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
mkdir -p "$2" && out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || {
    echo '[SKIP] torch::all: no PyTorch with CUDA here'
    exit 0
}

settings() {
    case $1 in
    expandable) echo PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ;;
    malloc_async) echo PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync ;;
    *) echo NONE= ;;
    esac
}

{
    python3 -c 'import sys, torch; print("PyTorch", torch.__version__, "on", torch.cuda.get_device_name(), "Python", sys.version.split()[0])'
    echo
    printf '%-14s%29s %29s %29s %29s %29s\n' '' allocations frees 'live bytes' 'peak bytes' 'out of memory'
    printf '%-14s' 'case'
    for _ in 1 2 3 4 5; do printf '%14s %14s ' PyTorch cuheap; done
    echo
} >"$out/tensors.txt"
for case in training inference checkpointing compile graphs expandable malloc_async dataloader out_of_memory; do
    rm -f "$work"/*.trace
    env "$(settings $case)" CUHEAP_OUT="$work/%p.trace" LD_PRELOAD="$build/libcuheap.so" \
        python3 "$here/torch_cases.py" $case >"$work/stats" 2>"$work/err" || cat "$work/err"
    "$build/cuheap" report --json "$work"/*.trace >"$work/report.json"
    if python3 "$here/torch_table.py" $case "$work/stats" "$work/report.json" >>"$out/tensors.txt"; then
        passed=$((passed + 1))
        echo "[PASS] torch::$case"
    else
        failed=$((failed + 1))
        echo "[FAIL] torch::$case"
        "$build/cuheap" info "$work"/*.trace >"$out/$case.info" 2>&1
    fi
done
cat "$out/tensors.txt"
echo "[====] Synthesis: Tested: $((passed + failed)) | Passing: $passed | Failing: $failed | Crashing: 0"
[ "$failed" -eq 0 ]
