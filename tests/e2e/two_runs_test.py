"""Two jobs are started in one folder, at nearly the same time: one trains, the other names it and leaves."""

import random
import subprocess
import time
import unittest

import checkpoint_files
import harness

STEPS = 6
IN_USE = 69
# How often; the second starts up to half a second after the first.
STARTS = 50 if harness.NIGHTLY else 8
# Whoever trains is still there when the other looks, however slow that one starts.
STAYS = "step.begin:0:1:delay=4000"


class TwoRuns(harness.Job):
    def test_one_of_two_trains(self):
        chance = random.Random(time.time_ns())
        for start in range(STARTS):
            skew = chance.choice([0, chance.random() * 0.5])
            with self.subTest(start=start, skew=skew):
                name = f"run_{start}"
                config = self.config(name, trainer__total_training_steps=STEPS, trainer__save_freq=1,
                                     trainer__max_ckpts_to_keep=2)  # fmt: skip
                jobs = []
                for i in range(2):
                    jobs.append(
                        subprocess.Popen([harness.KEEL, "train", str(config)], stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True,
                                         env={**harness.environment(), "KEEL_FAILPOINT": STAYS})
                    )  # fmt: skip
                    self.addCleanup(harness.end_with_children, jobs[i])
                    time.sleep(skew if i == 0 else 0)
                outputs = [job.communicate(timeout=harness.LIMIT_S)[0] for job in jobs]
                codes = [job.returncode for job in jobs]
                self.assertEqual(sorted(codes), [0, IN_USE], outputs)
                winner = jobs[codes.index(0)]
                self.assertRegex(outputs[codes.index(IN_USE)], rf"{name} is in use.*pid {winner.pid}\b")
                self.assertEqual(sorted(self.metrics(name)), list(range(1, STEPS + 1)))
                self.assertEqual(checkpoint_files.steps(self.run_dir(name)), [STEPS - 1, STEPS])
                self.assertEqual(checkpoint_files.latest(self.run_dir(name)), STEPS)
                verified = harness.keel("ckpt", "verify", self.run_dir(name))
                self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)


if __name__ == "__main__":
    unittest.main()
