#!/usr/bin/env python3
"""What the streams of a full batch notice when a thousand requests come and go beside them.

usage: comings_bench.py BUILD_DIR [--guests 1000] [--output 3600]
The 12B layout with made-up weights, 16 neighbours and 16 places beside them: first 16 requests that
stay for 400 tokens sit there, and then 16 others; then guests in waves, of every kind: ended by a
stop id, left in the middle, drawn, penalised, with log probabilities, of one token, of two.  The
neighbours' contexts grow alike.  Prints the gaps between the neighbours' tokens both times, and the
worker's own count of steps that began late."""
import argparse
import asyncio
import pathlib
import random
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testlib"))
import served  # noqa: E402

PLACES = 16
PROMPT = 12
NEIGHBOUR_PROMPT = 1200  # beyond the window, where a step takes as long for every token
KINDS = 7
STAY = 400


def guest_of(kind, rng):
    """Options of a guest that lives for 8 to 40 tokens, and after how many its client leaves."""
    tokens = rng.randrange(8, 41)
    return ({"logit_bias": {"1000": 100}, "stop_token_ids": [1000], "min_tokens": tokens,
             "max_tokens": 400},
            {"max_tokens": 400},
            {"temperature": 1.2, "top_k": 30, "max_tokens": tokens},
            {"presence_penalty": 0.8, "repetition_penalty": 1.3, "max_tokens": tokens},
            {"logprobs": 5, "max_tokens": tokens},
            {"max_tokens": 1},
            {"max_tokens": 2})[kind], tokens if kind == 1 else None


async def guest(session, url, rng, kind):
    options, leaves_after = guest_of(kind, rng)
    body = {"prompt": [2] + [rng.randrange(300, 200000) for _ in range(PROMPT - 1)],
            "temperature": 0, "stream": True, **options}
    events = 0
    async with session.post(url + "/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        async for line in answer.content:
            events += line.startswith(b"data: {")
            if leaves_after is not None and events > leaves_after:
                answer.close()
                return


async def waves(session, url, rng, guests):
    """Guests in waves that fill all places, so that most steps hold no newcomer's prompt."""
    for first in range(0, guests, PLACES):
        await asyncio.gather(*[guest(session, url, rng, i % KINDS)
                               for i in range(first, min(first + PLACES, guests))])


async def neighbours(url, output, beside):
    """The gaps of 16 neighbours while `beside` runs, which starts when all of them have begun."""
    rng = random.Random(11)
    async with served.client() as session:
        streams = [served.Stream(rng, NEIGHBOUR_PROMPT, output) for _ in range(PLACES)]
        tasks = [asyncio.create_task(stream.run(session, url)) for stream in streams]
        while not all(stream.stamps for stream in streams):
            await asyncio.sleep(0.005)
        first = max(stream.stamps[0] for stream in streams)
        last = await beside(session, rng)
        await asyncio.gather(*tasks)
    if any(stream.error for stream in streams):
        raise RuntimeError(next(stream.error for stream in streams if stream.error))
    gaps = []
    for stream in streams:
        stamps = [stamp for stamp in stream.stamps if first <= stamp <= last]
        gaps += [b - a for a, b in zip(stamps, stamps[1:])]
    return sorted(gaps)


def show(name, gaps):
    picked = [gaps[min(len(gaps) - 1, int(len(gaps) * share))] * 1e3
              for share in (0.5, 0.9, 0.99, 0.999)]
    print(f"{name:<20} {len(gaps):7d} " + " ".join(f"{ms:8.2f}" for ms in picked) +
          f" {gaps[-1] * 1e3:8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--guests", type=int, default=1000)
    parser.add_argument("--output", type=int, default=3600)
    args = parser.parse_args()

    def staying(url):
        async def beside(session, rng):
            for _ in range(args.output // STAY):
                streams = [served.Stream(rng, PROMPT, STAY) for _ in range(PLACES)]
                await asyncio.gather(*[stream.run(session, url) for stream in streams])
            return min(stream.stamps[-1] for stream in streams)
        return beside

    def going(url):
        async def beside(session, rng):
            await waves(session, url, rng, args.guests)
            return asyncio.get_running_loop().time()
        return beside

    with tempfile.TemporaryDirectory() as folder:
        model = served.model_12b(folder)
        print(f"{'gaps, ms':<20} {'count':>7} {'p50':>8} {'p90':>8} {'p99':>8} {'p99.9':>8} {'most':>8}")
        for name, output, kind in (("beside 16 that stay", args.output, staying),
                                   (f"beside {args.guests} guests", args.output, going)):
            with served.Served(args.build, model, "--device", "cuda:0", "--load-format", "dummy",
                               "--max-slots", "64") as server:
                show(name, asyncio.run(neighbours(server.url, output, kind(server.url))))
            counted = re.findall(r" steps=(\d+) .* gaps=(\d+) longest_gap_ns=(\d+)", server.log())
            steps, gaps, longest = map(int, counted[-1])
            print(f"    worker: {steps} steps, {gaps} began over 50 us late, longest gap "
                  f"{longest / 1e3:.1f} us", flush=True)


main()
