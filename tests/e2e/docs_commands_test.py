"""Every `keel …` command line of README, CONTRIBUTING, docs/, the configurations' comments and the examples of each --help runs as
it stands, and exits with 0: in a folder that looks like a checkout, where small checkpoints, models and rows lie under the names that
the pages use. A name of a command without arguments (`keel ckpt ls`) must be that of a command. Of the benchmarks, which take
minutes to hours, the options are read by their own drivers. (readme_test.py runs README's "Using it".)
"""

import gzip
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unittest

import harness
import tiny_fp8
import tiny_gguf
from checkout import ROOT, Checkout, examples, helps, without_comment

# Command lines that cannot run here, and why.
CANNOT_RUN = {
    "keel launch --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 train run.yaml": "two machines",
    "srun keel train run.yaml": "Slurm",
    "mpirun -x MASTER_ADDR=HOST keel train run.yaml": "MPI, and a host's name to fill in",
    "keel launch -- python ...": "stands for any program",
    "keel rollout run.yaml --join 10.0.0.1:29600": "a run that is under way",
    "keel launch --nproc-per-node 8 rollout run.yaml --join 10.0.0.1:29600": "a run that is under way",
    "keel launch --nproc-per-node 8 --max-restarts 3 rollout run.yaml --join 10.0.0.1:29600": "a run that is under way",
}
if shutil.which("jq") is None:
    CANNOT_RUN["keel ckpt ls --json runs/quickstart | jq '.[0].step'"] = "jq is not installed"
# Where a help says so.
OTHER_EXIT_CODES = {"keel ckpt diff --scope actor/model runs/a/global_step_40 runs/a/global_step_80": 1}
# Strings of the store's protocol begin with "keel store", which is no command.
COMMAND = re.compile(r"(?:(?:torchrun|srun|mpirun) .*)?\b(?:build/release/)?keel (?!store\b)")
# What a command is to make, it refuses to overwrite.
MADE = re.compile(r"--out (\S+)|(?:export-hf|import-hf) .*?(\S+)$")
# Read the options of a benchmark as it does itself, then leave.
READ_OPTIONS = """
import argparse, runpy, sys
read = argparse.ArgumentParser.parse_args
def stop(*arguments, **named):
    read(*arguments, **named)
    sys.exit(0)
argparse.ArgumentParser.parse_args = stop
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rsplit("/", 1)[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def spans(text):
    """What stands in backticks, and the lines of code blocks. (`$` is before those of docs_walks_test.py.)"""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield without_comment(line.strip())
        else:
            yield from (span.strip() for span in line.split("`")[1::2])


def commands_of(text):
    return [part.strip() for span in spans(text) if COMMAND.match(span) for part in span.split("; ")]


def is_name(command):
    return re.fullmatch(r"keel( [a-z][a-z-]*)*( NAME)?( --help)?", command) is not None


def name_of(command):
    return re.sub(r"( NAME)?( --help)?$", "", command)


def pages():
    """{where: its command lines and names of commands}."""
    found = {}
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        if path.name == "commands.md" or "```console" in text:
            continue  # the helps; docs_walks_test.py's
        if path.name == "README.md" and path.parent == ROOT:
            text = re.sub(r"\n## Using it\n.*?\n## ", "\n## ", text, flags=re.DOTALL)  # readme_test.py's
        found[str(path.relative_to(ROOT))] = commands_of(text)
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        lines = re.findall(r"^# {2,}(\S.*)$", path.read_text(), re.MULTILINE)
        found[f"configs/{path.name}"] = [line for line in lines if COMMAND.match(line)]
    return found


class DocsCommands(Checkout):
    short = {
        "pretrain_text.yaml": ["trainer.total_training_steps=2", "data.max_length=32"],
        "quickstart.yaml": ["trainer.total_training_steps=2", "trainer.default_local_dir=runs/new"],
        "grpo.yaml": ["trainer.total_training_steps=2", "actor_rollout_ref.rollout.n=4"],
        "sft.yaml": ["trainer.total_epochs=null", "trainer.total_training_steps=2", "data.max_length=64"],
        "dpo.yaml": ["trainer.total_epochs=null", "trainer.total_training_steps=2"],
    }

    def setUp(self):
        super().setUp()
        here = self.checkout
        self.environment["PET_MASTER_PORT"] = str(harness.free_port())  # torchrun's
        fixture = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "qwen2_tied" / "hf"
        shutil.copytree(fixture, here / "Qwen2.5-0.5B")
        for name in ("SmolLM2-135M-Instruct.Q4_1", "ggml-vocab-qwen2"):
            tiny_gguf.write(here / f"{name}.gguf")
        for name in ("gpt-oss-20b", "Qwen3-0.6B-FP8"):
            tiny_fp8.write(here / name, fixture)
        (here / "ids.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n')
        (here / "ppo_trainer.yaml").write_text("actor_rollout_ref: {model: {path: exported}, rollout: {n: 4}}\n")
        (here / "sft_config.yaml").write_text("model_name_or_path: exported\ndataset_name: train.jsonl\n")
        (here / "run_grpo.sh").write_text("trl grpo --model_name_or_path exported --dataset_name train.jsonl\n")
        (here / "answers.jsonl").write_text('{"prompt": "1+1=", "response": "2"}\n' * 64)
        (here / "docs").mkdir()
        (here / "corpus").mkdir()
        with gzip.open(here / "corpus" / "a.jsonl.gz", "wt") as file:
            file.write('{"text": "The quick brown fox jumps over the lazy dog."}\n' * 100)
        (here / "program").write_text("#!/bin/sh\necho rank $RANK of $WORLD_SIZE: $*\n")
        (here / "program").chmod(0o755)
        self.run_here("keel train run.yaml trainer.default_local_dir=runs/quickstart "
                      "trainer.total_training_steps=120 trainer.save_freq=10 trainer.max_ckpts_to_keep=12 "
                      "trainer.test_freq=10 data.val_split=0.01 trainer.keep_best_ckpts=1 trainer.trace.enable=true")  # fmt: skip
        self.run_here("keel ckpt pin runs/quickstart/global_step_120")
        for run, steps in {"a": (40, 80), "b": (10, 40)}.items():
            for step in steps:
                shutil.copytree(here / "runs" / "quickstart" / f"global_step_{step}", here / "runs" / run / f"global_step_{step}")
        self.run_here("keel ckpt export-hf runs/quickstart/global_step_120 exported")
        self.run_here("keel ckpt import-hf --role critic --step 10 exported runs/ppo")
        self.run_here("keel train run.yaml '~actor_rollout_ref.model.config' actor_rollout_ref.model.path=Qwen2.5-0.5B "
                      "actor_rollout_ref.model.lora_rank=2 trainer.default_local_dir=runs/lora trainer.total_training_steps=20 "
                      "trainer.save_freq=20")  # fmt: skip
        self.run_here("keel ckpt export-hf runs/lora/global_step_20 exported-adapter")
        self.run_here("keel data make addition --out train.jsonl --count 100")
        self.run_here("keel data make addition --out test.jsonl --count 20")
        self.run_here("keel data make addition --messages --form sft --out chats.jsonl --count 64")
        self.run_here("keel data tokenize text.txt --tokenizer bytes --out text.tokens")
        self.ran = set()
        self.made = self.outside / "made"
        here.rename(self.made)

    def run_one(self, command):
        benchmark = re.fullmatch(r"keel bench (\w+)(.*)", command)
        if benchmark:
            script = ROOT / "bench" / f"run_{benchmark[1]}.py"
            command = shlex.join([sys.executable, "-c", READ_OPTIONS, str(script), *shlex.split(benchmark[2])])
        for name in MADE.findall(command):
            path = self.checkout / "".join(name)
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if self.serves(command):
            return self.serve_a_moment(command)
        self.run_here(command, OTHER_EXIT_CODES.get(command, 0))

    def run_all(self, where, commands, fresh):
        """One after another in a copy of the folder that setUp made; `fresh`: each in its own. Once is enough for each."""
        commands = [command for command in dict.fromkeys(commands) if command not in self.ran]
        self.ran |= set(commands)
        for number, command in enumerate(commands):
            if fresh or number == 0:
                shutil.rmtree(self.checkout, ignore_errors=True)
                shutil.copytree(self.made, self.checkout, symlinks=True, copy_function=os.link)
            if command not in CANNOT_RUN:
                with self.subTest(command, where=where):
                    self.run_one(command)

    def test_the_page_of_commands_is_what_the_helps_say(self):
        made = subprocess.run([sys.executable, ROOT / "tools" / "commands_page.py", harness.KEEL], capture_output=True, text=True, check=True)
        self.assertEqual((ROOT / "docs" / "commands.md").read_text(), made.stdout,
                         "tools/commands_page.py build/release/keel > docs/commands.md writes it anew")  # fmt: skip

    def test_every_command_line_runs(self):
        known = helps()
        for name, text in known.items():
            if re.match("keel bench .", name):
                continue  # its driver's
            shown = examples(text) if "Examples:\n" in text else []
            self.assertGreaterEqual(len(shown), 3, f"{name} --help: too few examples")
            # Those of `keel --help` are readme_test's; commands of one file share theirs.
            if name != "keel":
                self.run_all(f"{name} --help", shown, fresh=True)
        for where, shown in pages().items():
            names = [span for span in shown if is_name(span)]
            for name in names:
                self.assertIn(name_of(name), known.keys(), f"{where}: no such command")
            commands = [span for span in shown if span not in names]
            self.run_all(where, commands, fresh=False)
        self.assertGreater(len(self.ran), 60)
        self.assertFalse((CANNOT_RUN.keys() | OTHER_EXIT_CODES.keys()) - self.ran, "listed, and in no page or help")


if __name__ == "__main__":
    unittest.main()
