"""Many requests, one after another: neither memory nor latency grows.  Through a fake worker, which
costs next to nothing, and through the demo model.  usage: flat_test.py BUILD_DIR, see load.py"""

import asyncio
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile

import aiohttp

import load
import served
from load import Answer, expect

WIDTH = 16     # requests at once
TENTHS = 10
WARM = 3       # tenths until buffers, arenas and caches have their size
SLACK = 1 << 20            # bytes that arenas may still move
LEAK_PER_REQUEST = 64      # bytes: anything lost per request is more
STREAM_OUTPUT = 24
KINDS = 6


class Pair:
    """A frontend and a fake worker."""

    def __init__(self, settings, folder):
        build = pathlib.Path(settings.build)
        self.log_file = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.worker = subprocess.Popen(
            [build / "tests" / "bezel-fake-worker", "--run-dir", folder, "--model-dir",
             load.MODEL, "--step-us", "100"], stdout=subprocess.DEVNULL, stderr=self.log_file)
        self.frontend = subprocess.Popen(
            [build / "frontend" / "bezel-frontend", load.MODEL, "--run-dir", folder,
             "--port", "0"], stdout=subprocess.DEVNULL, stderr=self.log_file)
        self.url = None

    def __enter__(self):
        try:
            self.url = served.wait_for("the frontend", served.START_S, self.find_address)
        except BaseException:
            self.__exit__()
            print(self.log())
            raise
        return self

    def find_address(self):
        expect(self.frontend.poll() is None, f"the frontend ended: {self.frontend.returncode}")
        match = re.search(r" ready ready .*", self.log()) and re.search(r"host=(\S+) port=(\d+)", self.log())
        return match and f"http://{match[1]}:{match[2]}"

    def __exit__(self, *_):
        for process in (self.frontend, self.worker):
            process.send_signal(signal.SIGTERM)
        for process in (self.frontend, self.worker):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def log(self):
        return pathlib.Path(self.log_file.name).read_text(encoding="utf-8", errors="replace")

    def pids(self):
        return {"frontend": self.frontend.pid}


def memory_bytes(pid):
    """Of its own: the ring is as large as it is made, though its pages count only once written."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise load.Problem(f"process {pid} is gone")


async def refused(session, url):
    async with session.post(url + "/v1/completions", json={"prompt": [2], "max_tokens": -1}) as answer:
        expect(answer.status == 400, f"a wrong max_tokens is answered {answer.status}")


async def left(session, url, rng):
    """A client that leaves in the middle."""
    body = Answer(load.random_ids(rng, 20), 1000).body
    async with session.post(url + "/v1/completions", json=body) as answer:
        expect(answer.status == 200, f"status {answer.status}")
        await answer.content.readline()
        answer.close()


async def one(session, url, rng, number, seconds):
    kind = number % KINDS
    if kind == 0:
        await refused(session, url)
    elif kind == 1:
        await left(session, url, rng)
    elif kind == 2:
        body = {"messages": [{"role": "user", "content": f"Say {number}."}], "max_tokens": 4,
                "ignore_eos": True}
        async with session.post(url + "/v1/chat/completions", json=body) as answer:
            expect(answer.status == 200, f"status {answer.status}: {await answer.text()}")
            await answer.read()
    elif kind == 3:
        answer = await Answer(load.random_ids(rng, 200), 2, is_stream=False, logprobs=3,
                              temperature=1.0).run(session, url)
        answer.expect_whole()
    else:
        answer = await Answer(load.random_ids(rng, 30), STREAM_OUTPUT).run(session, url)
        answer.expect_whole()
        seconds.append(answer.stamps[-1] - answer.sent)


async def fill_steps(session, url, rng):
    """Prompts all at once: steps as large as they may be, whose memory counts once it was written."""
    answers = (Answer(load.random_ids(rng, 500), 2, is_stream=False, logprobs=3, temperature=1.0)
               for _ in range(WIDTH))
    for answer in await asyncio.gather(*(answer.run(session, url) for answer in answers)):
        answer.expect_whole()


async def many(url, pids, rng, requests):
    """Per tenth of the requests: memory of each process behind it, and the median latency."""
    memory = {name: [] for name in pids}
    medians = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=load.STUCK_S),
                                     connector=connector) as session:
        await fill_steps(session, url, rng)
        for tenth in range(TENTHS):
            seconds = []
            numbers = iter(range(requests // TENTHS))

            async def one_after_another(numbers=numbers, seconds=seconds):
                for number in numbers:
                    await one(session, url, rng, number, seconds)
            await asyncio.gather(*(one_after_another() for _ in range(WIDTH)))
            medians.append(statistics.median(seconds))
            for name, pid in pids.items():
                memory[name].append(memory_bytes(pid))
    return memory, medians


def expect_flat(settings, requests, memory, medians):
    later = requests * (TENTHS - WARM) // TENTHS
    for name, sizes in memory.items():
        growth = max(sizes[-2:]) - max(sizes[:WARM])
        print(f"{name}: {sizes[WARM - 1] / 1e6:.1f} MB after {requests - later} requests, "
              f"{sizes[-1] / 1e6:.1f} MB after {requests}")
        expect(growth < SLACK + LEAK_PER_REQUEST * later,
               f"the {name} grew by {growth} bytes in {later} requests: {sizes}")
    first, last = medians[1], statistics.median(medians[-3:])
    print(f"a stream of {STREAM_OUTPUT} tokens: {first * 1e3:.1f} ms at first, {last * 1e3:.1f} ms in the end")
    if settings.has_times:
        expect(last < 1.25 * first, f"latency grew: {[round(m * 1e3, 2) for m in medians]} ms")


def test_through_a_fake_worker(settings):
    requests = 100_000 if settings.is_full else 5_000
    with tempfile.TemporaryDirectory() as folder, Pair(settings, folder) as pair:
        rng = random.Random(settings.seed)
        memory, medians = asyncio.run(many(pair.url, pair.pids(), rng, requests))
        expect_flat(settings, requests, memory, medians)


def test_through_the_demo_model(settings):
    requests = 5_000 if settings.is_full else 600
    with load.Server(settings, "--global-pages", 80, "--local-pages", 80) as server:
        pids = {"frontend": server.child("bezel-frontend"), "worker": server.child("bezel-worker")}
        rng = random.Random(settings.seed)
        memory, medians = asyncio.run(many(server.url, pids, rng, requests))
        expect_flat(settings, requests, memory, medians)

        async def balance():
            async with load.client() as session:
                await load.expect_balance(server, session)
        asyncio.run(balance())


if __name__ == "__main__":
    sys.exit(load.main(sys.modules[__name__]))
