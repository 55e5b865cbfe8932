"""What the load tests share: a server with small pools, requests whose greedy answers are known, and
the balance that must hold once everything has ended.

A scenario is a function named test_*, called with the settings of the command line:
  BUILD_DIR [--full] [--times] [--seconds S] [--seed N] [NAME]
--full runs the long form, --times also holds the limits that are times of the wall clock."""

import argparse
import asyncio
import dataclasses
import itertools
import json
import pathlib
import random
import sys
import time
import traceback

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "testlib"))
import served  # noqa: E402

MODEL = ROOT / "deploy" / "demo-model"
FIRST_ID, LAST_ID = 300, 2000  # ordinary tokens of the demo model
PAGE = 64
SETTLE_S = 120   # for a loaded machine: what is late by so much is stuck
STUCK_S = 300
SAMPLE_S = 0.25


@dataclasses.dataclass
class Settings:
    build: str
    is_full: bool
    has_times: bool
    seconds: float  # 0: as the scenario says
    seed: int


COMMON_LABELS = ("model_name", "engine")


class Problem(Exception):
    """What a test found wrong."""


def expect(condition, text):
    if not condition:
        raise Problem(text)


class Server(served.Served):
    """bezel serve with the demo model on cpu, patient: a loaded machine is nobody's death."""

    def __init__(self, settings, *options):
        super().__init__(settings.build, MODEL, "--device", "cpu", "--session-timeout-ms", "60000",
                         "--watchdog-ms", "60000", *map(str, options))


async def read_metrics(session, url):
    """(name, labels without those that all share) -> value."""
    async with session.get(url + "/metrics") as answer:
        expect(answer.status == 200, f"/metrics answers {answer.status}")
        text = await answer.text()
    figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in COMMON_LABELS))
            figures[sample.name, labels] = sample.value
    return figures


def figure(figures, name, **labels):
    return figures[name, tuple(sorted(labels.items()))]


OUTCOMES = ("finished", "cancelled", "rejected", "failed")


def count(figures, what):
    return int(figure(figures, f"bezel:requests_{what}_total"))


def imbalance(figures):
    """Why arrived requests are not those that ended and those that are open; empty when they are."""
    parts = {what: count(figures, what) for what in OUTCOMES}
    parts["open"] = int(figure(figures, "bezel:requests_open"))
    arrived = count(figures, "arrived")
    return "" if arrived == sum(parts.values()) else f"{arrived} arrived, {parts}"


def unrest(figures):
    """What still runs or is held; empty when there is nothing."""
    left = []
    for name in ("bezel:requests_open", "vllm:num_requests_running", "vllm:num_requests_waiting",
                 "bezel:worker_sequences"):
        value = figure(figures, name)
        if value != 0:
            left.append(f"{name} {value:g}")
    for pool in ("local", "global"):
        held = figure(figures, "bezel:pool_held_pages", pool=pool)
        rest = (figure(figures, "bezel:pool_pages", pool=pool) -
                figure(figures, "bezel:pool_quota_left_pages", pool=pool))
        if held != 0 or rest != 0:
            left.append(f"{pool} pool: {held:g} pages held, {rest:g} missing from the quota")
    age = figure(figures, "bezel:worker_stats_age_seconds")
    if not 0 <= age < 5:
        left.append(f"the worker's figures are {age:g} s old")
    return ", ".join(left)


FAULTS = ("bezel:plans_refused_total", "bezel:worker_plans_refused_total",
          "bezel:worker_steps_failed_total", "bezel:worker_sequences_failed_total",
          "bezel:worker_messages_malformed_total")


async def expect_balance(server, session):
    """Everything has ended: pages free or cached, no sequence, counters add up, nothing refused or
    failed at the worker, no error in the log.  Returns the figures."""
    end = time.monotonic() + SETTLE_S
    while True:
        figures = await read_metrics(session, server.url)
        expect(imbalance(figures) == "", f"requests do not add up: {imbalance(figures)}")
        left = unrest(figures)
        if not left:
            break
        expect(time.monotonic() < end, f"{SETTLE_S} s after the last request: {left}")
        await asyncio.sleep(SAMPLE_S)
    for name in FAULTS:
        expect(figure(figures, name) == 0, f"{name} is {figure(figures, name):g}")
    errors = [line for line in server.log().splitlines() if line.split()[1:2] == ["error"]]
    expect(not errors, "errors in the log: " + " | ".join(errors[:3]))
    return figures


def random_ids(rng, token_count):
    return [2] + [rng.randrange(FIRST_ID, LAST_ID) for _ in range(token_count - 1)]


class Answer:
    """One request for a greedy completion of exactly `output` tokens, and what came of it."""

    def __init__(self, prompt, output, is_stream=True, **fields):
        self.body = {"prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True,
                     "return_token_ids": True, "stream": is_stream, **fields}
        self.output = output
        self.is_stream = is_stream
        self.status = 0
        self.headers = {}
        self.error = ""      # text of the error event or answer, or of the broken connection
        self.ids = []
        self.stamps = []     # of tokens, streams only
        self.has_finished = False
        self.sent = 0.0
        self.on_token = None  # called after each, streams only

    async def run(self, session, url, headers=None):
        self.sent = time.monotonic()
        try:
            async with session.post(url + "/v1/completions", json=self.body,
                                    headers=headers) as answer:
                self.status = answer.status
                self.headers = answer.headers
                if answer.status != 200:
                    self.error = (await answer.json())["error"]["message"]
                elif self.is_stream:
                    async for line in answer.content:
                        self.take_line(line)
                else:
                    self.take_choice((await answer.json())["choices"][0])
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
        return self

    def take_line(self, line):
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            self.error = event["error"]["message"]
        elif event["choices"]:
            self.take_choice(event["choices"][0])

    def take_choice(self, choice):
        ids = choice.get("token_ids") or []
        self.ids += ids
        self.stamps += [time.monotonic()] * len(ids)
        self.has_finished = self.has_finished or choice["finish_reason"] == "length"
        if ids and self.on_token:
            self.on_token(self)

    def expect_whole(self):
        expect(self.status == 200 and not self.error, f"status {self.status}: {self.error}")
        expect(self.has_finished and len(self.ids) == self.output,
               f"{len(self.ids)} of {self.output} tokens, finished: {self.has_finished}")
        return self


def client():
    """Every request on a connection of its own, and no limits of the client's."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None),
                                 connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def in_time(awaitable, what, seconds=STUCK_S):
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:
        raise Problem(f"{what} is stuck: not over after {seconds} s") from None


def main(module):
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("name", nargs="?", default="")
    args = parser.parse_intermixed_args()
    settings = Settings(args.build, args.full, args.times, args.seconds, args.seed)
    print(f"seed {args.seed}")
    passed = failed = 0
    for name, function in vars(module).items():
        if not name.startswith("test_") or args.name not in name:
            continue
        started = time.monotonic()
        try:
            function(settings)
            passed += 1
            print(f"ok {name} ({time.monotonic() - started:.0f} s)", flush=True)
        except Exception:  # any failure of a test is reported, and the others go on
            failed += 1
            print(f"FAIL {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0
