"""The official OpenAI client over a limit: its own retries must come when the gateway says, and then succeed.

Usage: backoff.py GATEWAY_URL MODEL...

The gateway serves these models to the key `sk-a`: `brief`, two requests in a window of seconds, and `budget`, of which nothing is
left for days after one request.
"""

import sys
import time

import openai

gateway_url, *models = sys.argv[1:]
messages = [{"role": "user", "content": "Hello!"}]


class Attempts:
    """What one client sent and got, and when, by a clock that nobody sets."""

    def __init__(self):
        self.sent = []
        self.answers = []
        hooks = {"request": [self.note_request], "response": [self.note_response]}
        self.http = openai.DefaultHttpxClient(event_hooks=hooks, trust_env=False)

    def note_request(self, request):
        self.sent.append(time.monotonic())

    def note_response(self, response):
        self.answers.append((time.monotonic(), response.status_code, response.headers.get("retry-after-ms")))

    def client(self, max_retries):
        return openai.OpenAI(
            base_url=gateway_url + "/v1", api_key="sk-a", max_retries=max_retries, timeout=60, http_client=self.http
        )


def chat(client, model, **more):
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=2, **more)
    return list(answer) if more.get("stream") else answer


def use_up(model):
    client = Attempts().client(max_retries=0)
    for _ in range(20):
        try:
            chat(client, model)
        except openai.RateLimitError as error:
            return error
    raise AssertionError(f"20 requests to {model} were not enough")


def backs_off(**more):
    """Whether the client was refused and came back; where the window ended too early, there was nothing to see."""
    use_up("brief")
    attempts = Attempts()
    assert chat(attempts.client(max_retries=2), "brief", **more)
    statuses = [status for _, status, _ in attempts.answers]
    assert statuses[-1] == 200 and set(statuses[:-1]) <= {429}, statuses
    for (received, _, promised), sent in zip(attempts.answers, attempts.sent[1:]):
        waited, promised = sent - received, int(promised) / 1000
        assert waited >= promised > 0, (waited, promised)
        print(f"came back after {waited:.3f} s, told {promised:.3f} s")
    return len(statuses) > 1


def gives_up():
    error = use_up("budget")
    assert (error.code, error.status_code) == ("insufficient_quota", 429), error
    attempts = Attempts()
    try:
        chat(attempts.client(max_retries=2), "budget")
    except openai.RateLimitError as error:
        assert error.code == "insufficient_quota", error
        # Nobody waits for days: the client does not try again.
        assert len(attempts.sent) == 1, attempts.answers
        return
    raise AssertionError("the budget was not gone")


if "brief" in models:
    for more in [{}, {"stream": True}]:
        assert any(backs_off(**more) for _ in range(10)), more
if "budget" in models:
    gives_up()
print("done")
