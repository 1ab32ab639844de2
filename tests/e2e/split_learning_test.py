"""RL that generates ahead of its training learns as well: from at most 0.3 to at least 0.9 with samples of weights that are up to four
steps old. Nightly with GRPO and PPO at three ages, three seeds of each."""

import unittest

import harness
import split_test

GRPO = {"actor_rollout_ref__actor__ppo_mini_batch_size": 4, "actor_rollout_ref__actor__ppo_epochs": 2}
PPO = {"algorithm__adv_estimator": "gae", "critic__optim__lr": 1e-3, "actor_rollout_ref__actor__ppo_mini_batch_size": 8,
       "actor_rollout_ref__actor__ppo_epochs": 2}  # fmt: skip


class SplitLearning(split_test.SplitJob):
    SCORED = {}

    def start(self, config):
        done = self.launch(config, 1, 1)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])

    def learns_ahead(self, name, model, age, steps, algorithm):
        correction = {"algorithm__rollout_correction__rollout_is": "token"} if age else {}
        self.learns(name, model, 1, steps, self.start, async_training__placement="split",
                    async_training__max_staleness=age, **correction, **algorithm)  # fmt: skip
        for seed in self.SEEDS:
            ages = [data["off_policy/max"] for data in self.steps(f"{name}_{seed}").values()]
            self.assertLessEqual(max(ages), age)
            if age:
                self.assertGreater(sum(ages) / len(ages), 0.5, "it did not generate ahead")

    def test_grpo_and_ppo_learn_from_older_samples(self):
        model = self.warm_up(36)
        for age in (0, 1, 4) if harness.NIGHTLY else (4,):
            with self.subTest(age=age):
                self.learns_ahead(f"grpo_{age}", model, age, 160, GRPO)
        for age in (0, 1, 4) if harness.NIGHTLY else (1,):
            with self.subTest(age=age):
                self.learns_ahead(f"ppo_{age}", model, age, 150, PPO)
        if harness.NIGHTLY:
            self.learns_ahead("grpo_kept_kv", model, 4, 160, {**GRPO, "async_training__recompute_kv": False})


if __name__ == "__main__":
    unittest.main()
