"""A run that was stopped and resumed is, bit for bit, the run that was not.

Straight = stopped at k and resumed, for k = 1, in the middle, and one before, at and after the end of
an epoch: losses, gradient norms, learning rates, sample ids, weights, masters and moments. The same
comparison must fail when a resumed run is given the weights alone, else it would prove nothing.
"""

import json
import math
import os
import pathlib
import shutil
import unittest

import checkpoint_files
import harness
import numpy
from harness import stable

STEPS = 12
EPOCH = 5  # 20 documents, 4 a step


class Resume(harness.Job):
    LAYOUT = {}
    RANKS = 1
    STOPS = (1, EPOCH - 1, EPOCH, EPOCH + 1, 8)

    def straight(self):
        config = self.config("straight", trainer__save_freq=1, trainer__max_ckpts_to_keep=None, **self.LAYOUT)
        self.train(config, ranks=self.RANKS)
        return self.metrics("straight"), checkpoint_files.digests(self.run_dir("straight") / f"global_step_{STEPS}")

    def resume(self, name, stop, **changes):
        """A run of its own that starts from the straight run's checkpoint of step `stop`."""
        config = self.config(
            name,
            trainer__save_freq=STEPS,
            trainer__resume_mode="resume_path",
            trainer__resume_from_path=str(self.run_dir("straight") / f"global_step_{stop}"),
            **{**self.LAYOUT, **changes},
        )
        self.train(config, ranks=self.RANKS)
        return self.metrics(name), checkpoint_files.digests(self.run_dir(name) / f"global_step_{STEPS}")

    def test_is_bit_exact_wherever_it_was_stopped(self):
        metrics, digests = self.straight()
        self.assertEqual(sorted(metrics), list(range(1, STEPS + 1)))
        self.assertLessEqual({harness.LOSS, harness.GRAD_NORM, harness.SAMPLES, "lr"}, set(stable(metrics[1])))
        self.assertGreater(len(digests), 4 * harness.MODEL["num_hidden_layers"])
        for stop in self.STOPS:
            with self.subTest(stop=stop):
                resumed, resumed_digests = self.resume(f"from_{stop}", stop)
                self.assertEqual(sorted(resumed), list(range(stop + 1, STEPS + 1)))
                for step in resumed:
                    self.assertEqual(stable(resumed[step]), stable(metrics[step]), f"step {step}")
                self.assertEqual(resumed_digests, digests)


class ResumeInParts(harness.Job):
    """How many updates made an optimizer's moments goes with the moments, whatever else of a checkpoint is taken.

    Every step has the same batch and the same learning rate, so that what a run ends with depends on nothing but what it
    began with, and on how often it has learnt since.
    """

    TAKEN, MORE = 2, 3

    def settings(self, **changes):
        optim = {"lr_decay_style": "constant", "lr_warmup_steps": 0}
        return {
            "data__train_batch_size": 20,
            "data__micro_batch_size_per_gpu": 5,
            "data__shuffle": False,
            **{f"actor_rollout_ref__actor__optim__{key}": value for key, value in optim.items()},
            **changes,
        }

    def state(self, name, step):
        return checkpoint_files.digests(self.run_dir(name) / f"global_step_{step}")

    def straight(self, **changes):
        steps = self.TAKEN + self.MORE
        config = self.config(
            "straight", trainer__total_training_steps=steps, trainer__save_freq=1, trainer__max_ckpts_to_keep=None, **self.settings(**changes)
        )
        self.train(config)
        return self.state("straight", steps)

    def go_on(self, contents, steps):
        """Loads `contents` after TAKEN steps, and returns the state of step `steps`, up to which it learns."""
        name = "_".join(contents)
        changes = {
            "actor_rollout_ref__actor__checkpoint__load_contents": contents,
            "trainer__resume_mode": "resume_path",
            "trainer__resume_from_path": str(self.run_dir("straight") / f"global_step_{self.TAKEN}"),
        }
        self.train(self.config(name, trainer__total_training_steps=steps, trainer__save_freq=steps, **self.settings(**changes)))
        return self.state(name, steps)

    def test_moments_without_the_position_go_on_as_they_were(self):
        self.assertEqual(self.straight(), self.go_on(["model", "optimizer"], self.MORE))

    def test_moments_of_a_checkpoint_that_has_no_position_do_so_too(self):
        contents = {"actor_rollout_ref__actor__checkpoint__save_contents": ["model", "optimizer"]}
        contents["actor_rollout_ref__actor__checkpoint__load_contents"] = ["model", "optimizer"]
        self.assertEqual(self.straight(**contents), self.go_on(["model", "optimizer"], self.MORE))

    def test_moments_that_begin_anew_have_had_no_update(self):
        self.straight()
        self.assertEqual(self.go_on(["model"], self.MORE), self.go_on(["model", "extra"], self.TAKEN + self.MORE))


class LearningRates(harness.Job):
    """Of transformers' and Megatron's numbering (tests/trainer/engine/lr_schedule_test.cc), in what a run trains with."""

    def rates(self, name, **changes):
        optim = {f"actor_rollout_ref__actor__optim__{key}": value for key, value in changes.items() if key != "steps"}
        done = self.train(self.config(name, trainer__total_training_steps=changes["steps"], **optim))
        return [data["lr"] for _, data in sorted(self.metrics(name).items())], done.stdout + done.stderr

    def test_the_last_step_learns_and_so_does_the_only_one(self):
        cosine = {"lr_decay_style": "cosine", "lr_warmup_steps": 0, "min_lr": 0.0}
        rates, said = self.rates("four", steps=4, **cosine)
        for step, rate in enumerate(rates):
            self.assertAlmostEqual(rate, 1e-3 * 0.5 * (1 + math.cos(math.pi * step / 4)), delta=1e-12)
        self.assertNotIn("learning rate is 0", said)
        self.assertEqual(self.rates("one", steps=1, **cosine)[0], [1e-3])

    def test_a_run_that_cannot_learn_says_so(self):
        rates, said = self.rates("warming", steps=1, lr_warmup_steps=5)
        self.assertEqual(rates, [0.0])
        self.assertIn("lr_warmup_steps is 5: the learning rate is 0 in all of the run's 1 steps", said)
        rates, said = self.rates("dry", steps=2, lr=0.0, lr_decay_style="constant", lr_warmup_steps=0)
        self.assertEqual(rates, [0.0, 0.0])
        self.assertIn("lr is 0: the learning rate is 0 in all of the run's 2 steps", said)


class ResumeSingle(Resume):
    def test_a_configuration_in_the_place_of_the_runs_own_is_kept(self):
        """The run writes config.yaml with all values; what stood there may be somebody's own file."""
        run = self.run_dir("mine")
        run.mkdir()
        given = run / "config.yaml"
        text = "# my notes\n" + self.config("mine", trainer__total_training_steps=2).read_text()
        given.write_text(text)
        done = self.train(given)
        self.assertIn("mine/config.yaml is the configuration with all values now; what was given is in config.given.yaml", done.stdout + done.stderr)
        self.assertEqual((run / "config.given.yaml").read_text(), text)
        self.assertNotIn("my notes", given.read_text())
        # Nor is it lost when another one takes its place.
        other = text.replace("my notes", "other notes")
        given.write_text(other)
        self.train(given)
        self.assertEqual([(run / f"config.given{n}.yaml").read_text() for n in ("", ".2")], [text, other])
        # What a run wrote is nobody's own.
        self.train(given, "trainer.total_training_steps=4")
        self.assertEqual((run / "config.given.yaml").read_text(), text)
        self.assertEqual(sorted(self.metrics("mine")), [1, 2, 3, 4])

    def test_saving_changes_nothing(self):
        metrics, _ = self.straight()
        self.train(self.config("unsaved"))
        unsaved = self.metrics("unsaved")
        for step in metrics:
            self.assertEqual(stable(unsaved[step]), stable(metrics[step]), f"step {step}")

    def test_would_notice_what_did_not_come_back(self):
        _, digests = self.straight()
        for contents in (["model"], ["model", "extra"], ["model", "optimizer"], ["optimizer", "extra"]):
            with self.subTest(only=contents):
                changes = {"actor_rollout_ref__actor__checkpoint__load_contents": contents}
                _, resumed = self.resume("_".join(contents), 8, **changes)
                self.assertNotEqual(resumed, digests)

    def test_what_changed_since_the_save_is_said(self):
        self.train(self.config("run", trainer__total_training_steps=2, trainer__save_freq=2))
        optim = "actor_rollout_ref.actor.optim"
        changes = {
            f"{optim}.lr": (0.001, 0.1),
            f"{optim}.betas": ("[0.9, 0.95]", [0.8, 0.95]),
            f"{optim}.weight_decay": (0.1, 0.0),
            f"{optim}.clip_grad": (1.0, 0.0),
            f"{optim}.lr_decay_style": ("cosine", "linear"),
            f"{optim}.lr_warmup_steps": (3, 0),
            "data.train_batch_size": (4, 8),
            "data.micro_batch_size_per_gpu": (1, 2),
            "trainer.total_training_steps": (2, 4),
        }
        config = self.config("run", trainer__save_freq=2, **{k.replace(".", "__"): new for k, (_, new) in changes.items()})
        done = self.train(config)
        said = [line for line in done.stderr.splitlines() if "changed since the checkpoint was saved" in line]
        for key, (old, new) in changes.items():
            self.assertTrue(any(line.endswith(f" {key}: {old} -> {new}") for line in said), f"{key}: {said}")
        self.assertEqual(len(said), len(changes), said)
        # With nothing changed there is nothing to say.
        done = self.train(config, "trainer.total_training_steps=4")
        self.assertIn("resumed from", done.stderr)
        self.assertNotIn("changed since", done.stderr)

    def test_another_balance_loss_is_said(self):
        """It stands in the model's config.json, and nothing that the model computes depends on it."""
        model = self.folder / "model"
        shutil.copytree(pathlib.Path(os.environ["KEEL_FIXTURES"]) / "mixtral_balance" / "hf", model)
        changes = {"trainer__save_freq": 2, "actor_rollout_ref__model": {"path": str(model), "dtype": "float32"}, "data__tokenizer": "bytes"}
        self.train(self.config("run", trainer__total_training_steps=2, **changes))
        config = json.loads((model / "config.json").read_text())
        for steps, change, said in (
            (4, {"router_aux_loss_coef": 5.0}, "router_aux_loss_coef 0.1 -> router_aux_loss_coef 5"),
            (6, {"output_router_logits": False}, r"router_aux_loss_coef 5 -> none \(output_router_logits\)"),
        ):  # fmt: skip
            config.update(change)
            (model / "config.json").write_text(json.dumps(config))
            done = self.train(self.config("run", trainer__total_training_steps=steps, **changes))
            self.assertRegex(done.stderr, f"changed since the checkpoint was saved: the balance loss of the model's config.json: {said}")

    def test_other_rows_to_validate_on_are_said(self):
        rows = self.folder / "val.jsonl"
        harness.write_documents(rows, seed=7)
        changes = {"trainer__save_freq": 2, "data__val_files": [str(rows)]}
        self.train(self.config("run", trainer__total_training_steps=2, **changes))
        harness.write_documents(rows, seed=8)
        done = self.train(self.config("run", trainer__total_training_steps=4, **changes))
        self.assertRegex(done.stderr, "changed since the checkpoint was saved: content of data.val_files: .* samples with digest .* -> ")
        done = self.train(self.config("run", trainer__total_training_steps=6, **changes))
        self.assertNotIn("content of data.val_files", done.stderr)

    def test_another_chat_template_is_said(self):
        """Rows may use none of what has changed; whoever serves the later checkpoints does."""
        template = self.folder / "chat.jinja"
        write = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        self.data.write_text((json.dumps({"messages": talk}) + "\n") * 8)
        changes = {"trainer__task": "sft", "trainer__save_freq": 2, "data__chat_template": str(template)}
        for steps, more, said in ((2, "", False), (4, "{% if tools %}tools{% endif %}", True), (6, "{% if tools %}tools{% endif %}", False)):
            template.write_text(more + write)
            done = self.train(self.config("run", trainer__total_training_steps=steps, **changes))
            found = "changed since the checkpoint was saved: content of chat_template.jinja: " in done.stderr
            self.assertEqual(found, said, done.stderr)

    def test_another_dtype_is_named_as_such(self):
        self.train(self.config("run", trainer__total_training_steps=2, trainer__save_freq=2))
        config = self.config("run", trainer__total_training_steps=4, actor_rollout_ref__model__dtype="bfloat16")
        done = harness.keel(*self.command(config, 1))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("its weights are F32, this run's are BF16: give the dtype that it was saved with", done.stderr)
        self.assertIn("(actor_rollout_ref.model), or name in actor_rollout_ref.actor.checkpoint.load_allow_missing", done.stderr)

    def test_metrics_of_earlier_work_stay(self):
        config = self.config("run", trainer__total_training_steps=8, trainer__save_freq=4)
        self.train(config)
        file = self.run_dir("run") / "metrics.jsonl"
        first = file.read_bytes()
        weights = "actor_rollout_ref.actor.checkpoint.load_contents=[model]"
        for n, begin_anew in ((1, "trainer.resume_mode=disable"), (2, weights)):
            with self.subTest(begin_anew):
                before = file.read_bytes()
                done = self.train(config, begin_anew, "trainer.total_training_steps=2", "trainer.save_freq=-1")
                self.assertIn(f"of an earlier run is now metrics.{n}.jsonl", done.stdout + done.stderr)
                self.assertEqual((self.run_dir("run") / f"metrics.{n}.jsonl").read_bytes(), before)
                self.assertEqual(sorted(self.metrics("run")), [1, 2])
        # From an earlier step of its own: what is trained again is dropped, but not lost.
        file.write_bytes(first.replace(b'{"step":3,', b'what is this\n{"step":3,', 1))
        back = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={self.run_dir('run')}/global_step_4"]
        done = self.train(config, *back, "trainer.total_training_steps=6", "trainer.save_freq=-1")
        self.assertRegex(done.stdout + done.stderr, r"lines of steps after 4, .*and 1 lines that are no metrics")
        self.assertEqual(sorted(self.metrics("run")), [1, 2, 3, 4, 5, 6])
        dropped = (self.run_dir("run") / "metrics.dropped.jsonl").read_bytes().split(b"\n")
        dropped = [line for line in dropped if not line.startswith(b'{"resumed_step":')]
        lines = [line for line in first.split(b"\n") if line]
        later = [line for line in lines if json.loads(line)["step"] > 4]
        self.assertEqual(dropped, [b"what is this", *later, b""])
        # It has saved nothing. The run that goes on from the newest checkpoint has the lines of that.
        done = self.train(config, "trainer.total_training_steps=9", "trainer.save_freq=-1")
        self.assertIn("lines up to step 8 are back", done.stdout + done.stderr)
        now = file.read_bytes().split(b"\n")
        self.assertEqual([line for line in now if line and json.loads(line)["step"] < 8],
                         [line for line in lines if json.loads(line)["step"] < 8])
        self.assertEqual(sorted(self.metrics("run")), list(range(1, 10)))

    def test_other_data_or_another_order_is_refused(self):
        config = self.config("run", trainer__total_training_steps=2, trainer__save_freq=2)
        self.train(config)
        other = self.folder / "other.jsonl"
        harness.write_documents(other, seed=6)
        for changes in ({"trainer__seed": 4}, {"data__shuffle": False}, {"data__train_files": [str(other)]}):
            with self.subTest(**changes):
                done = harness.keel(*self.command(self.config("run", trainer__total_training_steps=4, **changes), 1))
                self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
                self.assertIn("on other data or in another order", done.stderr)
        self.assertEqual(sorted(self.metrics("run")), [1, 2])


class ResumeWithAnotherBatch(harness.Job):
    """Every step has its samples, and no sample comes twice, when train_batch_size changes on the way."""

    def consumed(self, name):
        records = harness.read_jsonl(self.run_dir(name) / "metrics.jsonl")
        return [r["data"]["data/samples_consumed"] for r in records if "data/samples_consumed" in r["data"]]

    def run_in_two(self, first, then, **changes):
        name = f"from_{first}_to_{then}"
        common = {"data__micro_batch_size_per_gpu": 1, "trainer__save_freq": 2, **changes}
        steps = {"trainer__total_training_steps": 2, "trainer__total_epochs": None}
        self.train(self.config(name, **{**common, **steps, "data__train_batch_size": first}))
        self.train(self.config(name, **{**common, "data__train_batch_size": then}))
        for step, data in self.metrics(name).items():
            self.assertGreater(data[harness.LOSS], 0, f"step {step}")
        return self.consumed(name)

    def test_steps(self):
        for first, then, expected in ((8, 2, [8, 16, 18, 20, 22, 24]), (2, 8, [2, 4, 12, 20, 28, 36])):
            with self.subTest(first=first, then=then):
                self.assertEqual(self.run_in_two(first, then, trainer__total_training_steps=6), expected)

    def test_epochs(self):
        epochs = {"trainer__total_training_steps": None, "trainer__total_epochs": 1}
        for first, then, expected in ((8, 2, [8, 16, 18, 20]), (2, 8, [2, 4, 12, 20]), (4, 8, [4, 8, 16, 20])):
            with self.subTest(first=first, then=then):
                self.assertEqual(self.run_in_two(first, then, **epochs), expected)


class ResumeTensorParallel(Resume):
    LAYOUT = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2}
    RANKS = 2
    STOPS = (EPOCH,)


class ResumePipelineParallel(Resume):
    LAYOUT = {"actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": 2}
    RANKS = 2
    STOPS = (EPOCH,)


class ResumeDataParallel(Resume):
    LAYOUT = {"actor_rollout_ref__actor__megatron__use_distributed_optimizer": True}
    RANKS = 2
    STOPS = (EPOCH,)


class ResumeExperts(Resume):
    LAYOUT = {
        "actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2,
        "actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": 2,
        "actor_rollout_ref__model__config": harness.MOE_MODEL,
    }
    RANKS = 4
    STOPS = (EPOCH,)

    def test_says_how_the_routers_do(self):
        config = self.config("one", trainer__total_training_steps=2, actor_rollout_ref__model__config=harness.MOE_MODEL)
        self.train(config)
        for step in self.metrics("one").values():
            self.assertGreater(step["router/balance_loss"], 1.0)  # two of six, of balanced routers 2
            self.assertTrue(1 / 6 < step["router/busiest_expert_share"] <= 0.5)


class ResumeBfloat16(Resume):
    LAYOUT = {"actor_rollout_ref__model__dtype": "bfloat16"}
    STOPS = (EPOCH,)

    def masters(self, name, step):
        tensors = checkpoint_files.read_whole(self.run_dir(name) / f"global_step_{step}" / "actor" / "optimizer")
        return numpy.concatenate([
            whole.view(numpy.float32).ravel()
            for key, (_, whole) in sorted(tensors.items()) if key.startswith("optimizer.master.")
        ])  # fmt: skip

    def test_without_the_weights_their_masters_stay_away_too(self):
        self.straight()
        contents = {"actor_rollout_ref__actor__checkpoint__load_contents": ["optimizer", "extra"]}
        self.resume("own", 11, **contents)  # takes one step
        own = self.masters("own", STEPS)
        first, last = self.masters("straight", 1), self.masters("straight", 11)
        self.assertLess(numpy.linalg.norm(own - first), numpy.linalg.norm(own - last))


class ResumeElsewhere(harness.Job):
    """From any layout to any other: the numbers agree to rounding, the data exactly."""

    SAVED = ((1, 1, 1), (2, 2, 1), (1, 1, 2))
    LAYOUTS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1))
    STOP = 4
    CHANGES = {}

    def settings(self, tp, pp, dp):
        megatron = "actor_rollout_ref__actor__megatron__"
        sizes = {megatron + "tensor_model_parallel_size": tp, megatron + "pipeline_model_parallel_size": pp}
        return sizes, tp * pp * dp

    def test_any_layout_to_any_other(self):
        for saved in self.SAVED:
            sizes, ranks = self.settings(*saved)
            name = "saved_" + "_".join(map(str, saved))
            self.train(self.config(name, trainer__save_freq=self.STOP, **self.CHANGES, **sizes), ranks=ranks)
            metrics = self.metrics(name)
            for layout in self.LAYOUTS:
                with self.subTest(saved=saved, resumed=layout):
                    self.check(name, metrics, layout)

    def check(self, source, metrics, layout):
        sizes, ranks = self.settings(*layout)
        name = f"{source}_to_" + "_".join(map(str, layout))
        config = self.config(
            name,
            trainer__resume_mode="resume_path",
            trainer__resume_from_path=str(self.run_dir(source) / f"global_step_{self.STOP}"),
            **self.CHANGES,
            **sizes,
        )
        self.train(config, ranks=ranks)
        resumed = self.metrics(name)
        self.assertEqual(sorted(resumed), list(range(self.STOP + 1, STEPS + 1)))
        for step in resumed:
            self.assertEqual(resumed[step][harness.SAMPLES], metrics[step][harness.SAMPLES])
            self.assertEqual(resumed[step]["lr"], metrics[step]["lr"])
            # The first is a forward over the very same weights; later ones stand on rounding's effects.
            delta = 2e-6 if step == self.STOP + 1 else 2e-4
            self.assertAlmostEqual(resumed[step][harness.LOSS], metrics[step][harness.LOSS], delta=delta)


class ResumeElsewhereUnevenly(ResumeElsewhere):
    """Nine heads with three key/value heads, and a width that is a prime: over four ranks two hold the same head."""

    SAVED = ((4, 1, 1),)
    LAYOUTS = ((1, 1, 1), (3, 1, 1), (2, 2, 1))
    UNEVEN = {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 97}
    CHANGES = {"actor_rollout_ref__model__config": {**harness.MODEL, **UNEVEN}}


class ResumeElsewhereWithExperts(ResumeElsewhere):
    """The balance loss, too: of each micro-batch by itself, whichever rank has it."""

    SAVED = ((2, 2, 1),)
    LAYOUTS = ((1, 1, 1), (3, 1, 1), (1, 1, 2))
    CHANGES = {"actor_rollout_ref__model__config": harness.MOE_MODEL}


del Resume  # an abstract test is not a test

if __name__ == "__main__":
    unittest.main()
