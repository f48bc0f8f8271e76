"""What an image holds is of the checkout that it was built from, and a change builds no more than it has to."""

import hashlib
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import stack
from stack import docker

# Which source signs what a stand-in of the compiler hands over: see `cargo` here.
SIGNED = {
    "attache": {
        "/usr/local/bin/attache": "extproc/src/main.rs",
        "/usr/local/share/attache/attache_wasm_filter.wasm": "wasm-filter/src/lib.rs",
    },
    "model-server": {"/usr/local/bin/attache-model-server": "tests/model-server/src/main.rs"},
}


class Clone:
    """A checkout whose files are older than every build, as an unpacked archive's are."""

    def __init__(self, directory, name):
        self.tree = stack.copy_of_checkout(directory / name)
        self.name = name
        self.change(*(source for sources in SIGNED.values() for source in sources.values()), note=f"clone {name}")
        for path in self.tree.rglob("*"):
            os.utime(path, (1_700_000_000, 1_700_000_000))

    def change(self, *files, note):
        for file in files:
            with (self.tree / file).open("a") as text:
                text.write(f"// {note}\n")

    def build(self, target):
        """Builds an image with the stand-in of the compiler; returns its name and which steps were run."""
        image = f"attache-test/clone-{self.name}-{target}"
        options = [part for name, value in stack.build_arguments().items() for part in ("--build-arg", f"{name}={value}")]
        command = ["docker", "buildx", "build", "--progress", "plain", "--load", "--target", target, "--tag", image, *options, "."]
        run = subprocess.run(command, cwd=self.tree, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert run.returncode == 0, run.stdout[-6000:]
        return image, run.stdout

    def hash(self, source):
        return hashlib.sha256((self.tree / source).read_bytes()).hexdigest()


def extract(image, path, directory):
    """A file of an image, which needs no shell for it."""
    container = docker("create", image)
    try:
        docker("cp", f"{container}:{path}", str(directory / "extracted"))
        return (directory / "extracted").read_bytes()
    finally:
        docker("rm", container)


class Build(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.images = []
        self.addCleanup(lambda: docker("rmi", "--force", *set(self.images), check=False))

    def build(self, clone, target):
        image, log = clone.build(target)
        self.images.append(image)
        return image, log

    def assert_of_its_own_sources(self, clone, target):
        image, _ = self.build(clone, target)
        for path, source in SIGNED[target].items():
            signature = extract(image, path, self.directory)[-64:].decode(errors="replace")
            self.assertEqual(signature, clone.hash(source), f"{path} of clone {clone.name} is of other sources")

    def test_two_clones_on_one_daemon_never_get_each_others_programs(self):
        first, second = Clone(self.directory, "a"), Clone(self.directory, "b")
        for target in SIGNED:
            for clone in (first, second, first):
                self.assert_of_its_own_sources(clone, target)
        # The same checkout with a line more, and a file that is older than what was built.
        main = first.tree / "extproc/src/main.rs"
        first.change("extproc/src/main.rs", note="a line more")
        os.utime(main, (1_600_000_000, 1_600_000_000))
        self.assert_of_its_own_sources(first, "attache")

    def test_a_change_compiles_what_it_concerns_and_no_dependency(self):
        clone = Clone(self.directory, "a")
        for target in SIGNED:
            self.build(clone, target)
        # What is neither compiled nor shipped is no reason to build anything.
        for file in ("README.md", "docs/limits.md", "envoy-config/compose/attache.yaml", "extproc/tests/compose.rs", "tests/src/lib.rs", "docker-compose.yml"):
            clone.change(file, note="changed")
        for target in SIGNED:
            self.assertEqual(self.compiled(clone, target), set(), "after a change of documents and tests")
        clone.change("extproc/src/main.rs", note="changed")
        self.assertEqual(self.compiled(clone, "attache"), {"build-attache"})
        self.assertEqual(self.compiled(clone, "model-server"), set())
        clone.change("tests/model-server/src/main.rs", note="changed")
        self.assertEqual(self.compiled(clone, "model-server"), {"build-model-server"})
        clone.change("wasm-filter/src/lib.rs", note="changed")
        self.assertEqual(self.compiled(clone, "attache"), {"build-filter"})

    def compiled(self, clone, target):
        """The stages that ran the compiler."""
        _, log = self.build(clone, target)
        steps = {}
        for line in log.splitlines():
            number, _, rest = line.partition(" ")
            if rest.startswith("[") and " RUN " in rest and "cargo build" in rest:
                steps[number] = rest[1:].split()[0]
            elif rest.startswith("CACHED"):
                steps.pop(number, None)
        return set(steps.values())

    def test_images_say_what_they_are_and_run_as_nobodys_root(self):
        version = json.loads(subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"], cwd=stack.ROOT, check=True, stdout=subprocess.PIPE
        ).stdout)["packages"][0]["version"]
        clone = Clone(self.directory, "a")
        for target in SIGNED:
            image, _ = self.build(clone, target)
            config = json.loads(docker("inspect", image))[0]["Config"]
            self.assertEqual(config["User"], "10001:10001")
            labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
            self.assertEqual((labels["version"], labels["licenses"]), (version, "Apache-2.0"))
            self.assertLessEqual({"title", "description", "revision", "vendor"}, labels.keys())
            # Exec form: nothing that is run by default needs a shell.
            for command in (config["Entrypoint"], config["Cmd"], config.get("Healthcheck", {}).get("Test", [])[1:]):
                self.assertNotIn("/bin/sh", command)
            groups = extract(image, "/etc/group", self.directory).decode()
            self.assertIn("attache:x:10001:", groups)


if __name__ == "__main__":
    unittest.main()
