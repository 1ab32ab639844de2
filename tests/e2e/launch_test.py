"""Signals, hangs and other launchers: whoever starts the ranks, and however they are stopped."""

import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import unittest
from unittest import mock

import checkpoint_files
import harness

STEPS = 12
PREEMPTED = 75
PIPELINE = {"actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": 2}
TENSOR = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2}


class Preempted(harness.Job):
    # A signal to any rank, or to the launcher, which passes it on.
    def check(self, name, number, ranks, choose, **layout):
        # Without due saves: the one that is found was made because of the signal.
        config = self.config(name, trainer__save_freq=1000, trainer__total_training_steps=100000, **layout)
        process = self.start(config, ranks=ranks)
        self.wait_until(lambda: len(self.metrics(name)) >= 3, "step 3", process)
        harness.kill(choose(process), number)
        process.wait(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, PREEMPTED, self.log()[-2000:])
        trained = max(self.metrics(name))
        self.assertEqual(checkpoint_files.steps(self.run_dir(name)), [trained])
        self.assertEqual(checkpoint_files.latest(self.run_dir(name)), trained)

        self.train(config, f"trainer.total_training_steps={trained + 2}", ranks=ranks)
        self.assertEqual(sorted(self.metrics(name)), list(range(1, trained + 3)))

    def test_single_process(self):
        self.check("single", signal.SIGTERM, 1, lambda process: process.pid)

    def test_through_the_launcher(self):
        self.check("launched", signal.SIGTERM, 2, lambda process: process.pid, **PIPELINE)

    def test_on_one_rank_alone(self):
        self.check("one_rank", signal.SIGUSR1, 2, lambda p: harness.ranks_below(p)[1], **TENSOR)


class PreemptedAtOnce(harness.Job):
    """Told to stop before libtorch is there: as when it comes later, since the handlers were first."""

    def check_end(self, name, process):
        process.wait(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, PREEMPTED, self.log()[-2000:])
        trained = max(self.metrics(name))
        self.assertEqual(checkpoint_files.steps(self.run_dir(name)), [trained])

    def config_of(self, name, **layout):
        return self.config(name, trainer__save_freq=1000, trainer__total_training_steps=100000, **layout)

    def test_while_libtorch_is_loaded(self):
        process = self.start(self.config_of("loading"))
        folder = pathlib.Path("/proc", str(process.pid))

        def loads():
            # In this order: what is handled by then was handled before.
            handled = re.search(r"SigCgt:\s*(\w+)", (folder / "status").read_text())
            loaded = "libtorch_cpu" in (folder / "maps").read_text()
            after = re.search(r"SigCgt:\s*(\w+)", (folder / "status").read_text())
            for number in (signal.SIGTERM, signal.SIGUSR1) if loaded else ():
                self.assertTrue(int(after[1], 16) >> (number - 1) & 1, "libtorch is there before the handlers")
            return loaded and handled

        self.wait_until(loads, "libtorch is being loaded", process)
        harness.kill(process.pid, signal.SIGTERM)
        self.check_end("loading", process)

    def test_the_moment_its_ranks_are_there(self):
        # Held back in a rank until its handlers are there: there is no moment that is too early.
        for attempt in range(3):
            with self.subTest(attempt=attempt):
                name = f"launched_{attempt}"
                process = self.start(self.config_of(name, **PIPELINE), ranks=2)
                self.wait_until(lambda p=process: len(harness.descendants(p.pid)) == 2, "two ranks", process)
                harness.kill(process.pid, signal.SIGTERM)
                self.check_end(name, process)


class ToldTwice(harness.Job):
    """There is no time to save: the job ends at once, also where failures are answered by restarts."""

    def command(self, config, ranks, *overrides):
        return ["launch", "--max-restarts", "1", *self.flags, "train", str(config), *overrides]

    def check(self, number, nodes, choose):
        config = self.config("twice", trainer__save_freq=1000, trainer__total_training_steps=100000, **TENSOR)
        os.environ["KEEL_FAILPOINT"] = "save.collect:0:*:delay=100000"
        self.addCleanup(os.environ.pop, "KEEL_FAILPOINT")
        launchers = []
        for self.flags in nodes:
            launchers.append(self.start(config))
        self.wait_until(lambda: len(self.metrics("twice")) >= 3, "step 3", launchers[0])
        told = choose(launchers)

        def all_have_ended():
            harness.kill(told, number)
            time.sleep(1.2)
            self.assertNotIn("restart 1 of 1", self.log())
            return all(launcher.poll() is not None for launcher in launchers)

        self.wait_until(all_have_ended, "the end")
        for launcher in launchers:
            self.assertEqual(launcher.returncode, 128 + number, self.log()[-2000:])

    def test_through_the_launcher(self):
        self.check(signal.SIGUSR1, [["--nproc-per-node", "2"]], lambda launchers: launchers[0].pid)

    def test_on_one_rank_of_one_node(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:%d" % free.getsockname()[1]]
        nodes = [[*address, "--node-rank", str(node)] for node in range(2)]
        self.check(signal.SIGTERM, nodes, lambda launchers: harness.ranks_below(launchers[1])[1])


class RunTime(harness.Job):
    def test_a_restart_does_not_begin_it_again(self):
        # The first attempt, which fails, takes longer than all may.
        config = self.config("limit", trainer__save_freq=1000, trainer__total_training_steps=2000,
                             trainer__save_before_deadline="00:00:02")  # fmt: skip
        script = '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || { sleep 3; exit 1; }; exec "$0" train "$1"'
        done = harness.keel("launch", "--max-restarts", 1, "--", "sh", "-c", script, harness.KEEL, config)
        self.assertEqual(done.returncode, PREEMPTED, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertEqual(sorted(self.metrics("limit")), [1])
        self.assertEqual(checkpoint_files.steps(self.run_dir("limit")), [1])


class WeightsAlone(harness.Job):
    def test_a_restart_goes_on_with_all_of_what_the_job_has_saved(self):
        self.train(self.config("source", trainer__total_training_steps=2, trainer__save_freq=2))
        begins = {"trainer__resume_mode": "resume_path", "trainer__resume_from_path": f"{self.run_dir('source')}/global_step_2",
                  "actor_rollout_ref__actor__checkpoint__load_contents": ["model"]}  # fmt: skip
        whole = self.config("whole", trainer__total_training_steps=6, trainer__save_freq=2, **begins)
        self.train(whole)
        broken = self.config("broken", trainer__total_training_steps=6, trainer__save_freq=2, **begins,
                             actor_rollout_ref__actor__checkpoint__async_save=False)
        script = '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || export KEEL_FAILPOINT=step.end:0:3:kill; exec "$0" train "$1"'
        done = harness.keel("launch", "--max-restarts", 1, "--", "sh", "-c", script, harness.KEEL, broken)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn("load_contents are for its beginning", done.stdout + done.stderr)
        last = [checkpoint_files.digests(self.run_dir(name) / "global_step_6") for name in ("broken", "whole")]
        self.assertEqual(*last)


class Hung(harness.Job):
    def test_a_stopped_rank_ends_the_job_within_the_deadline(self):
        config = self.config("hung", trainer__total_training_steps=100000, trainer__deadline_seconds=12,
                             **TENSOR, **PIPELINE)  # fmt: skip
        process = self.start(config, ranks=4)
        self.wait_until(lambda: len(self.metrics("hung")) >= 3, "step 3", process)
        hung = harness.ranks_below(process)[2]
        harness.kill(hung, signal.SIGSTOP)
        process.wait(timeout=harness.LIMIT_S)
        self.assertNotIn(process.returncode, (0, PREEMPTED))
        self.assertRegex(self.log(), r"step \d+")
        self.assertRegex(self.log(), r"(?i)deadline|within 12")
        # Its neighbours wait for it, and others for them: all find out, and the launcher repeats it.
        self.assertRegex(self.log(), rf"root cause: .*; rank 2 \(host {socket.gethostname()}, pid {hung}\) did not give up")
        self.assertEqual(harness.ranks_below(process), {})


class Torchrun(harness.Job):
    """The same numbers under torchrun as under `keel launch`, with torchrun's own store."""

    def test_same_run(self):
        config = self.config("launched", trainer__save_freq=STEPS, **TENSOR)
        self.train(config, ranks=2)
        config = self.config("torchrun", trainer__save_freq=STEPS, **TENSOR)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
        done = subprocess.run(
            [*launcher, "--nproc-per-node", "2", harness.KEEL, "train", str(config)],
            capture_output=True, text=True, timeout=harness.LIMIT_S, env=harness.environment(), check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        expected, found = self.metrics("launched"), self.metrics("torchrun")
        self.assertEqual(sorted(found), list(range(1, STEPS + 1)))
        for step in found:
            for key in (harness.LOSS, harness.GRAD_NORM, harness.SAMPLES):
                self.assertEqual(found[step][key], expected[step][key])
        digests = [
            checkpoint_files.digests(self.run_dir(name) / f"global_step_{STEPS}") for name in ("launched", "torchrun")
        ]
        self.assertEqual(digests[0], digests[1])


class Unheard(harness.Job):
    """Of what whoever starts keel has ignored, or does not read."""

    def shell(self, script, *arguments):
        command = " ".join([shlex.quote(harness.KEEL), *map(shlex.quote, map(str, arguments))])
        return subprocess.run(["bash", "-c", script.replace("KEEL", command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=harness.LIMIT_S, env=harness.environment())  # fmt: skip

    def test_a_launcher_whose_children_nobody_waited_for_ends(self):
        """The system then keeps nothing of a child that has ended: it was waited for without an end."""
        done = self.shell("trap '' CHLD; KEEL", *self.command(self.config("ignored"), 2))
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        self.assertIn("step", done.stdout)

    def test_a_run_whose_reader_goes_away_goes_on(self):
        config = self.config("unread", trainer__logger=["console"], trainer__log_freq=1, trainer__save_freq=STEPS)
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                folder = self.folder / f"unread_{ranks}"
                command = self.command(config, ranks, f"trainer.default_local_dir={folder}")
                done = self.shell("KEEL 2>&1 | head -n 2; exit ${PIPESTATUS[0]}", *command)
                self.assertEqual(done.returncode, 0, done.stdout[-3000:])
                self.assertEqual(len(done.stdout.splitlines()), 2)
                self.assertTrue((folder / "latest_checkpointed_iteration.txt").exists())
        # What prints its data there still ends as other programs do.
        done = self.shell("(sleep 1; KEEL) | true; exit ${PIPESTATUS[0]}", "config", "docs")
        self.assertEqual(done.returncode, 141, done.stdout[-3000:])


class Scratch(harness.Job):
    def test_a_folder_for_temporary_files_that_is_not_there_is_named(self):
        with mock.patch.dict(os.environ, {"TMPDIR": "/nowhere"}):
            done = harness.keel(*self.command(self.config("run"), 2))
        self.assertEqual(done.returncode, 66, done.stderr)
        self.assertIn("the folder that TMPDIR names", done.stderr)
        self.assertFalse(self.run_dir("run").exists())


class TwoOnOneFolder(harness.Job):
    def test_the_second_names_the_holder_and_leaves(self):
        config = self.config("shared", trainer__total_training_steps=100000, trainer__save_freq=100000)
        first = self.start(config)
        self.wait_until(lambda: self.metrics("shared"), "step 1", first)
        holder = f"host {socket.gethostname()}, pid {first.pid}, since 2"
        for ranks in (1, 2):
            second = harness.keel(*self.command(config, ranks))
            output = second.stdout + second.stderr
            # Not 75, which says that the state is saved, and to run again.
            self.assertEqual(second.returncode, 69, output[-3000:])
            self.assertIn(f"{self.run_dir('shared')} is in use", output)
            self.assertIn(holder, output)
            self.assertNotIn("preempted", output)
        seen = len(self.metrics("shared"))
        self.wait_until(lambda: len(self.metrics("shared")) > seen, "a step after the second left", first)
        harness.kill(first.pid)
        first.wait()
        # A killed holder lets go.
        self.train(config, "trainer.total_training_steps=1", "trainer.resume_mode=disable")


if __name__ == "__main__":
    unittest.main()
