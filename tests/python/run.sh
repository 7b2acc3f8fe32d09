#!/bin/bash
# run.sh BUILD: the Python stacks of each CPython found, compared frame by frame with what Python
# itself says (see situations.py and compare.py), as many at a time as there are processors. Those
# not found are skipped with a word. Ends with a line like Criterion's.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
known='3.8 3.9 3.10 3.11 3.12 3.13 3.14 3.15 3.13t 3.14t 3.15t'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
interpreters=$("$here/interpreters.sh" "$build")
unset CUHEAP_PYTHONS

export PROBE=$build/python/probe.so PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
export PYTHONWARNINGS=ignore::DeprecationWarning # forking with threads is meant

traced() {
    local folder=$1 stacks=$2
    shift 2
    mkdir "$folder"
    timeout -k 5 120 env LD_LIBRARY_PATH="$build/simgpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        LD_PRELOAD="$build/libcuheap.so" CUHEAP_OUT="$folder/%p.trace" CUHEAP_STACKS="$stacks" "$@"
}

# case_of NAME PYTHON STACKS MODE PROGRAM ARGUMENT...: MODE is an option of compare.py, or "".
case_of() {
    local name=$1 python=$2 stacks=$3 mode=$4 program=$5 folder=$work/$1.files output rc
    shift 5
    output=$(traced "$folder" "$stacks" "$python" "$here/$program" "$folder" "$@" 2>&1)
    rc=$?
    grep '^absent: ' <<<"$output" | sort -u | sed "s/^absent: \(.*\)/[SKIP] python::\1: no \1/"
    output=$(grep -v '^absent: ' <<<"$output")
    if [ $rc -ne 0 ] || [ -n "$output" ]; then
        printf '%s\nexit status %d\n' "$output" $rc
        rc=1
    fi
    if python3 "$here/compare.py" "$build/cuheap" "$folder" ${mode:+"$mode"} && [ $rc -eq 0 ]; then
        echo "[PASS] python::$name"
    else
        echo "[FAIL] python::$name"
    fi
    rm -rf "$folder"
}

cases_of() {
    local version=$1 python=$2
    echo "== CPython $version, $python"
    if [[ $version == 3.[0-7].* ]]; then
        case_of "refused-$version" "$python" native,python --refused refused.py
        return
    fi
    case_of "situations-$version" "$python" native,python '' situations.py
    case_of "teardown-$version" "$python" native,python --teardown teardown.py
    case_of "stacks=python-$version" "$python" python '' situations.py nested generators quicksort
    case_of "stacks=full-$version" "$python" full --merged situations.py nested generators quicksort
}

running=0
while read -r version python; do
    [ -n "$version" ] || continue
    cases_of "$version" "$python" >"$work/$version.log" 2>&1 &
    running=$((running + 1))
    [ $running -lt "$(nproc)" ] || { wait -n && running=$((running - 1)); }
done <<<"$interpreters"
wait

for version in $known; do
    escaped=${version%t}
    pattern="^${escaped//./\\.}\.[0-9]*${version#"$escaped"} "
    grep -q "$pattern" <<<"$interpreters" || echo "[SKIP] python::$version: no CPython $version"
done
while read -r version _; do
    [ -n "$version" ] && cat "$work/$version.log"
done <<<"$interpreters" | tee "$work/all"
passed=$(grep -c '^\[PASS\]' "$work/all") failed=$(grep -c '^\[FAIL\]' "$work/all")
tested=$((passed + failed))
echo "[====] Synthesis: Tested: $tested | Passing: $passed | Failing: $failed | Crashing: 0"
[ "$failed" -eq 0 ]
