"""The official OpenAI client against the gateway and against a model server itself: both must read the same.

The gateway serves `assistant` by the model server's `served` to the key `sk-a`. With `errors` among the parts it allows the key
`sk-poor` one request, and knows no key `sk-nobody`; of `short` it allows the key `sk-short` 200 tokens and cuts the answer that
would have more.
"""

import base64

import openai

from twins import events, headers, http, options, parts, plain, raises, same


def client(url, key="sk-a"):
    transport = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(
        base_url=url + "/v1", api_key=key, max_retries=0, timeout=60, default_headers=headers, http_client=transport
    )


both = client(options.ours), client(options.theirs)
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, é😀!"}]
picture = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()
sound = ("hello.wav", bytes(range(256)) * 300, "audio/wav")
tools = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look_up", "write_down")
]
flat_tools = [{"type": "function", "strict": False, **tool["function"]} for tool in tools]


def sim(**values):
    """Headers for the model server."""
    return {f"x-sim-{name.replace('_', '-')}": str(value) for name, value in values.items()}


def chats():
    def whole(**more):
        return lambda c, m: plain(c.chat.completions.create(model=m, **{"messages": messages, "max_tokens": 7} | more))

    def streamed(**more):
        return lambda c, m: events(
            c.chat.completions.create(model=m, stream=True, **{"messages": messages, "max_tokens": 7} | more)
        )

    def accumulated(**more):
        """The client's own accumulation of a stream."""

        def ask(c, m):
            with c.chat.completions.stream(model=m, messages=messages, **more) as stream:
                for _ in stream:
                    pass
                completion = plain(stream.get_final_completion())
            completion.pop("usage", None)
            return completion

        return ask

    seen = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": picture}}]}
    called = {"tools": tools, "extra_headers": sim(tools=3, answer_tokens=20), "max_tokens": openai.omit}
    kinds = {
        "chat": {},
        "chat of two choices": {"n": 2},
        "chat with an image": {"messages": messages + [seen]},
        "chat with a tool": {"tools": tools, "tool_choice": "required", "extra_headers": sim(answer_tokens=9), "max_tokens": openai.omit},
        "chat with parallel tools": called,
        "chat that reasons": {"extra_headers": sim(reasoning_tokens=3)},
        "chat of unknown fields": {"extra_body": {"top_k": 3, "chat_template_kwargs": {"enable_thinking": False}}},
    }
    for what, more in kinds.items():
        same(what, both, whole(**more))
        same(f"streamed {what}", both, streamed(**more))
        same(f"streamed {what} with usage", both, streamed(stream_options={"include_usage": True}, **more))
    same("accumulated chat", both, accumulated(extra_headers=sim(answer_tokens=7)))
    final = same("accumulated parallel tools", both, accumulated(tools=tools, extra_headers=sim(tools=3, answer_tokens=20)))
    calls = final["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["look_up", "write_down", "look_up"], calls


def completions():
    for what, prompt in {"completion": "Once upon a time", "completions of several prompts": ["Once", "Twice"]}.items():
        same(what, both, lambda c, m: plain(c.completions.create(model=m, prompt=prompt, max_tokens=5)))
        # OpenAI's own completions have a null as the reason of all chunks but the last, which its client's type forbids.
        streamed = lambda c, m: events(c.completions.create(model=m, prompt=prompt, max_tokens=5, stream=True), is_typed=False)
        same(f"streamed {what}", both, streamed)


def embeddings():
    # Without a format the client asks for base64 and decodes it.
    for form in (openai.omit, "float", "base64"):
        embed = lambda c, m: plain(
            c.embeddings.create(model=m, input=["one", "two"], encoding_format=form), is_typed=form != "base64"
        )
        same(f"embeddings as {form}", both, embed)


def responses():
    item = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": picture, "detail": "auto"}]}
    kinds = {
        "response": {"input": "Hello, é😀!", "instructions": "Be brief."},
        "response to items with an image": {"input": [item], "metadata": {"team": "red"}},
        "response that is cut": {"input": "Hello", "max_output_tokens": 5},
        "response with parallel tools": {"input": "Hello", "tools": flat_tools, "extra_headers": sim(tools=2)},
        "response that reasons": {"input": "Hello", "extra_headers": sim(reasoning_tokens=4)},
    }
    for what, more in kinds.items():
        same(what, both, lambda c, m: plain(c.responses.create(model=m, **more)))
        listed = same(f"streamed {what}", both, lambda c, m: events(c.responses.create(model=m, stream=True, **more)))
        assert [event["sequence_number"] for event in listed] == list(range(len(listed)))

    def accumulated(c, m):
        with c.responses.stream(model=m, input="Hello", tools=flat_tools, extra_headers=sim(tools=2)) as stream:
            seen = [plain(event) for event in stream]
            return seen, plain(stream.get_final_response())

    seen, final = same("accumulated response", both, accumulated)
    assert final["status"] == "completed" and len(final["output"]) == 3, final


def broken():
    """Errors of the model server, before and within an answer."""
    chat = lambda fault, **more: lambda c, m: plain_or_events(
        c.chat.completions.create(model=m, messages=messages, extra_headers=sim(fault=fault), **more)
    )
    for status, kind in {
        400: openai.BadRequestError,
        403: openai.PermissionDeniedError,
        404: openai.NotFoundError,
        409: openai.ConflictError,
        422: openai.UnprocessableEntityError,
        429: openai.RateLimitError,
        500: openai.InternalServerError,
        503: openai.InternalServerError,
    }.items():
        raises(f"error {status}", both, kind, chat(f"status={status}"))
        raises(f"streamed error {status}", both, kind, chat(f"status={status}", stream=True))


def plain_or_events(answer):
    return plain(answer) if hasattr(answer, "model_dump") else events(answer)


def images():
    files = {"image": ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "image/png")}
    same("image", both, lambda c, m: plain(c.images.generate(model=m, prompt="A sun", n=2)))
    generated = lambda c, m: plain(c.images.generate(model=m, prompt="A sun", response_format="url"))
    same("image at a URL", both, generated, counted="estimate")
    streamed = lambda c, m: events(c.images.generate(model=m, prompt="A sun", stream=True, partial_images=2))
    same("streamed image", both, streamed)
    same("edited image", both, lambda c, m: plain(c.images.edit(model=m, prompt="A sea", **files)))
    same("varied image", both, lambda c, m: plain(c.images.create_variation(model=m, **files)))


def audio():
    for form in ("json", "text", "verbose_json"):
        transcribe = lambda c, m: plain(c.audio.transcriptions.create(model=m, file=sound, response_format=form))
        # Only the first says tokens.
        same(f"transcription as {form}", both, transcribe, counted="usage" if form == "json" else "estimate")
    same("streamed transcription", both, lambda c, m: events(c.audio.transcriptions.create(model=m, file=sound, stream=True)))
    same("translation", both, lambda c, m: plain(c.audio.translations.create(model=m, file=sound)))
    speech = {"input": "Hello, é😀!", "voice": "alloy"}
    same("speech", both, lambda c, m: c.audio.speech.create(model=m, **speech).read(), counted="estimate")

    def streamed(form):
        def ask(c, m):
            with c.audio.speech.with_streaming_response.create(model=m, stream_format=form, **speech) as response:
                return b"".join(response.iter_bytes())

        return ask

    same("streamed speech", both, streamed("audio"), counted="estimate")
    same("speech as events", both, streamed("sse"))


def others():
    """What the official client has no methods for."""

    def post(path, **body):
        def ask(c, m):
            url = str(c.base_url).removesuffix("/v1/") + path
            key = {"authorization": f"Bearer {c.api_key}"}
            answer = http.post(url, json={"model": m} | body, headers=headers | key)
            return answer.status_code, plain(answer.json())

        return ask

    documents = {"query": "What is the sun?", "documents": ["A star.", "A sea.", "A key, é😀."]}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        status, answer = same(path, both, post(path, top_n=2, **documents))
        assert (status, len(answer["results"])) == (200, 2), answer
    for path in ("/score", "/v1/score"):
        status, answer = same(path, both, post(path, text_1="sun", text_2=["star", "sea"]))
        assert (status, len(answer["data"])) == (200, 2), answer
    status, answer = same("tokenize", both, post("/tokenize", prompt="Hello, é😀!"), counted="estimate")
    assert (status, answer["count"]) == (200, 4), answer
    status, answer = same("detokenize", both, post("/detokenize", tokens=answer["tokens"]), counted="estimate")
    assert answer == {"prompt": "Hello, é😀!"}, answer


def gateway():
    """What there is at the gateway alone."""
    ours = both[0]
    raw = ours.chat.completions.with_raw_response.create(model="assistant", messages=messages, max_tokens=7)
    assert raw.headers["x-ratelimit-limit-requests"] == "1000", raw.headers
    assert raw.headers.get("content-encoding") == (options.coding or None), raw.headers
    print("limits are in the headers")
    models = [model.id for model in ours.models.list()]
    assert models == ["assistant"], models
    print("models", models)


def errors():
    """Errors of the gateway's own."""

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
        return client(options.ours, key).chat.completions.create(model=model, messages=messages, **more)

    fails("unknown key", openai.AuthenticationError, 401, "invalid_api_key", lambda: chat("sk-nobody"))
    fails("foreign key", openai.AuthenticationError, 401, "key_not_attached", lambda: chat("sk-a", "poor"))
    fails("unknown model", openai.NotFoundError, 404, "model_not_found", lambda: chat("sk-a", "gpt-unknown"))
    streamed = lambda: chat("sk-a", "gpt-unknown", stream=True)
    fails("streamed unknown model", openai.NotFoundError, 404, "model_not_found", streamed)
    fails("no model", openai.BadRequestError, 400, None, lambda: chat("sk-a", ""))
    chat("sk-poor", "poor")
    limited = fails("limit", openai.RateLimitError, 429, "insufficient_quota", lambda: chat("sk-poor", "poor"))
    assert int(limited.response.headers["retry-after"]) > 0
    is_cut()


def is_cut():
    """A stream that the limit ends, as its server does not, raises after all that was left to say."""
    stream = client(options.ours, "sk-short").chat.completions.create(
        model="short", messages=messages, stream=True, extra_headers=sim(answer_tokens=5000, fault="slow=1", unbounded=1)
    )
    seen = 0
    try:
        for event in stream:
            seen += bool(event.choices[0].delta.content)
    except openai.APIError as error:
        assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota"), repr(error)
        assert error.message.startswith("Quota used up for this key on tokens per 300 days: Limit 200. The answer ends here"), error.message
        assert 100 < seen < 200, seen
        print("fails as it should: a stream that is cut, after", seen)
        return
    raise AssertionError(f"the stream ended well after {seen}")


def coded():
    """The coding is there on the way, not only undone at once."""
    for c, m in zip(both, (options.model, "served")):
        raw = c.completions.with_raw_response.create(model=m, prompt="Hi", max_tokens=2)
        expected = {None: None, "auto": "zstd", "raw-deflate": "deflate"}.get(options.coding, options.coding)
        assert raw.headers.get("content-encoding") == expected, raw.headers


PARTS = {
    "core": [coded, chats, completions, embeddings, responses],
    "endpoints": [images, audio, others],
    # The gateway may try again, so that what comes behind has other ids.
    "broken": [broken],
    "gateway": [gateway],
    "errors": [errors],
}
for part in parts:
    for tests in PARTS[part]:
        tests()
print("done")
