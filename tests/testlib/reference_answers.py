#!/usr/bin/env python3
"""Greedy answers of a running server against recorded ones.  usage: reference_answers.py URL FILE

FILE is a list of {name, prompt_ids, output_ids, output}.  Each prompt goes in as token ids; the text
that comes back must be the recorded output without its special tokens.  Exit 1 when one differs."""
import json
import re
import sys
import urllib.request


def answer(url, case):
    body = {"prompt": case["prompt_ids"], "temperature": 0, "max_tokens": len(case["output_ids"])}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]["text"]


def main():
    url, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    differing = 0
    for case in cases:
        want = re.sub(r"<\|[^>]*>|<[^>]*\|>|<eos>", "", case["output"])
        got = answer(url, case)
        if got != want:
            differing += 1
            print(f"{case['name']}: {got!r}, must be {want!r}")
    print(f"{len(cases) - differing} of {len(cases)} answers as recorded")
    return 1 if differing else 0


sys.exit(main())
