"""The anthropic SDK against the whole system.  usage: anthropic_test.py BUILD_DIR [NAME]"""

import sys

import anthropic

import server

MODEL = "demo-model"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
WEATHER = [{"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]}]
TOOLS = [{"name": "get_weather", "description": "Get the weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]
GREEDY = {"temperature": 0}  # no parameter of this version's methods
THINKING = {"type": "enabled", "budget_tokens": 1024}


def blocks(message):
    return [block.model_dump(exclude={"id"}) for block in message.content]


def same(client, **request):
    """The whole answer, which the streamed one must equal."""
    request = dict(dict(model=MODEL, max_tokens=100, extra_body=GREEDY), **request)
    message = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert blocks(last) == blocks(message), (last, message)
    assert (last.stop_reason, last.stop_sequence) == (message.stop_reason, message.stop_sequence)
    assert last.usage.output_tokens == message.usage.output_tokens
    return message


def test_text(client):
    message = same(client, messages=QUESTION)
    assert message.type == "message" and message.role == "assistant" and message.model == MODEL
    assert message.content[0].type == "text" and message.content[0].text == ANSWER
    assert message.stop_reason == "end_turn" and message.id.startswith("msg_")
    assert message.usage.output_tokens == 7
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == 19


def test_stop_reasons(client):
    message = same(client, messages=QUESTION, max_tokens=3)
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 3
    message = same(client, messages=QUESTION, stop_sequences=[" Paris", "never"])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == " Paris"
    assert message.content[0].text == "The capital of France is"


def test_thinking_and_tool_round(client):
    request = dict(tools=TOOLS, thinking=THINKING)
    message = same(client, messages=WEATHER, **request)
    thought, call = message.content
    assert thought.type == "thinking" and thought.thinking and message.stop_reason == "tool_use"
    assert call.type == "tool_use" and call.name == "get_weather" and call.input == {"city": "Paris"}
    result = {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id,
         "content": [{"type": "text", "text": "18 degrees, sunny"}]}]}
    turn = {"role": "assistant", "content": message.content}
    last = same(client, messages=[*WEATHER, turn, result], tools=TOOLS)
    assert last.stop_reason == "end_turn" and last.content[0].type == "text" and last.content[0].text


def test_prompt_equals_that_of_chat(client):
    """The same conversation by both APIs has the same number of tokens."""
    import openai
    other = openai.OpenAI(base_url=str(client.base_url).rstrip("/") + "/v1", api_key="none")
    chat = other.chat.completions.create(model=MODEL, max_tokens=1, messages=[
        {"role": "system", "content": "Be brief."}, *QUESTION,
        {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "And of Italy?"}])
    usage = client.messages.create(model=MODEL, max_tokens=1, system="Be brief.", messages=[
        *QUESTION, {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "And of Italy?"}]).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens


def test_begun_answer_is_continued(client):
    message = same(client, messages=[*QUESTION, {"role": "assistant",
                                                 "content": "The capital of France"}])
    assert message.content[0].text.strip() == "is Paris.", message


def test_tool_choice_none(client):
    message = same(client, messages=WEATHER, tools=TOOLS, tool_choice={"type": "none"})
    assert all(block.type == "text" for block in message.content)


def test_errors_are_the_sdks_classes(client):
    def ask(**request):
        request = dict(dict(model=MODEL, max_tokens=8, messages=QUESTION), **request)
        return lambda: client.messages.create(**request)

    error = server.raises(anthropic.BadRequestError, ask(extra_body={"temperature": 9}))
    assert error.body["type"] == "error"
    assert error.body["error"]["type"] == "invalid_request_error"
    assert "temperature" in error.body["error"]["message"]
    error = server.raises(anthropic.NotFoundError, ask(model="claude"))
    assert error.body["error"]["type"] == "not_found_error"
    server.raises(anthropic.BadRequestError, ask(messages=[]))
    server.raises(anthropic.BadRequestError, ask(messages=[{"role": "robot", "content": "x"}]))
    error = server.raises(anthropic.BadRequestError, ask(messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "http://localhost/x.png"}}]}]))
    assert "messages[0].content[0]" in error.body["error"]["message"], error.body
    server.raises(anthropic.BadRequestError, ask(tools=TOOLS, tool_choice={"type": "tool", "name": "none"}))
    server.raises(anthropic.BadRequestError, ask(tools=[{"type": "web_search_20250305",
                                                  "name": "web_search"}]))


def test_many_at_once(client):
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: client.messages.create(
            model=MODEL, max_tokens=20, messages=QUESTION, extra_body=GREEDY).content[0].text,
            range(24)))
    assert set(texts) == {ANSWER}


def main():
    with server.Server(sys.argv[1]) as running:
        client = anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0)
        return server.run_tests(sys.modules[__name__], client)


if __name__ == "__main__":
    sys.exit(main())
