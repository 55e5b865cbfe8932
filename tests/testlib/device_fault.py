#!/usr/bin/env python3
"""A device fault while streams decode: streams end with an error event, the worker goes with one line.

usage: device_fault.py BUILD_DIR [--device cuda:0] [--model DIR] [--streams 4] [--step 60]
A kernel writes to address 0 in that step.  The worker must be gone within 2 s of it, its last line
say so, new requests get 503, and the launcher start another worker."""
import argparse
import asyncio
import random
import re
import sys
import tempfile
import time

import served

GONE_S = 2.0


async def run_streams(server, args):
    rng = random.Random(2)
    async with served.client() as session:
        streams = [served.Stream(rng, args.prompt, 4000, args.vocab) for _ in range(args.streams)]
        await asyncio.gather(*[stream.run(session, server.url) for stream in streams])
    return streams, time.monotonic()


def check(server, args):
    worker = server.child("bezel-worker")
    streams, ended = asyncio.run(run_streams(server, args))
    served.wait_for("the end of the worker", 10, lambda: not served.is_alive(worker))
    last_token = max(stamp for stream in streams for stamp in stream.stamps)
    took = time.monotonic() - last_token
    lines = re.findall(r"^.* worker device-lost .*$", server.log(), re.M)
    print(f"worker gone {took * 1e3:.0f} ms after the last token, streams ended "
          f"{(ended - last_token) * 1e3:.0f} ms after it")
    print("\n".join(lines))
    wrong = []
    if took > GONE_S:
        wrong.append(f"the worker took {took:.1f} s, at most {GONE_S} s")
    if len(lines) != 1:
        wrong.append(f"{len(lines)} lines say that the device is lost")
    if any(not stream.is_event for stream in streams):
        wrong.append(f"ends without an error event: {[s.error for s in streams if not s.is_event]}")
    another = served.wait_for("another worker", 30, lambda: [
        pid for pid in server.children("bezel-worker") if pid != worker])
    print(f"the launcher started another worker, {another[0]}")
    for what in wrong:
        print("WRONG", what)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--model", default=str(served.ROOT / "deploy" / "demo-model"))
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--step", type=int, default=60)
    parser.add_argument("--prompt", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory():
        with served.Served(args.build, args.model, "--device", args.device,
                           "--inject", f"device-lost:{args.step}") as server:
            server.is_orderly = False  # stopped while a worker may be starting
            return check(server, args)


sys.exit(main())
