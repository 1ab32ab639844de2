"""The checkpoint benchmark measures what it says: small runs of the real workers, and its arithmetic."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
KEEL_BENCH = str(pathlib.Path(harness.KEEL).with_name("keel_bench"))

import memory_sampler
import paired
import ranks

MEGABYTES = 28


def worker(folder, world, *options):
    command = [
        KEEL_BENCH, "worker", "checkpoint", "--checkpoints", str(folder / "run"), "--products", "1",
        "--megabytes", str(MEGABYTES), *options,
    ]  # fmt: skip
    return ranks.Ranks("keel", command, world, folder / "stderr.txt")


class Workers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, world, *options):
        started = worker(pathlib.Path(self.folder.name), world, *options)
        self.addCleanup(started.kill)
        return started

    def test_a_save_beside_training_holds_one_step(self):
        ranks_of_two = self.start(2)
        ranks_of_two.ask("open")
        for _ in range(3):
            self.assertEqual([x["one_step"] for x in ranks_of_two.ask("verify")], [True, True])

    def test_all_ranks_do_as_many_steps_as_the_save_lasts(self):
        ranks_of_two = self.start(2)
        ranks_of_two.ask("open")
        answers = ranks_of_two.ask("steps_with_save 3")
        self.assertEqual(answers[0]["steps"], answers[1]["steps"])
        self.assertGreaterEqual(answers[0]["steps"], 3)
        self.assertEqual(len(answers[0]["step_seconds"]), answers[0]["steps"])
        self.assertLessEqual(sum(answers[0]["step_seconds"]), answers[0]["seconds"])
        saved = sum(x["record"]["bytes"] for x in answers)
        state = sum(x["bytes"] for x in ranks_of_two.ready)
        self.assertGreaterEqual(saved, state)
        self.assertLess(saved, 1.01 * state)

    def test_loads_into_every_cut_of_the_matrices(self):
        ranks_of_two = self.start(2)
        ranks_of_two.ask("open")
        ranks_of_two.ask("save")
        for cut in ("rows", "columns", "uneven"):
            with self.subTest(cut):
                loaded = ranks_of_two.ask(f"load {cut}")
                self.assertEqual(sum(x["bytes"] for x in loaded), sum(x["bytes"] for x in ranks_of_two.ready))

    def test_the_limits_read_what_a_load_reads(self):
        ranks_of_two = self.start(2)
        ranks_of_two.ask("open")
        ranks_of_two.ask("save")
        state = sum(x["bytes"] for x in ranks_of_two.ready)
        for into in ("memory", "buffer"):
            with self.subTest(into):
                read = sum(x["bytes"] for x in ranks_of_two.ask(f"read_limit {into}"))
                self.assertGreaterEqual(read, state)
                self.assertLess(read, 1.01 * state)

    def test_the_cap_holds_what_the_staging_keeps(self):
        cap = 8 << 20
        one_rank = self.start(1, "--host-memory-cap", str(cap))
        self.assertLessEqual(one_rank.ask("open")[0]["staging_bytes"], cap)
        self.assertTrue(one_rank.ask("verify")[0]["one_step"])

    def test_a_million_boxes_are_opened_and_planned_in_256_mib(self):
        folder = pathlib.Path(self.folder.name) / "many"
        for what in ("write", "open-all", "open-part"):
            done = subprocess.run(
                [KEEL_BENCH, "worker", "index", what, "--boxes", "1000000", "--checkpoints", str(folder)],
                check=True, capture_output=True, timeout=harness.LIMIT_S,
            )  # fmt: skip
            if what != "write":
                measured = json.loads(done.stdout)
                self.assertEqual(measured["boxes"], 1000000)
                self.assertLessEqual(measured["peak_bytes"], 256 << 20, what)


class DyingWorkers(unittest.TestCase):
    """A rank that ends before it answers ends the measurement with its last words, whatever the others do."""

    def ends(self, program, *asked):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(SystemExit) as ended:
                started = ranks.Ranks("keel", [sys.executable, "-c", program], 2, pathlib.Path(folder) / "stderr.txt")
                self.addCleanup(started.kill)
                for line in asked:
                    started.ask(line)
        self.assertIn("keel, rank 1, at ", str(ended.exception))
        self.assertIn("it ended", str(ended.exception))
        self.assertIn("no such module", str(ended.exception))

    DIES = "print('no such module', file=sys.stderr, flush=True); os._exit(69)"

    def test_before_it_speaks(self):
        self.ends(f"""import os, sys, time
if os.environ["RANK"] == "1":
    {self.DIES}
time.sleep(20)""")

    def test_after_its_first_answer(self):
        self.ends(f"""import os, sys, time
print('{{}}', flush=True)
if os.environ["RANK"] == "1":
    {self.DIES}
sys.stdin.readline()
time.sleep(20)""", "open")  # fmt: skip

    def test_with_a_child_that_keeps_its_output(self):
        self.ends(f"""import os, subprocess, sys
if os.environ["RANK"] == "1":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(5); print('{{}}', flush=True)"])
    {self.DIES}
print('{{}}', flush=True)
sys.stdin.read()""")


class Driver(unittest.TestCase):
    @harness.nightly
    def test_every_part_ends_in_bars_and_samples(self):
        with tempfile.TemporaryDirectory() as folder:
            page, others = pathlib.Path(folder) / "page.md", pathlib.Path(folder) / "runs"
            others.mkdir()
            (others / "kept").write_text("of somebody")
            subprocess.run(
                [sys.executable, BENCH / "run_checkpoint.py", "--keel", harness.KEEL, "--dir", others,
                 "--quick", "--steps", "2", "--products", "1", "--setting", "small-state",
                 "--peer", "dcp-thread-overlapped", "--markdown", page],
                check=True, capture_output=True, timeout=harness.LIMIT_S,
            )  # fmt: skip
            report = json.loads(page.with_suffix(".json").read_text())
            self.assertEqual(set(report["parts"]), {"small-state", "memory", "small", "commit", "index"})
            pair = report["parts"]["small-state"]["dcp-thread-overlapped"]
            self.assertEqual(pair["one_step"], {"A": True, "B": True})
            self.assertEqual(sorted(side for side, _ in pair["rounds"][0]), ["A", "A", "B", "B"])
            for bar in report["bars"]:
                self.assertIn(bar["what"], page.read_text())
            self.assertEqual((others / "kept").read_text(), "of somebody")
            self.assertEqual(len(list(others.iterdir())), 1)


class Arithmetic(unittest.TestCase):
    ROUNDS = [
        [("A", 1.0), ("B", 4.0), ("B", 6.0), ("A", 2.0)],
        [("B", 5.0), ("A", 3.0), ("A", 0.0), ("B", 7.0)],
    ]

    def test_pairs_are_neighbours(self):
        self.assertEqual(paired.pairs(self.ROUNDS, lambda x: x), [(1, 4), (2, 6), (3, 5), (0, 7)])

    def test_ratio_of_medians_bears_a_zero(self):
        ratio = paired.ratio_of_medians(paired.pairs(self.ROUNDS, lambda x: x))
        self.assertAlmostEqual(ratio["median"], 1.5 / 5.5)
        self.assertLessEqual(ratio["low"], ratio["median"])
        self.assertGreaterEqual(ratio["high"], ratio["median"])
        self.assertEqual(ratio["pairs"], 4)

    def test_memory_of_a_child_counts_once(self):
        size = 64 << 20
        grow = f"import sys; held = bytearray({size}); print('held', flush=True); sys.stdin.read()"
        command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grow!r}])"
        parent = subprocess.Popen(
            [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.assertEqual(parent.stdout.readline(), "held\n")
            found = memory_sampler.own_bytes([parent.pid])
            self.assertGreater(found, size)
            self.assertLess(found, size + (48 << 20))
        finally:
            parent.communicate()


if __name__ == "__main__":
    unittest.main()
