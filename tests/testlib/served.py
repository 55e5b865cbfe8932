"""bezel serve as a process tree: address, log, the programs' process ids; and streams against it.

For measurements and faults on a GPU; every wait has a deadline."""

import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import aiohttp

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_S = 240
STOP_S = 60
POLL_S = 0.002


def model_12b(folder):
    """The 12B layout and the tokenizer, without weights, in a folder below `folder`."""
    path = pathlib.Path(folder) / "gemma-4-12b"
    path.mkdir()
    config = ROOT / "tests" / "bench" / "configs" / "gemma-4-12b" / "config.json"
    (path / "config.json").write_bytes(config.read_bytes())
    tokenizer = ROOT / "tests" / "golden" / "tokenizer" / "gemma4-tokenizer.json.gz"
    (path / "tokenizer.json").write_bytes(gzip.decompress(tokenizer.read_bytes()))
    return path


def wait_for(what, seconds, condition):
    """The first true value of condition; TimeoutError names what did not come."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise TimeoutError(f"{what} did not come in {seconds} s")
        time.sleep(POLL_S)


def is_alive(pid):
    """False for a process that is gone or only waits to be collected."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Served:
    """The launcher with both programs until the end of the with block, which then must be in order
    unless is_orderly was cleared."""

    def __init__(self, build, model, *options):
        self.log_file = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.out_file = tempfile.NamedTemporaryFile("w+", suffix=".out")
        self.is_orderly = True
        self.process = subprocess.Popen(
            [str(pathlib.Path(build) / "deploy" / "bezel"), "serve", str(model), "--port", "0",
             *options], stdout=self.out_file, stderr=self.log_file)

    def __enter__(self):
        try:
            self.url = wait_for("the server", START_S, self.find_address)
        except BaseException:
            self.process.kill()
            print(self.log()[-3000:])
            raise
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        if kind is not None:
            print(self.log()[-3000:])
        elif self.is_orderly and status != 0:
            raise RuntimeError(f"the server ended with status {status}\n{self.log()[-3000:]}")

    def find_address(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {self.process.returncode}")
        text = pathlib.Path(self.out_file.name).read_text(encoding="utf-8")
        match = re.search(r"ready: (http://\S+)", text)
        return match and match[1]

    def log(self):
        return pathlib.Path(self.log_file.name).read_text(encoding="utf-8", errors="replace")

    def children(self, name):
        """Process ids of the launcher's living children of that name."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        found = []
        for pid in pathlib.Path(path).read_text(encoding="utf-8").split():
            try:
                argv = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except FileNotFoundError:
                continue
            if os.path.basename(argv[0]).decode() == name and is_alive(int(pid)):
                found.append(int(pid))
        return found

    def child(self, name):
        return wait_for(name, START_S, lambda: self.children(name))[0]


class Stream:
    """One streamed completion of random token ids: when its tokens came, and how it ended."""

    def __init__(self, rng, prompt, output, vocab=200000, options=None):
        self.ids = [2] + [rng.randrange(300, vocab) for _ in range(prompt - 1)]
        self.output = output
        self.options = options or {}
        self.stamps = []
        self.error = None    # of an error event, or of the connection
        self.is_event = False

    async def run(self, session, url):
        body = {"prompt": self.ids, "max_tokens": self.output, "ignore_eos": True,
                "temperature": 0, "stream": True, **self.options}
        try:
            async with session.post(url + "/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {await answer.text()}")
                async for line in answer.content:
                    self.take(line)
        except (aiohttp.ClientError, ConnectionError) as error:
            self.error = self.error or str(error) or type(error).__name__
        return self

    def take(self, line):
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        choices = event.get("choices")
        if choices is None:
            self.error = json.dumps(event)
            self.is_event = True
        elif choices and choices[0].get("finish_reason") is None:
            self.stamps.append(time.monotonic())


def client():
    """A session without limits of its own."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300),
                                 connector=aiohttp.TCPConnector(limit=0))
