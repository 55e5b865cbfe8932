"""What the tests of hostile clients share: a server that others use meanwhile, its memory, and
connections that say what no good client would."""

import asyncio
import contextlib
import pathlib
import random
import time

import load
from load import Answer, expect

GROWTH_MB = 100          # of the frontend, beside whatever a client does
GOOD_OUTPUT = 4
GOOD_S = 30              # a good client's request, on a busy machine


class Good:
    """A client that asks one short thing after the other."""

    def __init__(self, session, url, seed):
        self.session = session
        self.url = url
        self.rng = random.Random(seed)
        self.seconds = []
        self.is_over = False

    async def run(self):
        while not self.is_over:
            answer = Answer(load.random_ids(self.rng, 20), GOOD_OUTPUT)
            await load.in_time(answer.run(self.session, self.url), "a good client's request",
                               GOOD_S)
            answer.expect_whole()
            self.seconds.append(time.monotonic() - answer.sent)
            await asyncio.sleep(0.02)


class Stage:
    """A server, a good client, and what a hostile one needs."""

    def __init__(self, settings, server, session, good):
        self.settings = settings
        self.server = server
        self.session = session
        self.url = server.url
        self.good = good
        self.rng = random.Random(settings.seed)
        self.host, port = server.url.removeprefix("http://").split(":")
        self.port = int(port)
        self.most_kb = 0

    def frontend_kb(self):
        pid = self.server.child("bezel-frontend")
        for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")

    def note_memory(self):
        self.most_kb = max(self.most_kb, self.frontend_kb())

    async def connect(self, limit=1 << 16):
        return await asyncio.open_connection(self.host, self.port, limit=limit)

    async def figure(self, name, **labels):
        return load.figure(await load.read_metrics(self.session, self.url), name, **labels)

    async def until(self, what, condition, seconds=60):
        end = time.monotonic() + seconds
        while not await condition():
            expect(time.monotonic() < end, f"{what}: not after {seconds} s")
            self.note_memory()
            await asyncio.sleep(0.05)


async def close(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def read_to_end(reader, seconds):
    """What came until the server closed; a Problem where it does not."""
    text = b""
    try:
        while True:
            more = await asyncio.wait_for(reader.read(65536), seconds)
            if not more:
                return text
            text += more
    except ConnectionError:
        return text
    except asyncio.TimeoutError:
        raise load.Problem(f"the connection is open after {seconds} s") from None


async def on_stage(settings, scenario, growth_mb, *options):
    """Runs scenario(stage) beside a good client; then all is as before."""
    with load.Server(settings, *options) as server:
        async with load.client() as session:
            good = Good(session, server.url, settings.seed)
            stage = Stage(settings, server, session, good)
            pid = server.child("bezel-frontend")
            task = asyncio.create_task(good.run())
            await stage.until("a first answer", lambda: asyncio.sleep(0, good.seconds or task.done()))
            before_kb = stage.frontend_kb()
            count = len(good.seconds)
            work = asyncio.create_task(scenario(stage))
            await asyncio.wait([work, task], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                work.cancel()
                await task
            await work
            await stage.until("an answer to the good client behind it",
                              lambda: asyncio.sleep(0, len(good.seconds) > count or task.done()))
            good.is_over = True
            await task
            stage.note_memory()
            expect(server.child("bezel-frontend") == pid, "the frontend died and was replaced")
            grown_mb = (stage.most_kb - before_kb) / 1024
            during = good.seconds[count:]
            print(f"{len(during)} good answers meanwhile, slowest {max(during):.2f} s; "
                  f"{grown_mb:.0f} MB more at most")
            expect(grown_mb <= growth_mb, f"the frontend grew by {grown_mb:.0f} MB")
            await load.expect_balance(server, session)


def run(settings, scenario, *options, growth_mb=GROWTH_MB):
    asyncio.run(on_stage(settings, scenario, growth_mb, *options))
