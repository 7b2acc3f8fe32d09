"""One row of the table of tests/gpu/torch.sh: torch_table.py CASE STATS REPORT.

Compares PyTorch's own counters with the tensor ledger of `cuheap report --json`; exit 1 if they differ
by more than what ALLOWED names. That list is closed: each entry names the mechanism and predicts the
difference.
"""
import json
import sys

KEYS = ("allocs", "frees", "live_bytes", "peak_bytes", "out_of_memory")

# (case, key): (mechanism, predicted value of report - PyTorch, from PyTorch's counters)
ALLOWED = {
    ("malloc_async", key): (
        "with backend:cudaMallocAsync the hook is silent: the driver ledger has the tensors",
        lambda stats, key=key: -(stats[key] or 0),
    )
    for key in KEYS
}


def ledger(report):
    main = max(report["processes"], key=lambda p: sum(d["driver"]["total"]["live_bytes"] or 0 for d in p["devices"]))
    tensors = [s for s in report["sites"] if s["ledger"] == "tensor" and s["process"] == main["index"]]
    device = next((d for d in main["devices"] if d.get("tensor")), None)
    return {
        "allocs": sum(s["allocs"] for s in tensors),
        "frees": sum(s["frees"] for s in tensors),
        "live_bytes": sum(s["live_bytes"] for s in tensors),
        "peak_bytes": device["tensor"]["total"]["peak_bytes"] if device else 0,
        "out_of_memory": sum("reportOutOfMemory" in (f["call"] or "") for f in main["failures"]),
        "pool": next(iter(main["devices"]))["driver"]["kinds"].get("pool"),
    }


def main():
    case, stats_file, report_file = sys.argv[1:]
    with open(stats_file) as text:
        stats = json.loads(text.read().strip().splitlines()[-1])
    with open(report_file) as text:
        found = ledger(json.load(text))
    bad, notes, row = False, set(), []
    for key in KEYS:
        said = stats[key] or 0
        row.append(f"{said:>14} {found[key]:>14}")
        if found[key] == said:
            continue
        mechanism, predicted = ALLOWED.get((case, key), (None, None))
        if mechanism and predicted(stats) == found[key] - said:
            notes.add(mechanism)
        else:
            bad = True
    print(f"{case:<14}" + " ".join(row))
    for note in notes:
        print(f"{'':<14}{note}; kind pool: {json.dumps(found['pool'])}")
    if bad:
        print(f"{'':<14}DIFFERS")
    return bad


sys.exit(main())
