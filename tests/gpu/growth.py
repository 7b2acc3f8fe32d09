"""Does a report say that tensors grow? growth.py yes|no REPORT; see growth.sh."""
import json
import sys

wanted, path = sys.argv[1:]
with open(path) as text:
    report = json.load(text)
growing = [s for s in report["sites"] if s["class"] == "growing" and s["ledger"] == "tensor"]
total = sum(s["end_of_work_bytes"] for s in report["sites"] if s["ledger"] == "tensor")
state = max(report["processes"], key=lambda p: p["duration_s"])["state"]
print(
    f"{state:<8} {len(growing):>3} sites growing, "
    f"{sum(s['end_of_work_bytes'] for s in growing)} of {total} bytes at end of work"
)
sys.exit(bool(growing) != (wanted == "yes"))
