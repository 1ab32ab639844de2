"""Workers of several ranks: one process per rank, all given the same commands at once."""

import json
import os
import pathlib
import shlex
import socket
import subprocess


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """The ranks of one worker (bench/peers/README.md). What they say on standard error goes to `log`."""

    def __init__(self, name, command, world, log, threads=1):
        self.name, self.command, self.log = name, command, pathlib.Path(log)
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
        answers = []
        for rank, process in enumerate(self.processes):
            text = process.stdout.readline()
            record = json.loads(text) if text else {"error": "it ended"}
            if "error" in record:
                self.kill()
                tail = self.log.read_text()[-2000:]
                raise SystemExit(
                    f"{self.name}, rank {rank}, at '{line}': {record['error']}: {shlex.join(self.command)}\n{tail}"
                )
            answers.append(record)
        return answers
