"""RL whose responses come from ranks of their own: the same run bit for bit as where the ranks that train generate,
whatever happens to these workers on the way."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import checkpoint_files
import harness
import rl_test

# What only one of the placements has, or has otherwise.
OF_PLACEMENT = ("rollout/", "fully_async/", "off_policy/")


class SplitJob(rl_test.RlJob):
    # A model that has learnt nothing earns some of it: were all scores 0, no weight would move, and any two runs end alike.
    SCORED = {"reward__format_score": 0.5, "reward__format_pattern": "[ -~].*"}
    UNSCORED = {"reward__format_score": 0.0, "reward__format_pattern": None}

    def rl(self, name, megatron=None, **changes):
        return super().rl(name, megatron, **{**self.SCORED, **changes})

    def split(self, name, megatron=None, **changes):
        return self.rl(name, megatron, **{"async_training__placement": "split", **changes})

    def launch(self, config, trainers, workers, *overrides, environment=None):
        command = ["launch", "--nproc-per-node", str(trainers + workers), "--roles", f"trainer:{trainers},rollout:{workers}"]
        return subprocess.run([harness.KEEL, *command, "train", str(config), *overrides], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, env={**harness.environment(), **(environment or {})}, check=False)  # fmt: skip

    def start_split(self, config, trainers, workers, failpoint=""):
        """The same, of which the test waits for something on the way."""
        return self.start_command("launch", "--nproc-per-node", trainers + workers, "--roles", f"trainer:{trainers},rollout:{workers}",
                                  "train", config, failpoint=failpoint)  # fmt: skip

    def ends(self, process):
        """A run that comes to its end, and what it said."""
        self.assertEqual(process.wait(timeout=harness.LIMIT_S), 0, self.log()[-6000:])
        return self.log()

    # Who stands still until the test says otherwise is not given up.
    PATIENT = {"async_training__worker_timeout_seconds": harness.LIMIT_S, "trainer__deadline_seconds": harness.LIMIT_S}

    def desk(self, name):
        """What `keel status` says of a run's desk: nothing where there is none."""
        done = subprocess.run([harness.KEEL, "status", str(self.run_dir(name)), "--json"], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, check=False)  # fmt: skip
        return json.loads(done.stdout)["desk"] if done.returncode == 0 else None

    def serving(self, name):
        desk = self.desk(name)
        return sum(w["state"] == "serves" for w in desk["workers"]) if desk else 0

    def finished(self, name):
        """Responses that wait for their step."""
        desk = self.desk(name)
        return desk["streams"]["train"]["finished"] if desk else 0

    def join(self, config, address, *arguments, ranks=1, secret=None):
        world = ["launch", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        return subprocess.Popen([harness.KEEL, *world, "rollout", str(config), *arguments, "--join", address], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env={**harness.environment(), **({"KEEL_JOB_SECRET": secret} if secret else {})})  # fmt: skip

    def learnt(self, name):
        """Of each step what does not depend on who generated."""
        self.assertGreater(min(data["actor/grad_norm"] for data in self.steps(name).values()), 0, "a step learns nothing")
        return {
            step: {k: v for k, v in data.items() if not k.startswith(OF_PLACEMENT)}
            for step, data in self.stable(name).items()
        }


class Split(SplitJob):
    def same_as_colocated(self, megatron, ranks, trainers, workers, **changes):
        changes = {"trainer__save_freq": 3, "trainer__test_freq": 3, "trainer__total_training_steps": 6, **changes}
        self.train(self.rl("colocated", megatron, **changes), ranks=ranks)
        done = self.launch(self.split("split", megatron, **changes), trainers, workers)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertEqual(self.learnt("split"), self.learnt("colocated"))
        self.assertEqual(self.digests("split", 6), self.digests("colocated", 6))
        return done

    def test_one_trainer_and_two_workers_are_one_rank_bit_for_bit(self):
        self.same_as_colocated({}, 1, 1, 2)
        self.assertEqual({d["fully_async/count/workers"] for d in self.steps("split").values()} - {1, 2}, set())

    def test_over_tensor_and_pipeline_parallel_trainers_and_a_replica_of_two_ranks(self):
        self.same_as_colocated(rl_test.TP2_PP2, 4, 4, 2, actor_rollout_ref__rollout__tensor_model_parallel_size=2)

    def test_data_parallel_trainers_ppo_and_offload(self):
        self.same_as_colocated({"tensor_model_parallel_size": 1, **rl_test.OFFLOAD}, 2, 2, 2,
                               algorithm__adv_estimator="gae")  # fmt: skip

    def test_constants_of_a_router_go_with_the_weights_and_stay_in_fp32(self):
        """Of a bf16 model: to workers, through offload, saves and another layout, and out again."""
        folder = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "deepseek_v3" / "hf"
        changes = {"actor_rollout_ref__model": {"path": str(folder), "dtype": "bfloat16"}, "data__tokenizer": "bytes",
                   "actor_rollout_ref__rollout__weight_sync": "staged"}  # fmt: skip
        self.same_as_colocated({"tensor_model_parallel_size": 2, **rl_test.OFFLOAD}, 2, 2, 2, **changes)
        self.train(self.rl("colocated", {"pipeline_model_parallel_size": 2}, trainer__save_freq=1, trainer__total_training_steps=7, **changes), ranks=2)
        read = lambda hf: {name: (dtype, bits.tobytes()) for name, dtype, _, bits in checkpoint_files.read_file(hf / "model.safetensors")}
        constants = {name: found for name, found in read(folder).items() if name.endswith("e_score_correction_bias")}
        self.assertEqual(len(constants), 2)
        for name, step in (("split", 6), ("colocated", 7)):
            out = self.folder / f"{name}_hf"
            done = harness.keel("ckpt", "export-hf", self.run_dir(name) / f"global_step_{step}", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = read(out)
            self.assertEqual({key: found[key] for key in constants}, constants)
            self.assertEqual(found["model.layers.1.mlp.gate.weight"][0], "BF16")

    def test_experts_that_stand_together_go_with_the_weights(self):
        """Whose tensors have three dims, of which each rank has parts."""
        folder = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "gpt_oss" / "hf"
        changes = {"actor_rollout_ref__model": {"path": str(folder), "dtype": "bfloat16"}, "data__tokenizer": "bytes"}
        self.same_as_colocated({"tensor_model_parallel_size": 2, **rl_test.OFFLOAD}, 2, 2, 2, **changes)
        self.train(self.rl("colocated", {"pipeline_model_parallel_size": 2}, trainer__save_freq=1, trainer__total_training_steps=7, **changes), ranks=2)

    def test_layers_with_states_go_with_the_weights(self):
        """Whose samples of one prompt have a state each, and whose tensors have parts of two parameters."""
        folder = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "qwen3_5" / "hf"
        changes = {"actor_rollout_ref__model": {"path": str(folder), "dtype": "bfloat16"}, "data__tokenizer": "bytes"}
        self.same_as_colocated({"tensor_model_parallel_size": 2, **rl_test.OFFLOAD}, 2, 2, 2, **changes)
        self.train(self.rl("colocated", {"pipeline_model_parallel_size": 2}, trainer__save_freq=1, trainer__total_training_steps=7, **changes), ranks=2)

    def test_a_worker_that_dies_anywhere_costs_nothing(self):
        changes = {"trainer__save_freq": 6, "trainer__test_freq": 3, "async_training__partial_report_tokens": 1}
        self.train(self.rl("colocated", **changes))
        # Somebody stands still until the worker is dead: the other one, which could else do all of the work before it is there; or the
        # trainer in step 5, before which every worker comes to that place.
        for i, (rank, place, held) in enumerate((
            (1, "worker.step:1:9", 2), (2, "worker.done:2:5", 1), (1, "worker.staged:1:3", 0),
            (2, "worker.linked:2:1", 0), (2, "worker.progress:2:1", 1), (1, "sync.round:1:4", 0),
        )):  # fmt: skip
            with self.subTest(place=place):
                name = f"killed_{i}"
                config = self.split(name, **self.PATIENT, async_training__min_workers=2,
                                    actor_rollout_ref__rollout__max_num_seqs=4, **changes)  # far from all of a step
                said = len(self.log())
                stop = f"worker.step:{held}:1:stop" if held else "rl.rollout:0:5:stop"
                job = self.start_split(config, 1, 2, f"{place}:kill,{stop}")
                self.wait_until(lambda: f"rollout rank {rank} was killed by SIGKILL; it is started again" in self.log()[said:], "the kill", job)
                self.continued(job, held)
                log = self.ends(job)[said:]
                self.assertNotIn("have digest", log, "it was sent weights of another version")
                self.assertLessEqual(max(d["fully_async/count/workers_lost"] for d in self.steps(name).values()), 1)
                self.assertEqual(self.learnt(name), self.learnt("colocated"))
                self.assertEqual(self.digests(name, 6), self.digests("colocated", 6))

    def test_a_worker_that_stands_still_at_its_link_costs_itself_alone(self):
        """While its link is made, and while it takes weights. It is linked to one of two data-parallel ranks: the other one, which has
        nothing to wait for, gave up the job. It is given up long before any deadline."""
        changes = {"trainer__save_freq": 6, "trainer__test_freq": 3}
        self.train(self.rl("colocated", **changes), ranks=2)
        correct = {"algorithm__rollout_correction__rollout_is": "token", "async_training__max_staleness": 2}
        for i, (point, more) in enumerate((("worker.linked:3:1:stop", {}), ("sync.round:3:4:stop", {}), ("sync.round:3:4:stop", correct))):
            with self.subTest(point=point, **more):
                name = f"stopped_{i}"
                config = self.split(name, trainer__deadline_seconds=100, async_training__worker_timeout_seconds=8, **changes, **more)
                done = self.launch(config, 2, 2, environment={"KEEL_FAILPOINT": point})
                self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
                self.assertIn("is given up: nothing was heard of it for 8 s", done.stderr)
                steps = self.steps(name)
                self.assertEqual(sorted(steps), list(range(1, 7)))
                self.assertLess(max(data["timing_s/step"] for data in steps.values()), 90)
                self.assertEqual(max(data["fully_async/count/workers_lost"] for data in steps.values()), 1)
                if not more:
                    self.assertEqual(self.learnt(name), self.learnt("colocated"))
                    self.assertEqual(self.digests(name, 6), self.digests("colocated", 6))

    # Rank 1's is busy for as long as a file is there.
    VERIFIER = """
import json, os, pathlib, sys, time
hold, held = map(pathlib.Path, sys.argv[1:])
for line in sys.stdin:
    sample = json.loads(line)
    while os.environ.get("RANK") == "1" and hold.exists():
        held.touch()
        time.sleep(0.02)
    score = sum(sample["response"].encode()) % 3 / 2
    print(json.dumps({"id": sample["id"], "score": score}), flush=True)
"""

    def test_a_worker_that_is_asked_to_stop_keeps_nothing_until_its_verifiers_end(self):
        """Others have its samples at once, however long the process takes to leave."""
        hold, held = self.folder / "hold", self.folder / "held"
        (self.folder / "verify.py").write_text(self.VERIFIER)
        changes = {"trainer__save_freq": 3, "trainer__test_freq": -1, "trainer__total_training_steps": 3, "reward__type": "command",
                   "reward__command": [sys.executable, str(self.folder / "verify.py"), str(hold), str(held)], **self.UNSCORED,
                   "reward__timeout_seconds": harness.LIMIT_S - 1, "reward__max_retries": 0}  # fmt: skip
        self.train(self.rl("colocated", **self.PATIENT, **changes))
        hold.touch()
        config = self.split("left", **self.PATIENT, async_training__min_workers=2, actor_rollout_ref__rollout__max_num_seqs=4, **changes)
        job = self.start_split(config, 1, 2)
        self.wait_until(held.exists, "a response whose score does not come", job)
        os.kill(harness.pids_of(job)[1], signal.SIGTERM)
        self.wait_until(lambda: len(self.steps("left")) == 3, "all steps, by the other worker", job)
        hold.unlink()
        self.ends(job)
        self.assertEqual(self.learnt("left"), self.learnt("colocated"))
        self.assertEqual(self.digests("left", 3), self.digests("colocated", 3))

    def test_a_job_of_which_all_are_asked_to_stop_saves_what_it_has_trained(self):
        """The workers have left: nobody is left to wait for."""
        hold, held = self.folder / "hold", self.folder / "held"
        (self.folder / "verify.py").write_text(self.VERIFIER.replace('os.environ.get("RANK") == "1" and ', ""))
        changes = {"trainer__save_freq": 40, "trainer__test_freq": -1, "trainer__total_training_steps": 40, "reward__type": "command",
                   "reward__command": [sys.executable, str(self.folder / "verify.py"), str(hold), str(held)], **self.UNSCORED}  # fmt: skip
        self.train(self.rl("colocated", **changes), ranks=2)
        config = self.split("stopped", **self.PATIENT, **changes)
        job = self.start_split(config, 2, 1)
        self.wait_until(lambda: len(self.steps("stopped")) >= 3, "three steps", job)
        hold.touch()
        self.wait_until(held.exists, "a response whose score does not come", job)
        ranks = harness.pids_of(job)
        for rank in (1, 2):  # not that with the desk: those that train agree
            os.kill(ranks[rank], signal.SIGUSR1)
        self.wait_until(lambda: (self.run_dir("stopped") / "latest_checkpointed_iteration.txt").exists(), "its save", job)
        hold.unlink()
        self.assertEqual(job.wait(timeout=harness.LIMIT_S), 75, self.log()[-6000:])
        trained = max(self.steps("stopped"))
        self.assertLess(trained, 40)
        self.assertEqual((self.run_dir("stopped") / "latest_checkpointed_iteration.txt").read_text(), f"{trained}\n")
        self.ends(self.start_split(config, 2, 1))
        self.assertEqual(self.learnt("stopped"), self.learnt("colocated"))
        self.assertEqual(self.digests("stopped", 40), self.digests("colocated", 40))

    def test_a_job_whose_last_worker_was_asked_to_stop_saves_before_it_gives_up(self):
        """Nobody starts such a worker again: what has been trained meanwhile is on the disk, and the exit code names what was missing."""
        hold, held = self.folder / "hold", self.folder / "held"
        (self.folder / "verify.py").write_text(self.VERIFIER.replace('os.environ.get("RANK") == "1" and ', ""))
        changes = {"trainer__save_freq": 40, "trainer__test_freq": -1, "trainer__total_training_steps": 12, "reward__type": "command",
                   "reward__command": [sys.executable, str(self.folder / "verify.py"), str(hold), str(held)], **self.UNSCORED,
                   "reward__timeout_seconds": 3, "reward__max_retries": 0}  # fmt: skip
        self.train(self.rl("colocated", **changes))
        for validating in (False, True):
            with self.subTest(validating=validating):
                name = f"left_{validating}"
                config = self.split(name, **{**changes, "trainer__deadline_seconds": 6, "trainer__test_freq": 1 if validating else -1})
                job = self.start_split(config, 1, 1)
                self.wait_until(lambda name=name: len(self.steps(name)) >= 3, "three steps", job)
                hold.touch()
                self.wait_until(held.exists, "a response whose score does not come", job)
                os.kill(harness.pids_of(job)[1], signal.SIGTERM)
                time.sleep(0.5)
                hold.unlink()
                self.assertEqual(job.wait(timeout=harness.LIMIT_S), 69, self.log()[-6000:])
                self.assertIn("no rollout worker is left", self.log())
                trained = max(self.steps(name))
                self.assertLess(trained, 12)
                self.assertEqual((self.run_dir(name) / "latest_checkpointed_iteration.txt").read_text(), f"{trained}\n")
                held.unlink()
                self.ends(self.start_split(config, 1, 1))
                self.assertEqual(self.digests(name, 12), self.digests("colocated", 12))

    def test_a_trainer_that_dies_anywhere_goes_on_from_its_ledger(self):
        changes = {"trainer__save_freq": 1, "trainer__test_freq": 3, "async_training__partial_report_tokens": 1}
        self.train(self.rl("colocated", **changes))
        for i, point in enumerate(("rl.rollout:0:3:kill", "rl.experience:0:4:kill", "sync.done:0:3:kill",
                                   "sync.round:0:8:kill", "save.write:0:3:kill", "commit.renamed:0:2:kill")):  # fmt: skip
            with self.subTest(point=point):
                name = f"killed_{i}"
                config = self.split(name, async_training__min_workers=2, **changes)  # both take part in each round
                died = self.launch(config, 1, 2, environment={"KEEL_FAILPOINT": point})
                self.assertNotEqual(died.returncode, 0)
                done = self.launch(config, 1, 2)
                self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
                self.assertIn("resumed from", done.stdout + done.stderr)
                self.assertEqual(self.learnt(name), self.learnt("colocated"))
                self.assertEqual(self.digests(name, 6), self.digests("colocated", 6))

    def test_generating_ahead_is_bounded_and_goes_on_after_a_crash(self):
        for staleness, changes in ((1, {}), (3, {"algorithm__adv_estimator": "gae"})):
            with self.subTest(staleness=staleness):
                name = f"ahead_{staleness}"
                dump = f"trainer.rollout_data_dir={self.folder / name}"
                config = self.split(
                    name, async_training__max_staleness=staleness, async_training__partial_report_tokens=1,
                    algorithm__rollout_correction__rollout_is="token", trainer__total_training_steps=10, trainer__save_freq=2,
                    actor_rollout_ref__actor__checkpoint__async_save=False,  # that of step 4 is whole when step 5 begins
                    **({"trainer__rollout_data_dir": str(self.folder / name)} if staleness == 1 else {}),
                    **self.PATIENT, **changes)  # fmt: skip
                died = self.start_split(config, 2, 2, "step.end:1:4:stop,rl.experience:1:6:kill")
                # Before step 4 ends the workers have the time for all that they may generate: its save has it.
                self.stopped_rank(died, 1)
                self.wait_until(lambda: self.finished(name) == 32 * staleness, "all that is allowed", died)
                self.continued(died, 1)
                self.assertNotEqual(died.wait(timeout=harness.LIMIT_S), 0)
                done = self.launch(config, 2, 2, dump, environment={"KEEL_FAILPOINT": "worker.step:2:20:kill"})
                self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
                self.assertRegex(done.stdout + done.stderr, r"\d+ samples of the checkpoint go on, begun or done")
                steps = self.steps(name)
                self.assertEqual(sorted(steps), list(range(1, 11)))
                ages = [data["off_policy/max"] for data in steps.values()]
                self.assertEqual(max(ages), staleness)
                self.assertEqual({data["fully_async/count/dropped_samples"] for data in steps.values()}, {0})
                # Each position once, in order, whatever died; those too that nobody wanted to read when they were generated.
                first = 1 if staleness == 1 else 5
                rows = [row for step in range(first, 11) for row in harness.read_jsonl(self.folder / name / f"{step}.jsonl")]
                self.assertEqual([row["position"] for row in rows], [position for position in range(8 * first - 8, 80) for _ in range(4)])
                self.assertEqual([row for row in rows if row["finish_reason"] == "length" and not row["output"]], [])

    def test_steps_that_filter_their_groups_take_more_of_the_same_version(self):
        changes = {"algorithm__filter_groups__enable": True, "algorithm__filter_groups__max_num_gen_batches": 20,
                   "actor_rollout_ref__model": {"path": self.warm_up(36)}, "data__train_batch_size": 4}  # fmt: skip
        done = self.same_as_colocated({}, 1, 1, 2, **changes)
        self.assertTrue(any(d["rollout/gen_batches"] > 1 for d in self.steps("split").values()), done.stdout[-3000:])

    AHEAD = {"async_training__max_staleness": 2, "async_training__partial_report_tokens": 1, "trainer__save_freq": 4,
             "algorithm__rollout_correction__rollout_is": "token", "trainer__total_training_steps": 8}  # fmt: skip

    def same_run(self, name, other):
        of_workers = ("rollout/sync_bytes", "rollout/recomputed_tokens", "fully_async/count/", "fully_async/trainer/", "fully_async/rollouter/")

        def stable(run):  # but for what depends on how many workers there are
            return {step: {k: v for k, v in data.items() if not k.startswith(of_workers)} for step, data in self.stable(run).items()}

        self.assertEqual(stable(name), stable(other))
        self.assertEqual(self.digests(name, 8), self.digests(other, 8))

    def test_a_recorded_run_is_replayed_bit_for_bit_by_any_workers(self):
        """Also one in which a trainer and a worker died on the way. Its weights are sent so slowly that the next step is at its
        update before they have left: had it not waited, others than those of the version would have arrived."""
        schedule = self.folder / "schedule"
        config = self.split("recorded", **self.AHEAD, async_training__schedule_record=str(schedule))
        died = self.launch(config, 1, 2, environment={"KEEL_FAILPOINT": "rl.experience:0:6:kill"})
        self.assertNotEqual(died.returncode, 0)
        self.assertEqual({path.name for path in schedule.glob("*.jsonl")}, {f"{step}.jsonl" for step in range(1, 6)}, "steps that are done")
        (schedule / "9.jsonl").write_text("of a start that came further\n")
        done = self.launch(config, 1, 2, environment={"KEEL_FAILPOINT": "worker.step:2:12:kill,sync.round:0:*:delay=150"})
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertTrue((schedule / "earlier.1" / "9.jsonl").exists())
        self.assertGreater(max(d["off_policy/max"] for d in self.steps("recorded").values()), 0)
        for workers in (1, 3):
            name = f"replayed_{workers}"
            replay = self.split(name, **self.AHEAD, async_training__schedule_replay=str(schedule))
            done = self.launch(replay, 1, workers)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
            self.same_run(name, "recorded")
        # What it cannot be a replay of is named.
        longer = self.launch(replay, 1, 1, "trainer.total_training_steps=9", f"trainer.default_local_dir={self.folder}/longer")
        self.assertEqual(longer.returncode, 78)
        self.assertIn("lacks sample 0 of position 64", longer.stderr)
        other = self.launch(replay, 1, 1, "trainer.seed=7", f"trainer.default_local_dir={self.folder}/other")
        self.assertNotEqual(other.returncode, 0)
        self.assertIn("is not the one that was recorded", other.stderr)
        taken = harness.read_jsonl(schedule / "1.jsonl")
        for version, code, message in ((40, 78, "wants version 40 for sample 0 of position 0"), (0, 65, "1.jsonl:1: spans: version 0")):
            taken[0]["spans"] = [[0, version]]
            (schedule / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in taken))
            never = self.launch(replay, 1, 1, f"trainer.default_local_dir={self.folder}/never_{version}")
            self.assertEqual(never.returncode, code, never.stdout[-3000:] + never.stderr[-2000:])
            self.assertIn(message, never.stderr)
        # Where the trainers generate themselves, nothing that workers had begun goes on, and that is said.
        turns = self.rl("turns", trainer__resume_mode="resume_path", trainer__total_training_steps=5,
                        trainer__resume_from_path=str(self.run_dir("recorded") / "global_step_4"))  # fmt: skip
        done = harness.keel("train", turns)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertRegex(done.stdout + done.stderr, r"[1-9]\d* samples that the checkpoint holds, begun or done, are generated again: async_training.placement")

    def test_a_recorded_run_that_filters_its_groups_is_replayed(self):
        """Workers begin ahead while a step takes more, as many as they come to."""
        changes = {"algorithm__filter_groups__enable": True, "algorithm__filter_groups__max_num_gen_batches": 20,
                   "actor_rollout_ref__model": {"path": self.warm_up(36)}, "data__train_batch_size": 4, **self.AHEAD}  # fmt: skip
        schedule = self.folder / "schedule"
        done = self.launch(self.split("recorded", **changes, async_training__schedule_record=str(schedule)), 1, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertTrue(any(d["rollout/gen_batches"] > 1 for d in self.steps("recorded").values()))
        replay = self.split("replayed", **changes, async_training__schedule_replay=str(schedule))
        done = self.launch(replay, 1, 1)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.same_run("replayed", "recorded")
        longer = self.launch(replay, 1, 1, "trainer.total_training_steps=9")
        self.assertEqual(longer.returncode, 78)
        self.assertIn("the recorded schedule is used up", longer.stderr)

    def test_a_deterministic_run_is_the_same_with_any_workers(self):
        for workers in (1, 3):
            config = self.split(f"workers_{workers}", **self.AHEAD, async_training__deterministic=True)
            died = self.launch(config, 1, workers, environment={"KEEL_FAILPOINT": f"rl.rollout:0:{5 + workers}:kill"})
            self.assertNotEqual(died.returncode, 0)
            done = self.launch(config, 1, workers)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertEqual(max(d["off_policy/max"] for d in self.steps("workers_1").values()), 2)
        self.assertGreater(max(d["fully_async/partial/max_partial_span"] for d in self.steps("workers_1").values()), 1)
        self.same_run("workers_1", "workers_3")

    def test_kept_keys_and_values_are_computed_once(self):
        """With nobody ahead nothing runs under new weights, and it is the colocated run."""
        kept = {"async_training__recompute_kv": False}
        self.train(self.rl("colocated"))
        done = self.launch(self.split("split", **kept), 1, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertEqual(self.learnt("split"), self.learnt("colocated"))
        # Workers so slow that weights come while they generate, and that they have time to say what they do.
        slow = {"KEEL_FAILPOINT": "worker.step:*:*:delay=100,rl.experience:0:8:delay=3000"}
        for name, changes in (("again", {}), ("once", kept)):
            # Weights are soon there, and a response is not: it takes more than a second.
            config = self.split(name, **self.AHEAD, data__max_response_length=16, **changes)
            done = self.launch(config, 1, 2, environment=slow)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
            steps = self.steps(name)
            self.assertGreater(max(d["fully_async/partial/max_partial_span"] for d in steps.values()), 1)
            self.assertLessEqual(max(d["off_policy/max"] for d in steps.values()), 2)
            self.assertEqual(steps[8]["rollout/recomputed_tokens"] > 0, name == "again")  # once a second

    def test_a_response_that_takes_too_long_is_ended_and_trained(self):
        """Every step of a worker is so slow that no response of more than some tokens is done in its time; but it has as much time again
        to hear that it is to end them."""
        config = self.split("slow", async_training__max_response_seconds=5, trainer__total_training_steps=2, data__max_response_length=60,
                            trainer__rollout_data_dir=str(self.folder / "slow"))  # fmt: skip
        done = self.launch(config, 1, 1, environment={"KEEL_FAILPOINT": "worker.step:*:*:delay=200"})
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        steps = self.steps("slow")
        self.assertGreater(steps[2]["fully_async/count/overdue"], 0)
        self.assertEqual({d["fully_async/count/dropped_samples"] for d in steps.values()}, {0})
        responses = [r for step in (1, 2) for r in harness.read_jsonl(self.folder / "slow" / f"{step}.jsonl")]
        self.assertEqual([r["position"] for r in responses], [position for position in range(16) for _ in range(4)])
        cut = [r for r in responses if r["finish_reason"] == "length" and len(r["response_ids"]) < 60]
        self.assertTrue(cut)
        self.assertEqual([r for r in cut if "error" in r], [], "its worker ended each of them")

    def test_a_score_that_comes_in_the_next_validation_changes_nothing(self):
        """Of a response that the desk has ended, since its verifier took too long; the same row is asked again meanwhile."""
        reward = self.folder / "reward.py"
        reward.write_text(
            "import os, time\n"
            "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
            f"    mark = {str(self.folder / 'slow_')!r} + str(ground_truth)\n"
            "    if data_source == 'slow' and not os.path.exists(mark):\n"
            "        open(mark, 'w').close()\n"
            "        time.sleep(5.5)\n"
            "    return 0.5 + 0.1 * len(solution_str)\n"
        )
        rows = harness.read_jsonl(self.folder / "val.jsonl")[:4]
        for i, row in enumerate(rows):
            row.update({"data_source": "slow" if i < 2 else "quick", "answer": f"{i}"})
        (self.folder / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = self.split("late", async_training__max_response_seconds=2, trainer__total_training_steps=12, trainer__test_freq=1,
                            trainer__val_before_train=True, trainer__validation_data_dir=str(self.folder / "val"),
                            reward={"custom_reward_function": {"path": str(reward)}, "python": sys.executable, "num_workers": 8,
                                    "timeout_seconds": 20, "on_error": "zero"}, reward__format_pattern=None,
                            async_training__partial_report_tokens=1)  # fmt: skip
        done = self.launch(config, 1, 1, environment={"KEEL_FAILPOINT": "worker.step:*:*:delay=30"})
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said[-4000:])
        self.assertNotIn("is given up", said)
        first, *others = [harness.read_jsonl(self.folder / "val" / f"{step}.jsonl") for step in range(13)]
        self.assertEqual(["error" in r for r in first], [True, True, False, False], first)
        for found in others:
            self.assertEqual([r["row"] for r in found], [r["row"] for r in first])
            self.assertFalse([r for r in found if "error" in r], found)

    def test_ready_samples_come_first_and_each_position_once(self):
        """One of the workers stands still, and steps pass it by; the other dies, and a trainer. The rest is trained in order."""
        changes = {**self.AHEAD, **self.PATIENT, "async_training__order": "ready_first", "trainer__save_freq": 1,
                   "async_training__min_workers": 2, "actor_rollout_ref__rollout__max_num_seqs": 16,
                   "trainer__rollout_data_dir": str(self.folder / "ready")}  # fmt: skip
        config = self.split("ready", **changes)
        # The first step needs more than the other has done when it dies.
        died = self.start_split(config, 1, 2, "worker.step:1:1:stop,worker.step:2:12:kill,rl.experience:0:6:kill")
        self.wait_until(lambda: self.steps("ready"), "a step that passes the other by", died)
        self.continued(died, 1)
        self.assertNotEqual(died.wait(timeout=harness.LIMIT_S), 0)
        self.assertIn("rollout rank 2 was killed by SIGKILL; it is started again", self.log())
        put_off = {step: data["fully_async/count/put_off"] for step, data in self.steps("ready").items()}
        self.assertGreater(put_off[1], 0, "the first step did not pass the other by")
        saved = checkpoint_files.steps(self.run_dir("ready"))
        # What generates in turns cannot go on from there.
        between = max(step for step, count in put_off.items() if count > 0 and step in saved)
        turns = self.rl("turns", trainer__resume_mode="resume_path",
                        trainer__resume_from_path=str(self.run_dir("ready") / f"global_step_{between}"))  # fmt: skip
        refused = harness.keel("train", turns)
        self.assertEqual(refused.returncode, 78, refused.stdout[-2000:] + refused.stderr[-2000:])
        self.assertIn("others before them are not", refused.stdout + refused.stderr)
        config = self.split("ready", **{**changes, "async_training__order": "in_order"})
        done = self.launch(config, 1, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        steps = self.steps("ready")
        self.assertEqual(sorted(steps), list(range(1, 9)))
        self.assertLessEqual(max(d["off_policy/max"] for d in steps.values()), 2)
        trained = [(r["position"], r["sample"]) for step in steps for r in harness.read_jsonl(self.folder / "ready" / f"{step}.jsonl")]
        everything = [(position, sample) for position in range(64) for sample in range(4)]
        self.assertEqual(sorted(trained), everything)
        self.assertNotEqual(trained, everything)
        # Responses that were trained out of turn are a batch of prompts to whoever replays them.
        self.train(self.rl("replayed", trainer__rollout_replay_dir=str(self.folder / "ready"), trainer__total_training_steps=8))
        taken = [d["training/prompts_consumed"] for d in self.steps("replayed").values()]
        self.assertEqual(taken, [8 * step for step in range(1, 9)])
        # Where nobody is ahead nothing can be put off.
        changes = {"trainer__total_training_steps": 3, "trainer__save_freq": 3}
        self.train(self.rl("colocated", **changes))
        done = self.launch(self.split("together", async_training__order="ready_first", **changes), 1, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertEqual(self.learnt("together"), self.learnt("colocated"))

    def status(self, name, *flags):
        return subprocess.run([harness.KEEL, "status", str(self.run_dir(name)), *flags], capture_output=True, text=True,
                              timeout=60, check=False)  # fmt: skip

    def test_status_shows_a_run_while_it_lives_and_after(self):
        self.assertEqual(self.status("shown").returncode, 66)
        self.run_dir("other").mkdir()
        other = self.status("other")
        self.assertEqual(other.returncode, 66)
        self.assertIn("no run has written here", other.stderr)
        # Neither takes all.
        config = self.split("shown", **self.AHEAD, **self.PATIENT, async_training__min_workers=2, actor_rollout_ref__rollout__max_num_seqs=16)
        # Both workers stand still with what they have, until they were looked at.
        job = self.start_split(config, 1, 2, "worker.step:*:1:stop")
        self.wait_until(lambda: self.serving("shown") == 2, "both workers", job)
        shown = self.desk("shown")
        text = self.status("shown").stdout
        mode = os.stat(self.run_dir("shown") / "desk.json").st_mode & 0o777
        # A second one in its folder is turned away, and takes nothing with it.
        second = self.launch(config, 1, 1)
        self.assertNotEqual(second.returncode, 0)
        self.assertEqual(self.status("shown").returncode, 0, second.stderr[-2000:])
        for worker in (1, 2):
            self.continued(job, worker)
        self.ends(job)
        self.assertGreaterEqual(shown["version"], 1)
        self.assertEqual(set(shown["streams"]["train"]), {"frontier", "steps", "finished", "running", "waiting"})
        self.assertEqual(shown["lost"], 0)
        self.assertEqual(mode, 0o600)
        self.assertRegex(text, r"workers +2 there, 0 lost")
        after = json.loads(self.status("shown", "--json").stdout)
        self.assertEqual((after["step"]["step"], after["checkpoint"], after["desk"]), (8, 8, None))
        idle = [d[f"fully_async/{who}/idle_ratio"] for d in self.steps("shown").values() for who in ("trainer", "rollouter")]
        self.assertTrue(all(0 <= ratio <= 1 for ratio in idle), idle)
        # Of a run whose trainers are gone the folder says where they were.
        died = self.launch(config, 1, 1, "trainer.total_training_steps=12", "async_training.min_workers=1",
                           environment={"KEEL_FAILPOINT": "rl.experience:0:2:kill"})  # fmt: skip
        self.assertNotEqual(died.returncode, 0)
        gone = self.status("shown")
        self.assertEqual(gone.returncode, 69)
        self.assertIn("the trainers are gone", gone.stdout)

    def joined(self, name, ranks, **changes):
        """A run of one trainer and one worker, which stands still until the others have come, and what became of those."""
        config = self.split(name, trainer__save_freq=6, trainer__test_freq=3, **self.PATIENT, **changes)
        said = {}
        tp = changes.get("actor_rollout_ref__rollout__tensor_model_parallel_size", 1)
        begin = len(self.log())
        job = self.start_split(config, 1, tp, "worker.step:1:10:stop")
        self.stopped_rank(job, 1)
        desk = json.loads((self.run_dir(name) / "desk.json").read_text())
        address = f"{desk['host']}:{desk['port']}"
        with self.join(config, address, "trainer.seed=99", ranks=ranks) as other, \
                self.join(config, address, ranks=ranks, secret="x" * 32) as stranger:  # fmt: skip
            for who, process in {"other": other, "stranger": stranger}.items():
                said[who], _ = process.communicate(timeout=harness.LIMIT_S)
        with self.join(config, address, ranks=ranks) as more:
            self.wait_until(lambda: self.serving(name) == 2, "the one that joined serves", job)
            self.continued(job, 1)
            said["joined"], _ = more.communicate(timeout=harness.LIMIT_S)
        out = self.ends(job)[begin:]
        self.assertEqual(more.returncode, 0, said["joined"][-4000:])
        self.assertIn("joined 0", out)
        self.assertEqual(other.returncode, 78, said["other"])
        self.assertIn("trainer.seed is 99 there", said["other"])
        self.assertEqual(stranger.returncode, 64, said["stranger"])
        self.assertIn("secret", said["stranger"])
        self.assertGreater(max(d["fully_async/count/workers"] for d in self.steps(name).values()), 1)

    def test_workers_join_a_run_that_is_under_way(self):
        """And it is the same run."""
        changes = {"trainer__save_freq": 6, "trainer__test_freq": 3}
        self.train(self.rl("colocated", **changes))
        self.joined("more", 1)
        self.assertEqual(self.learnt("more"), self.learnt("colocated"))
        turns = self.join(self.rl("turns"), "127.0.0.1:1")
        said, _ = turns.communicate(timeout=harness.LIMIT_S)
        self.assertEqual(turns.returncode, 78, said)
        odd = self.join(self.split("odd", actor_rollout_ref__rollout__tensor_model_parallel_size=2), "127.0.0.1:1")
        said, _ = odd.communicate(timeout=harness.LIMIT_S)
        self.assertEqual(odd.returncode, 78, said)
        self.assertIn("1 ranks are no whole number of replicas", said)
        self.joined("pair", 2, actor_rollout_ref__rollout__tensor_model_parallel_size=2)
        self.assertEqual(self.digests("pair", 6), self.digests("colocated", 6))

    def test_who_joins_before_there_is_a_folder_waits_for_it(self):
        config = self.split("none")
        early = self.join(config, "127.0.0.1:1", "trainer.deadline_seconds=2")
        said, _ = early.communicate(timeout=harness.LIMIT_S)
        self.assertEqual(early.returncode, 69, said)
        self.assertIn("waits for the run's trainers to write the secret", said)
        self.assertRegex(said, "no secret that the desk at 127.0.0.1:1 takes came to .* within 2 s .*set KEEL_JOB_SECRET")
        (self.run_dir("none")).symlink_to("none")  # nobody can read it
        done = self.join(config, "127.0.0.1:1")
        said, _ = done.communicate(timeout=harness.LIMIT_S)
        self.assertEqual((done.returncode, "no secret to join the run with: set KEEL_JOB_SECRET" in said), (64, True), said)

    def test_what_cannot_be_is_refused_at_the_start(self):
        config = self.split("run")
        for command, code, message in (
            (("launch", "--nproc-per-node", "3", "--roles", "trainer:1,rollout:1"), 64, "trainer 1 + rollout 1 != 3 ranks"),
            (("launch", "--nproc-per-node", "2", "--roles", "trainer:1,worker:1"), 64, "expected trainer:N,rollout:M"),
            (("launch", "--nproc-per-node", "2"), 78, "needs to know who trains"),
        ):
            with self.subTest(command=command):
                done = harness.keel(*command, "train", config)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertIn(message, done.stdout + done.stderr)
        done = self.launch(config, 1, 1, "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
        self.assertEqual(done.returncode, 78)
        self.assertIn("world size 2 = 1 trainers + 1 rollout ranks: 1 is no multiple of", done.stdout + done.stderr)
        done = self.launch(config, 1, 1, "async_training.max_staleness=1")
        self.assertEqual(done.returncode, 78)
        self.assertIn("nothing corrects for older weights", done.stdout + done.stderr)
        done = self.launch(config, 1, 1, "async_training.min_workers=2", "trainer.deadline_seconds=12")
        self.assertEqual(done.returncode, 69)
        self.assertIn("1 of async_training.min_workers 2 rollout workers were there", done.stdout + done.stderr)
        done = self.launch(self.rl("colocated"), 1, 1)
        self.assertEqual(done.returncode, 78)
        self.assertIn("--roles is given, and async_training.placement is colocated", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
