"""What a run says on a terminal: a line a step that fits, a summary at the end whose commands can be typed, answers at validations."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import termios
import threading
import unittest

import harness
import rl_test


class Terminal:
    """A terminal of so many columns, and what was written to it."""

    def __init__(self, columns):
        self.far, self.near = pty.openpty()
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.seen, self.end = b"", threading.Event()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        while not self.end.is_set() or select.select([self.far], [], [], 0)[0]:
            if select.select([self.far], [], [], 0.05)[0]:
                self.seen += os.read(self.far, 65536)

    def lines(self):
        self.end.set()
        self.reader.join()
        os.close(self.near)
        os.close(self.far)
        return re.sub(r"\x1b\[[0-9;]*m", "", self.seen.decode()).splitlines()


class Console(harness.Job):
    def on_terminal(self, columns, config, ranks=1, **variables):
        terminal = Terminal(columns)
        done = subprocess.run([harness.KEEL, *self.command(config, ranks)], stdout=subprocess.PIPE, stderr=terminal.near,
                              env={**harness.environment(), **variables}, timeout=harness.LIMIT_S)  # fmt: skip
        lines = terminal.lines()
        self.assertEqual(done.returncode, 0, "\n".join(lines))
        return lines

    def talkative(self, name, **changes):
        return self.config(name, trainer__logger=["console", "jsonl"], trainer__total_training_steps=3, **changes)

    def test_a_line_a_step_fits_the_terminal(self):
        for columns, fields in ((90, "step loss lr tok/s step eta"), (160, "step loss norm lr tok/s gemm mem step eta")):
            lines = [line for line in self.on_terminal(columns, self.talkative(f"wide_{columns}")) if line.startswith("step ")]
            self.assertEqual(len(lines), 3, lines)
            for number, line in enumerate(lines, 1):
                self.assertLess(len(line), columns)
                self.assertEqual(re.findall(r"(?:^|  )([a-z/]+) ", line), fields.split(), line)
                self.assertRegex(line, rf"^step {number}/3  loss ")
                self.assertNotIn("rank", line)

    def test_below_a_launcher_the_prefix_counts_too(self):
        lines = self.on_terminal(100, self.talkative("run"), ranks=2)
        steps = [line for line in lines if re.match(r"\[rank\d\]: step ", line)]
        self.assertEqual(len(steps), 3, "\n".join(lines))
        for line in steps:
            self.assertLess(len(line), 100)
            self.assertEqual(line.count("rank"), 1)
            self.assertRegex(line, r"^\[rank0\]: step \d/3  loss +\d.*  lr .*  tok/s .*  step \d+\.\d\d s")

    def test_elsewhere_lines_are_whole_unless_columns_says_how_wide_it_is(self):
        done = self.train(self.talkative("whole"))
        self.assertRegex(done.stderr, r"\[rank 0 step 2\] step 2/3  loss .*  norm .*  gemm .*  mem .*  step .* s  eta ")
        narrow = subprocess.run([harness.KEEL, "train", self.talkative("narrow")], capture_output=True, text=True,
                                timeout=harness.LIMIT_S, env={**harness.environment(), "COLUMNS": "60"})  # fmt: skip
        steps = [line for line in narrow.stderr.splitlines() if line.startswith("step ")]
        self.assertEqual(len(steps), 3, narrow.stderr)
        self.assertLess(max(map(len, steps)), 60)

    def summary(self, output):
        """The lines of the summary, without their indentation."""
        lines = output.splitlines()
        begin = next(i for i, line in enumerate(lines) if "summary: " in line)
        found = [lines[begin].split("summary: ")[1]]
        for line in lines[begin + 1 :]:
            if not re.match(r"(\[rank0\]: )?    ", line):
                break
            found.append(re.sub(r"^\[rank0\]: ", "", line)[4:])
        return found

    def test_the_summary_tells_of_this_start_and_its_commands_run(self):
        config = self.config("run", trainer__logger=["console", "jsonl"], trainer__total_training_steps=6, trainer__save_freq=2,
                             trainer__test_freq=3, data__val_split=0.2)  # fmt: skip
        done = self.train(config, ranks=2)
        told = self.summary(done.stderr)
        self.assertRegex(told[0], r"^steps 1 to 6 of 6 in [\d.]+ s$")
        text = "\n".join(told)
        self.assertRegex(text, r"(?m)^best        validation loss \d\.\d{4} at step [36]")
        best = min(r["data"]["validation_metrics/global_avg_loss"] for r in harness.read_jsonl(self.run_dir("run") / "metrics.jsonl")
                   if "validation_metrics/global_avg_loss" in r["data"])  # fmt: skip
        self.assertIn(f"validation loss {best:.4f} at step", text)
        self.assertRegex(text, r"(?m)^time        .*forward, backward .* \(\d+ %\)")
        self.assertRegex(text, r"(?m)^saves       3 with \d+\.\d MiB; training lost \d+\.\d\d s to them$")
        self.assertIn(f"metrics     {self.run_dir('run')}/metrics.jsonl", text)
        self.assertIn("the newest checkpoint is global_step_6", text)
        begin = next(i for i, line in enumerate(told) if line.startswith("next "))
        commands = [re.sub(" +# .*", "", line[12:]) for line in told[begin:]]
        self.assertEqual([command.split()[1] for command in commands], ["report", "ckpt", "ckpt"])
        for command in commands:
            ran = harness.keel(*shlex.split(command)[1:])
            self.assertEqual(ran.returncode, 0, f"{command}\n{ran.stderr}")
        self.assertTrue((self.run_dir("run") / "report.html").exists())
        # Goes on, and is stopped.
        process = self.start(config, "trainer.total_training_steps=100000", "trainer.save_freq=100000")
        self.wait_until(lambda: max(self.metrics("run"), default=0) >= 9, "steps after the resume", process)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=harness.LIMIT_S), 75, self.log())
        told = self.summary(self.log())
        self.assertRegex(told[0], r"^steps 7 to \d+ of 100000 in [\d.:]+( s)?, stopped; of this start alone, which went on from step 6$")
        self.assertRegex("\n".join(told), r"(?m)^saves       1 with ")
        # Nothing left to do.
        last = max(self.metrics("run"))
        done = self.train(config, f"trainer.total_training_steps={last}")
        self.assertEqual(self.summary(done.stderr)[0], f"no step was left of {last}; the run's metrics tell of those before")


class Answers(rl_test.RlJob):
    def test_a_validation_shows_a_few_answers_with_their_rewards(self):
        changes = {"trainer__total_training_steps": 2, "trainer__test_freq": 2, "trainer__val_before_train": True}
        three = self.train(self.rl("three", trainer__log_val_generations=3, **changes)).stderr
        blocks = re.findall(r"validation  reward .*\n((?:    .*\n)*)", three)
        self.assertEqual(len(blocks), 2, three)
        rows = [json.loads(line) for line in (self.folder / "val.jsonl").read_text().splitlines()]
        for block in blocks:
            lines = block.splitlines()
            self.assertEqual(len(lines), 9, block)
            for number in range(3):
                score, prompt, answer = lines[3 * number : 3 * number + 3]
                self.assertRegex(score, rf"^    row {number}  reward \d\.\d{{3}}$")
                self.assertEqual(prompt, f"      prompt  {rows[number]['prompt']}")
                self.assertRegex(answer, r"^      answer  ")
                # Whatever an untrained model says.
                self.assertTrue(answer.isprintable(), answer)
        none = self.train(self.rl("none", trainer__log_val_generations=0, **changes)).stderr
        self.assertNotRegex(none, r"validation  reward .*\n    ")
        some = self.train(self.rl("some", **changes)).stderr
        self.assertEqual(some.count("      prompt  "), 4)


if __name__ == "__main__":
    unittest.main()
