"""A full disk: the save fails with the reason, training goes on, and what was saved before stays good.
A run whose last save failed does not end as a success.

Runs on a small tmpfs in a mount namespace of its own; skipped where the kernel does not allow that.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

import checkpoint_files
import harness
from rl_test import RlJob

STEPS = 6
FIXTURES = pathlib.Path(os.environ["KEEL_FIXTURES"])
NO_SPACE = 74
# What the run's folder holds beside checkpoints, and block rounding.
SLACK_BYTES = 128 * 1024


def may_mount():
    if shutil.which("unshare") is None:
        return False
    trial = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def with_own_mounts(script):
    """The shell script where what it mounts is seen by itself alone."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=harness.LIMIT_S, env=harness.environment(), check=False)


@unittest.skipUnless(may_mount(), "no mount namespaces here")
class Commands(unittest.TestCase):
    def on_a_full_disk(self, script):
        """Runs it with 64 KiB at /mnt, where a command has no room."""
        done = with_own_mounts(f"mount -t tmpfs -o size=64k none /mnt || exit 99; {script}")
        self.assertEqual(done.returncode, NO_SPACE, done)
        return done

    def test_no_part_of_a_file_is_left(self):
        make = f"{harness.KEEL} data make addition --out /mnt/new.jsonl --count 100000"
        old = f"echo old > /mnt/old.jsonl; {harness.KEEL} data make addition --out /mnt/old.jsonl --count 100000 --force"
        done = self.on_a_full_disk(f"{make} && exit 98; {old}; code=$?; ls -A /mnt; cat /mnt/*; exit $code")
        self.assertEqual(done.stdout, "old.jsonl\nold\n")
        for name in ("new", "old"):
            self.assertIn(f"write /mnt/{name}.jsonl.partial: No space left on device", done.stderr)

    def test_nothing_is_left_of_scores_whose_logits_have_no_room(self):
        rows = json.dumps({"input_ids": [1] * 100})  # of 263 logits each
        score = f"echo '{rows}' | {harness.KEEL} score --model {FIXTURES / 'llama' / 'hf'} --input - --output /mnt/s.jsonl --logits /mnt/l.safetensors"
        done = self.on_a_full_disk(f"{score}; code=$?; ls -A /mnt; exit $code")
        self.assertEqual(done.stdout, "", done)
        self.assertIn("--logits: write /mnt/l.safetensors.partial: No space left on device", done.stderr)

    def test_nothing_is_left_of_a_model_that_adapters_were_to_be_merged_into(self):
        with tempfile.TemporaryDirectory() as folder:
            adapter = pathlib.Path(folder)
            weights = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight": shape for part, shape in (("A", [2, 64]), ("B", [64, 2]))}
            header, end = {}, 0
            for name, shape in weights.items():
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + 512]}
                end += 512
            text = json.dumps(header).encode()
            (adapter / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
            (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["layers.0.self_attn.q_proj"]}))
            merge = f"{harness.KEEL} ckpt merge-adapter {adapter} --base {FIXTURES / 'llama' / 'hf'} --out /mnt/merged"
            done = self.on_a_full_disk(f"{merge}; code=$?; ls -A /mnt; exit $code")
        self.assertEqual(done.stdout, "", done)
        self.assertRegex(done.stderr, r"write /mnt/\.merged\.\w+\.partial/model\.safetensors: No space left on device")


@unittest.skipUnless(may_mount(), "no mount namespaces here")
class Dumps(RlJob):
    def test_responses_that_are_lost_are_counted_and_the_run_goes_on(self):
        dumps = {"trainer__rollout_data_dir": "/mnt/train", "trainer__validation_data_dir": "/mnt/val"}
        config = self.rl("run", trainer__test_freq=3, data__train_batch_size=2, actor_rollout_ref__rollout__n=2, **dumps)
        # Room for the files of two steps, of a page each.
        script = f"mount -t tmpfs -o size=8k none /mnt || exit 99; {harness.KEEL} train {config}; code=$?; ls /mnt/*; exit $code"
        done = with_own_mounts(script)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said[-3000:])
        self.assertEqual(len(self.steps("run")), 6)
        for key, folder, step, lost, files in (("rollout", "train", 3, 1, 3), ("rollout", "train", 6, 4, 6), ("validation", "val", 6, 2, 2)):
            self.assertIn(
                f"trainer.{key}_data_dir: the responses of step {step} are lost, {lost} of {files} files so far: "
                f"write /mnt/{folder}/{step}.jsonl: No space left on device", said,
            )  # fmt: skip
        self.assertTrue(done.stdout.endswith("/mnt/train:\n1.jsonl\n2.jsonl\n\n/mnt/val:\n"), done.stdout[-300:])


@unittest.skipUnless(may_mount(), "no mount namespaces here")
class Scratch(harness.Job):
    def test_a_full_folder_for_temporary_files_costs_a_rank_its_status_and_logs_some_lines(self):
        """Of the launcher: what a rank does is not known there then, and files of its output are cut short, which is said."""
        config = self.config("run", trainer__total_training_steps=2, trainer__save_freq=2)
        full = "mount -t tmpfs -o size=64k none /mnt && mkdir /mnt/tmp && (head -c 100000 /dev/zero > /mnt/filler; true)"
        for flags, lost in (("", False), ("--log-dir /mnt/tmp --tee 3", True)):
            with self.subTest(flags=flags):
                shutil.rmtree(self.run_dir("run"), ignore_errors=True)
                script = f"{full} 2>/dev/null || exit 99; TMPDIR=/mnt/tmp {harness.KEEL} launch --nproc-per-node 1 {flags} train {config}"
                done = with_own_mounts(script)
                said = done.stdout + done.stderr
                self.assertEqual(done.returncode, 0, said[-3000:])
                self.assertEqual(checkpoint_files.steps(self.run_dir("run")), [2])
                self.assertEqual("output is lost: write /mnt/tmp" in said, lost, said[-3000:])
                self.assertEqual(bool(re.search(r"stderr.log lacks \d+ bytes of its output", said)), lost, said[-3000:])


@unittest.skipUnless(may_mount(), "no mount namespaces here")
class DiskFull(harness.Job):
    def checkpoint_bytes(self):
        """Of one checkpoint of this job, on a disk with room."""
        self.train(self.config("roomy", trainer__total_training_steps=1, trainer__save_freq=1))
        step = self.run_dir("roomy") / "global_step_1"
        return sum(path.stat().st_size for path in step.rglob("*") if path.is_file())

    def train_on_small_disk(self, name, limit, then="", first="", **changes):
        """Trains with a run directory on a tmpfs of this limit; afterwards its content is a plain folder.

        `then` is a command to be run on the same disk after that, which the exit code is of. `first`: NAME=VALUE for the first alone.
        """
        run, kept = self.run_dir(name), self.folder / f"{name}.kept"
        run.mkdir()
        settings = {"trainer__total_training_steps": STEPS, "trainer__save_freq": 2, **changes}
        config = self.config(name, **settings)
        script = (
            f"mount -t tmpfs -o {limit} none {run} || exit 99; {first} {harness.KEEL} train {config}; {then} code=$?;"
            f" cp -a {run} {kept}; exit $code"
        )
        done = with_own_mounts(script)
        run.rmdir()
        kept.rename(run)
        return done

    def check_steps(self, name, expected):
        self.assertEqual(checkpoint_files.steps(self.run_dir(name)), expected)
        self.assertEqual(checkpoint_files.latest(self.run_dir(name)), expected[-1] if expected else None)
        for step in expected:
            verified = harness.keel("ckpt", "verify", self.run_dir(name) / f"global_step_{step}")
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        left = [p.name for p in self.run_dir(name).iterdir() if p.name.startswith(".tmp-")]
        self.assertEqual(left, [])

    def test_room_for_no_checkpoint(self):
        done = self.train_on_small_disk("none", f"size={self.checkpoint_bytes() // 2}", trainer__disk_check="warn")
        output = done.stdout + done.stderr
        self.assertEqual(sorted(self.metrics("none")), list(range(1, STEPS + 1)), output[-3000:])
        self.assertRegex(output, r"step 2 was not saved: .*/none: the checkpoint needs \d+ bytes, \d+ are free")
        self.assertIn("the state of the last step, 6, is not saved", output)
        self.assertEqual(done.returncode, NO_SPACE)
        self.assertIn("set trainer.disk_check to warn", output)
        self.check_steps("none", [])

    def test_refused_at_the_start(self):
        size = self.checkpoint_bytes()
        done = self.train_on_small_disk("refused", f"size={2 * size}", trainer__max_ckpts_to_keep=2)
        output = done.stdout + done.stderr
        self.assertRegex(output, r"checkpoints of \d+ bytes will need \d+ more bytes, \d+ are free")
        self.assertEqual(done.returncode, NO_SPACE)
        self.assertEqual(self.metrics("refused"), {})

    def test_room_for_one(self):
        size = self.checkpoint_bytes()
        limit = f"size={size + size // 2 + SLACK_BYTES}"
        done = self.train_on_small_disk("one", limit, trainer__disk_check="warn")
        output = done.stdout + done.stderr
        self.assertEqual(sorted(self.metrics("one")), list(range(1, STEPS + 1)), output[-3000:])
        self.assertIn("step 4 was not saved", output)
        self.assertEqual(done.returncode, NO_SPACE)
        self.check_steps("one", [2])
        # With room again, the run goes on from what it has.
        again = self.config("one", trainer__total_training_steps=STEPS, trainer__save_freq=2)
        self.train(again)
        self.check_steps("one", [2, 4, 6])

    def test_room_for_two_is_enough_to_keep_one(self):
        size = self.checkpoint_bytes()
        limit = f"size={2 * size + 2 * SLACK_BYTES}"
        done = self.train_on_small_disk("two", limit, trainer__max_ckpts_to_keep=1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_steps("two", [STEPS])

    def test_what_could_not_go_makes_room_before_the_next_save(self):
        """A kill between a commit and its removal, and a pin that was there at the time: with both on the disk there is no room for a third."""
        limit = f"size={2 * self.checkpoint_bytes() + 2 * SLACK_BYTES}"
        done = self.train_on_small_disk(
            "killed", limit, trainer__max_ckpts_to_keep=1, first="KEEL_FAILPOINT=retain.start:0:1:kill",
            then=f"{harness.KEEL} train {self.folder}/killed.yaml;",
        )  # fmt: skip
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, output[-3000:])
        self.assertIn("resumed from", output)
        self.check_steps("killed", [STEPS])

        train, step = f"{harness.KEEL} train {self.folder}/pinned.yaml", self.run_dir("pinned") / "global_step_2"
        done = self.train_on_small_disk(
            "pinned", limit, trainer__max_ckpts_to_keep=1, trainer__total_training_steps=2,
            then=f"{harness.KEEL} ckpt pin {step} && {train} trainer.total_training_steps=4 trainer.disk_check=warn; "
                 f"ls -d {step} && {harness.KEEL} ckpt unpin {step} && {train} trainer.total_training_steps={STEPS};",
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])
        self.check_steps("pinned", [STEPS])

    def test_a_run_goes_on_from_what_a_full_disk_holds(self):
        size = self.checkpoint_bytes()
        run = self.run_dir("filled")
        more = f"{harness.KEEL} train {self.folder}/filled.yaml trainer.total_training_steps={STEPS + 2} trainer.disk_check=warn"
        done = self.train_on_small_disk(
            "filled", f"size={2 * size + 2 * SLACK_BYTES}", trainer__max_ckpts_to_keep=1,
            then=f"dd if=/dev/zero of={run}/fill bs=4k 2>&1; {more};",
        )  # fmt: skip
        output = done.stdout + done.stderr
        self.assertIn(f"at step {STEPS} (", output)
        self.assertIn(f"the state of the last step, {STEPS + 2}, is not saved", output)
        self.assertEqual(done.returncode, NO_SPACE)
        self.check_steps("filled", [STEPS])

    def test_metrics_that_are_lost_are_counted(self):
        """Whatever the task, and from the first to the last."""
        pairs, prompts = self.folder / "pairs.jsonl", self.folder / "prompts.jsonl"
        pairs.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 8)
        prompts.write_text('{"prompt": "1+1=", "answer": "2", "data_source": "addition"}\n' * 8)
        short = {"data__max_prompt_length": 8, "data__max_response_length": 4}
        for name, changes in (
            ("pretrain", {}),
            ("dpo", {"trainer__task": "dpo", "data__train_files": [str(pairs)], **short}),
            ("rl", {"trainer__task": "rl", "data__train_files": [str(prompts)], **short, "reward__type": "exact",
                    "algorithm__adv_estimator": "grpo"}),
        ):  # fmt: skip
            with self.subTest(task=name):
                run = self.run_dir(name)
                again = f"{harness.KEEL} train {self.folder}/{name}.yaml trainer.total_training_steps=3"
                done = self.train_on_small_disk(
                    name, "size=1m", then=f"dd if=/dev/zero of={run}/fill bs=4k 2>&1; {again} trainer.save_freq=-1;",
                    **{**changes, "trainer__save_freq": -1},
                )  # fmt: skip
                output = done.stdout + done.stderr
                self.assertEqual(done.returncode, 0, output[-3000:])
                self.assertEqual(len(harness.read_jsonl(run / "metrics.1.jsonl")), STEPS)
                self.assertEqual(harness.read_jsonl(run / "metrics.jsonl"), [])
                self.assertRegex(output, r"metrics are being lost from step 1 on: .*No space left")
                self.assertRegex(output, r"3 of the 3 lines that this run had for .*metrics\.jsonl were lost")

    def test_files_for_one(self):
        """Room for bytes, none for names: the number of inodes is the limit."""
        self.checkpoint_bytes()
        each = sum(1 for _ in (self.run_dir("roomy") / "global_step_1").rglob("*")) + 1
        beside = sum(1 for path in self.run_dir("roomy").iterdir() if not path.name.startswith("global_step_"))
        limit = f"size=64m,nr_inodes={1 + beside + each + each // 2}"
        done = self.train_on_small_disk("names", limit)
        output = done.stdout + done.stderr
        self.assertEqual(sorted(self.metrics("names")), list(range(1, STEPS + 1)), output[-3000:])
        self.assertRegex(output, r"step 4 was not saved: .*No space left on device")
        self.assertEqual(done.returncode, NO_SPACE)
        self.check_steps("names", [2])


class FileSizeLimit(harness.Job):
    """As by ulimit -f: an error of the write, not a signal that ends the run."""

    def test_the_save_fails_and_training_goes_on(self):
        config = self.config("limited", trainer__total_training_steps=STEPS, trainer__save_freq=2)
        limit = 256 * 1024  # bytes of a file: less than the optimizer's, more than any other
        done = subprocess.run(
            ["prlimit", f"--fsize={limit}:{limit}", harness.KEEL, "train", str(config)],
            capture_output=True, text=True, timeout=harness.LIMIT_S, env=harness.environment(), check=False,
        )  # fmt: skip
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, NO_SPACE, output[-3000:])
        self.assertEqual(sorted(self.metrics("limited")), list(range(1, STEPS + 1)))
        self.assertRegex(output, r"step 2 was not saved: .*: File too large")
        self.assertEqual(checkpoint_files.steps(self.run_dir("limited")), [])
        self.assertEqual([p.name for p in self.run_dir("limited").iterdir() if p.name.startswith(".tmp-")], [])


def obeys_permissions(command):
    """The command as a process that permissions hold for, also when root runs it."""
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command]


def may_drop():
    if shutil.which("setpriv") is None:
        return False
    return subprocess.run(obeys_permissions(["true"]), capture_output=True, check=False).returncode == 0


class FolderLost(harness.Job):
    """The run's folder is taken away between two saves."""

    def train_until_taken(self, name, take, wrap=lambda command: command):
        config = self.config(name, trainer__total_training_steps=STEPS, trainer__save_freq=2,
                             actor_rollout_ref__actor__checkpoint__async_save=False)  # step 2 is there when step 4 begins
        log = open(self.folder / "log.txt", "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            wrap([str(harness.KEEL), "train", str(config)]), stdout=log, stderr=subprocess.STDOUT,
            env={**harness.environment(), "KEEL_FAILPOINT": "step.begin:0:4:stop"},
        )  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        pid = self.stopped_rank(process, 0)
        self.assertEqual((checkpoint_files.latest(self.run_dir(name)), len(self.metrics(name))), (2, 3))
        take(self.run_dir(name))
        harness.kill(pid, signal.SIGCONT)
        process.wait(timeout=harness.LIMIT_S)
        return config, process.returncode

    def test_removed(self):
        _, code = self.train_until_taken("removed", shutil.rmtree)
        self.assertRegex(self.log(), r"step 4 was not saved: .*removed")
        self.assertIn(f"the state of the last step, {STEPS}, is not saved", self.log())
        self.assertGreater(code, 0)

    @unittest.skipUnless(may_drop(), "no setpriv here")
    def test_no_permission_any_more(self):
        config, code = self.train_until_taken("forbidden", lambda run: run.chmod(0), obeys_permissions)
        run = self.run_dir("forbidden")
        run.chmod(0o700)
        self.assertRegex(self.log(), r"step 4 was not saved: .*forbidden.*Permission denied")
        self.assertIn(f"the state of the last step, {STEPS}, is not saved", self.log())
        self.assertGreater(code, 0)
        self.assertEqual(checkpoint_files.steps(run), [2])
        verified = harness.keel("ckpt", "verify", run)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        self.train(config)
        self.assertEqual(checkpoint_files.latest(run), STEPS)

    def train_bound_by_permissions(self, config):
        """What it said."""
        done = subprocess.run(
            obeys_permissions([str(harness.KEEL), "train", str(config)]),
            capture_output=True, text=True, timeout=harness.LIMIT_S, env=harness.environment(), check=False,
        )  # fmt: skip
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, output[-3000:])
        return output

    @unittest.skipUnless(may_drop(), "no setpriv here")
    def test_an_old_checkpoint_that_cannot_be_read_stops_no_save(self):
        steps = {"trainer__save_freq": 2, "trainer__max_ckpts_to_keep": 2}
        self.train(self.config("closed", trainer__total_training_steps=4, **steps))
        run = self.run_dir("closed")
        (run / "global_step_2").chmod(0)  # as of another user
        config = self.config("closed", trainer__total_training_steps=8, **steps)
        output = self.train_bound_by_permissions(config)
        self.assertRegex(output, r"global_step_2 cannot be read: .*global_step_2/manifest.json: Permission denied")
        (run / "global_step_2").chmod(0o700)
        self.assertEqual(checkpoint_files.steps(run), [2, 6, 8])
        # What comes then is newer than anything that could be read or not.
        done = self.train(self.config("closed", trainer__total_training_steps=10, **steps))
        self.assertIn("resumed from global_step_8", done.stdout + done.stderr)

    @unittest.skipUnless(may_drop(), "no setpriv here")
    def test_a_step_of_which_a_folder_cannot_be_read_is_saved_again(self):
        config = self.config("closed_part", trainer__total_training_steps=4, trainer__save_freq=2)
        self.train(config)
        run = self.run_dir("closed_part")
        (run / "global_step_4" / "actor" / "model").chmod(0)
        output = self.train_bound_by_permissions(config)
        self.assertRegex(output, r"global_step_4 exists and cannot be read: .*actor/model: Permission denied")
        (kept,) = run.glob("global_step_4.set-aside-*")
        (kept / "actor" / "model").chmod(0o700)
        self.assertEqual(checkpoint_files.steps(run), [2, 4])
        verified = harness.keel("ckpt", "verify", run)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)


if __name__ == "__main__":
    unittest.main()
