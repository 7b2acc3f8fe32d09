#!/bin/bash
# lines.sh BUILD OUT: does each tensor of a PyTorch training script name the line that made it, and those
# of autograd's own threads the line that waits in backward()? Writes OUT/lines.txt.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
mkdir -p "$2" && out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || {
    echo '[SKIP] lines::all: no PyTorch with CUDA here'
    exit 0
}
CUHEAP_OUT="$work/%p.trace" LD_PRELOAD="$build/libcuheap.so" python3 "$here/lines.py" >"$work/log" 2>&1 || cat "$work/log"
"$build/cuheap" report --json "$work"/*.trace >"$work/report.json"
{
    python3 -c 'import sys, torch; print("PyTorch", torch.__version__, "on", torch.cuda.get_device_name(), "Python", sys.version.split()[0])'
    echo
    python3 "$here/lines_table.py" "$here/lines.py" "$work/report.json"
} >"$out/lines.txt"
code=$?
cat "$out/lines.txt"
if [ $code -eq 0 ]; then echo '[PASS] lines::training'; else echo '[FAIL] lines::training'; fi
echo "[====] Synthesis: Tested: 1 | Passing: $((code == 0)) | Failing: $((code != 0)) | Crashing: 0"
exit $code
