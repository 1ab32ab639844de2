"""`keel ckpt` commands that write or remove, killed and failed at each of their named places.

Whatever happens to the command, what it reads stays as it was, and what it makes is there whole or
not at all; the next such command has the way free and leaves nothing behind.
"""

import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

import checkpoint_files
import harness

STEPS = 4
COMMIT = ("commit.begin", "commit.manifest", "commit.directories_synced", "commit.renamed", "commit.synced")
WRITE = ("writer.create", "writer.write", "writer.last", "writer.fsync", "writer.closed")
PUBLISH = ("publish.documents", "publish.index")


def content(folder):
    """{path: digest} of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


def scratch(folder):
    """What no command may leave in the folder once another has been there."""
    return [p.name for p in folder.iterdir() if p.name.startswith((".tmp-", ".old-", ".trash-")) or ".partial" in p.name]


class CkptTools(harness.Job):
    def setUp(self):
        super().setUp()
        self.train(self.config("run", trainer__total_training_steps=STEPS, trainer__save_freq=1,
                               trainer__max_ckpts_to_keep=None))  # fmt: skip
        self.run_folder = self.run_dir("run")
        self.newest = self.run_folder / f"global_step_{STEPS}"

    def ckpt(self, *arguments, armed=""):
        return subprocess.run(
            [harness.KEEL, "ckpt", *map(str, arguments)], capture_output=True, text=True, timeout=harness.LIMIT_S,
            env={**harness.environment(), "KEEL_FAILPOINT": armed}, check=False,
        )  # fmt: skip

    def verify(self, folder):
        verified = self.ckpt("verify", folder)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    @staticmethod
    def each(points):
        for point in points:
            for action in ("kill", "EIO", "throw"):
                yield action, f"{point}:0:1:{action}"

    def check_ended(self, done, action):
        self.assertTrue(done.returncode == -9 if action == "kill" else done.returncode > 0, done)

    def check_new_step(self, points, out, step, *command):
        """Of a command that makes one step in a run directory that may not have it yet."""
        before = content(self.run_folder)
        for action, armed in self.each(points):
            with self.subTest(armed):
                done = self.ckpt(*command, armed=armed)
                self.check_ended(done, action)
                there = checkpoint_files.steps(out)
                self.assertIn(there, ([], [step]))
                if there:
                    self.assertEqual(action, "kill", done)
                    self.verify(out)
                again = self.ckpt(*command)
                self.assertEqual(again.returncode, 73 if there else 0, again)
                self.verify(out / f"global_step_{step}")
                self.assertEqual(scratch(out), [])
                self.assertEqual(content(self.run_folder), before)
                shutil.rmtree(out)

    def test_reshard(self):
        out = self.folder / "resharded"
        self.check_new_step(COMMIT, out, STEPS, "reshard", "--world", 2, self.newest, out)

    def test_import(self):
        model, out = self.folder / "model", self.folder / "imported"
        self.assertEqual(self.ckpt("export-hf", self.newest, model).returncode, 0)
        self.check_new_step(WRITE + PUBLISH + COMMIT, out, 0, "import-hf", model, out)

    def test_export(self):
        expected = self.folder / "expected"
        self.assertEqual(self.ckpt("export-hf", self.newest, expected).returncode, 0)
        exports = self.folder / "exports"
        exports.mkdir()
        out = exports / "model"
        for action, armed in self.each(("export.begin", "export.synced", "export.renamed")):
            with self.subTest(armed):
                done = self.ckpt("export-hf", self.newest, out, armed=armed)
                self.check_ended(done, action)
                there = out.exists()
                if there:
                    self.assertEqual(action, "kill", done)
                    self.assertEqual(content(out), content(expected))
                again = self.ckpt("export-hf", self.newest, out)
                self.assertEqual(again.returncode, 73 if there else 0, again)
                self.assertEqual(content(out), content(expected))
                self.assertEqual([p.name for p in exports.iterdir()], ["model"])
                shutil.rmtree(out)

    def interrupted(self, number, made, point, *command):
        """The output of a command that has waited at `point`, below `made`, for a signal."""
        process = subprocess.Popen(
            [harness.KEEL, "ckpt", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**harness.environment(), "KEEL_FAILPOINT": f"{point}:0:1:delay=2000"},
        )  # fmt: skip
        end = time.monotonic() + harness.LIMIT_S
        while not scratch(made) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        self.assertNotEqual(scratch(made), [])
        process.send_signal(number)
        output = process.communicate(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, -number, output)
        self.assertNotIn("data loss", "".join(output))  # of what it was reading
        return "".join(output)

    def test_a_signal_leaves_nothing(self):
        model = self.folder / "model"
        self.assertEqual(self.ckpt("export-hf", self.newest, model).returncode, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                made = self.folder / number.name
                made.mkdir()
                said = self.interrupted(number, made, "export.begin", "export-hf", self.newest, made / "model")
                self.assertIn(f"ended by {number.name} before it was done; nothing of it stays", said)
                self.assertEqual(list(made.iterdir()), [])
        for name, command in (("imported", ("import-hf", model)), ("resharded", ("reshard", "--world", 2, self.newest))):
            with self.subTest(name):
                made = self.folder / name
                made.mkdir()
                self.interrupted(signal.SIGINT, made, "commit.manifest", *command, made)
                self.assertEqual(scratch(made), [])

    def test_process_one_of_a_container_hears_signals(self):
        alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
        if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("SKIPPED: this user may not make a process namespace (unshare --user --pid)")
        made = self.folder / "alone"
        made.mkdir()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Both note it, and then end by it, which the kernel alone would not let process 1 do.
            for point, command in (("export.begin", ("export-hf", self.newest, made / "model")),
                                   ("commit.manifest", ("reshard", "--world", 2, self.newest, made))):  # fmt: skip
                with self.subTest(number.name, command=command[0]):
                    process = subprocess.Popen(
                        [*alone, harness.KEEL, "ckpt", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        env={**harness.environment(), "KEEL_FAILPOINT": f"{point}:0:1:delay=2000"},
                    )  # fmt: skip
                    self.wait_until(lambda: scratch(made), "it is begun", process)
                    [one] = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                    os.kill(int(one), number)
                    output = process.communicate(timeout=harness.LIMIT_S)
                    self.assertEqual(process.returncode, 128 + number, output)
                    self.assertEqual(scratch(made), [])
            # This one takes no signals, and waits for its input.
            process = subprocess.Popen([*alone, harness.KEEL, "score", "--model", str(self.newest), "--input", "-", "--output", "-"],
                                       stdin=subprocess.PIPE, env=harness.environment())  # fmt: skip
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")

            seen = []

            def waits(children=children, number=number, seen=seen):
                for one in children.read_text().split():
                    status = pathlib.Path(f"/proc/{one}/status").read_text()
                    hears = int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[1], 16) >> (number - 1) & 1
                    if hears and "State:\tS" in status:
                        seen.append(int(one))
                return seen

            self.wait_until(waits, "it waits", process)
            os.kill(seen[0], number)
            self.assertEqual(process.wait(harness.LIMIT_S), 128 + number)
            process.stdin.close()

    def test_prune(self):
        for action, armed in self.each(("retain.start", "retain.renamed", "retain.synced")):
            with self.subTest(armed):
                run = self.folder / "prune_{}_0_1_{}".format(*armed.split(":")[::3])
                shutil.copytree(self.run_folder, run)
                done = self.ckpt("prune", "--keep-latest", 2, run, armed=armed)
                if action == "kill":
                    self.check_ended(done, action)
                there = checkpoint_files.steps(run)
                self.assertLessEqual({STEPS - 1, STEPS}, set(there))
                self.verify(run)
                again = self.ckpt("prune", "--keep-latest", 2, run)
                self.assertEqual(again.returncode, 0, again)
                self.assertEqual(checkpoint_files.steps(run), [STEPS - 1, STEPS])
                self.verify(run)
                # What a killed command had already taken out of sight goes with the next start of the run.
                self.train(self.config(run.name, trainer__total_training_steps=STEPS))
                self.assertEqual(scratch(run), [])


if __name__ == "__main__":
    unittest.main()
