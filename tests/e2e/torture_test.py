"""SIGKILL at random moments, resumed under other layouts: tests/proofs/run_torture.py, a few rounds of it."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "proofs"))

import harness
import run_torture

ROUNDS = 200 if harness.NIGHTLY else 20
SEED = int(os.environ.get("KEEL_SEED", "1"))


class Torture(unittest.TestCase):
    def test_random_kills(self):
        with tempfile.TemporaryDirectory(prefix="keel-torture-") as folder:
            counts = run_torture.torture(ROUNDS, SEED, pathlib.Path(folder))
        print(counts)
        self.assertEqual(counts["rounds"], ROUNDS)
        self.assertGreater(counts["killed"], ROUNDS // 3)
        self.assertGreater(counts["checkpoints verified"], ROUNDS // 4)


if __name__ == "__main__":
    unittest.main()
