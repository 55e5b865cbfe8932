"""Thoughts, tool calls and text as the openai SDK sees them.  usage: output_test.py BUILD_DIR [NAME]

Streamed and not must be the same answer, whatever the model writes: some tests push it by logit_bias
into markers, bytes of characters and emoji, where seeds make it repeat itself."""

import json
import sys

import openai

import server

MODEL = "demo-model"
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
TOKENIZER = json.loads((server.ROOT / "deploy/demo-model/tokenizer.json").read_text())
IDS = {**TOKENIZER["model"]["vocab"],
       **{token["content"]: token["id"] for token in TOKENIZER["added_tokens"]}}
MARKERS = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|turn>",
           "<|tool_response>", "<tool_response|>"]


def whole(client, **request):
    """(content, reasoning, [(name, arguments)], finish reason)"""
    choice = client.chat.completions.create(model=MODEL, **request).choices[0]
    message = choice.message
    assert message.reasoning_content == message.reasoning
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    assert len({call.id for call in message.tool_calls or []}) == len(calls)
    return message.content or "", message.reasoning or "", calls, choice.finish_reason


def streamed(client, **request):
    content = reasoning = ""
    calls = []
    finish = None
    for chunk in client.chat.completions.create(model=MODEL, stream=True, **request):
        assert finish is None, "a chunk after the last"
        choice = chunk.choices[0]
        delta = choice.delta
        finish = choice.finish_reason
        content += delta.content or ""
        thought = getattr(delta, "reasoning", None) or ""
        assert (getattr(delta, "reasoning_content", None) or "") == thought
        reasoning += thought
        for call in delta.tool_calls or []:
            if call.index == len(calls):  # a new one says who it is, later pieces do not
                assert call.id.startswith("call_") and call.type == "function"
                calls.append([call.function.name, call.function.arguments])
            else:
                assert call.index == len(calls) - 1
                assert call.id is None and call.type is None and call.function.name is None
                calls[-1][1] += call.function.arguments
    return content, reasoning, [tuple(call) for call in calls], finish


def same(client, **request):
    answer = whole(client, **request)
    assert streamed(client, **request) == answer, (streamed(client, **request), answer)
    return answer


def test_call_with_a_thought(client):
    content, reasoning, calls, finish = same(client, messages=WEATHER, tools=TOOLS, temperature=0,
                                             extra_body=THINKING)
    assert content == "" and reasoning and not reasoning.endswith("\n"), reasoning
    assert "thought" not in reasoning.splitlines()[0] and "<" not in reasoning
    assert calls == [("get_weather", '{"city": "Paris"}')] and finish == "tool_calls"


def test_reasoning_effort_is_thinking(client):
    request = dict(messages=WEATHER, tools=TOOLS, temperature=0)
    assert same(client, reasoning_effort="high", **request)[1]
    assert not same(client, reasoning_effort="none", **request)[1]
    assert not same(client, **request)[1]


def test_arguments_come_in_pieces(client):
    pieces = [call.function.arguments
              for chunk in client.chat.completions.create(model=MODEL, messages=WEATHER, tools=TOOLS,
                                                          temperature=0, stream=True)
              for call in chunk.choices[0].delta.tool_calls or []]
    assert len(pieces) > 1 and json.loads("".join(pieces)) == {"city": "Paris"}, pieces


def test_call_cut_off_by_length(client):
    for max_tokens in range(1, 8):
        content, _, calls, finish = same(client, messages=WEATHER, tools=TOOLS, temperature=0,
                                         max_tokens=max_tokens)
        assert finish in ("length", "tool_calls")
        assert content == "" and all('{"city": "Paris"}'.startswith(call[1]) for call in calls)


def test_turns_go_back_in(client):
    answer = client.chat.completions.create(model=MODEL, messages=WEATHER, tools=TOOLS,
                                            temperature=0, extra_body=THINKING).choices[0].message
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "18 degrees"}
    as_text = answer.model_dump(exclude_none=True)
    as_object = json.loads(json.dumps(as_text))
    as_object["tool_calls"][0]["function"]["arguments"] = {"city": "Paris"}
    tokens = set()
    for turn in (answer, as_text, as_object):
        last = client.chat.completions.create(model=MODEL, messages=[*WEATHER, turn, result],
                                              tools=TOOLS, temperature=0)
        assert last.choices[0].finish_reason == "stop" and last.choices[0].message.content
        tokens.add(last.usage.prompt_tokens)
    assert len(tokens) == 1
    del as_text["reasoning_content"], as_text["reasoning"]
    without = client.chat.completions.create(model=MODEL, messages=[*WEATHER, as_text, result],
                                             tools=TOOLS, temperature=0)
    assert without.usage.prompt_tokens < tokens.pop()  # the thought was part of the prompt


def test_one_call_where_none_may_be_parallel(client):
    bias = {str(IDS["<|tool_response>"]): -100}  # the model would stop there
    request = dict(messages=WEATHER, tools=TOOLS, temperature=0, max_tokens=40, logit_bias=bias)
    _, _, calls, finish = same(client, parallel_tool_calls=False, **request)
    assert len(calls) == 1 and finish == "tool_calls"


def test_bad_tool_choices(client):
    for choice in ("any", {"type": "function"}, {"type": "function", "function": {"name": "f"}}, 1):
        try:
            client.chat.completions.create(model=MODEL, messages=WEATHER, tools=TOOLS,
                                           extra_body={"tool_choice": choice})
        except openai.BadRequestError as error:
            assert error.param == "tool_choice"
        else:
            raise AssertionError(choice)


def biased(names, bias, **request):
    """A request that writes tokens of those names rather often, at random."""
    return dict(request, temperature=1.5, max_tokens=48, extra_body={"ignore_eos": True},
                logit_bias={str(IDS[name]): bias for name in names})


def test_markers_never_show(client):
    kinds = set()
    for seed in range(24):
        tools = TOOLS if seed % 3 else openai.NOT_GIVEN
        request = biased(MARKERS, 9, messages=WEATHER, tools=tools, seed=seed)
        content, reasoning, calls, _ = same(client, **request)
        for text in (content, reasoning, *(text for call in calls for text in call)):
            assert not any(marker in text for marker in MARKERS if marker != '<|"|>'), text
        kinds |= {name for name, part in zip("crt", (content, reasoning, calls)) if part}
        assert not calls or tools
    assert kinds == set("crt"), kinds


def test_bytes_of_characters(client):
    names = [f"<0x{byte:02X}>" for byte in "é😀ש‍漢".encode()]
    broken = 0
    for seed in range(12):
        request = biased(names, 12, messages=WEATHER, seed=seed)
        content = same(client, **request)[0]
        content.encode()  # whole characters: no half surrogates
        broken += "\ufffd" in content
    assert broken, "random bytes should have made no character somewhere"


def test_stop_strings_see_content_alone(client):
    request = dict(messages=WEATHER, tools=TOOLS, temperature=0, extra_body=THINKING)
    _, reasoning, calls, _ = same(client, **request)
    inside = reasoning.split()[1]
    assert same(client, stop=[inside, "Paris", "city"], **request)[1:] == (
        reasoning, calls, "tool_calls")
    question = dict(messages=[{"role": "user", "content": "What is the capital of France?"}],
                    temperature=0)
    for stop, want in ((" is", "The capital of France"), ("The", ""), ("ance is P", "The capital of Fr"),
                       (["Paris", "is Par"], "The capital of France ")):
        assert same(client, stop=stop, **question)[0] == want, stop
    text = same(client, stop="ance is P", **dict(question, extra_body={
        "include_stop_str_in_output": True}))[0]
    assert text == "The capital of France is P"


def main():
    with server.Server(sys.argv[1]) as running:
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        return server.run_tests(sys.modules[__name__], client)


if __name__ == "__main__":
    sys.exit(main())
