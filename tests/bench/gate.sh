#!/bin/bash
# gate.sh BUILD: the hot path may not grow unnoticed. Instructions of a warm allocate-and-free pair,
# less those of the program alone, against the limits in gate.txt. Instructions, since they are the
# same on every run and machine of a kind; time is not. Ends with a line like Criterion's.
set -u
here=$(dirname "$0")
build=$1
tested=0 failed=0

finish() {
    local bad=$1
    echo "[====] Synthesis: Tested: $tested | Passing: $((tested - bad)) | Failing: $bad | Crashing: 0"
    exit "$((bad > 0))"
}

if ! command -v valgrind >/dev/null; then
    echo '[SKIP] gate::instructions: no valgrind'
    finish 0
fi
if [ "$(uname -m)" != x86_64 ]; then
    echo '[SKIP] gate::instructions: the limits are those of x86-64'
    finish 0
fi

plain=$("$here/instructions.sh" "$build") || { tested=1; finish 1; }
while read -r stacks limit; do
    tested=$((tested + 1))
    if ! total=$("$here/instructions.sh" "$build" LD_PRELOAD="$build/libcuheap.so" \
        CUHEAP_STACKS="$stacks"); then
        echo "[FAIL] gate::$stacks: the program could not be counted"
        failed=$((failed + 1))
        continue
    fi
    count=$((total - plain))
    echo "gate: $count instructions a pair, limit $limit (stacks: $stacks)"
    if [ "$count" -gt "$limit" ] || [ "$count" -le 0 ]; then
        echo "[FAIL] gate::$stacks: $count instructions a pair, limit $limit"
        failed=$((failed + 1))
    else
        echo "[PASS] gate::$stacks"
    fi
done < <(grep -v '^#' "$here/gate.txt")
finish "$failed"
