"""SIGKILL of any process of a split run at random moments: tests/proofs/run_split_torture.py, a few kills of it."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "proofs"))

import harness
import run_split_torture

KILLS, KILLS_A_RUN = (100, 25) if harness.NIGHTLY else (8, 4)
SEED = int(os.environ.get("KEEL_SEED", "1"))


run_split_torture.STEPS = 16 if KILLS < 100 else run_split_torture.STEPS


class SplitTorture(unittest.TestCase):
    def test_random_kills(self):
        with tempfile.TemporaryDirectory(prefix="keel-torture-") as folder:
            counts = run_split_torture.torture(KILLS, SEED, pathlib.Path(folder), kills_a_run=KILLS_A_RUN)
        print(counts)
        self.assertEqual(counts["kills"], KILLS)
        self.assertEqual(counts["runs bit for bit those of their replays"], counts["runs"])
        self.assertGreaterEqual(counts["runs"], KILLS // KILLS_A_RUN)


if __name__ == "__main__":
    unittest.main()
