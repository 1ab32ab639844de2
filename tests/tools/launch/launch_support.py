"""What the tests of `keel launch` share. Their ranks are small shell scripts."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "e2e"))
import harness  # noqa: E402

KEEL = harness.KEEL
LIMIT_S = harness.LIMIT_S


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def alive(pid):
    """Running, and not only waiting to be reaped."""
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Ended:
    def __init__(self, code, stdout, stderr):
        self.code, self.stdout, self.stderr = code, stdout, stderr

    def __str__(self):
        return f"exit code {self.code}\nstdout:\n{self.stdout[-2000:]}\nstderr:\n{self.stderr[-2000:]}"


class Launched:
    """A launcher that runs."""

    def __init__(self, test, arguments, stdout=subprocess.PIPE, **options):
        self.test = test
        self.process = subprocess.Popen(
            arguments, stdout=stdout, stderr=subprocess.PIPE, text=True, errors="replace", **options
        )
        test.addCleanup(self.clean)

    def clean(self):
        harness.end_with_children(self.process)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def wait(self):
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.test.fail(f"{self.process.args} did not end within {LIMIT_S} s")
        return Ended(self.process.returncode, out or "", err)


class LaunchTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-launch-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, script, *flags, env=None, launcher=(KEEL, "launch"), separator=("--",), **options):
        """`script` runs in each rank, with the test's folder as $0."""
        environment = {**harness.environment(), "TMPDIR": str(self.folder), **(env or {})}
        environment = {key: value for key, value in environment.items() if value is not None}
        command = [*separator, "sh", "-c", script, str(self.folder)]
        return Launched(self, [*launcher, *map(str, flags), *command], env=environment, **options)

    def run_ranks(self, script, *flags, **options):
        return self.start(script, *flags, **options).wait()

    def wait_until(self, condition, what):
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"{what}: not within {LIMIT_S} s")
            time.sleep(0.01)

    def pids(self, count):
        """What ranks have written by `echo $$ > $0/pid.NAME`."""
        found = {}

        def complete():
            for path in self.folder.glob("pid.*"):
                text = path.read_text()
                if text.endswith("\n"):
                    found[path.name[4:]] = int(text)
            return len(found) == count

        self.wait_until(complete, f"{count} files with process ids")
        return found

    def assert_dead(self, pids):
        self.wait_until(lambda: not any(alive(pid) for pid in pids), f"end of {pids}")


__all__ = ["KEEL", "LIMIT_S", "Ended", "LaunchTest", "alive", "free_port", "harness", "signal"]
