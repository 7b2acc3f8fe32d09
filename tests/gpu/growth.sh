#!/bin/bash
# growth.sh BUILD OUT: examples/keep_loss.py, however it ends and wherever it keeps its list, must be
# reported as growing; the same training without the leak must not. Writes OUT/growth.txt.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$(dirname "$here")")
build=$(realpath "$1")
mkdir -p "$2" && out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || {
    echo '[SKIP] growth::all: no PyTorch with CUDA here'
    exit 0
}

# check NAME WANTED PROGRAM...: WANTED is yes or no.
check() {
    local name=$1 wanted=$2
    shift 2
    rm -f "$work"/*.trace
    CUHEAP_OUT="$work/%p.trace" LD_PRELOAD="$build/libcuheap.so" python3 "$@" >"$work/log" 2>&1
    local code=$?
    "$build/cuheap" report --json "$work"/*.trace >"$work/report.json"
    if python3 "$here/growth.py" "$wanted" "$work/report.json" >"$work/verdict"; then
        passed=$((passed + 1))
        echo "[PASS] growth::$name"
    else
        failed=$((failed + 1))
        echo "[FAIL] growth::$name"
    fi
    printf '%-18s exit %3s  %s\n' "$name" "$code" "$(cat "$work/verdict")" >>"$out/growth.txt"
}

echo 'examples/keep_loss.py, by where the list lives and how the program ends' >"$out/growth.txt"
for where in local global; do
    for end in return exit exception kill; do
        check "$where-$end" yes "$top/examples/keep_loss.py" --where $where --end $end
    done
done
check no-leak no "$top/examples/train.py"
rm -f "$work"/*.trace
CUHEAP_OUT="$work/%p.trace" LD_PRELOAD="$build/libcuheap.so" python3 "$top/examples/keep_loss.py" >/dev/null 2>&1
COLUMNS=120 "$build/cuheap" report "$work"/*.trace 2>&1 | sed "s|$work/||g; s|$top/||g" >"$out/keep_loss.txt"
cat "$out/growth.txt"
echo "[====] Synthesis: Tested: $((passed + failed)) | Passing: $passed | Failing: $failed | Crashing: 0"
[ "$failed" -eq 0 ]
