"""A command that takes long shows a bar on a terminal, in one line that it takes away, and nothing elsewhere."""

import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import tempfile
import termios
import threading
import unittest

import harness


class Progress(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-progress-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        # Enough for a second or two of tokenizing.
        with open(self.folder / "rows.jsonl", "w", encoding="utf-8") as out:
            for row in range(60_000):
                out.write('{"text": "' + f"{row} words and words " * 40 + '"}\n')

    def tokenize(self, **streams):
        return subprocess.Popen(
            [harness.KEEL, "data", "tokenize", self.folder / "rows.jsonl", "--tokenizer", "bytes", "--out", self.folder / "out",
             "--part-megabytes", "1", "--threads", "1"], env=harness.environment(), **streams)  # fmt: skip

    def test_on_a_terminal(self):
        far, near = pty.openpty()
        self.addCleanup(os.close, far)
        fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
        seen = b""

        def read(end):
            nonlocal seen
            while not end.is_set() or select.select([far], [], [], 0)[0]:
                if select.select([far], [], [], 0.05)[0]:
                    seen += os.read(far, 65536)

        end = threading.Event()
        reader = threading.Thread(target=read, args=(end,))
        reader.start()
        process = self.tokenize(stdout=subprocess.PIPE, stderr=near, text=True)
        said = process.communicate(timeout=harness.LIMIT_S)[0]
        end.set()
        reader.join()
        os.close(near)
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("60000 documents", said)
        text = seen.decode()
        self.assertNotIn("\n", text)
        self.assertTrue(text.endswith("\r\x1b[K"), text[-60:])
        lines = re.findall("\r([^\r\x1b]+)\x1b\\[K", text)
        self.assertTrue(lines, text)
        shares = [int(re.fullmatch(r"tokenize +(\d+) % .* MiB/[\d.]+ MiB  [\d.]+ [KMG]iB/s  \d+:\d\d left", line)[1]) for line in lines]
        self.assertEqual(shares, sorted(shares))
        self.assertLess(max(map(len, lines)), 70)

    def test_elsewhere(self):
        process = self.tokenize(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said, errors = process.communicate(timeout=harness.LIMIT_S)
        self.assertEqual((process.returncode, errors), (0, ""), said)
        self.assertIn("60000 documents", said)


if __name__ == "__main__":
    unittest.main()
