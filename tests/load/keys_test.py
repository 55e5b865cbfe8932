"""API keys that share, and priorities that overtake.  usage: keys_test.py BUILD_DIR, see load.py"""

import asyncio
import random
import sys

import load
from load import Answer, expect

SLOTS = 4
OPTIONS = ("--max-slots", SLOTS, "--max-queue", 500)
CROWD = 80
FEW = 10
PROMPT, OUTPUT = 150, 8


class Crowd:
    """Requests and the order in which they ended."""

    def __init__(self, session, url, rng):
        self.session = session
        self.url = url
        self.rng = rng
        self.order = []
        self.tasks = []
        self.answers = []

    def send(self, name, how_many, key=None, **fields):
        headers = {"Authorization": f"Bearer {key}"} if key else None
        for _ in range(how_many):
            answer = Answer(load.random_ids(self.rng, PROMPT), OUTPUT, False, **fields)
            task = asyncio.create_task(answer.run(self.session, self.url, headers))
            task.add_done_callback(lambda _, name=name: self.order.append(name))
            self.tasks.append(task)
            self.answers.append(answer)

    async def expect_arrived(self):
        async def look():
            while load.count(await load.read_metrics(self.session, self.url),
                             "arrived") < len(self.tasks):
                await asyncio.sleep(0.01)
        await load.in_time(look(), "an arrival")

    async def finish(self):
        await load.in_time(asyncio.gather(*self.tasks), "a crowd")
        for answer in self.answers:
            answer.expect_whole()

    def ended_before_last_of(self, name, begin):
        """Of the others, how many ended from `begin` on and before the last of that name."""
        last = max(i for i, other in enumerate(self.order) if other == name)
        return sum(1 for other in self.order[begin:last] if other != name)


async def with_crowd(settings, scenario):
    rng = random.Random(settings.seed)
    with load.Server(settings, *OPTIONS) as server:
        async with load.client() as session:
            await scenario(Crowd(session, server.url, rng))
            await load.expect_balance(server, session)


async def keys_share(crowd):
    crowd.send("many", CROWD, "key-of-many")
    await crowd.expect_arrived()
    crowd.send("few", FEW, "key-of-few")
    crowd.send("none", FEW)
    await crowd.expect_arrived()
    begin = len(crowd.order)
    await crowd.finish()
    # The three take turns: about as many of each of the others; and those at the worker already.
    for name in ("few", "none"):
        others = crowd.ended_before_last_of(name, begin)
        print(f"{others} others ended before the last of '{name}', {begin} before they came")
        expect(others <= 2 * FEW + 3 * SLOTS, f"{others} others went before the last of '{name}'")


def test_keys_share(settings):
    asyncio.run(with_crowd(settings, keys_share))


async def priority_overtakes(crowd):
    crowd.send("late", FEW, priority=3)
    crowd.send("crowd", CROWD)
    await crowd.expect_arrived()
    crowd.send("early", FEW, priority=-3)
    await crowd.expect_arrived()
    begin = len(crowd.order)
    await crowd.finish()
    others = crowd.ended_before_last_of("early", begin)
    print(f"{others} others ended before the last early one, {begin} before they came")
    expect(others <= 3 * SLOTS, f"{others} others went before those of high priority")
    # Those that did not start at once let all others pass.
    tail = crowd.order[-(FEW - SLOTS):]
    expect(tail.count("late") >= len(tail) - 1, f"the last to end were {tail}")


def test_priority_overtakes(settings):
    asyncio.run(with_crowd(settings, priority_overtakes))


async def timeout_ends_a_wait(crowd):
    crowd.send("crowd", CROWD)
    await crowd.expect_arrived()
    late = Answer(load.random_ids(crowd.rng, PROMPT), OUTPUT, False, timeout=0.05)
    await load.in_time(late.run(crowd.session, crowd.url), "a request with a timeout")
    expect(late.status == 408, f"status {late.status}, {late.error!r} after its timeout")
    expect(len(crowd.order) < CROWD, "the crowd was over: nothing had to wait")
    await crowd.finish()


def test_timeout_ends_a_wait(settings):
    asyncio.run(with_crowd(settings, timeout_ends_a_wait))


if __name__ == "__main__":
    sys.exit(load.main(sys.modules[__name__]))
