"""docker-compose.yml as a user runs it, in a copy of the checkout, under names of its own."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "attache-test"
KEY, METERED_KEY = "sk-demo-app-a", "sk-demo-metered"
# So long a busy machine may take to do what an idle one does in a second or two.
PATIENCE_SECONDS = 90


def docker(*arguments, check=True, cwd=None, env=None):
    """Runs docker, and returns its output; what it says when it fails is in the exception."""
    run = subprocess.run(["docker", *arguments], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if check and run.returncode != 0:
        raise AssertionError(f"docker {' '.join(arguments)}: status {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-6000:]}")
    return run.stdout.strip() if check else run


def until(what, condition, patience=PATIENCE_SECONDS):
    """Waits for the condition, and returns what it gave."""
    end = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {patience} s")
        time.sleep(0.2)
    return found


def copy_of_checkout(into):
    """What a clone would have, and what is not committed yet."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, into / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return into


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def build_arguments():
    """The images that take the places of those in the Dockerfile, where no registry answers."""
    return {name: os.environ[name] for name in ("RUST_IMAGE", "BASE_IMAGE") if os.environ.get(name)}


class Stack:
    """The services. Their images have names of the test's, so that nobody's `attache` is replaced."""

    def __init__(self):
        # Not below the checkout: its files are mounted, and their owner is not root in the containers.
        self.directory = Path(tempfile.mkdtemp(prefix="attache-containers-"))
        self.directory.chmod(0o755)
        self.tree = copy_of_checkout(self.directory)
        self.config = self.tree / "envoy-config/compose/attache.yaml"
        self.gateway, self.prometheus = free_port(), free_port()
        self.environment = {
            **os.environ,
            "ATTACHE_GATEWAY_PORT": str(self.gateway),
            "ATTACHE_PROMETHEUS_PORT": str(self.prometheus),
        }
        build = {"args": build_arguments()}
        ours = {name: {"image": "attache-test/attache"} for name in ("render", "attache", "doctor")}
        servers = {f"model-{number}": {"image": "attache-test/model-server"} for number in (1, 2, 3)}
        ours["attache"]["build"] = servers["model-1"]["build"] = build
        others = dict(pair.split("=", 1) for pair in os.environ.get("ATTACHE_STAND_INS", "").split())
        services = {**ours, **servers, **{name: {"image": image} for name, image in others.items()}, "grafana": {"profiles": ["not-here"]}}
        # JSON is YAML.
        self.override = self.directory / "compose.test.yaml"
        self.override.write_text(json.dumps({"services": services}))
        self.files = ["docker-compose.yml"]

    def compose(self, *arguments, check=True):
        files = [part for file in [*self.files, self.override.name] for part in ("--file", file)]
        return docker("compose", "--project-name", PROJECT, *files, *arguments, check=check, cwd=self.tree, env=self.environment)

    def remove(self):
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "1", check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def containers(self, service):
        """The ids of those that run."""
        return self.compose("ps", "--quiet", "--status", "running", service).split()

    def all_containers(self):
        """Every service's, but for the one that ends by itself."""
        names = docker("ps", "--filter", f"label=com.docker.compose.project={PROJECT}", "--format", "{{.Names}} {{.ID}}")
        return dict(line.split() for line in names.splitlines() if "-render-" not in line)

    def inspect(self, container):
        return json.loads(docker("inspect", container))[0]

    def logs(self):
        return self.compose("logs", "--no-color", "--tail", "40", check=False).stdout

    # ── What clients do ──

    def ask(self, key=KEY, model="assistant", **fields):
        """The status of one request; 0 where nobody takes it."""
        try:
            connection, answer = self.request(key, model, fields)
            with connection:
                answer.read()
            return answer.status
        except OSError:
            return 0
        except http.client.HTTPException:
            return -1

    def request(self, key, model, fields):
        connection = Connection("127.0.0.1", self.gateway, timeout=60)
        body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], **fields}
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {**headers, **self.headers(fields)})
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    @staticmethod
    def headers(fields):
        # An answer that takes seconds.
        return {"x-sim-answer-tokens": str(fields["max_tokens"])} if "max_tokens" in fields else {}

    def metrics(self, container, name):
        """A sidecar's metric, summed over its labels."""
        port = docker("port", container, "10002/tcp").splitlines()[0]
        page = fetch(port, "/metrics")
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        return sum(map(float, values))

    def query(self, path):
        return json.loads(fetch(f"127.0.0.1:{self.prometheus}", path))["data"]


class Connection(http.client.HTTPConnection):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def fetch(address, path):
    with Connection(*address.rsplit(":", 1), timeout=10) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


class Stream:
    """A streamed answer that is read beside what the test does."""

    def __init__(self, stack, tokens, key=KEY):
        self.connection, self.answer = stack.request(key, "assistant", {"stream": True, "max_tokens": tokens})
        assert self.answer.status == 200, self.answer.status
        self.text, self.fault = self.answer.readline().decode(), None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        try:
            self.text += self.answer.read().decode()
        except (OSError, http.client.HTTPException) as fault:
            self.fault = fault

    def is_open(self):
        return self.reader.is_alive()

    def rest(self):
        """The whole of it, when it has ended."""
        self.reader.join(PATIENCE_SECONDS)
        self.connection.close()
        return self.text
