"""A live stream beside floods of long prompts, and more arrivals than there is room for.
usage: flood_test.py BUILD_DIR, see load.py"""

import asyncio
import random
import sys
import time

import load
from load import Answer, expect

LONG_PROMPT = 3000
STEP_TOKENS = 512
WIDTH = 4  # long prompts at once
POOLS = ("--global-pages", 560, "--local-pages", 60, "--max-slots", 32,
         "--max-step-tokens", STEP_TOKENS)


def long_one(rng, output=1):
    return Answer(load.random_ids(rng, LONG_PROMPT), output)


async def steps(session, url):
    return load.figure(await load.read_metrics(session, url), "bezel:steps_total")


async def flood_for(session, url, rng, seconds, width):
    """Keeps `width` long prompts in the server; how many were served."""
    end = time.monotonic() + seconds
    served = []

    async def one_after_another():
        while time.monotonic() < end:
            answer = await load.in_time(long_one(rng).run(session, url), "a long prompt")
            served.append(answer.expect_whole())
    await asyncio.gather(*(one_after_another() for _ in range(width)))
    return len(served)


async def step_seconds(session, url, rng):
    """Time of a full prompt step when nothing else runs."""
    answers = [await load.in_time(long_one(rng).run(session, url), "alone") for _ in range(3)]
    return min(a.expect_whole().stamps[0] - a.sent for a in answers) * STEP_TOKENS / LONG_PROMPT


async def live_stream_beside_a_flood(settings):
    rng = random.Random(settings.seed)
    seconds = settings.seconds or (30 if settings.is_full else 12)
    with load.Server(settings, *POOLS) as server:
        async with load.client() as session:
            url = server.url
            budget_s = await step_seconds(session, url, rng)
            live = Answer(load.random_ids(rng, 50), 7000)
            task = asyncio.create_task(live.run(session, url))
            while not live.ids and not task.done():
                await asyncio.sleep(0.01)
            before = await steps(session, url)
            begin = len(live.stamps)
            served = await flood_for(session, url, rng, seconds, WIDTH)
            after = await steps(session, url)
            stamps = live.stamps[begin:]
            expect(not task.done(), f"the live stream ended: {live.error} {len(live.ids)}")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            worst = max(b - a for a, b in zip(stamps, stamps[1:]))
            print(f"{served} long prompts in {after - before:.0f} steps, {len(stamps)} live tokens, "
                  f"worst gap {1000 * worst:.0f} ms, step budget {1000 * budget_s:.0f} ms")
            # Every step has the stream's row; the last few tokens may not have come yet.
            expect(len(stamps) >= after - before - 8,
                   f"{len(stamps)} tokens in {after - before:.0f} steps: the stream was left out")
            expect(served >= WIDTH, f"only {served} long prompts were served")
            if settings.has_times:
                expect(worst <= 2 * budget_s,
                       f"gap of {worst:.3f} s, the step budget is {budget_s:.3f} s")
            await load.expect_balance(server, session)


def test_live_stream_beside_a_flood(settings):
    asyncio.run(live_stream_beside_a_flood(settings))


async def short_behind_long(settings):
    """It has its first token before long ones that came after it, a bounded number of steps late."""
    rng = random.Random(settings.seed)
    ahead = 6
    with load.Server(settings, *POOLS) as server:
        async with load.client() as session:
            url = server.url
            order = []

            def note(name):
                return lambda _: order.append(name) if name not in order else None
            tasks = []

            async def send(name, answer, open_count):
                answer.on_token = note(name)
                tasks.append(asyncio.create_task(answer.run(session, url)))
                while load.count(await load.read_metrics(session, url), "arrived") < open_count:
                    await asyncio.sleep(0.002)
                return answer
            before = await steps(session, url)
            answers = [await send(f"ahead {i}", long_one(rng), i + 1) for i in range(ahead)]
            short = await send("short", Answer(load.random_ids(rng, 20), 4), ahead + 1)
            answers += [await send(f"behind {i}", long_one(rng), ahead + 2 + i)
                        for i in range(ahead)]
            await load.in_time(tasks[ahead], "a short prompt behind long ones")
            after = await steps(session, url)
            await load.in_time(asyncio.gather(*tasks), "long prompts")
            for answer in answers + [short]:
                answer.expect_whole()
            most = ahead * LONG_PROMPT / STEP_TOKENS + 2 * short.output + 8
            print(f"first tokens: {' '.join(order[:ahead + 2])}; {after - before:.0f} steps until "
                  f"the short one ended, at most {most:.0f}")
            late = [name for name in order[:order.index("short")] if name.startswith("behind")]
            expect(not late, f"{late} had tokens before the short prompt that came first")
            expect(after - before <= most,
                   f"{after - before:.0f} steps until the short one had ended, {most:.0f} at most")
            await load.expect_balance(server, session)


def test_short_prompt_behind_long_ones(settings):
    asyncio.run(short_behind_long(settings))


def expect_retry_after(answer):
    value = answer.headers.get("Retry-After", "")
    expect(value.isdigit() and 1 <= int(value) <= 3600, f"429 with Retry-After '{value}'")


async def arrivals_beyond_the_pool(settings):
    """Twice as many as can be served, for a while: tokens come in every second all the same."""
    rng = random.Random(settings.seed)
    seconds = settings.seconds or (60 if settings.is_full else 20)
    stamps = []
    refused = []
    small = ("--global-pages", 140, "--local-pages", 40, "--max-slots", 16, "--max-queue", 16)
    with load.Server(settings, *small) as server:
        async with load.client() as session:
            async def one():
                answer = Answer(load.random_ids(rng, rng.randrange(200, 1200)), 24)
                answer.on_token = lambda _: stamps.append(time.monotonic())
                await load.in_time(answer.run(session, server.url), "an arrival")
                if answer.status == 429:
                    expect_retry_after(answer)
                    refused.append(answer)
                else:
                    answer.expect_whole()
                return answer
            tasks = []
            begin = time.monotonic()
            while time.monotonic() < begin + seconds:
                tasks.append(asyncio.create_task(one()))
                await asyncio.sleep(0.05)
            answers = await load.in_time(asyncio.gather(*tasks), "arrivals beyond the pool")
            width = 1 if settings.has_times else 5
            marks = [begin] + [s for s in stamps if s < begin + seconds] + [begin + seconds]
            worst = max(b - a for a, b in zip(marks, marks[1:]))
            print(f"{len(answers)} arrived, {len(refused)} refused, {len(stamps)} tokens, longest "
                  f"time without one {worst:.2f} s")
            expect(refused, "nothing was refused: the arrivals were too few")
            expect(len(answers) - len(refused) >= 8, "hardly anything was served")
            expect(worst < width, f"no token for {worst:.2f} s")
            figures = await load.expect_balance(server, session)
            expect(load.count(figures, "rejected") == len(refused),
                   f"{len(refused)} saw 429, {load.count(figures, 'rejected')} were counted")


def test_arrivals_beyond_the_pool(settings):
    asyncio.run(arrivals_beyond_the_pool(settings))


if __name__ == "__main__":
    sys.exit(load.main(sys.modules[__name__]))
