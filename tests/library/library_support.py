"""What the Python tests of the library share."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import torch

import keel

KEEL = os.environ["KEEL_BINARY"]
LIMIT_S = float(os.environ.get("KEEL_TEST_LIMIT_S", "240"))
# No disk is waited for: what a crash of the machine would lose is tested elsewhere.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Folder(unittest.TestCase):
    """With a folder of its own, below which `self.path(...)` are runs."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.addCleanup(self._folder.cleanup)

    def path(self, name="run"):
        return pathlib.Path(self._folder.name) / name

    def open(self, name="run", **options):
        checkpoints = keel.Checkpointer(self.path(name), **{"io": "buffered", "log": "error", **options})
        self.addCleanup(checkpoints.close)
        return checkpoints

    def assert_same(self, a, b):
        self.assertEqual(a.keys(), b.keys())
        for name in a:
            self.assertEqual(a[name].dtype, b[name].dtype)
            self.assertTrue(torch.equal(a[name], b[name]), name)


def ckpt(*arguments):
    """(exit code, what it said)."""
    done = subprocess.run([KEEL, "ckpt", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout + done.stderr


def state_of(step, elements=100_000):
    """A state that its step gives, with dtypes that a training has."""
    generator = torch.Generator().manual_seed(step)
    weights = torch.randn(elements // 8, 8, generator=generator)
    return {"weights": weights, "half": weights.to(torch.bfloat16), "count": torch.tensor(step), "mask": weights[0] > 0}
