"""Which checkpoints a run leaves behind, and what the tools make of them.

What is kept is the union of the newest, the best by the validation loss of that very step, multiples of
keep_every_steps and the pinned ones, over restarts; what someone reads or holds stays. A resharded
checkpoint continues the training bit for bit.
"""

import fcntl
import json
import math
import re
import subprocess
import unittest

import checkpoint_files
import harness

VALIDATION = "validation_metrics/global_avg_loss"


class Retention(harness.Job):
    def configure(self, name, **changes):
        defaults = {
            "trainer__total_training_steps": 24,
            "trainer__save_freq": 2,
            "trainer__test_freq": 2,
            "trainer__max_ckpts_to_keep": 1,
            "data__val_split": 0.2,
            # Up and down, so that the best ones are not the newest.
            "actor_rollout_ref__actor__optim__lr": 0.05,
        }
        return self.config(name, **{**defaults, **changes})

    def losses(self, name):
        records = harness.read_jsonl(self.run_dir(name) / "metrics.jsonl")
        return {r["step"]: r["data"][VALIDATION] for r in records if VALIDATION in r["data"]}

    def manifest(self, name, step):
        return json.loads((self.run_dir(name) / f"global_step_{step}" / "manifest.json").read_text())

    def ckpt(self, command, *arguments, expect=0):
        done = harness.keel("ckpt", command, *arguments)
        self.assertEqual(done.returncode, expect, f"{done.args}\n{done.stdout}\n{done.stderr}")
        return done

    def best(self, name, count, among=None):
        losses = {s: v for s, v in self.losses(name).items() if among is None or s in among}
        # Of equal ones the newer.
        return sorted(losses, key=lambda step: (losses[step], -step))[:count]

    def test_values_of_another_metric_are_not_compared(self):
        """Losses are lower than perplexities: no checkpoint of the second metric would ever be the best."""
        self.train(self.configure("run", trainer__total_training_steps=4, trainer__keep_best_ckpts=1))
        perplexity = {"trainer__keep_best_ckpts": 1, "trainer__keep_best_metric": "val/perplexity"}
        for last in (20, 28):
            done = self.train(self.configure("run", trainer__total_training_steps=last, **perplexity))
            self.assertEqual("of another metric, and is not compared" in done.stdout + done.stderr, last == 20)
        kept = {step: self.manifest("run", step)["metric"] for step in checkpoint_files.steps(self.run_dir("run"))}
        later = {step: loss for step, loss in self.losses("run").items() if step > 4}
        self.assertEqual(sorted(kept), sorted({28, min(later, key=lambda step: (later[step], -step))}))
        for step, metric in kept.items():
            self.assertAlmostEqual(metric, math.exp(later[step]), delta=1e-3 * metric)

    def easy_and_hard_rows(self):
        rows = {name: self.folder / f"{name}.jsonl" for name in ("easy", "hard")}
        rows["easy"].write_text(self.data.read_text())
        rows["hard"].write_text(json.dumps({"text": "".join(chr(33 + i * 37 % 90) for i in range(60))}) + "\n")
        return rows

    def test_values_of_other_rows_are_not_compared(self):
        """Rows that were learnt have lower losses: no checkpoint that was judged by others would ever be the best."""
        rows = self.easy_and_hard_rows()
        for name, last in (("easy", 8), ("hard", 16), ("hard", 20)):
            done = self.train(self.configure("run", trainer__total_training_steps=last, trainer__keep_best_ckpts=1,
                                             data__val_files=[str(rows[name])], data__val_split=0.0))  # fmt: skip
            self.assertEqual("is of other validation rows or rewards" in done.stdout + done.stderr, last == 16)
        losses = self.losses("run")
        self.assertLess(losses[8], min(loss for step, loss in losses.items() if step > 8))
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), sorted({20, *self.best("run", 1, range(9, 21))}))

    def test_prune_judges_as_the_checkpoints_were(self):
        """By the newest one's metric alone, and by which of its values the run took for the best."""
        all_stay = {"trainer__max_ckpts_to_keep": 20, "trainer__keep_best_ckpts": 1}
        self.train(self.configure("run", trainer__total_training_steps=6, **all_stay))
        highest = {"trainer__keep_best_metric": "val/perplexity", "trainer__keep_best_mode": "max"}
        self.train(self.configure("run", trainer__total_training_steps=14, **all_stay, **highest))
        later = {step: loss for step, loss in self.losses("run").items() if step > 6}
        worst = max(later, key=lambda step: (later[step], step))
        done = self.ckpt("prune", "--keep-latest", 1, "--keep-best", 1, self.run_dir("run"))
        self.assertEqual(done.stdout.count("saved with another metric than the newest, and is not compared"), 3)
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), sorted({14, worst}))

    def test_prune_compares_values_of_the_same_rows(self):
        rows = self.easy_and_hard_rows()
        for last, name in ((8, "easy"), (16, "hard")):
            self.train(self.configure("run", trainer__total_training_steps=last, trainer__max_ckpts_to_keep=20,
                                      data__val_files=[str(rows[name])], data__val_split=0.0))  # fmt: skip
        losses = {step: loss for step, loss in self.losses("run").items() if step > 8}
        done = self.ckpt("prune", "--keep-latest", 1, "--keep-best", 1, self.run_dir("run"))
        self.assertEqual(done.stdout.count("saved with other validation rows or rewards than the newest, and is not compared"), 4)
        best = min(losses, key=lambda step: (losses[step], -step))
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), sorted({16, best}))

    def test_keeps_the_newest_the_best_the_periodic_and_the_pinned(self):
        self.train(self.configure("run", trainer__keep_best_ckpts=2, trainer__keep_every_steps=10))
        self.assertEqual(sorted(self.losses("run")), list(range(2, 25, 2)))
        best = self.best("run", 2)
        kept = sorted({24, 10, 20, *best})
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), kept)
        for step in kept:
            self.assertEqual(self.manifest("run", step)["metric"], self.losses("run")[step])

        # A restart, with other rules and a pin: the best of those that are still there.
        self.ckpt("pin", self.run_dir("run") / "global_step_10")
        self.train(
            self.configure("run", trainer__total_training_steps=28, trainer__keep_best_ckpts=1),
        )
        best = self.best("run", 1, among={*kept, 26, 28})
        kept = sorted({28, 10, *best})
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), kept)

        listed = json.loads(self.ckpt("ls", "--json", self.run_dir("run")).stdout)
        self.assertEqual(sorted(one["step"] for one in listed), kept)
        for one in listed:
            self.assertEqual(one["pinned"], one["step"] == 10)
            self.assertTrue(one["valid"])
            self.assertIsInstance(one["blocked_s"], float)

        self.ckpt("unpin", self.run_dir("run") / "global_step_10")
        self.ckpt("prune", "--keep-latest", 1, self.run_dir("run"))
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [28])
        self.ckpt("verify", self.run_dir("run"))

    def test_a_diverging_run_keeps_what_came_before(self):
        steady = {"trainer__max_ckpts_to_keep": 2, "trainer__test_freq": -1, "trainer__total_training_steps": 8}
        self.train(self.configure("run", **steady))
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [6, 8])
        # One step ruins the weights; from then on no loss is finite.
        ruin = {**steady, "trainer__total_training_steps": 40, "actor_rollout_ref__actor__optim__lr": 1e30}
        done = harness.keel(*self.command(self.configure("run", **ruin), 1))
        self.assertEqual(done.returncode, 65, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertIn("is not saved: loss or gradient norm is not finite", done.stdout + done.stderr)
        given_up = r"not finite in (\d+) updates in a row up to step (\d+)"
        expected = re.search(given_up, done.stderr).groups()
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [6, 8])
        # A run that ends there saves where it ended, and still removes nothing.
        ruin["trainer__total_training_steps"] = 11
        self.train(self.configure("run", **ruin))
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [6, 8, 11])
        self.train(self.configure("run", **ruin))  # nor does a start that finds nothing left to do
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [6, 8, 11])
        # One that goes on from there has not forgotten what was skipped.
        ruin["trainer__total_training_steps"] = 40
        done = harness.keel(*self.command(self.configure("run", **ruin), 1))
        self.assertEqual(re.search(given_up, done.stderr).groups(), expected)
        self.assertEqual(self.metrics("run")[12]["skipped_steps"], int(expected[0]) - (int(expected[1]) - 12))

    def test_a_start_with_nothing_left_to_do_ends_what_a_killed_save_began(self):
        config = self.configure("run", trainer__total_training_steps=8, trainer__max_ckpts_to_keep=2, trainer__test_freq=-1)
        environment = {**harness.environment(), "KEEL_FAILPOINT": "save.tracker:0:4:kill"}
        killed = subprocess.run([harness.KEEL, *self.command(config, 2)], capture_output=True, text=True,
                                timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
        self.assertNotEqual(killed.returncode, 0)
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [4, 6, 8])
        self.assertEqual(checkpoint_files.latest(self.run_dir("run")), 6)
        done = self.train(config, ranks=2)
        self.assertIn("removed global_step_4, which an earlier save did not come to", done.stdout + done.stderr)
        self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [6, 8])
        self.assertEqual(checkpoint_files.latest(self.run_dir("run")), 8)

    def test_leaves_alone_what_is_read_and_what_a_run_holds(self):
        config = self.configure("run", trainer__total_training_steps=100000, trainer__test_freq=-1)
        process = self.start(config)
        self.wait_until(lambda: checkpoint_files.steps(self.run_dir("run")), "a first save", process)
        # As a reader does; the one that is caught may have gone before the lock is taken.
        held = None

        def caught():
            nonlocal held
            for step in checkpoint_files.steps(self.run_dir("run")):
                path = self.run_dir("run") / f"global_step_{step}" / "manifest.json"
                try:
                    file = open(path, encoding="utf-8")
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    continue
                if path.exists():
                    self.addCleanup(file.close)
                    held = (step, file)
                    return True
            return False

        self.wait_until(caught, "a lock on a checkpoint", process)
        step, file = held
        self.wait_until(
            lambda: max(checkpoint_files.steps(self.run_dir("run")), default=0) > step + 6, "three more", process
        )
        self.assertIn(step, checkpoint_files.steps(self.run_dir("run")))

        refused = harness.keel("ckpt", "prune", "--keep-latest", "1", self.run_dir("run"))
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("in use", refused.stderr)
        self.assertIn(str(process.pid), refused.stderr)

        file.close()
        self.wait_until(
            lambda: step not in checkpoint_files.steps(self.run_dir("run")), "the removal of what was read", process
        )

    def test_a_resharded_checkpoint_goes_on_bit_for_bit(self):
        layout = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2}
        self.train(self.configure("run", trainer__max_ckpts_to_keep=None, **layout), ranks=2)
        source = self.run_dir("run") / "global_step_20"
        self.ckpt("reshard", "--world", 3, source, self.run_dir("resharded"))
        target = self.run_dir("resharded") / "global_step_20"
        self.assertEqual(len(list((target / "actor/model").iterdir())), 3)
        self.assertEqual(checkpoint_files.digests(target), checkpoint_files.digests(source))
        self.ckpt("diff", source, target)
        self.ckpt("diff", source, self.run_dir("run") / "global_step_22", expect=1)
        self.train(
            self.configure(
                "on",
                trainer__resume_mode="resume_path",
                trainer__resume_from_path=str(target),
                **layout,
            ),
            ranks=2,
        )
        last = "global_step_24"
        self.ckpt("diff", "--scope", "actor/model", self.run_dir("run") / last, self.run_dir("on") / last)
        self.ckpt("diff", "--scope", "actor/optimizer", self.run_dir("run") / last, self.run_dir("on") / last)
        straight, resumed = self.metrics("run"), self.metrics("on")
        for step in resumed:
            self.assertEqual(harness.stable(resumed[step]), harness.stable(straight[step]))


if __name__ == "__main__":
    unittest.main()
