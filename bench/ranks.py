"""Workers of several ranks: one process per rank, all given the same commands at once."""

import contextlib
import json
import os
import pathlib
import select
import shlex
import socket
import subprocess


POLL_S = 0.5


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """The ranks of one worker (bench/peers/README.md). What they say on standard error goes to `log`."""

    def __init__(self, name, command, world, log, threads=1):
        self.name, self.log = name, pathlib.Path(log)
        port = str(free_port())
        self.processes = []
        with open(self.log, "w") as errors:
            for rank in range(world):
                environment = {
                    **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                    "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                    "OMP_NUM_THREADS": str(threads),
                }  # fmt: skip
                self.processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                        env=environment,
                    )
                )  # fmt: skip
        self.ready = self._answers("start")
        self.pids = [process.pid for process in self.processes]

    def ask(self, line):
        """One answer per rank."""
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):  # it has ended, as its answer will say
                process.stdin.write(line + "\n")
                process.stdin.flush()
        return self._answers(line)

    def slowest(self, line, key="seconds"):
        """The largest of the ranks' values; nothing when a rank has none."""
        values = [answer[key] for answer in self.ask(line)]
        return None if None in values else max(values)

    def quit(self):
        for process in self.processes:
            process.stdin.write("quit\n")
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=120)

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _answers(self, line):
        """One of each rank. The end of any is heard of at once: the others may wait for it for ever."""
        answers = [None] * len(self.processes)
        waiting = {process.stdout: rank for rank, process in enumerate(self.processes)}
        while waiting:
            # In this order: what a rank said before it ended is in its pipe. A child of one that ended may keep that open.
            ended = [pipe for pipe, rank in waiting.items() if self.processes[rank].poll() is not None]
            ready, _, _ = select.select(list(waiting), [], [], 0 if ended else POLL_S)
            for pipe in ready or ended:
                rank = waiting.pop(pipe)
                text = pipe.readline() if ready else ""
                answers[rank] = json.loads(text) if text else {"error": "it ended"}
                if "error" in answers[rank]:
                    self._fail(rank, line, answers[rank]["error"])
        return answers

    def _fail(self, rank, line, error):
        self.kill()
        tail = self.log.read_text()[-2000:]
        command = shlex.join(map(str, self.processes[rank].args))
        raise SystemExit(f"{self.name}, rank {rank}, at '{line}': {error}: {command}\n{tail}")
