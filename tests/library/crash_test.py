"""A program that saves all the time is killed at random moments: the newest checkpoint loads, is the state that was saved, and is no
older than any that was said to be saved."""

import multiprocessing
import os
import random
import signal
import time
import unittest

import torch
from library_support import Folder, ckpt, state_of

import keel

KILLS = 20


def save_on(path, first, said):
    """Until it is killed. In a process that was forked: to start Python anew takes longer than all else here."""
    torch.set_num_threads(1)
    checkpoints = keel.Checkpointer(path, keep=2, io="buffered", log="error")
    for step in range(first, first + 10_000):
        save = checkpoints.save_async(step, state_of(step), extra={"step": step}, overlap=step % 2 == 0)
        if step % 3 == 0:
            save.wait()
            said.send(step)


class Crash(Folder):
    def test_killed_in_the_middle_of_saves(self):
        seed = random.randrange(2**32)
        chance = random.Random(seed)
        fork = multiprocessing.get_context("fork")
        newest = confirmed = 0
        half_written = 0
        for kill in range(KILLS):
            heard, said = fork.Pipe(duplex=False)
            child = fork.Process(target=save_on, args=(self.path(), newest + 1, said))
            child.start()
            said.close()
            if kill % 4:  # else before the first, too
                while heard.poll(60) and heard.recv() < newest + 3:
                    pass
            time.sleep(chance.uniform(0, 0.05))
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            try:
                while heard.poll():
                    confirmed = max(confirmed, heard.recv())
            except EOFError:
                pass
            half_written += any(name.startswith(".") and "-" in name and name != ".keel-lock" for name in os.listdir(self.path())) if self.path().exists() else 0
            if not self.path().exists():
                continue
            with keel.Checkpointer(self.path(), read_only=True, log="error") as reader:
                state = state_of(0)
                loaded = reader.load(state)
                with self.subTest(seed=seed, kill=kill):
                    if loaded is None:
                        self.assertEqual(confirmed, 0)
                        continue
                    self.assertEqual(loaded.skipped, [])
                    self.assertGreaterEqual(loaded.step, confirmed)
                    self.assertEqual(loaded.extra, {"step": loaded.step})
                    self.assert_same(state, state_of(loaded.step))
                    newest = loaded.step
        self.assertGreater(newest, KILLS)
        self.assertGreater(half_written, 0, "no kill met a save")
        # The next one tidies up, and all that is left is whole.
        self.open(keep=2).save(newest + 1, state_of(newest + 1))
        self.assertEqual([name for name in os.listdir(self.path()) if name.startswith((".tmp", ".old", ".trash"))], [])
        code, said = ckpt("verify", self.path())
        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
