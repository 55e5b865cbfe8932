#!/usr/bin/env python3
"""Load on a running server: N streams of P prompt tokens (ids) and O output tokens each.

usage: serve_bench.py URL --streams 1,4,16 --prompt 1024 --output 128 [--rounds 2] [--vocab 200000]
Per line: streams, mean and median time to first token, time per output token ((last - first) /
(tokens - 1), mean over requests), median and p99 gap between tokens, output tokens per second.
Prompts are random ids, different for every request; generation goes on to the last token."""
import argparse
import asyncio
import json
import random
import statistics
import time

import aiohttp


async def one(session, url, ids, output):
    body = {"prompt": ids, "max_tokens": output, "ignore_eos": True, "temperature": 0,
            "stream": True}
    start = time.perf_counter()
    stamps = []
    async with session.post(url + "/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        async for line in answer.content:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices")
                if choices and choices[0].get("finish_reason") is None:
                    stamps.append(time.perf_counter())
                elif choices is None:
                    raise RuntimeError(line.decode())
    return start, stamps


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


async def measure(url, streams, args, rng):
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        begin = time.perf_counter()
        jobs = []
        for _ in range(streams):
            ids = [2] + [rng.randrange(300, args.vocab) for _ in range(args.prompt - 1)]
            jobs.append(one(session, url, ids, args.output))
        results = await asyncio.gather(*jobs)
        elapsed = time.perf_counter() - begin
    firsts = [stamps[0] - start for start, stamps in results]
    per_token = [(stamps[-1] - stamps[0]) / (args.output - 1) for _, stamps in results]
    gaps = [b - a for _, stamps in results for a, b in zip(stamps, stamps[1:])]
    events = sum(len(stamps) for _, stamps in results)
    return {"streams": streams, "ttft_mean": statistics.mean(firsts) * 1e3,
            "ttft_median": statistics.median(firsts) * 1e3,
            "tpot_mean": statistics.mean(per_token) * 1e3,
            "itl_median": statistics.median(gaps) * 1e3, "itl_p99": percentile(gaps, 0.99) * 1e3,
            "tokens_per_sec": streams * args.output / elapsed, "events": events}


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--streams", default="1,4,16,64")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=200000)
    args = parser.parse_args()
    rng = random.Random(7)
    await measure(args.url, 1, args, rng)  # warm
    print("streams  TTFT mean  median ms  TPOT ms  ITL median  p99 ms  out tok/s  events")
    for streams in [int(n) for n in args.streams.split(",")]:
        for _ in range(args.rounds):
            r = await measure(args.url, streams, args, rng)
            print(f"{r['streams']:7d} {r['ttft_mean']:10.1f} {r['ttft_median']:10.1f} "
                  f"{r['tpot_mean']:8.2f} {r['itl_median']:11.2f} {r['itl_p99']:7.2f} "
                  f"{r['tokens_per_sec']:10.0f} {r['events']:7d}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
