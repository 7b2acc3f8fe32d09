#!/bin/sh
# Traces examples/leak.c and prints the report. Usage: examples/demo.sh BUILD
# On a usable GPU if there is one, else on the simulated GPU of BUILD/simgpu. Builds nothing.
set -eu

build=$(cd "${1:?usage: examples/demo.sh BUILD}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

if "$build/examples/leak" >/dev/null 2>&1; then
    echo "demo: on the GPU of this machine"
else
    echo "demo: no usable GPU here, on the simulated one ($build/simgpu/libcuda.so.1)"
    LD_LIBRARY_PATH=$build/simgpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi

cd "$work"
echo "\$ cuheap run -- examples/leak"
"$build/cuheap" run --out "$work/leak.trace" -- "$build/examples/leak"
echo
echo "\$ cuheap report"
"$build/cuheap" report "$work/leak.trace"
