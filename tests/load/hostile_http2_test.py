"""HTTP/2 clients that open and take back, or flood with frames that cost them nothing.
usage: hostile_http2_test.py BUILD_DIR, see load.py"""

import asyncio
import contextlib
import struct
import sys
import time

import hostile
import load
from load import expect

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 2, 3, 4, 6, 8, 9)
END_STREAM, END_HEADERS = 1, 4
CANCEL = struct.pack(">I", 8)
FIRST_STREAM = 1
OPTIONS = ("--max-queue", 2000, "--header-timeout-s", 2)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(
        ">I", stream) + payload


def header_block(path=b"/v1/completions"):
    """POST to path, http, authority "a", by the static table."""
    return b"\x83\x86\x04" + bytes((len(path),)) + path + b"\x01\x01a"


def open_and_reset(stream, is_whole):
    flags = END_HEADERS | (END_STREAM if is_whole else 0)
    return (frame(HEADERS, flags, stream, header_block()) +
            frame(RST_STREAM, 0, stream, CANCEL))


class Flood:
    """Sends what make(stream number) gives as fast as asked, on one connection after the other."""

    def __init__(self, stage, make, per_second, seconds):
        self.stage = stage
        self.make = make
        self.per_second = per_second
        self.end = time.monotonic() + seconds
        self.sent = 0
        self.connections = 0

    async def run(self):
        begin = time.monotonic()
        while time.monotonic() < self.end:
            with contextlib.suppress(ConnectionError):
                await self.on_one_connection(begin)
        return self

    async def on_one_connection(self, begin):
        reader, writer = await self.stage.connect()
        self.connections += 1
        drop = asyncio.create_task(swallow(reader))
        try:
            writer.write(PREFACE + frame(SETTINGS, 0, 0))
            stream = FIRST_STREAM
            while time.monotonic() < self.end and not drop.done():
                due = int((time.monotonic() - begin) * self.per_second) - self.sent
                wire = [self.make(stream + 2 * i) for i in range(min(due, 100))]
                stream += 2 * len(wire)
                self.sent += len(wire)
                writer.write(b"".join(wire))
                await writer.drain()
                self.stage.note_memory()
                await asyncio.sleep(0.002)
        finally:
            drop.cancel()
            writer.transport.abort()


async def swallow(reader):
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def flood(stage, make, what, per_second=10000):
    seconds = stage.settings.seconds or (20 if stage.settings.is_full else 1)
    before = await stage.figure("bezel:requests_arrived_total")
    floods = await asyncio.gather(*(Flood(stage, make, per_second // 4, seconds).run()
                                    for _ in range(4)))
    sent = sum(one.sent for one in floods)
    arrived = await stage.figure("bezel:requests_arrived_total") - before
    print(f"{sent / seconds:.0f} {what} a second on {sum(one.connections for one in floods)} "
          f"connections, {arrived:.0f} requests arrived")
    expect(sent > 0, "nothing was sent")


async def resets(stage):
    await flood(stage, lambda stream: open_and_reset(stream, True), "requests taken back")
    expect(await stage.figure("bezel:http2_reset_floods_total") > 0, "no connection was dropped")

    async def are_gone():
        return await stage.figure("bezel:requests_open") <= 1
    await stage.until("the end of what was taken back", are_gone)


def test_resets(settings):
    hostile.run(settings, resets, *OPTIONS)


async def resets_of_halves(stage):
    """Taken back before they are whole: they never become requests."""
    await flood(stage, lambda stream: open_and_reset(stream, False), "halves taken back")


def test_resets_of_halves(settings):
    hostile.run(settings, resets_of_halves, *OPTIONS)


FLOODS = {
    "pings": lambda stream: frame(PING, 0, 0, b"12345678"),
    "settings": lambda stream: frame(SETTINGS, 0, 0),
    "priorities": lambda stream: frame(PRIORITY, 0, stream, b"\0\0\0\0\1"),
    "window updates": lambda stream: frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    "header blocks without end": lambda stream: (
        frame(HEADERS, 0, FIRST_STREAM, header_block()) if stream == FIRST_STREAM
        else frame(CONTINUATION, 0, FIRST_STREAM, b"")),
    "empty data": lambda stream: (
        frame(HEADERS, END_HEADERS, FIRST_STREAM, header_block()) if stream == FIRST_STREAM
        else frame(DATA, 0, FIRST_STREAM)),
    "garbage": lambda stream: b"\xff" * 100,
}


async def frames(stage):
    for what, make in FLOODS.items():
        await flood(stage, make, what)
        stage.note_memory()


def test_frames(settings):
    hostile.run(settings, frames, *OPTIONS)


async def open_bodies(stage):
    """A hundred uploads on each connection that never end, with all the window allows."""
    chunk = frame(DATA, 0, 0, b"x" * 16384)[9:]
    connections = []
    for _ in range(4):
        reader, writer = await stage.connect()
        drop = asyncio.create_task(swallow(reader))
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        for stream in range(FIRST_STREAM, 200, 2):
            writer.write(frame(HEADERS, END_HEADERS, stream, header_block()))
            writer.write(frame(DATA, 0, stream, chunk))
        await writer.drain()
        connections.append((writer, drop))
    await asyncio.sleep(1)
    stage.note_memory()
    for writer, drop in connections:
        drop.cancel()
        writer.transport.abort()


def test_open_bodies(settings):
    hostile.run(settings, open_bodies, *OPTIONS)


async def unread_streams(stage):
    """Streams whose client grants no window: ended like those of any slow reader."""
    reader, writer = await stage.connect()
    drop = asyncio.create_task(swallow(reader))
    body = (b'{"prompt":[2,300,301],"max_tokens":8000,"ignore_eos":true,"stream":true,'
            b'"logprobs":20}')
    writer.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 100)))  # of each stream
    for stream in range(FIRST_STREAM, 7, 2):
        writer.write(frame(HEADERS, END_HEADERS, stream, header_block()) +
                     frame(DATA, END_STREAM, stream, body))

    async def are_ended():
        return await stage.figure("bezel:slow_readers_total") >= 3
    await stage.until("the end of streams without a window", are_ended, 120)
    drop.cancel()
    writer.transport.abort()


def test_unread_streams(settings):
    hostile.run(settings, unread_streams, "--stream-buffer-kb", 64)


if __name__ == "__main__":
    sys.exit(load.main(sys.modules[__name__]))
