"""The calls of a save, one by one: everything is synced before it is published, and wherever the power goes or
the process dies, the step before or the new one is found. Also the model of the disk, and that it finds others' gaps.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROOFS = pathlib.Path(__file__).resolve().parents[1] / "proofs"
sys.path.insert(0, str(PROOFS))

import disk_model
import harness
import run_crash_states
import strace_log

KEEL = pathlib.Path(os.environ["KEEL_BINARY"])
SAVER = KEEL.parent / "keel_crash_states"
UNTRACEABLE = strace_log.available()


class DiskModel(unittest.TestCase):
    """The same rules as the simulated disk of tests/checkpoint/support/sim_file_system_test.cc."""

    def setUp(self):
        self.disk = disk_model.Disk()

    def make(self, name, content):
        node = disk_model.Inode()
        self.disk.root.apply(None, name, node)
        node.write(0, content)
        return node

    def cuts(self, say):
        return {say(tree) for tree in self.disk.crash_states(0, 1)}

    def test_a_name_is_not_the_content(self):
        self.make("a", b"text").sync()
        self.assertEqual(self.cuts(lambda tree: tree.get("a")), {None, b"text"})

    def test_the_content_is_not_the_name(self):
        self.make("a", b"text")
        self.disk.root.sync()
        self.assertEqual(self.cuts(lambda tree: tree.get("a")), {b"", b"text", bytes(4)})

    def test_pages_survive_one_by_one(self):
        node = self.make("f", b"a" * 4096 + b"b" * 4096)
        self.disk.sync_all()
        node.write(0, b"A" * 4096 + b"B" * 4096)
        self.assertEqual(self.cuts(lambda tree: tree["f"][0:1] + tree["f"][-1:]), {b"ab", b"Ab", b"aB", b"AB"})
        borders = set()
        for tree in self.disk.crash_states(200, 1):
            text = tree["f"]
            borders |= {i for i in range(1, 4096) if text[i] != text[i - 1]}
        self.assertEqual(borders, {512, 1024, 1536, 2048, 2560, 3072, 3584})

    def test_a_rename_is_all_or_nothing(self):
        self.make("t", b"x").sync()
        self.disk.root.sync()
        self.disk.rename("t", "final")
        self.make("later", b"y").sync()
        self.assertEqual(
            self.cuts(lambda tree: " ".join(sorted(tree))), {"t", "final", "later t", "final later"}
        )

    def test_a_rename_may_be_durable_before_the_content(self):
        self.make("tracker", b"10").sync()
        self.disk.root.sync()
        self.make("tracker.tmp", b"20")
        self.disk.rename("tracker.tmp", "tracker")
        self.assertLessEqual({b"10", b"20", b"", b"\0\0"}, self.cuts(lambda tree: tree["tracker"]))


@unittest.skipIf(UNTRACEABLE, UNTRACEABLE)
class Save(unittest.TestCase):
    def setUp(self):
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = tempfile.TemporaryDirectory(prefix="keel-crash-states-", dir=place)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def trace(self):
        run, log = self.folder / "run", self.folder / "strace"
        run.mkdir()
        subprocess.run(strace_log.command(log, SAVER, "save", run), check=True)
        return run, log

    def test_everything_is_synced_before_it_is_published(self):
        run, log = self.trace()
        player = strace_log.Player(run)
        published, tracked, removed = [], [], []
        for name, arguments, result in strace_log.calls(log):
            names = [player.path("AT_FDCWD", strace_log.text_of(m)) for m in strace_log.STRING.finditer(arguments)] if "rename" in name else []
            if result == 0 and len(names) == 2:
                old, new = (strace_log.text_of(m).decode() for m in strace_log.STRING.finditer(arguments))
                old, new = old.rpartition("/")[2], new.rpartition("/")[2]
                if new.startswith("global_step_"):
                    # 1. All of it, before it gets its name.
                    self.assertEqual(player.disk.unsynced(old), [], f"{old} -> {new}")
                    self.assertIn("manifest.json", player.disk.find(old).now)
                    published.append(new)
                elif new == "latest_checkpointed_iteration.txt":
                    # 2. That name, and the tracker's content, before the tracker.
                    step = bytes(player.disk.find(old).now).decode().strip()
                    self.assertEqual(player.disk.unsynced(old), [])
                    self.assertIn(f"global_step_{step}", player.disk.root.synced)
                    tracked.append(step)
                elif old.startswith("global_step_"):
                    # 3. Nothing goes while its successor may.
                    self.assertTrue(set(published) - {old} <= set(player.disk.root.synced))
                    removed.append(old)
            if name in ("unlink", "unlinkat") and result == 0 and removed:
                # 4. What is removed file by file has durably lost its name.
                self.assertFalse(set(removed) & set(player.disk.root.synced), "removed before its name is")
            player.play(name, arguments, result)
        self.assertEqual(published, ["global_step_1", "global_step_2"])
        self.assertEqual(tracked, ["1", "2"])
        self.assertEqual(removed, ["global_step_1"])
        self.assertEqual(player.disk.unsynced("global_step_2"), [])

    def measure(self, system, *options):
        done = subprocess.run(
            [sys.executable, PROOFS / "run_crash_states.py", "--keel", KEEL, "--dir", self.folder, "--system", system, *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["systems"][system]

    def test_no_power_cut_loses_anything(self):
        found = self.measure("keel", "--samples", "200" if harness.NIGHTLY else "10")
        self.assertGreater(found["states"], 200)
        self.assertGreater(found["counts"]["old"], 50)
        self.assertGreater(found["counts"]["new"], 50)
        self.assertEqual(found["bad"], 0, found)

    def test_the_gaps_of_others_are_found(self):
        found = self.measure("torch-save", "--samples", "5")
        self.assertGreater(found["counts"]["lost"], 0)
        self.assertGreater(found["counts"]["forgotten"], 0)
        found = self.measure("torch-save-fsync", "--samples", "5")
        self.assertEqual(found["counts"]["corrupt"] + found["counts"]["lost"], 0)
        self.assertGreater(found["counts"]["forgotten"], 0)

    def test_killed_at_each_call(self):
        """strace sends SIGKILL at the n-th call that changes anything, for every n."""
        changing = "openat,pwrite64,write,ftruncate,fallocate,fsync,renameat2,mkdirat,unlinkat"
        found, n = [], 0
        while True:
            n += 1
            run = self.folder / f"killed_{n}"
            run.mkdir()
            command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={changing}", "-e", f"inject={changing}:signal=SIGKILL:when={n}"]
            done = subprocess.run([*command, SAVER, "save", run], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            loaded = subprocess.run([SAVER, "load"], input=f"{run}\n", capture_output=True, text=True, check=True)
            answer = json.loads(loaded.stdout)
            if "step" not in answer:
                self.assertEqual(answer, {"nothing": True}, f"call {n}")
                self.assertEqual(max(found, default=0), 0, f"call {n}: what was saved is gone")
                found.append(0)
                continue
            self.assertTrue(answer["whole"], f"call {n}: {answer}")
            found.append(answer["step"])
            left = [p.name for p in run.iterdir() if p.name.startswith((".tmp-", ".old-", ".trash-")) or p.name.endswith(".tmp")]
            self.assertEqual(left, [], f"call {n}")
        print(f"killed at {len(found)} calls: nothing {found.count(0)}, step 1 {found.count(1)}, step 2 {found.count(2)} times")
        self.assertGreater(len(found), 60)
        self.assertGreater(found.count(1), 5)
        self.assertGreater(found.count(2), 5)


if __name__ == "__main__":
    unittest.main()
