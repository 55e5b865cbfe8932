"""Several choices and several prompts of one request.  usage: choices_test.py BUILD_DIR [NAME]"""

import sys
import time
import urllib.request

import openai

import server

MODEL = "demo-model"
QUESTION = [{"role": "user", "content": "Hello"}]
LONG = "One two three four five six seven eight nine ten. " * 20
PROMPTS = ["The capital of France", [2, 300, 301], "The capital of Italy"]


def texts(answer):
    return [choice.text for choice in answer.choices]


def streamed(create, **request):
    """Per choice: its text and finish reason; and the last chunk's usage."""
    found, finishes, usage = {}, {}, None
    for chunk in create(stream=True, stream_options={"include_usage": True}, **request):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert choice.index not in finishes, "a chunk after the finish"
            if hasattr(choice, "delta"):
                piece = choice.delta.content or ""
                assert (choice.index in found) == (choice.delta.role is None), "role comes first"
            else:
                piece = choice.text
            found[choice.index] = found.get(choice.index, "") + piece
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    return [found[i] for i in sorted(found)], finishes, usage


def sample(url, name):
    page = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
               if line.startswith(name + "{") or line.startswith(name + " "))


def test_choice_i_is_seeded_seed_plus_i(client, url):
    request = dict(model=MODEL, prompt="Hello", temperature=1.5, max_tokens=12,
                   extra_body={"ignore_eos": True})
    together = client.completions.create(n=4, seed=11, **request)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    alone = [client.completions.create(seed=11 + i, **request).choices[0].text for i in range(4)]
    assert texts(together) == alone and len(set(alone)) > 1, (texts(together), alone)
    assert together.usage.prompt_tokens < 8
    assert together.usage.completion_tokens == 4 * 12
    assert together.usage.total_tokens == together.usage.prompt_tokens + 48


def test_choices_without_a_seed_differ(client, url):
    answer = client.completions.create(model=MODEL, prompt="Hello", temperature=1.9, n=6,
                                       max_tokens=16, extra_body={"ignore_eos": True})
    assert len(set(texts(answer))) > 1
    answer = client.completions.create(model=MODEL, prompt=["Hello"] * 6, temperature=1.9,
                                       max_tokens=16, extra_body={"ignore_eos": True})
    assert len(set(texts(answer))) > 1


def test_streamed_choices_equal_whole(client, url):
    request = dict(model=MODEL, prompt="Hello", temperature=1.5, max_tokens=12, n=3, seed=4,
                   extra_body={"ignore_eos": True})
    whole = client.completions.create(**request)
    found, finishes, usage = streamed(client.completions.create, **request)
    assert found == texts(whole)
    assert finishes == {0: "length", 1: "length", 2: "length"}
    assert usage.completion_tokens == 36 == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    request = dict(model=MODEL, messages=QUESTION, temperature=1.2, max_tokens=12, n=3, seed=4)
    whole = client.chat.completions.create(**request)
    found, finishes, usage = streamed(client.chat.completions.create, **request)
    assert found == [choice.message.content for choice in whole.choices]
    assert finishes == {c.index: c.finish_reason for c in whole.choices}
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_choices_end_on_their_own(client, url):
    request = dict(model=MODEL, messages=QUESTION, temperature=1.8, max_tokens=40, n=8, seed=3)
    answer = client.chat.completions.create(**request)
    assert len(answer.choices) == 8
    alone = [client.chat.completions.create(**{**request, "n": 1, "seed": 3 + i}).choices[0]
             for i in range(8)]
    assert [(c.message.content, c.finish_reason) for c in answer.choices] == [
        (c.message.content, c.finish_reason) for c in alone]


def test_list_of_prompts(client, url):
    request = dict(model=MODEL, temperature=0, max_tokens=8)
    alone = [client.completions.create(prompt=prompt, **request) for prompt in PROMPTS]
    together = client.completions.create(prompt=PROMPTS, **request)
    assert texts(together) == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert together.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in alone)
    assert together.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)
    found, _, usage = streamed(client.completions.create, prompt=PROMPTS, **request)
    assert found == texts(together) and usage.prompt_tokens == together.usage.prompt_tokens


def test_list_of_id_lists_and_n(client, url):
    prompts = [[2, 300], [2, 400, 401]]
    request = dict(model=MODEL, temperature=1.5, seed=9, max_tokens=6)
    answer = client.completions.create(prompt=prompts, n=2, **request)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 5  # each prompt once
    second = client.completions.create(prompt=prompts[1], n=2, **request)
    assert texts(answer)[2:] == texts(second)


def test_choices_share_the_prompt(client, url):
    for text in (LONG, LONG[:220]):
        before = sample(url, "vllm:prefix_cache_hits_total")
        answer = client.completions.create(
            model=MODEL, prompt=f"{len(text)} letters, shared by choices. " + text, n=5,
            temperature=1, max_tokens=4, extra_body={"ignore_eos": True})
        prompt_tokens = answer.usage.prompt_tokens
        hits = sample(url, "vllm:prefix_cache_hits_total") - before
        assert prompt_tokens > 64
        assert hits == 4 * ((prompt_tokens - 1) // 64 * 64), (hits, prompt_tokens)


def test_too_many_choices_are_refused(client, url):
    for request, text in ((dict(prompt="a", n=129), "at most 128"), (dict(prompt="a", n=0), "1"),
                          (dict(prompt=["a"] * 8, n=128), "at most 512"),
                          (dict(prompt=["a"] * 513), "at most 512")):
        try:
            client.completions.create(model=MODEL, **request)
            raise AssertionError(request)
        except openai.BadRequestError as error:
            assert error.param in ("n", "prompt") and text in str(error), error


def test_one_close_ends_all_choices(client, url):
    stream = client.completions.create(model=MODEL, prompt="Hello", n=6, max_tokens=4000,
                                       stream=True, extra_body={"ignore_eos": True})
    seen = set()
    for chunk in stream:
        seen.update(choice.index for choice in chunk.choices)
        if len(seen) == 6:
            break
    assert sample(url, "vllm:num_requests_running") == 6
    stream.close()
    deadline = time.monotonic() + 20
    while sample(url, "vllm:num_requests_running") > 0:
        assert time.monotonic() < deadline, "choices still run"
        time.sleep(0.02)
    assert sample(url, "vllm:num_requests_waiting") == 0


def main():
    with server.Server(sys.argv[1]) as running:
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        return server.run_tests(sys.modules[__name__], client, running.url)


if __name__ == "__main__":
    sys.exit(main())
