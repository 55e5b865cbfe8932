#!/usr/bin/env python3
"""SIGKILL to the frontend while streams decode, again and again; the worker must not notice.

usage: kill_frontend.py BUILD_DIR [--device cuda:0] [--model DIR] [--streams 16] [--kills 10]
Without --model: the 12B layout with made-up weights.  Each time the next frontend must be ready
within 1 s, over the same worker, and in the end every page of both pools must be free and the worker
idle: under 1% of a core."""
import argparse
import asyncio
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request

import served

READY_S = 1.0
IDLE_S = 4.0
TOKENS_S = 60


def get(url, path, timeout=2):
    with urllib.request.urlopen(url + path, timeout=timeout) as answer:
        return answer.read().decode()


def is_ready(url):
    try:
        return get(url, "/ready", 0.5) != ""
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def gauges(url, name):
    found = re.findall(rf'^{name}{{.*pool="(\w+)".*}} (\S+)$', get(url, "/metrics"), re.M)
    return {pool: float(value) for pool, value in found}


def are_pages_free(url):
    left = gauges(url, "bezel:pool_quota_left_pages")
    return len(left) == 2 and left == gauges(url, "bezel:pool_pages")


async def kill_once(server, args, rng, old):
    """Streams until each has a few tokens, then SIGKILL.  Returns when it was sent."""
    async with served.client() as session:
        streams = [served.Stream(rng, args.prompt, args.output, args.vocab) for _ in range(args.streams)]
        jobs = [asyncio.create_task(stream.run(session, server.url)) for stream in streams]
        end = time.monotonic() + TOKENS_S
        while any(len(stream.stamps) < 3 for stream in streams):
            if time.monotonic() > end or any(job.done() for job in jobs):
                raise RuntimeError(f"no tokens: {[s.error for s in streams if s.error][:2]}")
            await asyncio.sleep(0.005)
        killed = time.monotonic()
        os.kill(old, signal.SIGKILL)
        await asyncio.gather(*jobs)
    if any(stream.error is None for stream in streams):
        raise RuntimeError("a stream ended as if in order")
    return killed


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_percent(pid):
    """Processor time of a process over some seconds without requests, in percent of a core."""
    before = cpu_s(pid)
    time.sleep(IDLE_S)
    return 100 * (cpu_s(pid) - before) / IDLE_S


def kill_all(server, args):
    rng = random.Random(1)
    worker = server.child("bezel-worker")
    slowest = 0.0
    for kill in range(args.kills):
        old = server.child("bezel-frontend")
        killed = asyncio.run(kill_once(server, args, rng, old))
        served.wait_for("another frontend", 10, lambda gone=old: [
            pid for pid in server.children("bezel-frontend") if pid != gone])
        served.wait_for("a ready frontend", 10, lambda: is_ready(server.url))
        took = time.monotonic() - killed
        slowest = max(slowest, took)
        if server.children("bezel-worker") != [worker]:
            raise RuntimeError(f"kill {kill + 1}: another worker, {worker} before")
    served.wait_for("every page free", 10, lambda: are_pages_free(server.url))
    used = idle_percent(worker)
    print(f"{args.kills} kills with {args.streams} streams: ready again after at most "
          f"{slowest * 1e3:.0f} ms, same worker {worker}, all pages free; idle it takes {used:.2f}% of a core")
    return 0 if slowest <= READY_S and used < 1 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--output", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=200000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or served.model_12b(folder)
        options = [] if args.model else ["--load-format", "dummy"]
        with served.Served(args.build, model, "--device", args.device, *options) as server:
            return kill_all(server, args)


sys.exit(main())
