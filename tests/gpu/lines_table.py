"""The table of tests/gpu/lines.sh: lines_table.py PROGRAM REPORT.

For each marked line of the program: do the report's tensors name it, by their own Python stack or, for
autograd's threads, by the thread that waits? Exit 1 if a line is missing or if bytes are nowhere.
"""
import collections
import json
import re
import sys

program, path = sys.argv[1:]
marks = {}
with open(program) as text:
    for number, line in enumerate(text, 1):
        word = re.search(r"#: (\w+)", line)
        if word:
            marks[number] = (word[1], line.split("#:")[0].strip())
with open(path) as text:
    report = json.load(text)


def own_line(site):
    blame = site["blame"] or {}
    return blame["line"] if (blame.get("file") or "").endswith("lines.py") else None


def waiting_line(site):
    stack = site.get("called_from")
    frames = [report["frames"][i] for i in report["stacks"][stack]] if stack is not None else []
    return next((f["line"] for f in frames if (f["file"] or "").endswith("lines.py")), None)


seen = collections.defaultdict(lambda: [0, 0, 0, 0, set()])
lost = 0
for site in report["sites"]:
    if site["ledger"] != "tensor":
        continue
    own = own_line(site)
    line = own or waiting_line(site)
    if line is None:
        lost += site["own_peak_bytes"]
        continue
    row = seen[line]
    row[0] += site["allocs"]
    row[1] += site["at_peak_bytes"]
    row[2] += site["end_of_work_bytes"]
    row[3] += site["allocs"] if own is None else 0
    if own is None:
        row[4].add((site["blame"] or {}).get("function") or "?")

bad = False
growing = {own_line(s) or waiting_line(s) for s in report["sites"] if s["class"] == "growing" and s["ledger"] == "tensor"}
print(f"{'line':>4}  {'what':<14}{'tensors':>8}{'of autograd':>12}{'bytes at peak':>15}{'at end of work':>15}  growing  source")
for number, (word, source) in marks.items():
    row = seen.pop(number, None)
    if not row:
        bad = True
        print(f"{number:>4}  {word:<14}{'MISSING':>8}{'':>51}  {source}")
        continue
    print(f"{number:>4}  {word:<14}{row[0]:>8}{row[3]:>12}{row[1]:>15}{row[2]:>15}  {'yes' if number in growing else 'no':<7}  {source}")
    for function in sorted(row[4]):
        print(f"{'':>6}in autograd's thread: {function}")
for number, row in sorted(seen.items()):
    print(f"{number:>4}  {'(not marked)':<14}{row[0]:>8}{row[3]:>12}{row[1]:>15}{row[2]:>15}")
print(f"bytes at no line: {lost}")
wanted = {number for number, (word, _) in marks.items() if word in ("leak", "square", "activations", "relu", "activations2", "input")}
never = {number for number, (word, _) in marks.items() if word in ("parameters", "parameters2", "optimizer", "gradients", "loss")}
if not growing & wanted or growing & never:
    bad = True
    print("growing:", sorted(growing - {None}), "expected some of", sorted(wanted), "and none of", sorted(never))
sys.exit(bad or lost > 0)
