"""Routes that run nothing: /tokenize, /detokenize, /version, /v1/models, chat/completions/render.
usage: text_test.py BUILD_DIR [NAME]"""

import json
import re
import sys
import urllib.request

import params_test
import server
from params_test import CHAT, MODEL, ask, refuse, special

TEXTS = ["Hello", "", " ", "The capital of France is Paris.\n\n", "caf\u00e9 \u0301e\u0323\u0302",
         "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7", "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
         "\U00012345\U0001f600\U0010fffd", "a\u0000b", "<|turn>user\nHi<turn|>", "\u4f60\u597d" * 50]
MESSAGES = [{"role": "system", "content": "Be <|turn>brief."}, {"role": "user", "content": "Hi"}]
RENDER = CHAT + "/render"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}]


def get(url, path):
    return json.loads(urllib.request.urlopen(url + path).read())


def test_text_comes_back(url):
    for text in TEXTS:
        answer = ask(url, "/tokenize", prompt=text)
        assert set(answer) == {"count", "max_model_len", "tokens", "token_strs"}
        assert answer["count"] == len(answer["tokens"]) and answer["token_strs"] is None
        assert answer["tokens"][:1] == [2]
        assert ask(url, "/detokenize", tokens=answer["tokens"][1:])["prompt"] == text
        bare = ask(url, "/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        assert bare == answer["tokens"][1:]
    assert ask(url, "/tokenize", prompt="<bos>a")["tokens"].count(2) == 1


def test_token_texts(url):
    answer = ask(url, "/tokenize", prompt="Hello \U00012345", return_token_strs=True)
    assert answer["token_strs"][0] == "<bos>" and len(answer["token_strs"]) == answer["count"]
    assert answer["token_strs"][-4:] == ["<0xF0>", "<0x92>", "<0x8D>", "<0x85>"]


def test_tokens_are_those_that_run(url):
    ran = ask(url, "/v1/completions", prompt="Hello there", max_tokens=1, return_token_ids=True)
    ids = ask(url, "/tokenize", prompt="Hello there")["tokens"]
    assert ran["choices"][0]["prompt_token_ids"] == ids


def test_render_is_what_runs(url):
    for more in ({}, {"tools": TOOLS}, {"chat_template_kwargs": {"enable_thinking": True}},
                 {"add_generation_prompt": False}):
        shown = ask(url, RENDER, messages=MESSAGES, **more)
        assert set(shown) == {"prompt", "token_ids"}
        assert shown["prompt"].startswith("<bos><|turn>system\n")
        ran = ask(url, CHAT, messages=MESSAGES, max_tokens=1, return_token_ids=True, **more)
        assert shown["token_ids"] == ran["prompt_token_ids"]
        assert ask(url, "/detokenize", tokens=shown["token_ids"])["prompt"] == shown["prompt"]
        assert ask(url, "/tokenize", messages=MESSAGES, **more)["tokens"] == shown["token_ids"]
    turns = int(special("<|turn>"))
    assert ask(url, RENDER, messages=MESSAGES)["token_ids"].count(turns) == 3  # none is forged


def test_render_runs_nothing(url):
    def steps():
        page = urllib.request.urlopen(url + "/metrics").read().decode()
        return re.search(r"^bezel:steps_total\S* (\S+)$", page, re.M)[1]

    before = steps()
    for _ in range(5):
        ask(url, RENDER, messages=MESSAGES, n=4, max_tokens=100)
        ask(url, "/tokenize", prompt="Hello")
    assert steps() == before


def test_refusals(url):
    for route, body, param in (
            ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 1}, "prompt"),
            ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
            ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
            ("/tokenize", {"messages": []}, "messages"), ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": "a"}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
            ("/detokenize", {"tokens": [10**6]}, "tokens"), (RENDER, {}, "messages"),
            (RENDER, {"messages": [{"role": "user", "content": "a"}], "temperature": 9},
             "temperature"),
            (RENDER, {"messages": [{"role": "user", "content": "a " * 9000}]}, "messages")):
        assert refuse(url, route, **body)["param"] == param, (route, str(body)[:80])
    for route in ("/tokenize", "/detokenize", RENDER):
        try:
            ask(url, route, model="another", prompt="a", tokens=[5], messages=MESSAGES)
            raise AssertionError(route)
        except params_test.Refused as refused:
            assert refused.status == 404 and refused.error["code"] == "model_not_found"


def test_models_and_version(url):
    model = get(url, "/v1/models")["data"][0]
    assert model["id"] == MODEL and model["object"] == "model"
    longest = model["max_model_len"]
    assert longest == ask(url, "/tokenize", prompt="a")["max_model_len"] > 0
    assert get(url, "/v1/models/" + MODEL) == model
    assert re.fullmatch(r"\d+\.\d+\.\d+", get(url, "/version")["version"])
    ask(url, "/v1/completions", prompt=[2] * (longest - 1), max_tokens=1)
    error = refuse(url, "/v1/completions", prompt=[2] * longest, max_tokens=1)
    assert error["code"] == "context_length_exceeded" and str(longest) in error["message"]


def main():
    with server.Server(sys.argv[1]) as running:
        return server.run_tests(sys.modules[__name__], running.url)


if __name__ == "__main__":
    sys.exit(main())
