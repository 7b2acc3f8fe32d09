#!/usr/bin/env python3
"""Compares what a program said in its last line with what `cuheap report --json` says.

    compare.py kinds OUTPUT REPORT    allocs.cu: calls and bytes of each kind
    compare.py torch OUTPUT REPORT    examples/train.py: the caching allocator's device blocks,
                                      which are the driver's blocks taken through libc10_cuda

Prints one line a number and exits with 1 if two differ. Called by run.sh.
"""

import json
import sys

COUNTS = ("allocs", "frees", "live_bytes", "live_count")


def last_json(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.startswith("{")][-1]


def reported_kinds(report):
    process = report["processes"][0]
    kinds = dict(process["host_memory"]["kinds"])
    for device in process["devices"]:
        kinds.update(device["driver"]["kinds"])
    return kinds


def compare_kinds(said, report):
    kinds = reported_kinds(report)
    for kind, numbers in said.items():
        for name in COUNTS:
            yield f"{kind} {name}", numbers[name], kinds.get(kind, {}).get(name, 0)


def passes_through(report, site, library):
    if site["stack"] is None:
        return False
    frames = (report["frames"][i] for i in report["stacks"][site["stack"]])
    return any(library in (frame["module"] or "") for frame in frames)


def compare_torch(said, report):
    sites = [
        site
        for site in report["sites"]
        if site["ledger"] == "driver"
        and site["kind"] == "device"
        and passes_through(report, site, "libc10_cuda")
    ]
    total = {name: sum(site[name] for site in sites) for name in COUNTS}
    yield "num_device_alloc", said["num_device_alloc"], total["allocs"]
    yield "num_device_free", said["num_device_free"], total["frees"]
    yield "reserved bytes", said["memory_reserved"], total["live_bytes"]


def main():
    compare = {"kinds": compare_kinds, "torch": compare_torch}[sys.argv[1]]
    with open(sys.argv[3], encoding="utf-8") as text:
        report = json.load(text)
    differ = False
    print(f"{'':24} {'the program says':>20} {'the report says':>20}")
    for name, said, found in compare(last_json(sys.argv[2]), report):
        verdict = "" if said == found else "  DIFFERENT"
        differ |= said != found
        print(f"{name:24} {said:20} {found:20}{verdict}")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
