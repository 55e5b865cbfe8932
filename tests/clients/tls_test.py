"""HTTPS, HTTP/2 and the hand-over of both, through curl, httpx and the openai SDK.
usage: tls_test.py BUILD_DIR [NAME]"""

import asyncio
import json
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import httpx
import openai
import trustme
from prometheus_client.parser import text_string_to_metric_families

import server

MODEL = "demo-model"
CHAT = {"model": MODEL, "temperature": 0,
        "messages": [{"role": "user", "content": "What is the capital of France?"}]}
ANSWER = "The capital of France is Paris."
HEADER_S = 2


class Place:
    """Where the server is, and whom it may be believed to be."""

    def __init__(self, build, folder):
        self.build = pathlib.Path(build)
        self.folder = pathlib.Path(folder)
        self.run_dir = self.folder / "run"
        self.ca = str(self.folder / "ca.pem")
        self.cert = str(self.folder / "cert.pem")
        self.key = str(self.folder / "key.pem")
        authority = trustme.CA()
        own = authority.issue_cert("127.0.0.1", "localhost")
        authority.cert_pem.write_to_path(self.ca)
        own.private_key_pem.write_to_path(self.key)
        for blob in own.cert_chain_pems:
            blob.write_to_path(self.cert, append=True)
        self.url = ""

    def options(self):
        return ("--tls-cert", self.cert, "--tls-key", self.key, "--run-dir", str(self.run_dir),
                "--header-timeout-s", str(HEADER_S))

    def context(self):
        return ssl.create_default_context(cafile=self.ca)

    def address(self):
        host, port = self.url.removeprefix("https://").split(":")
        return host, int(port)

    def figure(self, name):
        answer = httpx.get(self.url + "/metrics", verify=self.context())
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                if sample.name == name:
                    return sample.value
        raise AssertionError(f"no {name} on /metrics")


def curl(place, *options, body=None):
    """(HTTP version, status, body); the status is 0 without an answer."""
    command = ["curl", "--silent", "--max-time", "20", "--cacert", place.ca, "--write-out",
               "\n%{http_version} %{http_code}", *options]
    if body is not None:
        command += ["--data", json.dumps(body), "--header", "Content-Type: application/json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    text, _, tail = done.stdout.rpartition("\n")
    version, status = tail.split()
    return version, int(status), text


def test_curl_by_version(place):
    url = place.url + "/v1/chat/completions"
    for options, version in ((("--tlsv1.3",), "2"), (("--tls-max", "1.2"), "2"),
                             (("--http1.1", "--tlsv1.3"), "1.1"),
                             (("--http1.1", "--tls-max", "1.2"), "1.1")):
        got, status, text = curl(place, *options, url, body=CHAT)
        assert (got, status) == (version, 200), (options, got, status, text)
        assert json.loads(text)["choices"][0]["message"]["content"] == ANSWER, text
    for options in (("--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"), ("--http0.9",)):
        plain = place.url.replace("https", "http") if options[0] == "--http0.9" else place.url
        _, status, text = curl(place, *options, plain + "/health")
        assert status == 0, (options, status, text)


def test_stream_by_curl(place):
    for options in ((), ("--http1.1",)):
        _, status, text = curl(place, "--no-buffer", *options, place.url + "/v1/chat/completions",
                               body={**CHAT, "stream": True})
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        assert status == 200 and events[-1] == "[DONE]", (status, text)
        deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
        assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER, text


def test_openai_sdk(place):
    for is_http2 in (False, True):
        with httpx.Client(verify=place.context(), http2=is_http2) as http:
            seen = []
            http.event_hooks["response"].append(lambda answer: seen.append(answer.http_version))
            client = openai.OpenAI(base_url=place.url + "/v1", api_key="none", http_client=http)
            whole = client.chat.completions.create(**CHAT)
            assert whole.choices[0].message.content == ANSWER, whole
            chunks = list(client.chat.completions.create(**CHAT, stream=True))
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == ANSWER, text
            assert set(seen) == {"HTTP/2" if is_http2 else "HTTP/1.1"}, seen


def test_many_streams_on_one_connection(place):
    async def ask_all():
        async with httpx.AsyncClient(verify=place.context(), http2=True, timeout=60,
                                     limits=httpx.Limits(max_connections=1)) as http:
            return await asyncio.gather(*(http.post(place.url + "/v1/chat/completions", json=CHAT)
                                          for _ in range(20)))
    answers = asyncio.run(ask_all())
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [ANSWER] * 20, texts


def handshake(place, version):
    """A connection to the end of the client's side, with its last message still to be sent."""
    context = place.context()
    context.minimum_version = context.maximum_version = version
    raw = socket.create_connection(place.address(), timeout=10)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            tls.do_handshake()
            return raw, tls, incoming, outgoing
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(16384))


def test_request_with_the_last_handshake_message(place):
    """Both in one segment, as fast clients do it; and cut at every third byte."""
    for cut in range(0, 200, 3):
        raw, tls, incoming, outgoing = handshake(place, ssl.TLSVersion.TLSv1_3)
        tls.write(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        wire = outgoing.read()
        if 0 < cut < len(wire):
            raw.sendall(wire[:cut])
            raw.sendall(wire[cut:])
        else:
            raw.sendall(wire)
        text = b""
        while b'{"status":"ok"}' not in text:
            try:
                text += tls.read(4096)
            except ssl.SSLWantReadError:
                more = raw.recv(16384)
                assert more, (cut, text)
                incoming.write(more)
        raw.close()


def until(what, seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not in {seconds} s"
        time.sleep(0.05)


def test_client_that_leaves_is_noticed(place):
    before = place.figure("bezel:clients_gone_total")
    body = json.dumps({"prompt": [2, 300, 301], "max_tokens": 4000, "ignore_eos": True,
                       "stream": True}).encode()
    raw = socket.create_connection(place.address(), timeout=10)
    tls = place.context().wrap_socket(raw, server_hostname="127.0.0.1")
    tls.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" %
                len(body) + body)
    assert b"200 OK" in tls.recv(4096)
    tls.close()
    until("a client that left", 10, lambda: place.figure("bezel:clients_gone_total") > before)
    until("its request's end", 10, lambda: place.figure("bezel:requests_open") == 0)


def closes_in(connection, seconds):
    connection.settimeout(seconds)
    begin = time.monotonic()
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - begin


def test_half_handshakes_end(place):
    silent = socket.create_connection(place.address(), timeout=10)
    begun = socket.create_connection(place.address(), timeout=10)
    begun.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01")
    plain = socket.create_connection(place.address(), timeout=10)
    plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    for connection in (silent, begun, plain):
        assert closes_in(connection, HEADER_S + 8) < HEADER_S + 7
        connection.close()
    slow = place.context().wrap_socket(socket.create_connection(place.address(), timeout=10),
                                       server_hostname="127.0.0.1")
    slow.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
    assert closes_in(slow, HEADER_S + 8) < HEADER_S + 7
    slow.close()


def reload(place):
    done = subprocess.run([place.build / "deploy" / "bezel", "reload", "--run-dir", place.run_dir],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def httpx_client(place):
    return httpx.Client(verify=place.context(), timeout=60)


def ask_kept(place, http):
    answer = http.post(place.url + "/v1/chat/completions", json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER, answer.text


def ask_anew(place, _):
    with httpx_client(place) as http:
        ask_kept(place, http)


def ask_http2(place, _):
    """Three on one connection: curl, unlike httpx, goes on behind a GOAWAY."""
    url = place.url + "/v1/chat/completions"
    version, status, text = curl(place, *[url] * 3, body=CHAT)
    assert (version, status, text.count(ANSWER)) == ("2", 200, 3), (version, status, text)


def test_reload_cuts_nothing(place):
    """Requests before, during and behind a reload, on connections kept and new, both versions."""
    ways = (ask_kept, ask_anew, ask_http2)
    counts = [0] * len(ways)
    problems = []
    is_over = threading.Event()

    def ask(index):
        try:
            with httpx_client(place) as http:
                while not is_over.is_set():
                    ways[index](place, http)
                    counts[index] += 1
        except Exception as error:  # a thread's problem is the test's
            problems.append(repr(error))
    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(ways))]
    for thread in threads:
        thread.start()
    try:
        until("requests before the reload", 30, lambda: problems or min(counts) > 2)
        reload(place)
        seen = list(counts)
        until("requests behind the reload", 30,
              lambda: problems or all(now > then + 2 for now, then in zip(counts, seen)))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not problems, problems[:3]


def test_http2_without_tls(place):
    with server.Server(place.build) as plain:
        for options, version in ((("--http2-prior-knowledge",), "2"), (("--http2",), "2"),
                                 (("--http1.1",), "1.1")):
            got, status, text = curl(place, *options, plain.url + "/health")
            assert (got, status) == (version, 200), (options, got, status, text)
        got, status, text = curl(place, "--http2-prior-knowledge",
                                 plain.url + "/v1/chat/completions", body=CHAT)
        assert (got, status) == ("2", 200) and ANSWER in text, (got, status, text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        where = Place(sys.argv[1], temporary)
        with server.Server(sys.argv[1], *where.options()) as running:
            where.url = running.url
            sys.exit(server.run_tests(sys.modules[__name__], where))
