"""RL's controls: what must not learn does not, and what must be there for learning is.

Without a learning rate nothing drifts, over many updates of the rollout. With the sign of the reward flipped
the reward falls. Learning from responses of the first policy alone, as with a rollout that is never
updated, reaches less.
"""

import json
import os
import signal
import statistics
import sys
import unittest

import torch
import transformers

import checkpoint_files
import harness
from rl_test import GAP, KL, SCORE, RlJob

# The exact rule, its sign flipped.
VERIFIER = """
import json, sys
for line in sys.stdin:
    sample = json.loads(line)
    right = sample["response"].strip() == str(sample["ground_truth"]).strip()
    print(json.dumps({"id": sample["id"], "score": -1.0 if right else 0.0}), flush=True)
"""
STEPS = 60
NO_RATE = 0.0


def in_double_and_single(model):
    return [
        transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager")
        for dtype in (torch.float64, torch.float32)
    ]


def distances_to_double(exact, single, dump):
    """The largest distances of a step's log-probabilities to those of transformers in float64: the rollout's, and
    transformers' own in float32."""
    rollout, own = 0.0, 0.0
    for row in harness.read_jsonl(dump):
        prompt, response = row["prompt_ids"], torch.tensor(row["response_ids"])
        ids = torch.tensor([prompt + row["response_ids"]])
        with torch.no_grad():
            of_exact, of_single = (
                torch.log_softmax(one(ids).logits[0, len(prompt) - 1 : -1], -1).gather(1, response[:, None])[:, 0].double()
                for one in (exact, single)
            )
        rollout = max(rollout, float((torch.tensor(row["rollout_log_probs"]).double() - of_exact).abs().max()))
        own = max(own, float((of_single - of_exact).abs().max()))
    return rollout, own


# Scores that differ for the first prompts alone.
FADING = """
import json, sys
for line in sys.stdin:
    sample = json.loads(line)
    first = int(sample["ground_truth"]) < 8
    print(json.dumps({"id": sample["id"], "score": float(len(set(sample["response"]))) if first else 1.0}), flush=True)
"""


# Every second row is one whose responses all have the same score.
HALF = FADING.replace("< 8", "% 2 == 0")


class Filter(RlJob):
    def test_epochs_are_passes_over_the_prompts_however_many_a_step_takes(self):
        rows = [{"prompt": f"{i:02d}=", "answer": str(i), "data_source": "copy"} for i in range(32)]
        (self.folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        changes = {"trainer__total_training_steps": None, "trainer__total_epochs": 1, "trainer__save_freq": 2, "data__train_batch_size": 4,
                   "reward": {"type": "command", "command": [sys.executable, "-c", HALF]}, "algorithm__filter_groups": {"enable": True}}  # fmt: skip
        self.train(self.rl("once", **changes))
        batches = [self.steps("once")[step]["rollout/gen_batches"] for step in sorted(self.steps("once"))]
        self.assertLess(len(batches), 8)
        self.assertGreaterEqual(sum(batches), 8)
        self.assertLess(sum(batches[:-1]), 8)
        # How long the run is shows as it goes on.
        totals = [line["total_steps"] for line in harness.read_jsonl(self.run_dir("once") / "metrics.jsonl") if "total_steps" in line]
        self.assertEqual((len(totals), totals[-1]), (len(batches), len(batches)))
        self.assertGreater(totals[0], totals[-1])
        # What is killed ends where it would have ended.
        died = self.start(self.rl("killed", **changes), failpoint="step.begin:0:3:kill")
        self.assertEqual(died.wait(harness.LIMIT_S), -signal.SIGKILL)
        self.train(self.rl("killed", **changes))
        for name in ("actor/pg_loss", "actor/grad_norm"):
            self.assertEqual(*({step: data[name] for step, data in self.steps(run).items()} for run in ("killed", "once")))

    def test_a_step_that_finds_no_groups_is_left_when_the_run_is_asked_to_stop(self):
        rows = [{"prompt": f"{i:02d}=", "answer": str(i), "data_source": "copy"} for i in range(64)]
        (self.folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        name = "fading"
        config = self.rl(name, trainer__total_training_steps=3, trainer__save_freq=10, data__shuffle=False, data__train_batch_size=4,
                         reward={"type": "command", "command": [sys.executable, "-c", FADING]},
                         algorithm__filter_groups={"enable": True})  # fmt: skip
        for ranks in (2, 1):
            process = self.start(config, ranks=ranks)
            self.wait_until(lambda: "and goes on" in self.log(), "a warning of the filter", process)
            os.kill(process.pid, signal.SIGTERM)
            self.assertEqual(process.wait(harness.LIMIT_S), 75, self.log()[-3000:])
            self.assertIn("is left, the next start takes its prompts again", self.log())
            done = len(self.steps(name))
            self.assertGreater(done, 0)
            self.assertEqual(checkpoint_files.latest(self.run_dir(name)), done)
            (self.folder / "log.txt").unlink()
        # All is there to go on with.
        self.train(config, "algorithm.filter_groups.enable=false")
        self.assertEqual(sorted(self.steps(name)), [1, 2, 3])


class Controls(RlJob):
    def run_of(self, name, **changes):
        self.train(
            self.rl(
                name,
                **{
                    "trainer__total_training_steps": STEPS,
                    "trainer__test_freq": STEPS,
                    "data__train_batch_size": 16,
                    "actor_rollout_ref__model": {"path": self.model},
                    "actor_rollout_ref__rollout__n": 8,
                    "actor_rollout_ref__rollout__val_kwargs": {"n": 1, "do_sample": False},
                    "actor_rollout_ref__actor__optim__lr": 1e-3,
                    "actor_rollout_ref__actor__optim__min_lr": 0.0,
                    "actor_rollout_ref__actor__optim__lr_decay_style": "constant",
                    **changes,
                },
            )
        )
        return [data[SCORE] for _, data in sorted(self.steps(name).items())]

    def validated(self, name):
        records = harness.read_jsonl(self.run_dir(name) / "metrics.jsonl")
        return [r["data"]["val-core/all/reward/mean"] for r in records if "val-core/all/reward/mean" in r["data"]]

    def test_without_a_learning_rate_nothing_drifts(self):
        self.model = self.warm_up(60)
        said, dump = self.folder / "said", self.folder / "dump"
        self.run_of(
            "still", trainer__total_training_steps=20, trainer__test_freq=20, trainer__val_before_train=True,
            trainer__validation_data_dir=str(said), trainer__rollout_data_dir=str(dump), actor_rollout_ref__actor__optim__lr=NO_RATE,
        )  # fmt: skip
        distances, models = [], in_double_and_single(self.model)
        for step, data in sorted(self.steps("still").items())[:: 1 if harness.NIGHTLY else 4]:
            rollout, torch_s = distances_to_double(*models, dump / f"{step}.jsonl")
            distances.append(rollout)
            self.assertLessEqual(rollout, 1e-5)
            # The trainer computes with torch, whose own rounding may be as large on some processors.
            self.assertLessEqual(data[GAP], 1e-5 + torch_s)
            self.assertEqual(data[KL], 0.0)
        # Rounding alone, of which single steps have more or less.
        half = len(distances) // 2
        self.assertLessEqual(statistics.median(distances[half:]), 2 * statistics.median(distances[:half]))
        first, last = (
            [row["response_ids"] for row in harness.read_jsonl(said / f"{step}.jsonl")] for step in (0, 20)
        )
        self.assertTrue(first)
        self.assertEqual(first, last)

    def test_the_reward_falls_when_its_sign_is_flipped(self):
        self.model = self.warm_up(60)
        program = self.folder / "verifier.py"
        program.write_text(VERIFIER)
        scores = self.run_of(
            "flipped", reward__type="command", reward__command=[sys.executable, str(program)],
            actor_rollout_ref__actor__ppo_mini_batch_size=4,
        )  # fmt: skip
        right = [-score for score in scores]
        self.assertGreaterEqual(sum(right[:3]) / 3, 0.03, "nothing to unlearn")
        self.assertLessEqual(sum(right[-10:]) / 10, 0.25 * sum(right[:3]) / 3, right)

    @harness.nightly
    def test_without_updates_of_the_rollout_it_learns_less(self):
        # A model that is right now and then, and a rate at which each of six seeds learns steadily; judged by samples,
        # as its likeliest answers soon are all right either way.
        self.model = self.warm_up(31)
        mini = {
            "trainer__total_training_steps": 100, "trainer__test_freq": 100, "actor_rollout_ref__actor__optim__lr": 4e-4,
            "actor_rollout_ref__actor__ppo_mini_batch_size": 4,
            "actor_rollout_ref__rollout__val_kwargs": {"n": 8, "do_sample": True, "temperature": 1.0},
        }  # fmt: skip
        self.run_of("synced", **mini)
        # Responses of the first policy to the same prompts, which is what a rollout gives that is never updated.
        dump = str(self.folder / "dump")
        still = {"actor_rollout_ref__actor__optim__lr": NO_RATE, "trainer__test_freq": -1}
        self.run_of("first", trainer__rollout_data_dir=dump, **{**mini, **still})
        self.run_of("stale", trainer__rollout_replay_dir=dump, **mini)
        [synced], [stale] = self.validated("synced"), self.validated("stale")
        self.assertGreaterEqual(synced, stale + 0.1, "the rollout's weights make no difference")


class Batches(RlJob):
    """Which prompts a step takes, and what it is given for them."""

    def test_a_replay_of_filtered_steps_takes_the_prompts_that_they_took(self):
        changes = {"trainer__total_training_steps": None, "trainer__total_epochs": 1, "trainer__save_freq": 1, "reward__format_score": 0.5,
                   "reward__format_pattern": "[ -~].*", "algorithm__filter_groups": {"enable": True}}  # fmt: skip
        dumps = str(self.folder / "dumps")
        self.train(self.rl("first", **changes, trainer__rollout_data_dir=dumps))
        self.train(self.rl("again", **changes, trainer__rollout_replay_dir=dumps))
        last = max(self.steps("first"))
        consumed = [
            {step: json.loads((self.run_dir(name) / f"global_step_{step}/data_state.json").read_text())["samples_consumed"] for step in self.steps(name)}
            for name in ("first", "again")
        ]
        self.assertEqual(*consumed)
        self.assertGreater(consumed[0][last], 8 * last)
        self.assertEqual(checkpoint_files.digests(self.run_dir("again") / f"global_step_{last}"),
                         checkpoint_files.digests(self.run_dir("first") / f"global_step_{last}"))  # fmt: skip

    def test_prompts_for_less_than_half_a_batch_are_a_step(self):
        rows = (self.folder / "train.jsonl").read_text().splitlines(keepends=True)
        (self.folder / "train.jsonl").write_text("".join(rows[:3]))
        for name, changes in {"plain": {}, "filtered": {"algorithm__filter_groups": {"enable": True, "max_num_gen_batches": 50}}}.items():
            self.train(self.rl(name, trainer__total_training_steps=None, trainer__total_epochs=1, trainer__save_freq=1, reward__format_score=0.5,
                               reward__format_pattern="[ -~].*", **changes))  # fmt: skip
            self.assertEqual(checkpoint_files.steps(self.run_dir(name)), [1])

    def test_the_greedy_baseline_is_shaped_as_the_samples_are(self):
        """Where samples are the likeliest tokens, too, each scores what its baseline does."""
        dumps = self.folder / "dumps"
        self.train(self.rl("remax", trainer__total_training_steps=2, trainer__rollout_data_dir=str(dumps), algorithm__adv_estimator="remax",
                           actor_rollout_ref__rollout__top_k=1, reward__overlong_buffer={"enable": True, "len": 4}))  # fmt: skip
        rows = [row for step in (1, 2) for row in harness.read_jsonl(dumps / f"{step}.jsonl")]
        self.assertTrue(any(row["score"] < row["verified"] for row in rows))
        self.assertEqual([row["baseline"] for row in rows], [row["score"] for row in rows])

    def test_a_rank_that_works_is_waited_for_and_one_that_hangs_is_named(self):
        """Longer than the deadline of a wait for a peer: a replica that generates slowly, and verifiers that do."""
        (self.folder / "slow.py").write_text(VERIFIER.replace("for line", "import time\nfor line").replace("    right", "    time.sleep(0.25)\n    right"))
        verifiers = {"reward__type": "command", "reward__command": [sys.executable, str(self.folder / "slow.py")], "reward__timeout_seconds": 2,
                     "reward__max_retries": 0, "reward__num_workers": 1, "reward__batch_size": 1}  # fmt: skip
        for name, failpoint, changes in (("generates", "rollout.step:1:*:delay=1000", {}), ("scores", None, verifiers)):
            with self.subTest(name):
                config = self.rl(name, trainer__total_training_steps=1, trainer__save_freq=-1, trainer__deadline_seconds=3, **changes)
                job = self.start_command("launch", "--nproc-per-node", "2", "train", config, failpoint=failpoint)
                self.assertEqual(job.wait(timeout=harness.LIMIT_S), 0, self.log()[-3000:])
        config = self.rl("hangs", trainer__total_training_steps=1, trainer__save_freq=-1, trainer__deadline_seconds=3)
        job = self.start_command("launch", "--nproc-per-node", "2", "train", config, failpoint="rollout.step:1:2:stop")
        self.assertEqual(job.wait(timeout=harness.LIMIT_S), 69, self.log()[-3000:])
        self.assertIn("the responses of all replicas: rank 1 has said nothing for", self.log())


if __name__ == "__main__":
    unittest.main()
