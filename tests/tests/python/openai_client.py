"""The official OpenAI client against the gateway and against a model server itself: both must read the same.

Usage: openai_client.py GATEWAY_URL MODEL_SERVER_URL

The gateway serves `assistant` by the model server's `served` to the key `sk-a`, allows the key `sk-poor` one request, and
knows no key `sk-nobody`. Of `short` it allows the key `sk-short` 200 tokens and cuts the answer that would have more.
"""

import sys

import openai

gateway_url, server_url = sys.argv[1:]


def client(url, key="sk-a"):
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=60)


ours, theirs = client(gateway_url), client(server_url)
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, é😀!"}]


def plain(answer):
    """An answer without what differs from request to request."""
    data = answer.model_dump()
    data.pop("id", None)
    data.pop("created", None)
    if data.get("usage"):
        data["usage"].pop("prompt_tokens_details", None)
    return data


def same(what, ask):
    """Asks both, each by the model name that it knows."""
    left, right = ask(ours, "assistant"), ask(theirs, "served")
    assert left == right, f"{what}:\n{left}\n{right}"
    assert left, what
    print("same", what)


def events(stream):
    # That the server was asked for usage shows in nothing but a null.
    return [{name: value for name, value in plain(event).items() if value is not None or name != "usage"} for event in stream]


same("chat", lambda c, m: plain(c.chat.completions.create(model=m, messages=messages, max_tokens=7)))
same("chat of two choices", lambda c, m: plain(c.chat.completions.create(model=m, messages=messages, max_tokens=7, n=2)))
same(
    "streamed chat",
    lambda c, m: events(c.chat.completions.create(model=m, messages=messages, max_tokens=7, stream=True)),
)
same(
    "streamed chat with usage",
    lambda c, m: events(
        c.chat.completions.create(
            model=m, messages=messages, max_tokens=7, stream=True, stream_options={"include_usage": True}
        )
    ),
)
same("completion", lambda c, m: plain(c.completions.create(model=m, prompt="Once upon a time", max_tokens=5)))
same(
    "streamed completion",
    lambda c, m: events(c.completions.create(model=m, prompt="Once upon a time", max_tokens=5, stream=True)),
)
same("embeddings", lambda c, m: plain(c.embeddings.create(model=m, input=["one", "two"], encoding_format="float")))


def text(c, m):
    """The client's own accumulation of a stream."""
    with c.chat.completions.stream(model=m, messages=messages, max_tokens=7) as stream:
        return "".join(event.delta for event in stream if event.type == "content.delta")


same("accumulated stream", text)
raw = ours.chat.completions.with_raw_response.create(model="assistant", messages=messages, max_tokens=7)
assert raw.headers["x-ratelimit-limit-requests"] == "1000", raw.headers
print("limits are in the headers")

models = [model.id for model in ours.models.list()]
assert models == ["assistant"], models
print("models", models)


def fails(what, kind, status, code, ask):
    try:
        ask()
    except openai.APIStatusError as error:
        assert type(error) is kind, f"{what}: {error!r}"
        assert (error.status_code, error.code) == (status, code), f"{what}: {error!r}"
        assert error.body["message"] and error.body["type"], error.body
        print("fails as it should", what)
        return error
    raise AssertionError(f"{what} did not fail")


def chat(key, model="assistant", **more):
    return client(gateway_url, key).chat.completions.create(model=model, messages=messages, **more)


fails("unknown key", openai.AuthenticationError, 401, "invalid_api_key", lambda: chat("sk-nobody"))
fails("foreign key", openai.AuthenticationError, 401, "key_not_attached", lambda: chat("sk-a", "poor"))
fails("unknown model", openai.NotFoundError, 404, "model_not_found", lambda: chat("sk-a", "gpt-unknown"))
fails("streamed unknown model", openai.NotFoundError, 404, "model_not_found", lambda: chat("sk-a", "gpt-unknown", stream=True))
fails("no model", openai.BadRequestError, 400, None, lambda: chat("sk-a", ""))
chat("sk-poor", "poor")
limited = fails("limit", openai.RateLimitError, 429, "insufficient_quota", lambda: chat("sk-poor", "poor"))
assert int(limited.response.headers["retry-after"]) > 0
fails(
    "upstream's error",
    openai.InternalServerError,
    500,
    None,
    lambda: chat("sk-a", extra_headers={"x-sim-fault": "status=500"}),
)


def is_cut():
    """A stream that the limit ends raises, after all that was left to say."""
    stream = client(gateway_url, "sk-short").chat.completions.create(
        model="short", messages=messages, stream=True, extra_headers={"x-sim-answer-tokens": "5000", "x-sim-fault": "slow=1"}
    )
    seen = 0
    try:
        for event in stream:
            seen += bool(event.choices[0].delta.content)
    except openai.APIError as error:
        assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota"), repr(error)
        assert error.message.startswith("Quota used up for this key on tokens per 300 days: Limit 200, "), error.message
        assert 100 < seen < 200, seen
        print("fails as it should: a stream that is cut, after", seen)
        return
    raise AssertionError(f"the stream ended well after {seen}")


is_cut()
print("done")
