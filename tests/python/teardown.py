"""Allocates while the interpreter ends: teardown.py FOLDER

Daemon threads go on in native code through Py_Finalize and beyond, each from one line of Python;
handlers allocate at exit, and a finaliser when the modules are cleared. From the moment that the
interpreter is finalising nothing of it may be read: such allocations have no Python frames.
"""

import atexit
import ctypes
import sys
import threading
import time

import notes

THREADS = 4
PAIRS_AFTERWARDS = 2000  # at least, of each thread, as the probe has it

take = notes.free.probe_take


class ClearedLast:
    def __del__(self, pairs=notes.free.probe_pairs):
        pairs(1)


def go_on():
    notes.add(notes.stack_here(), 0), notes.free.probe_pairs_for_ever()


def main():
    for _ in range(THREADS):
        threading.Thread(target=go_on, daemon=True).start()
    while notes.free.probe_background_threads() < THREADS:
        time.sleep(0.001)
    for _ in range(THREADS * PAIRS_AFTERWARDS):
        notes.add((), 0)
    ctypes.pythonapi.Py_AtExit(ctypes.cast(notes.free.probe_wait_for_pairs, ctypes.c_void_p))
    atexit.register(notes.save, sys.argv[1])  # the last to be called
    atexit.register(lambda: take(notes.here()))


cleared_last = ClearedLast()
main()
