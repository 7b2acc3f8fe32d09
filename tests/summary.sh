#!/bin/bash
# summary.sh BUILD: the closing lines of `make check`, from what run.sh kept in BUILD/logs. Fails if
# a test failed or a suite did not run.
set -u
build=$1
suites="unit-lib unit-tools e2e python conformity stress gate asan-lib asan-tools tsan-lib"
passed=0 failed=0 skipped=0

echo
for suite in $suites; do
    if ! read -r p f s 2>/dev/null <"$build/logs/$suite.count"; then
        printf '%-11s did not run\n' "$suite"
        failed=$((failed + 1))
        continue
    fi
    line=$(grep -a 'Synthesis: ' "$build/logs/$suite.log" | tail -n 1)
    printf '%-11s %s\n' "$suite" "${line:-[====] no closing line: see $build/logs/$suite.log}"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
grep -ah '^\[SKIP\]' "$build"/logs/*.log 2>/dev/null | sed 's/^\[SKIP\] [^ ]*: /skipped: /' |
    sort | uniq -c | sed 's/^ *\([0-9]*\) \(.*\)/\2 (\1)/'
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
