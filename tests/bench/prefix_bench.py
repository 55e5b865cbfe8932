#!/usr/bin/env python3
"""Time to first token of a conversation that was computed before, against one that was not.

usage: prefix_bench.py BUILD [--tokens 8000] [--turn 60] [--answer 100] [--rounds 5]
                       [-- OPTIONS of bezel serve; without: --device cuda:0 --load-format dummy]

12B layout, made-up weights, greedy, token ids.  Each round asks with a new prompt of --tokens (cold), appends the
answer and a further turn of --turn tokens and asks again (warm).  Fails unless the median warm time is
below a tenth of the median cold one and every warm request reused all but the last page."""
import argparse
import asyncio
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testlib"))
import served  # noqa: E402

PAGE = 64
SHARE = 0.1


async def ask(session, url, ids, output):
    """Seconds to the first token, the answer's ids, and how many prompt tokens were reused."""
    body = {"prompt": ids, "max_tokens": output, "ignore_eos": True, "temperature": 0, "stream": True,
            "return_token_ids": True, "stream_options": {"include_usage": True}}
    answer, first, usage = [], None, None
    start = time.perf_counter()
    async with session.post(url + "/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "choices" not in event:
                raise RuntimeError(line.decode())
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if choice.get("token_ids"):
                    first = first or time.perf_counter()
                    answer += choice["token_ids"]
    return first - start, answer, usage["prompt_tokens_details"]["cached_tokens"]


async def measure(url, args):
    rng = random.Random(11)
    colds, warms, is_whole = [], [], True
    async with served.client() as session:
        for round_index in range(args.rounds + 1):
            ids = [2] + [rng.randrange(300, args.vocab) for _ in range(args.tokens - 1)]
            cold, answer, none = await ask(session, url, ids, args.answer)
            turn = [rng.randrange(300, args.vocab) for _ in range(args.turn)]
            # The last token of an answer is never an input, so its place is not in the pages.
            known = len(ids) + len(answer) - 1
            warm, _, reused = await ask(session, url, ids + answer + turn, 8)
            print(f"cold {cold * 1e3:8.2f} ms, reused {none:5d}   warm {warm * 1e3:8.2f} ms, "
                  f"reused {reused:5d} of {known + 1 + args.turn}", flush=True)
            is_whole = is_whole and none == 0 and reused == known // PAGE * PAGE
            if round_index > 0:  # the first one warms up what else there is
                colds.append(cold)
                warms.append(warm)
    return statistics.median(colds), statistics.median(warms), is_whole


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--turn", type=int, default=60)
    parser.add_argument("--answer", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=200000)
    parser.add_argument("--model", help="a checkpoint instead of the 12B layout")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:split])
    options = sys.argv[split + 1:] or ["--device", "cuda:0", "--load-format", "dummy"]
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or served.model_12b(folder)
        with served.Served(args.build, model, *options) as server:
            cold, warm, is_whole = asyncio.run(measure(server.url, args))
    print(f"median: cold {cold * 1e3:.2f} ms, warm {warm * 1e3:.2f} ms, ratio {warm / cold:.3f}, "
          f"at most {SHARE}; reuse {'whole' if is_whole else 'NOT whole'}")
    return 0 if warm < SHARE * cold and is_whole else 1


sys.exit(main())
