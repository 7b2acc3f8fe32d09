"""What the capture of a warm Python stack costs: python_stack.py PROBE DEPTH PAIRS ROUNDS

Prints the ns that DEPTH frames add to an allocate-and-free pair, and those of a pair without them:
medians of ROUNDS rounds. In each round the same native loop runs on this thread, DEPTH frames deep,
and on a thread that Python knows nothing of, in turns on one processor. Called by bench.sh; CPython
3.6 and later.
"""

import ctypes
import os
import sys
import time

depth, pairs, rounds = map(int, sys.argv[2:])
probe = ctypes.CDLL(sys.argv[1])
with_frames, without = probe.probe_pairs, probe.probe_pairs_outside
for loop in with_frames, without:
    loop.argtypes = [ctypes.c_long]


def ns_of(loop):
    began = time.perf_counter()
    loop(pairs)
    return (time.perf_counter() - began) / pairs * 1e9


def median(values):
    return sorted(values)[len(values) // 2]


def measure():
    both = [(ns_of(with_frames), ns_of(without)) for _ in range(rounds)]
    print(round(median([a - b for a, b in both])), round(median([b for _, b in both])))


def down(levels):
    return down(levels - 1) if levels else measure()


os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
probe.probe_start(None)
above = 4  # the module, down() without levels left, measure() and ns_of()
if sys.version_info < (3, 12):
    above += 1  # a comprehension has a frame of its own
down(depth - above)
