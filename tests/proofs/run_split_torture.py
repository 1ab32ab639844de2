"""Kills any process of a real split GRPO run at random moments, again and again, and looks at what was trained.

    keel bench torture --async [--kills 1000] [--seed 1] [--minutes M] [--markdown docs/proofs/torture-async.md]

A run is a job of two ranks that train and a replica of two that generates (`keel launch --max-restarts`), and a launcher of
a second replica that joined it (`keel launch ... rollout --join`). At random moments SIGKILL goes to one of: trainer 0,
trainer 1, the first rank of a replica (its leader), its other rank (the follower), the launcher of the replica that
joined, the job's launcher. Who is to start what again does it: the launchers their ranks, this program a launcher that was
killed. Weights are at most two steps old (max_staleness), and every second step is saved.

Whenever a launcher was killed, no process below it may be left a minute later. When a run has come to its end:

    - each step stands once in metrics.jsonl, each position's samples once and in order in the recorded schedule: none is
      lost, none trained twice; no token is older than max_staleness, by the metrics and by the versions in the schedule;
    - the weights and moments are, bit for bit, those of a replay of the recorded schedule, which nobody kills and in which
      one or two replicas generate; every step has changed them;
    - every checkpoint that is kept verifies; nothing else is in the folder; no process is left.

Then the next run begins. The first thing that is wrong ends the program, with exit 1, and leaves the folder for inspection.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "proofs")]
os.environ.setdefault("KEEL_BINARY", str(ROOT / "build" / "release" / "keel"))

import checkpoint_files  # noqa: E402: tests/e2e
import driver  # noqa: E402: bench
import harness  # noqa: E402
import machine  # noqa: E402: bench
from run_torture import GONE_WITHIN_S, Wrong, alive, debris, folder_of_runs, require  # noqa: E402: tests/proofs

STEPS = 100
BATCH, SAMPLES = 8, 4  # positions of a step, samples of each
STALENESS = 2
TRAINERS, TP = 2, 2
RESTARTS = 1_000_000
# Of the job's ranks, then of those that joined.
OF_JOB = {0: "trainer 0", 1: "trainer 1", 2: "leader", 3: "follower"}
OF_JOINED = {0: "leader that joined", 1: "follower that joined"}
VICTIMS = (*OF_JOB.values(), *OF_JOINED.values(), "launcher of those that joined", "launcher of the job")
# Seconds between two kills, on average and to begin with. Less after one that found the run further than the one before, more
# after one that did not: so two of five find it at work, and the others wherever it begins.
PACE_S, LESS, MORE = 2.0, 0.7, 1.3
# A run that gets nowhere has stopped, not died.
STUCK_S = 900


def write_task(path):
    """Two digits, to be said again."""
    chance = random.Random(1)
    rows = [{"prompt": f"{chance.randrange(100):02d}=", "answer": "", "data_source": "copy"} for _ in range(120)]
    path.write_text("".join(json.dumps({**row, "answer": row["prompt"][:2]}) + "\n" for row in rows))


class SplitRun:
    """The run of one folder: its configurations, launchers and what it left."""

    def __init__(self, folder, name, port):
        self.folder, self.name, self.port = folder, name, port
        self.run, self.schedule = folder / name, folder / f"{name}_schedule"
        self.mark = f"{os.getpid()}_{name}"  # in the environment of all its processes

    def config(self, name, **changes):
        changes = {key.replace("__", "."): value for key, value in changes.items()}
        settings = {
            "trainer.task": "rl",
            "trainer.total_training_steps": STEPS,
            "trainer.save_freq": 2,
            "trainer.max_ckpts_to_keep": 2,
            "trainer.deadline_seconds": 30,
            "data.max_prompt_length": 8,
            "data.max_response_length": 6,
            "data.train_batch_size": BATCH,
            "actor_rollout_ref.rollout.n": SAMPLES,
            "actor_rollout_ref.rollout.tensor_model_parallel_size": TP,
            "actor_rollout_ref.rollout.max_num_seqs": 16,  # no replica can take all
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 64,
            "actor_rollout_ref.actor.megatron": {},
            "reward.type": "exact",
            # A model that has learnt nothing earns some of it: were all scores 0, no weight would move.
            "reward.format_score": 0.5,
            "reward.format_pattern": "[ -~].*",
            "algorithm.adv_estimator": "grpo",
            "algorithm.rollout_correction.rollout_is": "token",
            "async_training.placement": "split",
            "async_training.max_staleness": STALENESS,
            "async_training.partial_report_tokens": 2,
            **changes,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(harness.merged(harness.base_config(self.folder / "train.jsonl", self.folder / name), settings)))
        return path

    def start(self, log, *arguments):
        """A launcher, with everything below it marked."""
        environment = {**harness.environment(), "KEEL_PROOF": self.mark, "KEEL_JOB_SECRET": "a secret of enough characters"}
        with open(self.folder / log, "ab") as out:
            return subprocess.Popen([harness.KEEL, "launch", "--max-restarts", str(RESTARTS), *map(str, arguments)],
                                    stdout=out, stderr=subprocess.STDOUT, env=environment)  # fmt: skip

    def start_job(self):
        config = self.config(self.name, async_training__port=self.port, async_training__schedule_record=str(self.schedule))
        return self.start("job.txt", "--nproc-per-node", TRAINERS + TP, "--roles", f"trainer:{TRAINERS},rollout:{TP}", "train", config)

    def start_joined(self):
        return self.start("joined.txt", "--nproc-per-node", TP, "rollout", self.folder / f"{self.name}.yaml", "--join",
                          f"127.0.0.1:{self.port}")  # fmt: skip

    def left(self):
        """Processes of this run that are alive."""
        wanted, found = f"KEEL_PROOF={self.mark}".encode(), []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass  # ended meanwhile
        return alive(found)

    def log(self):
        texts = [(name, self.folder / name) for name in ("job.txt", "joined.txt")]
        return "\n".join(f"{name}:\n{path.read_text(errors='replace')[-5000:]}" for name, path in texts if path.exists())

    def remove(self):
        for path in (self.run, self.schedule):
            shutil.rmtree(path, ignore_errors=True)
        for name in ("job.txt", "joined.txt"):
            (self.folder / name).unlink(missing_ok=True)


class SplitTorture:
    def __init__(self, folder, seed, say=print):
        self.folder, self.say = folder, say
        self.chance = random.Random(seed)
        self.counts = {"kills": 0, **dict.fromkeys(VICTIMS, 0), "kills that found the run further than the one before": 0, "runs": 0, "steps": 0, "samples": 0, "lost": 0, "trained twice": 0,
                       "older than max_staleness": 0, "runs bit for bit those of their replays": 0}  # fmt: skip
        self.pace_s = PACE_S
        self.found_at = 0  # the step at the last kill
        write_task(folder / "train.jsonl")

    def run(self, name, kills):
        """A run in which up to `kills` processes are killed, to its end."""
        run = SplitRun(self.folder, name, harness.free_port())
        try:
            self.drive(run, kills)
            self.check(run)
        except (Wrong, subprocess.TimeoutExpired):
            self.say(run.log(), flush=True)
            raise
        finally:
            for pid in run.left():
                harness.kill(pid)
        run.remove()

    def drive(self, run, kills):
        self.found_at = 0
        begun = {"job": run.start_job(), "joined": None}
        deadline = time.monotonic() + STUCK_S
        next_kill = time.monotonic() + self.chance.uniform(0, 2 * self.pace_s)
        killed = set()  # launchers
        while True:
            require(time.monotonic() < deadline, f"the run has not ended {STUCK_S} s after its last kill")
            job, joined = begun["job"], begun["joined"]
            if job.poll() is not None:
                if job.returncode == 0:
                    break
                require(job.pid in killed, f"the job's launcher has ended by itself with {job.returncode}")
                begun["job"] = run.start_job()
            if joined is None or joined.poll() is not None:
                over = (run.run / f"global_step_{STEPS}").is_dir()
                if joined is not None and joined.pid not in killed:
                    require(over and joined.returncode in (0, 69), f"those that joined have left with {joined.returncode}")
                if not over:
                    begun["joined"] = run.start_joined()
            if kills > 0 and time.monotonic() >= next_kill:
                if self.kill(run, begun, killed):
                    kills -= 1
                    deadline = time.monotonic() + STUCK_S
                next_kill = time.monotonic() + self.chance.uniform(0, 2 * self.pace_s)
            time.sleep(0.02)
        self.end_of_joined(begun["joined"], killed)
        self.gone(run.left, "the end of the run")

    def end_of_joined(self, joined, killed):
        """They have heard that the run is over; but those that were just being started again are told to stop."""
        if joined is None:
            return
        try:
            joined.wait(timeout=5)
            require(joined.returncode in (0, 69) or joined.pid in killed, f"those that joined have left with {joined.returncode}")
        except subprocess.TimeoutExpired:
            joined.terminate()
            joined.wait(timeout=GONE_WITHIN_S)

    def kill(self, run, begun, killed):
        """One process that there is, each kind with the same chance; False: none is there."""
        there = {}
        for launcher, names in (("job", OF_JOB), ("joined", OF_JOINED)):
            process = begun[launcher]
            if process is None or process.poll() is not None:
                continue
            there["launcher of the job" if launcher == "job" else "launcher of those that joined"] = process.pid
            there |= {names[rank]: pid for rank, pid in harness.ranks_below(process).items()}
        if not there:
            return False
        victim = self.chance.choice(sorted(there))
        below = harness.descendants(there[victim])
        harness.kill(there[victim])
        self.counts["kills"] += 1
        self.counts[victim] += 1
        step = self.newest_step(run)
        further = step > self.found_at
        self.counts["kills that found the run further than the one before"] += further
        self.pace_s *= LESS if further else MORE
        self.found_at = step
        self.say(f"kill {self.counts['kills']}: {victim}, after step {step} of {run.name}", flush=True)
        if victim.startswith("launcher"):
            killed.add(there[victim])
            next(p for p in begun.values() if p is not None and p.pid == there[victim]).wait()
            self.gone(lambda: alive(below), f"the kill of the {victim}")
        return True

    def gone(self, left, after):
        deadline = time.monotonic() + GONE_WITHIN_S
        while found := left():
            require(time.monotonic() < deadline, f"{found} are left {GONE_WITHIN_S} s after {after}")
            time.sleep(0.02)

    def newest_step(self, run):
        lines = harness.read_jsonl(run.run / "metrics.jsonl")
        return max((line["step"] for line in lines), default=0)

    def check(self, run):
        """What the run was, by what it left."""
        records = [r for r in harness.read_jsonl(run.run / "metrics.jsonl") if "training/global_step" in r["data"]]
        require([r["step"] for r in records] == list(range(1, STEPS + 1)), f"the steps are {[r['step'] for r in records]}")
        require(min(r["data"]["actor/grad_norm"] for r in records) > 0, "a step has learnt nothing")
        oldest = max(r["data"]["off_policy/max"] for r in records)
        dropped = sum(r["data"]["fully_async/count/dropped_samples"] for r in records)
        wanted = [(position, sample) for position in range(BATCH * STEPS) for sample in range(SAMPLES)]
        taken, ages = [], []
        for step in range(1, STEPS + 1):
            for line in harness.read_jsonl(run.schedule / f"{step}.jsonl"):
                taken.append((line["position"], line["sample"]))
                # Version v has the updates of v - 1 steps, step s is trained on top of s - 1.
                ages += [step - version for _, version in line["spans"]]
        self.counts["lost"] += len(set(wanted) - set(taken)) + int(dropped)
        self.counts["trained twice"] += len(taken) - len(set(taken))
        self.counts["older than max_staleness"] += sum(age > STALENESS for age in ages) + (oldest > STALENESS)
        require(taken == wanted, f"trained were {taken}")
        require(dropped == 0 and oldest == max(ages) and oldest <= STALENESS and min(ages) >= 0,
                f"{dropped} dropped; {oldest} steps old by the metrics, {min(ages)} to {max(ages)} by the schedule")  # fmt: skip
        verified = harness.keel("ckpt", "verify", run.run)
        require(verified.returncode == 0, f"not whole: {verified.stdout}{verified.stderr}")
        require(debris(run.run) == [], f"left over: {debris(run.run)}")
        self.replay(run)
        self.counts["runs"] += 1
        self.counts["steps"] += STEPS
        self.counts["samples"] += len(taken)

    def replay(self, run):
        again = SplitRun(self.folder, f"{run.name}_again", 0)
        config = again.config(again.name, async_training__schedule_replay=str(run.schedule), trainer__save_freq=STEPS)
        workers = TP * self.chance.choice((1, 2))
        done = harness.keel("launch", "--nproc-per-node", TRAINERS + workers, "--roles", f"trainer:{TRAINERS},rollout:{workers}",
                            "train", config)  # fmt: skip
        require(done.returncode == 0, f"the replay ends with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        last = f"global_step_{STEPS}"
        require(checkpoint_files.digests(run.run / last) == checkpoint_files.digests(again.run / last), "the replay has other weights")
        self.counts["runs bit for bit those of their replays"] += 1
        again.remove()


def torture(kills, seed, folder, say=print, minutes=None, kills_a_run=25):
    """Runs until `kills` processes were killed; raises Wrong. Returns counts."""
    all_runs = SplitTorture(folder, seed, say)
    begin = time.monotonic()
    number = 0
    while all_runs.counts["kills"] < kills and (minutes is None or time.monotonic() - begin < 60 * minutes):
        number += 1
        all_runs.run(f"run_{number}", min(kills_a_run, kills - all_runs.counts["kills"]))
    return all_runs.counts


def main():
    parser = driver.Parser("torture --async", __doc__)
    parser.add_argument("--kills", type=driver.count(), default=1000)
    parser.add_argument("--kills-a-run", type=driver.count(), default=25, help="at most; then it is left to come to its end")
    parser.add_argument("--minutes", type=driver.amount, help="no new run after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=driver.folder, help="for the runs; default: a temporary one")
    parser.add_argument("--markdown", type=driver.target, help="page to write")
    args = driver.parse(parser)
    begin, commit = time.monotonic(), machine.commit(ROOT)
    try:
        with folder_of_runs(args.dir) as folder:
            counts = torture(args.kills, args.seed, folder, minutes=args.minutes, kills_a_run=args.kills_a_run)
    except Wrong as wrong:
        print(f"torture: {wrong}\nthe folder is {folder}", file=sys.stderr)
        return 1
    minutes = (time.monotonic() - begin) / 60
    print(f"{', '.join(f'{name} {count}' for name, count in counts.items())}; {minutes:.0f} minutes, nothing wrong")
    if args.markdown:
        driver.put(page(args, commit, counts, minutes), args.markdown)
    return 0


def page(args, commit, counts, minutes):
    asked = (("kills", args.kills), ("kills-a-run", args.kills_a_run), ("minutes", args.minutes), ("seed", args.seed))
    given = [f"--{name} {value}" for name, value in asked if value is not None]
    rows = "\n".join(f"| {name} | {count:,} |" for name, count in counts.items())
    return (
        "# Torture of a split run\n\nWhat is killed and checked is said by [run_split_torture.py](../../tests/proofs/run_split_torture.py).\n\n"
        f"    keel bench torture --async {' '.join(given)} --markdown docs/proofs/torture-async.md\n\n"
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}, {minutes:.0f} minutes on {os.cpu_count()} cores:"
        f" nothing was wrong.\n\n| | |\n|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
