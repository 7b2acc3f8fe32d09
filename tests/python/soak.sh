#!/bin/bash
# soak.sh BUILD [MINUTES]: stress.py on the oldest and the newest CPython found, side by side, in
# rounds of a minute at most for MINUTES (30); each allocation of each round is compared. `make
# soak`. A mismatch, a crash, a hang or a note that Python stacks went off ends that version's run.
# The last line sums up.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
minutes=${2:-30}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
interpreters=$("$here/interpreters.sh" "$build" | grep -vE '^3\.[0-7]\.')
[ -n "$interpreters" ] || { echo 'soak: no CPython of 3.8 or later' && exit 2; }
unset CUHEAP_PYTHONS
export PROBE=$build/python/probe.so PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1

round() {
    local version=$1 python=$2 seed=$3 folder=$work/$1-$3 rc
    mkdir "$folder"
    timeout -k 5 600 env LD_LIBRARY_PATH="$build/simgpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        LD_PRELOAD="$build/libcuheap.so" SIMGPU_MEMORY=1024G CUHEAP_OUT="$folder/%p.trace" \
        CUHEAP_MAX_SIZE=4G "$python" "$here/stress.py" "$folder" 60 "$seed" </dev/null
    rc=$?
    [ $rc -eq 0 ] || echo "$version: exit status $rc in round $seed"
    python3 "$here/compare.py" "$build/cuheap" "$folder" && [ $rc -eq 0 ]
    rc=$?
    [ $rc -eq 0 ] && rm -rf "$folder"
    return $rc
}

soak() {
    local version=$1 python=$2 seed
    for ((seed = 1; SECONDS < 60 * minutes; seed++)); do
        round "$version" "$python" $seed || { echo FAILED && return; }
    done
}

while read -r version python; do
    soak "$version" "$python" >"$work/$version.log" 2>&1 &
done < <(sed -n '1p;$p' <<<"$interpreters" | uniq)
wait

failed=0
for log in "$work"/*.log; do
    version=$(basename "$log" .log)
    rounds=$(grep -c ' checks, ' "$log")
    checks=$(awk '/ checks, / { sum += $1 } END { print sum + 0 }' "$log")
    wrong=$(awk '/ checks, / { sum += $3 } END { print sum + 0 }' "$log")
    if grep -q '^FAILED' "$log"; then
        failed=1
        tail -n 20 "$log"
    fi
    echo "CPython $version: $rounds rounds, $checks allocations compared, $wrong mismatches"
done
[ $failed -eq 0 ] && echo "soak: clean, $((SECONDS / 60)) minutes" && exit 0
echo 'soak: FAILED'
exit 1
