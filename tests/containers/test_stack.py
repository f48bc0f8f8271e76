"""docker-compose.yml, as README and docs/containers.md have it played: the steps build upon each other."""

import os
import re
import signal
import subprocess
import unittest

import stack
from stack import METERED_KEY, Stack, Stream, docker, until

# A stream of so many tokens takes some four seconds (10 ms each, and what Envoy and the sidecar take).
SOME_SECONDS = 400


class Sequence(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack()
        cls.addClassCleanup(cls.stack.remove)

    def setUp(self):
        if not self._testMethodName.startswith("test_01"):
            self.before = self.stack.all_containers()

    def compose(self, *arguments, check=True):
        return self.stack.compose(*arguments, check=check)

    def test_01_the_first_request_after_up_is_answered(self):
        self.compose("up", "--build", "--wait")
        self.assertEqual(self.stack.ask(), 200)
        self.assertEqual(self.stack.ask(key=None), 401)
        self.assertEqual(self.stack.ask(key="sk-nobody"), 401)
        self.assertTrue(Stream(self.stack, 20).rest().endswith("data: [DONE]\n\n"))

    def test_02_a_second_up_recreates_nothing(self):
        self.compose("up", "--build", "--wait")
        self.assertEqual(self.stack.all_containers(), self.before)

    def test_03_all_run_as_somebody_with_nothing_to_gain(self):
        for name, container in self.stack.all_containers().items():
            about = self.stack.inspect(container)
            host = about["HostConfig"]
            if "-redis-" not in name:
                self.assertRegex(about["Config"]["User"], r"^[1-9]\d*:[1-9]\d*$", name)
            uids = docker("top", container, "-eo", "pid,uid").splitlines()[1:]
            self.assertNotIn("0", [line.split()[1] for line in uids], name)
            self.assertTrue(host["ReadonlyRootfs"], name)
            self.assertEqual(host["CapDrop"], ["ALL"], name)
            self.assertIn("no-new-privileges:true", host["SecurityOpt"], name)
            self.assertEqual(host["RestartPolicy"]["Name"], "unless-stopped", name)

    def test_04_model_servers_reach_neither_redis_nor_envoys_admin_interface(self):
        def asks(network, address):
            run = docker("run", "--rm", "--network", f"{stack.PROJECT}_{network}", "attache-test/attache", "health", "--admin", address, check=False)
            return run.stdout + run.stderr

        # What answers there is no sidecar, or nobody does: from where they belong and from where they do not.
        self.assertIn("no HTTP", asks("ledger", "redis:6379"))
        self.assertIn("lookup", asks("models", "redis:6379"))
        self.assertIn("refused", asks("models", "envoy:9901"))
        self.assertIn("refused", asks("gateway", "envoy:9901"))
        # Its counters are there for Prometheus, and nothing else of it.
        self.assertNotIn("ready", asks("gateway", "envoy:9902"))
        self.assertIn("ready", asks("gateway", "attache:10002"))
        # The sidecars' metrics have a port of their own, with health beside them and no other page.
        self.assertIn("ready", asks("gateway", "attache:10003"))

    def test_05_doctor_finds_nothing_wrong(self):
        run = self.compose("run", "--rm", "doctor", check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(self.stack.all_containers(), self.before)

    def test_06_four_sidecars_share_one_budget(self):
        self.compose("up", "--wait", "--scale", "attache=4")
        after = self.stack.all_containers()
        self.assertEqual(after, after | self.before, "what ran goes on")
        self.assertEqual(len(self.stack.containers("attache")), 4)

        def all_are_asked():
            self.assertEqual(self.stack.ask(), 200)
            return all(self.stack.metrics(one, "attache_streams_total") > 0 for one in self.stack.containers("attache"))

        until("Envoy asks all four", all_are_asked)
        # Some 42 tokens each of 300 a minute, whoever is asked. The last one may go over.
        granted = [self.stack.ask(METERED_KEY, "assistant-metered") for _ in range(12)].count(200)
        self.assertIn(granted, range(6, 9))

    def test_07_a_new_key_works_and_nothing_is_cut_for_it(self):
        stream = Stream(self.stack, SOME_SECONDS)
        run = self.compose("run", "--rm", "--no-deps", "-T", "attache", "key", "new", "added", "--route", "unified", check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        with self.stack.config.open("a") as config:
            config.write(run.stdout)
        key = re.search(r"^sk-\S+$", run.stderr, re.MULTILINE).group()
        until("the key is known", lambda: self.stack.ask(key) == 200)
        self.assertTrue(stream.rest().endswith("data: [DONE]\n\n"), stream.fault)
        self.assertEqual(self.stack.all_containers(), self.before)

    def test_08_a_mistake_in_the_yaml_leaves_an_envoy_that_can_restart(self):
        right = self.stack.config.read_text()
        self.stack.config.write_text(right.replace("port: 8000", "port: 80000", 1))
        up = self.compose("up", "--wait", "--scale", "attache=4", check=False)
        self.assertNotEqual(up.returncode, 0)
        self.assertIn("80000", self.compose("logs", "render"))
        self.assertEqual(self.stack.ask(), 200)
        self.compose("restart", "envoy")
        until("Envoy is back", lambda: self.stack.ask() == 200)
        self.assertEqual(self.stack.all_containers(), self.before)
        self.stack.config.write_text(right)
        self.compose("up", "--wait", "--scale", "attache=4")
        self.assertEqual(self.stack.ask(), 200)

    def test_09_a_changed_backend_needs_envoy_and_cuts_no_stream(self):
        stream = Stream(self.stack, SOME_SECONDS)
        text = self.stack.config.read_text()
        self.stack.config.write_text(text.replace("  - fqdn: {hostname: model-3, port: 8000}\n", "", 1))
        self.compose("run", "--rm", "render")
        self.compose("restart", "envoy")
        self.assertTrue(stream.rest().endswith("data: [DONE]\n\n"), stream.fault)
        until("Envoy is back", lambda: self.stack.ask() == 200)
        self.assertEqual(len(self.stack.containers("attache")), 4)

    def test_10_one_of_several_sidecars_that_hangs_or_goes_fails_next_to_nothing(self):
        one, other, *_ = self.stack.containers("attache")

        def answered(count=40):
            return [self.stack.ask() for _ in range(count)].count(200)

        docker("pause", one)
        try:
            until("Envoy leaves the silent one alone", lambda: answered(8) == 8)
            self.assertGreaterEqual(answered(), 39)
        finally:
            docker("unpause", one)
        docker("kill", other)
        until("Envoy leaves the dead one alone", lambda: answered(8) == 8)
        self.assertGreaterEqual(answered(), 39)
        self.compose("up", "--wait", "--scale", "attache=4")

    def test_11_a_sidecar_that_is_drained_fails_nothing(self):
        one = self.stack.containers("attache")[0]
        stopping = subprocess.Popen(["docker", "stop", one], stdout=subprocess.DEVNULL)
        statuses = []
        while stopping.poll() is None:
            statuses.append(self.stack.ask())
        statuses += [self.stack.ask() for _ in range(20)]
        self.assertEqual(set(statuses), {200}, statuses)
        self.compose("up", "--wait", "--scale", "attache=4")

    def test_12_what_crashes_comes_back_by_itself(self):
        if docker("info", "--format", "{{.Name}}") != os.uname().nodename or os.getuid() != 0:
            self.skipTest("a process can be killed behind Docker's back by this machine's root alone")
        for service in ("attache", "envoy", "redis", "model-1"):
            container = self.stack.containers(service)[0]
            before = self.stack.inspect(container)["State"]
            os.kill(before["Pid"], signal.SIGKILL)
            until(f"{service} runs again", lambda: (
                (now := self.stack.inspect(container)["State"])["Running"] and now["Pid"] not in (0, before["Pid"])
            ))
        until("requests are answered", lambda: self.stack.ask() == 200)

    def test_13_prometheus_sees_all_of_it(self):
        def targets():
            return [(target["scrapeUrl"], target["health"]) for target in self.stack.query("/api/v1/targets")["activeTargets"]]

        # The sidecars, Envoy, three model servers.
        until("all targets are up", lambda: len(targets()) == 4 + len(self.stack.containers("attache")) and all(health == "up" for _, health in targets()))
        rules = [rule for group in self.stack.query("/api/v1/rules")["groups"] for rule in group["rules"]]
        self.assertTrue(rules)
        self.assertEqual([rule["name"] for rule in rules if rule["health"] == "err"], [])

        def requests(name):
            result = self.stack.query(f"/api/v1/query?query=sum({name})")["result"]
            return result and float(result[0]["value"][1]) > 0

        for name in ("attache_requests_total", "envoy_http_downstream_rq_completed"):
            until(f"{name} counts", lambda: requests(name))

    def test_14_a_stream_ends_before_what_serves_it_is_stopped(self):
        stream = Stream(self.stack, SOME_SECONDS)
        self.compose("stop")
        self.assertTrue(stream.rest().endswith("data: [DONE]\n\n"), stream.fault)
        self.assertEqual(self.stack.all_containers(), {})
        self.compose("up", "--wait")
        self.assertEqual(self.stack.ask(), 200)

    def test_15_a_sidecar_without_a_route_that_it_could_read_is_not_healthy(self):
        name = f"{stack.PROJECT}-unreadable"
        broken = self.stack.directory / "broken"
        broken.mkdir()
        (broken / "attache.yaml").write_text("kind: [")
        docker("run", "--detach", "--name", name, "--network", "none", "--volume", f"{broken}:/etc/attache", "--health-interval", "500ms",
               "--health-retries", "2", "--health-start-period", "1s", "attache-test/attache")
        try:
            health = lambda: self.stack.inspect(name)["State"]["Health"]
            until("it is unhealthy", lambda: health()["Status"] == "unhealthy")
            self.assertIn("no route could be read", health()["Log"][-1]["Output"])
            (broken / "attache.yaml").write_text(self.stack.config.read_text())
            until("it is healthy", lambda: health()["Status"] == "healthy")
        finally:
            docker("rm", "--force", name)

    def test_16_the_users_own_server_takes_the_place_of_the_simulated_ones(self):
        self.compose("down", "--volumes")
        server, port = f"{stack.PROJECT}-own-server", stack.free_port()
        # On the machine itself, as an Ollama or a vLLM is.
        docker("run", "--detach", "--name", server, "--network", "host", "attache-test/model-server", "--listen", f"0.0.0.0:{port}",
               "--model", "Qwen/Qwen2.5-7B-Instruct")
        try:
            own = self.stack.tree / "envoy-config/own-server"
            config = own / "documents/attache.yaml"
            config.write_text(re.sub(r"port: \d+", f"port: {port}", config.read_text()))
            self.stack.files.append("envoy-config/own-server/compose.yaml")
            self.compose("up", "--wait")
            self.assertEqual(self.stack.containers("model-1"), [])
            self.assertEqual(self.stack.ask(), 200)
        finally:
            self.compose("down", "--volumes", check=False)
            docker("rm", "--force", server)

    def tearDown(self):
        outcome = self._outcome.result
        if any(test is self for test, _ in outcome.failures + outcome.errors):
            print(self.stack.logs())


if __name__ == "__main__":
    unittest.main()
