#!/usr/bin/env python3
"""Compares the Python stacks of traces with what the programs noted.

    compare.py CUHEAP FOLDER [--merged | --teardown | --refused]

FOLDER has traces (PID.trace) and the notes of the same processes (notes.PID.json, see notes.py).
Each allocation noted must be in its process's trace under its very stack: file, line and function
of each frame (the qualified name from 3.11 on), the innermost 128; and nothing else may be there.
Each has its own size, so that the bytes of a stack tell that they are the same allocations. With
--teardown more allocations than noted may be there, without Python frames or under a stack noted:
those of threads that went on while the interpreter ended. With --merged the stacks are whole: Python
frames must stand in the place of the interpreter's evaluation loop, native ones between them. --refused is for refused.py: no Python
frames, native ones as ever, and one note that says why.

Prints "N checks, M mismatches" and what differs first; exits with 1 if anything does. Called by
run.sh and soak.sh.
"""

import collections
import glob
import json
import os
import subprocess
import sys

DEPTH = 128
SHOWN = 5
REFUSED_BYTES = 5000
# What may be lost here: frames beyond the depth limit, native ones, and a precise time.
MAY_LOSE = (
    "stack_truncated",
    "stack_incomplete",
    "stack_child",
    "stack_small",
    "counters_delayed",
    "buckets_skipped",
)


def ask(cuheap, command, trace):
    return json.loads(subprocess.check_output([cuheap, command, "--json", trace]))


def as_kept(name):
    """What is no character of its own (names of files that are no UTF-8) is kept as U+FFFD."""
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in name)


def noted_stacks(notes):
    """{frames: [allocations, bytes]}, and the allocations too deep to be kept whole."""
    stacks, truncated = collections.defaultdict(lambda: [0, 0]), 0
    for count, size, frames in notes["stacks"]:
        kept = tuple(
            # Before a module's first line CPython tells 0, which is no line: a report tells none.
            (as_kept(file), line or None, as_kept(qualified or function))
            for file, line, function, qualified in frames[:DEPTH]
        )
        stacks[kept][0] += count
        stacks[kept][1] += size
        truncated += count if len(frames) > DEPTH else 0
    return stacks, truncated


def frames_of(report, site):
    stack = report["stacks"][site["stack"]] if site["stack"] is not None else []
    return [report["frames"][i] for i in stack]


def reported_stacks(report):
    stacks = collections.defaultdict(lambda: [0, 0])
    for site in report["sites"]:
        kept = tuple(
            (frame["file"] or "", frame["line"], frame["function"])
            for frame in frames_of(report, site)
            if frame["kind"] == "python"
        )
        stacks[kept][0] += site["allocs"]
        stacks[kept][1] += site["live_bytes"]
    return stacks


def describe(stack):
    lines = [
        "%s:%s %s" % (os.path.basename(file)[:40], line, function[:40])
        for file, line, function in stack[:12]
    ]
    more = ["... %d in all" % len(stack)] if len(stack) > 12 else []
    return " < ".join(lines + more) or "(no Python frames)"


def differences(noted, reported, teardown):
    """Pairs (allocations that differ, text)."""
    for stack in noted.keys() | reported.keys():
        said, found = noted.get(stack, (0, 0)), reported.get(stack, (0, 0))
        if teardown and (stack in noted or not stack) and found[0] >= said[0]:
            continue
        if tuple(said) != tuple(found):
            wrong = max(abs(said[0] - found[0]), 1)
            sums = "noted %d allocations of %d bytes, reported %d of %d: " % (*said, *found)
            yield wrong, sums + describe(stack)


def complaints(cuheap, trace, report, truncated):
    """What a trace may not say of itself; pairs as above."""
    for process in report["processes"]:
        for name, count in process["losses"].items():
            if count and name not in MAY_LOSE:
                yield count, "lost: %s %d" % (name, count)
        said = process["losses"]["stack_truncated"]
        if said < truncated:
            yield 1, "%d stacks are truncated, said of %d" % (truncated, said)
    for note in ask(cuheap, "info", trace)["notes"]:
        if "ython" in note:
            yield 1, "the trace notes: " + note


def is_loop(frame):
    return frame["kind"] == "native" and (frame["function"] or "").split(".")[0] == "_PyEval_EvalFrameDefault"


def is_divided(frames):
    """Whether native frames stand between Python ones."""
    kinds = "".join(frame["kind"][0] for frame in frames)
    return "n" in kinds.strip("n")


def unmerged(report):
    """Where Python frames do not stand as in --merged, pairs as above."""
    divided = 0
    for stack in report["stacks"]:
        frames = [report["frames"][i] for i in stack]
        if any(is_loop(f) for f in frames) and any(f["kind"] == "python" for f in frames):
            yield 1, "the interpreter's loop is left in " + " < ".join(f["function"] or "?" for f in frames)
        divided += is_divided(frames)
    if not divided:
        yield 1, "no stack has native frames between Python's"


def compare_refused(cuheap, folder):
    """What is wrong, pairs as above."""
    (trace,) = glob.glob(os.path.join(folder, "*.trace"))
    report = ask(cuheap, "report", trace)
    said = [note for note in ask(cuheap, "info", trace)["notes"] if "ython" in note]
    frames = [frame for site in report["sites"] for frame in frames_of(report, site)]
    sites = [(site["allocs"], site["live_bytes"]) for site in report["sites"]]
    if sites != [(1, REFUSED_BYTES)]:
        yield 1, "not one allocation of %d bytes: %s" % (REFUSED_BYTES, sites)
    if [f for f in frames if f["kind"] == "python"]:
        yield 1, "Python frames of an interpreter that is refused"
    if not [f for f in frames if os.path.basename(f["module"] or "") == "probe.so"]:
        yield 1, "no native frames: %s" % frames
    if len(said) != 1 or not said[0].startswith("Python stacks are off: "):
        yield 1, "not one note that says why: %s" % said


def compare(cuheap, folder, teardown, merged):
    """Allocations compared, and what is wrong: pairs as above."""
    checks, wrong = 0, []
    traces = {}
    for trace in glob.glob(os.path.join(folder, "*.trace")):
        report = ask(cuheap, "report", trace)
        traces[report["processes"][0]["pid"]] = (trace, report)
    for path in sorted(glob.glob(os.path.join(folder, "notes.*.json"))):
        with open(path, encoding="ascii") as text:
            notes = json.load(text)
        noted, truncated = noted_stacks(notes)
        checks += sum(count for count, _ in noted.values())
        trace, report = traces.pop(notes["pid"], (None, None))
        if not trace:
            wrong.append((1, "no trace of process %d" % notes["pid"]))
            continue
        wrong += complaints(cuheap, trace, report, truncated)
        wrong += differences(noted, reported_stacks(report), teardown)
        if merged:
            wrong += unmerged(report)
    wrong += [(1, "no notes of process %d" % pid) for pid in traces]
    return checks, wrong


def main():
    cuheap, folder = sys.argv[1:3]
    if "--refused" in sys.argv[3:]:
        checks, wrong = 1, list(compare_refused(cuheap, folder))
    else:
        checks, wrong = compare(cuheap, folder, "--teardown" in sys.argv[3:], "--merged" in sys.argv[3:])
    print("%d checks, %d mismatches" % (checks, sum(count for count, _ in wrong)))
    for _, text in wrong[:SHOWN]:
        print("    " + text)
    return int(bool(wrong) or checks == 0)


if __name__ == "__main__":
    sys.exit(main())
