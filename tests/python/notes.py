"""What a Python program of these tests allocates, and from where.

here() writes down the Python stack that traceback would show at this line and gives the size of the
allocation to make there, which no other one has:

    take(here())        both on one line: the line noted is the line of the allocation

With notes.direct False here() gives 0: then the probe, called with 0, has the note taken from
inside the call of the allocation itself. So does take(0), however the call is laid out.

save() writes {"pid", "version", "stacks": [[allocations, bytes, [[file, line, function, qualified
name or null], ...innermost first]]]} for compare.py. Runs on CPython 3.8 and later; any thread.
"""

import ctypes
import itertools
import json
import os
import sys
import traceback

PATH = os.environ["PROBE"]  # of the probe
SIZE_LIMIT = 1 << 18

direct = True
_sizes = itertools.count(1)
_notes = []  # (stack, bytes); appended by any thread, from finalisers too: no lock
_known = {}  # each stack once


def next_size():
    return 1 + next(_sizes) % SIZE_LIMIT


def add(stack, size):
    """An allocation whose stack is known."""
    stack = tuple(stack)
    _notes.append((_known.setdefault(stack, stack), size))
    return size


def _copy(name):
    """So that a note keeps no name of a code object alive: its address can come back."""
    return name and ("." + name)[1:]


def _stack_of(frame):
    stack = []
    for frame, line in traceback.walk_stack(frame):
        code = frame.f_code
        names = code.co_filename, code.co_name, getattr(code, "co_qualname", None)
        file, function, qualified = map(_copy, names)
        stack.append((file, line, function, qualified))
    return stack


def stack_here():
    return _stack_of(sys._getframe(1))


def here():
    return add(_stack_of(sys._getframe(1)), next_size()) if direct else 0


def note():
    """As here(), called by the probe."""
    return add(_stack_of(sys._getframe(1)), next_size())


def count():
    return len(_notes)


def forget():
    """In a forked child: what the parent did is not in the child's trace."""
    del _notes[:]


def save(folder):
    sums = {}
    for stack, size in list(_notes):
        count, total = sums.get(stack, (0, 0))
        sums[stack] = (count + 1, total + size)
    said = {
        "pid": os.getpid(),
        "version": sys.version.split()[0],
        "stacks": [[count, total, stack] for stack, (count, total) in sums.items()],
    }
    name = os.path.join(folder, "notes.%d.json" % os.getpid())
    with open(name, "w", encoding="ascii") as out:
        json.dump(said, out)


_NOTE = ctypes.CFUNCTYPE(ctypes.c_long)
_note = _NOTE(note)


def _load(library):
    for name, result, arguments in (
        ("probe_start", None, [_NOTE]),
        ("probe_take", None, [ctypes.c_long]),
        ("probe_take_outside", None, [ctypes.c_long]),
        ("probe_call", None, [ctypes.c_void_p]),
        ("probe_pairs", None, [ctypes.c_long]),
        ("probe_inside", ctypes.c_long, [ctypes.c_char_p]),
        ("probe_background_threads", ctypes.c_long, []),
        ("probe_pairs_for_ever", None, []),
        ("probe_wait_for_pairs", None, []),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


free = _load(ctypes.CDLL(PATH))  # the interpreter's lock is released during a call
held = _load(ctypes.PyDLL(PATH))
free.probe_start(_note)
