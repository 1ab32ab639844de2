"""Reinforcement learning of the real program: it learns, it resumes bit for bit from any point of a step, and what
is offloaded, how weights travel, or whether responses are replayed changes nothing."""

import json
import os
import pathlib
import random
import shutil
import unittest

import checkpoint_files
import harness

UNSTABLE = ("timing_s/", "timing_per_token_ms/", "perf/", "checkpoint/")
SCORE, KL, GAP = "critic/score/mean", "actor/ppo_kl", "training/rollout_log_probs_diff_max"
TP2_PP2 = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
OFFLOAD = {"param_offload": True, "grad_offload": True, "optimizer_offload": True}


def write_task(path, count, seed, key):
    """Two digits, to be said again; with the answer to check, or as a response to learn."""
    chance = random.Random(seed)
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(count):
            digits = "".join(chance.choice("0123456789") for _ in range(2))
            row = {"prompt": digits + "=", key: digits}
            out.write(json.dumps({**row, "data_source": "copy"} if key == "answer" else row) + "\n")


class RlJob(harness.Job):
    TASK = "digits"

    def setUp(self):
        super().setUp()
        write_task(self.folder / "train.jsonl", 120, 1, "answer")
        write_task(self.folder / "val.jsonl", 24, 2, "answer")

    def rl(self, name, megatron=None, **changes):
        return self.config(
            name,
            **{
                "trainer__task": "rl",
                "trainer__total_training_steps": 6,
                "trainer__logger": ["console", "jsonl"],
                "trainer__log_freq": 20,
                "data__train_files": [str(self.folder / "train.jsonl")],
                "data__val_files": [str(self.folder / "val.jsonl")],
                "data__max_prompt_length": 8,
                "data__max_response_length": 6,
                "data__train_batch_size": 8,
                "actor_rollout_ref__rollout__n": 4,
                "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 64,
                "actor_rollout_ref__actor__megatron": megatron or {},
                "reward__type": "exact",
                "algorithm__adv_estimator": "grpo",
                # On a host a sequence's bits never depend on its batch.
                **({"actor_rollout_ref__rollout__batch_invariant": True} if harness.DEVICE == "cuda" else {}),
                **changes,
            },
        )

    def steps(self, name):
        records = harness.read_jsonl(self.run_dir(name) / "metrics.jsonl")
        found = [r for r in records if "training/global_step" in r["data"]]
        steps = {r["step"]: r["data"] for r in found}
        self.assertEqual(len(steps), len(found), "a step stands twice in metrics.jsonl")
        return steps

    def stable(self, name):
        return {
            step: {k: v for k, v in data.items() if not k.startswith(UNSTABLE)}
            for step, data in self.steps(name).items()
        }

    def digests(self, name, step):
        return checkpoint_files.digests(self.run_dir(name) / f"global_step_{step}")

    def warm_up(self, steps):
        """Shows a model the task; returns where its weights lie. The same for all tests of a file, which train it once."""
        model = harness.shared_folder() / f"{self.TASK}_{steps}"
        if not model.exists():
            self.train(self.warm_up_config(steps))
            shutil.copytree(self.run_dir("warmup") / f"global_step_{steps}" / "actor" / "huggingface", model)
        return str(model)

    def warm_up_config(self, steps):
        write_task(self.folder / "warmup.jsonl", 400, 3, "response")
        return self.config(
            "warmup", trainer__task="sft", trainer__total_training_steps=steps, trainer__save_freq=steps,
            data__train_files=[str(self.folder / "warmup.jsonl")], data__train_batch_size=32,
            data__micro_batch_size_per_gpu=32, actor_rollout_ref__actor__optim__lr=3e-3,
            actor_rollout_ref__actor__optim__lr_decay_style="constant",
            actor_rollout_ref__actor__checkpoint__save_contents=["model", "optimizer", "extra", "hf_model"],
        )  # fmt: skip

    SEEDS = (1, 2, 3) if harness.NIGHTLY else (1,)

    def learns(self, name, model, ranks, steps, start=None, at_first=0.3, **changes):
        """From a model that was shown the task briefly, reward rises from at most `at_first` to at least 0.9. `start` runs a configuration."""
        for seed in self.SEEDS:
            run = f"{name}_{seed}"
            # Every seed of six learns steadily at this rate; at 1e-3 one in four breaks down on the way.
            settings = {"actor_rollout_ref__model": {"path": model}, "actor_rollout_ref__actor__optim__lr": 4e-4, **changes}
            config = self.rl(
                run, trainer__total_training_steps=steps, trainer__seed=seed, data__train_batch_size=16,
                actor_rollout_ref__rollout__n=8, actor_rollout_ref__actor__optim__lr_decay_style="cosine", **settings,
            )  # fmt: skip
            start(config) if start else self.train(config, ranks=ranks)
            scores = [data[SCORE] for _, data in sorted(self.steps(run).items())]
            self.assertLessEqual(sum(scores[:3]) / 3, at_first)
            self.assertGreaterEqual(sum(scores[-10:]) / 10, 0.9, scores[-20:])


class Resume(RlJob):
    def resumes(self, ranks, points, **changes):
        changes = {"trainer__save_freq": 2, "trainer__test_freq": 3, **changes}
        self.train(self.rl("straight", **changes), ranks=ranks)
        expected, last = self.stable("straight"), self.digests("straight", 6)
        for point in points:
            with self.subTest(killed_at=point):
                shutil.rmtree(self.run_dir("killed"), ignore_errors=True)
                config = self.rl("killed", **changes)
                os.environ["KEEL_FAILPOINT"] = point
                self.addCleanup(os.environ.pop, "KEEL_FAILPOINT", None)
                died = harness.keel(*self.command(config, ranks))
                del os.environ["KEEL_FAILPOINT"]
                self.assertNotEqual(died.returncode, 0)
                self.train(config, ranks=ranks)
                self.assertEqual(self.stable("killed"), expected)
                self.assertEqual(self.digests("killed", 6), last)

    def test_grpo_over_four_ranks_killed_anywhere_in_a_step(self):
        points = [
            "rollout.step:1:14:kill", "rl.rollout:0:4:kill", "rl.experience:3:5:kill", "step.update:2:5:kill",
            "sync.round:1:7:kill", "sync.done:0:4:kill", "save.write:2:2:kill", "commit.renamed:0:2:kill",
        ]  # fmt: skip
        self.resumes(4, points if harness.NIGHTLY else points[::2], megatron={**TP2_PP2, **OFFLOAD}, trainer__remove_previous_ckpt_in_save=True)

    def test_prompts_in_memory_and_on_the_disk(self):
        """Bit for bit the same, and a run goes on from the one to the other; overlong prompts are left out of both."""
        lines = (self.folder / "train.jsonl").read_text().splitlines()
        lines[10:10] = [json.dumps({"prompt": "0" * 20, "answer": "1", "data_source": "copy"})] * 3
        (self.folder / "train.jsonl").write_text("\n".join(lines) + "\n")
        changes = {"trainer__save_freq": 2, "trainer__test_freq": 3, "data__filter_overlong_prompts": True,
                   "data__val_split": 0.2, "data__val_files": [], "trainer__total_training_steps": 16,
                   "actor_rollout_ref__actor__optim__lr_decay_style": "constant"}  # fmt: skip
        cached = {**changes, "data__cache_dir": str(self.folder / "cache")}
        self.train(self.rl("memory", **changes), ranks=2)
        self.train(self.rl("cached", **cached), ranks=2)
        made = {path: path.stat().st_mtime_ns for path in (self.folder / "cache").rglob("*.tokens")}
        self.assertEqual(len(made), 1)
        folder = next(iter(made)).parent
        self.assertRegex(harness.keel("data", "info", folder, "--verify").stdout, r"(?s): \d+ bytes, \d+ records of \d+ rows, 1 shards\n.*verified")
        self.assertEqual(harness.keel("data", "info", folder, "--rows").returncode, 64)
        self.train(self.rl("half", **{**changes, "trainer__total_training_steps": 7}), ranks=2)
        self.train(self.rl("half", **cached), ranks=2)
        self.assertEqual({path: path.stat().st_mtime_ns for path in made}, made)
        for name in ("cached", "half"):
            self.assertEqual(self.stable(name), self.stable("memory"))
            self.assertEqual(self.digests(name, 16), self.digests("memory", 16))
        # Other rows are other prompts, to the cache and to the run.
        (self.folder / "train.jsonl").write_text("\n".join(lines[1:]) + "\n")
        done = harness.keel("train", self.rl("half", **{**cached, "trainer__total_training_steps": 17}))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("trained on other data", done.stderr)

    def test_ppo_with_critic_reference_and_kl_controller(self):
        self.resumes(
            2, ["rl.experience:0:5:kill", "step.update:1:11:kill"],
            megatron={"tensor_model_parallel_size": 2},
            algorithm__adv_estimator="gae", algorithm__use_kl_in_reward=True, algorithm__kl_ctrl__type="adaptive",
            actor_rollout_ref__actor__ppo_mini_batch_size=4, actor_rollout_ref__actor__ppo_epochs=2,
            critic__ppo_epochs=1,
        )  # fmt: skip

    def test_an_entropy_bonus_that_is_steered(self):
        self.resumes(
            2, ["rl.experience:0:5:kill", "step.update:1:11:kill"],
            actor_rollout_ref__actor__ppo_mini_batch_size=4, actor_rollout_ref__actor__use_adaptive_entropy=True,
            actor_rollout_ref__actor__entropy_coeff=0.01, actor_rollout_ref__actor__entropy_target=100.0,
            actor_rollout_ref__actor__policy_loss__off_policy_mask_threshold=0.001,
        )  # fmt: skip
        states = [json.loads((self.run_dir(name) / "global_step_6" / "rl_state.json").read_text()) for name in ("straight", "killed")]
        self.assertEqual(states[0]["entropy_controller"], states[1]["entropy_controller"])
        self.assertGreater(states[0]["entropy_controller"]["entropy_coeff"], 0.05)

    def test_a_reference_that_follows_the_policy(self):
        """Killed before and after it has moved, and while its weights are being written."""
        self.resumes(
            2, ["step.update:0:3:kill", "sync.done:1:4:kill", "save.write:1:3:kill"],
            megatron={"tensor_model_parallel_size": 2, **OFFLOAD},
            actor_rollout_ref__actor__use_kl_loss=True, actor_rollout_ref__actor__kl_loss_coef=0.1,
            actor_rollout_ref__actor__use_bias_correction_kl=True, trainer__save_freq=1,
            actor_rollout_ref__ref={"sync_ref_model": True, "ref_model_sync_steps": 2, "megatron": {"param_offload": True}},
            actor_rollout_ref__actor__checkpoint__async_save=True,
        )  # fmt: skip
        of_ref = [checkpoint_files.digests(self.run_dir(name) / "global_step_6", "ref") for name in ("straight", "killed")]
        self.assertEqual(*of_ref)
        self.assertNotEqual(of_ref[0], checkpoint_files.digests(self.run_dir("straight") / "global_step_5", "ref"))

    def test_the_digest_of_the_weights_is_the_same_whoever_takes_it(self):
        """Where the rollout uses the trainer's memory the save takes it, of what it copies; else the sync."""
        found = {}
        for rollout_tp in (1, 2):
            name = f"rollout-tp{rollout_tp}"
            changes = {"trainer__save_freq": 1, "actor_rollout_ref__actor__optim": {"lr": 0.0, "min_lr": 0.0}}
            tp = {"actor_rollout_ref__rollout__tensor_model_parallel_size": rollout_tp}
            self.train(self.rl(name, trainer__total_training_steps=1, **changes, **tp), ranks=2)
            state = json.loads((self.run_dir(name) / "global_step_1" / "rl_state.json").read_text())
            found[rollout_tp] = state["weight_digest"]
            # A resume takes it anew, of what is loaded, and by the other way.
            tp = {"actor_rollout_ref__rollout__tensor_model_parallel_size": 3 - rollout_tp}
            done = self.train(self.rl(name, trainer__total_training_steps=2, **changes, **tp), ranks=2)
            self.assertIn(f"digest {found[rollout_tp]}", done.stdout + done.stderr)
        self.assertEqual(found[1], found[2])
        self.assertNotEqual(int(found[1], 16), 0)


class StopsWithinAValidation(RlJob):
    def test_it_is_left_for_the_save(self):
        write_task(self.folder / "val.jsonl", 4000, 2, "answer")
        changes = {"trainer__save_freq": 1000, "trainer__test_freq": 2, "trainer__total_training_steps": 1000}
        for name, ranks, tp in (("one", 1, 1), ("pair", 2, 2), ("two", 2, 1)):
            begin = len(self.log())
            config = self.rl(name, {"tensor_model_parallel_size": tp}, actor_rollout_ref__rollout__tensor_model_parallel_size=tp, **changes)
            process = self.start(config, ranks=ranks, failpoint="rollout.step:0:*:delay=20")
            self.wait_until(lambda run=name: 2 in self.steps(run), "the second step", process)
            harness.kill(process.pid, harness.signal.SIGTERM)
            process.wait(timeout=harness.LIMIT_S)
            self.assertEqual(process.returncode, 75, self.log()[begin:][-3000:])
            self.assertEqual(checkpoint_files.latest(self.run_dir(name)), 2)
            self.assertIn("the validation of step 2 is left out: the run was asked to stop", self.log()[begin:])


class LostInSync(RlJob):
    """A rank that dies or hangs while weights are on their way: the others say so in time, and nothing is lost."""

    DEADLINE_S = 10  # of no other wait, on a machine with other work

    def test_the_job_ends_with_the_reason_and_goes_on_later(self):
        changes = {"megatron": TP2_PP2, "trainer__save_freq": 2, "trainer__deadline_seconds": self.DEADLINE_S}
        self.train(self.rl("straight", **changes), ranks=4)
        expected = self.stable("straight"), self.digests("straight", 6)
        for mode, action, said in [
            ("in_place", "kill", ["rank 1 was killed by SIGKILL at step 3 (sync)", "lost a peer"]),
            ("staged", "stop", [f"took longer than {self.DEADLINE_S} s", "at step 3 (sync)"]),
        ]:
            with self.subTest(mode=mode, action=action):
                config = self.rl(f"lost-{mode}", actor_rollout_ref__rollout__weight_sync=mode, **changes)
                os.environ["KEEL_FAILPOINT"] = f"sync.round:1:4:{action}"  # the first is before step 1
                self.addCleanup(os.environ.pop, "KEEL_FAILPOINT", None)
                ended = harness.keel(*self.command(config, 4))
                del os.environ["KEEL_FAILPOINT"]
                self.assertNotEqual(ended.returncode, 0)
                for words in ["weight sync: all-to-all in group world on rank", *said]:
                    self.assertIn(words, ended.stdout + ended.stderr)
                # The step whose weights never came did not happen.
                self.assertEqual(sorted(self.steps(f"lost-{mode}")), [1, 2])
                self.train(config, ranks=4)
                self.assertEqual((self.stable(f"lost-{mode}"), self.digests(f"lost-{mode}", 6)), expected)


class NothingChanges(RlJob):
    def run_of(self, name, ranks=1, **changes):
        self.train(self.rl(name, **{"trainer__save_freq": 6, **changes}), ranks=ranks)
        return self.stable(name), self.digests(name, 6)

    def test_by_taking_old_log_probs_from_the_update(self):
        """With one update a step they are the update's own; a KL penalty, here of 0, asks for them before."""
        for ranks, megatron in [(1, {}), (4, TP2_PP2)]:
            with self.subTest(ranks=ranks):
                changes = {"megatron": megatron, "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 8}
                steps, last = self.run_of(f"within-{ranks}", ranks, **changes)
                before, before_last = self.run_of(
                    f"before-{ranks}", ranks, algorithm__use_kl_in_reward=True, algorithm__kl_ctrl__kl_coef=0.0, **changes
                )
                self.assertEqual(last, before_last)
                for step, data in steps.items():
                    self.assertIn("actor/entropy_before", data)
                    self.assertIn(GAP, data)
                    self.assertEqual(data, {key: before[step][key] for key in data})
                    taken = [self.steps(f"{name}-{ranks}")[step]["timing_s/old_log_prob"] for name in ("within", "before")]
                    self.assertEqual(taken[0], 0.0)
                    self.assertGreater(taken[1], 0.0)

    def test_by_offload_staging_or_release(self):
        plain = self.run_of("plain", 4, megatron=TP2_PP2)
        for data in self.steps("plain").values():
            self.assertEqual((data["timing_s/param_load"], data["timing_s/param_offload"]), (0.0, 0.0))
        offloaded = self.run_of("offloaded", 4, megatron={**TP2_PP2, **OFFLOAD})
        for data in self.steps("offloaded").values():
            self.assertGreater(min(data["timing_s/param_load"], data["timing_s/param_offload"]), 0.0)
            moved = data["timing_s/param_load"] + data["timing_s/param_offload"]
            self.assertGreaterEqual(data["timing_s/update_weights"], moved)
            self.assertGreaterEqual(data["timing_s/sync"], data["timing_s/update_weights"])
        rollout = "actor_rollout_ref__rollout__"
        other_way = {f"{rollout}weight_sync": "staged", f"{rollout}free_cache_engine": False, f"{rollout}verify_sync": "every"}
        for name, found in (("offload", offloaded), ("staged", self.run_of("staged", 4, megatron=TP2_PP2, **other_way))):
            self.assertEqual(found, plain, name)

    def test_what_actor_and_critic_move_and_when_the_actor_begins(self):
        """The critic's moves count, of every epoch; the actor's rate begins with its own first update, and a loss without a ratio moves the policy."""
        optim, offload = "actor_rollout_ref__actor__optim", {"param_offload": True, "grad_offload": True, "optimizer_offload": True}
        moves = [f"timing_s/{name}" for name in ("update_param_load", "update_param_offload", "grad_load", "grad_offload", "optimizer_load", "optimizer_offload")]
        for name, offloads in (("stays", {}), ("moves", offload)):
            self.train(self.rl(
                name, algorithm__adv_estimator="gae", trainer__critic_warmup=2, trainer__total_training_steps=4, critic__megatron=offloads,
                actor_rollout_ref__actor__policy_loss={"loss_mode": "gpg"}, actor_rollout_ref__actor__ppo_epochs=2,
                **{f"{optim}__lr": 0.01, f"{optim}__lr_warmup_steps": 2, f"{optim}__lr_decay_style": "constant"},
            ))  # fmt: skip
            steps = self.steps(name)
            for data in steps.values():
                self.assertEqual({data[move] > 0 for move in moves}, {bool(offloads)}, data)
                self.assertLess(data["critic/vf_explained_var"], 1.0)
                self.assertEqual(data["response/aborted_ratio"], 0.0)
                for of in ("mean", "max", "min", "clip_ratio"):
                    self.assertEqual(data[f"response_length_non_aborted/{of}"], data[f"response_length/{of}"])
            self.assertEqual([steps[step].get("actor/lr") for step in (1, 2, 3, 4)], [None, None, 0.0, 0.005])  # linear from 0
            self.assertNotEqual(steps[4]["actor/ppo_kl"], 0.0)

    def test_by_replaying_the_responses(self):
        dump = str(self.folder / "dump")
        whole, digests = self.run_of("dumped", trainer__rollout_data_dir=dump)
        # Which is its own folder of dumps, too, by another spelling.
        replayed, again = self.run_of("replayed", trainer__rollout_replay_dir=dump, trainer__rollout_data_dir=f"{dump}/../dump/")
        self.assertEqual(again, digests)
        for step, data in replayed.items():
            missing = {k: v for k, v in whole[step].items() if data.get(k) != v}
            self.assertEqual(set(missing), {"rollout/gen_batches"} & set(missing), step)

    def test_first_update_is_on_policy(self):
        self.run_of("tp2", 2, megatron={"tensor_model_parallel_size": 2})
        for data in self.steps("tp2").values():
            self.assertEqual(data[KL], 0.0)
            self.assertEqual(data["actor/pg_clipfrac"], 0.0)
            self.assertLessEqual(data[GAP], 1e-5)

    def test_more_rollout_ranks_than_key_value_heads_which_divide_by_no_number_of_ranks(self):
        rollout = "actor_rollout_ref__rollout__"
        uneven = {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 97}
        wide = {
            f"{rollout}tensor_model_parallel_size": 4, f"{rollout}verify_sync": "every",
            "actor_rollout_ref__model__config": {**harness.MODEL, **uneven},
        }  # fmt: skip
        self.run_of("wide", 4, megatron=TP2_PP2, **wide)
        steps = self.steps("wide")
        self.assertEqual(len(steps), 6)
        for data in steps.values():
            self.assertLessEqual(data[GAP], 1e-5)


class TheSameBits(RlJob):
    """With batch_invariant training computes of a token what generation computed of it."""

    INVARIANT = {
        "actor_rollout_ref__rollout__batch_invariant": True, "actor_rollout_ref__rollout__temperature": 0.7,
        "actor_rollout_ref__model__dtype": "bfloat16", "trainer__total_training_steps": 3,
        "algorithm__adv_estimator": "gae", "actor_rollout_ref__actor__use_kl_loss": True,
    }  # fmt: skip

    def gaps(self, name, ranks, **changes):
        done = self.train(self.rl(name, **{**self.INVARIANT, **changes}), ranks=ranks)
        self.assertGreater(self.steps(name)[1]["actor/grad_norm"], 0)
        return [data[GAP] for data in self.steps(name).values()], done

    def test_of_a_split_model(self):
        gaps, done = self.gaps("dense", 4, megatron=TP2_PP2, actor_rollout_ref__rollout__tensor_model_parallel_size=2)
        self.assertEqual(gaps, [0.0] * 3)
        self.assertNotIn("differ by rounding", done.stderr)
        # The first step's policy is the reference, whose forward is the same, too.
        self.assertEqual(self.steps("dense")[1]["actor/kl_loss"], 0.0)

    def test_of_experts(self):
        gaps, _ = self.gaps("experts", 1, actor_rollout_ref__model__config=harness.MOE_MODEL)
        self.assertEqual(gaps, [0.0] * 3)

    def test_of_sinks_and_experts_that_stand_together(self):
        folder = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "gpt_oss" / "hf"
        changes = {key: value for key, value in self.INVARIANT.items() if "__model__" not in key}
        config = self.rl("gpt_oss", megatron={"tensor_model_parallel_size": 2}, data__tokenizer="bytes",
                         actor_rollout_ref__model={"path": str(folder), "dtype": "bfloat16"},
                         actor_rollout_ref__rollout__tensor_model_parallel_size=2, **changes)  # fmt: skip
        self.train(config, ranks=2)
        self.assertEqual([data[GAP] for data in self.steps("gpt_oss").values()], [0.0] * 3)

    def test_of_layers_with_states(self):
        folder = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "qwen3_next" / "hf"
        changes = {key: value for key, value in self.INVARIANT.items() if "__model__" not in key}
        config = self.rl("states", megatron={"tensor_model_parallel_size": 2}, data__tokenizer="bytes",
                         actor_rollout_ref__model={"path": str(folder), "dtype": "bfloat16"},
                         actor_rollout_ref__rollout__tensor_model_parallel_size=2, **changes)  # fmt: skip
        self.train(config, ranks=2)
        self.assertEqual([data[GAP] for data in self.steps("states").values()], [0.0] * 3)

    def test_of_another_split_they_are_not_and_that_is_said(self):
        gaps, done = self.gaps("other", 2, megatron={"tensor_model_parallel_size": 2}, actor_rollout_ref__rollout__tensor_model_parallel_size=1)
        self.assertGreater(max(gaps), 0)
        self.assertIn("training sums over 2 tensor-parallel ranks and generation over 1", done.stderr)


class Experts(RlJob):
    def test_are_trained_and_rolled_out_alike(self):
        rollout = "actor_rollout_ref__rollout__"
        changes = {
            f"{rollout}verify_sync": "every", "actor_rollout_ref__model__config": harness.MOE_MODEL,
            "trainer__total_training_steps": 3, "algorithm__adv_estimator": "gae",
        }  # fmt: skip
        self.train(self.rl("experts", megatron=TP2_PP2, **changes), ranks=4)
        for data in self.steps("experts").values():
            self.assertLessEqual(data[GAP], 1e-5)
            for role in ("actor", "critic"):
                self.assertGreater(data[f"{role}/router/balance_loss"], 1.0)
                self.assertLessEqual(data[f"{role}/router/busiest_expert_share"], 0.5)

    def test_the_balance_loss_is_the_same_under_data_parallelism(self):
        """Micro-batches of one response each, of several lengths: each weighs as many as its tokens, whoever has it."""
        model = {**harness.MOE_MODEL, "router_aux_loss_coef": 0.5}
        for ranks in (1, 2):
            self.train(self.rl(f"ranks_{ranks}", actor_rollout_ref__model__config=model, trainer__total_training_steps=2,
                               actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=1,
                               data__max_response_length=24), ranks=ranks)  # fmt: skip
        one, two = self.steps("ranks_1"), self.steps("ranks_2")
        self.assertGreater(one[1]["response_length/max"], one[1]["response_length/min"])
        for step, data in one.items():
            for key in ("actor/router/balance_loss", "actor/grad_norm"):
                self.assertAlmostEqual(data[key], two[step][key], delta=1e-5 * abs(data[key]))


class ResumeInParts(RlJob):
    def test_moments_of_both_models_bring_the_numbers_of_their_updates(self):
        """Adam corrects moments by them, whether the run's position comes back or not."""
        changes = {"trainer__save_freq": 2, "algorithm__adv_estimator": "gae", "critic__ppo_mini_batch_size": 2}
        self.train(self.rl("first", trainer__total_training_steps=2, **changes))
        self.assertEqual(self.updates("first", 2), (2, 8))
        source = {"trainer__resume_mode": "resume_path", "trainer__resume_from_path": str(self.run_dir("first") / "global_step_2")}
        parts = "actor_rollout_ref__actor__checkpoint__load_contents"
        for contents, steps, expected in ((["model", "optimizer"], 2, (4, 16)), (["model", "extra"], 4, (2, 8))):
            with self.subTest(contents):
                name = "_".join(contents)
                self.train(self.rl(name, trainer__total_training_steps=steps, **changes, **source, **{parts: contents}))
                self.assertEqual(self.updates(name, steps), expected)

    def updates(self, name, step):
        folder = self.run_dir(name) / f"global_step_{step}"
        actor = json.loads((folder / "trainer_state.json").read_text())["optimizer_steps"]
        return actor, json.loads((folder / "rl_state.json").read_text())["critic_optimizer_steps"]


class SizesOfTheirOwn(RlJob):
    def test_of_the_critics_updates_and_the_references_forwards(self):
        changes = {
            "trainer__total_training_steps": 2, "trainer__save_freq": 2, "algorithm__adv_estimator": "gae",
            "actor_rollout_ref__actor__use_kl_loss": True,
        }  # fmt: skip
        self.train(self.rl("shared", **changes))
        own = {"critic__ppo_mini_batch_size": 2, "actor_rollout_ref__ref__log_prob_micro_batch_size_per_gpu": 1}
        self.train(self.rl("own", **changes, **own))
        states = [json.loads((self.run_dir(name) / "global_step_2" / "rl_state.json").read_text()) for name in ("shared", "own")]
        self.assertEqual([state["critic_optimizer_steps"] for state in states], [2, 8])
        shared, alone = self.steps("shared")[1], self.steps("own")[1]
        self.assertEqual(alone["critic/score/mean"], shared["critic/score/mean"])
        self.assertEqual(shared["actor/kl_loss"], 0.0)
        self.assertAlmostEqual(alone["actor/kl_loss"], 0.0, places=6)


class Learning(RlJob):
    """GRPO and PPO over two ranks every night; ordinarily GRPO on one, since what layouts compute is the same, bit for bit or nearly so, and
    split_learning_test has both learn."""

    RANKS = 2 if harness.NIGHTLY else 1

    def test_grpo_over_split_tensors(self):
        self.learns(
            "grpo", self.warm_up(36), self.RANKS, 160, megatron={"tensor_model_parallel_size": self.RANKS, **OFFLOAD},
            actor_rollout_ref__actor__ppo_mini_batch_size=4, actor_rollout_ref__actor__ppo_epochs=2,
        )  # fmt: skip

    @harness.nightly
    def test_ppo_over_stages(self):
        self.learns(
            "ppo", self.warm_up(36), self.RANKS, 150, megatron={"pipeline_model_parallel_size": self.RANKS}, algorithm__adv_estimator="gae",
            critic__optim__lr=1e-3, actor_rollout_ref__actor__ppo_mini_batch_size=8,
            actor_rollout_ref__actor__ppo_epochs=2,
        )  # fmt: skip


class Refusals(RlJob):
    def test_another_reference_is_not_taken_for_the_old_one(self):
        changes = {"actor_rollout_ref__actor__use_kl_loss": True, "trainer__save_freq": 2, "data__shuffle": False}
        self.train(self.rl("run", trainer__total_training_steps=2, **changes))
        # The actor comes from the checkpoint; the reference would be another.
        other = self.rl("run", trainer__total_training_steps=4, **changes, actor_rollout_ref__model__config__initializer_range=0.5)
        done = harness.keel(*self.command(other, 1))
        self.assertEqual(done.returncode, 78, done.stderr[-2000:])
        self.assertIn("the reference's weights have digest", done.stderr)
        self.assertEqual((self.run_dir("run") / "latest_checkpointed_iteration.txt").read_text(), "2\n")
        self.train(self.rl("run", trainer__total_training_steps=4, **changes))

    def test_what_does_not_fit_is_named_at_the_start(self):
        for changes, text in (
            ({"algorithm__adv_estimator": "gae", "critic__enable": False}, "critic.enable"),
            ({"data__max_response_length": 500}, "max_position_embeddings"),
            ({"actor_rollout_ref__rollout__tensor_model_parallel_size": 2}, "tensor_model_parallel_size"),
            ({"algorithm__adv_estimator": "grop"}, "grpo"),
            ({"reward__type": "command"}, "reward.command"),
            ({"trainer__keep_best_ckpts": 1, "trainer__max_ckpts_to_keep": 1, "trainer__save_freq": 1, "trainer__test_freq": 1}, "val/reward"),
        ):
            with self.subTest(changes):
                done = harness.keel(*self.command(self.rl("refused", **changes), 1))
                self.assertIn(done.returncode, (64, 65, 78), done.stderr[-2000:])
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
