"""Every request parameter: what is accepted, what is refused, what it does.
usage: params_test.py BUILD_DIR [NAME]"""

import json
import sys
import time
import urllib.error
import urllib.request

import server

MODEL = "demo-model"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BASE = {CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
        TEXT: {"prompt": "Hello", "max_tokens": 2}}
FRANCE = {"prompt": "The capital of France", "temperature": 0, "max_tokens": 8}
LOOSE = {"prompt": "Hello", "temperature": 1.5, "max_tokens": 24, "ignore_eos": True, "seed": 5}
LONG = "a" * 1025
BOTH = (CHAT, TEXT)

# name: routes, accepted values, refused values; of numbers, what a refusal out of range says
NUMBERS = {
    "temperature": (BOTH, [0, 0.0, 1, 2], [-0.1, 2.1, "1", True, [1], {}], "2"),
    "top_p": (BOTH, [1e-9, 0.5, 1], [0, -1, 1.1, "1", False], "1"),
    "top_k": (BOTH, [-1, 0, 1, 40, 2**31 - 1, 5.0], [-2, 2**31, 1.5, "1", 10**30], ""),
    "min_p": (BOTH, [0, 0.5, 1], [-0.1, 1.1, "0"], "1"),
    "presence_penalty": (BOTH, [-2, 0, 2], [-2.1, 2.1, "0"], "2"),
    "frequency_penalty": (BOTH, [-2, 0, 2], [-2.1, 2.1, "0"], "2"),
    "repetition_penalty": (BOTH, [0.001, 1, 100], [0, -1, 101, "1"], "100"),
    "seed": (BOTH, [0, -1, 2**63 - 1, -2**63 + 1, 7.0], [1.5, "1", 2**63, True], ""),
    "n": (BOTH, [1, 2, 128], [0, -1, 129, 1.5, "2"], ""),
    "best_of": ((TEXT,), [1], [0, 2, "1"], ""),
    "min_tokens": (BOTH, [0, 2], [-1, 3, "1", 0.5], ""),
    "max_tokens": (BOTH, [1, 5], [0, -1, 1.5, "5", 2**31], ""),
    "max_completion_tokens": ((CHAT,), [1, 5], [0, -1, 1.5, "5"], ""),
    "priority": (BOTH, [0, -5, 5, 2**31 - 1, -2**31], [1.5, "1", 2**31], ""),
    "timeout": (BOTH, [20, 86400], [0, -1, 86401, "1"], ""),
    "prompt_logprobs": (BOTH, [0, 1, 20], [-1, 21, "1", True], ""),
    "top_logprobs": ((CHAT,), [], [-1, 21, "1", 2], "logprobs"),
}
FLAGS = {"ignore_eos": BOTH, "include_stop_str_in_output": BOTH, "skip_special_tokens": BOTH,
         "return_token_ids": BOTH, "stream": BOTH, "logprobs": (CHAT,), "echo": (TEXT,),
         "add_special_tokens": (TEXT,), "add_generation_prompt": (CHAT,)}
OTHERS = {
    "logprobs": ((TEXT,), [0, 1, 20], [-1, 21, "1", True]),
    "stop": (BOTH, ["x", ["x"], [], ["a", "b"], list("abcdefghijklmnop")],
             ["", [""], 1, ["a", 1], {}, list("abcdefghijklmnopq"), LONG]),
    "stop_token_ids": (BOTH, [[], [5], list(range(300, 313))],
                       [5, ["5"], [-1], [1.5], [10**9], list(range(17)), {}]),
    "logit_bias": (BOTH, [{}, {"5": 1}, {"5": -100, "6": 100},
                          {str(300 + i): 0.5 for i in range(1024)}],
                   [[], 1, {"x": 1}, {"5": 101}, {"5": -101}, {"5": "1"}, {"05": 1}, {"-1": 1},
                    {"999999999": 1}, {str(300 + i): 0.5 for i in range(1025)}]),
    "allowed_token_ids": (BOTH, [[300], [300, 300, 301], list(range(300, 2000))],
                          [[], 1, {}, "a", [-1], ["5"], [10**9], [19]]),
    "bad_words": (BOTH, [[], ["word"], ["two words", " spaced", "\u00e9\U0001f600"] * 80],
                  [1, "a", [1], [""], ["a" * 257], ["a"] * 257]),
    "user": (BOTH, ["someone", ""], [1, {}, []]),
    "metadata": (BOTH, [{}, {"a": "b"}], [1, "a", []]),
    "cache_salt": (BOTH, ["tenant"], ["", 1, []]),
    "suffix": ((TEXT,), ["", None], ["b", 1]),
    "model": (BOTH, [MODEL, None], [1, {}]),
    "prompt": ((TEXT,), ["a", ["a"], [2, 300], [[2, 300]], ["a", "b"], [[2], [2, 300]],
                         ["a", [2, 300]]],
               [None, "", [], [[]], [""], 1, {}, [1.5], [-1], ["a", 1], [[2], "a", {}], [10**9],
                [{}], [None]]),
    "messages": ((CHAT,), [BASE[CHAT]["messages"]], [None, [], 1, "a", [1], [{}], [{"role": 1}]]),
    "stream_options": (BOTH, [None], [{}, {"include_usage": True}, 1]),
    "chat_template_kwargs": ((CHAT,), [{}, {"enable_thinking": True}, {"enable_thinking": False},
                                       {"something": 1}], [1, [], {"enable_thinking": 1}]),
    "reasoning_effort": ((CHAT,), ["none", "minimal", "low", "medium", "high", "xhigh"],
                         ["huge", "", 1]),
    "continue_final_message": ((CHAT,), [False], [1, "true"]),
}


def special(content):
    tokenizer = json.loads((server.ROOT / "deploy/demo-model/tokenizer.json").read_text())
    return next(str(t["id"]) for t in tokenizer["added_tokens"] if t["content"] == content)


class Refused(Exception):
    def __init__(self, status, error):
        super().__init__(f"{status} {error}")
        self.status, self.error = status, error


def post(url, route, body):
    request = urllib.request.Request(url + route, json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise Refused(error.code, json.loads(error.read())["error"]) from None


def ask(url, route, **body):
    return json.loads(post(url, route, body))


def complete(url, **body):
    return ask(url, TEXT, **body)["choices"][0]


def chat(url, content="What is the capital of France?", **body):
    messages = [{"role": "user", "content": content}]
    return ask(url, CHAT, **{"messages": messages, "temperature": 0, **body})["choices"][0]


def chunks(url, route, **body):
    lines = post(url, route, {**body, "stream": True}).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
    return [json.loads(line[6:]) for line in lines[:-2] if not line.startswith(":")]


def joined(found):
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or ""
                   for chunk in found for c in chunk["choices"])


def refuse(url, route, **body):
    try:
        post(url, route, body)
    except Refused as refused:
        assert refused.status == 400, (body, refused)
        assert set(refused.error) == {"message", "type", "param", "code"}, refused
        assert refused.error["type"] == "invalid_request_error", refused
        return refused.error
    raise AssertionError(f"{route} took {str(body)[:200]}")


def check_row(url, name, routes, accepted, refused, text=""):
    for route in routes:
        for value in accepted:
            post(url, route, {**BASE[route], name: value})
        for value in refused:
            error = refuse(url, route, **{**BASE[route], name: value})
            param = error["param"] or ""
            assert param.split(".")[0].split("[")[0] == name, (name, value, error)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            assert not is_number or text in error["message"], (name, value, error)


def test_ranges_of_numbers(url):
    for name, row in NUMBERS.items():
        check_row(url, name, *row)


def test_flags(url):
    for name, routes in FLAGS.items():
        check_row(url, name, routes, [True, False, None], [1, "true", []])


def test_values_of_the_others(url):
    for name, row in OTHERS.items():
        check_row(url, name, *row)


def test_unknown_fields_pass(url):
    for route in BOTH:
        post(url, route, {**BASE[route], "no_such_field": {"a": [1]}, "store": True,
                          "service_tier": "auto"})


def test_fields_of_the_other_route_pass(url):
    post(url, CHAT, {**BASE[CHAT], "echo": 7, "suffix": 7, "best_of": "x"})
    post(url, TEXT, {**BASE[TEXT], "messages": 7, "tools": 7, "top_logprobs": "x"})


def test_temperature_and_seed(url):
    assert complete(url, **FRANCE)["text"] == complete(url, **{**FRANCE, "seed": 9})["text"]
    first = complete(url, **LOOSE)["text"]
    assert first == complete(url, **LOOSE)["text"]
    assert len({complete(url, **{**LOOSE, "seed": i})["text"] for i in range(4)}) > 1


def test_cuts_to_one_token_are_greedy(url):
    body = {**LOOSE, "max_tokens": 8}  # before the first two tokens that are equally likely
    greedy = complete(url, **{**body, "temperature": 0})["text"]
    for cut in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}):
        assert complete(url, **{**body, **cut})["text"] == greedy, cut
    free = complete(url, **{**body, "top_k": 0, "top_p": 1})["text"]
    assert free == complete(url, **{**body, "top_k": -1, "top_p": 1, "min_p": 0})["text"]
    assert free != greedy


def test_defaults_come_from_generation_config(url):
    config = json.loads((server.ROOT / "deploy/demo-model/generation_config.json").read_text())
    said = {name: config[name] for name in ("temperature", "top_k", "top_p") if name in config}
    body = {"prompt": "Hello", "max_tokens": 24, "ignore_eos": True, "seed": 5}
    assert complete(url, **body)["text"] == complete(url, **body, **said)["text"]


def test_penalties(url):
    """Greedy text repeats itself; each penalty makes it repeat less."""
    body = {"prompt": "One two three one two three one two three", "temperature": 0,
            "max_tokens": 48, "ignore_eos": True, "return_token_ids": True}

    def kinds(**penalty):
        return len(set(complete(url, **body, **penalty)["token_ids"]))

    plain = kinds()
    assert kinds(presence_penalty=2) > plain and kinds(frequency_penalty=2) > plain
    assert kinds(repetition_penalty=1.8) > plain
    assert kinds(presence_penalty=0, frequency_penalty=0, repetition_penalty=1) == plain


def test_logit_bias(url):
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 3, "return_token_ids": True}
    first = complete(url, **body)["token_ids"][0]
    assert complete(url, **body, logit_bias={"300": 100})["token_ids"] == [300] * 3
    assert first not in complete(url, **body, logit_bias={str(first): -100})["token_ids"]


def test_allowed_token_ids(url):
    allowed = list(range(400, 430))
    for more in ({}, {"n": 3}, {"temperature": 0}, {"top_k": 1, "logprobs": 3}):
        answer = ask(url, TEXT, **{**LOOSE, "allowed_token_ids": allowed,
                                   "return_token_ids": True, **more})
        for choice in answer["choices"]:
            assert len(choice["token_ids"]) == 24 and set(choice["token_ids"]) <= set(allowed)
            assert choice["finish_reason"] == "length"
    ended = complete(url, **{**FRANCE, "allowed_token_ids": [6], "return_token_ids": True})
    assert ended["token_ids"] == [6] and ended["finish_reason"] == "stop"
    error = refuse(url, TEXT, **{**FRANCE, "allowed_token_ids": [6], "min_tokens": 2})
    assert error["param"] == "allowed_token_ids"
    whole = complete(url, **LOOSE)["text"]  # what is allowed at all is not told from nothing
    assert complete(url, **LOOSE, allowed_token_ids=list(range(2048)))["text"] == whole
    found = chunks(url, TEXT, **{**LOOSE, "allowed_token_ids": allowed})
    assert joined(found) == complete(url, **{**LOOSE, "allowed_token_ids": allowed})["text"]


def test_bad_words(url):
    ids = complete(url, **FRANCE, return_token_ids=True)["token_ids"]
    word = ask(url, "/detokenize", tokens=ids[1:2])["prompt"]
    assert word.startswith(" ") and "Paris" in word
    without = complete(url, **FRANCE, bad_words=[word[1:]], return_token_ids=True)["token_ids"]
    assert without[:1] == ids[:1] and ids[1] not in without
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 24, "ignore_eos": True,
            "return_token_ids": True}
    ids = complete(url, **body)["token_ids"]
    pair = ask(url, "/detokenize", tokens=ids[2:5])["prompt"]
    again = ask(url, "/tokenize", prompt=pair, add_special_tokens=False)["tokens"]
    changed = complete(url, **body, bad_words=[pair])["token_ids"]
    if len(again) > 1:  # only the row is gone, not its tokens
        rows = [changed[i:i + len(again)] for i in range(len(changed))]
        assert again not in rows
        assert changed[:2] == ids[:2]
    streamed = joined(chunks(url, TEXT, **FRANCE, bad_words=["Paris", "is the"]))
    assert streamed == complete(url, **FRANCE, bad_words=["Paris", "is the"])["text"]


def test_constrained_beside_plain(url):
    """Rows under masks do not change what others get, nor the other way round."""
    import concurrent.futures
    rules = [{}, {"allowed_token_ids": list(range(400, 430))}, {"bad_words": ["Paris", "a b"]}]
    bodies = [{**LOOSE, "seed": i, "max_tokens": 40, **rules[i % 3]} for i in range(12)]
    alone = [complete(url, **body)["text"] for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda body: complete(url, **body)["text"], bodies))
    assert together == alone


def test_min_tokens_and_ignore_eos(url):
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0, "max_tokens": 64}
    short = ask(url, CHAT, **body)
    count = short["usage"]["completion_tokens"]
    assert short["choices"][0]["finish_reason"] == "stop" and count < 40
    longer = ask(url, CHAT, **body, min_tokens=count + 8)
    assert longer["usage"]["completion_tokens"] >= count + 8
    full = ask(url, CHAT, **body, ignore_eos=True)
    assert full["usage"]["completion_tokens"] == 64
    assert full["choices"][0]["finish_reason"] == "length"


def test_max_completion_tokens_wins(url):
    answer = ask(url, CHAT, **{**BASE[CHAT], "max_tokens": 9, "max_completion_tokens": 3,
                               "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 3
    error = refuse(url, CHAT, **{**BASE[CHAT], "max_tokens": None,
                                 "max_completion_tokens": 2**30})
    assert error["param"] == "max_completion_tokens"
    assert error["code"] == "context_length_exceeded"


def test_stop_token_ids(url):
    body = {**FRANCE, "return_token_ids": True}
    ids = complete(url, **body)["token_ids"]
    stopped = complete(url, **body, stop_token_ids=[ids[1]])
    assert stopped["token_ids"] == ids[:2] and stopped["finish_reason"] == "stop"
    assert stopped["stop_reason"] == ids[1]
    shown = complete(url, **body, stop_token_ids=[ids[1]], include_stop_str_in_output=True)
    assert shown["text"].startswith(stopped["text"]) and len(shown["text"]) > len(stopped["text"])
    ended = chat(url)
    assert ended["finish_reason"] == "stop" and ended["stop_reason"] is None


def test_chat_logprobs(url):
    entries = chat(url, logprobs=True, top_logprobs=3)["logprobs"]["content"]
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3 and entry["top_logprobs"][0]["token"] == \
            entry["token"] and entry["logprob"] <= 0
    assert "".join(e["token"] for e in entries) == chat(url)["message"]["content"]
    assert all(e["top_logprobs"] == [] for e in chat(url, logprobs=True)["logprobs"]["content"])
    assert chat(url)["logprobs"] is None
    found = chunks(url, CHAT, messages=[{"role": "user", "content": "What is the capital of "
                                         "France?"}], temperature=0, logprobs=True, top_logprobs=3)
    streamed = [e for c in found for e in (c["choices"][0]["logprobs"] or {}).get("content", [])]
    assert streamed == entries


def test_completion_logprobs(url):
    choice = complete(url, **FRANCE, logprobs=2)
    shown = choice["logprobs"]
    assert "".join(shown["tokens"]) == choice["text"]
    offsets = [len("".join(shown["tokens"][:i])) for i in range(len(shown["tokens"]))]
    assert shown["text_offset"] == offsets
    for token, logprob, top in zip(shown["tokens"], shown["token_logprobs"],
                                   shown["top_logprobs"]):
        assert len(top) == 2 and top[token] == logprob == max(top.values())
    assert complete(url, **FRANCE, logprobs=0)["logprobs"]["top_logprobs"][0] == {}
    assert complete(url, **FRANCE)["logprobs"] is None


def test_prompt_logprobs(url):
    ids = ask(url, TEXT, **FRANCE, return_token_ids=True)["choices"][0]["prompt_token_ids"]
    found = complete(url, **FRANCE, prompt_logprobs=2)["prompt_logprobs"]
    assert found[0] is None and len(found) == len(ids)
    for token, entry in zip(ids[1:], found[1:]):
        assert list(entry)[0] == str(token) and 2 <= len(entry) <= 3, entry
        assert {row["rank"] for row in entry.values()} >= {1, 2}
        assert all(row["logprob"] <= 0 and row["decoded_token"] for row in entry.values())
        ranks = sorted(entry.values(), key=lambda row: row["rank"])
        assert [r["logprob"] for r in ranks] == sorted((r["logprob"] for r in ranks), reverse=True)
    answer = ask(url, CHAT, **BASE[CHAT], prompt_logprobs=0, n=2)
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])
    assert refuse(url, TEXT, **FRANCE, prompt_logprobs=1, stream=True)["param"] == \
        "prompt_logprobs"


def test_prompt_logprobs_are_those_of_generating(url):
    """The logprob of a token in a prompt is that of the same token when it was generated."""
    made = complete(url, **FRANCE, logprobs=0, return_token_ids=True)
    ids = made["prompt_token_ids"] + made["token_ids"]
    told = complete(url, prompt=ids, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"]
    count = len(made["logprobs"]["token_logprobs"])
    begin = len(made["prompt_token_ids"])
    for i in range(count):
        again = told[begin + i][str(ids[begin + i])]["logprob"]
        assert abs(again - made["logprobs"]["token_logprobs"][i]) < 0.02, i


def test_echo(url):
    plain = complete(url, **FRANCE)["text"]
    assert complete(url, **FRANCE, echo=True)["text"] == FRANCE["prompt"] + plain
    assert joined(chunks(url, TEXT, **FRANCE, echo=True)) == FRANCE["prompt"] + plain
    ids = complete(url, **FRANCE, return_token_ids=True)["prompt_token_ids"]
    body = {**FRANCE, "prompt": ids, "echo": True}
    assert complete(url, **body)["text"] == FRANCE["prompt"] + plain
    assert complete(url, **body, skip_special_tokens=False)["text"].startswith("<bos>The cap")
    many = ask(url, TEXT, **{**FRANCE, "prompt": [FRANCE["prompt"], ids], "echo": True, "n": 2})
    assert [c["text"] for c in many["choices"]] == [FRANCE["prompt"] + plain] * 4


def test_echo_with_logprobs(url):
    for text in (FRANCE["prompt"], "caf\u00e9 \U0001f600 <bos> \u05d0"):
        body = {**FRANCE, "prompt": text, "echo": True, "logprobs": 2}
        choice = complete(url, **body)
        shown = choice["logprobs"]
        assert shown["tokens"][0] == "<bos>" and shown["token_logprobs"][0] is None
        assert shown["top_logprobs"][0] is None and shown["text_offset"][:2] == [0, 0]
        assert all(value is not None for value in shown["token_logprobs"][1:])
        assert all(len(top) >= 2 for top in shown["top_logprobs"][1:])
        counts = {len(shown[name]) for name in shown}
        assert len(counts) == 1
        if "\U0001f600" not in text:
            assert "".join(shown["tokens"][1:]) == choice["text"]
        assert max(shown["text_offset"]) <= len(choice["text"])
        found = chunks(url, TEXT, **body)
        parts = [c["choices"][0]["logprobs"] for c in found if c["choices"][0]["logprobs"]]
        assert sum((p["tokens"] for p in parts), []) == shown["tokens"]
        assert sum((p["text_offset"] for p in parts), []) == shown["text_offset"]


def test_prompt_alone(url):
    answer = ask(url, TEXT, prompt="The capital of France", max_tokens=0, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == "The capital of France" and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    choice = complete(url, prompt="The capital of France", max_tokens=0, prompt_logprobs=0)
    assert choice["text"] == "" and len(choice["prompt_logprobs"]) > 1
    assert joined(chunks(url, TEXT, prompt="Hello", max_tokens=0, echo=True)) == "Hello"
    assert complete(url, prompt=[2], max_tokens=0, prompt_logprobs=0)["prompt_logprobs"] == [None]


def test_bos_is_put_once(url):
    def count(prompt, **more):
        return complete(url, prompt=prompt, max_tokens=1, return_token_ids=True,
                        **more)["prompt_token_ids"].count(2)

    assert count("Hello") == 1 and count("<bos>Hello") == 1 and count([2, 300]) == 1
    assert count([300]) == 0  # ids are taken as they are
    assert count("Hello", add_special_tokens=False) == 0
    ids = ask(url, CHAT, **BASE[CHAT], return_token_ids=True)["prompt_token_ids"]
    assert ids[0] == 2 and ids.count(2) == 1


def test_token_ids(url):
    whole = ask(url, CHAT, **BASE[CHAT], temperature=0, return_token_ids=True)
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"]
    found = chunks(url, CHAT, **BASE[CHAT], temperature=0, return_token_ids=True)
    assert [c["prompt_token_ids"] for c in found if "prompt_token_ids" in c] == [
        whole["prompt_token_ids"]]
    ids = [i for c in found for i in c["choices"][0].get("token_ids") or []]
    assert ids == whole["choices"][0]["token_ids"]
    made = complete(url, **FRANCE, return_token_ids=True)
    found = chunks(url, TEXT, **FRANCE, return_token_ids=True)
    told = [c["choices"][0]["prompt_token_ids"] for c in found
            if "prompt_token_ids" in c["choices"][0]]
    assert told == [made["prompt_token_ids"]]


def test_special_tokens_in_completions(url):
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 2, "logit_bias": {special("<|channel>"): 100}}
    assert complete(url, **body)["text"] == ""
    assert complete(url, **body, skip_special_tokens=False)["text"] == "<|channel>" * 2
    shown = chat(url, "Hello", max_tokens=2, logit_bias=body["logit_bias"],
                 skip_special_tokens=False)
    assert "<|channel>" not in shown["message"]["content"]


def test_usage_of_streams(url):
    found = chunks(url, TEXT, **FRANCE)
    assert all("usage" not in c for c in found)
    found = chunks(url, TEXT, **FRANCE, stream_options={"include_usage": True})
    assert all(c["usage"] is None for c in found[:-1]) and found[-1]["choices"] == []
    total = found[-1]["usage"]
    assert total["total_tokens"] == total["prompt_tokens"] + total["completion_tokens"]
    found = chunks(url, TEXT, **FRANCE, stream_options={"include_usage": True,
                                                        "continuous_usage_stats": True})
    counts = [c["usage"]["completion_tokens"] for c in found]
    assert counts == sorted(counts) and counts[-1] == total["completion_tokens"]
    assert all(c["usage"]["prompt_tokens"] == total["prompt_tokens"] for c in found)
    for bad in ({"include_usage": 1}, {"continuous_usage_stats": "x"}):
        error = refuse(url, TEXT, **FRANCE, stream=True, stream_options=bad)
        assert error["param"] == "stream_options." + list(bad)[0]


def test_final_message_is_continued(url):
    messages = [{"role": "user", "content": "What is the capital of France?"},
                {"role": "assistant", "content": "The capital of"}]
    answer = ask(url, CHAT, messages=messages, temperature=0, continue_final_message=True,
                 max_tokens=16, return_token_ids=True)
    assert answer["choices"][0]["message"]["content"] == " France is Paris.", answer
    error = refuse(url, CHAT, messages=messages, continue_final_message=True,
                   add_generation_prompt=True)
    assert error["param"] == "continue_final_message"


def test_generation_prompt_and_thinking(url):
    def ids(**more):
        return ask(url, CHAT, **BASE[CHAT], return_token_ids=True, **more)["prompt_token_ids"]

    plain = ids()
    assert ids(add_generation_prompt=True) == plain
    bare = ids(add_generation_prompt=False)
    assert bare == plain[:len(bare)] and len(bare) < len(plain)
    thinking = ids(chat_template_kwargs={"enable_thinking": True})
    think = int(special("<|think|>"))
    assert think in thinking and think not in plain
    assert ids(reasoning_effort="high") == thinking and ids(reasoning_effort="none") == plain
    assert ids(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}) == plain


def test_cache_salt(url):
    text = "Salted beginnings are shared with nobody. " * 30

    def cached(**more):
        usage = ask(url, TEXT, prompt=text, max_tokens=1, **more)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached(cache_salt="a") == 0 and cached(cache_salt="a") > 0
    assert cached(cache_salt="b") == 0 and cached() == 0 and cached() > 0


def test_timeout(url):
    begin = time.monotonic()
    try:
        complete(url, prompt="Hello", max_tokens=4000, ignore_eos=True, timeout=0.05)
        raise AssertionError("it was in time")
    except Refused as refused:
        assert refused.status == 408 and time.monotonic() - begin < 10, refused


def test_stream_false_is_whole(url):
    assert ask(url, TEXT, **FRANCE, stream=False)["object"] == "text_completion"


def main():
    with server.Server(sys.argv[1]) as running:
        return server.run_tests(sys.modules[__name__], running.url)


if __name__ == "__main__":
    sys.exit(main())
