#!/usr/bin/env python3
"""Random outputs of the kept schemas, judged by the jsonschema package.

usage: grammar_schemas.py GRAMMAR_WALK TOKENIZER SCHEMAS COUNT
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError:
    print("jsonschema is not installed\n0 passed, 0 failed, 1 skipped")
    sys.exit(77)

MOST_REFUSED = 10
MOST_UNFINISHED = 0.25  # drawn evenly, free texts and lists often do not end within the walk's bound


def judge(schemas, line, counts):
    index = line["case"]
    if "refused" in line:
        counts["refused"] += 1
        return None
    if "failed" in line:
        return line["failed"]
    counts["outputs"] += 1
    if not line["ended"]:
        counts["unfinished"] += 1
        return None
    try:
        jsonschema.Draft202012Validator(schemas[index]).validate(json.loads(line["text"]))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{line['text'][:200]!r}: {str(error).splitlines()[0]}"
    return None


def main():
    walk, tokenizer, path, count = sys.argv[1:]
    schemas = json.loads(pathlib.Path(path).read_text())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as cases:
        json.dump([{"kind": "schema", "schema": schema} for schema in schemas], cases)
        cases.flush()
        lines = subprocess.run([walk, tokenizer, cases.name, "7", count], check=False,
                               stdout=subprocess.PIPE, text=True).stdout.splitlines()
    counts = {"refused": 0, "outputs": 0, "unfinished": 0}
    failures = []
    times = None
    for line in map(json.loads, lines):
        if "masks" in line:
            times = line
            continue
        wrong = judge(schemas, line, counts)
        if wrong:
            failures.append(f"schema {line['case']}: {wrong}")
    wanted = (len(schemas) - counts["refused"]) * int(count)
    if counts["outputs"] != wanted:
        failures.append(f"{counts['outputs']} outputs, {wanted} wanted")
    if counts["refused"] > MOST_REFUSED:
        failures.append(f"{counts['refused']} of {len(schemas)} schemas are refused")
    if counts["unfinished"] > MOST_UNFINISHED * counts["outputs"]:
        failures.append(f"{counts['unfinished']} of {counts['outputs']} outputs did not end")
    print(*failures[:20], counts, times, sep="\n")
    print(f"{int(not failures)} passed, {int(bool(failures))} failed, 0 skipped")
    return 1 if failures else 0


sys.exit(main())
