"""A scratch folder that looks like a checkout, with the files of a user in it, where commands of the documentation run as they
stand. What makes them short stands behind them: a `keel` first in the PATH adds settings to those that train.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
WRAPPER = """#!{python}
import os, sys
short = {short!r}
more = []
if "train" in sys.argv:
    for argument in sys.argv:
        more += short.get(os.path.basename(argument), [])
os.execv({keel!r}, [{keel!r}, *sys.argv[1:], *more])
"""


def without_comment(line):
    return re.sub(r"\s+#.*", "", line).strip()


def examples(help_text):
    return [without_comment(line) for line in help_text.split("Examples:\n")[1].splitlines() if line.strip()]


def helps():
    """{command: text} of every command that has a help."""
    found, open_ = {}, [()]
    while open_:
        path = open_.pop()
        done = harness.keel(*path, "--help")
        if done.returncode != 0:
            raise AssertionError(f"{path}: {done.stderr}")
        found[" ".join(("keel", *path))] = done.stdout
        listed = done.stdout.split("Subcommands:\n")
        if len(listed) > 1:
            names = re.findall(r"^  (\w[\w-]*)", listed[1].split("\n\n")[0], re.MULTILINE)
            open_ += [(*path, name) for name in names]
    return found


class Checkout(harness.Job):
    # Settings that are added to the commands that train, by the name of their configuration.
    short = {}

    def setUp(self):
        super().setUp()
        # By itself in a folder, so that whatever lands outside is seen.
        self.outside = pathlib.Path(tempfile.mkdtemp(prefix="keel-readme-"))
        self.addCleanup(shutil.rmtree, self.outside, ignore_errors=True)
        self.checkout = self.outside / "keel"
        self.checkout.mkdir()
        shutil.copytree(ROOT / "configs", self.checkout / "configs")
        commands = self.folder / "bin"
        commands.mkdir()
        wrapper = commands / "keel"
        wrapper.write_text(WRAPPER.format(python=sys.executable, short=self.short, keel=str(harness.KEEL)))
        wrapper.chmod(0o755)
        build = self.checkout / "build" / "release"
        build.mkdir(parents=True)
        (build / "keel").symlink_to(wrapper)
        (build / "keel_bench").symlink_to(pathlib.Path(harness.KEEL).with_name("keel_bench"))
        # The files of a user.
        (self.checkout / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 1500)
        (self.checkout / "prompts.jsonl").write_text('{"text": "The quick"}\n')
        (self.checkout / "rows.jsonl").write_text('{"text": "The quick brown fox"}\n')
        (self.checkout / "run_qwen3-8b.sh").write_text(
            "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet \\\n"
            "    actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8 trainer.nnodes=1 $@\n"
        )
        run = harness.merged(harness.base_config("text.txt", "runs/mine"), {
            "trainer.total_training_steps": 2, "trainer.save_freq": 2, "data.train_batch_size": 8,
        })  # fmt: skip
        (self.checkout / "run.yaml").write_text(json.dumps(run))
        venv = pathlib.Path(sys.executable).parent
        self.environment = {**harness.environment(), "PATH": f"{commands}:{venv}:/usr/bin:/bin"}

    def run_here(self, command, code=0):
        done = subprocess.run(
            f"set -o pipefail; {command}", shell=True, executable="/bin/bash", cwd=self.checkout, env=self.environment,
            capture_output=True, text=True, timeout=4 * harness.LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    @staticmethod
    def serves(command):
        """It goes on until it is told to end."""
        return command.startswith(("keel serve ", "keel watch ")) and "--once" not in command

    def serve_a_moment(self, command):
        """At any free port, until it listens."""
        port = "--http" if command.startswith("keel watch ") else "--port"
        command = re.sub(rf" {port} \d+", "", command) + f" {port} 0"
        process = subprocess.Popen(["/bin/bash", "-c", f"exec {command}"], cwd=self.checkout, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        said = [process.stdout.readline()]
        while said[-1] and not said[-1].startswith(("serving ", "watching ")):
            said.append(process.stdout.readline())
        process.terminate()
        said.append(process.communicate(timeout=harness.LIMIT_S)[0])
        self.assertEqual((process.returncode, re.search("^(serving|watching) ", "".join(said), re.MULTILINE) is None), (0, False), command + "\n" + "".join(said))
