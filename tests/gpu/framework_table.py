"""framework_table.py TITLE WANTED STATS REPORT: one line of the table of frameworks.sh.

WANTED is what the report must say: OWNER/VISIBLE, where OWNER is whose pool the largest blocks are, or
"-", and VISIBLE says which ledger has the arrays that the program kept, or "no". Exit code 0 if it does.
"""
import json
import sys


def largest_process(report):
    def peak(process):
        return sum(d["driver"]["total"]["peak_bytes"] or 0 for d in process["devices"] if d["driver"])

    return max(report["processes"], key=peak)


def owner(sites, bytes_kept):
    """Whose pools hold as much as was kept."""
    held = {}
    for site in sites:
        if site["ledger"] == "driver" and site["cache_of"]:
            held[site["cache_of"]] = held.get(site["cache_of"], 0) + site["live_bytes"]
    owners = sorted(name for name, live in held.items() if live >= bytes_kept)
    return "+".join(owners) or "-"


def visible(sites, kept):
    """The ledger in which as many blocks of no pool as were kept hold as many bytes."""
    for ledger in ("tensor", "driver"):
        seen = [s for s in sites if s["ledger"] == ledger and not s["cache_of"]]
        if (
            sum(s["live_bytes"] for s in seen) >= kept["bytes"]
            and sum(s["live_count"] for s in seen) >= kept["arrays"]
        ):
            return ledger
    return "no"


def main():
    title, wanted, stats, path = sys.argv[1:5]
    with open(stats, encoding="utf-8") as file:
        kept = json.loads(file.read().strip().splitlines()[-1])
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    process = largest_process(report)
    sites = [s for s in report["sites"] if report["processes"][s["process"]] is process]
    found = f"{owner(sites, kept['bytes'])}/{visible(sites, kept)}"
    kinds = {}
    for device in process["devices"]:
        for name, kind in device["driver"]["kinds"].items():
            if kind["allocs"]:
                sums = kinds.setdefault(name, [0, 0, 0, 0])
                for i, key in enumerate(("allocs", "frees", "live_count", "live_bytes")):
                    sums[i] += kind[key]
    for name, sums in sorted(kinds.items()) or [("-", [0, 0, 0, 0])]:
        pool, contents = found.split("/")
        print(f"{title:<24}{pool:<12}{contents:<10}{name:<10}" + "".join(f"{n:>14}" for n in sums))
        title = pool = ""
    if found != wanted:
        print(f"    expected {wanted}, found {found}")
    return found != wanted


sys.exit(main())
