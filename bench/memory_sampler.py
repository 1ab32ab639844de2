"""Host memory of processes and their children, looked at every 10 ms.

What counts is memory that is theirs: anonymous and shared pages, each shared page divided among its users
(Pss_Anon and Pss_Shmem of smaps_rollup). File pages are the kernel's to drop.
"""

import pathlib
import threading
import time

PERIOD_S = 0.01


def family(pid):
    """The process and all below it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            pass  # ended meanwhile
    return found


def own_bytes(pids):
    total = 0
    for root in pids:
        for pid in family(root):
            try:
                text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            for line in text.splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    return total


class Sampler:
    """With `with Sampler(pids) as s: ...`, s.peak and s.samples (seconds, bytes) of the block."""

    def __init__(self, pids):
        self.pids, self.samples, self.stop = pids, [], threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.begin = time.perf_counter()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.peak = max(value for _, value in self.samples)

    def _run(self):
        while True:
            now = time.perf_counter()
            self.samples.append((now - self.begin, own_bytes(self.pids)))
            if self.stop.wait(max(0.0, PERIOD_S - (time.perf_counter() - now))):
                return
