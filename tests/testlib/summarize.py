"""Counts the cases of a meson test run.

usage: summarize.py BUILD_DIR   reads meson-logs/testlog.json, shows the output of what failed, and
prints one closing line `N passed, N failed, N skipped`.

A program counts with its own closing line; one that ends without it counts as one case, by its
exit status.  A program that fails though its line says nothing failed adds one failure.
"""

import json
import re
import sys
from pathlib import Path

CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
SHOWN_CHARS = 6000


def count(test):
    lines = CLOSING.findall(test.get("stdout") or "")
    passed, failed, skipped = (int(n) for n in lines[-1]) if lines else (0, 0, 0)
    is_bad = test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")
    if is_bad and failed == 0:
        failed = 1
    if not lines and not is_bad:
        passed, skipped = (0, 1) if test["result"] == "SKIP" else (1, 0)
    return passed, failed, skipped


def main():
    log = Path(sys.argv[1]) / "meson-logs" / "testlog.json"
    totals = [0, 0, 0]
    for line in log.read_text(encoding="utf-8").splitlines():
        test = json.loads(line)
        counts = count(test)
        totals = [a + b for a, b in zip(totals, counts)]
        if counts[1]:
            print(f"--- {test['name']}: {test['result']} (exit {test.get('returncode')})")
            print((test.get("stdout") or "")[-SHOWN_CHARS:])
            print((test.get("stderr") or "")[-SHOWN_CHARS:])
        elif counts[2]:
            print(f"{test['name']}: {counts[2]} skipped")
    print("{} passed, {} failed, {} skipped".format(*totals))


if __name__ == "__main__":
    main()
