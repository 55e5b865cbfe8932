"""Requests as large as a pool, a page more and a page less, with small ones behind them.
usage: edges_test.py BUILD_DIR, see load.py"""

import asyncio
import random
import re
import sys

import load
from load import PAGE, Answer, expect

OUTPUT = 64
SMALL_PROMPT, SMALL_OUTPUT = 30, 8
CONTEXT = 8192


def big(rng, total):
    return Answer(load.random_ids(rng, total - OUTPUT), OUTPUT)


def small(rng):
    return Answer(load.random_ids(rng, SMALL_PROMPT), SMALL_OUTPUT)


def start(answer, session, url):
    return asyncio.create_task(answer.run(session, url))


async def first_token(answer, task, what):
    """Waits for it, and leaves the request running."""
    came = asyncio.Event()
    answer.on_token = lambda _: came.set()
    waiter = asyncio.create_task(came.wait())
    await load.in_time(asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED), what)
    waiter.cancel()
    expect(came.is_set(), f"{what} has no token: status {answer.status}, {answer.error}")


async def refused(session, url, answer, *values):
    """At once, with 400, and every value in the text."""
    await load.in_time(answer.run(session, url), "a request that can never fit")
    expect(answer.status == 400, f"status {answer.status} for what can never fit")
    found = re.findall(r"\d+", answer.error)
    expect(all(str(value) in found for value in values),
           f"'{answer.error}' does not name {values}")


async def big_then_small(session, url, rng, total):
    """Big, small, big again: all are served, the small one before the second big one ends."""
    order = []
    answers = [big(rng, total), small(rng), big(rng, total)]
    tasks = []
    for index, answer in enumerate(answers):
        task = start(answer, session, url)
        task.add_done_callback(lambda _, index=index: order.append(index))
        tasks.append(task)
        if index == 0:
            await first_token(answer, task, f"a request of {total} tokens")
        else:
            await accepted(session, url, index + 1)
    await load.in_time(asyncio.gather(*tasks), f"a request of {total} tokens, or behind one")
    for answer in answers:
        answer.expect_whole()
    expect(order.index(1) < order.index(2), f"ended in the order {order}: the small one waited")
    expect(order.index(0) < order.index(2), f"ended in the order {order}: the first was passed")


async def accepted(session, url, open_count):
    """So many requests are with the server: the order of arrival is settled."""
    async def look():
        while True:
            figures = await load.read_metrics(session, url)
            if load.count(figures, "arrived") - sum(
                    load.count(figures, what) for what in load.OUTCOMES) >= open_count:
                return
            ended = load.count(figures, "finished")
            if ended > accepted.finished_before:
                return
            await asyncio.sleep(0.002)
    await load.in_time(look(), "an arrival")

accepted.finished_before = 0


async def edges(settings, family, pages, most_pages, *options):
    """most_pages: that a request can need of the family, however long."""
    rng = random.Random(settings.seed)
    whole = pages * PAGE
    with load.Server(settings, *options) as server:
        async with load.client() as session:
            url = server.url
            figures = await load.read_metrics(session, url)
            expect(load.figure(figures, "bezel:request_tokens_max") == whole,
                   f"the longest request that fits is not {whole}")
            for total in (whole, whole - PAGE, whole - 1):
                accepted.finished_before = load.count(await load.read_metrics(session, url),
                                                      "finished")
                await big_then_small(session, url, rng, total)
            running = big(rng, whole)
            task = start(running, session, url)
            await first_token(running, task, f"a request of {whole} tokens")
            for more in (1, PAGE, 2 * PAGE):
                total = whole + more
                need = min(pages + -(-more // PAGE), most_pages)
                await refused(session, url, big(rng, total), total, need, pages)
            await refused(session, url, big(rng, CONTEXT + 1), CONTEXT + 1 - OUTPUT, OUTPUT, CONTEXT)
            expect(not task.done(), "what cannot fit was refused late")
            behind = small(rng)
            await load.in_time(behind.run(session, url), "a small request")
            behind.expect_whole()
            await load.in_time(task, f"a request of {whole} tokens")
            running.expect_whole()
            # What is not said is as much as fits.
            open_end = Answer(load.random_ids(rng, whole - 5), 5, False)
            del open_end.body["max_tokens"]
            await load.in_time(open_end.run(session, url), "a request without max_tokens")
            open_end.expect_whole()
            figures = await load.expect_balance(server, session)
            expect(load.count(figures, "rejected") == 4, "not 4 requests were rejected")
            expect(load.figure(figures, "bezel:pool_pages", pool=family) == pages, "pool size")


def test_global_pool_binds(settings):
    asyncio.run(edges(settings, "global", 20, 128, "--global-pages", 20, "--local-pages", 60))


def test_local_pool_binds(settings):
    """A prompt takes local pages for its window and the segments in flight, 11 of 64 tokens at most."""
    asyncio.run(edges(settings, "local", 10, 11, "--local-pages", 10, "--global-pages", 200,
                      "--max-step-tokens", 512))


def test_both_pools_bind(settings):
    asyncio.run(edges(settings, "global", 9, 128, "--local-pages", 9, "--global-pages", 9))


if __name__ == "__main__":
    sys.exit(load.main(sys.modules[__name__]))
