#!/bin/bash
# run.sh BUILD NAME CMD...: runs one test suite; called by `make check` and its parts.
#
# Everything the suite prints goes to BUILD/logs/NAME.log; on the terminal stands one line, and
# what failed. A suite is a Criterion program, or anything that ends with a line like Criterion's
# "[====] Synthesis: ..." and says "[SKIP] test: why" of what it leaves out. The counts are kept in
# BUILD/logs/NAME.count for summary.sh: passed, failed, skipped.
set -u
build=$1 name=$2
shift 2
mkdir -p "$build/logs"
log=$build/logs/$name.log
count=$build/logs/$name.count
rm -f "$count"

export CRITERION_VERBOSITY_LEVEL=1
# A sanitizer's report must not be taken for a test's own exit code.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}
export LC_ALL=C.UTF-8
began=$SECONDS
"$@" </dev/null >"$log" 2>&1
rc=$?
took=$((SECONDS - began))

synthesis=$(grep -a 'Synthesis: ' "$log" | tail -n 1)
tested=$(sed -n 's/.*Tested: \([0-9]*\).*/\1/p' <<<"$synthesis")
passed=$(sed -n 's/.*Passing: \([0-9]*\).*/\1/p' <<<"$synthesis")
skipped=$(grep -ac '^\[SKIP\]' "$log")
failed=$((${tested:-0} - ${passed:-0}))
# Killed before its last line, or failed without counting a failure: that is a failure too.
if [ -z "$tested" ] || { [ "$rc" -ne 0 ] && [ "$failed" -eq 0 ]; }; then
    failed=$((failed + 1))
    echo "[FAIL] $name: ended with exit status $rc" >>"$log"
fi
# Criterion's children may end well for it and badly for the sanitizer.
if grep -qaE '(ERROR|WARNING): [A-Za-z]*Sanitizer: |runtime error: ' "$log"; then
    failed=$((failed + 1))
    echo "[FAIL] $name: a sanitizer complains, see the log" >>"$log"
fi
echo "${passed:-0} $failed $skipped" >"$count"

printf '  %-12s %d passed, %d failed, %d skipped (%d s)\n' \
    "$name" "${passed:-0}" "$failed" "$skipped" "$took"
grep -a '^\[SKIP\]' "$log" | sed 's/^\[SKIP\] /    skipped: /' | sort | uniq -c | sed 's/^ *1 //'
[ "$failed" -eq 0 ] && exit 0

echo "  ---- $log, what failed:"
# Criterion puts the reasons before the [FAIL] line: keep what lies between two tests.
awk '/^\[(RUN |PASS|SKIP)\]/ { held = ""; next }
     /^\[FAIL\]/ { printf "%s%s\n", held, $0; held = ""; next }
     { held = held $0 "\n" }
     END { printf "%s", held }' "$log" | tail -n 120
exit 1
