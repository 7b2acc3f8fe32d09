#!/bin/bash
# interpreters.sh BUILD: the CPythons here, one a line: VERSION PATH, VERSION like 3.12.1, with a
# "t" behind it where the build is free-threaded. Looks at python3 and python3.N on PATH, at
# pyenv's, at those that `make check-pythons` fetched into BUILD/pythons and at $CUHEAP_PYTHONS
# (paths). Each real binary once, oldest version first. Called by run.sh and soak.sh.
set -u
build=$1

candidates() {
    local folders
    IFS=: read -ra folders <<<"$PATH:/usr/bin"
    tr ' ' '\n' <<<"${CUHEAP_PYTHONS-}"
    printf '%s\n' "$build"/pythons/*/python3
    printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3
    for folder in "${folders[@]}"; do
        printf '%s\n' "$folder"/python3 "$folder"/python3.*
    done
}

# A name may be a script that starts the real one. So are those fetched for another C library; there
# the script is what must be called.
describe='import os, sys, ctypes, threading
binary = os.path.realpath("/proc/self/exe")
if sys.implementation.name == "cpython":
    version = "%d.%d.%d" % sys.version_info[:3] + "t" * ("t" in sys.abiflags)
    started = "/pythons/" in sys.argv[1] or "python" not in os.path.basename(binary)
    print(version, os.path.realpath(sys.argv[1]) if started else binary)'

candidates | grep -E '/python3(\.[0-9]+t?)?$' | while read -r python; do
    [ -x "$python" ] && "$python" -c "$describe" "$python" </dev/null 2>/dev/null
done | sort -u | sort -V
