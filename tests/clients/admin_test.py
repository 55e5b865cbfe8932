"""API keys through the SDK, and the routes for admins.  usage: admin_test.py BUILD_DIR [NAME]"""

import json
import pathlib
import sys
import tempfile
import time
import urllib.error
import urllib.request

import openai

import server

CHAT = {"model": "demo-model", "temperature": 0,
        "messages": [{"role": "user", "content": "What is the capital of France?"}]}
ANSWER = "The capital of France is Paris."


class Place:
    """The server and its file of keys."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.key_file = self.folder / "keys"
        self.write_keys("user-key-1", "admin-key-1 admin")
        self.url = ""

    def write_keys(self, *lines):
        self.key_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.key_file.chmod(0o600)

    def post(self, path, key=None):
        """(status, answer)"""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(self.url + path, b"", headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ask(self, key):
        with openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0) as client:
            return client.chat.completions.create(**CHAT).choices[0].message.content


def test_keys(place):
    assert place.ask("user-key-1") == ANSWER
    assert place.ask("admin-key-1") == ANSWER
    error = server.raises(openai.AuthenticationError, place.ask, "user-key-2")
    assert error.status_code == 401 and error.code == "invalid_api_key", error


def test_admin_routes_need_an_admin_key(place):
    for path in ADMIN_ROUTES:
        assert place.post(path)[0] == 401, path
        assert place.post(path, "user-key-2")[0] == 401, path
        status, answer = place.post(path, "user-key-1")
        assert status == 403 and answer["error"]["code"] == "admin_key_required", answer


def reload(place):
    """Until the frontend of the last reload has gone."""
    end = time.monotonic() + 60
    while True:
        status, answer = place.post("/admin/reload", "admin-key-1")
        if status != 409 or "of the last reload" not in answer["error"]["message"]:
            return status, answer
        assert time.monotonic() < end, answer
        time.sleep(0.2)


def test_reload_takes_new_keys(place):
    place.write_keys("user-key-2", "admin-key-1 admin")
    assert place.ask("user-key-1") == ANSWER  # not yet
    status, answer = reload(place)
    assert status == 200 and answer["status"] == "ok", answer
    assert place.ask("user-key-2") == ANSWER
    server.raises(openai.AuthenticationError, place.ask, "user-key-1")
    place.write_keys("user-key-1", "admin-key-1 admin")
    assert reload(place)[0] == 200
    assert place.ask("user-key-1") == ANSWER


def test_failed_reload_says_why(place):
    place.write_keys("short")
    status, answer = reload(place)
    place.write_keys("user-key-1", "admin-key-1 admin")
    assert status == 409 and "a key of 5 characters" in answer["error"]["message"], answer
    assert place.ask("user-key-1") == ANSWER  # the old frontend goes on


def test_cache_reset(place):
    prompt = [2] + list(range(300, 500))  # three full pages

    def cached():
        with openai.OpenAI(base_url=place.url + "/v1", api_key="user-key-1") as client:
            answer = client.completions.create(model="demo-model", prompt=prompt, max_tokens=1)
            return answer.usage.prompt_tokens_details.cached_tokens
    cached()
    assert cached() == 192
    for _ in range(2):
        status, answer = place.post("/admin/cache/reset", "admin-key-1")
        assert status == 200, answer
        assert answer == {"status": "ok", "held_pages": {"local": 0, "global": 0}}, answer
    assert cached() == 0
    assert cached() == 192


def test_without_keys_nobody_is_admin(place):
    with server.Server(sys.argv[1]) as open_server:
        other = Place(place.folder)
        other.url = open_server.url
        assert other.ask("any") == ANSWER
        for path in ADMIN_ROUTES:
            status, answer = other.post(path, "admin-key-1")
            assert status == 403 and "--api-key-file" in answer["error"]["message"], answer


ADMIN_ROUTES = ("/admin/reload", "/admin/cache/reset")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        where = Place(temporary)
        with server.Server(sys.argv[1], "--api-key-file", str(where.key_file)) as running:
            where.url = running.url
            sys.exit(server.run_tests(sys.modules[__name__], where))
