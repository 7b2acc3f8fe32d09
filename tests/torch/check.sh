#!/bin/bash
# check.sh BUILD: fetches PyTorch's real allocator (fetch.sh), builds what drives it and compares its
# counters with the tensor ledger. Called by `make check-torch`; skipped, with the reason, where the
# library cannot be had.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
top=$build/torch

skip() {
    echo "[SKIP] torch::all: $1"
    echo '[====] Synthesis: Tested: 0 | Passing: 0 | Failing: 0 | Crashing: 0'
    exit 0
}
command -v g++ >/dev/null || skip 'no g++'
reason=$("$here/fetch.sh" "$top") || skip "$reason"

libraries=$top/root/usr/lib/x86_64-linux-gnu
flags=(-g -O2 -Wall -Wextra -Werror "-I$here/include" "-I$here/../simgpu")
set -e
gcc -std=gnu11 -D_GNU_SOURCE "${flags[@]}" -fPIC -shared -Wl,-soname,libcudart.so.12 \
    -Wl,--version-script="$here/cudart12.map" -o "$top/libcudart.so.12" "$here/cudart12.c" \
    "$here/../simgpu/cudart.c" -lpthread -ldl
g++ -std=c++17 "${flags[@]}" -isystem "$top/root/usr/include" -fPIC -shared -o "$top/cases.so" \
    "$here/cases.cc" "$top/libcudart.so.12" "$libraries/libc10_cuda.so.2.6" \
    "$libraries/libc10.so.2.6" -Wl,--allow-shlib-undefined
# The libraries want that distribution's C library: the program starts with its loader.
gcc "${flags[@]}" -o "$top/start" "$here/start.c" -ldl -Wl,--disable-new-dtags \
    "-Wl,-rpath,$top:$libraries" "-Wl,--dynamic-linker=$libraries/ld-linux-x86-64.so.2"
set +e
"$top/start" >/dev/null 2>&1
[ $? -eq 2 ] || skip 'a program built here does not run on the C library of that distribution'
exec "$build/tests/torch"
