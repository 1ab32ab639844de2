"""Each loss and each estimator of advantages in the real program: it trains, a choice that looks at the whole batch is the
same under every layout, and what a choice needs is asked for at the start."""

import math
import unittest

from rl_rewards_test import Small

LOSS = "actor_rollout_ref__actor__policy_loss__"
# Scores that differ within a group, with two values beside them.
# By what was said, not by whose turn it was among several verifiers: the same training every time.
SCORES = "n = sum(x['response'].encode()); print(json.dumps({'id': x['id'], 'score': n % 3, 'form': n % 2, 'length': len(x['response'])}), flush=True)"
LOSSES = [
    ("dppo_tv", {}), ("dppo_kl", {}), ("sapo", {}), ("geo_mean", {}), ("vespo", {}),
    ("dro", {"dro_beta": 0.5}),
    ("clip_cov", {"clip_cov_ratio": 0.3, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0}),
    ("kl_cov", {"kl_cov_ratio": 0.3}),
]  # fmt: skip
ESTIMATORS = [
    ("opo", {}), ("grpo_passk", {}), ("grpo_vectorized", {}), ("rloo_vectorized", {}),
    ("gdpo", {"algorithm__gdpo_reward_keys": ["form", "length", "reward"], "algorithm__gdpo_reward_weights": [1.0, 0.5, 2.0]}),
    ("optimal_token_baseline", {"algorithm__rollout_correction__rollout_is": "token"}),
    ("tir_optimal_token_baseline", {}),
    ("grpo", {"algorithm__rollout_correction": {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "sequence"}}),
]  # fmt: skip
# Two updates of a step's prompts, twice: the ratio leaves 1.
FOUR_UPDATES = {
    "data__train_batch_size": 4, "actor_rollout_ref__actor__ppo_mini_batch_size": 2, "actor_rollout_ref__actor__ppo_epochs": 2,
    "actor_rollout_ref__actor__optim__lr": 1e-2, "actor_rollout_ref__actor__optim__lr_warmup_steps": 0,
}  # fmt: skip


class Trains(Small):
    def test_with_each_loss_and_each_estimator(self):
        verifier = self.program(SCORES)
        for (loss, own), (estimator, options) in zip(LOSSES, ESTIMATORS, strict=True):
            if "algorithm__rollout_correction" in options:
                loss, own = "bypass_mode", {}
            with self.subTest(loss=loss, estimator=estimator):
                name = f"{loss}_{estimator}"
                config = self.small(
                    name, algorithm__adv_estimator=estimator, **{LOSS + "loss_mode": loss}, **FOUR_UPDATES, **verifier, **options,
                    **{LOSS + key: value for key, value in own.items()},
                )  # fmt: skip
                self.train(config)
                steps = self.steps(name)
                self.assertEqual(sorted(steps), [1, 2])
                for data in steps.values():
                    self.assertEqual(data["training/skipped_updates"], 0)
                    self.assertTrue(math.isfinite(data["actor/pg_loss"]), data["actor/pg_loss"])
                    self.assertGreater(data["actor/grad_norm"], 0)
                    self.assertNotEqual(data["critic/advantages/max"], data["critic/advantages/min"])
                    self.assertNotEqual(data["actor/ppo_kl"], 0)


class LooksAtTheWholeBatch(Small):
    def test_and_finds_the_same_in_any_layout(self):
        verifier = self.program(SCORES)
        dump = str(self.folder / "dump")
        # The last: tokens by entropy, of a loss with a bonus and a divergence of its own.
        by_entropy = {"top_entropy_quantile": 0.3}
        # And one that rejects by what each update's own forward finds.
        rejecting = {"algorithm__rollout_correction": {
            "bypass_mode": True, "rollout_rs": "token_k2,seq_mean_k1", "rollout_rs_threshold": "0.02,0.9_1.1"}}  # fmt: skip
        for loss, own in LOSSES[-2:] + [("vanilla", by_entropy), ("bypass_mode", rejecting)]:
            # At a rate at which rounding grows by no more than it is looked for: ten times that gives 4e-4.
            of_loss = own if own is rejecting else {LOSS + key: value for key, value in own.items()}
            changes = {LOSS + "loss_mode": loss, **of_loss, **FOUR_UPDATES, **verifier,
                       "actor_rollout_ref__actor__optim__lr": 1e-3}  # fmt: skip
            if own is by_entropy:
                changes |= {"actor_rollout_ref__actor__" + key: value for key, value in
                            (("entropy_coeff", 0.1), ("use_kl_loss", True), ("use_bias_correction_kl", True),
                             ("use_adaptive_entropy", True), ("entropy_target", 100.0), ("entropy_coeff_delta", 0.05))}  # fmt: skip
            self.train(self.small(f"{loss}_one", trainer__rollout_data_dir=dump, **changes))
            one = self.steps(f"{loss}_one")
            if loss == "clip_cov":
                # Of 48 tokens of an update at most 0.3.
                self.assertGreater(one[1]["actor/pg_clipfrac"], 0.2)
                self.assertLessEqual(one[1]["actor/pg_clipfrac"], 0.3)
            keys = ["actor/pg_loss", "actor/grad_norm", "actor/pg_clipfrac", "actor/ppo_kl"]
            if own is rejecting:
                keys += ["actor/rollout_rs_masked_fraction"] + [
                    "rollout_corr/" + key for key in ("kl", "k3_kl", "rollout_rs_masked_fraction", "rollout_rs_token_k2_mean")]  # fmt: skip
                for data in one.values():
                    self.assertGreater(data["actor/rollout_rs_masked_fraction"], 0)
                    self.assertLess(data["actor/rollout_rs_masked_fraction"], 1)
                    self.assertGreater(data["rollout_corr/k3_kl"], 0)
            for name, ranks, more in [
                ("small", 1, {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 1}),
                ("dp2", 2, {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 1}),
                ("tp2", 2, {"megatron": {"tensor_model_parallel_size": 2}}),
            ]:
                with self.subTest(loss=loss, layout=name):
                    run = f"{loss}_{name}"
                    self.train(self.small(run, trainer__rollout_replay_dir=dump, **changes, **more), ranks=ranks)
                    for step, data in self.steps(run).items():
                        for key in keys:
                            expected = one[step][key]
                            self.assertAlmostEqual(data[key], expected, delta=2e-4 * max(1.0, abs(expected)), msg=key)


class Follows(Small):
    def test_the_entropys_weight_is_steered_from_update_to_update(self):
        """Two steps of four updates: larger after each below the target, and then at its largest; smaller after each above."""
        actor = "actor_rollout_ref__actor__"
        for name, target, expected in (("below", 100.0, [0.3, 0.45]), ("above", 0.0, [0.05, 0.0])):
            changes = {actor + "use_adaptive_entropy": True, actor + "entropy_coeff": 0.1, actor + "entropy_coeff_delta": 0.05 if name == "below" else 0.0125,
                       actor + "entropy_coeff_max": 0.45, actor + "entropy_target": target}  # fmt: skip
            self.train(self.small(name, **changes, **FOUR_UPDATES, **self.program(SCORES)))
            found = [data["actor/entropy_coeff"] for _, data in sorted(self.steps(name).items())]
            for one, wanted in zip(found, expected, strict=True):
                self.assertAlmostEqual(one, wanted, places=6)

    def test_its_steering_changes_no_other_sum_of_the_step(self):
        """Each update is one micro-batch on each of two ranks: its sums over the ranks, by which the weight is steered, are not
        those of the step."""
        actor = "actor_rollout_ref__actor__"
        changes = {**FOUR_UPDATES, **self.program(SCORES), actor + "ppo_micro_batch_size_per_gpu": 2}
        self.train(self.small("fixed", **changes), ranks=2)
        # Above the target the bonus weighs nothing.
        steered = {actor + "use_adaptive_entropy": True, actor + "entropy_target": 0.0}
        self.train(self.small("steered", **changes, **steered), ranks=2)
        for step, fixed in self.steps("fixed").items():
            for key in ("actor/pg_loss", "actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac", "actor/grad_norm"):
                self.assertEqual(self.steps("steered")[step][key], fixed[key], key)

    def test_sequences_that_went_too_far_have_no_negative_loss(self):
        changes = {**FOUR_UPDATES, **self.program(SCORES)}
        for name, threshold, low, high in (("all", -100.0, 0.05, 0.95), ("none", 100.0, 0.0, 0.0)):
            self.train(self.small(name, **changes, **{LOSS + "off_policy_mask_threshold": threshold}))
            for data in self.steps(name).values():
                # Those of a negative advantage, or none.
                self.assertGreaterEqual(data["actor/off_policy_masked"], low)
                self.assertLessEqual(data["actor/off_policy_masked"], high)
        self.train(self.small("plain", **changes))
        self.assertEqual(self.steps("plain")[2]["actor/grad_norm"], self.steps("none")[2]["actor/grad_norm"])
        self.assertNotEqual(self.steps("plain")[2]["actor/grad_norm"], self.steps("all")[2]["actor/grad_norm"])

    def test_the_critics_mean_is_divided_by_the_same_length(self):
        found = {}
        for mode in ("seq-mean-token-sum", "seq-mean-token-sum-norm"):
            changes = {"algorithm__adv_estimator": "gae", "critic__loss_agg_mode": mode, "data__max_response_length": 6}
            self.train(self.small(mode, **changes, **self.program(SCORES)))
            found[mode] = self.steps(mode)[1]["critic/vf_loss"]
        self.assertAlmostEqual(found["seq-mean-token-sum-norm"] * 6 / found["seq-mean-token-sum"], 1, places=5)


class Refusals(Small):
    def test_what_a_choice_needs_is_named(self):
        for changes, text in (
            ({LOSS + "loss_mode": "dro"}, "policy_loss.dro_beta is not given"),
            ({LOSS + "kl_cov_ratio": 0.1}, "policy_loss.kl_cov_ratio is of policy_loss.loss_mode kl_cov alone"),
            ({LOSS + "loss_mode": "bypass_mode"}, "needs algorithm.rollout_correction.bypass_mode: true"),
            ({LOSS + "loss_mode": "clip-cov"}, "clip_cov"),
            ({LOSS + "loss_mode": "gspo", LOSS + "top_entropy_quantile": 0.2}, "top_entropy_quantile leaves single tokens out"),
            ({"actor_rollout_ref__actor__use_bias_correction_kl": True}, "use_bias_correction_kl is of the KL divergence"),
            ({"actor_rollout_ref__actor__entropy_target": 1.0}, "entropy_target is of use_adaptive_entropy"),
            ({"actor_rollout_ref__actor__use_adaptive_entropy": True, "actor_rollout_ref__actor__entropy_coeff": 2.0}, "not between entropy_coeff_min"),
            ({"actor_rollout_ref__ref__sync_ref_model": True}, "sync_ref_model is true, but there is no reference"),
            ({"algorithm__adv_estimator": "gdpo"}, "algorithm.gdpo_reward_keys"),
            ({"algorithm__adv_estimator": "grpo_passk", "actor_rollout_ref__rollout__n": 1}, "rollout.n to 2 or more"),
        ):
            with self.subTest(changes):
                code, text_of = self.run_of(self.small("refused", **changes))
                self.assertEqual(code, 78, text_of[-2000:])
                self.assertIn(text, text_of)

    def test_a_reward_that_the_verifier_does_not_give_ends_the_run(self):
        changes = {"algorithm__adv_estimator": "gdpo", "algorithm__gdpo_reward_keys": ["form", "style"]}
        code, text = self.run_of(self.small("missing", **changes, **self.program(SCORES)))
        self.assertNotEqual(code, 0)
        self.assertIn("algorithm.gdpo_reward_keys: the verifier gave no number style", text)
        self.assertIn("form, length", text)

    def test_a_score_that_no_fp32_holds_ends_the_run(self):
        code, text = self.run_of(self.small("infinite", **self.program(SCORES.replace("n % 3", "1e39"))))
        self.assertNotEqual(code, 0)
        self.assertIn("has a reward of inf: expected a number within fp32; the verifier's score is 1e+39", text)
        self.assertIn("of row", text)


if __name__ == "__main__":
    unittest.main()
