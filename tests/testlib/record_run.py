#!/usr/bin/env python3
"""Records the plans of a few short streams on the demo model.  usage: record_run.py BUILD_DIR FILE"""
import asyncio
import random
import sys

import served

STREAMS = 8


async def run(url):
    rng = random.Random(5)
    async with served.client() as session:
        streams = [served.Stream(rng, 5 + i, 8 + i, 2000) for i in range(STREAMS)]
        await asyncio.gather(*[stream.run(session, url) for stream in streams])
    for stream in streams:
        if stream.error or not stream.stamps:
            raise RuntimeError(f"a stream ended with {stream.error}")


def main():
    build, path = sys.argv[1:]
    with served.Served(build, served.ROOT / "deploy" / "demo-model", "--device", "cuda:0",
                       "--record", path) as server:
        asyncio.run(run(server.url))


main()
