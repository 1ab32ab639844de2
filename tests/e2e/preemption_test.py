"""A signal that asks a run to stop may arrive anywhere in a step, and must disturb nothing of it."""

import random
import signal
import time
import unittest

import harness

# So many that each signal falls into another one, and no more: the run that is not stopped takes all of them, too.
SIGNALS = 10 if harness.NIGHTLY else 3
STEPS = 12 * SIGNALS


class AnywhereInAStep(harness.Job):
    def test_a_run_that_was_stopped_often_is_the_run_that_was_not(self):
        # Most of the time goes into matrix products, as in training that is worth it.
        changes = {
            "trainer__total_training_steps": STEPS,
            "trainer__save_freq": STEPS,
            "actor_rollout_ref__model__config__hidden_size": 512,
            "actor_rollout_ref__model__config__intermediate_size": 1408,
            "actor_rollout_ref__model__config__num_attention_heads": 32,
        }
        straight = self.config("straight", **changes)
        self.train(straight)
        expected = self.metrics("straight")
        self.assertEqual(sorted(expected), list(range(1, STEPS + 1)))

        config = self.config("stopped", **changes)
        chance = random.Random(time.time_ns())
        stopped = 0
        for i in range(SIGNALS):
            seen = len(self.metrics("stopped"))
            process = self.start(config, failpoint=f"step.begin:0:{STEPS // 3}:stop")  # not the whole run before the signal comes, however late
            self.wait_until(lambda s=seen: len(self.metrics("stopped")) > s, "a step", process)
            time.sleep(chance.random() * 0.2)
            harness.kill(process.pid, chance.choice([signal.SIGTERM, signal.SIGUSR1]))
            self.wait_until(lambda p=process: harness.kill(p.pid, signal.SIGCONT) or p.poll() is not None, "the end")
            self.assertIn(process.returncode, (75, 0), f"signal {i}: {self.log()[-3000:]}")
            if process.returncode == 0:
                break
            stopped += 1
        self.assertGreaterEqual(stopped, 2)
        self.train(config)
        found = self.metrics("stopped")
        self.assertEqual(sorted(found), sorted(expected))
        for step, data in expected.items():
            self.assertEqual(harness.stable(found[step]), harness.stable(data), f"step {step}")


if __name__ == "__main__":
    unittest.main()
