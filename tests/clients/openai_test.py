"""The openai SDK against the whole system.  usage: openai_test.py BUILD_DIR [NAME]"""

import asyncio
import json
import sys

import openai

import server

MODEL = "demo-model"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


def test_models(client):
    models = list(client.models.list())
    assert [model.id for model in models] == [MODEL], models
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == ANSWER, answer
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens == 19 and usage.completion_tokens == 7, usage


def test_chat_stream_equals_whole(client):
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                            stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER, text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 7
    assert len({c.id for c in chunks}) == 1


def test_chat_logprobs(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                            logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(e.bytes) for e in entries).decode() == ANSWER
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert abs(entry.top_logprobs[0].logprob - entry.logprob) < 1e-6 and entry.logprob <= 0


def test_completion(client):
    answer = client.completions.create(model=MODEL, prompt="The capital of France", temperature=0,
                                       max_tokens=8, logprobs=2)
    choice = answer.choices[0]
    assert choice.text.strip().startswith("is Paris"), choice
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset[0] == 0


def test_completion_stream_equals_whole(client):
    request = dict(model=MODEL, prompt="The capital of Italy", temperature=0, max_tokens=12)
    whole = client.completions.create(**request)
    text = "".join(c.choices[0].text for c in client.completions.create(**request, stream=True))
    assert text == whole.choices[0].text


def test_completion_of_ids(client):
    answer = client.completions.create(model=MODEL, prompt=[2, 300, 301], max_tokens=4,
                                       extra_body={"ignore_eos": True, "return_token_ids": True})
    assert answer.usage.prompt_tokens == 3 and answer.usage.completion_tokens == 4
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].token_ids) == 4


def test_seed_repeats(client):
    def text(seed):
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], seed=seed,
            temperature=1.5, max_tokens=24, extra_body={"ignore_eos": True})
        return answer.choices[0].message.content

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(5)}) > 1


def test_stop_and_length(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                            stop=[" Paris"])
    assert answer.choices[0].message.content == "The capital of France is"
    assert answer.choices[0].finish_reason == "stop"
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                            max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]


def test_tool_call_round(client):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    request = dict(model=MODEL, tools=TOOLS, temperature=0, max_tokens=64)
    answer = client.chat.completions.create(messages=messages, **request).choices[0]
    assert answer.finish_reason == "tool_calls", answer
    assert answer.message.content is None
    call = answer.message.tool_calls[0]
    assert call.type == "function" and call.id.startswith("call_")
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages.append(answer.message)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"})
    last = client.chat.completions.create(messages=messages, **request).choices[0]
    assert last.finish_reason == "stop" and last.message.content, last


def test_tool_call_stream_equals_whole(client):
    request = dict(model=MODEL, tools=TOOLS, temperature=0, max_tokens=64,
                   messages=[{"role": "user", "content": "What is the weather in Rome?"}])
    whole = client.chat.completions.create(**request).choices[0].message.tool_calls
    calls = {}
    finish = None
    for chunk in client.chat.completions.create(**request, stream=True):
        choice = chunk.choices[0]
        finish = choice.finish_reason or finish
        assert not choice.delta.content
        for delta in choice.delta.tool_calls or []:
            name, arguments = calls.get(delta.index, ("", ""))
            calls[delta.index] = (name + (delta.function.name or ""),
                                  arguments + (delta.function.arguments or ""))
    assert finish == "tool_calls"
    assert [calls[i] for i in sorted(calls)] == [
        (call.function.name, call.function.arguments) for call in whole]


def test_tool_choice_none_calls_nothing(client):
    answer = client.chat.completions.create(
        model=MODEL, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=32,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}])
    assert not answer.choices[0].message.tool_calls


def test_thoughts_are_apart(client):
    answer = client.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=128, messages=QUESTION,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    message = answer.choices[0].message
    assert "<|" not in message.content and "thought" not in message.content, message


def test_errors_are_the_sdks_classes(client):
    error = server.raises(openai.NotFoundError, lambda: client.chat.completions.create(
        model="gpt-4o", messages=QUESTION))
    assert error.code == "model_not_found" and error.param == "model"
    error = server.raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=9))
    assert error.param == "temperature" and "at most 2" in str(error)
    error = server.raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a " * 20000}]))
    assert error.code == "context_length_exceeded"
    server.raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model=MODEL, messages=[]))
    server.raises(openai.BadRequestError, lambda: client.completions.create(model=MODEL, prompt=""))
    server.raises(openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="a"))


def test_async_client_many_at_once(client):
    async def ask(many, name):
        answer = await many.chat.completions.create(
            model=MODEL, temperature=0,
            messages=[{"role": "user", "content": f"What is the capital of {name}?"}])
        return answer.choices[0].message.content

    async def ask_all(names):
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as many:
            return await asyncio.gather(*(ask(many, name) for name in names))

    names = ["France", "Italy", "Spain", "Japan"] * 6
    together = asyncio.run(ask_all(names))
    alone = {name: asyncio.run(ask_all([name]))[0] for name in set(names)}
    assert together == [alone[name] for name in names]


def test_stream_that_is_left(client):
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True,
                                            max_tokens=4000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)


def main():
    with server.Server(sys.argv[1]) as running:
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        return server.run_tests(sys.modules[__name__], client)


if __name__ == "__main__":
    sys.exit(main())
