"""Kills a real training job at random moments, again and again, and looks at what is left.

    .venv/bin/python tests/proofs/run_torture.py [--rounds 1000] [--seed 1] [--markdown docs/proofs/torture.md]

Each round starts the job, which saves at every second step and keeps two checkpoints, and at a random moment
in its first two thirds sends SIGKILL to one rank, to the launcher, or to all. Then

    - the launcher has ended, with a code that is not 0, and no process is left;
    - every checkpoint that is visible verifies, byte for byte, and the tracker names none that is not there;
    - what was announced as saved is there, or a newer one.

Two jobs take turns. `same` is always started under the same layout: when it has come to its end, losses, gradient
norms and the last checkpoint must be those of a run that was left alone, bit for bit. `changing` is resumed under
another layout of 1 to 4 ranks each time: samples, learning rates and token counts are the same, losses differ by
rounding alone. Each step stands once, and nothing but checkpoints is in the folder. Then the job begins anew.

The first thing that is wrong ends the run, with exit 1, and leaves the folder for inspection.
"""

import contextlib
import json
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "tests" / "e2e")]
os.environ.setdefault("KEEL_BINARY", str(ROOT / "build" / "release" / "keel"))

import checkpoint_files  # noqa: E402: tests/e2e
import driver  # noqa: E402: bench
import harness  # noqa: E402
import machine  # noqa: E402: bench

# (tensor parallel, pipeline parallel, data parallel)
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4)]
STEPS = 100
KEEP = 2
# A rank notices that the launcher or a peer is gone long before this.
GONE_WITHIN_S = 60
# Between layouts sums are taken in another order.
LOSS_TOLERANCE = 2e-3


class Wrong(Exception):
    """Something that must not be."""


def require(condition, text):
    if not condition:
        raise Wrong(text)


class Job:
    """One of the two jobs: a run directory after the other."""

    def __init__(self, folder, name, layouts, chance):
        self.folder, self.name, self.layouts, self.chance = folder, name, layouts, chance
        self.layout = layouts[0]
        self.generation = 0
        self.begin_anew()

    def begin_anew(self):
        self.generation += 1
        self.run = self.folder / f"{self.name}_{self.generation}"
        self.announced = 0

    def command(self, run, layout, **changes):
        tp, pp, dp = layout
        settings = {
            "trainer.save_freq": 2,
            "trainer.total_training_steps": STEPS,
            "trainer.max_ckpts_to_keep": KEEP,
            "trainer.deadline_seconds": 30,
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": tp,
            "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size": pp,
            **changes,
        }
        config = self.folder / f"{run.name}.yaml"
        config.write_text(json.dumps(harness.merged(harness.base_config(self.folder / "documents.jsonl", run), settings)))
        return [harness.KEEL, "launch", "--nproc-per-node", str(tp * pp * dp), "train", str(config)]

    def another_layout(self):
        others = [layout for layout in self.layouts if layout != self.layout]
        self.layout = self.chance.choice(others) if others else self.layout
        return self.layout


def newest_announced(log):
    """The highest step that any rank 0 said was saved."""
    steps = [int(word.split("global_step_")[1].rstrip(":,")) for line in log.splitlines() if " saved global_step_" in line
             for word in line.split() if word.startswith("global_step_")]  # fmt: skip
    return max(steps, default=0)


def debris(run):
    return [p.name for p in run.iterdir() if p.name.startswith((".tmp-", ".old-", ".trash-")) or p.name.endswith(".tmp")]


def alive(pids):
    """Those of which a thread still runs: it holds files and locks, also where the process itself is a zombie."""
    found = []
    for pid in pids:
        try:
            stats = list(pathlib.Path(f"/proc/{pid}/task").glob("*/stat"))
        except OSError:  # it has just gone
            continue
        for stat in stats:
            try:
                state = stat.read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state not in "ZX":
                found.append(pid)
                break
    return found


class Torture:
    def __init__(self, folder, seed, say=print):
        self.folder, self.say = folder, say
        self.chance = random.Random(seed)
        harness.write_documents(folder / "documents.jsonl")
        self.jobs = [Job(folder, "same", [(2, 1, 1)], self.chance), Job(folder, "changing", LAYOUTS, self.chance)]
        self.counts = {"rounds": 0, "killed": 0, "ended before": 0, "rank": 0, "launcher": 0, "all": 0, "jobs ended": 0,
                       "checkpoints verified": 0}  # fmt: skip
        # What a run is that is left alone.
        self.reference = folder / "straight"
        begin = time.monotonic()
        done = subprocess.run(self.jobs[0].command(self.reference, self.jobs[0].layouts[0]), capture_output=True, text=True,
                              env=harness.environment(), timeout=harness.LIMIT_S, check=False)  # fmt: skip
        require(done.returncode == 0, f"the run that is left alone ends with {done.returncode}:\n{done.stdout[-3000:]}")
        self.duration = time.monotonic() - begin
        self.expected = self.metrics(self.reference)
        self.digests = checkpoint_files.digests(self.reference / f"global_step_{STEPS}")

    def metrics(self, run):
        records = [r for r in harness.read_jsonl(run / "metrics.jsonl") if harness.LOSS in r["data"]]
        found = {record["step"]: record["data"] for record in records}
        require(len(found) == len(records), f"{run}: a step stands twice in metrics.jsonl")
        return found

    def round(self):
        self.counts["rounds"] += 1
        job = self.jobs[self.counts["rounds"] % 2]
        layout = job.another_layout()
        after = self.chance.uniform(0, 0.7 * self.duration)
        victim = self.chance.choice(("rank", "launcher", "all"))
        log = self.folder / "log.txt"
        with open(log, "wb") as out:
            process = subprocess.Popen(job.command(job.run, layout), stdout=out, stderr=subprocess.STDOUT, env=harness.environment())
        self.say(f"round {self.counts['rounds']}: {job.run.name} as {layout}, {victim} after {after:.2f} s", flush=True)
        try:
            process.wait(timeout=after)
            killed = False
        except subprocess.TimeoutExpired:
            killed = self.kill(process, victim)
        code = process.wait(timeout=harness.LIMIT_S)
        text = log.read_text(errors="replace")
        job.announced = max(job.announced, newest_announced(text))
        if not killed:
            self.counts["ended before"] += 1
            require(code == 0, f"not killed, and ended with {code}:\n{text[-3000:]}")
        else:
            self.counts["killed"] += 1
            self.counts[victim] += 1
            # It may just have been through.
            done = code == 0 and (job.run / f"global_step_{STEPS}").is_dir()
            require(code != 0 or done, f"killed, and ended with 0:\n{text[-3000:]}")
        try:
            self.check_directory(job)
            if code == 0:
                self.check_end(job)
        except Wrong:
            self.say(f"what the job said:\n{text[-6000:]}", flush=True)
            raise

    def kill(self, process, victim):
        below = harness.descendants(process.pid)
        ranks = harness.ranks_below(process)
        if victim == "rank" and ranks:
            harness.kill(ranks[self.chance.choice(sorted(ranks))])
        else:
            for pid in [process.pid, *below] if victim == "all" else [process.pid]:
                harness.kill(pid)
        deadline = time.monotonic() + GONE_WITHIN_S
        while left := alive({process.pid, *below}):
            process.poll()
            require(time.monotonic() < deadline, f"{left} are left {GONE_WITHIN_S} s after the kill of {victim}")
            time.sleep(0.01)
        return True

    def check_directory(self, job):
        if not job.run.is_dir():
            require(job.announced == 0, f"{job.run} is gone")
            return
        steps = checkpoint_files.steps(job.run)
        if steps:
            verified = harness.keel("ckpt", "verify", job.run)
            require(verified.returncode == 0, f"not whole: {verified.stdout}{verified.stderr}")
            require("not verified" not in verified.stdout, f"held, and nobody is there: {verified.stdout}")
            self.counts["checkpoints verified"] += len(steps)
        newest = max(steps, default=0)
        require(newest >= job.announced, f"step {job.announced} was announced as saved, the newest is {newest}")
        require((checkpoint_files.latest(job.run) or 0) <= newest, "the tracker names a step that is not there")
        job.announced = max(job.announced, newest)  # what is visible now may not get lost either

    def check_end(self, job):
        """The job came to its end: it is the run that was left alone."""
        self.counts["jobs ended"] += 1
        found = self.metrics(job.run)
        require(sorted(found) == list(range(1, STEPS + 1)), f"{job.run}: the steps are {sorted(found)}")
        for step, data in found.items():
            expected = self.expected[step]
            for key in (harness.SAMPLES, "lr", "n_tokens_seen"):
                require(data[key] == expected[key], f"step {step}: {key} is {data[key]}, expected {expected[key]}")
            if job.name == "same":
                for key in (harness.LOSS, harness.GRAD_NORM):
                    require(data[key] == expected[key], f"step {step}: {key} is {data[key]}, expected {expected[key]}")
            far = abs(data[harness.LOSS] - expected[harness.LOSS])
            require(far <= LOSS_TOLERANCE, f"step {step}: the loss is {far} from that of the run that was left alone")
        if job.name == "same":
            require(checkpoint_files.digests(job.run / f"global_step_{STEPS}") == self.digests, "the last checkpoint is another")
        require(debris(job.run) == [], f"left over: {debris(job.run)}")
        require(len(checkpoint_files.steps(job.run)) == KEEP, f"{checkpoint_files.steps(job.run)} are kept, expected {KEEP}")
        shutil.rmtree(job.run)
        job.begin_anew()

    def finish(self):
        """Lets both jobs come to their end."""
        for job in self.jobs:
            if not job.run.is_dir():
                continue
            done = subprocess.run(job.command(job.run, job.layouts[0]), capture_output=True, text=True,
                                  env=harness.environment(), timeout=harness.LIMIT_S, check=False)  # fmt: skip
            require(done.returncode == 0, f"the last start ended with {done.returncode}:\n{done.stdout[-3000:]}")
            self.check_directory(job)
            self.check_end(job)


def torture(rounds, seed, folder, say=print, minutes=None):
    """Runs the rounds; raises Wrong. Returns counts."""
    run = Torture(folder, seed, say)
    begin = time.monotonic()
    while run.counts["rounds"] < rounds and (minutes is None or time.monotonic() - begin < 60 * minutes):
        run.round()
    run.finish()
    return run.counts


@contextlib.contextmanager
def folder_of_runs(where):
    """A folder of its own. It stays where something is wrong, for inspection; where the program is ended, its processes end too."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-torture-", dir=where))
    try:
        yield folder
    except (KeyboardInterrupt, SystemExit):
        below = harness.descendants(os.getpid())
        for pid in below:
            harness.kill(pid)
        begin = time.monotonic()
        while alive(below) and time.monotonic() - begin < GONE_WITHIN_S:
            time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = driver.Parser("torture", __doc__, epilog="keel bench torture --async --help: the same of split RL runs.")
    parser.add_argument("--rounds", type=driver.count(), default=1000)
    parser.add_argument("--minutes", type=driver.amount, help="no new round after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=driver.folder, help="for the runs; default: a temporary one")
    parser.add_argument("--markdown", type=driver.target, help="page to write")
    args = driver.parse(parser)
    begin = time.monotonic()
    try:
        with folder_of_runs(args.dir) as folder:
            counts = torture(args.rounds, args.seed, folder, minutes=args.minutes)
    except Wrong as wrong:
        print(f"torture: {wrong}\nthe folder is {folder}", file=sys.stderr)
        return 1
    minutes = (time.monotonic() - begin) / 60
    text = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"{text}; {minutes:.0f} minutes, nothing wrong")
    if args.markdown:
        command = shlex.join([".venv/bin/python", "tests/proofs/run_torture.py", *sys.argv[1:]])
        rows = "\n".join(f"| {name} | {count} |" for name, count in counts.items())
        driver.put(
            f"# Torture\n\nWhat is done and checked is said by [run_torture.py](../../tests/proofs/run_torture.py).\n\n    {command}\n\n"
            f"{time.strftime('%Y-%m-%d', time.gmtime())}, commit {machine.commit(ROOT)}, {minutes:.0f} minutes: nothing was wrong.\n\n"
            f"| | |\n|---|---|\n{rows}\n", args.markdown,
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
