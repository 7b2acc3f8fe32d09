"""Allocates from Python on an interpreter too old to be known: refused.py FOLDER

Python 3.6 and 3.7 are enough for this. compare.py --refused looks for the one allocation.
"""

import ctypes
import os

SIZE = 5000  # as compare.py has it

probe = ctypes.CDLL(os.environ["PROBE"])
probe.probe_start(None)
probe.probe_take(ctypes.c_long(SIZE))
