#!/bin/bash
# frameworks.sh BUILD OUT: frameworks that hand out GPU memory from pools of their own, as they are and
# with `cuheap run --see-through`: whom the report names as owner, and whether it has the arrays. Writes
# OUT/frameworks.txt. As run.sh, it takes BUILD from another machine; what is not installed is skipped.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
mkdir -p "$2" && out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
table=$out/frameworks.txt
passed=0 failed=0
export TF_CPP_MIN_LOG_LEVEL=3

installed() {
    python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"
}

# check CASE WANTED OPTION...: WANTED as in framework_table.py; options are those of cuheap run.
check() {
    local case=$1 wanted=$2 name code
    shift 2
    name=$case${*:+ $*}
    if ! installed "${case%_plain}"; then
        echo "[SKIP] frameworks::$name: not installed"
        return
    fi
    rm -rf "$work/traces" && mkdir "$work/traces"
    timeout 30 "$build/cuheap" run --quiet "$@" --out="$work/traces/" -- \
        python3 "$here/framework_cases.py" "$case" >"$work/stats" 2>"$work/err"
    code=$?
    if [ $code -eq 0 ] &&
        timeout 20 "$build/cuheap" report --json "$work/traces" >"$work/report.json" 2>>"$work/err" &&
        python3 "$here/framework_table.py" "$name" "$wanted" "$work/stats" "$work/report.json" >>"$table"; then
        passed=$((passed + 1))
        echo "[PASS] frameworks::$name"
    else
        failed=$((failed + 1))
        echo "[FAIL] frameworks::$name: exit code $code"
        tail -n 5 "$work/err"
        timeout 20 "$build/cuheap" report "$work/traces" >"$out/$case.report" 2>&1
    fi
    grep '^cuheap: ' "$work/err" >>"$work/said"
    timeout 20 "$build/cuheap" report "$work/traces" 2>/dev/null | grep ' as its pool' >>"$work/said"
}

if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo '[SKIP] frameworks::all: no GPU'
    exit 0
fi
: >"$work/said"
{
    echo '8 arrays of 16 MiB are kept, 20 of 4 MiB made and dropped; live is what was so at the end.'
    echo
    printf '%-24s%-12s%-10s%-10s%14s%14s%14s%14s\n' case 'pool of' contents kind allocs frees 'live blocks' 'live bytes'
} >"$table"
check jax JAX/no
check jax -/driver --see-through
check cupy CuPy/no
check cupy_plain CuPy/no # each array is a block, as the counts show, but nothing says so to a reader
check tensorflow TensorFlow/no
check tensorflow -/driver --see-through
check torch PyTorch/tensor --see-through
{
    echo
    sed 's/^ */    /' "$work/said" | sort -u
} >>"$table"
cat "$table"
echo "[====] Synthesis: Tested: $((passed + failed)) | Passing: $passed | Failing: $failed | Crashing: 0"
[ "$failed" -eq 0 ]
