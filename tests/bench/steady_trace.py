#!/usr/bin/env python3
"""What a steady decode step costs: copies, launches, host time, gaps, from the worker's own counters.

usage: steady_trace.py BUILD_DIR [--streams 1,4,16,64] [--prompt 960] [--output 256]
The 12B layout with made-up weights is served anew for each number of streams, whose rows cross the
sliding window of 1,024 tokens: pages are turned and given back on the way.  Fails where a step
copies anything, or is not one graph (and one kernel more where it turns a page: that kernel reads the
new pages from host memory).  Afterwards the last run's recorded plans are replayed."""
import argparse
import asyncio
import pathlib
import random
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testlib"))
import served  # noqa: E402


async def load(url, streams, args):
    rng = random.Random(streams)
    async with served.client() as session:
        jobs = [served.Stream(rng, args.prompt, args.output).run(session, url)
                for _ in range(streams)]
        done = await asyncio.gather(*jobs)
    for stream in done:
        if stream.error or not stream.stamps:
            raise RuntimeError(f"a stream ended with {stream.error}")


def counters(log):
    lines = re.findall(r" device steps (.*)", log)
    if not lines:
        raise RuntimeError("the worker logged no counters:\n" + log[-2000:])
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", lines[-1])}


def row(streams, c):
    """Prints one line; returns what is wrong with it."""
    steady = max(c["steady_steps"], 1)
    turns = c["steady_turns"]
    host_us = c["steady_host_ns"] / steady / 1e3
    print(f"{streams:7d} {c['steps']:6d} {c['steady_steps']:7d} {turns:6d} "
          f"{c['steady_uploads'] / steady:8.3f} "
          f"{c['steady_launches'] / steady:9.3f} {host_us:8.1f} "
          f"{c['busy_ns'] / max(c['steps'], 1) / 1e3:8.1f} "
          f"{c['steady_device_ns'] / steady / 1e6:9.3f} {c['gaps']:5d} "
          f"{c['longest_gap_ns'] / 1e3:9.1f}", flush=True)
    wrong = []
    if c["steady_steps"] == 0:
        wrong.append("no steady step")
    if c["steady_uploads"] != 0:
        wrong.append(f"{c['steady_uploads']} copies in {c['steady_steps']} steps")
    if c["steady_launches"] != c["steady_steps"] + turns:
        wrong.append(f"{c['steady_launches']} launches in {c['steady_steps']} steps")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--streams", default="1,4,16,64")
    parser.add_argument("--prompt", type=int, default=960)
    parser.add_argument("--output", type=int, default=256)
    args = parser.parse_args()
    wrong = []
    print("streams  steps  steady  turns  uploads  launches  host us  exec us  device ms  gaps  "
          "longest us")
    with tempfile.TemporaryDirectory() as folder:
        model = served.model_12b(folder)
        plans = str(pathlib.Path(folder) / "plans")
        for streams in [int(n) for n in args.streams.split(",")]:
            with served.Served(args.build, model, "--device", "cuda:0", "--load-format", "dummy",
                               "--max-slots", "64", "--record", plans) as server:
                asyncio.run(load(server.url, streams, args))
            wrong += [f"{streams} streams: {what}" for what in row(streams, counters(server.log()))]
        replay = subprocess.run([str(pathlib.Path(args.build) / "deploy" / "bezel"), "replay", plans,
                                 str(model), "--device", "cuda:0", "--load-format", "dummy",
                                 "--max-slots", "64"], capture_output=True, text=True, timeout=240,
                                check=False)
        print(replay.stdout.strip())
        if replay.returncode != 0 or "steady decode" not in replay.stdout:
            wrong.append(f"replay ended with {replay.returncode}: {replay.stderr[-500:]}")
    for what in wrong:
        print("WRONG", what)
    return 1 if wrong else 0


sys.exit(main())
