"""Programs of frameworks with pools of their own, for tests/gpu/frameworks.sh: framework_cases.py CASE.

Each keeps 8 arrays of 16 MiB, makes and drops 20 of 4 MiB, prints how many bytes it holds as JSON and
ends at once, by _exit, so that what is live in the trace is what it held.
"""
import json
import os
import sys

KEPT, DROPPED = 8, 20
LARGE, SMALL = 4 << 20, 1 << 20  # of float32


def jax():
    import jax.numpy as jnp

    kept = [jnp.full((LARGE,), i, dtype=jnp.float32) for i in range(KEPT)]
    for i in range(DROPPED):
        jnp.full((SMALL,), i, dtype=jnp.float32).block_until_ready()
    for array in kept:
        array.block_until_ready()
    return kept


def cupy(plain=False):
    import cupy

    if plain:
        cupy.cuda.set_allocator(None)
    kept = [cupy.full(LARGE, i, dtype=cupy.float32) for i in range(KEPT)]
    for i in range(DROPPED):
        cupy.full(SMALL, i, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    return kept


def cupy_plain():
    return cupy(plain=True)


def tensorflow():
    import tensorflow as tf

    with tf.device("/GPU:0"):
        kept = [tf.fill([LARGE], float(i)) for i in range(KEPT)]
        for i in range(DROPPED):
            tf.fill([SMALL], float(i)).numpy()
    return kept


def torch():
    import torch

    kept = [torch.full((LARGE,), float(i), device="cuda") for i in range(KEPT)]
    for i in range(DROPPED):
        torch.full((SMALL,), float(i), device="cuda")
    torch.cuda.synchronize()
    return kept


CASES = {case.__name__: case for case in (jax, cupy, cupy_plain, tensorflow, torch)}


def main():
    kept = CASES[sys.argv[1]]()
    print(json.dumps({"arrays": len(kept), "bytes": KEPT * LARGE * 4}), flush=True)
    os._exit(0)


main()
