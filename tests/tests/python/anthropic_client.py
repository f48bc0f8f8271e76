"""The official Anthropic client against the gateway and against a model server itself: both must read the same.

The gateway serves `assistant` by the model server's `served` to the key `sk-a`. With `errors` among the parts it allows the key
`sk-poor` one request, and knows no key `sk-nobody`.
"""

import base64

import anthropic

from twins import events, headers, options, parts, plain, raises, same


def client(url, key="sk-a"):
    transport = anthropic.DefaultHttpxClient(trust_env=False)
    return anthropic.Anthropic(
        base_url=url, api_key=key, max_retries=0, timeout=60, default_headers=headers, http_client=transport
    )


both = client(options.ours), client(options.theirs)
messages = [{"role": "user", "content": "Hello, é😀!"}]
tools = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("look_up", "write_down")]
picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()
seen = {
    "role": "user",
    "content": [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}},
    ],
}
marked = [{"type": "text", "text": "Be brief. " * 40, "cache_control": {"type": "ephemeral"}}]


def sim(**values):
    """Headers for the model server."""
    return {f"x-sim-{name.replace('_', '-')}": str(value) for name, value in values.items()}


KINDS = {
    "message": {"system": "Be brief."},
    "message with an image": {"messages": [seen]},
    "message that is cut": {"max_tokens": 5},
    "message with a tool": {"tools": tools, "tool_choice": {"type": "any"}, "extra_headers": sim(answer_tokens=9)},
    "message with parallel tools": {"tools": tools, "extra_headers": sim(tools=3, answer_tokens=20)},
    "message that thinks": {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
    "message with a cached prompt": {"system": marked},
    "the same message again": {"system": marked},
}


def core():
    for what, more in KINDS.items():
        more = {"messages": messages, "max_tokens": 64} | more
        same(what, both, lambda c, m: plain(c.messages.create(model=m, **more)))
        listed = same(f"streamed {what}", both, lambda c, m: events(c.messages.create(model=m, stream=True, **more)))
        names = [event["type"] for event in listed]
        assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names

        def accumulated(c, m):
            """The client's own accumulation of a stream."""
            with c.messages.stream(model=m, **more) as stream:
                texts = list(stream.text_stream)
                return texts, plain(stream.get_final_message())

        texts, final = same(f"accumulated {what}", both, accumulated)
        assert final["content"] and final["usage"]["output_tokens"] > 0, final


def broken():
    """Errors of the model server, before and within an answer."""

    def message(fault, **more):
        def ask(c, m):
            answer = c.messages.create(model=m, messages=messages, max_tokens=9, extra_headers=sim(fault=fault), **more)
            return events(answer) if more else plain(answer)

        return ask

    for status, kind in {
        400: anthropic.BadRequestError,
        403: anthropic.PermissionDeniedError,
        404: anthropic.NotFoundError,
        429: anthropic.RateLimitError,
        500: anthropic.InternalServerError,
        529: anthropic.OverloadedError,
    }.items():
        raises(f"error {status}", both, kind, message(f"status={status}"))
        raises(f"streamed error {status}", both, kind, message(f"status={status}", stream=True))


def counting():
    for what, more in {"message": {}, "message with tools": {"tools": tools, "system": "Be brief."}}.items():
        count = lambda c, m: plain(c.messages.count_tokens(model=m, messages=messages, **more))
        counted = same(f"tokens of a {what}", both, count, counted="nothing")
        assert counted["input_tokens"] > 0, counted


def errors():
    """Errors of the gateway's own."""

    def fails(what, kind, status, error_type, ask):
        try:
            ask()
        except anthropic.APIStatusError as error:
            assert type(error) is kind, f"{what}: {error!r}"
            assert error.status_code == status and error.body["type"] == "error", f"{what}: {error.body}"
            assert error.body["error"]["type"] == error_type and error.body["error"]["message"], f"{what}: {error.body}"
            print("fails as it should", what)
            return error
        raise AssertionError(f"{what} did not fail")

    def message(key, model="assistant", **more):
        return client(options.ours, key).messages.create(model=model, messages=messages, max_tokens=9, **more)

    fails("unknown key", anthropic.AuthenticationError, 401, "authentication_error", lambda: message("sk-nobody"))
    fails("unknown model", anthropic.NotFoundError, 404, "not_found_error", lambda: message("sk-a", "claude-unknown"))
    streamed = lambda: message("sk-a", "claude-unknown", stream=True)
    fails("streamed unknown model", anthropic.NotFoundError, 404, "not_found_error", streamed)
    fails("no model", anthropic.BadRequestError, 400, "invalid_request_error", lambda: message("sk-a", ""))
    message("sk-poor", "poor")
    limited = fails("limit", anthropic.RateLimitError, 429, "rate_limit_error", lambda: message("sk-poor", "poor"))
    assert int(limited.response.headers["retry-after"]) > 0


# The gateway may try again what is broken, so that what comes behind has other ids.
PARTS = {"core": [core], "endpoints": [counting], "broken": [broken], "errors": [errors]}
for part in parts:
    for tests in PARTS[part]:
        tests()
print("done")
