"""Clients that are slow, greedy, rude or many: the server stays up, bounded, and serves others.
usage: hostile_test.py BUILD_DIR, see load.py"""

import asyncio
import contextlib
import json
import socket
import sys
import time

import hostile
import load
from load import Answer, expect

HEADER_S = 2
OPTIONS = ("--max-queue", 2000, "--header-timeout-s", HEADER_S, "--stream-buffer-kb", 16)


def completion(body, *headers):
    """The bytes of a request."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: a", f"Content-Length: {len(payload)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


ENDLESS = {"prompt": [2, 300, 301], "max_tokens": 8000, "ignore_eos": True, "stream": True,
           "logprobs": 20}


async def many_streams(stage):
    """All at once, each with the tokens it asked for."""
    count, output = (2000, 32) if stage.settings.is_full else (512, 4)
    answers = [Answer(load.random_ids(stage.rng, 10), output) for _ in range(count)]
    tasks = [asyncio.create_task(answer.run(stage.session, stage.url)) for answer in answers]
    most_open = 0
    while not all(task.done() for task in tasks):
        most_open = max(most_open, await stage.figure("bezel:requests_open"))
        stage.note_memory()
        await asyncio.sleep(0.1)
    await asyncio.gather(*tasks)
    for answer in answers:
        answer.expect_whole()
    print(f"{most_open:.0f} of {count} streams open at once")
    expect(most_open >= count / 4, "they were not open at once")


def test_many_streams(settings):
    hostile.run(settings, many_streams, *OPTIONS)


async def slow_readers(stage):
    """Streams that nobody reads are ended, whatever the kernel would hold for them."""
    count = 32 if stage.settings.is_full else 3
    before = await stage.figure("bezel:slow_readers_total")
    writers = []
    for _ in range(count):
        plug = socket.socket()
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plug.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plug, (stage.host, stage.port))
        await asyncio.get_running_loop().sock_sendall(plug, completion(ENDLESS))
        writers.append(plug)

    async def are_ended():
        return await stage.figure("bezel:slow_readers_total") >= before + count
    await stage.until(f"the end of {count} slow readers", are_ended, 300)
    for plug in writers:
        plug.close()


def test_slow_readers(settings):
    hostile.run(settings, slow_readers, *OPTIONS)


async def half_open(stage):
    """Connections that say nothing, and bodies that never end."""
    count = 3000 if stage.settings.is_full else 400
    silent = [await stage.connect() for _ in range(count)]
    halves = []
    for i in range(count // 4):
        reader, writer = await stage.connect()
        begun = completion(b"x" * 100000)[:200 + 100 * i]
        writer.write(begun)
        halves.append((reader, writer))

    async def are_open():
        return await stage.figure("bezel:http_connections") >= count + len(halves)
    await stage.until("all connections", are_open)
    for _, writer in silent + halves:
        writer.transport.abort()

    async def are_gone():
        return await stage.figure("bezel:http_connections") < 20
    await stage.until("the end of reset connections", are_gone)


def test_half_open(settings):
    hostile.run(settings, half_open, *OPTIONS)


async def slow_loris(stage):
    """A byte now and then buys no time."""
    count = 1000 if stage.settings.is_full else 150
    pairs = [await stage.connect() for _ in range(count)]
    begin = time.monotonic()

    async def drip(reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET /health HTTP/1.1\r\nX-Slow: ")
            while time.monotonic() - begin < 30 and not reader.at_eof():
                writer.write(b"y")
                await writer.drain()
                await asyncio.sleep(0.3)
    drips = [asyncio.create_task(drip(*pair)) for pair in pairs]
    await asyncio.gather(*(hostile.read_to_end(reader, 30) for reader, _ in pairs))
    seconds = time.monotonic() - begin
    for task in drips:
        task.cancel()
    await asyncio.gather(*drips, return_exceptions=True)
    for _, writer in pairs:
        await hostile.close(writer)
    expect(seconds < HEADER_S + 15, f"the last was closed after {seconds:.0f} s")
    expect(await stage.figure("bezel:header_timeouts_total") >= count, "not all were timed out")


def test_slow_loris(settings):
    hostile.run(settings, slow_loris, *OPTIONS)


async def huge_headers(stage):
    """A megabyte of header, in one line and in many."""
    one = b"GET /health HTTP/1.1\r\nHost: a\r\nX-Huge: " + b"z" * (1 << 20) + b"\r\n\r\n"
    many = b"GET /health HTTP/1.1\r\n" + b"X-Many: " + b"\r\nX-Many: ".join([b"z"] * 100000)
    path = b"GET /" + b"p" * (1 << 20) + b" HTTP/1.1\r\nHost: a\r\n\r\n"

    async def send(wire):
        reader, writer = await stage.connect()
        with contextlib.suppress(ConnectionError):
            writer.write(wire)
            await writer.drain()
        text = await hostile.read_to_end(reader, 20)
        await hostile.close(writer)
        expect(text == b"" or text.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431")), text[:100])
    rounds = 50 if stage.settings.is_full else 8
    for _ in range(rounds):
        await asyncio.gather(*(send(wire) for wire in (one, many, path) for _ in range(8)))
        stage.note_memory()


def test_huge_headers(settings):
    hostile.run(settings, huge_headers, *OPTIONS)


async def pipelining(stage):
    """Answered in order; and one who sends without reading waits, and costs no memory."""
    reader, writer = await stage.connect()
    count = 300
    for i in range(count):
        writer.write(f"GET /health HTTP/1.1\r\nHost: a\r\nX-Request-Id: r{i}\r\n\r\n".encode())
    writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    text = await hostile.read_to_end(reader, 30)
    ids = [line[14:] for line in text.split(b"\r\n") if line.lower().startswith(b"x-request-id: ")]
    expect(ids[:count] == [f"r{i}".encode() for i in range(count)], "not in order")
    await hostile.close(writer)
    wire = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 1000
    plugs = [await stage.connect(1 << 12) for _ in range(20)]

    async def push(plug):
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            for _ in range(200):
                plug[1].write(wire)
                await asyncio.wait_for(plug[1].drain(), 3)
    for plug in plugs:
        plug[1].transport.pause_reading()
    await asyncio.gather(*(push(plug) for plug in plugs))
    stage.note_memory()
    for _, plug in plugs:
        plug.transport.abort()
    begin = time.monotonic()
    await stage.figure("bezel:http_connections")
    expect(time.monotonic() - begin < 5, "what dead connections had sent ahead was served")


def test_pipelining(settings):
    hostile.run(settings, pipelining, *OPTIONS)


def bad_bodies():
    """Each with the status it gets."""
    mega = 1 << 20
    yield b'{"prompt": "\xff\xfe\xc0\x80"}', 400
    yield b'{"prompt": "\xed\xa0\x80"}', 400
    yield b"{\"prompt\": \"cut \xf0\x9f", 400
    yield b"[" * (8 * mega), 400
    yield b'{"a":' * mega, 400
    yield b'{"prompt": ' + b"[" * mega + b"]" * mega + b"}", 400
    yield b'{"prompt": [' + b"1," * (6 * mega) + b"1]}", 400
    yield b'{"prompt": "' + b"\\u0000" * mega + b'", "max_tokens": 1}', 400
    yield b'{"' + b"k" * (8 * mega) + b'": 1}', 400
    yield b"{" + b",".join(b'"k%d":0' % i for i in range(500000)) + b"}", 400
    yield b'{"prompt": 1e' + b"9" * mega + b"}", 400
    yield b"\0" * mega, 400
    yield b"x" * (17 * mega), 413
    yield b"", 400


async def bad_json(stage):
    """Refused with the right status, and not at the cost of others."""
    width = 8 if stage.settings.is_full else 2
    for body, status in bad_bodies():
        async def send():
            async with stage.session.post(stage.url + "/v1/completions", data=body) as answer:
                text = await answer.text()
                expect(answer.status == status and "error" in json.loads(text),
                       f"{answer.status} for {body[:40]!r}..., {len(body)} bytes: {text[:200]}")
        await load.in_time(asyncio.gather(*(send() for _ in range(width))), repr(body[:40]), 60)
        stage.note_memory()


def test_bad_json(settings):
    # A tree of a million small arrays takes 300 MB, and two threads parse.
    hostile.run(settings, bad_json, *OPTIONS, growth_mb=800)


async def mass_cancel(stage):
    """All who stream leave at once, some with a reset: every gauge goes back, every page too."""
    count = 1000 if stage.settings.is_full else 300
    writers = []
    for _ in range(count):
        _, writer = await stage.connect()
        writer.write(completion(ENDLESS))
        writers.append(writer)

    async def are_open():
        return await stage.figure("bezel:requests_open") >= count
    await stage.until("all requests", are_open)
    for i, writer in enumerate(writers):
        writer.transport.abort() if i % 2 else writer.close()

    async def are_gone():
        return await stage.figure("bezel:requests_open") <= 1
    await stage.until("the end of all requests", are_gone)


def test_mass_cancel(settings):
    hostile.run(settings, mass_cancel, *OPTIONS)


if __name__ == "__main__":
    sys.exit(load.main(sys.modules[__name__]))
