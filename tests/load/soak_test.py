"""64 clients against pools that hold about ten full requests: every answer as when nothing else ran,
none stuck, and everything balances afterwards.  usage: soak_test.py BUILD_DIR, see load.py"""

import asyncio
import dataclasses
import os
import random
import signal
import sys
import time

import aiohttp

import load
from load import Answer, expect

SHORTEST_PROMPT = 200
WATCH_S = 2
STILL_S = 120  # without a step: on a loaded machine each takes seconds


@dataclasses.dataclass
class Shape:
    """What the clients ask for, and how small the pools are."""
    prompt_count: int
    longest_prompt: int = 3000
    shortest_output: int = 2
    longest_output: int = 96
    prefix: int = 700  # tokens that every other prompt begins with
    clients: int = 64
    # The longest request holds 49 global pages, and 4 local ones once its prompt is done.
    options: tuple = ("--global-pages", 490, "--local-pages", 47, "--max-slots", 64)


class Workload:
    """Prompts, and the answers that they get when nothing else runs."""

    def __init__(self, rng, shape):
        self.shape = shape
        prefix = load.random_ids(rng, shape.prefix)
        self.prompts = []
        for i in range(shape.prompt_count):
            ids = load.random_ids(rng, rng.randrange(SHORTEST_PROMPT, shape.longest_prompt + 1))
            if i % 2 == 0:
                shared = min(shape.prefix, len(ids) - 1)
                ids = prefix[:shared] + ids[shared:]
            self.prompts.append(ids)
        self.answers = []

    async def learn(self, session, url):
        for prompt in self.prompts:
            answer = Answer(prompt, self.shape.longest_output, False)
            await load.in_time(answer.run(session, url), "a request alone")
            self.answers.append(answer.expect_whole().ids)


class Soak:
    """The clients, what they saw, and the faults that excuse a failed request."""

    def __init__(self, server, workload, rng, session):
        self.server = server
        self.workload = workload
        self.rng = rng
        self.session = session
        self.end = 0.0
        self.whole = self.left = self.excused = self.mismatched = 0
        self.problems = []
        self.faults = []       # times of kills
        self.forgiven_s = 60   # after a kill: the worker's restart, and requests that it lost
        self.moved = time.monotonic()  # when the worker's steps were last seen to grow

    def is_excused(self, answer):
        return any(answer.sent - self.forgiven_s < fault < time.monotonic()
                   for fault in self.faults)

    def check(self, answer, index):
        want = self.workload.answers[index][:answer.output]
        if answer.ids != want[:len(answer.ids)]:
            self.mismatched += 1
            self.problems.append(f"prompt {index} of {len(answer.body['prompt'])} tokens: "
                                 f"{answer.ids} instead of {want}")
        if answer.status == 200 and not answer.error and answer.has_finished:
            self.whole += 1
            if len(answer.ids) != answer.output:
                self.problems.append(f"{len(answer.ids)} tokens, asked for {answer.output}")
        elif self.is_excused(answer):
            self.excused += 1
        else:
            self.problems.append(f"prompt {index}: status {answer.status}, {answer.error!r}, "
                                 f"{len(answer.ids)} of {answer.output} tokens")

    async def leave(self, answer, task):
        """Closes the connection at some moment from before the first byte to the last token."""
        if self.rng.random() < 0.5:
            await asyncio.wait([task], timeout=self.rng.random() ** 3 * 20)
        else:
            wanted = self.rng.randrange(1, answer.output)
            reached = asyncio.Event()
            answer.on_token = lambda a: len(a.ids) >= wanted and reached.set()
            waiter = asyncio.create_task(reached.wait())
            await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
        is_over = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return is_over

    async def request(self):
        rng = self.rng
        index = rng.randrange(len(self.workload.prompts))
        shape = self.workload.shape
        answer = Answer(self.workload.prompts[index],
                        rng.randrange(shape.shortest_output, shape.longest_output + 1),
                        is_stream=rng.random() < 0.7, priority=rng.randrange(-2, 3))
        task = asyncio.create_task(answer.run(self.session, self.server.url))
        if rng.random() < 1 / 3:
            leaving = asyncio.create_task(self.leave(answer, task))
            if not await self.follow(leaving, f"prompt {index}"):
                self.left += 1
                return
        await self.follow(task, f"prompt {index}")
        self.check(answer, index)

    async def watch(self):
        """A request of low priority may wait for long; it is stuck when nothing else runs."""
        seen = None
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                figures = await load.read_metrics(self.session, self.server.url)
            except (aiohttp.ClientError, load.Problem):
                continue  # a frontend that was killed
            steps = load.figure(figures, "bezel:worker_steps_total")
            if steps != seen:
                seen = steps
                self.moved = time.monotonic()

    async def follow(self, task, what):
        while not task.done():
            await asyncio.wait([task], timeout=WATCH_S)
            still_s = time.monotonic() - self.moved
            if still_s > STILL_S:
                task.cancel()
                raise load.Problem(f"{what} is stuck: open while no step runs for {still_s:.0f} s")
        return task.result()

    async def client(self):
        while time.monotonic() < self.end and not self.problems:
            await self.request()

    async def run(self, seconds, *others):
        self.moved = time.monotonic()
        self.end = self.moved + seconds
        watcher = asyncio.create_task(self.watch())
        await asyncio.gather(*(self.client() for _ in range(self.workload.shape.clients)), *others)
        watcher.cancel()
        expect(not self.problems, f"{len(self.problems)} problems: " + "; ".join(self.problems[:3]))


async def stall(server, name, seconds):
    """A program stands still: nothing may be lost where that is less than the session timeout."""
    pid = server.child(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def reload(soak):
    """A new frontend takes over under load: nobody may notice."""
    old = soak.server.child("bezel-frontend")

    async def old_is_gone():
        while old in soak.server.children("bezel-frontend"):
            await asyncio.sleep(0.05)
    soak.server.process.send_signal(signal.SIGHUP)
    await soak.follow(asyncio.create_task(old_is_gone()), "the hand-over")


async def kill(soak, name):
    pid = soak.server.child(name)
    soak.faults.append(time.monotonic())
    os.kill(pid, signal.SIGKILL)


async def pause_then(seconds, action, *arguments):
    await asyncio.sleep(seconds)
    await action(*arguments)


async def stall_for_too_long(soak, timeout_s):
    """Each program in turn stands still for longer than a session bears, while requests come."""
    while time.monotonic() < soak.end:
        for name in ("bezel-worker", "bezel-frontend"):
            await asyncio.sleep(2 * timeout_s)
            soak.faults.append(time.monotonic())
            await stall(soak.server, name, 1.5 * timeout_s)


def preempted(figures):
    return load.figure(figures, "vllm:num_preemptions_total")


def report(soak, figures):
    steps = load.figure(figures, "bezel:worker_steps_total")
    print(f"{soak.whole} whole, {soak.left} left, {soak.excused} excused, {steps:.0f} steps, "
          f"{load.count(figures, 'cancelled')} cancelled, {preempted(figures):.0f} preempted, "
          f"{load.figure(figures, 'vllm:prefix_cache_hits_total'):.0f} tokens reused")


async def learn(settings, rng, shape):
    workload = Workload(rng, shape)
    with load.Server(settings, *shape.options) as server:
        async with load.client() as session:
            await workload.learn(session, server.url)
            await load.expect_balance(server, session)
    return workload


async def expect_same_answers_alone(soak):
    for prompt, want in list(zip(soak.workload.prompts, soak.workload.answers))[::5]:
        answer = await load.in_time(
            Answer(prompt, len(want)).run(soak.session, soak.server.url), "a request alone")
        expect(answer.expect_whole().ids == want, "a prompt alone has another answer than before")


async def soak(settings, seconds, shape, *others_of, options=()):
    rng = random.Random(settings.seed)
    workload = await learn(settings, rng, shape)
    with load.Server(settings, *shape.options, *options) as server:
        async with load.client() as session:
            run = Soak(server, workload, rng, session)
            await run.run(seconds, *(other(run) for other in others_of))
            figures = await load.expect_balance(server, session)
            report(run, figures)
            least = 0 if run.faults else shape.clients / 4
            expect(run.whole > least and run.left > 0, f"only {run.whole} requests were answered")
            if not run.faults:
                await expect_same_answers_alone(run)
                await load.expect_balance(server, session)
            return figures


def test_soak_with_a_stall_and_a_reload(settings):
    seconds = settings.seconds or (600 if settings.is_full else 60)
    asyncio.run(soak(settings, seconds, Shape(160 if settings.is_full else 16),
                     lambda run: pause_then(seconds / 2, stall, run.server,
                                            "bezel-frontend", 3),
                     lambda run: pause_then(seconds * 3 / 4, reload, run),
                     options=("--drain-timeout-s", 600)))


def test_soak_with_preemptions(settings):
    """Long outputs outgrow the pool: victims are computed again and say the same."""
    seconds = settings.seconds or (180 if settings.is_full else 20)
    shape = Shape(6, longest_prompt=300, shortest_output=200, longest_output=400,
                  prefix=130, clients=16,
                  options=("--global-pages", 22, "--local-pages", 60, "--max-slots", 16))
    figures = asyncio.run(soak(settings, seconds, shape))
    expect(preempted(figures) > 0, "nothing was preempted: the pool is too large for this test")


def test_soak_with_lost_sessions(settings):
    """Sessions end by silence of either side, again and again: requests may fail, none is stuck."""
    seconds = settings.seconds or (120 if settings.is_full else 20)
    asyncio.run(soak(settings, seconds, Shape(8), lambda run: stall_for_too_long(run, 1),
                     options=("--session-timeout-ms", 1000)))


def test_soak_under_kills(settings):
    """The worker, and later the frontend, is killed in the middle: what ran then may fail."""
    seconds = settings.seconds or (180 if settings.is_full else 30)
    asyncio.run(soak(settings, seconds, Shape(12),
                     lambda run: pause_then(seconds / 4, kill, run, "bezel-worker"),
                     lambda run: pause_then(seconds / 2, kill, run, "bezel-frontend")))


if __name__ == "__main__":
    sys.exit(load.main(sys.modules[__name__]))
