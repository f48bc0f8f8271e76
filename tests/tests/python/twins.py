"""What the scripts with official clients share: each call is made twice, and both must read the same.

One is made through `ours`, the gateway, the other to `theirs`, a model server that is asked nothing else. The gateway has a model
server of its own, a twin of that one: since both are asked the same in the same order, even ids and cached tokens are the same.
Where the sidecar's admin address is given, its ledger must have grown by exactly what `theirs` has counted.
"""

import argparse
import time

import httpx2

parser = argparse.ArgumentParser()
parser.add_argument("ours")
parser.add_argument("theirs")
parser.add_argument("--model", default="assistant", help="what `ours` calls the model that `theirs` calls `served`")
parser.add_argument("--parts", default="core", help="separated by commas")
parser.add_argument("--coding", help="the content coding of all answers, for the header x-sim-encode")
parser.add_argument("--admin", help="the sidecar's admin address, as a URL")
options = parser.parse_args()

http = httpx2.Client(trust_env=False, timeout=60)
headers = {"x-sim-encode": options.coding} if options.coding else {}
parts = options.parts.split(",")

# How long the ledger may take to settle on a busy machine.
SETTLED_SECONDS = 30

# Whose usage says what was cached.
SAYS_CACHED = ("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")


class Ledger:
    """What the gateway has counted beside what it should have."""

    TYPES = ("input", "output", "cached_input")

    def __init__(self):
        self.before = self.read()
        self.expected = dict.fromkeys(self.TYPES, 0)
        self.record = 0

    def read(self):
        """The sums of `gen_ai_client_token_usage` and what is used of the key's token limit."""
        sums = dict.fromkeys(self.TYPES, 0)
        for line in http.get(options.admin + "/metrics").text.splitlines():
            if line.startswith("gen_ai_client_token_usage_sum{"):
                for name in self.TYPES:
                    if f'gen_ai_token_type="{name}"' in line:
                        sums[name] += float(line.rsplit(" ", 1)[1])
        limits = http.get(options.admin + "/limits", params={"key": "a"}).json()["limits"]
        used = [counter["used"] for limit in limits for counter in limit["counters"] if limit["id"].endswith("/tokens")]
        return sums | {"used": sum(used)}

    def counts(self, what, counted):
        """Waits until the ledger has grown by what `theirs` was asked since the last call."""
        for record in http.get(options.theirs + "/sim/requests").json():
            if record["number"] > self.record and counted == "usage":
                self.expected["input"] += record["prompt_tokens"]
                self.expected["output"] += record["completion_tokens"]
                if record["path"].startswith(SAYS_CACHED):
                    self.expected["cached_input"] += record["cached_tokens"]
            self.record = max(self.record, record["number"])
        if counted == "estimate":
            self.until_settled(what)
            self.before, self.expected = self.read(), dict.fromkeys(self.TYPES, 0)
            return
        expected = self.expected | {"used": self.expected["input"] + self.expected["output"]}
        grown = {}

        def agrees():
            nonlocal grown
            grown = {name: value - self.before[name] for name, value in self.read().items()}
            return grown == expected

        assert until(agrees), f"{what}: the ledger has grown by {grown}, not by {expected}"

    def until_settled(self, what):
        """Waits until the sidecar has nothing left to settle."""
        names = ("attache_in_flight", "attache_reservations", "attache_store_queue")

        def is_settled():
            lines = http.get(options.admin + "/metrics").text.splitlines()
            return not any(line.startswith(names) and float(line.rsplit(" ", 1)[1]) for line in lines)

        assert until(is_settled), f"{what} was never settled"


def until(condition):
    """Whether the condition holds in time."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


ledger = Ledger() if options.admin else None


def plain(answer, is_typed=True):
    """An answer without what differs from time to time. It must be what the client's own type says, which the client does not check."""
    if not hasattr(answer, "model_dump"):
        return timeless(answer)
    data = answer.model_dump(by_alias=True, exclude_unset=True, warnings=False)
    if is_typed:
        type(answer).model_validate(data)
    return timeless(data)


def timeless(data):
    if isinstance(data, dict):
        return {name: timeless(value) for name, value in data.items() if name not in ("created", "created_at")}
    if isinstance(data, list):
        return [timeless(value) for value in data]
    return data


def events(stream, is_typed=True):
    """All events of a stream. That the server was asked for usage shows in nothing but a null."""
    listed = [plain(event, is_typed) for event in stream]
    assert listed
    return [{name: value for name, value in event.items() if value is not None or name != "usage"} for event in listed]


def same(what, pair, ask, counted="usage"):
    """Asks both, each by the model name that it knows.

    `counted` is `usage`, `nothing`, or `estimate` where the answer has no usage, so that the ledger can only estimate.
    """
    ours, theirs = pair
    return compared(what, ask(ours, options.model), ask(theirs, "served"), counted)


def raises(what, pair, kind, ask):
    """Both raise the same."""

    def raised(client, model):
        try:
            ask(client, model)
        except kind as error:
            return type(error).__name__, getattr(error, "status_code", None), error.body
        raise AssertionError(f"{what} did not fail")

    ours, theirs = pair
    compared(what, raised(ours, options.model), raised(theirs, "served"), "nothing")


def compared(what, left, right, counted):
    assert left == right, f"{what}:\n{left}\n{right}"
    assert left, what
    if ledger:
        ledger.counts(what, counted)
    print("same", what)
    return left
