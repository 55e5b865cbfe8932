#!/usr/bin/env python3
"""What rows of each kind cost the streams beside them, on a running server.

usage: sampler_bench.py URL [--beside 1,16] [--output 120]
16 greedy streams, and beside them 1 or 16 whose tokens are drawn, penalised or told with log
probabilities: the gap between the greedy streams' tokens, median and nine tenths."""
import argparse
import asyncio
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testlib"))
import served  # noqa: E402

STREAMS = 16
PROMPT = 32
BEGUN = 10  # tokens after which every stream decodes
KINDS = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top_k 64": {"temperature": 1.0, "top_k": 64},
    "top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "top_k 64, top_p 0.95": {"temperature": 1.0, "top_k": 64, "top_p": 0.95},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "temperature 0.1, top_p": {"temperature": 0.1, "top_p": 0.9},
    "penalties": {"presence_penalty": 0.8, "repetition_penalty": 1.3},
    "logprobs 5": {"logprobs": 5},
}


async def measure(session, url, rng, options, beside, output):
    streams = [served.Stream(rng, PROMPT, output) for _ in range(STREAMS)]
    others = [served.Stream(rng, PROMPT, output, options=options) for _ in range(beside)]
    await asyncio.gather(*[stream.run(session, url) for stream in streams + others])
    for stream in streams + others:
        if stream.error:
            raise RuntimeError(stream.error)
    return sorted(b - a for stream in streams
                  for a, b in zip(stream.stamps[BEGUN:], stream.stamps[BEGUN + 1:]))


async def run(args):
    rng = random.Random(5)
    async with served.client() as session:
        print(f"{'rows beside 16 greedy':<24} {'count':>5} {'p50 ms':>8} {'p90 ms':>8}")
        for beside in [int(n) for n in args.beside.split(",")]:
            for name, options in KINDS.items():
                gaps = await measure(session, args.url, rng, options, beside, args.output)
                print(f"{name:<24} {beside:5d} {gaps[len(gaps) // 2] * 1e3:8.2f} "
                      f"{gaps[len(gaps) * 9 // 10] * 1e3:8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--beside", default="1,16")
    parser.add_argument("--output", type=int, default=120)
    asyncio.run(run(parser.parse_args()))


main()
