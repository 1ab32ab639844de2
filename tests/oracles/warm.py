"""Runs scripts of this folder, each in a fork of one process that has imported what takes them seconds, torch and transformers.

    with warm.Oracles(environment) as oracles:
        done = oracles.run("check_hf_export.py", hf_in, hf_out)      # done.returncode, done.stdout, done.stderr

As a program it is that process: it reads a line of JSON, {"argv", "stdout", "stderr"}, for each script, and answers with its exit status.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent


class Oracles:
    def __init__(self, environment):
        self.process = subprocess.Popen([sys.executable, __file__], env=environment, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def run(self, script, *arguments):
        argv = [str(HERE / script), *map(str, arguments)]
        with tempfile.NamedTemporaryFile("r") as stdout, tempfile.NamedTemporaryFile("r") as stderr:
            self.process.stdin.write(json.dumps({"argv": argv, "stdout": stdout.name, "stderr": stderr.name}) + "\n")
            self.process.stdin.flush()
            status = self.process.stdout.readline()
            if not status:
                raise RuntimeError(f"the process of the oracles has ended, with {self.process.wait()}")
            return subprocess.CompletedProcess(argv, int(status), stdout.read(), stderr.read())


def run_here(argv, stdout, stderr):
    """The script as a program of its own would run it; never returns."""
    code = 1
    try:
        os.dup2(os.open(stdout, os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND), 2)
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main():
    import safetensors.torch
    import transformers

    # What is imported when it is first asked for: of a model's file most is what all models' files import.
    assert transformers.AutoModelForCausalLM and transformers.LlamaForCausalLM and safetensors.torch.save_file
    sys.path.insert(0, str(HERE))
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run_here(**request)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
